"""Time a training step with and without Hopper's instructions, and torch.compile; needs a GPU and PyTorch.

    python -m benchmarks.gpu_arch80                # stores data/results/gpu_arch80.json
    python -m benchmarks.gpu_arch80 --quick        # few rounds, printed but not stored
    python -m benchmarks.gpu_arch80 --out FOLDER   # writes the JSON there
    python -m benchmarks.gpu_arch80 --turing       # float16 and float32 as on a T4: data/results/gpu_arch75.json

The second contestant is the same engine in a process with NANOEULER_ARCH=80: no kernel of the engine uses wgmma or TMA
there, and attention multiplies with mma.sync, as on GPUs of other generations. cuBLASLt's kernels stay those of the
GPU. Each contestant has a process of its own, and these take turns as in `benchmarks/gpu_step.py`: `STEPS` steps each,
timed from an idle GPU to an idle GPU, while the others wait.

With --turing, both contestants are our engine with NANOEULER_ARCH=75: it uses no instruction that a T4 lacks, and at
most 64 KB of shared memory in a block. The rest is the GPU that is there, so neither time is a T4's figure.
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
TURING = {US: "float16", f"{US}, float32": "float32"}  # contestant: its precision
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


def measure(config: ModelConfig, rows: int, rounds: int, where: str = "gpu", turing: bool = False) -> dict:
    """The row: seconds of a step by contestant, and capability and kernel of attention of the engines."""
    if turing:
        workers = {name: Worker(name, config, rows, where, precision, "75") for name, precision in TURING.items()}
    else:
        arches = {US: "", WITHOUT: "80", PEER: ""}
        workers = {name: Worker(name, config, rows, where, arch=arch) for name, arch in arches.items()}
    try:
        batches, precision = [None] * (AGREE + STEPS), TURING[US] if turing else PRECISION
        losses = agreeing(workers, batches[:AGREE], precision)
        row = row_of(config, precision, rows, losses, in_turns(workers, batches[AGREE:], rounds))
        said = {name: worker.said for name, worker in workers.items() if name != PEER}
        return row | {what: {name: one[what] for name, one in said.items()} for what in ("attention", "capability")}
    finally:
        for worker in workers.values():
            worker.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    parser.add_argument("--turing", action="store_true", help="float16 compared with float32, with the kernels of a T4")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker)
    gpu, rounds, config = machine()["gpu"], 2 if options.quick else ROUNDS, {"steps": STEPS}
    row = measure(preset("base"), ROWS, rounds, turing=options.turing)
    if options.turing:
        assert set(row["capability"].values()) == {75}, f"NANOEULER_ARCH=75 had no effect: {row['capability']}"
    else:
        import torch

        assert row["attention"][US] != row["attention"][WITHOUT], f"no Hopper kernel ran: {row['attention']}"
        config["torch"] = torch.__version__
    print(f"{gpu}{', not a T4' if options.turing else ''}; a step of base, {ROWS} rows: milliseconds")
    print("  ".join(f"{name} {time:.2f}" for name, time in row["milliseconds"].items()), row["attention"])
    if not options.quick:
        config |= {"gpu": gpu, "rounds": rounds}
        save("gpu_arch75" if options.turing else "gpu_arch80", config, [row], options.out)


if __name__ == "__main__":
    main()
