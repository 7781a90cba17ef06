"""Measuring: n-gram models against counting by hand, `measure` against its definition, the figures that are shared."""

from dataclasses import replace
from fractions import Fraction
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from oracles import error_of

import konigsberg
from nanoeuler_book import evaluate, figures, town
from nanoeuler_book.ngram import Ngrams
from nanoeuler_lib.model import GPT, init
from nanoeuler_lib.model.gradcheck import CHECK_CONFIG, check_batch
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained

matplotlib.use("agg")


def by_definition(text: list[int], context: tuple, token: int, V: int, strength: Fraction) -> Fraction:
    shorter = by_definition(text, context[1:], token, V, strength) if context else Fraction(1, V)
    k = len(context)
    after = [text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context]
    rest = strength * len(set(after))
    return (after.count(token) + rest * shorter) / (len(after) + rest) if after else shorter


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("strength", [Fraction(1), Fraction(1, 7)])
def test_ngrams_are_the_definition(order, strength):
    """What ends the text was seen and followed by nothing: there a shorter context decides."""
    V, rng = 5, np.random.default_rng(order)
    text = rng.integers(0, V - 1, 40)  # the last token of the vocabulary is never seen
    model = Ngrams(text, V, order, float(strength))
    tokens, targets = rng.integers(0, V, (3, 7)), rng.integers(0, V, (3, 7))
    tokens[0] = text[-7:]
    p, chosen = model.probabilities(tokens), model.probability(tokens, targets)
    assert np.allclose(p.sum(axis=-1), 1, atol=1e-12)
    assert np.allclose(chosen, np.take_along_axis(p, targets[..., None], -1)[..., 0], atol=1e-15)
    for b, t, w in np.ndindex(p.shape):
        context = tuple(tokens[b, max(0, t + 2 - order) : t + 1].tolist()) if order > 1 else ()
        exact = by_definition(text.tolist(), context, w, V, strength)
        assert p[b, t, w] == pytest.approx(float(exact), rel=1e-12)


def test_a_lower_order_of_a_model_is_the_model_of_that_order():
    rng = np.random.default_rng(0)
    text, tokens = rng.integers(0, 6, 200), rng.integers(0, 6, (2, 9))
    for order in (1, 2, 3):
        alone = Ngrams(text, 6, order).probabilities(tokens)
        assert np.array_equal(Ngrams(text, 6, 4).probabilities(tokens, order), alone)
    assert np.allclose(Ngrams(text, 6, 1).probabilities(tokens, order=0), 1 / 6), "all tokens are alike"


def test_every_number_of_a_measurement():
    """Rows of end-of-text, story, end-of-text, sixteen at a time; the truth of each token, 0 bits for a story's end."""
    _, tokenizer = load_pretrained()
    stories, asked = list(konigsberg.stories(19, seed=8)), []
    end, V = tokenizer.special_tokens[END_OF_TEXT], tokenizer.vocab_size
    scores = np.random.default_rng(0).standard_normal((V, V))

    def model(tokens):
        asked.append(tokens.copy())
        return scores[tokens]

    found = evaluate.measure(model, tokenizer, iter(stories))
    texts = [tokenizer.encode(story.text).astype(np.int64) for story in stories]
    time = 1 + max(map(len, texts))
    assert [tokens.shape for tokens in asked] == [(16, time), (3, time)]
    evaluate.measure(model, tokenizer, stories, 2)
    assert [len(tokens) for tokens in asked[2:]] == [2] * 9 + [1]
    for row, ids in zip(np.concatenate(asked[:2]), texts, strict=True):
        assert row.dtype == np.int64
        assert row.tolist() == [end, *ids, *[end] * (time - 1 - len(ids))]
    before = np.concatenate([[end, *ids] for ids in texts])
    after = np.concatenate([[*ids, end] for ids in texts])
    assert found.nats.dtype == np.float64 and np.array_equal(found.nats, -scores[before, after])
    assert np.array_equal(found.right, scores[before].argmax(axis=1) == after) and found.right.any()
    truths = [
        konigsberg.token_truth(s.text, tokenizer.token_lengths[ids]) for s, ids in zip(stories, texts, strict=True)
    ]
    costs = [town.token_costs(story.text, tokenizer) for story in stories]
    assert np.array_equal(found.bits, np.concatenate([[*bits, 0.0] for bits in costs]))
    assert np.array_equal(found.tag, np.concatenate([[*truth.tag, konigsberg.GRAMMAR] for truth in truths]))
    assert np.array_equal(found.words, np.concatenate([[*truth.words, -1] for truth in truths]))
    assert found.bytes == sum(len(story.text.encode()) for story in stories)
    assert found.floor == pytest.approx(konigsberg.floor(story.text for story in stories))


def test_accuracy_is_over_a_tag_beyond_a_distance():
    found = evaluate.Measured(
        nats=np.log([2.0, 4.0, 8.0, 16.0]), right=np.array([True, False, False, True]),
        bits=np.array([1.0, 2.0, 0.0, 0.0]), tag=np.array([2, 2, 2, 0]), words=np.array([0, 1, 5, -1]), bytes=4,
    )  # fmt: skip
    assert found.bits_per_byte == pytest.approx(10 / 4) and found.floor == 3 / 4
    for given, expected in (((2, -1), 1 / 3), ((2,), 1 / 3), ((2, 0), 0), ((2, 1), 0), ((2, 4), 0), ((0,), 1)):
        assert found.accuracy(*given) == pytest.approx(expected)
    assert np.isnan([found.accuracy(*given) for given in ((0, 0), (2, 5), (1,))]).all()
    assert all(type(x) is float for x in (found.accuracy(2), found.bits_per_byte, found.floor))


