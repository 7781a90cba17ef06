"""Time a training step with FlashAttention against one with T x T matrices in memory, in alternation; needs a GPU.

    python -m benchmarks.gpu_flash_step                  # both cases; stores data/results/gpu_flash_step.json
    python -m benchmarks.gpu_flash_step --quick          # few rounds, printed but not stored
    python -m benchmarks.gpu_flash_step --case 1         # only this one of CASES; stores gpu_flash_step_1.json
    python -m benchmarks.gpu_flash_step --out FOLDER     # writes the JSON there

Model, kernels, optimiser, weights and batches are the same; only attention differs. `Plain` computes attention without
FlashAttention: heads are copied into separate arrays, cuBLAS multiplies all of them at once, and a kernel computes the
softmax of each row in place. Numbers in memory are bfloat16, sums are float32, and each layer keeps its probabilities
for the backward pass. Queries, keys and values are copied again there, so that nothing else has to be kept.

For `base` at 64 x 512, a layer has 64 x 12 x 512 x 512 probabilities, 0.4 GB, so 16 layers have 6.4 GB. Each layer
moves such a matrix nine and a half times. The forward pass writes the scores, reads the causal half, writes the
probabilities and reads them. The backward pass reads them for dv, writes their gradient, reads the halves of both,
writes the gradient of the scores, and reads it for dq and for dk. That is 61 GB per step, or twenty milliseconds at 3
TB/s.

CuPy's cuBLAS cannot be captured in a CUDA graph, so both versions run launch by launch. The third row is the engine's
actual step, which is captured. The first gradients of q, k and v and the losses of the first steps must agree. Rounds,
times and memory are measured as in `gpu_step`.
"""

import functools
import math
import statistics
from types import SimpleNamespace

import numpy as np

from benchmarks.gpu_step import (
    AGREE,
    ROUNDS,
    STEPS,
    Take,
    agreeing,
    batch,
    in_turns,
    parser_of,
    peak_gib,
    remembered,
    stepping,
)
from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.cuda.blas import COMPUTE, COMPUTE_TF32, TYPE, from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import flash, program
from tools.notebooks.results import save

CASES = [64, 16]  # texts of a batch
PRECISION = "bfloat16"
FLASH, PLAIN, GRAPH = "FlashAttention", "T x T", "FlashAttention, graph"
THREADS = 256
GRADIENTS = {"bfloat16": 0.05, "float32": 1e-5}  # by how much of their length gradients may differ
DEFAULT = -1  # CUBLAS_GEMM_DEFAULT: cuBLAS chooses the algorithm

