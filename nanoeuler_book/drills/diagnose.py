"""Check every part of the package with independent tools, for `nanoeuler diagnose`.

Each tool compares a part of the library with something that does not use that part: a formula written out here in
float64, a difference quotient, a count, or a property that must hold. Each tool yields one line per fault, with the
actual value and the expected value, and no line for a correct package. Tools use tiny models and texts, so all tools
together take seconds. `nanoeuler break` plants bugs to practise on.
"""

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np

import konigsberg
from nanoeuler_book.evaluate import measure
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.generation.generate import generate, sample
from nanoeuler_lib.model import GPT, Parameters, init, optim
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.model.gradcheck import check_batch, numeric_gradient
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import bpe, data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, split_words
from nanoeuler_lib.training import checkpoint, datasets, loop, run_folder, train

# Large enough for several blocks of attention rows and, with four rows of tokens, several blocks of logits.
TINY = ModelConfig(dim=16, heads=4, kv_heads=2, layers=2, context=70, vocab_size=11, predict=3, ffn=12)
RUN_MODEL = ModelConfig(dim=16, heads=2, kv_heads=1, layers=1, context=48, vocab_size=300, predict=2)
RUN = dict(steps=6, batch=4, accumulate=2, warmup=2, rate=1e-2, valid_every=3, sample_every=0, save_every=2)


# name -> the tool, and the code to read if the tool finds something
TOOLS: dict[str, tuple[Callable[[], Iterator[str]], str]] = {}


