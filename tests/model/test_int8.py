"""Weights in a byte each: how far they may be off, and that a large output spoils no other."""

import numpy as np
import pytest

from nanoeuler_lib.config import GPT2Config, ModelConfig
from nanoeuler_lib.model import GPT, int8, parameter_shapes

SHAPE = ModelConfig(dim=12, heads=3, kv_heads=1, layers=2, context=7, vocab_size=31, predict=2, ffn=5)


@pytest.mark.parametrize("config", [SHAPE, GPT2Config(dim=6, heads=2, layers=1, context=5, vocab_size=11)])
def test_each_weight_is_off_by_half_a_step_of_its_output_at_most(config):
    params = GPT(config, seed=3).params
    params.flat[...] = np.random.default_rng(0).standard_normal(params.flat.size)
    params["layers.0.qkv"][:, 4] *= 1000  # one output
    params["embed"][9] *= 1000  # one token
    params["layers.0.out"][:, 2] = 0
    stored = int8.quantized(params)
    again, shapes = int8.restored(stored), parameter_shapes(config)
    assert {name: p.shape for name, p in stored.items()} == shapes | int8.scale_shapes(shapes)
    assert again.keys() == params.keys() and not again["layers.0.out"][:, 2].any()
    for name, p in params.items():
        assert again[name].dtype == np.float32
        if p.ndim == 1:
            assert np.array_equal(again[name], p)
            continue
        step = np.abs(p).max(axis=1 if name == "embed" else 0, keepdims=True) / 127
        assert (np.abs(again[name] - p) <= 0.5001 * step).all(), name
        assert stored[name].dtype == np.int8 and np.abs(stored[name].astype(int)).max() == 127
