"""Test a device that is out of memory: the messages, and that a run loses nothing. A stand-in GPU counts its arrays."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import device, memory, step
from nanoeuler_lib.engine.memory import OutOfMemory
from nanoeuler_lib.model import GPT
from nanoeuler_lib.training import checkpoint, loop, train

pytestmark = pytest.mark.compiler
MODEL = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=16, vocab_size=288, predict=2)
TRAIN = TrainConfig(steps=4, batch=2, warmup=1, valid_every=2, sample_every=0, save_every=9, valid_fraction=0.2)
TEXT = "".join(f"Line {n} of a text that repeats itself, and says so.\n" for n in range(90))
CHECKED = device.Device("checked", "bfloat16")


class CupysError(MemoryError):
    """A stand-in for cupy.cuda.memory.OutOfMemoryError, with its base class and its text."""


class Card:
    """NumPy's functions, with new arrays in a memory of `size` bytes."""

    def __init__(self):
        self.size, self.used, self.hidden = 1 << 40, 0, 0

    def __getattr__(self, name):
        return getattr(np, name)

    def empty(self, *arguments, **options):
        return self._kept(np.empty(*arguments, **options))

    def zeros(self, *arguments, **options):
        return self._kept(np.zeros(*arguments, **options))

    def _kept(self, array):
        if self.used + array.nbytes > self.size:
            raise CupysError(f"Out of memory allocating {array.nbytes:,} bytes (allocated so far: {self.used:,}).")
        self.used += array.nbytes
        weakref.finalize(array, self._freed, array.nbytes)
        return array

    def _freed(self, size):
        self.used -= size

    def free(self, where):
        return self.size - self.used + self.hidden  # hidden: memory that the driver reports as free but cannot allocate


@pytest.fixture
def card(monkeypatch):
    card = Card()
    monkeypatch.setattr(cuda, "array_module", lambda where=None: card)
    for module in (memory, step, engine.gpt):
        monkeypatch.setattr(module, "free_bytes", card.free)
    return card


def all_of_it():
    """Return {name in the message: a function that allocates memory}; a model and an optimiser exist already."""
    made = CHECKED.place(GPT(MODEL))
    optimizer = engine.AdamW(MODEL, TRAIN, "cpu")
    return {
        f"a model of {made.size:,} parameters": lambda: CHECKED.place(GPT(MODEL)),
        "AdamW's state": lambda: engine.AdamW(MODEL, TRAIN, "cpu"),
        "one row of 16 tokens and the gradient": lambda: engine.Step(made, optimizer, TRAIN, 2),
        "the work space of a batch": lambda: made.plan(4, 16),
        "a decoder, which has weights of its own,": made.decoder,
    }


def asked(card, take, free, hidden=0):
    """Return the message of an allocation with only this many bytes free."""
    before, card.size, card.hidden = card.used, card.used + free, hidden
    with pytest.raises(OutOfMemory) as error:
        take()
    told, card.size, card.hidden = str(error.value), 1 << 40, 0
    del error
    gc.collect()
    assert card.used == before, "its memory must be free again"
    return told


def test_what_finds_no_room_is_named_with_what_is_wanted_and_free(card):
    for name, take in all_of_it().items():
        told = asked(card, take, 900)
        assert told.startswith(f"out of memory: {name} take") and "0.00 GiB are free: take " in told
        told = asked(card, take, 900, hidden=1 << 30)  # the gradient's memory is allocated after the buffers
        found = name.replace("one row of 16 tokens and the gradient", "the work space of a batch")
        assert told.startswith(f"out of memory: {found} takes 0.00 GiB, 1.00 GiB are free (in pieces"), told
        assert "): take a" in told or ("): take fewer" in told and "\n" not in told)


def test_what_is_said_to_be_wanted_is_what_is_taken(card):
    """Check that the announced memory is enough, and that a tenth less is not."""
    for name, take in all_of_it().items():
        before, kept = card.used, take()
        taken = card.used - before
        del kept
        gc.collect()
        if "row" not in name and "work" not in name:  # the buffers of these stay with the model
            asked(card, take, 0.9 * taken)
        card.size = card.used + 1.1 * taken + 4096
        take()
        card.size = 1 << 40


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="of another kind"), memory.room_for("x", 1, "cpu", "y"):
        raise RuntimeError("of another kind")
    for text in ("cudaErrorMemoryAllocation: out of memory", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        told = pytest.raises(OutOfMemory, match=r"x takes 1\.00 GiB, 2\.00 GiB are free")
        with told, memory.room_for("x", 1 << 30, "cpu", "y"):
            raise RuntimeError(text)


def test_rows_are_scored_in_halves_where_they_do_not_fit_together(card):
    made, rng = GPT(MODEL), np.random.default_rng(0)
    tokens, targets = rng.integers(0, 288, (5, 16)), rng.integers(-1, 288, (5, 16))
    wanted = CHECKED.place(made).losses(tokens, targets)
    model = CHECKED.place(made)
    kept = model.plan(2, 16)
    gc.collect()  # free the first model's memory now, not during the next line
    card.size = card.used + 500
    assert np.array_equal(model.losses(tokens, targets), wanted) and model.plan(2, 16) is kept
    card.size = card.used
    model._plans.clear()
    model._plan = model._block = kept = None
    card.size = card.used + 10_000
    with pytest.raises(OutOfMemory):
        model.losses(tokens, targets)


# ---- A run


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name, config=TRAIN, **options: train.train(
        name, TEXT, MODEL, config, device=CHECKED, quiet=True, **options
    )


def test_a_run_without_room_leaves_nothing_and_begins_in_the_same_folder(card, run):
    card.size = 1 << 20
    with pytest.raises(OutOfMemory, match=r"^out of memory: weights, .* one row of 16 tokens take .* are free: take a"):
        run("a")
    card.size = 1 << 40
    assert run("a").size > 0


def test_a_run_whose_memory_ends_goes_on_from_its_last_whole_step(card, run, tmp_path):
    whole, start = run("whole").params.host(), engine.Step._start_gradient

    def end(entry):  # after step 3 of 4; the last checkpoint is from step 0
        if entry.get("step") == 3 and "loss" in entry:
            card.size = card.used

    def asking(self, *batch):
        if card.used >= card.size:
            card.empty(1)
        start(self, *batch)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine.Step, "_start_gradient", asking)
        with pytest.raises(OutOfMemory, match=r"8 bytes.*: take .*; the checkpoint of step 3 is intact: continue with"):
            run("a", on_entry=end)
    assert checkpoint.load(tmp_path / "a").step == 3
    card.size = 1 << 40
    again = loop.resume("a", TEXT, quiet=True)
    assert isinstance(again, engine.GPT) and again.precision == "bfloat16"
    assert np.array_equal(again.params.host().flat, whole.flat)


def test_a_run_without_room_for_a_sample_goes_on(card, run, capsys):
    entries, config = [], replace(TRAIN, sample_every=2)

    def end(entry):
        entries.append(entry)
        if entry.get("step") == 1 and "loss" in entry:
            card.size = card.used + 50_000

    run("a", config, on_entry=end)
    warned = [e["step"] for e in entries if "no sample: out of memory: a decoder" in e.get("warning", "")]
    assert warned == [2, 4] and not any("sample" in e for e in entries)
