"""Time the products of a layer in bfloat16 and in FP8, and the conversion to FP8, on a Hopper GPU with PyTorch.

    python -m benchmarks.gpu_fp8               # stores data/results/ch37_gpu.json
    python -m benchmarks.gpu_fp8 --out FOLDER  # writes the JSON there

A layer has four weights, and each weight has three products: forward, dx and dw. A tensor core takes FP8 only if the
numbers over which a product sums are adjacent in memory. So an input and a gradient are each needed twice, once in rows
and once transposed. One kernel reads bfloat16, writes both copies in FP8, and finds the largest magnitude for
the scale of the next step. Every product and conversion is checked before it is timed: products against float64, the
conversion bitwise against PyTorch's. The versions of a product alternate in rounds; results are medians.
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from nanoeuler_lib.config import preset
from tools.notebooks.results import FOLDER, save

ROUNDS, LAUNCHES, SETS = 15, 5, 3  # SETS: copies of the arrays, so that a launch does not find its inputs in the cache
BYTES = 4  # of a conversion per number: read 2, write 1 in rows and 1 transposed
VERSIONS = "bfloat16", "FP8", "FP8, fast sums"

KERNEL = r"""
extern "C" __global__ void convert(const unsigned short* x, const float* factor, unsigned char* rows,
                                   unsigned char* columns, unsigned int* largest, int N, int D) {
    // A block converts a tile of 64 x 64 numbers of x [N, D]; a thread reads 8 adjacent numbers, twice.
    __shared__ __align__(16) unsigned char tile[64][68];
    const size_t row0 = 64 * (size_t)blockIdx.y, column0 = 64 * (size_t)blockIdx.x;
    const float scale = *factor;
    float most = 0;
    for (int i = threadIdx.x; i < 512; i += 256) {
        const int r = i / 8, c = i % 8 * 8;
        const size_t at = (row0 + r) * D + column0 + c;
        const uint4 read = *reinterpret_cast<const uint4*>(x + at);
        const unsigned int pair[4] = {read.x, read.y, read.z, read.w};
        unsigned int four[2] = {0, 0};
        for (int j = 0; j < 4; j++) {
            const float low = __uint_as_float(pair[j] << 16), high = __uint_as_float(pair[j] & 0xffff0000u);
            most = fmaxf(most, fmaxf(fabsf(low), fabsf(high)));
            unsigned short two;
            asm("cvt.rn.satfinite.FORMATx2.f32 %0, %1, %2;" : "=h"(two) : "f"(high * scale), "f"(low * scale));
            four[j / 2] |= (unsigned int)two << 16 * (j % 2);
        }
        *reinterpret_cast<uint2*>(rows + at) = make_uint2(four[0], four[1]);
        *reinterpret_cast<unsigned int*>(&tile[r][c]) = four[0];
        *reinterpret_cast<unsigned int*>(&tile[r][c + 4]) = four[1];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 512; i += 256) {
        const int c = i / 8, r = i % 8 * 8;
        unsigned int four[2] = {0, 0};
        for (int j = 0; j < 8; j++) four[j / 4] |= (unsigned int)tile[r + j][c] << 8 * (j % 4);
        *reinterpret_cast<uint2*>(columns + (column0 + c) * N + row0 + r) = make_uint2(four[0], four[1]);
    }
    for (int apart = 16; apart; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
    if (threadIdx.x % 32 == 0) atomicMax(largest, __float_as_uint(most));
}
"""


class Shape(NamedTuple):
    """A layer: N rows (tokens of a batch), width D, columns of the queries, keys and values, and width F."""

    rows: int
    dim: int
    qkv: int
    ffn: int

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """The sizes [I, O] of the four weights."""
        return {
            "qkv": (self.dim, self.qkv),
            "out": (self.dim, self.dim),
            "gate_up": (self.dim, 2 * self.ffn),
            "down": (self.ffn, self.dim),
        }

    @property
    def converted(self) -> int:
        """The numbers that a step converts in one layer: the input and the gradient of every product with a weight."""
        return self.rows * sum(inner + outer for inner, outer in self.weights.values())

    @property
    def flops(self) -> int:
        """The operations of the three products with every weight."""
        return 6 * self.rows * sum(inner * outer for inner, outer in self.weights.values())


def shapes() -> dict[str, Shape]:
    """Return the layer of `base` with 64 texts of 512 tokens, and a layer of width 4096 with 8,192 tokens."""
    base = preset("base")
    columns = (base.heads + 2 * base.kv_heads) * base.head_dim
    return {"base": Shape(64 * base.context, base.dim, columns, base.ffn), "wide": Shape(8192, 4096, 6144, 14336)}


class Converter:
    """Convert matrices to FP8, in rows and transposed, with our kernel; form: "e4m3" or "e5m2"."""

    def __init__(self, torch, cupy, form: str):
        self.torch, self.cupy = torch, cupy
        self.dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[form]
        self.kernel = cupy.RawKernel(KERNEL.replace("FORMAT", form), "convert")

    def __call__(self, x, factor, rows, columns, largest) -> None:
        """Write x [N, D] times factor [1] to rows [N, D] and columns [D, N], and raise `largest` [1] to max |x|."""
        N, D = x.shape
        pointers = tuple(self.cupy.uint64(array.data_ptr()) for array in (x, factor, rows, columns, largest))
        with self.cupy.cuda.ExternalStream(self.torch.cuda.current_stream().cuda_stream):
            self.kernel((D // 64, N // 64), (256,), (*pointers, self.cupy.int32(N), self.cupy.int32(D)))

    def buffers(self, x) -> tuple:
        """Return the results' arrays for x: rows, columns, largest."""
        empty = [self.torch.empty(shape, dtype=self.dtype, device="cuda") for shape in (x.shape, x.shape[::-1])]
        return *empty, self.torch.zeros(1, dtype=self.torch.int32, device="cuda")

    def check(self, x, factor) -> None:
        """Compare a conversion with PyTorch's, bit by bit."""
        torch, (rows, columns, largest) = self.torch, self.buffers(x)
        self(x, factor, rows, columns, largest)
        limit = torch.finfo(self.dtype).max
        wanted = (x.float() * factor).clamp(-limit, limit).to(self.dtype).view(torch.uint8)
        assert torch.equal(rows.view(torch.uint8), wanted), "the rows differ from PyTorch's conversion"
        assert torch.equal(columns.view(torch.uint8), wanted.t()), "the transposed copy differs"
        assert largest.view(torch.float32).item() == x.abs().max().item(), "the largest magnitude differs"


def alternate(torch, launches: dict) -> dict[str, list[float]]:
    """Return the milliseconds of each version in each round; a version is a function of the number of a launch."""
    times = {name: [] for name in launches}
    for around in range(ROUNDS + 1):
        for name, launch in launches.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for k in range(LAUNCHES):
                launch(k)
            last.record()
            last.synchronize()
            if around:  # the first round is a warm-up
                times[name].append(round(first.elapsed_time(last) / LAUNCHES, 5))
    return times


def eight_bits(torch, x, dtype):
    """Return x in FP8 with one scale, and the scale: x is about the result times the scale."""
    scale = x.abs().max().float() / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype), scale


