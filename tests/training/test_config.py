"""Settings of a model and of a run: what they refuse, the presets, and their way into a file and back."""

import json
import math

import pytest
from oracles import error_of

from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.model import GPT


def test_every_setting_is_kept_and_comes_back():
    model = ModelConfig(8, 2, 1, 3, 9, 10, predict=2, ffn=7, rope_theta=5.0, norm_eps=0.5)
    config = TrainConfig(3, 4, 5, 0.5, 0.25, 6, 0.5, 0.6, 0.01, 0.2, 3.0, 0.75, 9, 0.3, 7, 8, 11, "muon")
    for one in (model, config, *map(preset, ("small", "big", "base", "large"))):
        values = json.loads(json.dumps(one.to_dict()))
        assert type(one).from_dict(values) == one
    for kind in (ModelConfig, TrainConfig):
        assert error_of(kind.from_dict, []) == f"{kind.__name__} must be an object with its fields, got list"
    assert model.head_dim == 4 and model.qkv_dim == 16
    for dim, ffn in ((2, 8), (6, 16), (24, 64), (128, 344), (768, 2048)):
        assert ModelConfig(dim, 1, 1, 1, 4, 4).ffn == ffn  # 8D/3 rounded up to a multiple of 8


def test_presets():
    c = preset("small")
    assert GPT(c).size == 1_053_824
    assert (c.dim, c.heads, c.kv_heads, c.head_dim, c.layers, c.ffn, c.context) == (128, 4, 2, 32, 4, 344, 128)
    assert error_of(preset, "huge") == "preset must be one of small, big, base, large, got 'huge'"


SMALL = dict(dim=2, heads=1, kv_heads=1, layers=1, context=1, vocab_size=1, predict=1, ffn=1)
LIMITS = {  # what a model is made of is counted from 1, a rate from 0
    ModelConfig: (SMALL, 1, dict(zip(SMALL, (2**20, 2**12, 2**12, 2**12, 2**20, 2**24, 2**8, 2**24)))),
    TrainConfig: (
        {},
        0,
        dict(rate=10, rate_end=1, adam_eps=1, decay=10, clip=1e9, later_heads=100, valid_fraction=0.9),
    ),
}


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in LIMITS for name in LIMITS[kind][2]])
def test_settings_have_limits(kind, name):
    good, low, limits = LIMITS[kind]
    high = limits[name]
    beyond = [-1 if name == "ffn" else 0, high + 1] if low else [low - 1e-6, high * 1.000001, math.nan]
    if name not in ("heads", "kv_heads", "dim"):
        kind(**good | {name: high}), kind(**good | {name: low})
    for value in (*beyond, True, "7"):
        message = error_of(kind, **good | {name: value})
        assert message.startswith(f"{name} must be a") and message.endswith(f", got {value!r}")


@pytest.mark.parametrize("changes, said", [
    (dict(dim=9), "dim must be a multiple of heads (2), got 9"),
    (dict(dim=10), "head width dim/heads must be even, because RoPE rotates pairs of numbers, got 5"),
    (dict(dim=12, heads=3, kv_heads=2), "heads must be a multiple of kv_heads (2), got 3"),
    (dict(context=2.0), "context must be an integer from 1 to 1048576, got 2.0"),
    (dict(rope_theta=math.nan), "rope_theta must be a number from 1 to 1000000000, got nan"),
    (dict(norm_eps=0), "norm_eps must be a number from 1e-12 to 1, got 0"),
])  # fmt: skip
def test_model_config_refuses(changes, said):
    assert (
        error_of(ModelConfig, **dict(dim=8, heads=2, kv_heads=2, layers=1, context=4, vocab_size=4) | changes) == said
    )


@pytest.mark.parametrize("name", ["sgd", None, ["muon"]])
def test_an_optimizer_that_is_none(name):
    assert error_of(TrainConfig, optimizer=name) == f"optimizer must be one of adamw, muon, got {name!r}"


def test_whole_numbers_and_momenta_have_limits():
    for name in ("beta1", "beta2"):
        TrainConfig(**{name: 0}), TrainConfig(**{name: 0.999})
        assert error_of(TrainConfig, **{name: 1}).startswith(f"{name} must be below 1, got 1")
    zeros, ones = "warmup seed sample_every keep_every", "steps batch accumulate valid_every save_every"
    for name, low in (dict.fromkeys(zeros.split(), 0) | dict.fromkeys(ones.split(), 1)).items():
        assert getattr(TrainConfig(**{name: low}), name) == low
        for bad in (low - 1, 2**53, True, 1.5):
            said = f"{name} must be an integer from {low} to 2^53 - 1, got {bad!r}"
            assert error_of(TrainConfig, **{name: bad}) == said
