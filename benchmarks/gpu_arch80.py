"""Time a training step with and without Hopper's instructions, and torch.compile; needs a GPU and PyTorch.

    python -m benchmarks.gpu_arch80                # stores data/results/gpu_arch80.json
    python -m benchmarks.gpu_arch80 --quick        # few rounds, printed but not stored
    python -m benchmarks.gpu_arch80 --out FOLDER   # writes the JSON there

The second contestant is the same engine in a process with NANOEULER_ARCH=80: no kernel of the engine uses wgmma or TMA
there, and attention multiplies with mma.sync, as on GPUs of other generations. cuBLASLt's kernels stay those of the
GPU. Each contestant has a process of its own, and these take turns as in `benchmarks/gpu_step.py`: `STEPS` steps each,
timed from an idle GPU to an idle GPU, while the others wait.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_step import AGREE, PEER, ROUNDS, STEPS, US, Take, agreeing, batch, in_turns, ours, row_of, theirs
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.engine import flash, program
from tools.notebooks.results import FOLDER, ROOT, machine, save

WITHOUT = "NanoEuler, NANOEULER_ARCH=80"
ROWS, PRECISION = 64, "bfloat16"


class Worker:
    """A process that takes steps when told to: `worker(number, batch)` is a `Take`, whose batch it makes itself.

    said: what it writes when it is ready, among it the kernel of attention. arch: NANOEULER_ARCH in the process.
    """

    def __init__(
        self, who: str, config: ModelConfig, rows: int, where: str, precision: str = PRECISION, arch: str = ""
    ):
        given = {"who": who, "config": config.to_dict(), "rows": rows, "where": where, "precision": precision}
        task, environment = json.dumps(given), os.environ | {"NANOEULER_ARCH": arch}
        command = [sys.executable, "-m", "benchmarks.gpu_arch80", "--worker", task]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
        self.said = self.answer()

    def answer(self):
        for line in self.process.stdout:  # a library may print something, too
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"a contestant ended with {self.process.wait()}")

    def __call__(self, number: int, _) -> float:
        self.process.stdin.write(f"{number}\n")
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def work(task: str) -> None:
    """Be a worker: take the steps whose numbers come on standard input."""
    given = json.loads(task)
    config, rows, where = ModelConfig.from_dict(given["config"]), given["rows"], given["where"]
    batches = [batch(config, rows, number) for number in range(AGREE + STEPS)]
    mode = {"mode": None} if given["who"] == PEER else {}
    take: Take = (theirs if mode else ours)(config, given["precision"], rows, where, **mode)
    on = flash.card(where)
    kernel = flash.tile(program.NUMBER[given["precision"]], config.head_dim, config.context, on).kernel
    answer({"attention": kernel, "capability": on.capability})
    for line in sys.stdin:
        number = int(line)
        at = number if number < AGREE else AGREE + (number - AGREE) % STEPS
        answer(take(number, batches[at]))


def answer(value) -> None:
    print("answer", json.dumps(value), flush=True)


def measure(config: ModelConfig, rows: int, rounds: int, where: str = "gpu") -> dict:
    """The row: seconds of a step by contestant, and the kernel of attention of both engines."""
    workers = {
        name: Worker(name, config, rows, where, arch=arch) for name, arch in ((US, ""), (WITHOUT, "80"), (PEER, ""))
    }
    try:
        batches = [None] * (AGREE + STEPS)
        losses = agreeing(workers, batches[:AGREE], PRECISION)
        row = row_of(config, PRECISION, rows, losses, in_turns(workers, batches[AGREE:], rounds))
        return row | {"attention": {name: workers[name].said["attention"] for name in (US, WITHOUT)}}
    finally:
        for worker in workers.values():
            worker.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker)
    import torch

    gpu, rounds = machine()["gpu"], 2 if options.quick else ROUNDS
    print(f"{gpu}, PyTorch {torch.__version__}; a step of base, {ROWS} rows: milliseconds, and the others' over ours")
    row = measure(preset("base"), ROWS, rounds)
    assert row["attention"][US] != row["attention"][WITHOUT], f"no Hopper kernel ran: {row['attention']}"
    print(
        "  ".join(f"{name} {time:.2f}" for name, time in row["milliseconds"].items()), row["speedup"], row["attention"]
    )
    if not options.quick:
        config = {"gpu": gpu, "torch": torch.__version__, "steps": STEPS, "rounds": rounds}
        save("gpu_arch80", config, [row], options.out)


if __name__ == "__main__":
    main()
