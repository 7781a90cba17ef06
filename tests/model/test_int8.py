"""Weights in a byte each: how far they may be off, and that a large output spoils no other."""

import numpy as np

from nanoeuler_lib.config import GPT2Config, ModelConfig
from nanoeuler_lib.model import GPT, GPT2, int8, parameter_shapes

SHAPE = ModelConfig(dim=12, heads=3, kv_heads=1, layers=2, context=7, vocab_size=31, predict=2, ffn=5)


def test_each_weight_is_off_by_half_a_step_of_its_output_at_most():
    params = GPT(SHAPE, seed=3).params
    rng = np.random.default_rng(0)
    for p in params.values():
        p[...] = rng.standard_normal(p.shape)
    params["layers.1.qkv"][:, 4] *= 1000  # one output
    params["embed"][9] *= 1000  # one token
    params["layers.0.out"][:, 2] = 0
    stored = int8.quantized(params)
    again = int8.restored(stored)
    assert again.keys() == params.keys()
    for name, p in params.items():
        if p.ndim == 1:
            assert again[name].dtype == np.float32 and np.array_equal(again[name], p)
            continue
        step = np.abs(p).max(axis=1 if name == "embed" else 0, keepdims=True) / 127
        assert stored[name].dtype == np.int8 and again[name].dtype == np.float32
        assert (np.abs(again[name] - p) <= 0.5001 * step).all(), name
        assert np.abs(stored[name].astype(int)).max() == 127
    assert not again["layers.0.out"][:, 2].any()


def test_the_scales_have_the_shapes_that_are_announced():
    gpt2 = GPT2Config(dim=6, heads=2, layers=1, context=5, vocab_size=11)
    for model in (GPT(SHAPE, seed=0), GPT2(gpt2, seed=0)):
        shapes = parameter_shapes(model.config)
        stored = {name: p.shape for name, p in int8.quantized(model.params).items()}
        assert stored == shapes | int8.scale_shapes(shapes)
