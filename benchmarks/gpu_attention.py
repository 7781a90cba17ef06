"""Time FlashAttention against PyTorch's, in one process and in alternation; needs a GPU and PyTorch.

    python -m benchmarks.gpu_attention                 # stores data/results/gpu_attention.json
    python -m benchmarks.gpu_attention --quick         # few rounds, printed but not stored
    python -m benchmarks.gpu_attention --out FOLDER    # writes the JSON there

Causal attention at the shapes of `base` (64 texts of 512, H/G = 12/4, C = 64) and for longer texts. The peers are
PyTorch's `scaled_dot_product_attention` with its FlashAttention, with cuDNN's, and for float32 with its
memory-efficient kernel. They get contiguous arrays [B, H, T, C], with keys and values expanded to all heads before the
timing. Our kernel reads the packed projection; on a Hopper GPU it uses wgmma, and the rows `mma` are our kernel with
mma.sync, as on other GPUs. For float32, the rows `plain` are our kernel without tensor cores, as on GPUs below 8.0.
In each round, every contestant runs `LAUNCHES` times between two CUDA events; the time is the median over rounds.

TFLOP/s count half of the T x T square: 2 B H T^2 C. `error` is the relative error of the first text against float64.
The arrays of every case exceed the cache.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from pathlib import Path

from nanoeuler_lib.engine import flash
from tools.notebooks.results import FOLDER, save

CASES = [  # numbers, texts, time, heads, groups, width
    *(("bfloat16", B, T, 12, G, 64) for B, T in ((64, 512), (32, 1024), (8, 4096)) for G in (12, 4)),
    *(("bfloat16", B, T, 6, G, 128) for B, T in ((64, 512), (32, 1024), (16, 2048), (8, 4096)) for G in (6, 2)),
    *(("tf32", B, T, 12, 4, 64) for B, T in ((64, 512), (8, 4096))),
    ("tf32", 64, 512, 6, 6, 128),
    ("float16", 64, 512, 12, 4, 64),
    *(("float32", B, T, 12, 4, 64) for B, T in ((64, 512), (8, 4096))),
    ("float32", 64, 512, 6, 6, 128),
]
LAUNCHES, ROUNDS = 10, 9
Run = Callable[[], object]


def contestants(torch, kind: str, B: int, T: int, heads: int, groups: int, C: int) -> tuple[dict[str, Run], dict]:
    """Return {name: function to time}, and {name: relative error of the first text}."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(kind, torch.float32)
    qkv = torch.randn(B, T, (heads + 2 * groups) * C, device="cuda", dtype=dtype)
    out = torch.full((B, T, heads * C), torch.nan, device="cuda", dtype=dtype)
    lse = torch.full((B, heads, T), torch.nan, device="cuda")
    arrays = *map(as_cupy, (out, lse, qkv)), heads, groups, C**-0.5
    launches = flash.forward(*arrays, tf32=kind == "tf32")
    parts = [x.view(B, T, -1, C).transpose(1, 2) for x in qkv.split([heads * C, groups * C, groups * C], -1)]
    q, k, v = (x.repeat_interleave(heads // x.shape[1], 1).contiguous() for x in parts)

    def peer(backend):
        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return run

    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if dtype == torch.float32:
        backends = {"efficient": SDPBackend.EFFICIENT_ATTENTION}
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    runs = {"ours": lambda: flash.run(launches)}
    older = {"mma": 80} if "hopper" in tile_of(kind, T, C) else {"plain": 75} if kind == "float32" else {}
    for name, capability in older.items():
        other = flash.forward(*arrays, on=flash.Card(capability, flash.card().shared))
        runs[name] = functools.partial(flash.run, other)
    runs |= {name: peer(backend) for name, backend in backends.items()}
    wanted, logsum = exact(torch, *(x[:1].double() for x in (q, k, v)))
    errors = {}
    for name, run in runs.items():
        result = run()
        y = out[:1].view(1, T, heads, C).transpose(1, 2) if result is None else result[:1]
        errors[name] = float((y.double() - wanted).norm() / wanted.norm())
    worst = float((lse[:1].double() - logsum).abs().max())
    assert worst < (2e-2 if kind == "tf32" else 1e-4), f"the log-sum-exp is off by {worst}"
    return runs, errors


def as_cupy(tensor):
    import cupy
    import torch

    if tensor.dtype == torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(cupy.uint16)
    return cupy.from_dlpack(tensor)


def exact(torch, q, k, v):
    """Return y and the log-sum-exp in float64."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores.masked_fill_(torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").triu(1), -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def milliseconds(torch, run: Run) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()  # the device is busy while the processor prepares the timing
    start.record()
    for _ in range(LAUNCHES):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / LAUNCHES


def measure(torch, case: tuple, rounds: int) -> dict:
    kind, B, T, heads, groups, C = case
    runs, errors = contestants(torch, *case)
    taken = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(milliseconds(torch, run))
    median = {name: statistics.median(times) for name, times in taken.items()}
    allowed = 1e-3 if kind == "tf32" else 2 * errors["plain" if kind == "float32" else "flash"]
    assert errors["ours"] <= allowed, f"{case}: error {errors['ours']:.1e}, {allowed:.1e} allowed"
    return {
        "pass": "forward",
        "numbers": kind,
        "shape": [B, T, heads, groups, C],
        "tile": tile_of(kind, T, C),
        "milliseconds": {name: round(time, 4) for name, time in median.items()},
        "spread": {name: [round(min(times), 4), round(max(times), 4)] for name, times in taken.items()},
        "teraflops": {name: round(2 * B * heads * T * T * C / time / 1e9) for name, time in median.items()},
        "speedup": {name: round(statistics.median(a / b for a, b in zip(times, taken["ours"], strict=True)), 3)
                    for name, times in taken.items() if name != "ours"},
        "error": {name: float(f"{error:.2g}") for name, error in errors.items()},
    }  # fmt: skip


def tile_of(kind: str, T: int, C: int) -> str:
    number = flash.NUMBERS["float32" if kind == "tf32" else kind]
    return flash.tile(number, C, T, flash.card(), kind == "tf32").kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    import torch

    gpu, rounds, rows = torch.cuda.get_device_name(), 3 if options.quick else ROUNDS, []
    print(f"{gpu}, PyTorch {torch.__version__}; milliseconds (TFLOP/s), and each peer's time over ours")
    for case in CASES:
        row = measure(torch, case, rounds)
        kind, B, T, heads, groups, C = case
        cells = [f"{name} {time:.4f} ({row['teraflops'][name]})" for name, time in row["milliseconds"].items()]
        ratios = [f"{name} x{ratio:.2f}" for name, ratio in row["speedup"].items()]
        shape = f"{B} x {T}, {heads}/{groups}, {C}"
        print(f"{kind:9} {shape:>22}  " + "  ".join(cells + ratios), flush=True)
        rows.append(row)
        torch.cuda.empty_cache()
    if not options.quick:
        config = {"gpu": gpu, "torch": torch.__version__, "launches": LAUNCHES, "rounds": rounds}
        save("gpu_attention", config, rows, options.out)


if __name__ == "__main__":
    main()
