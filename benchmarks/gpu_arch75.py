"""Time a training step with the kernels of compute capability 7.5, in float16 and in float32; needs a newer GPU.

    python -m benchmarks.gpu_arch75                # prints the row and stores data/results/gpu_arch75.json
    python -m benchmarks.gpu_arch75 --quick        # few rounds, printed but not stored
    python -m benchmarks.gpu_arch75 --out FOLDER   # writes the JSON there

Both contestants are our engine in a process with NANOEULER_ARCH=75: it uses no instruction that a T4 lacks, and at most
64 KB of shared memory in a block. Multiprocessors, clock, memory and cuBLASLt's kernels are those of the GPU that is
there. So the times compare two ways on that GPU, and neither is a T4's figure. They take turns as in `gpu_arch80.py`.
"""

import argparse
from pathlib import Path

from benchmarks.gpu_arch80 import ROWS, Worker
from benchmarks.gpu_step import AGREE, ROUNDS, STEPS, US, agreeing, in_turns, row_of
from nanoeuler_lib.config import ModelConfig, preset
from tools.notebooks.results import FOLDER, machine, save

WAYS = {US: "float16", f"{US}, float32": "float32"}  # contestant: its precision


def measure(config: ModelConfig, rows: int, rounds: int, where: str = "gpu") -> dict:
    """The row: seconds of a step by contestant, the kernel of attention, and the capability that it was chosen for."""
    workers = {name: Worker(name, config, rows, where, precision, "75") for name, precision in WAYS.items()}
    try:
        losses = agreeing(workers, [None] * AGREE, WAYS[US])
        row = row_of(config, WAYS[US], rows, losses, in_turns(workers, [None] * STEPS, rounds))
        return row | {what: {name: workers[name].said[what] for name in WAYS} for what in ("attention", "capability")}
    finally:
        for worker in workers.values():
            worker.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    gpu, rounds = machine()["gpu"], 2 if options.quick else ROUNDS
    row = measure(preset("base"), ROWS, rounds)
    assert set(row["capability"].values()) == {75}, f"NANOEULER_ARCH=75 had no effect: {row['capability']}"
    times = ", ".join(f"{way} {row['milliseconds'][name]:.2f} ms" for name, way in WAYS.items())
    print(f"a step of base, {ROWS} rows, kernels of 7.5 on {gpu}, not a T4's figure: {times}, {row['attention']}")
    if not options.quick:
        save("gpu_arch75", {"gpu": gpu, "steps": STEPS, "rounds": rounds}, [row], options.out)


if __name__ == "__main__":
    main()
