"""Chapter 19: train one run of a sweep, on a GPU or on the CPU, and prepare the texts that the runs read.

`Run` has all settings that affect the loss; for equal settings only rounding differs. Rows are stories of Königsberg,
one story per row and each used once, or consecutive windows of a different text, each used once, in an order that
depends on the seed.
"""

import multiprocessing
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

import konigsberg
from nanoeuler_book import scaling
from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import device
from nanoeuler_lib.engine.memory import layout, upload
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, init, optim, step
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import datasets
from nanoeuler_lib.training.checkpoint import load_pretrained

LAYERS, HEAD, CONTEXT, VOCABULARY, BASE = 4, 32, 128, 512, 64  # BASE: the width at which all rules agree
WARMUP = 0.05  # of the steps
TRAIN_SEED, TEST_SEED, TEST_STORIES = 1900, 19, 800
STORY_TOKENS = 92  # of a story with its end, on average: how many stories a run of so many tokens reads
PARTS = "embed", "blocks", "heads", "gains"
# by which power of D / BASE a part's rate is multiplied; "independent": the decay of a step stays as it was
RULES = {
    "one rate": {},
    "embedding": dict(embed=1.0),
    "mup": dict(blocks=-1.0, heads=-1.0),
    "mup, independent": dict(blocks=-1.0, heads=-1.0),
}


@dataclass(frozen=True)
class Run:
    """width: D; tokens: how many it reads, about; rate: the peak; batch: rows of a step; rule: one of RULES; rate_end:
    what is left of the rate at the end."""

    width: int
    tokens: int
    rate: float
    batch: int = 32
    seed: int = 0
    rule: str = "one rate"
    text: str = "konigsberg"
    rate_end: float = 0.0

    @property
    def shape(self) -> ModelConfig:
        heads = self.width // HEAD
        return ModelConfig(
            dim=self.width, heads=heads, kv_heads=heads, layers=LAYERS, context=CONTEXT, vocab_size=VOCABULARY,
            predict=1,
        )  # fmt: skip

    @property
    def row_tokens(self) -> int:
        return STORY_TOKENS if self.text == "konigsberg" else CONTEXT

    @property
    def settings(self) -> TrainConfig:
        steps = max(20, round(self.tokens / (self.row_tokens * self.batch)))
        warmup = max(1, round(WARMUP * steps))
        return TrainConfig(
            steps=steps,
            batch=self.batch,
            rate=self.rate,
            rate_end=self.rate_end,
            warmup=warmup,
            seed=self.seed,
        )

    def factors(self, part: str) -> tuple[float, float]:
        """By what a part's rate and its decay are multiplied."""
        rate = (self.width / BASE) ** RULES[self.rule].get(part, 0.0)
        return rate, 1 / rate if self.rule.endswith("independent") else 1.0

    def first_weights(self):
        """A seed's; of "mup", matrices of blocks narrow with the square root of the width, the head with the width."""
        params = init(self.shape, self.seed)
        if self.rule.startswith("mup"):
            for name, p in params.items():
                if part_of(name) in ("blocks", "heads"):
                    p *= (BASE / self.width) ** (1.0 if part_of(name) == "heads" else 0.5)
        return params


def part_of(name: str) -> str:
    """The part of the model that a tensor belongs to."""
    if name in ("embed", "heads"):
        return name
    return "gains" if "norm" in name else "blocks"


class HostRule(optim.AdamW):
    """AdamW on the CPU, with a rate and a decay for each part of the model."""

    run: Run

    def update(self, params, grads, names, factor):
        whole = self.config
        for part in PARTS:
            rate, decay = self.run.factors(part)
            self.config = replace(whole, rate=whole.rate * rate, decay=whole.decay * decay)
            super().update(params, grads, [name for name in names if part_of(name) == part], factor)
        self.config = whole


