"""Compare Muon with AdamW on a GPU: `base` at several learning rates, and tiny Shakespeare with a tuned recipe.

    python -m benchmarks.gpu_muon base --data SHARDS --valid SHARDS ...   # rows-base.jsonl in the folder --out
    python -m benchmarks.gpu_muon tiny --data tinyshakespeare.txt         # rows-tiny.jsonl
    python -m benchmarks.gpu_muon collect --from FOLDER                   # data/results/muon.json from both

base: like `gpu_pretrain rates`, 1,000 steps of 16 x 512 tokens from the same initial weights on the same batches, in
bfloat16, with AdamW at the best of its five learning rates and Muon at five rates. `move` is the root mean square of
Muon's step divided by the learning rate.
tiny: `shakespeare.SETTINGS` with the same number of tokens, in float32. The search runs on seed SEARCH: first the best
of several learning rates, then one change after another, each kept if it lowers the final figure by GAIN; the same for
AdamW. Rows with other seeds are the recipes that were found, Muon's recipe without each of its changes, and Muon's
recipe with AdamW instead. "mean" also scores running means of the weights (the number: the decay per step).
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import gpu_pretrain, shakespeare
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import program
from nanoeuler_lib.model import optim
from nanoeuler_lib.text.data import read_text
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import datasets, train
from tools.notebooks.results import FOLDER, save

BASE = [("adamw", 6e-4, 0.2), *[("muon", rate, 0.2) for rate in (2.4e-3, 1.2e-3, 4.8e-3, 6e-4, 9.6e-3)],
        ("muon", 1.2e-3, 0.4)]  # fmt: skip
SEARCH, SEEDS, GAIN = 99, (0, 1, 2), 0.002
STARTS = {
    "muon": [
        *((rate, 0.2) for rate in (3e-3, 6e-3, 1.2e-2)),
        *((rate, 0.4) for rate in (1.5e-3, 3e-3, 6e-3)),
        *((rate, 0.8) for rate in (1.5e-3, 3e-3)),
    ],
    "adamw": [(1.5e-3, 0.2), (3e-3, 0.2), (6e-3, 0.2)],
}  # fmt: skip
MEANS = 0.99, 0.995, 0.998
HERE = "move", "momentum"  # settings of a recipe that are not in `TrainConfig`


def set_muon(move: float = 0.2, momentum: float = 0.95) -> None:
    """Set Muon's constants for all launches that are recorded from now on."""
    program.MOVE, optim.MUON_BETA = move, momentum


def base(options, note):
    for optimizer, rate, move in BASE:
        config = replace(gpu_pretrain.settings(rate, options.steps), optimizer=optimizer)
        set_muon(move)
        row = dict(what="base", optimizer=optimizer, move=move)
        note(row | gpu_pretrain.trial(options, config, gpu_pretrain.ours))


