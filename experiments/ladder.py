"""Measure the running ladder of baselines: models with one tokenizer on the same stories, against the floor.

    python -m experiments.ladder

The n-gram models count the text that the shipped model was trained on. Their context length and the weight of shorter
contexts are chosen on its validation text. All models are measured on held-out stories. Run this again whenever the
shipped model changes.
"""

from concurrent.futures import ProcessPoolExecutor

import numpy as np

import konigsberg
from benchmarks.pretrained import SEED_BYTES, SEEDS, TEST_SEED, VALID_BYTES, VALID_SEED, text_of
from nanoeuler_book import evaluate
from nanoeuler_book.ngram import Ngrams
from nanoeuler_lib.text import data
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import save

TEST_STORIES = 500
ORDERS, STRENGTHS = (2, 3, 4, 5, 6, 8, 10), (0.5, 1.0, 2.0, 4.0)


def chosen(ngrams: Ngrams, inputs: np.ndarray, targets: np.ndarray) -> tuple[int, float]:
    """The order and the strength that need the fewest bits on held-out rows (`data.validation_rows`)."""
    bits = {}
    for order in ORDERS:
        for ngrams.strength in STRENGTHS:
            p = ngrams.probability(inputs, targets, order)
            bits[order, ngrams.strength] = -np.log2(p[targets >= 0]).sum()
    return min(bits, key=bits.get)


def main() -> None:
    model, tokenizer = load_pretrained()
    with ProcessPoolExecutor() as pool:
        text = data.SEPARATOR.join(pool.map(text_of, SEEDS))
    ngrams = Ngrams(data.tokenize(text, tokenizer).ids, tokenizer.vocab_size, max(ORDERS))
    held_out = data.tokenize(konigsberg.corpus(VALID_BYTES, VALID_SEED), tokenizer)
    order, strength = chosen(ngrams, *data.validation_rows(held_out, model.config.context))
    stories = list(konigsberg.stories(TEST_STORIES, TEST_SEED))

    def of_order(n):
        return lambda tokens: np.log(ngrams.probabilities(tokens, n))

    rows, floor = [], 0.0
    for name, rung, factor in (
        ("uniform over tokens", of_order(0), 1.0),
        ("unigram", of_order(1), 1.0),
        ("bigram", of_order(2), 1.0),
        (f"n-gram, n = {order}", of_order(order), strength),
        ("full model", model, 1.0),
    ):
        ngrams.strength = factor
        found = evaluate.measure(rung, tokenizer, stories)
        floor = found.floor
        rows.append(
            {
                "name": name,
                "bits_per_byte": round(found.bits_per_byte, 5),
                "fact_accuracy": round(found.accuracy(konigsberg.FACT), 4),
                "fact_accuracy_beyond_10_words": round(found.accuracy(konigsberg.FACT, 10), 4),
            }
        )
        print(rows[-1], flush=True)
    rows[-1]["goal"] = True
    config = {
        "train": f"Königsberg, seeds {list(SEEDS)}, {SEED_BYTES} bytes each",
        "validation": f"seed {VALID_SEED}, {VALID_BYTES} bytes",
        "test": f"{TEST_STORIES} stories of seed {TEST_SEED}",
        "order": order,
        "strength": strength,
        "floor": round(floor, 5),
    }
    save("ladder", config, rows)


if __name__ == "__main__":
    main()
