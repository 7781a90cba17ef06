"""Run the contenders of a benchmark in alternation, each in its own process with its own environment.

A benchmark calls `take_turns`, which starts `python -m MODULE --serve ARGUMENTS` for each contender. There, `serve`
answers every line on standard input with the result of one call, as JSON. Each round runs every contender once, and
ratios are computed within a round, so that a busy machine slows all contenders equally.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

from threadpoolctl import threadpool_info


def quiet_environment() -> None:
    """Take out what would choose BLAS kernels or threads for us; call before `import numpy`."""
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)


def keep_to_cores(count: int) -> int:
    """Keep this process and its children to so many cores, where the system can; returns how many it has."""
    if not hasattr(os, "sched_setaffinity"):
        return min(count, os.cpu_count() or 1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    return len(os.sched_getaffinity(0))


def serve(call: Callable[[], dict]) -> None:
    """In the contender's process: say what computes, then answer each line with call()."""
    blas = [f"{b['internal_api']} {b.get('version')}, kernels for {b.get('architecture')}"
            for b in threadpool_info() if b["user_api"] == "blas"]  # fmt: skip
    print(json.dumps({"blas": blas}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(call()), flush=True)


class Contender:
    """A process that serves: `python -m module --serve arguments`, with additions to the environment."""

    def __init__(self, module: str, *arguments: str, **environment: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip

    def ready(self) -> dict | None:
        """What it says of itself; None if it did not start. Call once, before `ask`."""
        self.about = self._answer()
        return self.about

    def _answer(self):
        line = self.process.stdout.readline()
        return json.loads(line) if line else None  # None: it has ended; its error is on standard error

    def ask(self) -> dict:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def take_turns(contenders: dict[str, Contender], rounds: int) -> dict[str, list[dict]]:
    """The answers of each contender, round by round."""
    answers = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            answers[name].append(contender.ask())
    return answers


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Median over rounds of their time by ours: above 1, we are faster."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def verdict(seconds: dict[str, list[float]], ratio: float, goal: float) -> str:
    """Whether the goal is met; nothing is decided when other work on the machine has slowed anyone by a third.

    Libraries suffer unequally: threads that spin while they wait for each other lose far more than threads that sleep.
    """
    for name, values in seconds.items():
        if (slowed := statistics.median(values) / min(values)) > 4 / 3:
            return f"not decided: other work disturbed {name}, whose median is {slowed:.2f} times its fastest round"
    return f"{'met' if ratio >= goal else 'MISSED'}: {ratio:.2f} times eager, goal {goal}"
