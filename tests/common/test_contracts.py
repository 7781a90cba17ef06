"""What docstrings promise and no module's own tests hold: fingerprints, defaults, messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import datasets, journal
from nanoeuler_lib.training.checkpoint import load_pretrained

# Data.


@settings(max_examples=30)
@given(st.integers(1, 20_000), st.floats(0, 1), st.integers(1, 500), st.integers(0, 9))
def test_a_fingerprint_sees_every_token(length, where, change, seed):
    """Another token anywhere, one more, one fewer, two exchanged: another fingerprint; the dtype is no part of it."""
    ids = np.random.default_rng(seed).integers(0, 500, length)
    at = min(int(where * length), length - 1)
    changed = ids.copy()
    changed[at] += change
    same = datasets.fingerprint(ids)
    assert datasets.fingerprint(ids.astype(np.uint16)) == datasets.fingerprint(ids.astype(np.int32)) == same
    assert datasets.fingerprint(np.stack([ids, ids], axis=1)[:, 0]) == same  # not contiguous
    others = [changed, np.append(ids, 0), ids[:-1], np.delete(ids, at), np.append(ids, ids[at])]
    if ids[at] != ids[0]:
        swapped = ids.copy()
        swapped[[0, at]] = swapped[[at, 0]]
        others.append(swapped)
    assert same not in [datasets.fingerprint(other) for other in others]


@pytest.mark.parametrize(
    "lengths, context, expected",
    [([2], 128, 32), ([33], 128, 32), ([34], 128, 64), ([5, 65, 7], 128, 64), ([66], 128, 96), ([120], 100, 100)],
)
def test_rows_are_a_multiple_of_a_bucket_and_fit_the_context(lengths, context, expected):
    examples = [text_examples.Encoded(np.zeros(n, int), np.ones(n, bool)) for n in lengths]
    assert text_examples.row_length(examples, context) == expected


# Errors.


def test_an_error_shows_its_text_alone_in_a_notebook():
    assert NanoEulerError("a\nb")._render_traceback_() == ["a", "b"]
    assert issubclass(NanoEulerError, ValueError)


# Defaults.


def test_what_generation_does_when_nothing_is_said():
    """The defaults of the docstrings: temperature 0.8 and seed 0 for text, 1 for a draw, nothing left out."""
    from nanoeuler_lib.generation.generate import dense, filtered_probs, generate, pick, sample, stream

    logits = np.random.default_rng(0).standard_normal(9)
    full = np.exp(logits) / np.exp(logits).sum()
    for arguments in ((), (1.0,), (1.0, 0), (1.0, 0, 1.0), (1.0, 0, 1.0, 0.0)):
        tokens, probs = filtered_probs(logits, *arguments)
        assert np.allclose(dense(tokens, probs, 9), full) and len(tokens) == 9
        draws = [sample(logits, np.random.default_rng(seed), *arguments) for seed in range(30)]
        assert draws == [pick(tokens, probs, np.random.default_rng(seed)) for seed in range(30)]
    model, tokenizer = load_pretrained()
    said = dict(tokens=200, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, seed=0, propose=0)
    assert "".join(stream(model, tokenizer, "On Monday ")) == "".join(stream(model, tokenizer, "On Monday ", **said))
    assert generate(model, tokenizer, "On Monday ") == generate(model, tokenizer, "On Monday ", **said)


# What is shown.


def test_progress_is_shown_where_it_is_asked_for(capfd):
    for progress, shown in ((False, False), (True, True)):
        Tokenizer.train(["ab ab abab", "ab"], 259, progress=progress)
        printed = capfd.readouterr().err
        assert ("counting words" in printed) == ("merging" in printed) == shown
        if shown:
            assert "2/2" in printed  # both texts
    Tokenizer.train("ab ab", 258)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("large", [2**60, -(2**60), 10**5000], ids=["2^60", "-2^60", "10^5000"])
def test_a_message_shows_values_of_any_size(large):
    """Thousands of digits have no text: Python refuses to write them."""
    assert short(large) == "an integer past 2^60" and short([[1], large]) == "[[1], an integer past 2^60]"
    assert short(2**60 - 1) == str(2**60 - 1) and short(True) == "True" and short(1e300) == "1e+300"
    assert short("a" * 100) == "'" + "a" * 12 + "..." + "a" * 13 + "'"


def test_did_you_mean_asks_for_seven_letters_of_ten():
    known = iter(["large", "abcdefghij", "small"])
    assert did_you_mean("smal", known) == ", did you mean small?"
    for word, hint in (("abcdefgxyz", ", did you mean abcdefghij?"), ("abcdefwxyz", ""), ("", "")):
        assert did_you_mean(word, ["abcdefghij"]) == hint


@pytest.mark.parametrize("seconds, said", [(89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")])
def test_times_as_people_say_them(seconds, said):
    assert journal.duration(seconds) == said
