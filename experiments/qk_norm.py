"""Appendix A2: train the frame with AdamW and Muon, with and without a norm of queries and keys.

    make results CH=qk_norm

All models are the frame of chapters 06 to 16. Every finished run is kept in _build/qk_norm, so the script can be
stopped and started again. Runs with the same seed have the same initial weights and batches.
"""

import math
from functools import partial
from itertools import product

import numpy as np

import konigsberg
from nanoeuler_book import evaluate, frame
from nanoeuler_book.qk_norm import qk_norm_backward, qk_norm_forward
from nanoeuler_lib import ops
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import optimizer_of
from nanoeuler_lib.ops.reference import attention_backward, attention_forward
from nanoeuler_lib.text import data
from tools.notebooks.results import run_all, save

SEEDS, OPTIMIZERS, RATES = [0, 1, 2, 3, 4], ["adamw", "muon"], [frame.RATE, 3 * frame.RATE]
FACTORS = [None, 1.0, 4.0]  # of the scores after the norm; None: without the norm
BOUND = 100.0  # a score above it is counted as too large: the threshold of QK-clip for Kimi K2
EVERY = 20  # steps whose largest scores are stored


def pair(factor: float | None) -> dict:
    """Return the attention of a run, as functions for `ops.use`."""
    if factor is None:
        return {"attention_forward": attention_forward, "attention_backward": attention_backward}
    return {"attention_forward": partial(qk_norm_forward, factor=factor), "attention_backward": qk_norm_backward}


def watched(factor: float | None, largest: list[float]) -> dict:
    """Return the same functions; in every step, each layer appends its largest |score| to `largest`, an empty list.

    `ops/plain.py` computes attention again before its backward pass, from the last layer to the first. To save this
    time, these functions return the first result again.
    """
    functions, results = pair(factor), []
    causal = np.tri(frame.CONFIG.context, dtype=np.float32)

    def attention(q, k, v):
        if len(largest) == frame.CONFIG.layers:
            return results.pop()
        results.append(functions["attention_forward"](q, k, v))
        saved = results[-1][1]
        q, k, *_ = saved if factor is None else saved[2]  # [B, G, H/G, T, C] and [B, G, 1, T, C]
        scores = q @ k.swapaxes(-1, -2) * causal
        largest.append(float(max(scores.max(), -scores.min())) / math.sqrt(q.shape[-1]))
        return results[-1]

    return functions | {"attention_forward": attention}


def run(optimizer: str, rate: float, factor: float | None, seed: int) -> dict:
    """Train one frame and measure it; return its losses, scores, bits per byte and share of facts right."""
    model, rng = GPT(frame.CONFIG, seed=seed), np.random.default_rng(seed)
    config = TrainConfig(steps=frame.STEPS, warmup=frame.WARMUP, rate=rate, optimizer=optimizer)
    update, losses, scores = optimizer_of(frame.CONFIG, config), [], []
    with np.errstate(all="ignore"):
        with ops.use(**watched(factor, largest := [])):
            for step in range(1, frame.STEPS + 1):
                batch = data.batch(frame.training_tokens(), rng, frame.ROWS, frame.CONFIG.context, predict=1)
                loss, grads = model.loss_and_gradients(*batch)
                losses.append(float(loss))
                scores.append(float(np.max(largest)))  # over layers, heads, rows and positions; NaN stays NaN
                largest.clear()
                update.step = step
                update.update(model.params, grads, list(grads), factor=1.0)
        measured = evaluate.measure(frame.Frame(model, pair(factor)), frame.tokenizer(), frame.held_out())
    finite = lambda number, digits: round(float(number), digits) if math.isfinite(number) else None
    row = {"optimizer": optimizer, "rate": rate, "factor": factor, "seed": seed}
    row |= {"bits": finite(measured.bits_per_byte, 5), "facts": finite(measured.accuracy(konigsberg.FACT), 5)}
    row |= {"first_loss": finite(losses[0], 4), "last_loss": finite(losses[-1], 4), "floor": finite(measured.floor, 5)}
    row |= {"largest": finite(np.max(scores), 3), "last": finite(scores[-1], 3)}
    return row | {"scores": [finite(score, 3) for score in scores[::EVERY]]}


def main() -> None:
    rows = run_all("qk_norm", run, product(OPTIMIZERS, RATES, FACTORS, SEEDS))
    config = {"seeds": SEEDS, "optimizers": OPTIMIZERS, "rates": RATES, "factors": FACTORS, "bound": BOUND}
    config |= {"steps": frame.STEPS, "rows": frame.ROWS, "every": EVERY, "model": frame.CONFIG.to_dict()}
    save("qk_norm", config, rows)


if __name__ == "__main__":
    main()
