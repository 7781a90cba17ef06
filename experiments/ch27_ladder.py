"""Chapter 27, "Further on": time the five rungs of `nanoeuler_book/ladder.cu` next to the library's attention kernels.

    python -m experiments.ch27_ladder              # needs a GPU of compute capability 8.0 or later; a minute
    python -m experiments.ch27_ladder --quick      # three rounds, printed but not stored
    python -m experiments.ch27_ladder --out FOLDER # writes the JSON there

Each rung is first compared with the library's kernel. Then all kernels take turns, `LAUNCHES` launches per round
between two CUDA events. `rounds_of_mma` is the time of the library's mma.sync kernel divided by the rung's, per round.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np

from benchmarks.gpu_products import milliseconds
from nanoeuler_lib import cuda
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import flash
from tools.notebooks.results import FOLDER, save

SOURCE = Path(__file__).resolve().parents[1] / "nanoeuler_book" / "ladder.cu"
SHAPES = (64, 512), (32, 1024), (8, 4096)  # texts and tokens of the model `base`
HEADS, GROUPS, C = 12, 4, 64
RUNGS = [{"RUNG": rung} for rung in range(1, 6)] + [{"RUNG": 4, "BLOCKS": 4}]
LAUNCHES, ROUNDS = 10, 9


def name_of(defines: dict) -> str:
    return str(defines["RUNG"]) + (", at most 128 registers" if "BLOCKS" in defines else "")


def contestants(B: int, T: int) -> dict:
    """Return what is timed, by name, after comparing the outputs of each rung with the library's."""
    import cupy as cp

    rng = np.random.default_rng(T)
    qkv = cp.asarray(to_bfloat16(rng.standard_normal((B, T, HEADS + 2 * GROUPS, C), dtype=np.float32)))
    cuts = slice(0, HEADS), slice(HEADS, HEADS + GROUPS), slice(HEADS + GROUPS, None)
    q, k, v = (cp.ascontiguousarray(qkv[:, :, cut].swapaxes(1, 2)).reshape(-1, T, C) for cut in cuts)
    packed, out = qkv.reshape(B, T, -1), cp.empty((B, T, HEADS * C), cp.uint16)
    sums, lse, y = (cp.empty((B, HEADS, T), cp.float32), cp.empty((B * HEADS, T), cp.float32), cp.empty_like(q))
    runs = {}
    for capability, name in ((80, "library, mma.sync"), (90, "library, wgmma")):
        if capability > flash.card().capability:
            continue
        on = flash.Card(capability, flash.card().shared, flash.card().processors)
        launches = flash.forward(out, sums, packed, HEADS, GROUPS, C**-0.5, on=on, checked=False)
        runs[name] = lambda launches=launches: flash.run(launches)
    runs["library, mma.sync"]()
    wanted = from_bfloat16(out.get()).reshape(B, T, HEADS, C).swapaxes(1, 2).reshape(q.shape)
    for defines in RUNGS:
        kernel = cuda.module(SOURCE, checked=False, defines=defines)["ladder"]
        rows = 128 if defines["RUNG"] == 5 else 64
        launch = kernel.bind((-(-T // rows), B * HEADS), 128, (q, k, v, y, lse, T, HEADS // GROUPS, C**-0.5))
        y.fill(0x7FC0)  # NaN
        lse.fill(cp.nan)
        launch()
        off = float(abs(from_bfloat16(y.get()) - wanted).max())
        off_lse = float(abs(lse.reshape(sums.shape) - sums).max())
        assert off < 0.04 and off_lse < 1e-3, f"rung {defines}: y is off by {off}, lse by {off_lse}"
        runs[name_of(defines)] = launch
    return runs


def measure(B: int, T: int, rounds: int) -> list[dict]:
    runs = contestants(B, T)
    taken = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()  # the device is busy while the processor prepares the timing
            taken[name].append(milliseconds(run, LAUNCHES))
    rows = []
    for name, times in taken.items():
        took = statistics.median(times)
        ratios = [mma / own for mma, own in zip(taken["library, mma.sync"], times, strict=True)]
        rows.append(
            {
                "kernel": name, "B": B, "T": T, "ms": round(took, 4),
                "teraflops_per_second": round(2 * B * HEADS * T * (T + 1) * C / took / 1e9, 1),
                "of_mma": round(statistics.median(ratios), 3),
                "rounds_of_mma": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds, printed but not stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the JSON (default: data/results)")
    options = parser.parse_args()
    rounds = 3 if options.quick else ROUNDS
    rows = [row for B, T in SHAPES for row in measure(B, T, rounds)]
    if not options.quick:
        save("ch27_ladder", {"heads": HEADS, "groups": GROUPS, "width": C, "rounds": rounds}, rows, options.out)


if __name__ == "__main__":
    main()