class CardStep(engine.Step):
    """The same on a GPU: an update of each part, with numbers of its own."""

    def begin(self, run: Run) -> None:
        starts, gains, end = layout(run.shape)
        bounds = {"embed": (0, starts["layers.0.qkv"]), "blocks": (starts["layers.0.qkv"], starts["heads"])}
        bounds |= {"heads": (starts["heads"], gains), "gains": (gains, end)}
        self.of = [(slice(*bounds[p]), *run.factors(p), self.numbers.copy()) for p in PARTS]

    def _tell(self):
        c, t = self.config, self.optimizer.step + 1
        for _, rate, _, numbers in self.of:
            now = rate * optim.learning_rate(self.optimizer.step, c)
            upload(numbers, [now, 1 / (1 - c.beta1**t), 1 / (1 - c.beta2**t), 1])

    def _update_list(self, plan):
        m, o, c = self.model, self.optimizer, self.config

        def record():
            plan.op.norm(self.factor, self.grads.flat, c.clip)
            plan.program.refuse(self.factor, self.sums)
            arrays = (
                m.params.flat,
                self.grads.flat,
                o.m.flat,
                o.v.flat,
                None if m.copy is None else m.copy.flat,
            )
            for part, _, decay, numbers in self.of:
                cut = (x if x is None else x[part] for x in arrays)
                decayed = max(0, min(part.stop, m.params.decayed) - part.start)
                plan.op.adamw(*cut, self.factor, numbers, decayed, replace(c, decay=c.decay * decay))

        return plan.list(("update", self.key), record)


# ---- Texts


class Stories:
    """Stories of Königsberg in rows: `rows` [S, T+1], after an end of text and filled up with it; `lengths` [S]."""

    def __init__(self, folder: Path):
        self.rows = np.load(folder / "stories.npy", mmap_mode="r")
        self.lengths = np.load(folder / "lengths.npy")

    def batches(self, run: Run):
        """Inputs [B, T] and targets [B, T, 1] of every step. Raises ValueError if the stories do not last."""
        config = run.settings
        need = config.steps * run.batch
        if need > len(self.rows):
            raise ValueError(f"the run reads {need} stories, and {len(self.rows)} were drawn")
        order = np.random.default_rng([run.seed, 19]).permutation(len(self.rows))[:need].reshape(-1, run.batch)
        for chosen in order:
            rows, places = self.rows[chosen].astype(np.int64), np.arange(CONTEXT)
            targets = np.where(places <= self.lengths[chosen, None], rows[:, 1:], -1)
            yield rows[:, :-1], targets[:, :, None]


class Windows:
    """Another text in windows of T + 1 tokens."""

    def __init__(self, folder: Path, name: str):
        self.ids = np.load(folder / f"{name}.npy", mmap_mode="r")
        tokenizer = Tokenizer.load(folder / f"{name}.json")
        self.valid = data.tokenize((folder / f"{name}.txt").read_text("utf-8"), tokenizer)

    def batches(self, run: Run):
        config = run.settings
        windows = len(self.ids) // CONTEXT - 1
        if (need := config.steps * run.batch) > windows:
            raise ValueError(f"the run reads {need} windows, and the text has {windows}: one epoch at most")
        rng = np.random.default_rng([run.seed, 19])
        shift = int(rng.integers(CONTEXT))
        for chosen in rng.permutation(windows)[:need].reshape(-1, run.batch):
            rows = self.ids[chosen[:, None] * CONTEXT + shift + np.arange(CONTEXT + 1)].astype(np.int64)
            yield rows[:, :-1], rows[:, 1:, None]


