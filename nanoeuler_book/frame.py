"""Train, sample from and measure the models that a reader builds in chapters 00 to 15.

The frame is one small GPT with fixed settings. Its parts are the book's until a reader's functions replace them.
"""

import builtins
import dis
import inspect
import math
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from itertools import islice
from pathlib import Path
from types import CodeType

import numpy as np

import konigsberg
from nanoeuler_book import evaluate
from nanoeuler_book.checks import results
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import from_json, to_json, write_text
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained

CONFIG = ModelConfig(dim=64, heads=4, kv_heads=4, layers=2, context=128, vocab_size=512, predict=1)
STEPS, ROWS, RATE, WARMUP, SECONDS = 400, 16, 0.005, 20, 60  # SECONDS: limit of a run with a reader's functions
BYTES, STORIES = 2_000_000, 300  # of the training text (seed 1), and the number of stories to measure on (seed 2)
PROMPT, TEMPERATURE, BORDER = "Käthe sent Leonhard across town with the cheese.", 0.7, 1e-4

# Parts of the model: their functions in `ops.use`, and the chapter that derives them.
PARTS = {
    "embedding": ("embed", "00"),
    "linear": ("linear", "03"),
    "cross-entropy": ("cross_entropy", "03"),
    "attention": ("attention", "06"),
    "positions": ("rope", "07"),
    "norm": ("rmsnorm", "08"),
    "SwiGLU": ("swiglu", "09"),
    "AdamW": ("adamw_step", "11"),
}


def _pair(name: str, forward: Callable, backward: Callable) -> dict[str, Callable]:
    return {f"{name}_forward": forward, f"{name}_backward": backward}


# The frame without a part: functions that pass the input on, or add nothing (attention: a position reads itself).
WITHOUT = {
    "attention": _pair("attention", lambda q, k, v: (v, k), lambda dy, k: (np.zeros_like(dy), np.zeros_like(k), dy)),
    "positions": _pair("rope", lambda x, cos, sin: (x, None), lambda dy, _: dy),
    "norm": _pair("rmsnorm", lambda x, gain, eps: (x, gain), lambda dy, gain: (dy, np.zeros_like(gain))),
    "SwiGLU": _pair("swiglu", lambda gate, up: (np.zeros_like(gate), None), lambda dy, _: (np.zeros_like(dy),) * 2),
}


@cache
def tokenizer() -> Tokenizer:
    """Return the tokenizer of the shipped model: 512 tokens."""
    return load_pretrained()[1]


@cache
def training_text() -> str:
    """Return the text that all of these models are trained on, 2 MB of stories."""
    return konigsberg.corpus(BYTES, seed=1)


@cache
def training_tokens() -> data.Tokens:
    """Return the tokens of the training text."""
    return data.tokenize(training_text(), tokenizer())


@cache
def held_out() -> tuple[konigsberg.Story, ...]:
    """Return 300 stories that are not in the training text, each short enough for the frame's context."""
    fit = (s for s in konigsberg.stories(2 * STORIES, 2) if len(tokenizer().encode(s.text)) < CONFIG.context)
    return tuple(islice(fit, STORIES))


@dataclass(frozen=True)
class Frame:
    """A model and the functions of its `ops.use`; a call with tokens [B, T] returns log-probabilities [B, T, V]."""

    model: GPT
    functions: dict[str, Callable]

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        with ops.use(**self.functions):
            return evaluate.log_probabilities(self.model, tokens)


