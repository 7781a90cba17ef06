"""Train the frame of chapters 06 to 10 without each part, and count n-grams on the same text: five seeds.

    make results CH=mine

Chapters 06 to 10 read the rows with `frame.stored`, and train the complete frame once themselves.
"""

import math
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import konigsberg
from nanoeuler_book import evaluate, frame
from nanoeuler_book.ngram import Ngrams
from nanoeuler_lib.machine import cores, one_blas_thread
from tools.notebooks.results import save

SEEDS = range(5)
RATES = (0.005, 0.002)  # without norm, the row is the better rate
ORDERS = (1, 2, 3, 4, 5, 6, 8, 10)
RUNS = {
    "06: without attention": dict(without=["positions", "attention"]),
    "06: attention": dict(without=["positions"]),
    "07: positions": dict(),
    **{f"08: without norm, rate {rate}": dict(without=["norm"], rate=rate) for rate in RATES},
    "09: without SwiGLU": dict(without=["SwiGLU"]),
    **{f"10: {steps} steps": dict(steps=steps) for steps in (200, 800, 1600)},
}


def trained(seed: int, **settings: object) -> dict:
    """Train one frame; return its seed, bits per byte (None if it has diverged) and share of facts right."""
    with one_blas_thread(), np.errstate(all="ignore"):
        measured = evaluate.measure(frame.train(seed=seed, **settings), frame.tokenizer(), frame.held_out())
    bits, facts = float(measured.bits_per_byte), float(measured.accuracy(konigsberg.FACT))
    return {"seed": seed, "bits": round(bits, 4) if math.isfinite(bits) else None, "facts": round(facts, 4)}


def run(name: str, seed: int) -> dict:
    """Train one model of `RUNS` and measure it."""
    found = trained(seed, **RUNS[name])
    print(name, found, flush=True)
    return found


def row(name: str, runs: list[dict]) -> dict:
    """Return the means over the runs, and their standard errors if there are several."""
    values = {key: [one[key] for one in runs] for key in ("bits", "facts")}
    means = {key: round(float(np.mean(of)), 4) for key, of in values.items()}
    if len(runs) > 1:
        means |= {f"{key}_error": round(float(np.std(of, ddof=1) / len(of) ** 0.5), 4) for key, of in values.items()}
    return {"name": name, **means, "runs": [{k: round(v, 4) for k, v in one.items()} for one in runs]}


def main() -> None:
    ngrams = Ngrams(frame.training_tokens().ids, frame.CONFIG.vocab_size, max(ORDERS))
    rows = []
    for order in ORDERS:
        measured = evaluate.measure(
            lambda tokens, n=order: np.log(ngrams.probabilities(tokens, n)), frame.tokenizer(), frame.held_out()
        )
        found = {"bits": measured.bits_per_byte, "facts": measured.accuracy(konigsberg.FACT)}
        rows.append(row(f"counts, order {order}", [found]))
        print(rows[-1], flush=True)
    with ProcessPoolExecutor(cores()) as pool:
        jobs = {name: [pool.submit(run, name, seed) for seed in SEEDS] for name in RUNS}
        rows += [row(name, [job.result() for job in of]) for name, of in jobs.items()]
    config = {"seeds": list(SEEDS), "bytes": frame.BYTES, "stories": frame.STORIES, "rates": RATES}
    save("mine", config | {"floor": round(measured.floor, 5), "model": frame.CONFIG.to_dict()}, rows)


if __name__ == "__main__":
    main()
