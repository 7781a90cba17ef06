"""The appendix on the runtime: its checks accept what is right and reject wrong answers, each of them named."""

from collections import defaultdict

import numpy as np
import pytest
from chapters import definitions, rejected, try_exercise, try_gap, wrong_answers_of


@pytest.fixture(scope="module")
def chapter():
    return definitions("A1_cpu_runtime", "DONE", "WARP", "Access", "here", "meet", "lines", "run", "my_")


# ---- The gaps


def run_block(
    kernel, threads, *args, order=lambda t: t, whole=False, rounds=None, same_line=True, nobody_left=True
):
    """A block as fibers, with one thing wrong, if asked."""
    fibers = [kernel(t, threads, *args) for t in range(threads)]
    if whole:  # a loop over threads
        return [t for t in range(threads) for _ in (*fibers[t], None)]
    running, ran = sorted(range(threads), key=order), []
    while running and rounds != 0:
        rounds = rounds and rounds - 1
        ran += running
        running = [t for t in running if next(fibers[t], "returned") != "returned"]
        lines = {fibers[t].gi_frame.f_lineno for t in running}
        if (same_line and len(lines) > 1) or (nobody_left and running and len(running) < threads):
            raise RuntimeError("divergent barrier")
    return ran


WRONG_SCHEDULERS = {
    "a loop over threads": dict(whole=True),
    "the last thread first": dict(order=lambda t: -t),
    "even threads before odd ones": dict(order=lambda t: (t % 2, t)),
    "nobody goes on after the first barrier": dict(rounds=1),
    "who waits at the last barrier never returns": dict(rounds=3),
    "two barriers taken for one": dict(same_line=False),
    "a thread that has left is not missed": dict(nobody_left=False),
}


def meet(alive, waiting, everybody=None, early=False, same=True, only=None, each=False):
    """One warp at a warp function, with one thing wrong, if asked."""
    expected = everybody or alive
    if not waiting or (waiting.keys() != expected and not early):
        return {}
    functions = {function for function, _ in waiting.values()}
    if same and len(functions) > 1:
        raise RuntimeError("different functions")
    arguments = {lane: argument for lane, (_, argument) in waiting.items()}
    if len(functions) > 1:
        return arguments
    function = functions.pop()
    if each:
        return {lane: function({lane: argument})[lane] for lane, argument in arguments.items()}
    results = function(arguments)
    return {max(results): results[max(results)]} if only else results


WRONG_MEETINGS = {
    "does not wait": dict(early=True),
    "waits for lanes that have returned": dict(everybody={0, 1, 2, 3}),
    "takes any function": dict(same=False),
    "a result for the last lane alone": dict(only=True),
    "the function run lane by lane": dict(each=True),
}


def races(
    trace,
    ordered=lambda a, b, same: (
        a.thread == b.thread or a.epoch != b.epoch or (same and a.warp_epoch != b.warp_epoch)
    ),
    readers=None,
    reads_read=False,
    place=lambda a: a.place,
    forget=True,
    writes_seen=True,
    reversed_pair=False,
):
    """The first race of a trace by notes of each place, with one thing wrong, if asked."""
    last_write, read = {}, defaultdict(list)
    for now in trace:
        at = place(now)
        earlier = [last_write[at]] if at in last_write and writes_seen else []
        earlier += read[at] if now.writes or reads_read else []
        for then in earlier:
            if not ordered(then, now, then.thread // 4 == now.thread // 4):
                return [now, then] if reversed_pair else [then, now]
        if now.writes:
            last_write[at] = now
            read[at] = [] if forget else read[at]
        elif readers != 0:
            read[at] = [*read[at], now][-readers if readers else 0 :]
    return []


WRONG_DETECTORS = {
    "one reader kept": dict(readers=1),
    "no reader kept": dict(readers=0),
    "two reads race": dict(reads_read=True),
    "places mixed up": dict(place=lambda a: 0),
    "a read never meets a write": dict(writes_seen=False),
    "warp barriers ignored": dict(ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch),
    "warp barriers order the block": dict(
        ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch or a.warp_epoch != b.warp_epoch
    ),
    "a warp needs no order": dict(ordered=lambda a, b, same: same or a.epoch != b.epoch),
    "barriers of the block ignored": dict(
        ordered=lambda a, b, same: a.thread == b.thread or (same and a.warp_epoch != b.warp_epoch)
    ),
    "a thread races with itself": dict(
        ordered=lambda a, b, same: a.epoch != b.epoch or (same and a.warp_epoch != b.warp_epoch)
    ),
    "time orders": dict(ordered=lambda a, b, same: True),
    "the later access first": dict(reversed_pair=True),
}


def cost(offsets, sector=32, word=4, banks=32, distinct=np.unique, aligned=True, most=np.max):
    """Sectors and turns of one request, with one thing wrong, if asked."""
    offsets = np.asarray(offsets)
    start = 0 if aligned else offsets.min()
    turns = np.bincount(distinct(offsets // word) % banks, minlength=1)
    return len(np.unique((offsets - start) // sector)), int(most(turns))


WRONG_COSTS = {
    "sectors of 128 bytes": dict(sector=128),
    "sectors counted from the first byte": dict(aligned=False),
    "a word read by two lanes takes two turns": dict(distinct=np.asarray),
    "sixteen banks": dict(banks=16),
    "banks of 8 bytes": dict(word=8),
    "the mean bank": dict(most=np.mean),
}

GAPS = {
    "scheduler": (run_block, WRONG_SCHEDULERS, "check_run_block", "my_run_block", "book_run_block"),
    "meeting": (meet, WRONG_MEETINGS, "check_meet", "my_meet", "book_meet"),
    "races": (races, WRONG_DETECTORS, "check_races", "my_races", "book_races"),
    "cost": (cost, WRONG_COSTS, "check_cost", "my_cost", "book_cost"),
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_gap(chapter, gap):
    try_gap(chapter, gap)


@pytest.mark.parametrize("gap, wrong", wrong_answers_of(GAPS))
def test_wrong_answer_to_a_gap_is_rejected(chapter, gap, wrong):
    assert rejected(getattr(chapter, gap[2]), wrong)


def test_the_detector_may_keep_every_reader_for_ever(chapter):
    """What the page says of forgetting reads at a write: it changes nothing."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        trace = chapter.random_trace(rng)
        assert bool(races(trace)) == bool(races(trace, forget=False))


# ---- The exercises: check, stub, solution, and the wrong answers that the notebook itself names


EXERCISES = {
    "lines": lambda c: (c.check_lines, c.my_lines, c.lines, c.wrong_lines),
    "clocks": lambda c: (c.check_clock_race, c.my_clock_race, c.clock_race, c.wrong_clock_races),
    "one": lambda c: (c.check_run, c.my_run, c.run, c.wrong_runs),
}


@pytest.mark.parametrize("parts", EXERCISES.values(), ids=EXERCISES)
def test_exercise_check(chapter, parts):
    try_exercise(*parts(chapter))
