"""Say what this machine's GPU runs, and what others would run: kernels, memory and hours.

    gpus.show()                     # in a chapter: this machine's GPU in four lines
    python -m nanoeuler_book.gpus   # the tables of How fast: kernels by compute capability, rows that fit, hours

The functions with which the engine chooses kernels, precision and launches also fill these tables, and its planner
counts the rows. The data sheets' numbers are in `GPUS`. The engine has been run on H100s and H200s only, so the hours
of other GPUs are estimates.
"""

import math
import statistics
from dataclasses import dataclass

from nanoeuler_book.checks import results
from nanoeuler_lib import cuda
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.cuda import launch, magic, overlap
from nanoeuler_lib.engine import device, flash, memory, program
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import parameter_shapes

NONE = "No GPU: kernels run in the checker on the CPU; times come from stored results"
FREE = 0.9  # fraction of the memory that a run may take; the driver and the screen take the rest
BATCH = 64  # rows of a step in chapter 32
BASE = [64, 512, 12, 4, 64]  # a layer of attention in `base`: texts, positions, heads, groups, head width
MEMORIES = 8, 12, 16, 24  # GB


@dataclass(frozen=True)
class Gpu:
    """Hold what NVIDIA states about a GPU.

    shared: KB of shared memory that a block may have; clock: GHz, boosted; flops: per multiprocessor and clock, of
    dense products in the precision that the engine takes by default; bandwidth: GB/s; source: what NVIDIA's document
    is about (book/references.bib).
    """

    name: str
    capability: int
    memory: int
    shared: int
    processors: int
    clock: float
    flops: int
    bandwidth: int
    source: str

    @property
    def on(self) -> flash.Card:
        return flash.Card(self.capability, self.shared << 10, self.processors)

    @property
    def rate(self) -> float:
        """Floating-point operations per second in the engine's default precision, with float32 sums."""
        return self.processors * self.clock * 1e9 * self.flops


# With float32 sums, as the kernels add, a GeForce GPU does half as many flops as with float16 sums, a T4 as many. The
# A100 has 40 GB; the H100 is the SXM module.
GPUS = (
    Gpu("T4", 75, 16, 64, 40, 1.59, 1024, 320, "T4"),
    Gpu("A100", 80, 40, 163, 108, 1.41, 2048, 1555, "A100"),
    Gpu("RTX 3060", 86, 12, 99, 28, 1.777, 512, 360, "GA102"),
    Gpu("RTX 4070", 89, 12, 99, 46, 2.475, 512, 504, "Ada"),
    Gpu("RTX 4090", 89, 24, 99, 128, 2.52, 512, 1008, "Ada"),
    Gpu("H100", 90, 80, 227, 132, 1.83, 4096, 3350, "H100"),
    Gpu("RTX 5070", 120, 12, 99, 48, 2.512, 512, 672, "RTX Blackwell"),
)


# ---- This machine's GPU


def show() -> None:
    """Print what runs on this machine's GPU, or that there is none."""
    if cuda.device() == "cpu":
        return print(NONE)
    import cupy

    gpu, runtime = cupy.cuda.Device(), cupy.cuda.runtime
    name = runtime.getDeviceProperties(gpu.id)["name"].decode()
    print(describe(name, int(gpu.compute_capability), gpu.mem_info[1], flash.card(), runtime.driverGetVersion()))


def describe(name: str, capability: int, size: int, on: flash.Card | None = None, driver: int = overlap.DRIVER) -> str:
    """Return a GPU in four lines: what it is, precisions, attention's kernel, copies and launches.

    capability: times 10; size: bytes of memory; on: its properties if kernels are chosen for other ones, as with
    NANOEULER_ARCH=80; driver: its version, as CUDA writes it.
    """
    on = on or flash.Card(capability, 48 << 10)
    used = "" if on.capability == capability else f", used as {on.version}"
    chosen, takes = device.default_precision(on), precisions(on)
    missing = [one for one in program.NUMBER if one not in takes]
    too_new = f"; {' and '.join(missing)} need 8.0" if missing else ""
    return "\n".join(
        [
            f"{name}: compute capability {capability / 10}{used}, {size / 2**30:.1f} GiB",
            f"precision: {', '.join(takes)}; by default {chosen}{too_new}",
            f"products: cuBLASLt in {chosen}; attention: {attention(on)}",
            f"copies to shared memory: {copying(on)}; launches: {overlapping(capability, driver)}",
        ]
    )


