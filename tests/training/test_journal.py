"""What a training run logs and writes down, every entry in order, and what it keeps of what it was begun with."""

import json
import math
import os
import platform
import re
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, changed, error_of, run_text

import konigsberg
from nanoeuler_lib import __version__
from nanoeuler_lib.command import sources
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, journal, loop, run_folder, run_json, train


def test_only_launches_of_a_gpu_are_profiled(tmp_path):
    message = error_of(train.train, tmp_path / "run", run_text(), RUN_MODEL, RUN_CONFIG, profile=1)
    assert message.startswith("--profile must be 0 on the CPU")


def test_what_a_run_logs_and_in_which_order(tmp_path):
    config = changed(RUN_CONFIG, steps=7, valid_every=3, sample_every=2, save_every=4)
    heard, errors = [], []

    def on_entry(entry):
        heard.append(entry)
        errors.append(set(np.geterr().values()))

    with (
        patch.object(checkpoint, "save", wraps=checkpoint.save) as save,
        patch.object(journal, "appending", wraps=run_folder.appending) as appending,
    ):
        train.train(tmp_path / "run", run_text(), RUN_MODEL, config, quiet=True, on_entry=on_entry)
    file, saved = appending.call_args.args
    assert (file, saved()) == (tmp_path / "run" / "log.jsonl", 7), "what it says when the disk is full"
    steps = [call.args[3] for call in save.call_args_list if call.args[0].name != checkpoint.BEST]
    assert steps == [0, 4, 7]
    log = run_folder.read_log(tmp_path / "run")
    assert log == heard
    kinds = ("loss", "groups", "valid_bits_per_byte", "sample")
    found = [(entry["step"], kind) for entry in log for kind in kinds if kind in entry]
    assert found == [
        (0, "valid_bits_per_byte"), (1, "loss"), (1, "groups"), (2, "loss"), (2, "sample"), (3, "loss"), (3, "groups"),
        (3, "valid_bits_per_byte"), (4, "loss"), (4, "sample"), (5, "loss"), (6, "loss"), (6, "groups"),
        (6, "valid_bits_per_byte"), (6, "sample"), (7, "loss"), (7, "groups"), (7, "valid_bits_per_byte"),
    ]  # fmt: skip
    norms = {entry["step"]: entry["norm"] for entry in log if "norm" in entry}
    for entry in (entry for entry in log if "groups" in entry):
        sizes, ratios = zip(*entry["groups"].values())
        assert math.hypot(*sizes) == pytest.approx(norms[entry["step"]], rel=1e-3)
        assert all(1e-6 < ratio < 0.5 for ratio in ratios), "about what the rate says"
    assert all(error == {"ignore"} for error in errors), "NumPy's warnings are noise: what overflows is looked at"


def test_workers_take_no_notice_of_overflow():
    step = Step(GPT(RUN_MODEL), AdamW(RUN_MODEL, RUN_CONFIG), RUN_CONFIG, RUN_CONFIG.batch, 2)
    assert set(step.pool.submit(np.geterr).result().values()) == {"ignore"}
    step.pool.shutdown()


def test_what_run_json_says(tmp_path):
    files = {"text": "/a", "valid": None}
    given = run_text(), RUN_MODEL, RUN_CONFIG, Tokenizer([(97, 98)]), "söurce"
    train.train(tmp_path / "run", *given, quiet=True, workers=2, files=files)
    text = (tmp_path / "run" / "run.json").read_text("utf-8")
    head = json.loads(text)
    assert list(head) == ["version", "started", "machine", "model", "train", "data"] and head["version"] == __version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", head["started"])
    place = f"{platform.system()} {platform.machine()}"
    assert head["machine"] == f"{place}, {os.cpu_count()} cores, NumPy {np.__version__}"
    assert (head["model"], head["train"]) == (RUN_MODEL.to_dict(), RUN_CONFIG.to_dict())
    found = checkpoint.load(tmp_path / "run")
    assert found.tokenizer.merges == [(97, 98)], "the one that was given"
    part, valid = data.split_text(run_text(), RUN_CONFIG.valid_fraction)
    ids = [found.tokenizer.encode(text) for text in (part, valid)]
    assert list(head["data"].items()) == [
        ("train_tokens", len(ids[0])), ("valid_tokens", len(ids[1])), ("reach", 1.0), ("unit", "tokens"),
        ("workers", 2), ("source", "söurce"), ("floor_bits_per_byte", None), ("split", 2), ("files", files),
        ("fingerprint", datasets.fingerprint(ids[0])),
        ("valid_fingerprint", datasets.fingerprint(ids[1])),
    ]  # fmt: skip
    assert text.startswith('{\n "version": ') and text.endswith("\n}\n") and "söurce" in text


