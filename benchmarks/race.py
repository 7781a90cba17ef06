"""Measure how many seconds `base` needs to reach 1.70 bits per byte on one GPU; needs a GPU, and PyTorch for one side.

    python -m benchmarks.race step    --out FOLDER                # a step of AdamW and of Muon, in alternation
    python -m benchmarks.race sigma   --data ... --valid ...      # AdamW, ten seeds: how much runs vary
    python -m benchmarks.race search  --data ... --valid ...      # Muon's recipe, changed one thing at a time
    python -m benchmarks.race adamw   --data ... --valid ...      # compiled PyTorch with AdamW, five seeds
    python -m benchmarks.race recipe  --data ... --valid ...      # the recipe on the engine, five seeds
    python -m benchmarks.race peer    --data ... --valid ...      # the recipe in compiled PyTorch
    python -m benchmarks.race average --data ... --valid ...      # the recipe with averaged weights, seed 99
    python -m benchmarks.race ladder  --data ... --valid ...      # the recipe with one ingredient removed or replaced
    python -m benchmarks.race collect --from FOLDER               # data/results/race.json from all

A run is RECIPE or ADAMW with changes, a seed (for weights and order) and a side, "engine" or "PyTorch". A step takes
`tokens` tokens, in windows whose lengths are given by `lengths`. `momentum` is a number or a list of stairs: (up to
which fraction of the steps, number). `average`, only on the engine, is (fraction of the steps at the end, k): the run's
last weights are the mean over every k-th step there, including the last. A thread reads the next batch while the GPU
works. The clock runs from the first step until the last loss has reached the host. Compiling, capturing and loading
happen before, on steps whose weights are thrown away; validation, on whole sets and with head 0, comes after. Each
section adds rows to rows-SECTION.jsonl in `--out`.

A side passes with n seeds if (GOAL - mean) sqrt(n) >= BOUND sigma. The number of steps of a side is fixed before its
seeds are run; the search uses only seed SEARCH. Appendix A3 explains the race.
"""

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.memory import upload
from nanoeuler_lib.model import optim
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.training import datasets
from tools.notebooks.results import FOLDER, save

GOAL, BOUND = 1.70, 4.3  # bits per byte; t with 9 degrees of freedom, p < 0.001
TOKENS, SEARCH, SEEDS, PILOTS, GAIN = 8192, 99, range(5), range(100, 110), 0.001
ROWS = 16, 64  # batch sizes of the timed steps
FULL = ((1.0, 512),)  # lengths: pairs (up to which fraction of the steps, tokens per window)
ADAMW = dict(optimizer="adamw", steps=1050, rate=6e-4, warmup=100, decline="cosine", decay=0.1, heads=4, lengths=FULL)
GROWING = ((0.3, 64), (0.6, 128), (0.85, 256), (1.0, 512))
RECIPE = dict(
    optimizer="muon", steps=410, rate=2.4e-3, move=0.3, momentum=0.85, rounds="four", warmup=15, decline="linear",
    decay=1.0, heads=2, lengths=GROWING,
)  # fmt: skip
START = RECIPE | dict(  # where the search starts
    steps=520, rate=1.2e-3, move=0.2, rounds="five", lengths=((0.35, 128), (0.7, 256), (1.0, 512))
)  # fmt: skip
ROUNDS = {"five": (program.QUINTIC,) * 5, "four of these": (program.QUINTIC,) * 4}
HERE = (
    "move", "momentum", "rounds", "decline", "heads", "lengths", "tokens", "zero", "normed rows", "query-key norm",
    "average",
)  # fmt: skip