def train(
    steps: int = STEPS,
    *,
    without: Sequence[str] = (),
    rate: float = RATE,
    seed: int = 0,
    ffn: int = CONFIG.ffn,
    tokens: data.Tokens | None = None,
    layers: Sequence[tuple[Callable, Callable]] = (),
    **functions: Callable | None,
) -> Frame:
    """Train the frame with AdamW, 16 rows of 128 tokens per step.

    without: names of `WITHOUT`; ffn: width of the feed-forward layers; tokens: by default `training_tokens()`; layers:
    the pair of attention functions of each layer (`by_layer`), or empty for the same attention in all layers;
    functions: a reader's functions by the names of `ops.use`, None for the book's. The functions that `keep` has stored
    are used too. A run with a reader's functions that would take over a minute has fewer steps, and prints how many.
    Raises NanoEulerError if a part is unknown.
    """
    own = kept() | usable(functions)
    for part in without:
        if part not in WITHOUT:
            raise NanoEulerError(f"without must be a list of {', '.join(WITHOUT)}, got {part!r}")
        own |= WITHOUT[part]
    model, rng = GPT(replace(CONFIG, ffn=ffn), seed=seed), np.random.default_rng(seed)
    own |= by_layer(model, layers) if layers else {}
    optimizer = AdamW(model.config, TrainConfig(steps=steps, warmup=min(WARMUP, steps), rate=rate))
    tokens, limit, began = tokens or training_tokens(), math.inf, time.perf_counter()
    with ops.use(**own):
        for step in range(1, steps + 1):
            _, grads = model.loss_and_gradients(*data.batch(tokens, rng, ROWS, CONFIG.context, predict=1))
            optimizer.step = step
            optimizer.update(model.params, grads, list(grads), factor=1.0)
            if step == 10 and any(map(readers, own.values())):
                limit = int(SECONDS * step / (time.perf_counter() - began))
            if step >= limit and step < steps:
                print(f"{step} of {steps} steps: with your functions, more would take over {SECONDS} seconds")
                break
        return Frame(model, dict(ops.functions()))  # without those that failed in the model


def usable(functions: dict[str, Callable | None]) -> dict[str, Callable]:
    """Return the functions that are not None, without a forward one whose backward one is None (`saved` may differ)."""
    missing = {name for name, function in functions.items() if not function}
    missing |= {name for name in functions if name.replace("_forward", "_backward") in missing}
    return {name: function for name, function in functions.items() if name not in missing}


def by_layer(model: GPT, layers: Sequence[tuple[Callable, Callable]]) -> dict[str, Callable]:
    """Return the functions for `ops.use` that give each layer of a model its own attention.

    layers: one pair (forward, backward) per layer, with the arguments of `attention_forward` and `attention_backward`.
    The layer is found by the buffer in which the values lie: every layer of the model's plan has its own.
    """

    def forward(q, k, v):
        plan = model.plan(v.shape[0], v.shape[2])
        (pair,) = (p for p, layer in zip(layers, plan.layers, strict=True) if np.may_share_memory(v, layer.qkv))
        y, saved = pair[0](q, k, v)
        return y, (pair[1], saved)

    def backward(dy, saved):
        own_backward, own_saved = saved
        return own_backward(dy, own_saved)

    forwards = [pair[0] for pair in layers]
    return _pair("attention", wraps(next(filter(readers, forwards), forwards[0]))(forward), backward)


def readers(function: Callable) -> bool:
    """Return whether a reader wrote this function: its name begins with my_."""
    return getattr(function, "__name__", "").startswith("my_")


def draw(
    predict: Callable, prompt: str = PROMPT, tokens: int = 60, seed: int = 0, vocabulary: Tokenizer | None = None
) -> str:
    """Continue a prompt with tokens drawn from `predict` at temperature 0.7, until the end of the story.

    predict: tokens [1, T] -> log-probabilities [1, T, V]; vocabulary: its tokenizer, by default the frame's. A random
    number closer than 1e-4 to the border between two tokens is drawn again, so that rounding does not change the text.
    """
    vocabulary, rng = vocabulary or tokenizer(), np.random.default_rng(seed)
    end = vocabulary.special_tokens[END_OF_TEXT]
    ids = [end, *vocabulary.encode(prompt)]
    drawn = len(ids)
    while len(ids) < drawn + tokens:
        read = ids[-CONFIG.context :]
        padded = np.full((1, CONFIG.context), end)  # one shape for all steps; no position reads the padding after it
        padded[0, : len(read)] = read
        log_p = np.asarray(predict(padded), np.float64)[0, len(read) - 1] / TEMPERATURE
        borders = np.cumsum(np.exp(log_p - log_p.max()))
        borders /= borders[-1]
        while np.abs(borders - (number := rng.random())).min() < BORDER:
            pass
        ids.append(int(np.searchsorted(borders, number)))
        if ids[-1] == end:
            break
    return vocabulary.decode([token for token in ids[drawn:] if token != end])


