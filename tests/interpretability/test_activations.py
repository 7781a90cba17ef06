"""The residual stream: what the blocks make of it, and of what it is made."""

import numpy as np
import pytest

from nanoeuler_book.interpretability.activations import residuals, row_of, streams
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.training.checkpoint import load_pretrained


def test_the_stream_runs_from_the_embedding_to_what_the_heads_read():
    model = GPT(ModelConfig(dim=24, heads=3, kv_heads=1, layers=3, context=16, vocab_size=50), seed=3)
    ids = np.random.default_rng(0).integers(0, 50, 11)
    stream = residuals(model, ids)
    assert stream.shape == (4, 11, 24) and np.array_equal(stream[0], model.params["embed"][ids])
    last, _ = reference.rmsnorm_forward(stream[-1], model.params["norm_final"], model.config.norm_eps)
    assert np.allclose(last, model.hidden(ids[None])[0], atol=1e-5)
    assert np.abs(np.diff(stream, axis=0)).max(axis=(1, 2)).min() > 1e-3
    assert np.allclose(residuals(model, np.stack([ids, ids[::-1]]))[:, 0], stream, atol=1e-6)


def test_rows_of_all_lengths_read_as_alone():
    model, tokenizer = load_pretrained()
    rows = [row_of(text, tokenizer) for text in ("Käthe had borrowed the hen from Grete.", "Grete", "")]
    for row, stream in zip(rows, streams(model, rows, at_once=2), strict=True):
        assert np.allclose(stream, residuals(model, row), atol=1e-4)
    with pytest.raises(NanoEulerError, match="a row must have at most 128 tokens, the context, got 129"):
        streams(model, [np.zeros(129, int)])
