"""What older versions have written is read: the shipped models, and a checkpoint of each form there was."""

import importlib
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from nanoeuler_lib import config
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.training import checkpoint, datasets

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
    with pytest.raises(NanoEulerError, match=r"\['louder'\], unknown to nanoeuler 0\.1\.0: expected the newer"):
        ModelConfig.from_dict(newer)


def test_fields_of_the_first_version_stay_required():
    for one in (ModelConfig(8, 2, 1, 1, 9, 10), TrainConfig()):
        for name in {f.name for f in fields(one) if "before" not in f.metadata}:
            without = {key: value for key, value in one.to_dict().items() if key != name}
            with pytest.raises(NanoEulerError, match=rf"lacks \['{name}'\]"):
                type(one).from_dict(without)


@pytest.mark.full
@pytest.mark.parametrize("name", ["copy", "assignment"])
def test_what_readers_have_of_version_0_1_runs(name):
    """A reader's copy of chapter 14 and an assignment of chapter 06, code cells alone, import by the old names."""
    nbclient = pytest.importorskip("nbclient", reason="the book is not installed: make setup")
    notebook = pytest.importorskip("nbformat").read(FIXTURES / "version-0.1" / f"{name}.ipynb", as_version=4)
    folder = FIXTURES / "version-0.1" if name == "assignment" else ROOT / "notebooks"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    printed = [output for cell in notebook.cells for output in cell.outputs if output.output_type == "stream"]
    said = [output.text for output in printed if output.name == "stderr" and "since 0.2" in output.text]
    assert said, "one line for each old name"


def test_what_is_set_in_a_module_by_its_old_name_is_set_where_it_is_now(capsys):
    from nanoeuler_lib import train as old  # as the copies do
    from nanoeuler_lib.training import run_folder

    with patch.object(old, "KEEP", 99):
        assert run_folder.KEEP == 99
    assert run_folder.KEEP == 2 and old.TextDataset is datasets.TextDataset
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nanoeuler_lib.nothing")
    importlib.import_module("nanoeuler_lib.plan")
    assert capsys.readouterr().err.endswith(
        "nanoeuler_lib.plan: since 0.2 nanoeuler_lib.{model.plan}, until 0.3 as well\n"
    )


def test_the_command_is_found_by_its_old_name():
    done = subprocess.run([sys.executable, "-m", "nanoeuler_lib.cli", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("nanoeuler "), done.stderr
