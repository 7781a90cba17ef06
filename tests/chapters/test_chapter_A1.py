"""The appendix on the runtime: its checks accept what is right and reject wrong answers, each of them named."""

from collections import defaultdict

from chapters import accepts, gap_tests, slips

NOTEBOOK = "A1_cpu_runtime", "DONE", "WARP", "Access", "here", "meet"


# ---- The gaps


def run_block(
    kernel,
    threads,
    *args,
    order=lambda t: t,
    whole=False,
    rounds=None,
    same_line=True,
    nobody_left=True,
    first_round=False,
    two=False,
):
    """A block as fibers, with one thing wrong, if asked."""
    fibers = [kernel(t, threads, *args) for t in range(threads)]
    if whole:  # a loop over threads
        return [t for t in range(threads) for _ in (*fibers[t], None)]
    running, ran, lap = sorted(range(threads), key=order), [], 0
    while running and rounds != 0:
        rounds = rounds and rounds - 1
        ran += running
        running = [t for t in running if next(fibers[t], "returned") != "returned"]
        lines = {fibers[t].gi_frame.f_lineno for t in running if not two or t < 2}
        lap += 1
        if first_round and lap > 1:
            continue
        if (same_line and len(lines) > 1) or (nobody_left and running and len(running) < threads):
            raise RuntimeError("divergent barrier")
    return ran


WRONG_SCHEDULERS = {
    "a loop over threads": dict(whole=True),
    "nobody goes on after the first barrier": dict(rounds=1),
    "who waits at the last barrier never returns": dict(rounds=3),
    "two barriers taken for one": dict(same_line=False),
    "a thread that has left is not missed": dict(nobody_left=False),
    "divergence in the first round only": dict(first_round=True),
}


def run_block_by_counting(kernel, threads, *args):
    """Another right answer: who waits is counted by line after each round."""
    ran, fibers = [], dict(enumerate(kernel(t, threads, *args) for t in range(threads)))
    while fibers:
        waits = {}
        for t, fiber in fibers.items():
            ran.append(t)
            if next(fiber, "end") is None:
                waits.setdefault(fiber.gi_frame.f_lineno, {})[t] = fiber
        if waits and len(next(iter(waits.values()))) != threads:
            raise RuntimeError("they part")
        fibers = next(iter(waits.values()), {})
    return ran


def meet(alive, waiting, everybody=None, early=False, only=None, each=False):
    """One warp at a warp function, with one thing wrong, if asked."""
    expected = everybody or alive
    if not waiting or (waiting.keys() != expected and not early):
        return {}
    functions = {function for function, _ in waiting.values()}
    if len(functions) > 1:
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
    "a result for the last lane alone": dict(only=True),
    "the function run lane by lane": dict(each=True),
}


def meet_by_asking(alive, waiting):
    """Another right answer: lane by lane."""
    for lane in alive:
        if lane not in waiting:
            return {}
    given, common = {}, None
    for lane, (function, argument) in waiting.items():
        if common is not None and function is not common:
            raise RuntimeError("not the same")
        common, given[lane] = function, argument
    return common(given) if given else {}


def races(
    trace,
    ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch or (same and a.warp_epoch != b.warp_epoch),
    readers=None,
    reads_read=False,
    place=lambda a: a.place,
    forget=True,
):
    """The first race of a trace by notes of each place, with one thing wrong, if asked."""
    last_write, read = {}, defaultdict(list)
    for now in trace:
        at = place(now)
        earlier = [last_write[at]] if at in last_write else []
        earlier += read[at] if now.writes or reads_read else []
        for then in earlier:
            if not ordered(then, now, then.thread // 4 == now.thread // 4):
                return [then, now]
        if now.writes:
            last_write[at] = now
            read[at] = [] if forget else read[at]
        elif readers != 0:
            read[at] = [*read[at], now][-readers if readers else 0 :]
    return []


WRONG_DETECTORS = {
    "one reader kept": dict(readers=1),
    "two reads race": dict(reads_read=True),
    "warp barriers ignored": dict(ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch),
    "warp barriers order the block": dict(
        ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch or a.warp_epoch != b.warp_epoch
    ),
    "a warp needs no order": dict(ordered=lambda a, b, same: same or a.epoch != b.epoch),
    "time orders": dict(ordered=lambda a, b, same: True),
}


def races_by_pairs(trace):
    """Another right answer, and the oracle of what follows: each access is compared with all before it."""
    for j, b in enumerate(trace):
        for a in trace[:j]:
            apart = a.thread != b.thread and a.epoch == b.epoch
            apart &= a.thread // 4 != b.thread // 4 or a.warp_epoch == b.warp_epoch
            if apart and a.place == b.place and (a.writes or b.writes):
                return [a, b]
    return []


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_run_block": (
            [run_block, run_block_by_counting],
            slips(run_block, WRONG_SCHEDULERS),
        ),
        "check_meet": ([meet, meet_by_asking], slips(meet, WRONG_MEETINGS)),
        "check_races": (
            [races, races_by_pairs, lambda trace: races(trace, forget=False)],
            slips(races, WRONG_DETECTORS),
        ),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def clock_race_by_sets(threads, events):
    """Another right answer: each thread carries the set of the events that it has heard of."""
    heard, before = [set() for _ in range(threads)], {}
    for j, (what, who, *rest) in enumerate(events):
        met = who if what == "meet" else {who}
        known = set.union(*(heard[t] for t in met))
        for t in met:
            heard[t] = known | {j}
        for i in before.get(rest[0], []) if rest else ():
            if i not in known and events[i][1] != who and "write" in (what, events[i][0]):
                return [i, j]
        if rest:
            before.setdefault(rest[0], []).append(j)
    return []


RIGHT_RUNS = {
    "of another warp": [(6, 1, True, 0, 2), (0, 1, False, 1, 0), (4, 1, False, 1, 3), (4, 1, True, 1, 3)],
    "the last reader is ordered by its warp": [(0, 0, False, 2, 5), (4, 0, False, 2, 1), (5, 0, True, 2, 2)],
}
test_other_right_answers = accepts(
    {
        "check_clock_race": [clock_race_by_sets],
        "check_run": [lambda run=run: run for run in RIGHT_RUNS.values()],
    }
)
