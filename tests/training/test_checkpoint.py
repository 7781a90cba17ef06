"""A checkpoint folder: what its description says, which damage is refused and how, what a kill may leave."""

import hashlib
import json
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from oracles import changed, contents, error_of, random_parameters, seal
from safetensors.numpy import load_file, save_file

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint

CONFIG = ModelConfig(dim=4, heads=2, kv_heads=1, layers=1, context=4, vocab_size=258, predict=1, ffn=3)
SETTINGS = TrainConfig(steps=9)
MODEL = GPT(CONFIG, random_parameters(CONFIG, 1, dtype=np.float32))
TOKENIZER = Tokenizer([(97, 98)])
INFO = {
    "source": "ü", "template": "plain", "base": "b", "fingerprint": "f", "valid_fingerprint": "v", "files": {"a": None},
    "valid_bits_per_byte": 2, "floor_bits_per_byte": None, "examples": ["konigsberg", 0, 2**53 - 1], "mine": [1],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    optimizer = AdamW(CONFIG, SETTINGS)
    optimizer.m.flat[...], optimizer.v.flat[...] = np.random.default_rng(0).random((2, MODEL.size))
    checkpoint.save(tmp_path / "c", MODEL, TOKENIZER, 5, SETTINGS, optimizer, INFO)
    return tmp_path / "c"


def test_what_is_saved_comes_back(folder):
    found = checkpoint.load(folder, training=True)
    assert (found.model.config, found.train, found.info, found.tokenizer.merges) == (CONFIG, SETTINGS, INFO, [(97, 98)])
    assert found.step == found.optimizer.step == 5
    assert np.array_equal(found.model.params.flat, MODEL.params.flat)
    drawn = np.random.default_rng(0).random((2, MODEL.size)).astype(np.float32)
    assert np.array_equal(np.stack([found.optimizer.m.flat, found.optimizer.v.flat]), drawn)


def test_what_the_description_says(folder):
    text = (folder / "checkpoint.json").read_text("utf-8")
    head = json.loads(text)
    files = ["model.safetensors", "optimizer.safetensors", "tokenizer.json"]
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    digest = head.pop("digest")
    assert list(head.items()) == [
        ("format", "nanoeuler-checkpoint-1"), ("model", CONFIG.to_dict()), ("train", SETTINGS.to_dict()), ("step", 5),
        ("info", INFO), ("sha256", digests),
    ]  # fmt: skip
    assert digest == hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    assert text.startswith('{\n "format"') and text.endswith("}\n") and '"ü"' in text
    moments = load_file(folder / "optimizer.safetensors")
    assert moments.keys() == {f"{kind}.{name}" for kind in "mv" for name in MODEL.params}
    assert checkpoint.read_head(folder) == head == checkpoint.read_head(str(folder))


def test_a_checkpoint_without_training(tmp_path):
    checkpoint.save(str(tmp_path / "a" / "c"), MODEL, TOKENIZER, 0)
    found = checkpoint.load(str(tmp_path / "a" / "c"))
    assert (found.step, found.train, found.optimizer, found.info) == (0, None, None, {})
    assert "a/c: has no optimizer.safetensors" in error_of(checkpoint.load, tmp_path / "a" / "c", True)


def test_an_old_checkpoint_of_the_name_is_replaced(folder):
    for left in (".c.partial", ".c.replaced"):
        (folder.parent / left / "x").mkdir(parents=True)
    checkpoint.save(folder, MODEL, TOKENIZER, 6)
    assert checkpoint.load(folder).step == 6 and [f.name for f in folder.parent.iterdir()] == ["c"]


@pytest.mark.parametrize("place", ["os.replace", "sync"])
def test_a_write_that_fails_leaves_what_was_there(folder, place):
    before, original = contents(folder.parent), checkpoint.os.replace

    def replace(old, new):
        if Path(old).name == ".c.partial":  # the old one is out of the way, the new one cannot take its place
            assert not folder.exists()
            raise OSError(5, "Input/output error")
        original(old, new)

    full = patch.object(checkpoint, "sync", side_effect=OSError(5, "Input/output error"))
    with full if place == "sync" else patch.object(checkpoint.os, "replace", replace):
        message = error_of(checkpoint.save, folder, MODEL, TOKENIZER, 6)
    assert message == f"{folder}: cannot write the checkpoint (Input/output error); earlier ones are intact"
    assert contents(folder.parent) == before
    (folder.parent / "file").touch()
    message = error_of(checkpoint.save, folder.parent / "file" / "c", MODEL, TOKENIZER, 1)
    assert "cannot write the checkpoint (Not a directory); there is no earlier one" in message


def test_what_is_exported(folder):
    found = checkpoint.load(folder, training=True)
    checkpoint.export(found, folder.parent / "small")
    small = checkpoint.load(folder.parent / "small")
    assert small.info == {name: value for name, value in INFO.items() if name != "files"} and small.step == 5
    stored = load_file(folder.parent / "small" / "model.safetensors")
    assert {x.dtype for x in stored.values()} == {np.dtype(np.float16)}
    assert small.model.dtype == np.float32
    np.testing.assert_allclose(small.model.params.flat, MODEL.params.flat, rtol=1e-3, atol=1e-7)


def test_an_export_in_int8_is_read_as_floats(folder):
    found, small = checkpoint.load(folder), folder.parent / "small"
    checkpoint.export(found, small, eight_bits=True)
    stored, again = load_file(small / "model.safetensors"), checkpoint.load(small)
    assert again.model.dtype == np.float32 and again.info.get("files") is None and again.step == 5
    for name, p in again.model.params.items():
        assert stored[name].dtype == (np.int8 if p.ndim == 2 else np.float32)
        assert np.abs(p - found.model.params[name]).max() <= 0.51 * np.abs(p).max() / 127


# Damage. The fuzzed folders of tests/command/test_hostile.py are damaged at random.


def flipped(name):
    def spoil(folder):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return spoil


def edited(old, new):
    def spoil(folder):
        content = (folder / "checkpoint.json").read_bytes()
        (folder / "checkpoint.json").write_bytes(content.replace(old, new, 1))

    return spoil


def sealed(**changes):
    return lambda folder: seal(folder, **changes)


def written(name, content):
    return lambda folder: ((folder / name).write_bytes(content), seal(folder))


def tensors(**changes):
    def spoil(folder):
        found = load_file(folder / "model.safetensors") | changes
        save_file({name: x for name, x in found.items() if x is not None}, folder / "model.safetensors")
        seal(folder)

    return spoil


THREE = {"format": "nanoeuler-bpe", "version": 1, "vocab_size": 259, "special_tokens": [], "byte_order": [*range(256)],
         "merges": [[97, 98], [98, 99], [99, 100]]}  # fmt: skip
DAMAGE = {
    "a bit of the weights": (flipped("model.safetensors"), "model.safetensors: SHA-256 must be"),
    "a bit of the moments": (flipped("optimizer.safetensors"), "optimizer.safetensors: SHA-256 must be"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json: no such file"),
    "not UTF-8": (edited(b"\n", b"\xff\xfe"), "not readable as JSON"),
    "another format": (edited(b"checkpoint-1", b"checkpoint-0"), "format must be 'nanoeuler-checkpoint-1', got"),
    "another step": (edited(b'"step": 5', b'"step": 7'), "its digest does not match its content: the file was edited"),
    "no step": (edited(b'"step"', b'"stop"'), "step is None"),
    "a megabyte": (edited(b"\n", b" " * 1_000_001), "must have at most 1000000 bytes, got"),
    "a file elsewhere": (sealed(sha256={"../../run.json": "0", "model.safetensors": "0"}), "files must be among"),
    "the width of another model": (
        sealed(model=changed(CONFIG, dim=8).to_dict()), "embed must have shape [258, 8], got [258, 4]"),
    "a model that cannot be": (sealed(model=CONFIG.to_dict() | {"heads": 3}), "must be a multiple"),
    "settings of a wrong kind": (sealed(train=SETTINGS.to_dict() | {"rate": "fast"}), "rate must be a number"),
    "a tokenizer of something else": (written("tokenizer.json", b"{}"), 'a JSON object with "format"'),
    "a larger tokenizer": (
        written("tokenizer.json", json.dumps(THREE).encode()), "must have at most the model's 258 tokens, got 259"),
    "not safetensors": (written("model.safetensors", b"\x80\x04pickle"), "not readable as safetensors"),
    "a tensor less": (tensors(embed=None), "missing or unknown tensors ['embed']"),
    "float64": (tensors(norm_final=np.ones(4)), "norm_final must be float16 or float32, got float64"),
    "NaN": (tensors(norm_final=np.full(4, np.nan, "f4")), "norm_final must hold finite numbers, got NaN"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_its_file(folder, damage):
    spoil, expected = DAMAGE[damage]
    spoil(folder)
    before = contents(folder)
    message = error_of(checkpoint.load, folder, training=True)
    assert expected in message and message.startswith(f"{folder}") and contents(folder) == before


SCALES = {  # of a model of bytes: tensors that change, what is said of the file
    "embed must be int8, because it has scales, got float32": dict(embed=np.zeros((258, 4), np.float32)),
    "norm_final must be float16 or float32, got int8": dict(norm_final=np.ones(4, np.int8)),
    "embed.scale must have shape [258], got [4]": {"embed.scale": np.ones(4, np.float32)},
    "embed.scale must hold finite numbers, got NaN or infinity": {"embed.scale": np.full(258, np.nan, "f4")},
    "missing or unknown tensors ['embed.scale']": {"embed.scale": None},
}


@pytest.mark.parametrize("said", SCALES)
def test_int8_that_does_not_fit_its_scales_is_refused(folder, said):
    small = folder.parent / "small"
    checkpoint.export(checkpoint.load(folder), small, eight_bits=True)
    tensors(**SCALES[said])(small)
    assert error_of(checkpoint.load, small) == f"{small}/model.safetensors: {said}"


REFUSED = {
    "source": ([7, None], "text"), "template": ([7], "text"), "base": ([None], "text"), "fingerprint": ([7], "text"),
    "valid_fingerprint": ([["v"]], "text"), "valid_bits_per_byte": (["2", True], "a number"),
    "floor_bits_per_byte": ([[]], "a number"), "files": ([[], {"a": 7}, "a"], "paths by name"),
    "valid_sets": ([[], {"a": "7"}, 2.5, {"a": None}], "a number by name"),
    "examples": (
        ["a", ["a", 1], ["a", 1, 2, 3], [7, 1, 2], ["a", True, 2], ["a", 1, 2.0], ["a", -1, 2], ["a", 1, 2**53]],
        "a source, a number and a seed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_reads_again_is_of_its_kind(folder, name):
    values, expected = REFUSED[name]
    for value in values:
        seal(folder, info=INFO | {name: value})
        with patch.object(checkpoint, "short", str):
            message = error_of(checkpoint.read_head, folder)
        assert message == f"{folder}/checkpoint.json: info.{name} must be {expected}, got {value}"
    seal(folder, info=INFO)
    assert checkpoint.read_head(folder)["info"] == INFO


def test_which_folder_is_meant(tmp_path, folder):
    run = tmp_path / "run"
    run.mkdir()
    assert error_of(checkpoint.find, run) == f"{run}: has no checkpoint, expected a checkpoint or a run folder"
    assert error_of(checkpoint.find, run / "x") == f"{run}/x: no such folder, expected a checkpoint or a run folder"
    (run / "lock").touch()
    assert "has no checkpoint, because the run was stopped" in error_of(checkpoint.find, run)
    places = run / "checkpoints"
    for name in (".step-000003.replaced", ".step-000004.replaced"):  # their successors never came
        shutil.copytree(folder, places / name)
    assert checkpoint.find(run) == places / ".step-000004.replaced"
    shutil.copytree(folder, places / "step-000001")
    (places / "step-notes").mkdir()  # nobody's checkpoint
    assert checkpoint.find(run) == checkpoint.find(places / "step-000001") == places / "step-000001"
    (places / "step-000009" / "checkpoint.json").mkdir(parents=True)
    told = f"{places}/step-000009: the latest checkpoint must have a file checkpoint.json, got none: put the file back"
    assert error_of(checkpoint.find, run) == f"{told}, or remove this folder to use step-000001"
    shutil.rmtree(places / "step-000001")
    assert error_of(checkpoint.find, run) == f"{told}, or remove this folder to begin the run again"


def test_what_a_kill_left_is_finished_or_swept(tmp_path):
    names = [
        ".step-000001.replaced", ".step-000002.replaced", "step-000002", ".step-000003.partial", ".step-000004.removed",
        ".step-000005.mine", ".other.partial",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(name)
    checkpoint.sweep(tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == [
        ".other.partial", ".step-000005.mine", "step-000001", "step-000002",
    ]  # fmt: skip
    assert (tmp_path / "step-000002" / "x").read_text() == "step-000002"
    assert (tmp_path / "step-000001" / "x").read_text() == ".step-000001.replaced"


@pytest.mark.parametrize("name", ["x", f"../{checkpoint.PRETRAINED.name}/konigsberg-chat"])
def test_a_model_of_the_package_has_a_name_of_the_list(name):
    assert "konigsberg-small), got " in error_of(checkpoint.pretrained, name)