class Tiny:
    """Hold tiny Shakespeare and its tokenizer, and run recipes on it."""

    def __init__(self, text: str, shape: ModelConfig, steps: int, where: str, note: Callable):
        self.shape, self.steps, self.where, self.note = shape, steps, where, note
        self.parts = datasets.split_text(text, None, TrainConfig(**shakespeare.SETTINGS))
        self.tokenizer = Tokenizer.train(self.parts[0], shape.vocab_size)

    def run(self, seed: int, part: str, **recipe) -> float:
        """Train once, store a row and return the final bits per byte."""
        began = time.perf_counter()
        set_muon(**{name: recipe[name] for name in HERE if name in recipe})
        own = {name: value for name, value in recipe.items() if name not in HERE}
        config = TrainConfig(**(shakespeare.SETTINGS | dict(steps=self.steps) | own), seed=seed)
        found = train.fresh(Path("."), self.shape, config, self.tokenizer, {"source": "tiny", "workers": 1})
        dataset = datasets.TextDataset(*self.parts, found)
        made = engine.GPT(self.shape, found.model.params, where=self.where, checked=False)
        take = engine.Step(made, engine.AdamW(self.shape, config, self.where), config, config.batch)
        flat, means, bits = made.params.flat, {}, {}
        for step in range(1, config.steps + 1):
            take(*dataset.batch(step - 1, config.batch))
            if step == config.steps // 4:
                means = {kept: flat.copy() for kept in MEANS}
            for kept, mean in means.items():
                mean += (1 - kept) * (flat - mean)
            if step in (config.steps // 2, config.steps):
                bits[step] = dataset.validation(made)["valid_bits_per_byte"]
        for kept, mean in means.items():
            flat[...] = mean
            bits[f"mean {kept}"] = dataset.validation(made)["valid_bits_per_byte"]
        self.note(
            dict(what="tiny", part=part, seed=seed, recipe=recipe, bits={k: round(b, 5) for k, b in bits.items()},
                 seconds=round(time.perf_counter() - began, 1))
        )  # fmt: skip
        return bits[config.steps]

    def search(self, optimizer: str) -> tuple[dict, dict]:
        """Return the best start, and the recipe after all changes that lowered the loss."""
        starts = [dict(optimizer=optimizer, rate=rate, move=move) for rate, move in STARTS[optimizer]]
        best, at = min((self.run(SEARCH, "start", **start), i) for i, start in enumerate(starts))
        start = recipe = starts[at]
        changes = [
            dict(rate_end=0.0),
            dict(decay=0.3),
            dict(decay=1.0),
            dict(later_heads=0.5),
            dict(later_heads=1.0),
        ]
        changes += [dict(batch=8, steps=2 * self.steps), dict(beta2=0.98)]
        changes += [dict(momentum=0.9), dict(momentum=0.98)] if optimizer == "muon" else []
        changes += [dict(rate=1.5 * start["rate"]), dict(rate=start["rate"] / 1.5)]
        for change in changes:
            if (found := self.run(SEARCH, "change", **(recipe | change))) < best - GAIN:
                best, recipe = found, recipe | change
        return start, recipe


def without(recipe: dict, start: dict) -> dict[str, dict]:
    """Return the recipe without each of its changes, by the name of the change."""
    changed = [name for name, value in recipe.items() if value != start.get(name) and name != "steps"]
    less = {name: {k: v for k, v in recipe.items() if k != name} for name in changed}
    for name, other in less.items():
        other |= {name: start[name]} if name in start else {}
        if name == "batch":
            del other["steps"]
    return less


def tiny(options, note):
    where = gpu_pretrain.where_of(options)
    trial = Tiny(read_text(options.data), shakespeare.MODEL, options.steps, where, note)
    for seed in SEEDS:
        trial.run(seed, "as it was", optimizer="adamw", rate=shakespeare.SETTINGS["rate"])
    (start, recipe), (_, other) = trial.search("muon"), trial.search("adamw")
    swapped = {name: value for name, value in recipe.items() if name not in HERE}
    for seed in SEEDS:
        trial.run(seed, "recipe", **recipe)
        trial.run(seed, "start", **start)
        trial.run(seed, "AdamW's recipe", **other)
        trial.run(seed, "without optimizer", **(swapped | dict(optimizer="adamw", rate=other["rate"])))
        for name, less in without(recipe, start).items():
            trial.run(seed, f"without {name}", **less)


def collect(options):
    """Write data/results/muon.json from a folder with config.json and the rows of all sections."""
    folder, rows = Path(options.source), []
    for file in sorted(folder.glob("**/rows-*.jsonl")):
        rows += [json.loads(line) for line in file.read_text().splitlines()]
    config = json.loads((folder / "config.json").read_text())
    save("muon", config, rows, FOLDER, config.pop("machine"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = dict(base=base, tiny=tiny)
    parser.add_argument("section", choices=[*sections, "collect"])
    parser.add_argument("--data")
    parser.add_argument("--valid", action="append", default=[])
    parser.add_argument("--from", dest="source")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    if options.section == "collect":
        return collect(options)
    usual = dict(base=gpu_pretrain.STEPS, tiny=shakespeare.SETTINGS["steps"])
    options.steps = options.steps or usual[options.section]

    def note(row):
        with open(options.out / f"rows-{options.section}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        print({name: value for name, value in row.items() if name != "losses"}, flush=True)

    sections[options.section](options, note)


if __name__ == "__main__":
    main()
