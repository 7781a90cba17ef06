"""Time FlashAttention's backward pass against PyTorch's, in alternation, and store the GPU's hardware counters of both.

    python -m benchmarks.gpu_attention_backward        # times; stores data/results/gpu_attention_backward.json
    ncu --profile-from-start off --clock-control none --csv --page raw --metrics METRICS --log-file counters_4096.csv \\
        python -m benchmarks.gpu_attention_backward --once 4096     # hardware counters (METRICS below, with commas)
    python -m benchmarks.gpu_attention_backward --counters counters_4096.csv     # adds them to the stored file

Needs a CUDA device and PyTorch. First every launch is compared with float64 on two texts, with its outputs filled with
NaN before. If "ours" use wgmma, "ours, mma.sync" are the kernels for other GPUs. "ours, plain" are the float32 kernels
for GPUs below 8.0, without tensor cores. PyTorch gets k and v expanded to all heads beforehand, in the layout [B, T, H,
C], where it is fastest; its sums over the heads of a group are not timed. Times are medians over rounds. Rates count
the causal half, and the backward pass as 2.5 forward passes.
"""

import argparse
import csv
import json
import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanoeuler_lib.engine import flash, flash_backward
from tools.notebooks.results import FOLDER, save

# B, H, G, T, C
BFLOAT16 = [
    (64, 12, 12, 512, 64), (64, 12, 4, 512, 64), (32, 12, 12, 1024, 64), (32, 12, 4, 1024, 64), (8, 12, 12, 4096, 64),
    (8, 12, 4, 4096, 64), (64, 12, 12, 512, 32), (64, 6, 6, 512, 128), (8, 6, 6, 4096, 128), (8, 6, 2, 4096, 128),
]  # fmt: skip
TF32 = [(32, 12, 12, 512, 64), (32, 12, 12, 512, 32), (32, 6, 6, 512, 128)]
WORKS = [(case, kind) for kind, cases in (("bfloat16", BFLOAT16), ("tf32", TF32), ("float32", TF32)) for case in cases]
TOLERANCE = {"bfloat16": 6e-3, "tf32": 2e-3, "float32": 2e-6}  # relative to the whole gradient, against float64


def array(tensor):
    """Return a CuPy array of the same memory; bfloat16 becomes uint16."""
    import cupy

    tensor = tensor.detach()
    return (
        cupy.from_dlpack(tensor.view(torch.int16)).view(np.uint16)
        if tensor.dtype == torch.bfloat16
        else cupy.from_dlpack(tensor)
    )


