"""Test shards: the text's stream for any division, the same bytes from any number of processes, and resumed runs."""

import json
import math
import os
import re
import shutil
import threading
import time
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from oracles import RUN_CONFIG, RUN_MODEL, changed, contents, error_of, run_python
from test_checkpoint import flipped

from nanoeuler_lib import files
from nanoeuler_lib.command import cli
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data, shards
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint, datasets, loop, report, run_folder, train
from nanoeuler_lib.training.datasets import ShardDataset


def story(number, words=60):
    rng = np.random.default_rng(number)
    known = "the cat on a mat sat and Käthe ran to her red hat".split()
    return " ".join(known[i] for i in rng.integers(0, len(known), words)) + "."


def text_of(numbers, words=60):
    return SEPARATOR.join(story(number, words) for number in numbers)


TOKENIZER = Tokenizer.train(text_of(range(20)), 257 + 20, special_tokens=(END_OF_TEXT,))
MODEL = changed(RUN_MODEL, vocab_size=TOKENIZER.vocab_size)


def made(folder, text=None, name="shards", **options) -> Shards:
    """Write shards of a text, by default of thirty stories, in several files."""
    (folder / f"{name}.txt").write_bytes((text_of(range(30)) if text is None else text).encode())
    options = {"workers": 1, "shard_tokens": 500} | options
    return shards.write(folder / name, [folder / f"{name}.txt"], TOKENIZER, **options)


def valid_sets(folder):
    return [made(folder, text_of(range(40, 44)), "one"), made(folder, text_of(range(44, 48)), "two")]


def found_of(seed=0, fraction=0.2, config=MODEL):
    settings = changed(RUN_CONFIG, seed=seed, valid_fraction=fraction)
    return checkpoint.Checkpoint(Path("run"), GPT(config), TOKENIZER, 0, settings, None, {})


# The stream.

WHITE = Tokenizer([(10, 32), (32, 32), (32, 98), (32, 10)], (END_OF_TEXT,))  # merges within runs of white space


def parts_of(path, size):
    """Return the documents that `shards.pieces` reads, joined again, and their tokens, part by part."""
    documents, tokens = [], []
    for goes_on, found in shards.pieces(path, size):
        assert found and all(found), "nothing empty comes"
        ids = [WHITE.encode(part).tolist() for part in found]
        if goes_on:
            documents[-1] += found.pop(0)
            tokens[-1] += ids.pop(0)
        documents, tokens = documents + found, tokens + ids
    return documents, tokens


BITS = ["a", " b", "  ", "\n", "\r\n", "ü", "日本", "it's", END_OF_TEXT, SEPARATOR, f"\r\n{END_OF_TEXT}\r\n",
        END_OF_TEXT + "\n", "\n" + END_OF_TEXT, "<|endof", "\r", " c d e f g h i j k l m n"]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_documents_are_read_piece_by_piece_as_they_are_at_once(tmp_path, seed):
    rng = np.random.default_rng(seed)
    text = "".join(BITS[i] for i in rng.integers(0, len(BITS), rng.integers(1, 30))) + rng.choice(["", " z"])
    (tmp_path / "text").write_bytes(text.encode())
    documents = data.documents(data.unix_separators(text))
    for size in (1, 2, 3, 5, 8, 13, 40, 1000):
        if documents:
            expected = documents, [WHITE.encode(document).tolist() for document in documents]
            assert parts_of(tmp_path / "text", size) == expected, (size, text)
        else:
            error_of(parts_of, tmp_path / "text", size)


