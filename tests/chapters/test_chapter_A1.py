"""The appendix on the runtime: its checks accept what is right and reject wrong answers, each of them named."""

from chapters import accepts, rewritten_tests

NOTEBOOK = "A1_cpu_runtime", "DONE", "WARP", "Access", "here", "meet"


# ---- The gaps

ORDER = "    running, order = range(threads), []\n"
WRONG_SCHEDULERS = {
    "a loop over threads": (ORDER, f"    return [t for t in range(threads) for _ in (*fibers[t], None)]\n{ORDER}"),
    "no thread continues after the first barrier": ("        lines = {", "        return order\n        lines = {"),
    "threads that wait at the last barrier never return": (
        "        lines = {",
        "        if len(order) == 3 * threads:\n            return order\n        lines = {",
    ),
    "two barriers treated as one": ("len(lines) > 1 or ", ""),
    "a returned thread is not noticed": (" or (running and len(running) < threads)", ""),
}
RESULT = "functions.pop()({lane: argument for lane, (_, argument) in waiting.items()})"
WRONG_MEETINGS = {
    "does not wait": (" or waiting.keys() != alive", ""),
    "waits for lanes that have returned": ("waiting.keys() != alive", "len(waiting) < 4"),
    "different functions": ("if len(functions) > 1", "if False"),
    "a result only for the last lane": (RESULT, f"dict([max({RESULT}.items())])"),
    "the function run lane by lane": (RESULT, "{lane: f({lane: x})[lane] for lane, (f, x) in waiting.items()}"),
}
ORDERED, APART = "not ordered(then, now)", "then.thread != now.thread and then.epoch == now.epoch"
WRONG_DETECTORS = {
    "one reader kept": ("readers[now.place].append(now)", "readers[now.place] = [now]"),
    "two reads race": ("if now.writes:\n            earlier", "if True:\n            earlier"),
    "warp barriers ignored": (ORDERED, APART),
    "warp barriers order the block": (ORDERED, f"{APART} and then.warp_epoch == now.warp_epoch"),
    "a warp needs no order": (ORDERED, f"{APART} and then.thread // 4 != now.thread // 4"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_run_block": ("book_run_block", {}, WRONG_SCHEDULERS),
        "check_meet": ("book_meet", {}, WRONG_MEETINGS),
        "check_races": ("book_races", {}, WRONG_DETECTORS),
    }
)


# ---- Other right answers; the notebook tries the exercises' wrong ones


def races_by_pairs(trace):
    """Compare each access with all before it: of those that race, this finds the first."""
    for j, b in enumerate(trace):
        for a in trace[:j]:
            apart = a.thread != b.thread and a.epoch == b.epoch
            apart &= a.thread // 4 != b.thread // 4 or a.warp_epoch == b.warp_epoch
            if apart and a.place == b.place and (a.writes or b.writes):
                return [a, b]
    return []


RIGHT_RUNS = {
    "of another warp": [(6, 1, True, 0, 2), (0, 1, False, 1, 0), (4, 1, False, 1, 3), (4, 1, True, 1, 3)],
    "the last reader is ordered by its warp": [(0, 0, False, 2, 5), (4, 0, False, 2, 1), (5, 0, True, 2, 2)],
}
test_other_right_answers = accepts(
    {"check_races": [races_by_pairs], "check_run": [lambda run=run: run for run in RIGHT_RUNS.values()]}
)