def best_quintic(low: float, high: float) -> tuple[float, float, float, float]:
    """Return a, b, c of the a x + b x^3 + c x^5 closest to 1 on [low, high], and its largest distance from 1.

    0 < low < high. Remez's exchange: the distance of the best polynomial has the same size, with alternating signs, at
    both ends and at its two turning points. Appendix A3 derives this.
    """
    points = np.array([low, (3 * low + high) / 4, (low + 3 * high) / 4, high])
    for _ in range(50):
        powers = np.stack([points, points**3, points**5, [1, -1, 1, -1]], axis=1)
        a, b, c, off = np.linalg.solve(powers, np.ones(4))  # a x + b x^3 + c x^5 = 1 - off, 1 + off, ...
        turns = np.sort(np.roots([5 * c, 3 * b, a]).real)  # x^2 where the slope is 0
        points = np.array([low, *np.sqrt(turns.clip(low**2, high**2)), high])
    return float(a), float(b), float(c), float(abs(off))


def best_quintics(rounds: int, least: float, cushion: float = 1.01) -> list[tuple[float, float, float]]:
    """Return the coefficients (a, b, c) of polynomials that, one after the other, bring [least, 1] close to 1.

    Each polynomial is the best for the interval that the polynomials before it leave. All but the last are stretched by
    `cushion`, so that rounding does not leave the interval. Amsel et al. 2025, theorem 3.1.
    """
    low, high, found = least, 1.0, []
    for left in reversed(range(rounds)):
        a, b, c, off = best_quintic(low, high)
        stretch = cushion if left else 1.0
        found.append((a / stretch, b / stretch**3, c / stretch**5))
        low, high = 1 - off, 1 + off
    return found


ROUNDS["four"] = tuple(best_quintics(4, 0.003))


def learning_rate(step: int, recipe: dict) -> float:
    """Return the learning rate of a step: a linear warm-up, then the recipe's decline."""
    if recipe["decline"] == "cosine":
        return optim.learning_rate(step, settings(recipe, 0))
    warmup, steps, end = recipe["warmup"], recipe["steps"], recipe.get("rate_end", 0.0)
    left = end + (1 - end) * (steps - step) / (steps - warmup)
    return recipe["rate"] * min((step + 1) / max(1, warmup), left)