@pytest.mark.parametrize("piece, shard_tokens", [(50, 1), (50, 7), (50, 10**6), (1000, 100), (1 << 20, 7), (1000, 237)])
def test_the_stream_is_that_of_the_text(tmp_path, piece, shard_tokens):
    """Use documents across shards and pieces, one longer than both; adjacent separators enclose no document."""
    text = SEPARATOR.join([story(1), story(2, 200), "x", story(3)]).replace(SEPARATOR, SEPARATOR + SEPARATOR[1:], 1)
    found = made(tmp_path, text, shard_tokens=shard_tokens, piece=piece)
    whole = data.tokenize(text, TOKENIZER)
    assert found.read(0, found.tokens).tolist() == whole.ids.tolist() and found.tokens == len(whole.ids)
    assert found.starts.tolist() == whole.starts.tolist() and found.documents == 4
    assert found.bytes == whole.bytes == len(text.encode()) - 4 * len(SEPARATOR) + 1
    index = json.loads((found.path / "shards.json").read_text())
    assert (index["vocab_size"], index["tokens"]) == (TOKENIZER.vocab_size, found.tokens)
    sizes = [len(shard) for shard in found.shards]
    assert set(sizes[:-1]) <= {shard_tokens} and 0 < sizes[-1] <= shard_tokens and found.shards[0].dtype == np.uint16
    for start, stop in ((0, 1), (3, 12), (found.tokens - 9, found.tokens), (6, 7), (5, found.tokens - 1)):
        assert found.read(start, stop).tolist() == whole.ids[start:stop].tolist()
    ends = [*whole.starts[1:], len(whole.ids) - 1]
    assert found.sums.tolist() == [zlib.crc32(whole.ids[a + 1 : b].tobytes()) for a, b in zip(whole.starts, ends)]


def test_texts_follow_one_another_and_each_begins_a_document(tmp_path):
    (tmp_path / "a").write_text(text_of([1, 2])), (tmp_path / "b").write_text(story(3))
    found = shards.write(tmp_path / "ab", [tmp_path / "a", tmp_path / "b"], TOKENIZER, 1)
    assert found.read(0, found.tokens).tolist() == data.tokenize(text_of([1, 2, 3]), TOKENIZER).ids.tolist()
    one = made(tmp_path, story(3), "one")  # a single document also has its markers
    end = TOKENIZER.special_tokens[END_OF_TEXT]
    assert one.read(0, one.tokens).tolist() == [end, *TOKENIZER.encode(story(3)).tolist(), end]


def test_the_same_bytes_from_any_number_of_processes(tmp_path):
    text = text_of(range(40), 200)
    for workers in (1, 2, 3):
        made(tmp_path, text, f"by{workers}", workers=workers, piece=3000)
    first = contents(tmp_path / "by1")
    numbered = [f"{i:05}.npy" for i in range(len(first) - 3)]
    assert sorted(first) == [*numbered, "documents.npy", "shards.json", "tokenizer.json"]
    assert first == contents(tmp_path / "by2") == contents(tmp_path / "by3")


# Refused inputs.