def diagnose(names: list[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Run tools by name (by default all tools) and yield (name, findings) after each tool.

    If a tool raises an exception, the exception becomes the only finding of the tool. Raises NanoEulerError for an
    unknown name.
    """
    if unknown := set(names or ()) - set(TOOLS):
        hint = did_you_mean(min(unknown), TOOLS)
        raise NanoEulerError(f"a tool must be one of {', '.join(TOOLS)}, got {short(min(unknown))}{hint}")
    for name in names or TOOLS:
        findings = []
        try:
            with np.errstate(all="ignore"):  # an overflow becomes a finding, not a warning
                findings.extend(TOOLS[name][0]())
        except Exception as error:  # a planted bug may raise anything
            findings.append(f"stopped with {type(error).__name__}: {error}")
        yield name, [f"{finding}. Look at {TOOLS[name][1]}" for finding in findings]


def tool(look: str):
    """Register a function in TOOLS under its name with - for _; look: the code to inspect if it finds a fault.

    The function's docstring states the property that it checks; the command prints the docstring after "ok".
    """

    def register(function):
        TOOLS[function.__name__.strip("_").replace("_", "-")] = function, look
        return function

    return register


def differ(what: str, found, expected, rtol: float = 1e-9) -> Iterator[str]:
    """Yield a finding if numbers or arrays differ by more than rtol times the largest expected value, or are NaN."""
    found, expected = np.broadcast_arrays(np.asarray(found, np.float64), np.asarray(expected, np.float64))
    apart = np.nan_to_num(np.abs(found - expected), nan=np.inf).reshape(-1)
    if not (apart <= rtol * np.abs(expected).max() + 1e-12).all():  # false for NaN
        at = int(apart.argmax())
        yield f"{what}: {found.flat[at]:.6g}, expected {expected.flat[at]:.6g}"


def _model():
    """Return a tiny model in float64 with noise on the gains too, because equal gains would hide a mix-up."""
    params, rng = init(TINY, 17, 0.3, np.float64), np.random.default_rng(18)
    for p in params.values():
        p += 0.3 * rng.standard_normal(p.shape) * (p.ndim == 1)
    return GPT(TINY, params)


# --------------------------------------------------------------------------------------------------------------
# the model


@tool("model.init")
def initialisation() -> Iterator[str]:
    """A new model has gains of 1, N(0, 0.02) weights (residual projections / sqrt(2L)) and a loss of ln V."""
    config = ModelConfig(dim=96, heads=4, kv_heads=2, layers=8, context=16, vocab_size=300)
    params, first = init(config, 0), {}
    for name, p in params.items():
        if p.ndim == 1:
            yield from differ(f"{name} of a fresh model", p, 1)
            continue
        std = 0.02 / math.sqrt(2 * 8) if name.endswith(("out", "down")) else 0.02
        yield from differ(f"standard deviation of {name}", p.std(), std, 0.05)
        first.setdefault(round(p.flat[0] / p.flat[1], 4), []).append(name)  # equal for the same noise at any scale
    if twins := [names for names in first.values() if len(names) > 1]:
        yield f"{', '.join(twins[0][:3])} have the same initial noise, expected independent noise"
    losses = GPT(config).losses(*check_batch(config, 4, 16, seed=1, masked=0))
    yield from differ("the first loss (expected: ln V)", losses.mean(), math.log(300), 0.03)


@tool("model.forward, plan.Rope, ops/cpu.py")
def forward() -> Iterator[str]:
    """The logits of every head agree with the formulas, computed one position at a time in float64."""
    model, tokens = _model(), np.random.default_rng(1).integers(0, TINY.vocab_size, (2, TINY.context))
    expected = np.array([logits_by_formula(model.params, TINY, row) for row in tokens])
    for head in range(TINY.predict):
        yield from differ(f"logits of head {head}", model.logits(tokens, head), expected[:, :, head])


def logits_by_formula(params: Parameters, config: ModelConfig, tokens: np.ndarray) -> np.ndarray:
    """Return the logits [T, K, V] of tokens [T] by the formulas of the book's notation page, in simple, slow code."""
    H, G, C, T = config.heads, config.kv_heads, config.head_dim, len(tokens)

    def norm(x, gain):
        return np.array([row / math.sqrt((row @ row) / len(row) + config.norm_eps) * gain for row in x])

    def turned(x):  # rotate the pair (x[j], x[j + C/2]), as one complex number, by t theta^(-2j/C)
        angle = np.outer(np.arange(T), config.rope_theta ** (-2 * np.arange(C // 2) / C))
        return (x[:, : C // 2] + 1j * x[:, C // 2 :]) * np.exp(1j * angle)

    x = params["embed"][tokens]
    for layer in range(config.layers):
        w = {name.split(".")[2]: p for name, p in params.items() if name.startswith(f"layers.{layer}.")}
        columns = np.split(norm(x, w["norm1"]) @ w["qkv"], H + 2 * G, axis=1)
        heads = []
        for h in range(H):
            k, v = columns[H + h // (H // G)], columns[H + G + h // (H // G)]
            e = np.exp((turned(columns[h]) @ turned(k).conj().T).real / math.sqrt(C))
            heads.append([e[t, : t + 1] @ v[: t + 1] / e[t, : t + 1].sum() for t in range(T)])
        x = x + np.concatenate(heads, axis=1) @ w["out"]
        gate, up = np.split(norm(x, w["norm2"]) @ w["gate_up"], 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["down"]
    return (norm(x, params["norm_final"]) @ params["heads"]).reshape(T, config.predict, -1)


@tool("the mask of attention, and what mixes rows")
def future() -> Iterator[str]:
    """Each output depends on the tokens up to its position, and on no later token or other row."""
    model, at = _model(), 40
    tokens = np.random.default_rng(2).integers(0, TINY.vocab_size, (2, TINY.context))
    other = tokens.copy()
    other[0, at] = (other[0, at] + 1) % TINY.vocab_size
    moved = np.abs(model.logits(other) - model.logits(tokens)).max(axis=-1)  # [2, T]
    yield from differ("outputs that a later token changes", np.sum(~(moved[0, :at] < 1e-12)), 0)
    yield from differ("outputs that a token of another row changes", np.sum(~(moved[1] < 1e-12)), 0)
    yield from differ("outputs, its own and the last, that a token changes", np.sum(moved[0, [at, -1]] > 1e-9), 2)


@tool("model.loss_scale, model.head_weights, heads_loss")
def loss() -> Iterator[str]:
    """The loss is the sum over heads of weight x mean loss over valid targets, and a masked row has no effect."""
    model, V, expected = _model(), TINY.vocab_size, 0.0
    tokens, targets = check_batch(TINY, 4, 9, seed=3)
    targets[0] = -1
    for head, weight in enumerate([1, 0.25, 0.25]):
        log_p, target = log_softmax(model.logits(tokens, head)), targets[..., head]
        expected -= weight * np.mean([log_p[b, t, target[b, t]] for b, t in np.argwhere(target >= 0)])
    value, grads = model.loss_and_gradients(tokens, targets)
    yield from differ("the loss with masked targets", value, expected)
    alone = model.loss_and_gradients(tokens[1:], targets[1:])[1]
    yield from differ("the gradient with a masked row (expected: the same as without it)", grads.flat, alone.flat)
    model.params["heads"][...] = 0
    yield from differ("the loss of equal logits", model.loss(tokens, targets), 1.5 * math.log(V))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax over the last axis."""
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@tool("the backward pass of the first tensor named")
def gradients() -> Iterator[str]:
    """Every tensor's gradient agrees with a fourth-order difference quotient along a random direction, in float64."""
    model, rng = _model(), np.random.default_rng(4)
    tokens, targets = check_batch(TINY, 4, TINY.context, seed=4)
    grads = model.loss_and_gradients(tokens, targets)[1]
    for name, p in reversed(list(model.params.items())):  # a wrong gradient also spoils those computed after it
        direction = rng.standard_normal(p.shape)
        direction /= np.linalg.norm(direction)
        before, along = p.copy(), np.zeros(1)

        def moved(p=p, before=before, along=along, direction=direction):
            p[...] = before + along[0] * direction
            return model.loss(tokens, targets)

        slope, claimed = numeric_gradient(moved, along, h=2.5e-4)[0], float((grads[name] * direction).sum())
        p[...] = before
        if not abs(slope - claimed) <= 1e-6 * np.linalg.norm(grads[name]) / math.sqrt(p.size) + 1e-11:
            yield f"{name}: gradient {claimed:.6g} along a direction, expected {slope:.6g}"


@tool("step.py, optim.py, and the tools above")
def one_batch() -> Iterator[str]:
    """A tiny model can memorise one batch."""
    config = ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, context=16, vocab_size=20, predict=2)
    model, settings = GPT(config), TrainConfig(steps=150, warmup=10, rate=1e-2)
    step, batch = Step(model, optim.AdamW(config, settings), settings, 4, 2), check_batch(config, 4, 16, 5, 0)
    with step.pool:
        losses = [step(*batch)[0][0] for _ in range(150)]
    if not losses[-1] < 0.1:
        yield f"the loss is {losses[-1]:.3f} after 150 steps on one batch, expected below 0.1"


# --------------------------------------------------------------------------------------------------------------
# the optimiser and the step


@tool("optim.learning_rate")
def schedule() -> Iterator[str]:
    """The learning rate rises linearly to its peak, then falls along half a cosine to its final value."""
    c = TrainConfig(steps=50, warmup=8, rate=0.02, rate_end=0.1)
    falling = [0.002 + 0.018 * math.cos(math.pi * x / 84) ** 2 for x in range(43)]
    rates = [optim.learning_rate(step, c) for step in range(51)]
    expected = [0.0025 * (step + 1) for step in range(8)] + falling
    yield from differ(f"the rate of step {np.abs(np.subtract(rates, expected)).argmax()}", rates, expected)


@tool("optim.AdamW.update, adamw in ops/cpu.py")
def optimizer() -> Iterator[str]:
    """Four steps of AdamW agree with the paper in moments, bias corrections, and decay of matrices only."""
    c = TrainConfig(steps=6, accumulate=2, warmup=2, rate=0.05, decay=0.3, adam_eps=1e-3)
    params, adamw, rng = _model().params, optim.AdamW(TINY, c, np.float64), np.random.default_rng(6)
    expected, m, v = ({name: p * (i == 0) for name, p in params.items()} for i in range(3))
    grads = Parameters(TINY, np.float64)
    for step, rate in enumerate([0.025, 0.05, 0.05, 0.005 + 0.0225 * (1 + math.cos(math.pi / 4))], 1):
        grads.flat[...] = rng.standard_normal(grads.flat.size)
        for name, p in expected.items():
            g = 0.5 * grads[name]
            m[name], v[name] = 0.9 * m[name] + 0.1 * g, 0.95 * v[name] + 0.05 * g * g
            move = (m[name] / (1 - 0.9**step)) / (np.sqrt(v[name] / (1 - 0.95**step)) + 1e-3)
            expected[name] = p - rate * (move + 0.3 * p * (p.ndim == 2))
        adamw.step = step
        adamw.update(params, grads, list(params), 0.5)
    for name in ("embed", "norm_final"):
        yield from differ(f"{name} after four steps", params[name], expected[name])


@tool("step.py, optim.clip_factor")
def workers() -> Iterator[str]:
    """Micro-batches on one, two or three threads give the same losses, norm and clipped gradient as the full batch."""
    for threads, clip in ((1, 1e9), (2, 0.01), (3, 0)):
        c = TrainConfig(batch=3, accumulate=7, rate=0, decay=0, clip=clip, later_heads=0.6)
        model, adamw, m = _model(), optim.AdamW(TINY, c, np.float64), 0.0
        step, where = Step(model, adamw, c, 21, threads), f"with {threads} threads, clip {clip:g}"
        with step.pool:
            for seed in (7, 8):
                tokens, targets = check_batch(TINY, 21, TINY.context, seed)
                losses, norm = step(tokens, targets)
                grads = model.loss_and_gradients(tokens, targets, np.array([1, 0.6, 0.6]))[1].flat
                mean = model.losses(tokens, targets).sum(axis=(0, 1)) / (targets >= 0).sum(axis=(0, 1))
                length = float(np.linalg.norm(grads))
                m = 0.9 * m + 0.1 * grads * (min(1, clip / length) if clip else 1)
                yield from differ(f"the losses of the heads {where}", losses, mean)
                yield from differ(f"the gradient's norm {where}", norm, length)
        yield from differ(f"the first moment after two steps {where}", adamw.m.flat, m)


# --------------------------------------------------------------------------------------------------------------
# text


@tool("tokenizer.py")
def tokenizer() -> Iterator[str]:
    """Decoding restores the text, ids follow the merges, token lengths add up, and the first merge is the best pair."""
    text, pairs = konigsberg.corpus(3000, 8), Counter()
    made, words = Tokenizer.train(text, 300), split_words(text.replace(END_OF_TEXT, ""))
    for word in words:
        pairs.update(pairwise(word.encode()))
    best = max(pairs, key=lambda pair: (pairs[pair], pair))
    if made.merges[0] != best:
        yield f"the first merge is {bytes(made.merges[0])}, expected the most frequent pair {bytes(best)}"
    odd = "a  b\n\n c\t|Käthe’s 12½ Groschen|\u00a0e\u0301 🥨 <|endof|text|>".split("|")
    for written in ("", " ", *odd, END_OF_TEXT, text, "ä b " * 9000):
        ids = made.encode(written)
        if made.decode(ids) != written:
            yield f"{written[:20]!r} comes back as {made.decode(ids)[:20]!r}"
        yield from differ(f"bytes of {written[:20]!r}", made.token_lengths[ids].sum(), len(written.encode()))
    yield from differ("bytes that a special token stands for", made.token_lengths[-1], 0)
    for word in sorted(set(words)):
        found, ids = made.encode(word).tolist(), bpe.encode_word(word.encode(), made.merges)
        if found != ids:
            yield f"{word!r} is encoded as {found}, expected {ids}, its merges in order"
            break


@tool("data.py, loop._train")
def data_() -> Iterator[str]:
    """Decoding restores all documents, target k is token t + 1 + k, every document is drawn, and no batch repeats."""
    plain, documents = Tokenizer([]), [f"story {i}:\n  {'abc ' * (i % 7)}Käthe." for i in range(2500)]
    tokens = data.tokenize(data.SEPARATOR.join(documents), plain)
    text, expected = plain.decode(tokens.ids), "".join(END_OF_TEXT + d for d in documents) + END_OF_TEXT
    if text != expected:
        at = next((i for i, (a, b) in enumerate(zip(text, expected)) if a != b), 0)
        yield f"tokens read {text[at : at + 24]!r} at {at}, expected {expected[at : at + 24]!r}"
    if not np.array_equal(tokens.starts, np.flatnonzero(tokens.ids == 256)[:-1]):
        yield "a document starts without an end-of-text token before it, expected one before each"
    starts = np.cumsum([0, *[10] * 29, 300, *[10] * 30])  # one long document among short ones
    numbered = data.Tokens(np.arange(starts[-1]), starts[:-1], np.ones(1000, np.int32))
    inputs, targets = data.batch(numbered, np.random.default_rng(9), 2000, 12, 3)
    yield from differ("a row's second token after its first", inputs[:, 1] - inputs[:, 0], 1)
    for k in range(3):
        yield from differ(f"how far target {k} lies ahead", targets[:, :, k] - inputs, 1 + k)
    drawn = set(inputs[:, 0])
    yield from differ("row starts inside documents", len(drawn - set(starts)), 0)
    yield from differ("documents drawn, of 58 long enough for a row", len(drawn & set(starts[:58])), 58)
    seen, draw = [], data.batch

    def watched(*arguments):
        seen.append(draw(*arguments))
        return seen[-1]

    with patch.object(data, "batch", watched), _finished_run(), _finished_run(seed=1):
        different = len({inputs.tobytes() for inputs, _ in seen})
    yield from differ(f"different batches in {len(seen)} steps of two seeds", different, len(seen))


@tool("data.split_text, train.train")
def split() -> Iterator[str]:
    """Each document is in one of two parts of the right sizes, and the tokenizer is trained only on the first part."""
    documents = [f"story {i}: {'abc ' * (i % 7)}{'zqzq' * (i > 32)}" for i in range(40)]
    text = data.SEPARATOR.join(documents)
    part, valid = (part.split(data.SEPARATOR) for part in data.split_text(text, 0.2))
    if part + valid != documents:
        yield f"{len(part) + len(valid)} documents in both parts together, expected all 40"
    if not 4 <= len(valid) <= 10:
        yield f"a fifth of 40 documents is {len(valid)}, expected about 8"
    with _finished_run(text, valid_fraction=0.2) as run:
        if any(b"zq" in token for token in checkpoint.load(run).tokenizer.token_bytes):
            yield "the tokenizer has merged 'zq', which occurs only in held-out documents, expected no such merge"


# --------------------------------------------------------------------------------------------------------------
# runs and figures


@contextmanager
def _finished_run(text=None, stop=None, floor=None, **changes):
    """Yield the folder of a tiny finished run; stop: a step after which the run is interrupted and then resumed."""
    text, settings = text or konigsberg.corpus(9000, 10), TrainConfig(**(RUN | changes))

    def breaking_off(entry):
        if "loss" in entry and entry["step"] == stop:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        try:
            train.train(run, text, RUN_MODEL, settings, quiet=True, workers=2, on_entry=breaking_off, floor=floor)
        except KeyboardInterrupt:
            loop.resume(run, text, quiet=True)
        yield run


@tool("checkpoint.py, loop.resume, loop._train")
def resume() -> Iterator[str]:
    """An interrupted and resumed run ends bitwise identical to an uninterrupted one, with the same log."""
    with _finished_run() as whole, _finished_run(stop=5) as broken:
        a, b = (checkpoint.load(run, training=True) for run in (whole, broken))
        logs = [[e["loss"] for e in run_folder.read_log(run) if "loss" in e] for run in (whole, broken)]
    steps = [a.step, a.optimizer.step, b.step, b.optimizer.step]
    yield from differ("steps of the run and its optimizer, whole and resumed", steps, RUN["steps"])
    pairs = {"parameters": (a.model.params, b.model.params)}
    pairs |= {f"moments {kind}": (getattr(a.optimizer, kind), getattr(b.optimizer, kind)) for kind in "mv"}
    for what, (x, y) in pairs.items():
        yield from differ(f"{what} that differ after a resume", (x.flat != y.flat).sum(), 0)
    if logs[0] != logs[1]:
        yield f"the resumed run's losses are {logs[1]}, expected {logs[0]}"


@tool("datasets.bits_per_byte, data.validation_rows, evaluate.py")
def evaluation() -> Iterator[str]:
    """Bits per byte count -log2 of each token's probability once, both for documents and for plain text."""
    plain = Tokenizer([])
    config = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=40, vocab_size=257, predict=2)
    model = GPT(config, init(config, 11, 0.3, np.float64))
    documents = [f"{i} Käthe{' abc' * (i % 9)}" for i in range(21)]
    stream = plain.encode(" ".join(documents))
    windows = [stream[i : i + 41] for i in range(0, len(stream) - 1, 40)]
    rows = [np.array([256, *plain.encode(document), 256])[:41] for document in documents]
    for what, separator, pieces in (("documents", data.SEPARATOR, rows), ("plain text", " ", windows)):
        size = sum((ids[1:] < 256).sum() for ids in pieces)  # a token is a byte, or the end of a text
        log_p = [log_softmax(model.logits(ids[None, :-1])[0]) for ids in pieces]
        nats = -sum(x[np.arange(len(x)), ids[1:]].sum() for x, ids in zip(log_p, pieces))
        scored = datasets.bits_per_byte(model, data.tokenize(separator.join(documents), plain))
        yield from differ(f"bits per byte of {what}", scored, nats / math.log(2) / size)
    stories = list(konigsberg.stories(5, 12))
    measured = measure(lambda ids: np.full((*ids.shape, 257), -math.log(257)), plain, stories)
    size = sum(len(story.text.encode()) for story in stories)
    bits = math.log2(257) * (size + 5) / size  # a story's end is scored too
    yield from differ("bits per byte of a uniform model on stories", measured.bits_per_byte, bits)
    floor = sum(konigsberg.code_length(story.text) for story in stories) / size
    yield from differ("the floor of stories", measured.floor, floor)


@tool("train.train, loop._train, step.py, optim.py")
def curve() -> Iterator[str]:
    """A short run starts at a loss of ln V, reduces it, and logs validation loss and floor."""
    text = konigsberg.corpus(30_000, 13)
    valid = data.split_text(text, 0.1)[1]
    with _finished_run(text, floor=konigsberg.floor, steps=40, warmup=5, valid_every=40, save_every=40) as run:
        log, last = run_folder.read_log(run), checkpoint.load(run)
        floor = json.loads((run / "run.json").read_text("utf-8"))["data"]["floor_bits_per_byte"]
    losses = [entry["loss"] for entry in log if "loss" in entry]
    yield from differ("the first loss (expected: ln V)", losses[0], math.log(300), 0.03)
    if not 2 < losses[-1] < losses[0] - 1:
        yield f"the loss after 40 steps is {losses[-1]:.3f}, expected 2 to {losses[0] - 1:.1f}"
    logged = [entry["valid_bits_per_byte"] for entry in log if "valid_bits_per_byte" in entry][-1]
    bits = datasets.bits_per_byte(last.model, data.tokenize(valid, last.tokenizer))
    yield from differ("the validation loss in the log", logged, bits, 1e-6)
    yield from differ("the floor in run.json", floor, konigsberg.floor(valid), 1e-5)
    yield from (f"the run warns: {entry['warning']}" for entry in log if "warning" in entry)


# --------------------------------------------------------------------------------------------------------------
# generation


@tool("generate.sample")
def sampling() -> Iterator[str]:
    """Frequencies of sampled tokens agree with softmax, temperature, top-k and top-p (chi-square test)."""
    logits, draws = np.array([2.0, 1.5, 0.9, 0.0, -0.3, -1.2]), 2000
    for temperature, top_k, top_p in ((1, 0, 1), (0.5, 0, 1), (2, 0, 1), (1, 2, 1), (1, 0, 0.6), (1, 4, 0.8)):
        p = np.exp(logits / temperature)
        p[top_k or 6 :] = 0
        p[1 + int((np.cumsum(p) / p.sum() < top_p).sum()) :] = 0
        p /= p.sum()
        rng = np.random.default_rng(14)
        drawn = [sample(logits[::-1], rng, temperature, top_k, top_p) for _ in range(draws)]
        share = np.bincount(drawn, minlength=6)[::-1] / draws
        if draws * ((share - p) ** 2 / np.maximum(p, 1e-6)).sum() > 40:
            yield f"{temperature=}, {top_k=}, {top_p=}: frequencies {share.round(2)}, expected {p.round(2)}"


@tool("generate.stream")
def generation() -> Iterator[str]:
    """A model built to recite one text generates this text from start to end, in complete characters."""
    plain, text, rng = Tokenizer([]), "aä€b🥨cdefgh", np.random.default_rng(15)
    config = ModelConfig(dim=128, heads=2, kv_heads=1, layers=1, context=8, vocab_size=257, predict=2)
    params = init(config, 0, 0.0, np.float64)
    params["embed"][...] = rng.standard_normal((257, 128))
    around = [256, *plain.encode(text), 256]  # each byte occurs once, so the last token determines the next
    params["heads"][:, around[1:]] = params["embed"][around[:-1]].T
    model = GPT(config, params)
    for prompt in ("", "aä"):
        written = generate(model, plain, prompt, 60, temperature=0)
        if written != text.removeprefix(prompt):
            yield f"after {prompt!r} comes {written!r}, expected {text.removeprefix(prompt)!r}"
    params["heads"][...] = 0
    drawn = [generate(model, plain, "", 60, temperature=1, seed=seed) for seed in (1, 1, 2)]
    if len(set(drawn[0])) < 10 or drawn[0] != drawn[1] or drawn[1] == drawn[2]:
        yield f"a uniform model gives {[text[:9] for text in drawn]} for seeds 1, 1, 2, expected noise, twice the same"


@tool("decoder.Decoder")
def cache() -> Iterator[str]:
    """Tokens fed one by one or in pieces give the same logits as one pass over all tokens."""
    model, tokens = _model(), np.random.default_rng(16).integers(0, TINY.vocab_size, TINY.context)
    full = model.logits(tokens[None])[0]
    for what, ends in (("one by one", range(1, TINY.context + 1)), ("in pieces", (3, 40, TINY.context))):
        decoder = Decoder(model)
        logits = [decoder.feed(tokens[start:end]) for start, end in pairwise([0, *ends])]
        yield from differ(f"logits of tokens fed {what}", logits, full[np.array(ends) - 1])
