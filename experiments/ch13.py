"""Chapter 13: time the versions of a training step, its composites, micro-batches, threads and bounds, on two cores.

    python -m experiments.ch13                # everything
    python -m experiments.ch13 --threads      # measure only the threads again, and keep the other results
    python -m experiments.ch13 --frame        # measure only the steps of the frame (ch13_frame.json, a few seconds)

Everything is timed in alternating rounds by the notebook's cells tagged `experiment`. Times with one worker are
processor time, and times with several threads are wall-clock time. These wait until a second core is free, and should
run on an otherwise idle machine.
"""

from benchmarks.contest import keep_to_cores, quiet_environment

quiet_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import numpy as np  # noqa: E402

from tools.notebooks.cells import run_tagged  # noqa: E402
from tools.notebooks.results import FOLDER, save  # noqa: E402

CORES, ROUNDS, TRIES, FREE = 2, 9, 40, 1.7


def milliseconds(seconds: dict, kind: str) -> list[dict]:
    """A row for each contender with the time of every round."""
    return [{"kind": kind, "name": name, "ms": (1e3 * s).round(3).tolist()} for name, s in seconds.items()]


def one_core(n: dict) -> list[dict]:
    """Copies and ceilings, the composites, the ladder, micro-batches."""
    race, names, clock = n["race"], n["NAMES"], time.process_time
    rates = [n["ceilings"]() for _ in range(3)]
    best = {kind: max(getattr(rate, kind) for rate in rates) / 1e9 for kind in ("flops", "memory", "cache")}
    rows = [{"kind": "ceilings"} | {f"giga_{kind}": round(value, 1) for kind, value in best.items()}]
    for size in (2**k for k in range(15, 28)):
        rate = max(n["copy_rate"](size) for _ in range(3))
        rows.append({"kind": "copy", "bytes": size, "gb_per_second": round(rate / 1e9, 1)})
    versions = {"plain": n["mixture"](), "fast": n["mixture"](*names)}
    profiles = [{version: n["profile"](ops, 1) for version, ops in versions.items()} for _ in range(ROUNDS)]
    for version in versions:
        for name in names:
            ms = 1e3 * float(np.median([profile[version][name] for profile in profiles]))
            rows.append({"kind": "composite", "version": version, "composite": name, "ms": round(ms, 3)})
    rows += milliseconds(race(n["rungs"](), ROUNDS, clock), "ladder")
    steps = {
        (version, sequences): n["whole_step"](names if version == "fast" else (), sequences)
        for version in versions
        for sequences in (1, 2, 4, 8, 16)
    }
    for (version, sequences), seconds in race(steps, ROUNDS, clock).items():
        ms = (1e3 * seconds).round(3).tolist()
        rows.append({"kind": "micro", "version": version, "sequences": sequences, "ms": ms})
    return rows


def two_cores(n: dict) -> list[dict]:
    """A step with BLAS threads and with workers, and what a second thread adds by the length of a call."""
    gains = []

    def undisturbed(measure):
        """What measure() finds while a second core is free: before and after it, two threads do twice the products."""
        for _ in range(TRIES):
            before, found, after = n["on_products"](), measure(), n["on_products"]()
            if min(before, after) > FREE:
                gains.extend((before, after))
                return found
            time.sleep(3)
        sys.exit(f"no second core was free: products gain {before:.2f} and {after:.2f}, expected {FREE}")

    rounds, clock = 4 * ROUNDS, time.perf_counter
    rows = milliseconds(undisturbed(lambda: n["race"](n["threaded"](), rounds, clock)), "threads")
    for numbers in (2**k for k in range(10, 22)):
        gain = undisturbed(lambda numbers=numbers: n["on_exp"](numbers, 2**23))
        rows.append({"kind": "lock", "numbers": numbers, "gain": round(gain, 2)})
    return [{"kind": "products", "gain": round(float(np.median(gains)), 2)}, *rows]


def frame_steps(n: dict) -> None:
    """Save the time of a step of the frame, with the plain functions and with the fast composites."""
    load = round(os.getloadavg()[0], 1)
    rows = milliseconds(n["race"](n["frame_steps"](), ROUNDS, time.process_time), "frame")
    save(
        "ch13_frame",
        {"model": n["frame"].CONFIG.to_dict(), "batch": n["frame"].ROWS, "rounds": ROUNDS, "load": load},
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", action="store_true", help="measure threads only, keep the rest of the record")
    parser.add_argument("--frame", action="store_true", help="measure only the steps of the frame")
    options = parser.parse_args()
    cores, load = keep_to_cores(CORES), {"start": round(os.getloadavg()[0], 1)}
    n = run_tagged("13_fast_on_a_cpu", "experiment")
    if not options.threads:
        frame_steps(n)
    if options.frame:
        return
    if options.threads:
        record = json.loads((FOLDER / "ch13.json").read_text("utf-8"))
        rows = [row for row in record["rows"] if row["kind"] not in ("products", "threads", "lock")]
        load = record["config"]["load"] | {"threads": load["start"]}
    else:
        rows = one_core(n)
        load["threads"] = round(os.getloadavg()[0], 1)
    rows += two_cores(n)
    config = {
        "model": n["SMALL"].to_dict(),
        "batch": n["BATCH"],
        "rounds": ROUNDS,
        "cores": cores,
        "load": load,
    }
    save("ch13", config, rows)


if __name__ == "__main__":
    main()
