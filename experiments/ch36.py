"""Chapter 36: replace attention in some layers of the shipped model, train on, and measure facts by their distance.

    make results CH=36

Every model begins with the weights of `konigsberg-small` and takes the same steps. The runs are spread over the
processor's cores. Every finished run is kept in _build/ch36, so the script can be stopped and started again.
"""

from itertools import pairwise

import numpy as np

import konigsberg
from nanoeuler_book import evaluate, frame
from nanoeuler_book.linear_attention import FULL, delta_attention, fact_distances, window_attention
from nanoeuler_lib import ops
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.text import data
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import run_all, save

SEEDS, STEPS, ROWS, RATE, WARMUP, WINDOW = [0, 1, 2, 3, 4], 400, 8, 0.002, 20, 16
DELTA, NO_ROPE, LOCAL = delta_attention(), delta_attention(unrotate=True), window_attention(WINDOW)
MODELS = {  # name -> the functions of each layer
    "full": [FULL] * 4,
    "windows": [LOCAL] * 4,
    "windows and full": [LOCAL] * 3 + [FULL],
    "delta": [DELTA] * 4,
    "delta and full": [DELTA] * 3 + [FULL],
    "delta, no RoPE": [NO_ROPE] * 4,
    "delta and full, no RoPE": [NO_ROPE] * 3 + [FULL],
}
EDGES = [0, 4, 8, 16, 31, 46, 61, 128]  # of the distances; one to four layers of windows reach 15, 30, 45 and 60
STORIES = 1000


def stories() -> list[konigsberg.Story]:
    """Return stories that are not in the training text and fit the model's context."""
    tokenizer, found = frame.tokenizer(), []
    for story in konigsberg.stories(3 * STORIES, 2):
        if len(tokenizer.encode(story.text)) < frame.CONFIG.context:
            found.append(story)
    return found[:STORIES]


def facts(measured: evaluate.Measured, distances: np.ndarray) -> list[list[int]]:
    """Return [facts that are right, facts] for each range of distances."""
    of_fact = measured.tag == konigsberg.FACT
    found = []
    for low, high in pairwise(EDGES):
        chosen = of_fact & (distances >= low) & (distances < high)
        found.append([int(measured.right[chosen].sum()), int(chosen.sum())])
    return found


def train(name: str, seed: int) -> dict:
    """Train one model on from the shipped weights, and measure it."""
    model, tokenizer = load_pretrained()
    rng, tokens = np.random.default_rng(seed), frame.training_tokens()
    optimizer = AdamW(model.config, TrainConfig(steps=STEPS, warmup=WARMUP, rate=RATE))
    told = stories()
    distances, row = fact_distances(told, tokenizer), {"model": name, "seed": seed}
    with ops.use(**frame.by_layer(model, MODELS[name])):
        for step in range(1, STEPS + 1):
            batch = data.batch(tokens, rng, ROWS, model.config.context, predict=model.config.predict)
            _, grads = model.loss_and_gradients(*batch)
            optimizer.step = step
            optimizer.update(model.params, grads, list(grads), factor=1.0)
        measured = evaluate.measure(model, tokenizer, told, rows=8)
    row |= {"bits": round(measured.bits_per_byte, 5), "floor": round(measured.floor, 5)}
    return row | {"facts": round(measured.accuracy(konigsberg.FACT), 5), "by_distance": facts(measured, distances)}


def main() -> None:
    rows = run_all("ch36", train, [(name, seed) for name in reversed(MODELS) for seed in SEEDS])  # the slowest first
    config = {"seeds": SEEDS, "steps": STEPS, "rows": ROWS, "rate": RATE, "warmup": WARMUP, "window": WINDOW}
    config |= {"edges": EDGES, "stories": STORIES, "model": load_pretrained()[0].config.to_dict()}
    save("ch36", config, rows)


if __name__ == "__main__":
    main()
