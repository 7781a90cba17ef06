"""Test the choice of a device: names, precisions, messages, the engine's arguments, and what a run records.

No GPU is needed: stand-ins replace CuPy and the engine's classes, which `test_engine.py` runs.
"""

import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from oracles import RUN_MODEL, changed, error_of

from nanoeuler_lib import cuda, engine, model
from nanoeuler_lib.engine import device, flash
from nanoeuler_lib.engine.device import CPU, Device, choose, chosen_before
from nanoeuler_lib.model import step

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = flash.Card(75, 64 << 10), flash.Card(80, 163 << 10)
FIT = changed(RUN_MODEL, dim=64, heads=2, kv_heads=1, vocab_size=264, ffn=176)  # a shape that the kernels accept
NO_FIT = changed(FIT, dim=32)


@pytest.fixture
def cards(monkeypatch):
    """Return a function that pretends a number of GPUs, and records which GPUs were selected and queried."""
    used = []

    def make(count, card=NEW, version="14.2.0"):
        def number():
            if count is None:
                raise RuntimeError("no driver")
            return count

        chosen = SimpleNamespace(
            runtime=SimpleNamespace(getDeviceCount=number),
            is_available=lambda: bool(count),
            Device=lambda n: SimpleNamespace(use=lambda: used.append(n)),
        )
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=chosen, __version__=version))
        monkeypatch.delenv("NANOEULER_DEVICE", raising=False)
        asked = []
        monkeypatch.setattr(flash, "card", lambda where: asked.append(where) or card)
        return SimpleNamespace(used=used, asked=asked)

    return make


def test_how_many_cards_there_are(cards, monkeypatch):
    cards(3)
    for value, count in (("cpu", 0), ("gpu", 3)):
        monkeypatch.setenv("NANOEULER_DEVICE", value)
        assert device._cards() == count
    cards(None)
    assert device._cards() == 0, "without a driver there must be no GPU"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert device._cards() == 0, "without CuPy there must be no GPU"