def has(capability: int, otherwise: str = "the stored result is shown") -> bool:
    """Return whether this machine runs what needs a compute capability, times 10; if not, print why, and `otherwise`.

    Without a GPU, the checker runs what compute capability 8.6 does.
    """
    found = launch.capability()
    if found < capability:
        print(f"{magic.TOO_OLD.format(capability / 10, found / 10)}, so {otherwise}")
    return found >= capability


def measures(capability: int) -> bool:
    """Return whether cells measure on this machine: it has a GPU of this compute capability, times 10; see `has`."""
    return has(capability) and cuda.device() == "gpu"


def precisions(on: flash.Card) -> list[str]:
    """Return the precisions in which the engine trains `base` on a GPU."""

    def taken(precision):
        try:
            program.check_config(preset("base"), precision, on)
        except NanoEulerError:
            return False
        return True

    return [precision for precision in program.NUMBER if taken(precision)]


def attention(on: flash.Card) -> str:
    """Return the instruction by which attention multiplies in the default precision, for `base`: see `flash.Tile`."""
    base, number = preset("base"), program.NUMBER[device.default_precision(on)]
    return flash.tile(number, base.head_dim, base.context, on).multiplies_by


def copying(on: flash.Card) -> str:
    """Return how `copy_async` copies (nanoeuler.cuh)."""
    return "asynchronous" if on.has_mma else "ordinary"


def overlapping(capability: int, driver: int = overlap.DRIVER) -> str:
    """Return whether a launch begins before the previous one ends."""
    return "overlap" if overlap.can_overlap(capability, driver) else "in order"


# ---- Tables


def rows_at_a_time(config: ModelConfig, precision: str, size: int) -> int:
    """Return how many rows of a batch of BATCH the engine computes at a time in `size` bytes; 0 if no row fits."""
    for rows in (n for n in range(BATCH, 0, -1) if BATCH % n == 0):
        if sum(memory.bytes_needed(config, rows, config.context, precision).values()) + memory.RESERVED <= size:
            return rows
    return 0


def step_flops(config: ModelConfig, rows: int) -> int:
    """Return the floating-point operations of a step's matrix products, as chapter 32 counts them."""
    weights = sum(math.prod(s) for name, s in parameter_shapes(config).items() if len(s) == 2 and name != "embed")
    scores = config.layers * config.heads * config.head_dim * (config.context + 1)
    return 6 * rows * config.context * (weights + scores)


def stored_run() -> tuple[float, float, float]:
    """Return chapter 32's stored run: its flops, the hours of its steps, and the reached share of an H100's rate."""
    run = next(row for row in results("ch32")["rows"] if row["what"] == "run" and row["run"] == "base")
    settings, config = run["about"]["train"], ModelConfig.from_dict(run["about"]["model"])
    step = step_flops(config, settings["batch"])
    return step * settings["steps"], run["step_seconds"] / 3600, step / run["step_median"] / measured().rate


def measured() -> Gpu:
    """Return the GPU of the stored run."""
    return next(gpu for gpu in GPUS if gpu.name == "H100")


def h200_share() -> float:
    """Return the share of the stated rate that steps of `base` reached on an H200, which has an H100's rate."""
    (row,) = results("gpu_arch80")["rows"]
    seconds = next(iter(row["milliseconds"].values())) / 1e3
    return step_flops(preset("base"), row["rows"]) / seconds / measured().rate


def kernels_table() -> str:
    """Return which kernels each compute capability gets."""
    lines = [f"{'capability':11} {'GPUs':19} {'precision':10} {'attention':10} {'copies':13} launches"]
    for capability in dict.fromkeys(gpu.capability for gpu in GPUS):
        same = [gpu for gpu in GPUS if gpu.capability == capability]
        on, names = same[0].on, ", ".join(gpu.name for gpu in same)
        words = f"{device.default_precision(on):10} {attention(on):10} {copying(on):13} {overlapping(capability)}"
        lines.append(f"{on.version:11} {names:19} {words}")
    return "\n".join(lines)


def memory_table() -> str:
    """Return the rows of `base` and `large` that fit at a time into each memory, by precision."""
    kinds = {"16 bits": "float16", "float32": "float32"}  # bfloat16 takes what float16 does
    pairs = [(name, kind) for name in ("base", "large") for kind in kinds]
    lines = ["memory " + "".join(f"{f'{name}, {kind}':>17}" for name, kind in pairs)]
    for size in MEMORIES:
        fit = (rows_at_a_time(preset(name), kinds[kind], int(FREE * size * 2**30)) for name, kind in pairs)
        lines.append(f"{size:3} GB " + "".join(f"{rows or '-':>17}" for rows in fit))
    return "\n".join(lines)