def settings(recipe: dict, seed: int) -> TrainConfig:
    """Return the part of a recipe that `TrainConfig` has names for."""
    known = {name: value for name, value in recipe.items() if name not in HERE}
    return TrainConfig(batch=tokens_of(recipe) // recipe["lengths"][-1][1], seed=seed, **known)


def tokens_of(recipe: dict) -> int:
    """Return the number of tokens per step."""
    return recipe.get("tokens", TOKENS)


def stair(stairs: tuple, step: int, steps: int):
    """Return the value at a step: of the first pair (fraction, value) whose fraction of the steps is not over."""
    return next(value for share, value in stairs if step < share * steps or share == 1)


def shape_of(options, recipe: dict) -> ModelConfig:
    return replace(preset(options.preset), predict=recipe["heads"], context=recipe["lengths"][-1][1])


class Course:
    """The batches of a run: the tokens and targets of each step, in windows of the step's length."""

    def __init__(self, options, shape: ModelConfig, recipe: dict, seed: int):
        train, valid = Shards(options.data), [Shards(one) for one in options.valid]
        self.steps, self.lengths, self.tokens = recipe["steps"], recipe["lengths"], tokens_of(recipe)
        self.of = {}
        for _, length in self.lengths:
            state = SimpleNamespace(
                model=SimpleNamespace(config=replace(shape, context=length)),
                train=settings(recipe, seed), tokenizer=train.tokenizer, info={},
            )  # fmt: skip
            self.of[length] = datasets.ShardDataset(train, valid, state)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens [rows, length] and targets [rows, length, K]."""
        length = stair(self.lengths, step, self.steps)
        return self.of[length].batch(step, self.tokens // length)

    def batches(self):
        """Yield the batches of all steps; a thread reads each batch while the GPU works on the one before."""
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self.batch, 0)
            for step in range(1, self.steps):
                now, ahead = ahead.result(), reader.submit(self.batch, step)
                yield now
            yield ahead.result()

    def validation(self, made) -> dict:
        return self.of[self.lengths[-1][1]].validation(made)


def first_weights(shape: ModelConfig, recipe: dict, seed: int) -> model.Parameters:
    """Return the first weights of a seed; with "zero", matrices that write to the residual stream start at 0."""
    params = model.init(shape, seed)
    for name in params if recipe.get("zero") else ():
        if name.endswith((".out", ".down")):
            params[name][...] = 0
    return params


class RaceStep(engine.Step):
    """A step with the race's own decline of the learning rate."""

    recipe: dict

    def _tell(self):
        c, t = self.config, self.optimizer.step + 1
        rate = learning_rate(self.optimizer.step, self.recipe)
        upload(self.numbers, [rate, 1 / (1 - c.beta1**t), 1 / (1 - c.beta2**t), 1])


class Engine:
    """One run on the engine: `take` takes a step, `begin` restores the first weights, `model` is scored."""

    total, count = 0, 0  # sum of the weights to average, and their number

    def __init__(self, options, shape, recipe, seed):
        config, where = settings(recipe, seed), "cpu" if options.device == "checked" else "gpu"
        momentum = recipe.get("momentum", 0.95)
        self.stairs = ((1.0, momentum),) if isinstance(momentum, float) else momentum
        program.MOVE, optim.MUON_BETA = recipe.get("move", 0.2), self.stairs[0][1]
        program.SCHULZ = ROUNDS[recipe.get("rounds", "five")]
        self.params = first_weights(shape, recipe, seed)
        self.model = engine.GPT(shape, self.params, precision=options.precision, where=where, checked=False)
        self.optimizer = engine.AdamW(shape, config, where)
        self.step = RaceStep(self.model, self.optimizer, config, config.batch, micro=config.batch)
        self.step.recipe = recipe

    def begin(self):
        self.model.fill(self.params)
        for moment in (self.optimizer.m, self.optimizer.v):
            moment.flat[...] = 0
        self.optimizer.step = self.total = self.count = 0

    def take(self, number: int, tokens, targets) -> float:
        """Take one step and return the loss before it."""
        self.step.micro = len(tokens)
        beta = stair(self.stairs, number, self.step.config.steps)
        if beta != optim.MUON_BETA:  # the recorded launches contain it, so record them again
            optim.MUON_BETA = beta
            for plan in self.model._plans.values():
                plan.lists.pop(("update", self.step.key), None)
        losses, _ = self.step(tokens, targets)
        self._average(self.step.config.steps - 1 - number)
        return float(losses @ self.step.weights)

    def _average(self, left: int):
        """Add the weights to the sum if the recipe averages them, and replace them with the mean if no step is left."""
        share, every = self.step.recipe.get("average") or (0, 1)
        if left % every or left >= share * self.step.config.steps:
            return
        made, self.count = self.model, self.count + 1
        self.total = self.total + made.params.flat
        if not left:
            made.params.flat[...] = self.total / self.count
            if made.copy is not None:
                made.program.round_to(made.copy.flat, made.params.flat)
                program.run(made.program.take())


class Torch:
    """One run in compiled PyTorch, in the mode that captures CUDA graphs."""

    def __init__(self, options, shape, recipe, seed):
        from benchmarks.torch_peer import Recipe

        on = "cpu" if options.device == "checked" else "cuda"
        self.recipe, self.params = recipe, first_weights(shape, recipe, seed)
        mode = None if on == "cpu" else options.mode
        chosen = dict(
            muon=recipe["optimizer"] == "muon", rounds=ROUNDS[recipe.get("rounds", "five")],
            move=recipe.get("move", 0.2), momentum=recipe.get("momentum", 0.95),
            normed_rows=recipe.get("normed rows", False), query_key_norm=recipe.get("query-key norm", False),
        )  # fmt: skip
        self.trainer = Recipe(
            shape, self.params, settings(recipe, seed), on == "cuda", on, options.precision, mode, **chosen
        )

    def begin(self):
        self.trainer.begin(self.params)

    def take(self, number: int, tokens, targets) -> float:
        return self.trainer.step(tokens, targets, learning_rate(number, self.recipe))

    @property
    def model(self):
        return self.trainer


SIDES = {"engine": Engine, "PyTorch": Torch}


def run(options, side: str, recipe: dict, seed: int) -> dict:
    """Return one run as a row: its recipe, its seconds and its loss."""
    shape = shape_of(options, recipe)
    course, began = Course(options, shape, recipe, seed), time.perf_counter()
    made = SIDES[side](options, shape, recipe, seed)
    for length, dataset in course.of.items():
        for _ in range(4):  # PyTorch compiles in the first step and captures in the second
            made.take(0, *dataset.batch(0, course.tokens // length))
    made.begin()
    ready, losses = time.perf_counter(), []
    for step, batch in enumerate(course.batches()):
        losses.append(made.take(step, *batch))
    seconds = time.perf_counter() - ready
    found = course.validation(made.model)
    row = dict(side=side, seed=seed, recipe=recipe, seconds=round(seconds, 3), before=round(ready - began, 1))
    means = [round(float(np.mean(losses[i : i + 20])), 4) for i in range(0, len(losses), 20)]
    return row | dict(bits=found["valid_bits_per_byte"], sets=found.get("valid_sets"), losses=means)


RUNS = {  # side, recipe and seeds of the sections that only run
    "sigma": ("engine", ADAMW, PILOTS),
    "adamw": ("PyTorch", ADAMW, SEEDS),
    "recipe": ("engine", RECIPE, SEEDS),
    "peer": ("PyTorch", RECIPE, SEEDS),
    "average": ("engine", RECIPE | dict(average=(0.2, 4)), [SEARCH]),
}


def runs(options, note):
    side, recipe, seeds = RUNS[options.section]
    for seed in options.seeds or seeds:
        note(run(options, side, recipe | options.change, seed))


CHANGES = [
    dict(rate=2.4e-3), dict(rate=1.8e-3), dict(move=0.4), dict(move=0.3), dict(momentum=0.95), dict(momentum=0.9),
    dict(rounds="four"), dict(rounds="four of these"), dict(lengths=((0.5, 128), (0.8, 256), (1.0, 512))),
    dict(lengths=((0.5, 256), (1.0, 512))), dict(lengths=((0.3, 64), (0.6, 128), (0.85, 256), (1.0, 512))),
    dict(decay=0.3), dict(decay=2.0), dict(warmup=50), dict(decline="cosine"), dict(zero=True), dict(heads=1),
    dict(heads=3), dict(rate=3.6e-3), dict(beta2=0.98),
]  # fmt: skip


def search(options, note):
    """Try one change after another, and keep a change that lowers the score (loss and seconds) by more than GAIN."""
    best, at = START | options.change, time.perf_counter()
    found = run(options, "engine", best, SEARCH)
    note(found | dict(change={}))
    for change in CHANGES:
        if time.perf_counter() - at > options.seconds:
            break
        other = run(options, "engine", best | change, SEARCH)
        note(other | dict(change=change))
        gain = found["bits"] - other["bits"]
        # 1% of the seconds counts as 0.002 bits: the loss falls by about that much in 1% of the steps
        if gain + 0.2 * (1 - other["seconds"] / found["seconds"]) > GAIN:
            best, found = best | change, other
    note(found | dict(change="best"))


LADDER = {
    "full length from the first step": dict(lengths=FULL),
    "momentum 0.95": dict(momentum=0.95),
    "four heads": dict(heads=4),
    "one head": dict(heads=1),
    "momentum from 0.95 down to 0.8": dict(momentum=((0.25, 0.95), (0.5, 0.9), (0.75, 0.85), (1.0, 0.8))),
    "momentum from 0.8 up to 0.95": dict(momentum=((0.25, 0.8), (0.5, 0.85), (0.75, 0.9), (1.0, 0.95))),
    "five rounds of Jordan's quintic": dict(rounds="five"),
    "four rounds of Jordan's quintic": dict(rounds="four of these"),
    "half the tokens, twice the steps": dict(tokens=4096, steps=820),
    "warm-up of 50 steps": dict(warmup=50),
    "half a cosine": dict(decline="cosine"),
    "decay 0.1": dict(decay=0.1),
    "decay 0.3": dict(decay=0.3),
    "outputs at zero": dict(zero=True),
    "AdamW at its own rate": dict(optimizer="adamw", rate=6e-4),
    "AdamW at twice its own rate": dict(optimizer="adamw", rate=1.2e-3),
}


def ladder(options, note):
    for seed in options.seeds or range(3):
        for name, change in LADDER.items():
            note(run(options, "engine", RECIPE | change, seed) | dict(without=name))


def step(options, note):
    """Time steps of AdamW and of Muon alternately, from the same weights on the same batches, with 16 and 64 rows."""
    from benchmarks import gpu_step

    for rows in ROWS:
        shape = preset(options.preset)
        batches = [gpu_step.batch(shape, rows, number) for number in range(gpu_step.STEPS)]
        takes, launches = {}, {}
        for name, rounds in (("AdamW", None), ("Muon, five rounds", "five"), ("Muon, four rounds", "four")):
            program.SCHULZ = ROUNDS[rounds or "five"]
            config = TrainConfig(steps=1000, rate=6e-4, warmup=0, batch=rows, optimizer="muon" if rounds else "adamw")
            made = engine.GPT(shape, precision=options.precision, where=options.where, checked=False)
            take = engine.Step(made, engine.AdamW(shape, config, options.where), config, rows, micro=rows)
            for one in batches[:3]:
                take(*one)
            update = take._update_list(made._plan)
            launches[name] = dict(launches=len(update), flops=sum(entry.flops for entry in update))
            takes[name] = lambda number, one, take=take: take(*one)
        taken = gpu_step.in_turns(takes, batches, options.rounds)
        for name, seconds in taken.items():
            apart = [a - b for a, b in zip(seconds, taken["AdamW"], strict=True)]
            note(
                dict(rows=rows, optimizer=name, **launches[name], ms=round(1e3 * statistics.median(seconds), 3),
                     more_ms=round(1e3 * statistics.median(apart), 3), rounds=[round(1e3 * s, 3) for s in seconds])
            )  # fmt: skip
        del takes, take, made


def passes(bits: list[float], sigma: float) -> bool:
    """Return whether a side's runs, given their bits per byte, pass the rule for GOAL; sigma: of one run."""
    return (GOAL - statistics.mean(bits)) * len(bits) ** 0.5 >= BOUND * sigma


def collect(options):
    """Write data/results/race.json from a folder with config.json and the rows of all sections."""
    folder, rows = Path(options.source), []
    for file in sorted(folder.glob("**/rows-*.jsonl")):
        section = file.stem.removeprefix("rows-")
        rows += [dict(section=section) | json.loads(line) for line in file.read_text("utf-8").splitlines()]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= dict(goal=GOAL, bound=BOUND, tokens=TOKENS, adamw=ADAMW, recipe=RECIPE, ladder=LADDER,
                   four=ROUNDS["four"])  # fmt: skip
    save("race", config, rows, FOLDER, config.pop("machine"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = dict.fromkeys(RUNS, runs) | dict(step=step, search=search, ladder=ladder)
    parser.add_argument("section", choices=[*sections, "collect"])
    parser.add_argument("--data")
    parser.add_argument("--valid", action="append", default=[])
    parser.add_argument("--from", dest="source")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--mode", default="reduce-overhead", help="mode of torch.compile")
    parser.add_argument("--change", type=json.loads, default={}, help="changes to the recipe, as JSON")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--rounds", type=int, default=9, help="step: number of rounds")
    parser.add_argument("--seconds", type=float, default=400, help="search: start no change after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    options.where = "cpu" if options.device == "checked" else "gpu"
    if options.section == "collect":
        return collect(options)

    def note(row):
        with open(options.out / f"rows-{options.section}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print({k: v for k, v in row.items() if k not in ("losses", "sets", "rounds")}, flush=True)

    sections[options.section](options, note)


if __name__ == "__main__":
    main()
