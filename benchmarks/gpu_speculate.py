"""Time text generation on a GPU with draft tokens from the later heads and without, in one process and in alternation.

    python -m benchmarks.gpu_speculate --run RUN --data SHARDS                # stores data/results/gpu_speculate.json
    python -m benchmarks.gpu_speculate --run RUN --data SHARDS --out FOLDER   # writes the JSON there

Each of PROMPTS windows of the shards is continued by TOKENS tokens, with 0, 1, ... draft tokens per round. A row is a
number of draft tokens and a way of sampling. It has milliseconds per token (median over prompts), the time of plain
decoding divided by it (median of the ratios), tokens per round, and for greedy texts how many equal those of plain
decoding, token for token. The first ROUNDS rounds of a text are not timed, because they read the prompt and capture the
launches.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from nanoeuler_lib import engine
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.generation.generate import rounds
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.training import checkpoint
from tools.notebooks.results import FOLDER, save

PROMPTS, WINDOW, TOKENS, ROUNDS = 50, 32, 160, 6
WAYS = {"greedy": dict(temperature=0.0), "sampled": dict(temperature=0.8, top_p=0.95)}


def windows(shards: Shards, count: int) -> list[list[int]]:
    """Return windows of tokens at random positions."""
    rng = np.random.default_rng(0)
    starts = rng.integers(0, shards.tokens - WINDOW, count)
    return [shards.read(int(at), int(at) + WINDOW).astype(int).tolist() for at in starts]


def continued(model: engine.GPT, ids: list[int], propose: int, tokens: int, how: dict) -> tuple:
    """Return the tokens; and, after the first ROUNDS rounds, the seconds per token and the tokens per round."""
    found, counts, times = [], [], []
    for new in rounds(model, ids, np.random.default_rng(0), propose, **how):
        found += new
        counts.append(len(new))
        times.append(time.perf_counter())
        if len(found) >= tokens:
            break
    timed = sum(counts[ROUNDS:])
    return found[:tokens], (times[-1] - times[ROUNDS - 1]) / timed, timed / (len(counts) - ROUNDS)


def measure(model: engine.GPT, prompts: list[list[int]], tokens: int) -> list[dict]:
    """Return the rows; each prompt is continued with every number of draft tokens before the next prompt."""
    rows = []
    for name, how in WAYS.items():
        taken = [[continued(model, ids, n, tokens, how) for n in range(model.config.predict)] for ids in prompts]
        for n in range(model.config.predict):
            same = sum(of[n][0] == of[0][0] for of in taken) if name == "greedy" else None
            rows.append({
                "way": name, **how, "propose": n, "prompts": len(prompts), "same": same,
                "milliseconds": round(1e3 * statistics.median(of[n][1] for of in taken), 4),
                "speedup": round(statistics.median(of[0][1] / of[n][1] for of in taken), 3),
                "tokens_a_round": round(statistics.mean(of[n][2] for of in taken), 3),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="a run folder, or a checkpoint")
    parser.add_argument("--data", required=True, help="shards that the prompts are taken from")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    found = checkpoint.load(options.run)
    model = choose(options.device, options.precision, found.model.config).place(found.model)
    rows = measure(model, windows(Shards(options.data), options.prompts), options.tokens)
    for row in rows:
        print(row, flush=True)
    config = dict(step=found.step, precision=options.precision, tokens=options.tokens, window=WINDOW)
    save("gpu_speculate", config, rows, options.out)


if __name__ == "__main__":
    main()
