"""Chapter 32: its checks accept what is right and reject wrong answers, each of them named."""

import json
import math
import re
from collections import Counter

import numpy as np
from chapters import ROOT, gap_tests

from nanoeuler_book import evaluate
from nanoeuler_book.checks import verdict
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import parameter_shapes

NOTEBOOK = "32_116_million", "PERIOD", "SENTENCE", "TIMES", "COPIES"


def flops_of(factor=6, embed=False, causal=True, heads="heads", layers=True, outputs=None):
    """Flops of a step with something changed."""

    def count(config, batch, time):
        shapes = parameter_shapes(config)
        keep = {n: s for n, s in shapes.items() if len(s) == 2 and (embed or n != "embed")}
        weights = sum(math.prod(s) for s in keep.values())
        if outputs is not None:
            weights -= config.dim * config.vocab_size * (config.predict - outputs)
        places = time + 1 if causal else 2 * time
        attention = (config.layers if layers else 1) * getattr(config, heads) * config.head_dim * places
        return factor * batch * time * (weights + attention)

    return count


def flops_by_hand(config, batch, time):
    """Another right answer: from the numbers of the configuration."""
    D, F, C = config.dim, config.ffn, config.head_dim
    weights = config.layers * (D * config.qkv_dim + D * D + 3 * D * F) + D * config.predict * config.vocab_size
    pairs = batch * config.layers * config.heads * time * (time + 1) // 2
    return 6 * batch * time * weights + 12 * pairs * C


WRONG_FLOPS = {
    "the embedding multiplies": flops_of(embed=True),
    "forward only": flops_of(factor=2),
    "later positions as well": flops_of(causal=False),
    "key heads in attention": flops_of(heads="kv_heads"),
    "one prediction head": flops_of(outputs=1),
    "gains as well": lambda c, b, t: flops_of()(c, b, t) + 6 * b * t * (2 * c.layers + 1) * c.dim,
}  # fmt: skip


def tail(k, n, p):
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def bound(chance=tail, of=lambda alpha: alpha, steps=60):
    """An upper bound with something changed."""

    def find(k, n, alpha=0.05):
        low, high = 0.0, 1.0
        if k == n:
            return high
        for _ in range(steps):
            middle = (low + high) / 2
            low, high = (middle, high) if chance(k, n, middle) >= of(alpha) else (low, middle)
        return low

    return find


def running(k, n, p):
    """Right but for (1 - p)**n where float64 has no such small number."""
    term = total = (1 - p) ** n
    for i in range(k):
        term *= (n - i) / (i + 1) * p / (1 - p)
        total += term
    return total


WRONG_BOUNDS = {
    "fewer than k": bound(lambda k, n, p: tail(k - 1, n, p)),
    "two-sided": bound(of=lambda alpha: alpha / 2),
    "the rule of three": lambda k, n, alpha=0.05: min(1.0, (k + 3) / n),
    "the normal interval": lambda k, n, alpha=0.05: min(1.0, k / n + 1.645 * math.sqrt(k / n * (1 - k / n) / n)),
    "all of them": lambda k, n, alpha=0.05: bound()(k, n, alpha) if k < n else 1 - alpha ** (1 / n),
    "a running product": bound(running),
}  # fmt: skip


def runs(words, most=12, times=4):
    return any(
        words[i : i + times * period] == times * words[i : i + period] and len(words) >= i + times * period
        for period in range(1, most + 1) for i in range(len(words))
    )  # fmt: skip


def looping(lower=True, split=r"(?<=[.!?])\s+|\n", near=False, cycles=True):
    """Whether a text loops, with something changed."""

    def loops(text):
        text = text.lower() if lower else text
        if cycles and runs(text.split(), 12, 4):
            return True
        parts = [" ".join(part.split()) for part in re.split(split, text)]
        parts = [part for part in parts if len(part.split()) >= 5]
        if near:
            return any(parts[i : i + 3] == 3 * [parts[i]] for i in range(len(parts) - 2))
        return max(Counter(parts).values(), default=0) >= 3

    return loops