@pytest.mark.parametrize("profile, expected", [
    (0, [1, 2, 3, 4, 5]), (1, [1, "watched", 2, "unwatched", 3, 4, 5]),
    (2, [1, "watched", 2, 3, "unwatched", 4, 5]), (9, [1, "watched", 2, 3, 4, 5]),
])  # fmt: skip
def test_a_profile_is_of_the_second_step_and_those_behind_it(tmp_path, capfd, profile, expected):
    """What the device takes is said first; the table of so many steps as soon as the last of them is done."""
    heard = []

    class Timed(Step):
        memory_line = "takes a lot"

        def __call__(self, *batch):
            heard.append(self.optimizer.step + 1)
            return super().__call__(*batch)

        def watched(self):
            heard.append("watched")
            return SimpleNamespace(table=lambda steps: f"where {steps} steps went")

        def unwatched(self):
            heard.append("unwatched")

    config = changed(RUN_CONFIG, steps=5, valid_every=9, sample_every=0)
    model, tokenizer = GPT(RUN_MODEL), Tokenizer.train(run_text(), RUN_MODEL.vocab_size, special_tokens=())
    optimizer, run = AdamW(RUN_MODEL, config), tmp_path / "run"
    found = checkpoint.Checkpoint(run, model, tokenizer, 0, config, optimizer, {"workers": 1})
    dataset = datasets.TextDataset(*data.split_text(run_text(), 0.1), found)
    with patch.object(loop, "step_of", return_value=Timed):
        loop.start_run(run, found, dataset, loop.RunOptions(profile=profile))
    out = capfd.readouterr().out.splitlines()
    assert out[0] == "takes a lot" and out[1].startswith("model: ") and heard == expected
    tables = [line for line in out if line.startswith("where")]
    assert tables == [f"where {profile} steps went"] * ("unwatched" in expected)


def test_the_floor_is_that_of_the_held_out_stories():
    text = konigsberg.corpus(2_000, 3)
    assert sources.floor(text) == round(konigsberg.floor(text), 6) > 0
    assert sources.floor("no story") is None
    assert sources.floor(f"no{data.SEPARATOR}story") is None


def test_what_is_known_of_a_run_is_kept_when_it_gets_other_steps(tmp_path):
    """run.json is written again where its settings are not the checkpoint's: who began it, when and where stays."""
    run = tmp_path / "run"
    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    old = json.loads((run / "run.json").read_text("utf-8"))
    old |= {"version": "0.0", "started": "long ago", "machine": "another"}
    for change in ({"train": {}}, {"model": {}, "started": 7}):
        (run / "run.json").write_text(json.dumps(old | change), "utf-8")
        loop.resume(run, run_text(), quiet=True)
        new = json.loads((run / "run.json").read_text("utf-8"))
        assert (new["version"], new["machine"]) == ("0.0", "another")
        assert (new["started"] == "long ago") is ("started" not in change)
        assert (new["train"], new["model"]) == (RUN_CONFIG.to_dict(), RUN_MODEL.to_dict())
        assert list(new) == list(old) and (run / "run.json").read_text("utf-8").startswith('{\n "version"')
    for damage in ("[]", "{", "\xff"):
        (run / "run.json").write_bytes(damage.encode("latin-1"))
        loop.resume(run, run_text(), quiet=True)
        assert json.loads((run / "run.json").read_text("utf-8"))["version"] == __version__
    (run / "run.json").write_text(json.dumps(old))
    loop.resume(run, run_text(), quiet=True)
    assert json.loads((run / "run.json").read_text("utf-8")) == old, "nothing to be written"


@pytest.mark.parametrize(
    "where", [(loop, "_train"), (journal.Journal, "note"), (run_json, "update")], ids=lambda w: w[1]
)
def test_a_change_stands_in_the_log_once_wherever_a_process_ended(tmp_path, where):
    run, more = tmp_path / "run", RUN_CONFIG.steps + 2

    def end(*_, **__):
        raise SystemExit

    train.train(run, run_text(), RUN_MODEL, RUN_CONFIG, quiet=True)
    with patch.object(*where, end), pytest.raises(SystemExit):
        loop.resume(run, run_text(), quiet=True, steps=more)
    for _ in range(2):
        loop.resume(run, run_text(), quiet=True)
    said = [entry["changed"] for entry in run_folder.read_log(run) if "changed" in entry]
    assert said == [f"steps {RUN_CONFIG.steps} -> {more}"]
    assert json.loads((run / "run.json").read_text("utf-8"))["train"]["steps"] == more