REFUSED = {  # name -> content, options, error
    "late": (b"a b c d " * 100 + b"\xff", dict(piece=64), "must be UTF-8 text, got 0xff at byte 800"),
    "late, by two": (
        b"a b c d " * 100 + b"\xff",
        dict(piece=64, workers=2),
        "must be UTF-8 text, got 0xff at byte 800",
    ),
    "nul": (b"a b " * 100 + b"\0", dict(piece=64), "must be UTF-8 text, got NUL at byte 400"),
    "empty": (b"", {}, "must hold UTF-8 text, got 0 bytes without text"),
    "marks": (SEPARATOR.encode() * 3, {}, "must have text between its separators, got no document"),
    "missing": (None, {}, "no such file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_tokenized_is_told_and_leaves_nothing(tmp_path, name):
    content, options, said = REFUSED[name]
    (tmp_path / "good").write_text(story(1))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = contents(tmp_path)
    texts = [tmp_path / "good", tmp_path / name]
    message = error_of(shards.write, tmp_path / "out", texts, TOKENIZER, **{"workers": 1} | options)
    assert message.startswith(f"{tmp_path / name}: {said}")
    assert contents(tmp_path) == before


def test_tokenizers_that_do_not_fit_are_told_and_no_folder_is_written_over(tmp_path):
    (tmp_path / "text").write_text(story(1))
    large = SimpleNamespace(vocab_size=65_537, special_tokens={END_OF_TEXT: 0})
    said = lambda tokenizer: error_of(shards.write, tmp_path / "out", [tmp_path / "text"], tokenizer, 1)
    assert said(large) == "tokenizer must have at most 65536 tokens, got 65537: shards store 16-bit ids"
    assert "train one with --end-of-text" in said(Tokenizer([], ()))
    made(tmp_path)
    assert "already exists" in error_of(made, tmp_path)


def _edit(sealed=True, **changes):
    def change(folder):
        head = json.loads((folder / "shards.json").read_text()) | changes
        if sealed:
            head.pop("digest")
            head = files.seal(head)
        (folder / "shards.json").write_text(json.dumps(head))

    return change


DAMAGE = {
    "a shard that is missing": ("00001.npy: no such file", lambda folder: (folder / "00001.npy").unlink()),
    "a changed document": ("documents.npy: SHA-256 must be", flipped("documents.npy")),
    "another tokenizer": ("tokenizer.json: SHA-256 must be", flipped("tokenizer.json")),
    "no index": ("shards.json: no such file", lambda folder: (folder / "shards.json").unlink()),
    "an index that is changed": ("shards.json: its digest does not match", _edit(False, tokens=3)),
    "numbers that do not fit": ("contradict each other", _edit(tokens=3)),
    "an invalid file name": ("contradict each other", _edit(sha256={"../x": "0"})),
    "shards that are not a list": ("shards is 3: the file was truncated or edited", _edit(shards=3)),
    "numbers of another file": ("must hold uint16", _edit(shards=[499, 501, *[500] * 4, 145])),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_with_its_file(tmp_path, damage):
    made(tmp_path)
    message, change = DAMAGE[damage]
    change(tmp_path / "shards")
    assert message in error_of(Shards, tmp_path / "shards")


# Batches.


@pytest.mark.parametrize("rows", [1, 7])
def test_an_epoch_is_every_window_once(tmp_path, rows):
    """Check that each epoch has its own order and start, and that the rows of all steps fill the epochs in turn."""
    found = made(tmp_path)
    dataset = ShardDataset(found, None, found_of())
    stream, T, W = found.read(0, dataset.tokens).astype(int), MODEL.context, dataset.windows
    assert (W + 1) * T + MODEL.predict <= dataset.tokens < (W + 2) * T + MODEL.predict
    drawn = [dataset.batch(step, rows) for step in range(-(-3 * W // rows))]
    inputs, targets = (np.concatenate(part)[: 3 * W] for part in zip(*drawn))
    places = {stream[i : i + T].tobytes(): i for i in range(len(stream) - T)}
    at = np.array([places[row.tobytes()] for row in inputs])
    assert np.array_equal(targets, stream[at[:, None, None] + np.arange(T)[:, None] + [1, 2]])
    epochs = at.reshape(3, W)
    begins = epochs.min(axis=1)
    assert np.array_equal(np.sort(epochs, axis=1), begins[:, None] + T * np.arange(W))
    assert len(set(begins)) > 1 and begins.max() <= 2 * T and at.max() + T + MODEL.predict <= dataset.tokens
    orders = {tuple((epoch - begin) // T) for epoch, begin in zip(epochs, begins)}
    assert len(orders) == 3 and tuple(range(W)) not in orders


def test_a_batch_depends_on_seed_and_step_alone(tmp_path):
    found = made(tmp_path)
    whole = [ShardDataset(found, None, found_of()).batch(step, 5)[0] for step in range(200)]
    other = ShardDataset(found, None, found_of())
    for step in (199, 3, 120, 0, 64, 199):
        assert np.array_equal(other.batch(step, 5)[0], whole[step])
    assert not np.array_equal(ShardDataset(found, None, found_of(seed=1)).batch(0, 5)[0], whole[0])
    assert whole[0].dtype == np.int64 and len(other.epochs) <= 2


def test_the_shortest_text_that_is_one_row(tmp_path):
    need = MODEL.context + MODEL.predict
    text = "x" * (need - 2)
    dataset = ShardDataset(made(tmp_path, text), [made(tmp_path, "y", "valid")], found_of())
    assert dataset.windows == 1 and dataset.batch(3, 2)[0].shape == (2, MODEL.context)
    moved, short = replace(found_of(), info={"source": "/old/place"}), made(tmp_path, text[1:], "short")
    said = f"training part must have at least {need} tokens (--context 12 plus --predict 2), got {need - 1}"
    assert error_of(ShardDataset, short, [made(tmp_path, "y", "v2")], moved) == f"/old/place: {said}"


# Validation.


def test_whole_documents_are_held_out(tmp_path):
    found = made(tmp_path)
    dataset = ShardDataset(found, None, found_of(fraction=0.2))
    held, whole = dataset.valid["valid"], found.read(0, found.tokens)
    assert held.start in found.starts and dataset.part.stop == held.start + 1 and held.stop == found.tokens
    assert held.start >= 0.8 * found.tokens > found.starts[found.starts.tolist().index(held.start) - 1]
    assert np.array_equal(dataset.part.read(0, dataset.tokens), whole[: held.start + 1])
    assert np.array_equal(held.read(0, 9), whole[held.start : held.start + 9])
    assert dataset.sizes == {"train_tokens": held.start + 1, "valid_tokens": found.tokens - held.start}
    long = made(tmp_path, SEPARATOR.join([story(1, 50), story(2, 3000)]), "long")  # the cut is inside the last document
    for rule, start in (({}, long.starts[1]), ({"split": 2}, round(0.9 * long.tokens))):
        dataset = ShardDataset(long, None, replace(found_of(fraction=0.1), info=rule))
        assert dataset.valid["valid"].start == start and dataset.warnings == []
    none = ShardDataset(found, None, found_of(fraction=0.0))
    assert (none.tokens, none.validation(None), none.sizes["valid_tokens"]) == (found.tokens, {}, 0)
    seen = [none.seen(steps) * none.tokens for steps in (0, 1, 10**6)]
    assert seen == pytest.approx([0, none.train.batch * MODEL.context, none.windows * MODEL.context])


def test_bits_per_byte_are_those_of_all_tokens_in_windows(tmp_path):
    found, model = made(tmp_path), GPT(MODEL, oracles.random_parameters(MODEL, 0, 0.1))
    valid = [made(tmp_path, text_of(range(40, 47), 17), "one"), made(tmp_path, story(50), "two")]
    entry, parts = ShardDataset(found, valid, found_of()).validation(model), {}
    for folder in valid:
        tokens = data.Tokens(folder.read(0, folder.tokens), None, np.asarray(TOKENIZER.token_lengths))
        parts[folder.name] = datasets.bits_per_byte(model, tokens), int(tokens.lengths[tokens.ids].sum())
        assert entry["valid_sets"][folder.name] == pytest.approx(parts[folder.name][0], rel=1e-5)
    whole = sum(bits * size for bits, size in parts.values()) / sum(size for _, size in parts.values())
    assert entry["valid_bits_per_byte"] == pytest.approx(whole, rel=1e-5) and "valid_share" not in entry
    assert set(ShardDataset(found, valid[:1], found_of()).validation(model)) == {"valid_bits_per_byte"}


def test_a_sample_is_windows_at_equal_distances(tmp_path):
    dataset = ShardDataset(made(tmp_path), [made(tmp_path, text_of(range(40, 80)), "v")], found_of())
    tokens, model, asked = dataset.sizes["valid_tokens"] - 1, GPT(MODEL), []
    rows = -(-tokens // MODEL.context)

    def scored(model, part, chosen):
        asked.append(chosen)
        return 8.0, 4, len(chosen) * MODEL.context

    with patch.object(datasets, "SAMPLE", 10 * MODEL.context), patch.object(dataset, "_scored", scored):
        entry = dataset.validation(model, whole=False)
        assert entry == {"valid_bits_per_byte": 2.0, "valid_share": round(10 * MODEL.context / tokens, 4)}
        dataset.validation(model, whole=True)
    assert (asked[0][0], asked[0][-1]) == (0, rows - 1)
    assert set(np.diff(asked[0])) <= {(rows - 1) // 9, -(-(rows - 1) // 9)}
    assert asked[1].tolist() == list(range(rows))
    assert "valid_share" not in dataset.validation(model, whole=False), "a small set must always be scored completely"


@pytest.mark.parametrize("sampled", [True, False])
def test_when_a_validation_is_whole(tmp_path, sampled):
    """Validate completely before the first step, every tenth time and at the end, and measure the vital signs then."""
    config, most = changed(RUN_CONFIG, steps=45, valid_every=2, save_every=50), 100 if sampled else 10**6
    measured = {"valid_bits_per_byte": 1.0}
    with (
        patch.object(ShardDataset, "validation", return_value=measured) as validation,
        patch.object(datasets, "SAMPLE", most),
    ):
        train.pretrain(tmp_path / "run", made(tmp_path), None, MODEL, config, quiet=True)
    asked = [whole for (_, whole), _ in validation.call_args_list]
    wholes = [2 * i for i, whole in enumerate(asked[:-1]) if whole]
    assert wholes == ([0, 20, 40] if sampled else [*range(0, 45, 2)]) and asked[-1] and len(asked) == 24
    looked = [entry["step"] for entry in run_folder.read_log(tmp_path / "run") if "groups" in entry]
    assert looked == [1, *wholes[1:], 45]


def test_sets_must_be_told_apart_and_share_a_vocabulary(tmp_path):
    found = made(tmp_path)
    (tmp_path / "other").mkdir()
    twin = made(tmp_path / "other")
    assert "--valid must name folders with different names" in error_of(ShardDataset, found, [twin, found], found_of())
    strange = shards.write(tmp_path / "strange", [tmp_path / "shards.txt"], Tokenizer([], (END_OF_TEXT,)), 1)
    assert "got shards of a different tokenizer" in error_of(ShardDataset, found, [strange], found_of())


def test_copies_and_leaks_are_told(tmp_path):
    found = made(tmp_path, text_of([1, 2, 3, 1, 1]))
    dataset = ShardDataset(found, [made(tmp_path, text_of([3, 4]), "v")], found_of())
    found = [warning.partition(":")[2].partition(" training")[0] for warning in dataset.warnings]
    assert found == [" 2 of 5", " 1 of 2 validation documents appear in the"]
    text = datasets.TextDataset(text_of([1, 2, 3, 1, 1]), text_of([3, 4]), found_of())
    assert dataset.warnings == text.warnings
    assert ShardDataset(made(tmp_path, text_of(range(9)), "w"), None, found_of()).warnings == []


# Runs.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return made(folder), valid_sets(folder)


CONFIG = changed(RUN_CONFIG, steps=8, valid_every=3, save_every=2, sample_every=4)


def test_the_log_and_the_report_have_each_set(tmp_path, corpus):
    found, valid = corpus
    train.pretrain(tmp_path / "run", found, valid, MODEL, CONFIG, quiet=True)
    entries = [entry for entry in run_folder.read_log(tmp_path / "run") if "valid_sets" in entry]
    assert [entry["step"] for entry in entries] == [0, 3, 6, 8]
    page = report.report(tmp_path / "run").read_text()
    assert "| step | bits per byte | one | two |" in page and "| of one |" in page
    for entry in entries:
        sets = entry["valid_sets"]
        assert min(sets.values()) <= entry["valid_bits_per_byte"] <= max(sets.values())
        row = [entry["valid_bits_per_byte"], sets["one"], sets["two"]]
        assert f"| {entry['step']} | {' | '.join(f'{x:.4f}' for x in row)} |" in page
    assert checkpoint.load(tmp_path / "run").info["valid_sets"] == entries[-1]["valid_sets"]
    again = shards.write(tmp_path / "again", [found.path.with_suffix(".txt")], TOKENIZER, 1, shard_tokens=500)
    loop.resume(tmp_path / "run", again, valid, quiet=True)  # the same shards in a different folder


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Tokenize and train: for eight times the text, the peak grows by less than a tenth of the added text."""
    peaks, config = {}, changed(CONFIG, sample_every=0, valid_fraction=0.01)
    model = changed(MODEL, context=96)  # an epoch's order takes 4 bytes per window
    for stories in (100, 100, 800):  # the first round is a warm-up
        (tmp_path / "text").write_text(text_of(range(stories), 1000))
        for left in ("out", "run"):
            shutil.rmtree(tmp_path / left, ignore_errors=True)
        tracemalloc.start()
        with patch.object(datasets, "SAMPLE", 5000), patch.object(loop, "WHOLE_EVERY", 1000):
            options = dict(shard_tokens=50_000, piece=20_000)  # few shards, since each takes memory in the list
            found = shards.write(tmp_path / "out", [tmp_path / "text"], TOKENIZER, 1, **options)
            train.pretrain(tmp_path / "run", found, None, model, config, quiet=True)
        peaks[stories] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    more = (tmp_path / "text").stat().st_size * 7 / 8
    assert more > 2_500_000 and peaks[800] - peaks[100] < 0.1 * more, peaks


# Checkpoints by a thread.


def test_steps_go_on_while_a_checkpoint_is_written(tmp_path, corpus):
    """Check that a checkpoint contains the step at which it was requested, and that the next checkpoint waits."""
    original, may_end, seen, config = run_folder.save, threading.Event(), [], changed(CONFIG, keep_every=2)

    def slow(run, found, step):
        if step == 2:
            assert may_end.wait(60) and threading.current_thread() is not threading.main_thread()
        original(run, found, step)

    def on_entry(entry):
        if entry["step"] == 4 and "loss" in entry:
            seen.extend(folder.name for folder in checkpoint.folders(tmp_path / "run"))
            may_end.set()

    with patch.object(run_folder, "save", slow):
        train.pretrain(tmp_path / "run", *corpus, MODEL, config, quiet=True, on_entry=on_entry)
    assert seen == ["step-000000"], "steps 3 and 4 must run meanwhile"
    train.pretrain(tmp_path / "other", *corpus, MODEL, config, quiet=True)
    oracles.assert_same_run(tmp_path / "run", tmp_path / "other")
    a, b = (contents(tmp_path / name / "checkpoints" / "step-000002") for name in ("run", "other"))
    assert a == b, "it must contain the requested step"


# kill -9.

KILLED_WRITING = """
import os, signal, sys
import test_shards as t
original = t.shards._Stream._write
def write(self):
    original(self)
    if len(self.shards) == 3:
        file = self.folder / "00003.npy"
        file.write_bytes(b"half a shard")
        os.kill(os.getpid(), signal.SIGKILL)
t.shards._Stream._write = write
t.made(t.Path(sys.argv[1]), workers=2, piece=1000)
"""


def test_killed_in_the_middle_of_a_shard(tmp_path):
    """Check that no folder looks complete, the processes end, and the next call gives the result of a first call."""
    done = run_python(KILLED_WRITING, tmp_path)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / "shards").exists() and (tmp_path / ".shards.partial" / "00003.npy").exists()
    assert "no such file" in error_of(Shards, tmp_path / "shards")
    assert "no such file" in error_of(Shards, tmp_path / ".shards.partial")
    (tmp_path / ".shards.partial" / "00077.npy").write_bytes(b"of a longer text")
    until = time.monotonic() + 20
    while (tmp_path / ".shards.partial").exists() and time.monotonic() < until:
        with suppress(ValueError):  # its processes need a moment to notice the kill
            made(tmp_path)
    made(tmp_path, name="whole")
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


def test_two_at_once_are_kept_apart(tmp_path):
    said, original = [], shards._Stream.close

    def intrude(self):
        said.append(error_of(made, tmp_path))
        original(self)

    with patch.object(shards._Stream, "close", intrude):
        assert made(tmp_path).documents == 30
    assert said == [f"{tmp_path / 'shards'}: another process is writing it: wait until it has finished"]


# The command.


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("text", range(30)), ("one", range(40, 44)), ("two", range(44, 48))):
        Path(f"{name}.txt").write_text(text_of(numbers))
    TOKENIZER.save("bpe.json")
    for name in ("text", "one", "two"):
        assert cli.main(["shards", f"{name}.txt", "--tokenizer", "bpe.json", "--out", name, "--workers", "1"]) == 0
    return tmp_path


SHAPE = "--dim 16 --heads 2 --kv-heads 1 --layers 1 --context 12 --predict 2 --batch 4 --warmup 2 --quiet".split()


def failed(capsys, *words):
    capsys.readouterr()
    assert cli.main(list(words)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_the_command(here, capsys):
    words = "train --data text --valid one --valid two --run run".split()
    assert cli.main([*words, *SHAPE, "--steps", "0.3ktok", "--valid-every", "96tok", "--save-every", "145tok"]) == 0
    head = checkpoint.read_head("run")
    assert head["step"] == math.ceil(300 / 48) == 7 and head["model"]["vocab_size"] == TOKENIZER.vocab_size
    assert (head["train"]["valid_every"], head["train"]["save_every"], head["train"]["warmup"]) == (2, 4, 2)
    names = {"text": "text", "valid": "one", "valid_2": "two"}
    assert head["info"]["files"] == {kind: str(here / name) for kind, name in names.items()}
    sets = head["info"]["valid_sets"]
    told = rf"bits per byte, one {sets['one']:.4f}, two {sets['two']:.4f}; [\d.]+% of the training text was used"
    assert re.search(told, capsys.readouterr().out)
    assert cli.main(["train", "--resume", "run", "--steps", "480tok", "--quiet"]) == 0
    assert checkpoint.read_head("run")["step"] == 10
    os.rename("two", "zwei")
    assert "--valid FILE" in failed(capsys, "train", "--resume", "run", "--steps", "12")
    wrong = failed(capsys, "train", "--resume", "run", "--valid", "one", "--steps", "12")
    assert "--valid must name 2 files, as when the run began, got 1" in wrong
    assert cli.main("train --resume run --valid one --valid zwei --steps 12 --quiet".split()) == 0
    assert checkpoint.read_head("run")["info"]["files"]["valid_2"] == str(here / "zwei")


def test_the_command_says_what_it_wrote(here, capsys):
    capsys.readouterr()
    assert cli.main("shards text.txt one.txt --tokenizer bpe.json --out both --json".split()) == 0
    both = Shards("both")
    told = {"out": "both", "tokens": both.tokens, "documents": 34, "bytes": both.bytes}
    assert json.loads(capsys.readouterr().out) == told


@pytest.mark.parametrize("line, said", [
    ("train --run run --data text --tokenizer bpe.json", "--tokenizer must not be given with shards"),
    ("train --run run --data text.txt --valid one.txt --valid two.txt", "--valid must be given at most once"),
    ("train --run run --data text --valid one.txt", "one.txt"),
])  # fmt: skip
def test_the_command_refuses(here, capsys, line, said):
    shape = SHAPE if line.startswith("train") else []
    assert said in failed(capsys, *line.split(), *shape) and not Path("run").exists()