def hours_of(name: str) -> tuple[float, float]:
    """Return the estimated hours of chapter 32's run on a GPU: at twice the share that the H100 reached, and at it."""
    flops, _, share = stored_run()
    rate = next(gpu for gpu in GPUS if gpu.name == name).rate
    return flops / (2 * share * rate) / 3600, flops / (share * rate) / 3600


def hours_table() -> str:
    """Return the hours of chapter 32's run: measured on the H100, and estimated for the other GPUs."""
    heads = f"{'GPU':9} {'GB':>3}  {'precision':9} {'TFLOP/s':>8} {'GB/s':>6} {'flops/byte':>11} {'hours':>15}"
    lines = [f"{heads}  NVIDIA on"]
    for gpu in GPUS:
        least, most = hours_of(gpu.name)
        hours = f"{least:.2g} to {most:.2g}" if gpu != measured() else f"{stored_run()[1]:.2g}, measured"
        kind = f"{gpu.name:9} {gpu.memory:3}  {device.default_precision(gpu.on):9}"
        numbers = f"{gpu.rate / 1e12:8.1f} {gpu.bandwidth:6} {gpu.rate / gpu.bandwidth / 1e9:11.0f}"
        lines.append(f"{kind} {numbers} {hours:>15}  {gpu.source}")
    return "\n".join(lines)


def without_wgmma() -> str:
    """Return what NANOEULER_ARCH=80 costs a training step of `base`: benchmarks/gpu_arch80.py."""
    stored = results("gpu_arch80")
    (row,) = stored["rows"]
    ours, *others = row["rounds"].values()
    lines = [f"{stored['machine']['gpu']}, a step of {row['rows']} rows: {statistics.median(ours):.1f} ms with wgmma"]
    for name, other in zip(("NANOEULER_ARCH=80", "torch.compile"), others, strict=True):
        ratios = sorted(b / a for a, b in zip(ours, other, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds"
        lines.append(f"{name:18}{statistics.median(other):.1f} ms, {statistics.median(ratios):.2f} times ({spread})")
    layers, parts = preset("base").layers, attention_times()
    sums = [sum(times) for times in zip(*parts.values(), strict=True)]
    by_itself = " + ".join(f"{mma:.3f} - {wgmma:.3f}" for mma, wgmma in parts.values())
    lost = f"{layers} layers x ({by_itself}) ms = {layers * (sums[0] - sums[1]):.1f} ms"
    return "\n".join([*lines, f"attention by itself, with the kernels since then: {lost}"])


def attention_times() -> dict[str, tuple[float, float]]:
    """Return the milliseconds of a layer's attention in `base`, by pass: with mma.sync, and with wgmma."""
    forward = next(row["milliseconds"] for row in results("gpu_attention")["rows"] if row["shape"] == BASE)
    ways, (B, T, H, G, C) = ("ours, mma.sync", "ours"), BASE
    shape = {"B": B, "H": H, "G": G, "T": T, "C": C, "numbers": "bfloat16"}
    rows = [row for row in results("gpu_attention_backward")["rows"] if row.items() >= shape.items()]
    backward = {row["way"]: row["milliseconds"] for row in rows}
    return {"forward": (forward["mma"], forward["ours"]), "backward": tuple(backward[way] for way in ways)}


def without_bfloat16() -> str:
    """Return the times of a step with the kernels of 7.5 on a newer GPU: benchmarks/gpu_arch80.py --turing."""
    (row,) = results("gpu_arch75")["rows"]
    half, single = row["milliseconds"].values()
    gpu = results("gpu_arch75")["machine"]["gpu"]
    return f"{gpu}, a step of {row['rows']} rows: {half:.1f} ms in float16, {single:.0f} ms in float32"


def tables() -> str:
    """Return all tables with a line or two above each, as the command prints them."""
    flops, _, share = stored_run()
    run, part = f"chapter 32's run of {flops / 1e18:.3f} x 10^18 flops", f"{share:.0%} to {2 * share:.0%}"
    return "\n".join(
        [
            "What runs on which GPU (products: cuBLASLt in the same precision)",
            kernels_table(),
            f"\nRows of 512 tokens at a time, of a batch of {BATCH}, if {FREE:.0%} of the memory is free",
            memory_table(),
            f"\nHours for {run}. Its H100 reached {share:.0%} of the stated",
            f"rate (an H200, in other steps, {h200_share():.0%}). Other GPUs: an estimate, {part} of it",
            hours_table(),
            "\nAttention by mma.sync instead of wgmma, before wgmma also multiplied in the backward pass, and PyTorch",
            without_wgmma(),
            "\nWith the kernels of a T4 (NANOEULER_ARCH=75), on a much faster GPU",
            without_bfloat16(),
        ]
    )


if __name__ == "__main__":
    print(tables())
