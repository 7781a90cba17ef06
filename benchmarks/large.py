"""Compare `large` with `base`: memory, tokens per second against torch.compile, and loss; needs a GPU and PyTorch.

    python -m benchmarks.large measure --out FOLDER               # a step of each model against torch.compile
    python -m benchmarks.large runs --data million --out FOLDER   # a pass of each, on the shards of benchmarks.million
    python -m benchmarks.large runs --data million --out FOLDER --gpus 4      # the same on four GPUs
    python -m benchmarks.large time --data million --out FOLDER   # both for the same time, each on one of two GPUs
    python -m benchmarks.large collect --from FOLDER              # the new rows into data/results/large.json

The runs are `base` and `large` for one pass over the text, and both for as many steps as fit into --seconds, according
to the median step of the GPU that trains the model. All runs use 64 rows per step, AdamW, and a schedule that ends with
the run. The learning rate is RATE for `base` and three quarters of it for `large`, the ratio of the widths; neither was
tuned for this length.

Expected times on an H100, where a step of base takes 59 ms: large has 2.27 times the flops, so 134 ms. A pass is 2,020
steps: 2 minutes for base, 4.5 for large. If --limit stopped a run, the same command continues it.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import gpu_step
from benchmarks.gpu_pretrain import run_row
from benchmarks.million import Parts, read
from nanoeuler_lib.config import preset
from nanoeuler_lib.model import parameter_shapes
from nanoeuler_lib.text.shards import Shards
from tools.notebooks.results import FOLDER, machine, save

NAMES, ROWS, RATE, PRECISION = ("base", "large"), 64, 6e-4, "bfloat16"
SETTINGS = "--warmup 5Mtok --valid-every 10Mtok --sample-every 0 --save-every 2000"


# ---- A step


def measure(rounds: int, where: str = "gpu", precision: str = PRECISION) -> Iterator[dict]:
    """Yield a row per model: time, tokens per second and, on a GPU, memory of a step, ours and torch.compile's."""
    for name in NAMES:
        row = dict(
            what="step",
            model=name,
            gpu=machine()["gpu"],
            **gpu_step.measure(preset(name), precision, ROWS, rounds, where),
        )
        if where == "gpu":
            free()  # memory is measured in new processes, which need the GPU for themselves
            who = gpu_step.US, gpu_step.PEER
            row["gib"] = {one: round(gpu_step.peak_gib("benchmarks.large", one, name), 2) for one in who}
        yield row


def free() -> None:
    import cupy
    import torch

    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()


# ---- Runs


def runs(parts: Parts, source: Path, cards: int, device: str, **changed: str) -> None:
    """Train both models for one pass over the text. changed: arguments of `train`."""
    once = int(Shards(source / "train").tokens // (ROWS * preset("base").context))  # steps per pass
    for name in NAMES:
        train(parts, source, f"{name}_pass", once, device, cards, **changed)


def timed(parts: Parts, source: Path, name: str, seconds: float, device: str, **changed: str) -> None:
    """Time steps of a model on random tokens, then train it for about `seconds`. changed: arguments of `train`."""
    taken = gpu_step.ours(preset(name), PRECISION, ROWS, "gpu" if device == "gpu" else "cpu")
    batches = [gpu_step.batch(preset(name), ROWS, number) for number in range(gpu_step.STEPS)]
    step = statistics.median(gpu_step.in_turns({name: taken}, batches, gpu_step.ROUNDS)[name])
    train(parts, source, f"{name}_time", max(2, round(seconds / step)), device, **changed)


def train(parts, source, run, steps, device, cards=1, shape="", settings=SETTINGS) -> None:
    """Make a run, called MODEL_WORD. shape: the model's shape as options of the command, instead of the preset's."""
    names, name = dict(data=source / "train", one=source / "books_val", two=source / "web_val"), run.split("_")[0]
    on = f"--cards {cards} --accumulate {cards}" if cards > 1 else ""
    rate = RATE * preset("base").dim / preset(name).dim
    words = f"--data {{data}} --valid {{one}} --valid {{two}} --device {device} {on} --batch {ROWS // cards} "
    words += f"--steps {steps} --rate {rate:g} {settings} {shape or f'--preset {name}'}"
    parts.trained(run, words, f"--cards {cards}" if cards > 1 else "", **names)


def size(name: str) -> int:
    """Return the number of parameters of a preset."""
    return sum(math.prod(shape) for shape in parameter_shapes(preset(name)).values())


def collect(folder: Path, results: Path = FOLDER) -> None:
    """Replace the rows of large.json that a folder has, too, and keep the others."""
    stored = json.loads((results / "large.json").read_text())
    gpu = json.loads((folder / "machine.json").read_text())["gpu"]
    rows = read(folder / "rows-measure.jsonl") + read(folder / "rows-parts.jsonl")
    rows += [run_row(file) | dict(gpu=gpu) for file in sorted(folder.glob("*.log.jsonl"))]
    name = lambda row: next(row[key] for key in ("run", "part", "model") if key in row)
    renewed = {name(row) for row in rows}
    rows = [row for row in stored["rows"] if name(row) not in renewed] + rows
    config = dict(rows=ROWS, rate=RATE, precision=PRECISION, parameters={name: size(name) for name in NAMES})
    save("large", config, rows, results, stored["machine"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="?", choices=["measure", "runs", "time", "collect"])
    parser.add_argument("--data", type=Path, default=Path("million"))
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--out", type=Path, default=Path("large"))
    parser.add_argument("--gpus", "--cards", dest="cards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=gpu_step.ROUNDS)
    parser.add_argument("--seconds", type=float, default=240, help="time: seconds of training")
    parser.add_argument("--limit", type=float, metavar="SECONDS")
    parser.add_argument("--model", choices=NAMES, help="time: train only this model, on this process's first GPU")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        who, name = options.memory
        maker = gpu_step.ours if who == gpu_step.US else gpu_step.theirs
        print(gpu_step.remembered(lambda: maker(preset(name), PRECISION, ROWS, "gpu"), ROWS))
        return
    if options.section == "collect":
        collect(options.source)
        return
    if options.section == "time" and options.model is None:
        command = [sys.executable, "-m", "benchmarks.large", *sys.argv[1:], "--model"]
        on = [os.environ | {"CUDA_VISIBLE_DEVICES": str(number)} for number in range(len(NAMES))]
        made = [subprocess.Popen([*command, name], env=env) for name, env in zip(NAMES, on, strict=True)]
        sys.exit(max([process.wait() for process in made]))
    parts = Parts(options.out.absolute(), options.limit)
    (parts.out / "machine.json").write_text(json.dumps(machine()))
    if options.section == "measure":
        for row in measure(options.rounds):
            with open(parts.out / "rows-measure.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["model"], row["milliseconds"], row["tokens_per_second"], row["gib"], flush=True)
        return
    if options.section == "time":
        timed(parts, options.data.absolute(), options.model, options.seconds, "gpu")
    else:
        runs(parts, options.data.absolute(), options.cards, "gpu")


if __name__ == "__main__":
    main()
