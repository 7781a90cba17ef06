"""What older versions have written is read: the shipped models, and a checkpoint of each form there was."""

import importlib
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import pytest

from nanoeuler_lib import _moved, config
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


@pytest.mark.parametrize("name", sorted(folder.name for folder in checkpoint.PRETRAINED.iterdir()))
def test_the_shipped_models_are_read(name):
    model, tokenizer = checkpoint.load_pretrained(name)
    assert np.isfinite(model.losses(np.arange(9)[None], np.arange(9)[None])).all()
    assert tokenizer.vocab_size <= model.config.vocab_size


@pytest.mark.parametrize("form, optimizer", [("checkpoint-1-adamw", "adamw"), ("checkpoint-1-muon", "muon")])
def test_a_checkpoint_of_each_form_is_read(form, optimizer):
    """checkpoint-1-adamw is from before there were two optimisers: its settings name none."""
    found = checkpoint.load(FIXTURES / form, training=True)
    assert (found.step, found.train.steps, found.train.optimizer) == (3, 7, optimizer)
    assert (type(found.optimizer) is AdamW) == (optimizer == "adamw")
    assert found.model.config == ModelConfig(4, 2, 1, 1, 6, 258, predict=1)
    assert found.optimizer.step == 3 and found.optimizer.v.flat.all()


@dataclass(frozen=True)
class Grown(ModelConfig):
    """The shape of a model after a version that has added a field."""

    louder: bool = field(default=True, metadata={"before": False})


def test_a_field_that_is_added_says_what_its_absence_meant(monkeypatch):
    old = ModelConfig(8, 2, 1, 1, 9, 10).to_dict()
    assert Grown.from_dict(old).louder is False and Grown(8, 2, 1, 1, 9, 10).louder is True
    assert Grown.from_dict(old | {"louder": True}).louder is True
    monkeypatch.setattr(config, "__version__", "0.1.0")
    newer = Grown(8, 2, 1, 1, 9, 10).to_dict()
    with pytest.raises(NanoEulerError, match=r"\['louder'\], unknown to nanoeuler 0\.1\.0: upgrade to"):
        ModelConfig.from_dict(newer)


def test_fields_of_the_first_version_stay_required():
    for one in (ModelConfig(8, 2, 1, 1, 9, 10), TrainConfig()):
        for name in {f.name for f in fields(one) if "before" not in f.metadata}:
            without = {key: value for key, value in one.to_dict().items() if key != name}
            with pytest.raises(NanoEulerError, match=rf"lacks \['{name}'\]"):
                type(one).from_dict(without)


OLD = """
from nanoeuler_lib import plots, world
from nanoeuler_lib.cuda.checker import compiler
from nanoeuler_lib.model import Weigh
from nanoeuler_lib.training import evaluate, rewards
from nanoeuler_lib.understanding.posteriors import believed
from nanoeuler_lib.world.tokens import token_costs
import konigsberg.town
import nanoeuler_lib.world.town
from nanoeuler_lib.understanding import scaling
assert issubclass(konigsberg.KonigsbergError, nanoeuler_lib.errors.NanoEulerError)
assert nanoeuler_lib.world.town is konigsberg.town and world.sample is konigsberg.sample
print(evaluate.__name__, world.token_costs is token_costs, rewards.problems_of.__name__, compiler.KERNELS.name)
"""


def test_old_names_of_modules_work_and_one_line_says_so():
    done = subprocess.run([sys.executable, "-c", OLD], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "nanoeuler_book.evaluate True route_sets kernels\n", done.stderr
    assert done.stderr == "nanoeuler_lib.plots is now nanoeuler_book.figures: old names work until version 0.4\n"


def test_every_old_name_has_a_new_one():
    for old in _moved.MODULES:
        importlib.import_module(_moved.LIBRARY + old)
    assert all(_moved.name_of(old) for old in _moved.NAMES)
    with pytest.raises(ImportError):
        importlib.import_module("nanoeuler_lib.world.moon")