SOURCE = """
#include <cuda_bf16.h>
#include <fours.cuh>
#include <reduce.cuh>

constexpr float LEAST = -3e38f;

__device__ __forceinline__ float read_one(const float* p) { return *p; }
__device__ __forceinline__ float read_one(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ __forceinline__ void write_one(float* p, float v) { *p = v; }
__device__ __forceinline__ void write_one(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }

// packed: [texts T, (H + 2 G) C], at each position the heads side by side; q: [texts, H, T, C]; k, v: [texts, G, T, C].
// Copy packed to q, k and v; with JOIN, copy q, k and v to packed. Each of `pieces` threads copies 16 bytes.
template <class Number, bool JOIN>
__global__ void heads(Number* packed, Number* q, Number* k, Number* v, int pieces, int T, int H, int G, int C) {
  int id = blockIdx.x * blockDim.x + threadIdx.x, each = C * (int)sizeof(Number) / 16, beside = H + 2 * G;
  if (id >= pieces) return;
  int head = id / each % beside, row = id / each / beside, text = row / T, t = row % T;
  Number* of = head < H ? q : head < H + G ? k : v;
  int count = head < H ? H : G, number = head < H ? head : (head - H) % G;
  uint4* apart = (uint4*)(of + (((size_t)text * count + number) * T + t) * C) + id % each;
  uint4* together = (uint4*)packed + id;
  if (JOIN) *together = *apart;
  else *apart = *together;
}

// Return columns i to i + 3 of a row of T; columns after `last` are not read and become `future`.
template <class Number>
__device__ __forceinline__ float4 past_of(const Number* row, int i, int T, int last, float future) {
  float x[4] = {future, future, future, future};
  if (T % 4 == 0 && i <= last) {
    float4 four = read_four(row + i);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (i + j > last) x[j] = future;
    else if (T % 4) x[j] = read_one(row + i + j);
  }
  return make_float4(x[0], x[1], x[2], x[3]);
}

template <class Number> __device__ __forceinline__ void write_some(Number* row, int i, int T, float4 v) {
  if (T % 4 == 0) {
    if (i < T) write_four(row + i, v);
    return;
  }
  float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int j = 0; j < 4; j++)
    if (i + j < T) write_one(row + i + j, x[j]);
}

// p = softmax(p) for the past of each row, and 0 for its future. p: [rows, T]; row r is at position r % T. A warp has
// one row, and each lane keeps KEEP groups of four numbers.
template <class Number, int KEEP>
__global__ void __launch_bounds__(256) softmax(Number* p, int rows, int T) {
  if (T > 128 * KEEP) __trap();  // a row is wider than the warp can keep
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, last = row % T;
  if (row >= rows) return;
  p += (size_t)row * T;
  float4 e[KEEP];
  float largest = LEAST, sum = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    e[k] = past_of(p, 4 * (lane + 32 * k), T, last, LEAST);
    largest = fmaxf(fmaxf(fmaxf(e[k].x, e[k].y), fmaxf(e[k].z, e[k].w)), largest);
  }
  largest = warp_max(largest);
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    e[k].x = __expf(e[k].x - largest), e[k].y = __expf(e[k].y - largest);
    e[k].z = __expf(e[k].z - largest), e[k].w = __expf(e[k].w - largest);
    sum += (e[k].x + e[k].y) + (e[k].z + e[k].w);
  }
  float share = 1 / warp_sum(sum);
#pragma unroll
  for (int k = 0; k < KEEP; k++)
    write_some(p, 4 * (lane + 32 * k), T,
               make_float4(e[k].x * share, e[k].y * share, e[k].z * share, e[k].w * share));
}

// d = p (d - sum(p d)) for the past of each row, and 0 for its future. The gradient of p becomes the gradient of the
// scores.
template <class Number, int KEEP>
__global__ void __launch_bounds__(256) softmax_back(Number* d, const Number* p, int rows, int T) {
  if (T > 128 * KEEP) __trap();  // a row is wider than the warp can keep
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, last = row % T;
  if (row >= rows) return;
  p += (size_t)row * T, d += (size_t)row * T;
  float4 a[KEEP], b[KEEP];
  float along = 0;
#pragma unroll
  for (int k = 0; k < KEEP; k++) {
    a[k] = past_of(p, 4 * (lane + 32 * k), T, last, 0.0f);
    b[k] = past_of((const Number*)d, 4 * (lane + 32 * k), T, last, 0.0f);
    along += (a[k].x * b[k].x + a[k].y * b[k].y) + (a[k].z * b[k].z + a[k].w * b[k].w);
  }
  along = warp_sum(along);
#pragma unroll
  for (int k = 0; k < KEEP; k++)
    write_some(d, 4 * (lane + 32 * k), T,
               make_float4(a[k].x * (b[k].x - along), a[k].y * (b[k].y - along), a[k].z * (b[k].z - along),
                           a[k].w * (b[k].w - along)));
}
"""


