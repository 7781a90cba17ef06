"""Settings of a model and of a run: what they refuse, the presets, and their way into a file and back."""

import json
import math

import pytest
from oracles import error_of

from nanoeuler_lib import __version__
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.model import GPT


@pytest.mark.parametrize(
    "name, value",
    [("steps", 0), ("batch", 1.5), ("batch", True), ("rate", math.nan), ("rate", -1), ("beta1", 1), ("clip", -1),
     ("decay", "x"), ("valid_fraction", 0.95), ("seed", -1), ("later_heads", math.inf), ("save_every", 0),
     ("keep_every", -1), ("optimizer", "sgd"), ("optimizer", None), ("optimizer", ["muon"])],
)  # fmt: skip
def test_train_config_refuses(name, value):
    assert error_of(TrainConfig, **{name: value}).startswith(f"{name} is {value!r}, expected")


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"heads": 3}, "dim is 128, expected a multiple of heads (3)"),
        ({"kv_heads": 3}, "heads is 4, expected a multiple of kv_heads (3)"),
        ({"dim": 12}, "head width dim/heads is 3, expected an even number"),
        ({"layers": 0}, "layers is 0, expected a whole number from 1"),
        ({"context": 2.0}, "context is 2.0, expected a whole number"),
        ({"predict": True}, "predict is True"),
        ({"rope_theta": math.nan}, "rope_theta is nan, expected a number from 1 to 1000000000"),
        ({"norm_eps": 0}, "norm_eps is 0, expected a number from 1e-12 to 1"),
    ],
)
def test_model_config_refuses(changes, expected):
    assert expected in error_of(preset, "small", **changes)


def test_presets():
    c = preset("small")
    assert GPT(c).size == 1_053_824
    assert (c.dim, c.heads, c.kv_heads, c.head_dim, c.layers, c.ffn, c.context) == (128, 4, 2, 32, 4, 344, 128)
    assert error_of(preset, "huge") == "preset is 'huge', expected one of small, big, base, large"
    for name in ("small", "big", "base", "large"):
        assert ModelConfig.from_dict(json.loads(json.dumps(preset(name).to_dict()))) == preset(name)
    assert error_of(ModelConfig.from_dict, c.to_dict() | {"depth": 3}) == (
        f"ModelConfig has ['depth'], unknown to nanoeuler {__version__}: expected the newer version that wrote it"
    )
    lacks = {name: value for name, value in c.to_dict().items() if name != "layers"}
    assert error_of(ModelConfig.from_dict, lacks) == "ModelConfig lacks ['layers']: truncated or edited"
    assert "list" in error_of(TrainConfig.from_dict, [1])
