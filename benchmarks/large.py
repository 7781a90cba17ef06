"""Compare `large` with `base`: memory, tokens per second against torch.compile, and loss; needs a GPU and PyTorch.

    python -m benchmarks.large measure --out FOLDER               # a step of each model against torch.compile
    python -m benchmarks.large runs --data million --out FOLDER   # three runs, on the shards of benchmarks.million
    python -m benchmarks.large runs --data million --out FOLDER --gpus 4      # the same on four GPUs
    python -m benchmarks.large collect --from FOLDER              # data/results/large.json

The runs are `base` and `large` for one pass over the text, and `base` for as much time as `large` took, according to
the median step (the stored file has the first two). All runs use 64 rows per step, AdamW, and a schedule that ends with
the run. The learning rate is RATE for `base` and three quarters of it for `large`, the ratio of the widths; neither was
tuned for this length.

Expected times on an H100, where a step of base takes 59 ms: large has 2.27 times the flops, so 134 ms. A pass is 2,020
steps, which is 2 minutes for base, 4.5 minutes for large, and 4.5 minutes for the longer run of base. A run that was
stopped by --limit continues with the same command.
"""

import argparse
import json
import math
import statistics
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
SETTINGS = "--warmup 5Mtok --valid-every 10Mtok --sample-every 0 --save-every 500"


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


def runs(parts: Parts, source: Path, cards: int, device: str, shape: str = "", settings: str = SETTINGS) -> None:
    """Make the three runs. shape: the shape of both models, instead of the presets'."""
    names = dict(data=source / "train", one=source / "books_val", two=source / "web_val")
    data, context = Shards(names["data"]), preset("base").context
    together = f"--cards {cards} --accumulate {cards}" if cards > 1 else ""
    once = int(data.tokens // (ROWS * context))  # steps per pass

    def run(name: str, of: str, steps: int) -> float:
        rate = RATE * preset("base").dim / preset(of).dim
        words = f"--data {{data}} --valid {{one}} --valid {{two}} --device {device} {together} --batch {ROWS // cards} "
        words += f"--steps {steps} --rate {rate:g} {settings} {shape or f'--preset {of}'}"
        where = parts.trained(name, words, f"--cards {cards}" if cards > 1 else "", **names)
        return statistics.median(entry["seconds"] for entry in read(where / "log.jsonl") if "loss" in entry)

    short, long = run("base_pass", "base", once), run("large_pass", "large", once)
    run("base_time", "base", round(once * long / short))


def size(name: str) -> int:
    """Return the number of parameters of a preset."""
    return sum(math.prod(shape) for shape in parameter_shapes(preset(name)).values())


def collect(folder: Path, results: Path = FOLDER) -> None:
    rows = read(folder / "rows-measure.jsonl") + read(folder / "rows-parts.jsonl")
    rows += [run_row(file) for file in sorted(folder.glob("*.log.jsonl"))]
    config = dict(rows=ROWS, rate=RATE, precision=PRECISION, cards=json.loads((folder / "cards.json").read_text()))
    save("large", config | {"parameters": {name: size(name) for name in NAMES}}, rows, results,
         json.loads((folder / "machine.json").read_text()))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="?", choices=["measure", "runs", "collect"])
    parser.add_argument("--data", type=Path, default=Path("million"))
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--out", type=Path, default=Path("large"))
    parser.add_argument("--gpus", "--cards", dest="cards", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=gpu_step.ROUNDS)
    parser.add_argument("--limit", type=float, metavar="SECONDS")
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
    parts = Parts(options.out.absolute(), options.limit)
    (parts.out / "machine.json").write_text(json.dumps(machine()))
    if options.section == "measure":
        for row in measure(options.rounds):
            with open(parts.out / "rows-measure.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            print(row["model"], row["milliseconds"], row["tokens_per_second"], row["gib"], flush=True)
        return
    (parts.out / "cards.json").write_text(json.dumps(options.cards))
    runs(parts, options.data.absolute(), options.cards, "gpu")


if __name__ == "__main__":
    main()