def loops_by_letters(text):
    """Another right answer: sentences letter by letter, periods by a pattern on numbered words."""
    words, sentence, sentences = text.lower().split(), "", Counter()
    for letter, behind in zip(text.lower(), text.lower()[1:] + "\n"):
        sentence += letter
        if letter == "\n" or (letter in ".!?" and behind.isspace()):
            sentences[tuple(sentence.split())] += 1
            sentence = ""
    sentences[tuple(sentence.split())] += 1
    known = {word: chr(256 + i) for i, word in enumerate(dict.fromkeys(words))}
    line = "".join(known[word] for word in words)
    return bool(re.search(r"(.{1,12})\1{3}", line)) or any(n > 2 and len(s) > 4 for s, n in sentences.items())


WRONG_LOOPS = {
    "capitals count": looping(lower=False),
    "full stops anywhere": looping(split=r"[.!?]|\n"),
    "copies side by side": looping(near=True),
    "at the end alone": lambda text: looping(cycles=False)(text) or any(
        (w := text.lower().split())[-4 * p :] == 4 * w[-p:] and len(w) >= 4 * p for p in range(1, 13)),
    "a word often": lambda text: max(Counter(text.lower().split()).values(), default=0) >= 4,
    "sentences end behind commas": looping(split=r"(?<=[.!?,])\s+|\n"),
    **{name: lambda text, cut=cut: runs(cut(text.lower())) or looping(cycles=False)(text) for name, cut in {
    }.items()},
}  # fmt: skip

GAPS = {
    "check_step_flops": ([flops_of(), flops_by_hand], WRONG_FLOPS),
    "check_upper": ([bound()], WRONG_BOUNDS),
    "check_loops": ([looping(), loops_by_letters], WRONG_LOOPS),
}
test_right_gaps, test_wrong_gaps = gap_tests(GAPS)


# ---- What the chapter stands on


def test_the_stored_run_is_one_run():
    """Steps, passes and interruption in the file belong together."""
    stored = json.loads((ROOT / "data/results/ch32.json").read_text())
    run = next(row for row in stored["rows"] if row["what"] == "run" and row["run"] == "base")
    train = run["about"]["train"]
    assert run["curve"][-1][0] == train["steps"] == run["valid"][-1]["step"]
    steps = [step for step, _ in run["curve"]]
    assert steps == sorted(set(steps)) and max(np.diff(steps)) == 22  # no step twice, none missing
    for row in stored["rows"]:
        if row["what"] == "replies":
            assert sum(row["faults"].values()) == row["count"] == 100


def test_a_loop_is_what_the_library_calls_one(chapter):
    names = "PERIOD", "TIMES", "SENTENCE", "COPIES"
    assert [getattr(chapter, name) for name in names] == [getattr(evaluate, name) for name in names]


def test_a_miniature_reads_again_what_it_has_read(chapter, monkeypatch):
    c, seen = chapter, []
    names = c.miniature.__globals__
    small = ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=16, vocab_size=512, predict=1)
    names |= dict(PASSES=3, SOME=8, tokens_512=c.load_pretrained()[1], MINI=small)
    told = c.GPT.loss_and_gradients
    monkeypatch.setattr(c.GPT, "loss_and_gradients", lambda m, x, y: seen.append(x.copy()) or told(m, x, y))
    for again, different in ((True, 64), (False, 192)):
        seen.clear()
        c.miniature(1, again)
        rows = np.concatenate(seen)
        assert len(rows) == 192 and abs(len(np.unique(rows, axis=0)) - different) <= 2


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def times_by_borders(step, rows, windows):
    """Another right answer: how much of the step lies in each pass."""
    low, high = step * rows, (step + 1) * rows
    cuts = {t: min(high, t * windows) - max(low, (t - 1) * windows) for t in range(1, high // windows + 2)}
    return {t: n for t, n in cuts.items() if n > 0}


def draws_one_by_one(p, alpha):
    n = 1
    while (1 - p) ** n > alpha:
        n += 1
    return n


def test_other_right_answers(chapter):
    c = chapter
    assert verdict(c.check_times, times_by_borders) == "right"
    assert verdict(c.check_draws, draws_one_by_one) == "right"
    assert verdict(c.check_draws, lambda p, alpha: -math.floor(-math.log2(alpha) / math.log2(1 - p))) == "right"
    assert verdict(c.check_size, lambda s, r, per: [(s * r / 6 / per) ** 0.5, (s * r / 6 * per) ** 0.5]) == "right"

    def by_solving(sampled, whole):
        weights = np.linalg.solve([[whole[0], whole[1]], [1, 1]], [whole[2], 1])
        return float(weights @ sampled[:2])

    assert verdict(c.check_together, by_solving) == "right"