class Plain(program.Program):
    """Replace the engine's attention by attention with T x T matrices in memory; the rest is unchanged.

    The H / G heads of a group follow one another: queries are [B G, (H / G) T, C]. So one product serves the whole
    group, and a sum over the rows of a group is also a sum over its heads.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.probabilities, self.shared = {}, {}  # one array per layer; arrays that all layers use in turn

    def attention(self, y, probs, lse, qkv, config):
        """Compute y = softmax(q k^T / sqrt(C) + mask) v per head. y: [N, HC]; qkv: [N, (H+2G)C]; lse: [B, H, T]."""
        p, of = self._probabilities(lse, qkv), self._shared(lse, qkv)
        self._heads("attention", "false", qkv, of.q, of.k, of.v)
        self._batched("attention", p, of.q, of.k, transpose_b=True, alpha=1 / math.sqrt(config.head_dim))
        self._rows("attention", "softmax", p)
        self._batched("attention", of.o, p, of.v)
        self._heads("attention", "true", y, of.o)

    def attention_back(self, dqkv, dy, y, probs, lse, qkv, config, *, rope):
        """Compute dqkv, backward through `attention` and the RoPE before it."""
        p, of, scale = self._probabilities(lse, qkv), self._shared(lse, qkv), 1 / math.sqrt(config.head_dim)
        self._heads("attention_back", "false", qkv, of.q, of.k, of.v)
        self._heads("attention_back", "false", dy, of.o)
        self._batched("attention_back", of.dv, p, of.o, transpose_a=True)
        self._batched("attention_back", of.dp, of.o, of.v, transpose_b=True)
        self._rows("attention_back", "softmax_back", of.dp, p)
        self._batched("attention_back", of.dq, of.dp, of.k, alpha=scale)
        self._batched("attention_back", of.dk, of.dp, of.q, transpose_a=True, alpha=scale)
        self._heads("attention_back", "true", dqkv, of.dq, of.dk, of.dv)
        (N, pitch), heads, C = dqkv.shape, config.heads + config.kv_heads, config.head_dim
        arguments = dqkv, rope.cos, -rope.sin, N, lse.shape[2], heads, C, pitch
        grid, moved = -(-N * heads * C // 8 // THREADS), 2 * N * heads * C * dqkv.itemsize
        self._engine("attention_back", f"rope_packed<{self.number}>", grid, THREADS, arguments, moved)

    # ---- memory

    def _sizes(self, lse):
        """Return the number of products per launch, the rows of each product, and the positions."""
        B, H, T = lse.shape
        return B * self.config.kv_heads, H // self.config.kv_heads * T, T

    def _probabilities(self, lse, qkv):
        """Return the probabilities [B G, (H / G) T, T] of the layer to which `qkv` belongs."""
        key = flash._address(qkv), lse.shape
        if key not in self.probabilities:
            self.probabilities[key] = cuda.array_module(self.where).empty(self._sizes(lse), qkv.dtype)
        return self.probabilities[key]

    def _shared(self, lse, qkv):
        if lse.shape not in self.shared:
            pairs, rows, T = self._sizes(lse)
            empty, C = cuda.array_module(self.where).empty, self.config.head_dim
            of = dict.fromkeys(("q", "o", "dq"), (pairs, rows, C))
            of |= dict.fromkeys(("k", "v", "dk", "dv"), (pairs, T, C)) | {"dp": (pairs, rows, T)}
            made = {name: empty(shape, qkv.dtype) for name, shape in of.items()}
            self.shared[lse.shape] = SimpleNamespace(**made)
        return self.shared[lse.shape]

    # ---- launches

    def _heads(self, composite, join, packed, q, k=None, v=None):
        """Copy the heads of `packed` [N, ...] to q, k, v, or back if `join` is "true"; without k and v, to q only."""
        C, T = self.config.head_dim, q.shape[1] * self.config.kv_heads // self.config.heads
        groups = 0 if k is None else self.config.kv_heads
        pieces = packed.nbytes // 16
        arguments = packed, q, *((q, q) if k is None else (k, v)), pieces, T, self.config.heads, groups, C
        self._kernel(composite, f"heads<{self.number}, {join}>", -(-pieces // THREADS), arguments, 2 * packed.nbytes)

    def _rows(self, composite, kernel, *matrices):
        """Launch softmax or its backward pass on the rows of the first of the matrices [B G, (H / G) T, T]."""
        *sizes, T = matrices[0].shape
        rows = math.prod(sizes)
        name = f"{kernel}<{self.number}, {_keep(T)}>"
        moved = (len(matrices) + 2) * matrices[0].nbytes // 2  # only the past is read
        self._kernel(composite, name, -(-rows * 32 // THREADS), (*matrices, rows, T), moved)

    def _kernel(self, composite, name, grid, arguments, moved):
        module = _module(SOURCE, _kernels(self.number, self.config.context), self.where, self.checked)
        self._launch(composite, module, name, grid, THREADS, arguments, moved)

    def _batched(self, composite, c, a, b, **options):
        made = Batched(c, a, b, tf32=self.tf32, **options)
        moved, inner = a.nbytes + b.nbytes + c.nbytes, made.sizes[2]
        self._add(composite, made, moved, 2 * c.size * inner)


def _keep(T: int) -> int:
    """Return how many groups of four numbers of a row of T each lane keeps."""
    return -(-T // 128)


def _kernels(number: str, context: int) -> tuple[str, ...]:
    """Return the kernel instances for texts of up to `context` positions."""
    heads = [f"heads<{number}, {join}>" for join in ("false", "true")]
    widths = range(1, _keep(context) + 1)
    return *heads, *(f"{name}<{number}, {k}>" for name in ("softmax", "softmax_back") for k in widths)


@functools.cache
def _module(source: str, instantiate: tuple[str, ...], where: str, checked: bool) -> cuda.Module:
    return cuda.module(source, where=where, checked=checked, instantiate=instantiate)


class Batched:
    """Launch c = alpha op(a) op(b) for many matrices of the same shape, row-major, without gaps between them.

    c: [S, M, N]; a: [S, M, K], with transpose_a [S, K, M]; b: [S, K, N], with transpose_b [S, N, K]; all float32 or all
    bfloat16 (uint16). Sums are float32.
    """

    def __init__(self, c, a, b, transpose_a=False, transpose_b=False, alpha=1.0, tf32=False):
        self.c, self.a, self.b, self.tf32 = c, a, b, tf32
        self.transpose_a, self.transpose_b = transpose_a, transpose_b
        self.factors = np.array([alpha, 0], np.float32)  # alpha, beta: cuBLAS reads them at each launch
        S, M, N = c.shape
        K = a.shape[1 if transpose_a else 2]
        self.sizes = M, N, K
        wanted = (S, K, M) if transpose_a else (S, M, K), (S, N, K) if transpose_b else (S, K, N)
        assert (a.shape, b.shape) == wanted, f"for c {c.shape}, a and b must be {wanted}, got {a.shape} and {b.shape}"

    @functools.cached_property
    def _launch(self):
        return self._on_cpu if isinstance(self.c, np.ndarray) else self._on_gpu()

    def __call__(self) -> None:
        self._launch()

    def _on_cpu(self):
        half = self.c.dtype == np.uint16
        a, b = (from_bfloat16(x) if half else x for x in (self.a, self.b))
        a, b = a.swapaxes(1, 2) if self.transpose_a else a, b.swapaxes(1, 2) if self.transpose_b else b
        found = self.factors[0] * (a @ b)
        self.c[...] = to_bfloat16(found) if half else found

    def _on_gpu(self):
        """Return the cuBLAS call. cuBLAS stores matrices by columns, so it sees x as x^T, and c^T = op(b)^T op(a)^T.

        So b comes before a, and N before M. An operand is transposed for cuBLAS if it is transposed here.
        """
        import cupy
        from cupy_backends.cuda.libs import cublas

        M, N, K = self.sizes
        kind, compute = TYPE[str(self.c.dtype)], COMPUTE_TF32 if self.tf32 else COMPUTE
        c, a, b = ((x.data.ptr, kind, x.shape[2], x.shape[1] * x.shape[2]) for x in (self.c, self.a, self.b))
        alpha = self.factors.ctypes.data
        return functools.partial(
            cublas.gemmStridedBatchedEx, cupy.cuda.get_cublas_handle(), int(self.transpose_b), int(self.transpose_a),
            N, M, K, alpha, *b, *a, alpha + self.factors.itemsize, *c, self.c.shape[0], compute, DEFAULT,
        )  # fmt: skip


def one_by_one(launches: program.Launches) -> None:
    """Run the launches one after another, instead of a graph as in `program.run`."""
    for entry in launches:
        entry.launch()


def model_of(name: str, config: ModelConfig, precision: str, where: str) -> engine.GPT:
    """Return a fresh model of the engine; PLAIN replaces its attention."""
    made = engine.GPT(config, precision=precision, where=where)
    if name == PLAIN:
        made.program = Plain(config, precision, where)
    return made


def contestant(name: str, config: ModelConfig, precision: str, rows: int, where: str) -> Take:
    """Return a function that takes a step on a batch and returns the loss before it. name: FLASH, PLAIN or GRAPH."""
    made = model_of(name, config, precision, where)
    return stepping(made, rows, micro=rows, run=program.run if name == GRAPH else one_by_one)


def gradients_apart(config: ModelConfig, precision: str, where: str) -> float:
    """Return the largest relative difference between the first gradients of PLAIN and FLASH, for the q, k, v weights.

    (The losses of a fresh model hardly depend on its attention.) Raises AssertionError if the precision does not
    explain the difference.
    """
    grads = []
    for name in (FLASH, PLAIN):
        made = model_of(name, config, precision, where)
        grads.append(made.loss_and_gradients(*batch(config, 2, 0))[1])
    queries = config.heads * config.head_dim
    cuts, worst = [queries, queries + config.kv_heads * config.head_dim], 0.0
    for i in range(config.layers):
        ours, others = (np.split(found[f"layers.{i}.qkv"], cuts, axis=1) for found in grads)
        for name, a, b in zip("qkv", ours, others, strict=True):
            apart = float(np.linalg.norm(a - b) / np.linalg.norm(a))
            assert apart < GRADIENTS[precision], f"layer {i}: gradients of {name} differ by {apart:.2g}"
            worst = max(worst, apart)
    return worst


def measure(config: ModelConfig, precision: str, rows: int, rounds: int, where: str = "gpu") -> dict:
    """Return the row of a case: milliseconds per step of each contestant, and ratios to FLASH in each round."""
    apart = gradients_apart(config, precision, where)
    contestants = {name: contestant(name, config, precision, rows, where) for name in (FLASH, PLAIN, GRAPH)}
    batches = [batch(config, rows, number) for number in range(AGREE + STEPS)]
    losses = agreeing(contestants, batches[:AGREE], precision, FLASH)
    taken = in_turns(contestants, batches[AGREE:], rounds)
    ratios = {name: [a / b for a, b in zip(taken[name], taken[FLASH], strict=True)] for name in (PLAIN, GRAPH)}
    size = 2 if precision == "bfloat16" else 4
    kept = config.layers * rows * config.heads * config.context**2 * size
    return {
        "precision": precision,
        "rows": rows,
        "context": config.context,
        "first_losses": [round(loss, 5) for loss in losses],
        "gradients_apart": float(f"{apart:.2g}"),
        "milliseconds": {name: round(1e3 * statistics.median(times), 3) for name, times in taken.items()},
        "spread": {name: [round(1e3 * f(times), 3) for f in (min, max)] for name, times in taken.items()},
        "ratio": {name: round(statistics.median(each), 3) for name, each in ratios.items()},
        "ratios": {name: [round(ratio, 3) for ratio in each] for name, each in ratios.items()},
        "probabilities_gib": round(kept / 2**30, 2),
    }


def main() -> None:
    options = parser_of(__doc__, len(CASES), memory=2).parse_args()
    base = preset("base")
    if options.memory:
        name, rows = options.memory[0], int(options.memory[1])
        return print(remembered(lambda: contestant(name, base, PRECISION, rows, "gpu"), rows))
    import cupy

    gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    rounds, rows = 2 if options.quick else ROUNDS, []
    print(f"{gpu}; a step of base: milliseconds, GiB, and times over the time of {FLASH}")
    for texts in CASES if options.case is None else [CASES[options.case]]:
        row = measure(base, PRECISION, texts, rounds)
        cupy.get_default_memory_pool().free_all_blocks()
        row["gib"] = {
            name: round(peak_gib("benchmarks.gpu_flash_step", name, str(texts)), 2) for name in (FLASH, PLAIN, GRAPH)
        }
        cells = [f"{name} {time:.2f}" for name, time in row["milliseconds"].items()]
        cells += [f"{name} {gib:.1f} GiB" for name, gib in row["gib"].items()]
        cells += [f"{name} x{ratio:.2f}" for name, ratio in row["ratio"].items()]
        print(f"{PRECISION:9} {texts:3} x {row['context']}  " + "  ".join(cells), flush=True)
        rows.append(row)
        if not options.quick:
            name = "gpu_flash_step" if options.case is None else f"gpu_flash_step_{options.case}"
            save(name, {"gpu": gpu, "steps": STEPS, "rounds": rounds}, rows, options.out)


if __name__ == "__main__":
    main()