def draw_stories(folder: Path, count: int, processes: int) -> None:
    """Draw the stories that runs read and those they are measured on, and put them into files."""
    if (folder / "lengths.npy").exists():
        return
    (folder / "source.pickle").write_bytes(pickle.dumps(source()))
    parts = np.array_split(np.arange(count), max(1, count // 1000))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        drawn = pool.starmap(_drawn, [(len(part), TRAIN_SEED + int(part[0])) for part in parts], chunksize=1)
    np.save(folder / "stories.npy", np.concatenate([rows for rows, _ in drawn]))
    np.save(folder / "lengths.npy", np.concatenate([lengths for _, lengths in drawn]))


def _drawn(count, seed):
    tokenizer = konigsberg_tokenizer()
    ids = [tokenizer.encode(story.text) for story in konigsberg.stories(count, seed)]
    ids = [row for row in ids if len(row) < CONTEXT]
    rows = np.full((len(ids), CONTEXT + 1), tokenizer.special_tokens[END_OF_TEXT], np.uint16)
    for i, row in enumerate(ids):
        rows[i, 1 : len(row) + 1] = row
    return rows, np.array([len(row) for row in ids])


def read_text(folder: Path, name: str, train: Path, valid: Path, size: int, valid_size: int) -> None:
    """Tokenize the first `size` bytes, about, of a text, and put it into files; its tokenizer is learnt from 4 MB."""
    if (folder / f"{name}.npy").exists():
        return
    text, held = (_beginning(path, n) for path, n in ((train, size), (valid, valid_size)))
    tokenizer = Tokenizer.train(text[:4_000_000], VOCABULARY, special_tokens=(END_OF_TEXT,))
    tokenizer.save(folder / f"{name}.json")
    (folder / f"{name}.txt").write_text(held, "utf-8")
    np.save(folder / f"{name}.npy", data.tokenize(text, tokenizer).ids.astype(np.uint16))


def _beginning(path, size):
    found = []
    for block in data.read_blocks(path):
        found.append(block)
        if sum(map(len, found)) >= size:
            break
    return "".join(found)[:size]


@cache
def konigsberg_tokenizer() -> Tokenizer:
    return load_pretrained()[1]


@cache
def source() -> scaling.Source:
    """The stories on which all models are measured; each fits the context."""
    tokenizer = konigsberg_tokenizer()
    stories = [s for s in konigsberg.stories(TEST_STORIES, TEST_SEED) if len(tokenizer.encode(s.text)) < CONTEXT]
    return scaling.source_of(stories, tokenizer)


@cache
def source_in(folder: Path) -> scaling.Source:
    """`source`, as `draw_stories` left it there."""
    return pickle.loads((folder / "source.pickle").read_bytes())


@cache
def text_of(folder: Path, name: str):
    return Stories(folder) if name == "konigsberg" else Windows(folder, name)


# ---- A run


def train(
    run: Run, folder: Path, on: device.Device, each: Callable[[int, GPT], None] = lambda *_: None
) -> tuple[GPT, float]:
    """Train a model as a run says; returns it and the seconds of its steps. each: called after every step."""
    config = run.settings
    model = on.place(GPT(run.shape, run.first_weights()))
    host = HostRule(run.shape, config)
    host.run, kind = run, step.Step if on.name == "cpu" else CardStep
    with kind(model, on.optimizer(host, run.shape), config, run.batch, workers=1) as take_step:
        if on.name != "cpu":
            take_step.begin(run)
        began = time.perf_counter()
        for done, (inputs, targets) in enumerate(text_of(folder, run.text).batches(run), 1):
            _, norm = take_step(inputs, targets)
            if not np.isfinite(norm):
                raise FloatingPointError(f"{run}: the loss is not finite")
            each(done, model)
        return model, time.perf_counter() - began


def measured(run: Run, folder: Path, on: device.Device, along: Sequence[int] = ()) -> dict:
    """A run's row: what it was, how long it took, and its loss: above the source by parts, or on held-out text.

    along: numbers of tokens after which it is measured on its way, too.
    """
    config = run.settings
    row, on_the_way = asdict(run) | dict(steps=config.steps), []
    marks = {replace(run, tokens=n).settings.steps for n in along if n < run.tokens}

    def each(done, model):
        if done in marks:
            at = float(scaling.excess(model, source_in(folder)).sum() / source_in(folder).bytes)
            on_the_way.append([done, round(at, 6)])

    try:
        model, seconds = train(run, folder, on, each)
    except FloatingPointError:
        return row | dict(failed=True)
    row |= dict(seconds=round(seconds, 2), step_ms=round(1e3 * seconds / config.steps, 3))
    row |= dict(along=on_the_way) if on_the_way else {}
    if run.text == "konigsberg":
        source = source_in(folder)
        parts = scaling.by_part(scaling.excess(model, source), source)
        return row | dict(excess=round(sum(parts.values()), 6), parts={k: round(v, 6) for k, v in parts.items()})
    bits = datasets.bits_per_byte(model, text_of(folder, run.text).valid, rows=64)
    return row | dict(bits=round(bits, 6))


def begin_process(cards: int, numbers) -> None:
    """In a process of its own: one BLAS thread, and the GPU that is its turn."""
    global ON
    with numbers.get_lock():
        mine = numbers.value
        numbers.value += 1
    ON = device.choose(f"gpu:{mine % cards}" if cards else "cpu", "float32")


def work(task: tuple[Run, Path, Sequence[int]]) -> dict:
    """A row, in a process of `begin_process`."""
    run, folder, along = task
    with one_blas_thread():
        return measured(run, folder, ON, along)
