"""Chapter 30: measure the upper bounds of a GPU, and where the time of a training step and of a token goes.

    python -m experiments.ch30                # on a GPU: `base`, bfloat16
    python -m experiments.ch30 --small        # a small model, few rounds: a test that it runs on a CPU
    python -m experiments.ch30 --out FOLDER   # writes the JSON there

The field "row" says what a row is:

"ceiling"  bandwidth of a large copy (GB/s, read plus written), and speed of a large product (TFLOP/s)
"launch"   microseconds per launch of a kernel that does nothing: on the host; on the GPU in a graph; on the GPU from
           the queue (`alone`), and from the queue between two CUDA events (`marked`)
"profile"  one kind of launch in a step with this many rows: number of launches, total milliseconds, bytes, operations
"step"     a whole step with this many rows: milliseconds in CUDA graphs and by a loop of launches, in alternation; host
           time to fill the loop's queue (`queued`), and GPU time of the graphs (`card`), for each round
"decode"   a token at a position: milliseconds in a graph and by a loop, with the upload of tokens and the download of
           logits, and only on the GPU
"token"    one kind of launch for a token, like "profile"
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.cuda import blas
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.step import Profile
from tools.notebooks.results import FOLDER, save

SMALL = ModelConfig(64, 2, 1, 2, context=40, vocab_size=96, predict=2, ffn=176)
SETTINGS = TrainConfig(steps=1000, warmup=0)
PRECISION = "bfloat16"
SIZES = {False: dict(rows=(64, 32, 16, 8, 4, 2, 1), profiled=(64, 16, 1), rounds=15, places=(10, 100, 300, 500)),
         True: dict(rows=(2, 1), profiled=(2, 1), rounds=2, places=(3, 30))}  # fmt: skip
COPY = {"gpu": 1 << 30, "cpu": 1 << 24}  # bytes
SIDE = {"gpu": 8192, "cpu": 256}  # of the matrices of the large product
NOTHING = 200  # launches in a list of launches that do nothing
TOKENS = 8  # at a position, in a round


class Clock:
    """Measure times of the GPU and of the host."""

    def __init__(self, where: str, ahead: Callable[[], None]):
        self.where, self.ahead = where, ahead  # ahead: work that keeps the GPU busy while Python fills the queue

    def wait(self) -> None:
        if self.where == "gpu":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def host(self, work: Callable[[], None]) -> float:
        """Return the milliseconds until the host has the result."""
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return 1e3 * (time.perf_counter() - began)

    def queued(self, work: Callable[[], None]) -> float:
        """Return the milliseconds in which the host fills the queue while the GPU does other work."""
        self.wait()
        self.ahead()
        began = time.perf_counter()
        work()
        ms = 1e3 * (time.perf_counter() - began)
        self.wait()
        return ms

    def card(self, work: Callable[[], None]) -> float:
        """Return the milliseconds on the GPU of work that was in the queue before it began."""
        self.wait()
        if self.where == "cpu":
            return self.host(work)
        import cupy

        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        self.ahead()
        first.record()
        work()
        last.record()
        last.synchronize()
        return cupy.cuda.get_elapsed_time(first, last)

    def kinds(self, lists: list[program.Launches], rounds: int) -> list[dict]:
        """Return a row for each kind of launch: the number of launches, their milliseconds, bytes and flops.

        The milliseconds are medians over rounds. There are CUDA events before and after each launch; the row "launch"
        shows how much time the events add.
        """
        taken = {}
        for _ in range(rounds):
            found = []
            for launches in lists:
                self.wait()
                self.ahead()
                watch = Named(self.where)
                watch.run(launches)
                found.append(watch.of)
            for key in {key: None for of in found for key in of}:
                each = [of[key] for of in found if key in of]
                taken.setdefault(key, []).append([sum(values) for values in zip(*each, strict=True)])
        return [
            {"composite": composite, "what": what, "count": sums[0][0],
             "ms": round(1e3 * statistics.median(s[1] for s in sums), 4), "bytes": sums[0][2], "flops": sums[0][3]}
            for (composite, what), sums in taken.items()
        ]  # fmt: skip


class Named(Profile):
    """Profile launches by composite, and by kernel or by the shape of the product."""

    def run(self, entries: program.Launches) -> None:
        super().run([Keyed(entry) for entry in entries])


class Keyed:
    """Give an entry of a list a more detailed name."""

    def __init__(self, entry: program.Entry):
        self.launch, self.bytes, self.flops = entry.launch, entry.bytes, entry.flops
        if isinstance(entry.launch, blas.Product | program.Copy):
            name = str(entry.launch).replace("+=", "=")
        else:
            name = cuda.describe(entry.launch).split(", grid ")[0].split("<")[0]
        self.composite = entry.composite, name


def loop(launches: program.Launches) -> None:
    """Run one launch after another from Python."""
    for entry in launches:
        entry.launch()


def ceilings(where: str, rounds: int) -> tuple[list[dict], Callable[[], None]]:
    """Return the rows of the two upper bounds, and a function that keeps the GPU busy with the product."""
    xp, side = cuda.array_module(where), SIDE[where]
    source = xp.ones(COPY[where], np.uint8)
    target = xp.empty_like(source)
    numbers = np.random.default_rng(0).standard_normal((side, side), np.float32)
    a, b = (xp.asarray(blas.to_bfloat16(x)) for x in (numbers, numbers.T))
    product = blas.product(xp.empty((side, side), np.uint16), a, b)
    clock, few = Clock(where, lambda: None), 10 if where == "gpu" else 1

    def copy():
        for _ in range(few):
            xp.copyto(target, source)

    def multiply():
        for _ in range(few):
            product()

    multiply()
    rows = []
    for of, unit, work, size in (
        ("copy", "GB/s", copy, 1e-9 * 2 * source.nbytes),
        ("product", "TFLOP/s", multiply, 1e-12 * 2 * side**3),
    ):
        seconds = [clock.card(work) / 1e3 / few for _ in range(rounds + 2)][2:]
        row = {"row": "ceiling", "of": of, unit: round(size / statistics.median(seconds), 4)}
        rows.append(row | {"spread": [round(size / f(seconds), 4) for f in (max, min)]})
    return rows, lambda: [product() for _ in range(8 if where == "gpu" else 0)]


def nothing(model: engine.GPT, clock: Clock, rounds: int) -> dict:
    """Return the row of a launch of a kernel that does nothing."""
    xp = cuda.array_module(clock.where)
    factor, sums = xp.zeros(2, np.float32), xp.zeros(1, np.float32)
    for _ in range(NOTHING):
        model.program.refuse(factor, sums)
    launches = model.program.take()
    program.run(launches), program.run(launches)
    found = {"host": [], "graph": [], "alone": []}
    for _ in range(rounds):
        found["host"].append(clock.queued(lambda: loop(launches)))
        found["graph"].append(clock.card(lambda: program.run(launches)))
        found["alone"].append(clock.card(lambda: loop(launches)))
    found["marked"] = [kind["ms"] for kind in clock.kinds([launches], rounds)]
    row = {"row": "launch", "launches": NOTHING}
    return row | {name: round(1e3 * statistics.median(of) / NOTHING, 3) for name, of in found.items()}


def lists_of(plan) -> list[program.Launches]:
    """Return the lists of a step, in the order in which they run."""
    found = []
    for kept in plan.lists.values():
        found += kept if isinstance(kept, tuple) else [kept]
    return found


def steps(model: engine.GPT, rows: int, profiled: bool, rounds: int, clock: Clock) -> list[dict]:
    """Return the rows of a batch size: the whole step, and the kinds of its launches if `profiled`."""
    config, rng = model.config, np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (rows, config.context))
    targets = rng.integers(0, config.vocab_size, (rows, config.context, config.predict))
    optimizer = engine.AdamW(config, SETTINGS, clock.where)
    with engine.Step(model, optimizer, SETTINGS, rows, micro=rows) as step:
        taken, ways = {"graph": [], "loop": []}, {"graph": program.run, "loop": loop}
        for turn in range(rounds + 2):  # the first two turns load code and capture
            for name, step.run in ways.items():
                ms = clock.host(lambda: step(tokens, targets))
                if turn > 1:
                    taken[name].append(ms)
        lists = lists_of(model.plan(rows, config.context))
        written = [sum(clock.queued(partial(loop, part)) for part in lists) for _ in range(rounds)]
        card = [sum(clock.card(partial(program.run, part)) for part in lists) for _ in range(rounds)]
        kinds = clock.kinds(lists, min(rounds, 5)) if profiled else []
    found = {"row": "step", "rows": rows, "launches": sum(map(len, lists)), "lists": len(lists)}
    found["ms"] = {name: round(statistics.median(of), 4) for name, of in taken.items()}
    found["rounds"] = {name: [round(ms, 4) for ms in of] for name, of in taken.items()}
    found |= {"queued": round(statistics.median(written), 4), "card": round(statistics.median(card), 4)}
    return [found, *({"row": "profile", "rows": rows} | kind for kind in kinds)]


def tokens(model: engine.GPT, places: tuple[int, ...], rounds: int, clock: Clock) -> list[dict]:
    """Return the rows of single tokens at some positions, and the kinds of launches at the third or last position."""
    decoder, found, kinds = model.decoder(), [], []
    text = np.random.default_rng(1).integers(0, model.config.vocab_size, max(places) + TOKENS)
    decoder.feed(text[: max(places)])
    plain = program.run

    def some(place):
        decoder.length = place
        for token in text[place : place + TOKENS]:
            decoder.feed(np.array([token]))

    some(min(places))  # captures the list of one token
    launches = decoder._list(1)
    try:
        for place in places:
            taken = {"graph": [], "loop": []}
            for turn in range(rounds + 1):
                for name, program.run in {"graph": plain, "loop": loop}.items():
                    ms = clock.host(partial(some, place)) / TOKENS
                    if turn:
                        taken[name].append(ms)
            program.run = plain
            card = [clock.card(lambda: [plain(launches) for _ in range(TOKENS)]) for _ in range(rounds)]
            row = {"row": "decode", "position": place, "launches": len(launches)}
            row["ms"] = {name: round(statistics.median(of), 5) for name, of in taken.items()}
            row["card"] = round(statistics.median(card) / TOKENS, 5)
            found.append(row)
            if place == places[min(2, len(places) - 1)]:
                kinds = clock.kinds([launches], min(rounds, 5))
    finally:
        program.run = plain
    return found + [{"row": "token"} | kind for kind in kinds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small model and few rounds")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    small, where = options.small, cuda.device()
    size, config = SIZES[small], SMALL if small else preset("base")
    found, ahead = ceilings(where, size["rounds"])
    clock = Clock(where, ahead)
    model = engine.GPT(config, precision=PRECISION, where=where, checked=False)
    found.append(nothing(model, clock, size["rounds"]))
    for rows in size["rows"]:  # the largest first: smaller batches use parts of its memory
        found += steps(model, rows, rows in size["profiled"], size["rounds"], clock)
    found += tokens(model, size["places"], size["rounds"], clock)
    for row in found:
        print(row, flush=True)
    settings = {"device": where, "small": small, "precision": PRECISION, "model": vars(config)}
    save("ch30", settings, found, options.out)


if __name__ == "__main__":
    main()