def product_row(torch, name: str, left, right, kinds) -> dict:
    """Check and time left [M, K] times right [K, N] in bfloat16 and FP8.

    left, right: lists of SETS arrays in bfloat16; kinds: the types of FP8 of both.
    """
    ready = [[eight_bits(torch, x, kind) for x in side] for side, kind in zip((left, right), kinds, strict=True)]
    # rows of the left factor and columns of the right factor must be adjacent in memory
    a8 = [a.contiguous() for a, _ in ready[0]]
    b8 = [b.t().contiguous().t() for b, _ in ready[1]]
    scales = [[scale.reshape(()) for _, scale in side] for side in ready]

    def fast(k, sums, out=torch.bfloat16):
        k %= SETS
        return torch._scaled_mm(a8[k], b8[k], scales[0][k], scales[1][k], out_dtype=out, use_fast_accum=sums)

    launches = {
        VERSIONS[0]: lambda k: torch.mm(left[k % SETS], right[k % SETS]),
        VERSIONS[1]: lambda k: fast(k, False),
        VERSIONS[2]: lambda k: fast(k, True),
    }
    errors = {}
    for version, sums in zip(VERSIONS[1:], (False, True), strict=True):
        exact = (a8[0][:64].float().double() @ b8[0].float().double()) * (scales[0][0].double() * scales[1][0].double())
        found = fast(0, sums, torch.float32)[:64].double()
        errors[version] = float((found - exact).norm() / exact.norm())
        assert errors[version] < 0.01, f"{name}: {version} is off by {errors[version]:.2e}"
    exact = left[0][:64].double() @ right[0].double()
    off = float((torch.mm(left[0], right[0])[:64].double() - exact).norm() / exact.norm())
    assert off < 0.01, f"{name}: bfloat16 is off by {off:.2e}"
    rounds = alternate(torch, launches)
    M, K, N = *left[0].shape, right[0].shape[1]
    row = {"row": "product", "product": name, "size": [M, N, K], "error": errors, "rounds": rounds}
    return row | {"ms": {version: statistics.median(times) for version, times in rounds.items()}}