def test_measure_takes_a_story_that_just_fits():
    """A row has one place more than a story has tokens: a context of that length takes it, a shorter one does not."""
    _, tokenizer = load_pretrained()
    stories = sorted(konigsberg.stories(6, seed=3), key=lambda s: len(tokenizer.encode(s.text)))
    longest = len(tokenizer.encode(stories[-1].text))
    of_context = lambda n: GPT(replace(CHECK_CONFIG, context=n, vocab_size=tokenizer.vocab_size))
    for context, count in ((longest + 1, 6), (longest, 5)):
        found = evaluate.measure(of_context(context), tokenizer, stories)
        assert found.bytes == sum(len(story.text.encode()) for story in stories[:count])
    for model, given, fewer in ((lambda tokens: None, [], "inf"), (of_context(7), stories[:1], "7")):
        message = error_of(evaluate.measure, model, tokenizer, given)
        assert message == f"stories must include one of fewer than {fewer} tokens, got none"


def test_log_probabilities_are_those_of_head_0_and_do_not_overflow():
    model = GPT(CHECK_CONFIG, init(CHECK_CONFIG, 0, 0.3, np.float64))
    tokens = check_batch(CHECK_CONFIG, 2, 7, 1)[0]
    logits = model.logits(tokens).copy()
    found = evaluate.log_probabilities(model, tokens)
    assert np.allclose(found, logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), atol=1e-12)
    with patch.object(GPT, "logits", lambda self, tokens: np.array([[[1000.0, 0.0], [-1000.0, -1000.0]]])):
        assert np.allclose(evaluate.log_probabilities(model, tokens), [[[0, -1000], [-np.log(2)] * 2]])


def test_surprise_text_marks_tokens():
    text, lengths = "Käthe ran. She won.", [6, 4, 1, 4, 5]
    values, underlined = np.array([0.2, 3.4, 0.0, 12.0, 0.94, 9.9]), np.array([0, 1, 0, 0, 1, 1], bool)
    fig, (ax, other) = plt.subplots(2)
    figures.surprise_text(ax, text, lengths, values, underlined, columns=11)
    letters = [t for t in ax.texts if t.get_family() == ["monospace"]]
    assert "".join(t.get_text() for t in letters) == text
    assert [t.get_text() for t in ax.texts if t not in letters] == ["3", "12"]
    assert len(ax.collections) == 2  # underlines: one for each marked token that is drawn
    shades = [sum(bar.get_facecolor()[:3]) for bar in ax.patches]
    assert np.argsort(shades).tolist()[:2] == [3, 1]
    figures.surprise_text(other, "It ran.\nDone", [7, 1, 4], np.array([2.0, 3.0, 4.0]), np.zeros(3, bool))
    numbers = {t.get_text(): t.get_position() for t in other.texts if t.get_family() != ["monospace"]}
    assert {text: np.floor(at).tolist() for text, at in numbers.items()} == {"2": [6, 0], "3": [7, 0], "4": [3, 1]}
    assert [(bar.get_x(), bar.get_y(), bar.get_width()) for bar in other.patches] == [(0, 0, 7), (7, 0, 1), (0, 1, 4)]
    plt.close(fig)


def test_ladder_draws_every_row():
    names = "name", "bits_per_byte", "fact_accuracy", "fact_accuracy_beyond_10_words"
    rows = [dict(zip(names, row)) for row in (("low", 3.0, 0.1, 0.05), ("high", 1.0, 0.9, 0.45))]
    rows[-1]["goal"] = True
    fig = figures.ladder(rows, 0.5)
    above, below = fig.axes
    assert np.allclose(above.collections[0].get_offsets(), [[2.5, 0], [0.5, 1]])
    assert [label.get_text() for label in above.get_yticklabels()] == ["low", "high ★"]
    assert np.allclose(below.lines[1].get_xdata(), [5, 45])
    plt.close(fig)


FAULTS = {
    None: [
        "Paris.", "1. Eggs\n2. Eggs and milk\n3. Eggs and milk and flour",
        "Paris ### response",  # a heading of its own
        "no no no", "It is red and it is red and it is red and it is blue",
        " ".join(["a b c d e f g h i j k l m"] * 4),  # thirteen words
        "I do not know it. So. I do not know it. And I do not know it.",
        "a a b b c c d d",  # three repeats, none after another
        "- it is good\n- bad\n- it is good\n- worse\n- it is good",  # four words with the dash: below five
    ],
    "empty": [" \n\t", ""],
    "marker": ["Paris.\n\n### Instruction:\nAnd", "<|user|> Paris"],
    "loop": [
        "no no no no", "It is red and it is red and it is red and it is red and",
        " ".join(["a b c d e f g h i j k l"] * 4),  # twelve
        "I do not know it. So. I do not know it. And? I do not know it.",
        "I do not know it. So. i do Not know it. And? I do not know it.",
        "red apples are good raw\nno\nred apples are good raw\nyes\nred apples are good raw",
    ],
}  # fmt: skip


@pytest.mark.parametrize("expected, reply", [(fault, reply) for fault in FAULTS for reply in FAULTS[fault]])
def test_faults_of_replies(reply, expected):
    assert evaluate.fault(reply, ended=True) == expected
    assert evaluate.fault(reply, ended=False) == "unended"
