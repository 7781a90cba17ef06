"""Chapter 37: measure what few bits cost the shipped model, and train the frame with few bits.

    make results CH=37

Every finished run is kept in _build/ch37, so the script can be stopped and started again. Runs use all cores.
"""

from itertools import islice

import numpy as np

import konigsberg
from nanoeuler_book import evaluate, few_bits, frame
from nanoeuler_book.few_bits import BFLOAT16, E4M3, FORMATS, nvfp4
from nanoeuler_lib import ops
from nanoeuler_lib.ops.reference import linear_forward
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import run_all, save

MODEL, STORIES_SEED, ROWS, BATCH = "konigsberg-small", 37, 120, 24  # rows of the model's context
SEEDS, STEPS = [0, 1, 2, 3, 4], 400
PLACES = "weights", "activations", "cache"


def recipe(name: str, seed: int) -> dict:
    """Return the functions for `ops.use` of a recipe of training."""
    rounding = few_bits.random_rounding(np.random.default_rng(1000 + seed))
    return {
        "float32": lambda: {},
        "FP8": few_bits.fp8,
        "NVFP4": lambda: few_bits.blocks(nvfp4, nvfp4),
        "NVFP4, stochastic": lambda: few_bits.blocks(nvfp4, lambda x, axis: nvfp4(x, axis, rounding)),
        "weights in bfloat16": lambda: few_bits.stored(BFLOAT16),
        "weights in bfloat16, stochastic": lambda: few_bits.stored(BFLOAT16, rounding),
        "weights in E4M3": lambda: few_bits.stored(E4M3),
        "weights in E4M3, stochastic": lambda: few_bits.stored(E4M3, rounding),
    }[name]()


RECIPES = (
    "float32",
    "FP8",
    "NVFP4",
    "NVFP4, stochastic",
    "weights in bfloat16",
    "weights in bfloat16, stochastic",
    "weights in E4M3",
    "weights in E4M3, stochastic",
)


def train(name: str, seed: int) -> dict:
    """Train one frame, and measure its weights with float32 products, and with the products of training."""
    trained = frame.train(STEPS, seed=seed, **recipe(name, seed))
    row = {"part": "training", "recipe": name, "seed": seed}
    for kind, predict in (("", frame.Frame(trained.model, {})), (" rounded", trained)):
        measured = evaluate.measure(predict, frame.tokenizer(), frame.held_out())
        row[f"bits{kind}"] = round(measured.bits_per_byte, 5)
        row[f"facts{kind}"] = round(measured.accuracy(konigsberg.FACT), 5)
    return row


def texts(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and targets [rows, T] of stories that the shipped model has not read."""
    model, tokenizer = load_pretrained(MODEL)
    T, end = model.config.context, tokenizer.special_tokens[END_OF_TEXT]
    told = islice(konigsberg.stories(10**6, STORIES_SEED), 3 * rows)
    ids = np.array([token for story in told for token in (end, *tokenizer.encode(story.text))])
    return ids[: rows * T].reshape(rows, T), ids[1 : rows * T + 1].reshape(rows, T)


def within(place: str, name: str) -> dict:
    """Return the functions for `ops.use` that round one place of the model to a format."""
    rounded = FORMATS[name][1]
    return {
        "weights": {"linear_forward": lambda x, w: linear_forward(x, rounded(w, 0))},
        "activations": {"linear_forward": lambda x, w: linear_forward(rounded(x, -1), w)},
        "cache": few_bits.cached(rounded),
    }[place]


def bits_per_row(**functions) -> np.ndarray:
    """Return the shipped model's loss in bits per token for each row, with some functions replaced."""
    model, (tokens, targets) = load_pretrained(MODEL)[0], texts()
    with ops.use(**functions):
        parts = [model.losses(tokens[i : i + BATCH], targets[i : i + BATCH]) for i in range(0, len(tokens), BATCH)]
    return np.concatenate(parts).astype(np.float64).mean(axis=1) / np.log(2)


def shipped(place: str, name: str) -> dict:
    """Measure the shipped model with one place in a format: millibits per token more than float32, for each row."""
    more = 1000 * (bits_per_row(**within(place, name)) - bits_per_row())
    return {"part": "shipped", "place": place, "format": name, "more": more.round(3).tolist()}


def run(part: str, *job) -> dict:
    return {"training": train, "shipped": shipped}[part](*job)


def main() -> None:
    jobs = [("training", name, seed) for name in reversed(RECIPES[:4]) for seed in SEEDS]  # the longest first
    jobs += [("training", name, seed) for name in RECIPES[4:] for seed in SEEDS]
    jobs += [("shipped", place, name) for place in PLACES for name in FORMATS]
    rows = run_all("ch37", run, jobs)
    config = {"model": MODEL, "rows": ROWS, "stories_seed": STORIES_SEED, "seeds": SEEDS, "steps": STEPS}
    config |= {"frame": frame.CONFIG.to_dict(), "bits": {name: bits for name, (bits, _) in FORMATS.items()}}
    save("ch37", config, rows)


if __name__ == "__main__":
    main()