class Case:
    """Hold random inputs of one shape and the functions that compute their gradients."""

    def __init__(self, B, H, G, T, C, kind):
        self.sizes, self.kind, self.scale = (B, H, G, T, C), kind, 1 / math.sqrt(C)
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        draw = lambda *shape: torch.randn(*shape, device="cuda").to(dtype)
        self.qkv, self.dout = draw(B, T, (H + 2 * G) * C), draw(B, T, H * C)
        self.dqkv = torch.empty_like(self.qkv)
        self.lse = torch.empty(B, H, T, device="cuda")
        self.delta, self.work = torch.empty_like(self.lse), torch.empty(B, H, T, C, device="cuda")
        q, k, v = (x.float().reshape(B, T, -1, C).transpose(1, 2) for x in self.qkv.split([H * C, G * C, G * C], -1))
        self.future = torch.ones(T, T, dtype=torch.bool, device="cuda").triu(1)
        self.out = torch.empty_like(self.dout)
        for b in range(B):  # a text at a time: scores are T x T
            scores = q[b] @ k[b].repeat_interleave(H // G, 0).transpose(-1, -2) * self.scale
            scores.masked_fill_(self.future, -math.inf)
            self.lse[b] = scores.logsumexp(-1)
            y = (scores - self.lse[b, :, :, None]).exp_() @ v[b].repeat_interleave(H // G, 0)
            self.out[b] = y.transpose(0, 1).reshape(T, H * C).to(dtype)
        self.flops = 2.5 * 4 * B * H * T * T * C / 2

    def ours(self, atomic=False, on=None):
        _, H, G, _, _ = self.sizes
        arrays = map(array, (self.dqkv, self.delta, self.dout, self.out, self.lse, self.qkv))
        launches = flash_backward.backward(
            *arrays,
            H,
            G,
            self.scale,
            work=array(self.work) if atomic else None,
            tf32=self.kind == "tf32",
            on=on,
        )
        return lambda: flash.run(launches)

    def all_ours(self):
        return {name: self.ours(*way) for name, way in ways_of(self.sizes, self.kind).items()}

    def torchs(self, backend, deterministic=False):
        B, H, G, T, C = self.sizes
        parts = [x.reshape(B, T, -1, C) for x in self.qkv.split([H * C, G * C, G * C], -1)]
        parts = [x.repeat_interleave(H // x.shape[2], 2).transpose(1, 2).detach().requires_grad_() for x in parts]
        slope = self.dout.reshape(B, T, H, C).transpose(1, 2)
        with sdpa_kernel(backend):
            y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)

        def run():
            torch.use_deterministic_algorithms(deterministic)
            torch.autograd.grad(y, parts, slope, retain_graph=True)
            torch.use_deterministic_algorithms(False)

        return run

    def error(self, run):
        """Return the largest relative error of dq, dk and dv in the first two texts, against float64."""
        B, H, G, T, C = self.sizes
        for written in (self.dqkv, self.delta, self.work):
            written.fill_(math.nan)
        run()
        errors = []
        for b in range(min(B, 2)):
            q, k, v = (
                x.double().reshape(T, -1, C).transpose(0, 1) for x in self.qkv[b].split([H * C, G * C, G * C], -1)
            )
            k, v = k.repeat_interleave(H // G, 0), v.repeat_interleave(H // G, 0)
            p = (q @ k.transpose(-1, -2) * self.scale).masked_fill_(self.future, -math.inf).softmax(-1)
            slope = self.dout[b].double().reshape(T, H, C).transpose(0, 1)
            dp = slope @ v.transpose(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * self.scale
            group = lambda x: x.reshape(G, H // G, T, C).sum(1)
            wanted = ds @ k, group(ds.transpose(-1, -2) @ q), group(p.transpose(-1, -2) @ slope)
            for got, want in zip(self.dqkv[b].double().split([H * C, G * C, G * C], -1), wanted):
                want = want.transpose(0, 1).reshape(T, -1)
                errors.append(((got - want).norm() / want.norm()).item())
        assert max(errors) <= TOLERANCE[self.kind], errors
        return max(errors)


def ways_of(sizes, kind):
    """Return {way: (whether dq is added up by atomics, the GPU whose kernels to use)} of our kernels."""
    older = lambda capability: (False, replace(flash.card(), capability=capability))
    if kind == "float32":
        return {"ours": (False, None), "ours, plain": older(75)}
    ways = {"ours": (False, None), "ours, atomic": (True, None)}
    if flash.card().capability == 90 and kind == "bfloat16" and sizes[-1] in flash_backward.HOPPER:
        ways["ours, mma.sync"] = older(80)
    return ways


def compile_all(works):
    """Bind every launch once, in parallel; the process keeps the kernels that NVRTC compiles."""
    import cupy

    def bind(work):
        (_, H, G, T, C), kind, atomic, on = work
        new = lambda *shape: cupy.empty(shape, np.uint16 if kind == "bfloat16" else np.float32)
        single = lambda *shape: cupy.empty(shape, np.float32)
        row = (H + 2 * G) * C
        arrays = (
            new(1, T, row),
            single(1, H, T),
            new(1, T, H * C),
            new(1, T, H * C),
            single(1, H, T),
            new(1, T, row),
        )
        room = single(1, H, T, C) if atomic else None
        flash_backward.backward(*arrays, H, G, 1.0, work=room, tf32=kind == "tf32", on=on)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(bind, works))


def milliseconds(run, repeats=4):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def measure(sizes, kind, rounds):
    """Return a row for each implementation; the implementations are timed alternately."""
    case = Case(*sizes, kind)
    ways = case.all_ours()
    errors = {name: case.error(run) for name, run in ways.items()}
    if kind == "bfloat16":
        ways["flash"] = case.torchs(SDPBackend.FLASH_ATTENTION)
        ways["flash, deterministic"] = case.torchs(SDPBackend.FLASH_ATTENTION, True)
        ways["cuDNN"] = case.torchs(SDPBackend.CUDNN_ATTENTION)
    else:
        ways["efficient"] = case.torchs(SDPBackend.EFFICIENT_ATTENTION)
    for run in ways.values():
        run()
    times = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            times[name].append(milliseconds(run))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    peer = medians.get("flash") or medians["efficient"]
    names = dict(zip("BHGTC", sizes)) | {"numbers": kind}
    return [
        names | {
            "way": name, "milliseconds": round(took, 4), "teraflops": round(case.flops / took / 1e9, 1),
            "against_peer": round(peer / took, 3), "error": errors.get(name),
            "spread": round(max(times[name]) / min(times[name]), 3),
        }
        for name, took in medians.items()
    ]  # fmt: skip


# ---- Hardware counters

# {name in the stored file: name for ncu}; the counters come from the same kind of GPU as the times.
METRICS = {
    "microseconds": "gpu__time_duration.sum",
    "tensor_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "issue_slots": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "%": 1, "inst": 1, "register/thread": 1}


def once(T: int) -> None:
    """Run each implementation once between the profiler's start and stop."""
    import cupy

    case = Case(8 * 4096 // T, 12, 12, T, 64, "bfloat16")
    ways = (
        *case.all_ours().values(),
        *map(case.torchs, (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)),
    )
    for run in (*ways, *ways):
        run()
    torch.cuda.synchronize()
    cupy.cuda.profiler.start()
    for run in ways:
        run()
        torch.cuda.synchronize()
    cupy.cuda.profiler.stop()


def counted(file: Path) -> list[dict]:
    """Return a row for each kernel in a CSV file of ncu."""
    lines = file.read_text().splitlines()
    names, units, *kernels = csv.reader(lines[next(i for i, x in enumerate(lines) if x.startswith('"ID"')) :])
    units, rows = dict(zip(names, units, strict=True)), []
    hopper = any("_hopper" in ",".join(line) for line in kernels)
    for line in kernels:
        found = dict(zip(names, line, strict=True))
        row = {
            "what": "counters",
            "of": way_of(found["Kernel Name"], hopper),
            "kernel": found["Kernel Name"].split("<")[0],
        }
        for name, metric in METRICS.items():
            value = round(float(found[metric].replace(",", "")) * UNITS[units[metric]], 3)
            row[name] = int(value) if value == int(value) else value
        rows.append(row)
    return rows


def way_of(kernel: str, hopper: bool) -> str:
    """Return the implementation to which a kernel belongs. hopper: whether some kernels are those for Hopper.

    The last number of the kernel for keys shows if it adds up dq.
    """
    name = kernel.split("(")[0].split("<")[0]
    for part, way in {
        "cudnn": "cuDNN",
        "flash": "flash",
        "delta": "ours, atomic",
        "finish": "ours, atomic",
        "hopper": "ours",
    }.items():
        if part in name:
            return way
    if "attention_backward_keys" in name and kernel.split(">")[0].endswith("1"):
        return "ours, atomic"
    if "attention_backward" in name:
        return "ours, mma.sync" if hopper else "ours"
    raise SystemExit(f"the kernel must belong to the backward pass of attention, got {name}")


def take_counters(files: list[Path], folder: Path) -> None:
    stored = json.loads((folder / "gpu_attention_backward.json").read_text())
    rows = [row for row in stored["rows"] if row.get("what") != "counters"]
    rows += [{"T": int(file.stem.split("_")[-1]), **row} for file in files for row in counted(file)]
    save("gpu_attention_backward", stored["config"], rows, folder, stored["machine"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--once", type=int, metavar="T", help="run each implementation once at T positions")
    parser.add_argument("--counters", type=Path, nargs="+", metavar="CSV", help="files of ncu, named NAME_T.csv")
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.once:
        return once(options.once)
    if options.counters:
        return take_counters(options.counters, options.out)
    gpu, rows = torch.cuda.get_device_name(), []
    print(f"{gpu}, PyTorch {torch.__version__}")
    compile_all({(sizes, kind, *way) for sizes, kind in WORKS for way in ways_of(sizes, kind).values()})
    for sizes, kind in WORKS:
        for row in measure(sizes, kind, options.rounds):
            rows.append(row)
            error = f"error {row['error']:.1e}" if row["error"] else ""
            rate = f"{row['milliseconds']:8.4f} ms {row['teraflops']:6.0f} TFLOP/s {row['against_peer']:6.2f}x"
            print(f"{row['numbers']:9} {sizes!s:24} {row['way']:21} {rate}  {error}", flush=True)
        torch.cuda.empty_cache()
    config = {"gpu": gpu, "torch": torch.__version__, "rounds": options.rounds}
    save("gpu_attention_backward", config, rows, options.out)


if __name__ == "__main__":
    main()