def report(
    name: str, predict: Callable, prompt: str = PROMPT, seed: int = 0, vocabulary: Tokenizer | None = None
) -> evaluate.Measured:
    """Print what a model writes, its bits per byte and its share of correct facts; return the measurements.

    name: of the row in `table`; the rest as for `draw`. For a `Frame`, also print which parts are the reader's.
    """
    measured = evaluate.measure(predict, vocabulary or tokenizer(), held_out())
    bits, facts = measured.bits_per_byte, measured.accuracy(konigsberg.FACT)
    text = textwrap.fill(f"{prompt}|{draw(predict, prompt, seed=seed, vocabulary=vocabulary)}", 80)
    print(f"{text}\n\n{bits:.2f} bits per byte (floor {measured.floor:.2f}), {facts:.0%} of the facts right")
    if isinstance(predict, Frame):
        row = stored("counts, order 8")
        print(f"counting, order 8 (02): {row['bits']:.2f} bits per byte, {row['facts']:.0%} of the facts right")
        print(parts(predict.functions))
    if (kept := _kept())[0]:
        write_text(kept[0], to_json({"functions": kept[1], "rows": kept[2] | {name: [bits, facts]}}, indent=1))
    return measured


def parts(functions: dict[str, Callable]) -> str:
    """Return lines that name the reader's parts, the book's, and those that are left out."""
    mine = [part for part, (name, _) in PARTS.items() if any(readers(f) for n, f in functions.items() if name in n)]
    out = [part for part in WITHOUT if any(functions.get(name) is f for name, f in WITHOUT[part].items())]
    book = [f"{part} ({chapter})" for part, (_, chapter) in PARTS.items() if part not in mine + out]
    lines = {"yours": mine, "the book's": [*book, "sampling (14)"], "left out": out}
    texts = [f"{whose}: {', '.join(names)}" for whose, names in lines.items() if names]
    return "\n".join(textwrap.fill(text, 80, subsequent_indent="    ") for text in texts)


def _kept() -> tuple[Path | None, dict, dict]:
    """Return work/mine.json (None elsewhere), {name in `ops.use`: [own name, source]} and {row: values}."""
    if Path.cwd().name != "work":
        return None, {}, {}
    file = Path("mine.json").resolve()
    content = from_json(file.read_text("utf-8")) if file.is_file() else {}
    return file, content.get("functions", {}), content.get("rows", {})


def _globals(code: CodeType) -> set[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals(inner) for inner in code.co_consts if inspect.iscode(inner)))


def keep(**functions: Callable | None) -> None:
    """Store a reader's functions for the frame of later chapters, by the names of `ops.use`: those that are `usable`.

    The functions that they call are stored too. If one needs more than those, NumPy and `math`, a line says that it is
    not stored. Outside the folder work/ nothing is stored.
    """
    file, stored, rows = _kept()
    for name, function in usable(functions).items() if file else ():
        if readers(function := inspect.unwrap(function)):
            needs = _globals(function.__code__) - set(dir(builtins))
            used = [f for name in sorted(needs) if inspect.isfunction(f := function.__globals__.get(name))]
            source = "\n".join(inspect.getsource(f) for f in (*used, function))
            if missing := needs - {f.__name__ for f in used} - {"np", "math"}:
                print(f"{function.__name__} needs {', '.join(sorted(missing))}: later chapters use the book's version")
            else:
                stored[name] = [function.__name__, source]
    if file:
        write_text(file, to_json({"functions": stored, "rows": rows}, indent=1))


def kept() -> dict[str, Callable]:
    """Return the functions that `keep` has stored, by the names of `ops.use`."""
    functions = {}
    for name, (own_name, source) in _kept()[1].items():
        exec(source, space := {"np": np, "math": math})  # the reader's own code
        functions[name] = space[own_name]
    return functions


def table() -> None:
    """Print the rows that `report` has stored for this reader, one per chapter; print nothing if there are none."""
    for name, (bits, facts) in _kept()[2].items():
        print(f"{name:40} {bits:5.2f} bits per byte, {facts:4.0%} of the facts right")


def stored(name: str) -> dict[str, float]:
    """Return a row of data/results/mine.json: the means of "bits" and "facts" over the seeds, with standard errors."""
    return next(row for row in results("mine")["rows"] if row["name"] == name)