@pytest.mark.parametrize("package", ["cupy-cuda12x", "cupy-cuda13x"])
def test_an_old_cupy_is_refused_where_there_is_a_gpu(cards, monkeypatch, package):
    """Compare the requirement in the message with pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (wanted,) = extras[package.removeprefix("cupy-").removesuffix("x")]
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"cupy": [package]})
    ways = choose, device._cards, cuda.device.__wrapped__
    for old in ("14.0.1", "13.6.0"):
        cards(1, version=old)
        said = f"CuPy must be 14.2 or newer, got {old}: pip install '{wanted}', then restart Python"
        assert [error_of(way) for way in ways] == [said] * 3
        cards(0, version=old)
        assert [way() for way in ways] == [CPU, 0, "cpu"]
    for new in ("14.2.0", "14.10.0", "15.0.0rc1"):
        cards(1, version=new)
        assert [way() for way in ways] == [Device("gpu", "bfloat16"), 1, "gpu"]


def test_which_device_a_name_is(cards):
    none = cards(0)
    assert choose() == choose("auto") == choose("cpu") == choose("auto", "fp32") == choose("cpu", "float32") == CPU
    assert CPU == Device("cpu", None) and none.asked == []
    assert choose("checked") == Device("checked", "bfloat16") and none.asked == ["cpu"]
    assert choose("checked", "f32") == Device("checked", "float32")
    two = cards(2)
    assert choose("cpu") == CPU and two.asked == []
    assert choose() == choose("auto") == choose("gpu") == choose("cuda") == Device("gpu", "bfloat16")
    assert two.used == [] and set(two.asked) == {"gpu"}, "the GPU that CuPy has selected must be used"
    assert choose("gpu:1") == choose("cuda:1", "bf16") == Device("gpu", "bfloat16") and two.used == [1, 1]
    assert choose("gpu:0", "tf32") == Device("gpu", "tf32") and two.used == [1, 1, 0]
    assert error_of(choose, "gpu:2") == "--device gpu:2: the number must be below 2, the number of GPUs here"
    cards(1, OLD)
    assert choose("gpu") == choose("gpu", "fp16") == Device("gpu", "float16"), "it has no tensor cores for bfloat16"
    assert choose("gpu", "fp32") == Device("gpu", "float32")
    cards(1, flash.Card(70, 96 << 10))
    assert choose("gpu") == Device("gpu", "float32")


def test_which_device_a_model_gets(cards):
    """Place a model that the kernels do not accept on the CPU, unless a GPU is requested."""
    cards(1)
    assert choose("auto", None, FIT) == choose("gpu", None, FIT) == Device("gpu", "bfloat16")
    assert choose("auto", None, NO_FIT) == choose("auto", "float32", NO_FIT) == CPU
    for name in ("gpu", "checked"):
        assert error_of(choose, name, None, NO_FIT) == (
            "head width dim/heads must be 32, 64 or 128 on a GPU, got 16: or take --device cpu"
        )
    with patch.object(device.program, "check_config") as check:
        choose("gpu", "tf32", FIT)
        check.assert_called_once_with(FIT, "tf32", NEW)
    cards(1, OLD)
    assert error_of(choose, "gpu", "tf32", FIT) == (
        "tf32 needs compute capability 8.0 or later, this GPU has 7.5: take float32"
    )


KNOWN = "--device must be one of auto, cpu, gpu, checked, gpu:1"
NUMBERS = "--precision must be one of float32, tf32, bfloat16, float16"
REFUSED = {
    ("tpu", None): f"{KNOWN}, got 'tpu'",
    ("chec", None): f"{KNOWN}, got 'chec', did you mean checked?",
    ("gpu:x", None): f"{KNOWN}, got 'gpu:x', did you mean gpu?",
    ("cpu:1", None): f"{KNOWN}, got 'cpu:1', did you mean cpu?",
    ("cudacuda", None): f"{KNOWN}, got 'gpucuda'",
    ("gpu", None): "--device gpu requires a CUDA device, but CuPy finds none: take --device cpu",
    ("cpu", "bloat16"): f"{NUMBERS}, got 'bloat16', did you mean bfloat16?",
    ("cpu", "float16"): "--precision must be float32 on the CPU, got float16: take --device gpu",
    ("cpu", "bf16"): "--precision must be float32 on the CPU, got bfloat16: take --device gpu",
    ("auto", "tf32"): "--precision must be float32 on the CPU, got tf32: take --device gpu",
}


@pytest.mark.parametrize("name, precision", REFUSED)
def test_what_is_no_device_is_told_in_one_line(cards, name, precision):
    cards(0)
    assert error_of(choose, name, precision) == REFUSED[name, precision]


def test_where_a_model_and_its_optimiser_go(monkeypatch):
    """Keep the model on the CPU; pass its numbers, the precision and the place to the engine otherwise."""
    here = model.GPT(RUN_MODEL, seed=1)
    assert CPU.place(here) is here and CPU.optimizer("state", RUN_MODEL) == "state"

    class Placed:
        config, params = RUN_MODEL, SimpleNamespace(host=lambda: here.params)

        def __init__(self, *given, **named):
            self.given = given, named

    monkeypatch.setattr(engine, "GPT", Placed)
    back = CPU.place(Placed())
    assert type(back) is model.GPT and np.array_equal(back.params.flat, here.params.flat)
    for name, where in (("gpu", "gpu"), ("checked", "cpu")):
        placed = Device(name, "tf32").place(here)
        (config, params), named = placed.given
        assert config == RUN_MODEL and np.array_equal(params.flat, here.params.flat)
        assert named == {"precision": "tf32", "where": where}
        with patch.object(engine.AdamW, "of") as of:
            Device(name, "tf32").optimizer("state", RUN_MODEL)
            of.assert_called_once_with("state", RUN_MODEL, where)
    assert [device.step_of(x) for x in (here, placed)] == [step.Step, engine.Step]


def test_a_run_goes_on_where_it_was(cards):
    """Keep device and precision unless a different device is requested; a missing device is an error."""
    begun = {"device": "gpu", "precision": "tf32"}
    cards(1)
    assert chosen_before({}) == chosen_before({}, "cpu") == chosen_before(begun, "cpu") == CPU
    assert chosen_before(begun) == chosen_before(begun, "gpu") == Device("gpu", "tf32")
    assert chosen_before(begun, "checked") == Device("checked", "tf32")
    assert chosen_before({}, "gpu") == Device("gpu", "bfloat16"), "a run of the CPU has no precision"
    assert chosen_before({"device": "checked", "precision": "float32"}) == Device("checked", "float32")
    for info, name in (({}, "gpu"), (begun, None)):
        assert error_of(chosen_before, info, name, NO_FIT).startswith("head width")
    assert error_of(chosen_before, begun | {"precision": "odd"}) == f"{NUMBERS}, got 'odd'"
    cards(0)
    assert error_of(chosen_before, begun) == (
        "the run began on a GPU, but CuPy finds none here: to continue without, add --device cpu"
    )
    assert chosen_before(begun, "auto") == CPU
