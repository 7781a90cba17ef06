"""Chapter 29: time a step with and without Python between its launches, and compare its memory with the prediction.

    python -m experiments.ch29              # on a GPU: `base`, 64 and 16 rows of 512 tokens, bfloat16
    python -m experiments.ch29 --small      # a small model, few rounds: a test that it runs on a CPU

There is a row for each batch and each way of running the same lists of launches. `list`: as in training (on a GPU, a
CUDA graph from the second time on). `launches`: one launch after another, from Python. `asked`: Python waits after
every launch, as it would to read a number at that point. `written anew`: the lists are recorded again in every step.
Times are milliseconds per step: medians over rounds in which the ways alternate. Memory: the prediction of
`bytes_needed`, and the bytes in use on the GPU.
"""

import argparse
import statistics
import time

import numpy as np

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import program
from tools.notebooks.results import save

SMALL = ModelConfig(64, 2, 1, 2, context=40, vocab_size=96, predict=2, ffn=176)
SETTINGS = TrainConfig(steps=1000, warmup=0)


def wait(where: str) -> None:
    """Wait until the GPU has finished all work."""
    if where == "gpu":
        import cupy

        cupy.cuda.get_current_stream().synchronize()


def in_use(where: str) -> int | None:
    """Return the number of bytes that CuPy's arrays take on the GPU."""
    if where == "cpu":
        return None
    import cupy

    return cupy.get_default_memory_pool().used_bytes()


def ways(where: str) -> dict:
    """Return the ways to run a list of launches, by name."""

    def launches(entries):
        for entry in entries:
            entry.launch()

    def asked(entries):
        for entry in entries:
            entry.launch()
            wait(where)

    return {"list": program.run, "launches": launches, "asked": asked, "written anew": launches}


def measure(config: ModelConfig, rows: int, rounds: int, where: str) -> list[dict]:
    """Return the rows of one batch size."""
    before = in_use(where)
    model = engine.GPT(config, precision="bfloat16", where=where, checked=False)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (rows, config.context))
    targets = rng.integers(0, config.vocab_size, (rows, config.context, config.predict))
    with engine.Step(model, engine.AdamW(config, SETTINGS, where), SETTINGS, rows, micro=rows) as step:
        taken = {name: [] for name in ways(where)}
        for turn in range(rounds + 2):  # the first two load, and capture
            for name, way in ways(where).items():
                step.run = way
                lists = model.plan(rows, config.context).lists
                kept = dict(lists)
                if name == "written anew":
                    lists.clear()
                wait(where)
                began = time.perf_counter()
                losses, norm = step(tokens, targets)
                wait(where)
                if name == "written anew":
                    lists.update(kept)
                if turn > 1:
                    taken[name].append(1e3 * (time.perf_counter() - began))
        used = None if before is None else in_use(where) - before
    assert np.isfinite(losses).all() and np.isfinite(norm)
    said = engine.bytes_needed(config, rows, config.context, "bfloat16", model.keep_x)
    return [
        {"way": name, "rows": rows, "ms": round(statistics.median(times), 3), "said": said, "in_use": used}
        for name, times in taken.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small model and few rounds")
    small, where, found = parser.parse_args().small, cuda.device(), []
    for rows in (2,) if small else (64, 16):
        for row in measure(SMALL if small else preset("base"), rows, 3 if small else 15, where):
            print(row, flush=True)
            found.append(row)
    save("ch29", {"device": where, "small": small}, found)


if __name__ == "__main__":
    main()