def conversion_row(torch, name: str, arrays, convert: Converter) -> dict:
    """Check and time the conversion of arrays [N, D], and a copy of them."""
    factor = torch.full((1,), 50.0, device="cuda")
    convert.check(arrays[0], factor)
    results = [convert.buffers(x) for x in arrays]
    copies = [torch.empty_like(x) for x in arrays]
    launches = {
        "convert": lambda k: convert(arrays[k % SETS], factor, *results[k % SETS]),
        "copy": lambda k: copies[k % SETS].copy_(arrays[k % SETS]),
    }
    rounds = alternate(torch, launches)
    ms = {version: statistics.median(times) for version, times in rounds.items()}
    row = {"row": "conversion", "array": name, "numbers": arrays[0].numel(), "ms": ms, "rounds": rounds}
    return row | {"copy GB/s": round(4 * arrays[0].numel() / ms["copy"] / 1e6, 1)}


def layer_rows(torch, cupy, shape: Shape) -> list[dict]:
    """Time the products and conversions of one layer."""
    torch.manual_seed(0)
    converters = {"x": Converter(torch, cupy, "e4m3"), "dy": Converter(torch, cupy, "e5m2")}
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    rows = []
    for name, (inner, outer) in shape.weights.items():
        draw = lambda *size: [torch.randn(*size, device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]
        x, w, dy = draw(shape.rows, inner), draw(inner, outer), draw(shape.rows, outer)
        rows.append(product_row(torch, f"{name} forward", x, w, (e4m3, e4m3)))
        rows.append(product_row(torch, f"{name} dx", dy, [a.t() for a in w], (e5m2, e4m3)))
        rows.append(product_row(torch, f"{name} dw", [a.t() for a in x], dy, (e4m3, e5m2)))
        for which, arrays in (("x", x), ("dy", dy)):
            rows.append(conversion_row(torch, f"{which} of {name}", arrays, converters[which]))
        del x, w, dy
        torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the JSON; default: data/results")
    options = parser.parse_args()
    import cupy
    import torch

    rows = []
    for size, shape in shapes().items():
        for row in layer_rows(torch, cupy, shape):
            rows.append({"layer": size} | row)
            print({key: value for key, value in rows[-1].items() if key != "rounds"}, flush=True)
    config = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "bytes": BYTES}
    config |= {"rounds": ROUNDS, "launches": LAUNCHES}
    config |= {"shapes": {size: shape._asdict() for size, shape in shapes().items()}}
    save("ch37_gpu", config, rows, folder=options.out)


if __name__ == "__main__":
    main()
