"""How far word n-gram models stay from the floor of Königsberg, and from its facts.

    python -m benchmarks.world_floor [--train-bytes 40000000] [--valid-bytes 200000] [--stories 100000]

Words are the pieces of `WORD`, which spell a text exactly. Models of order 1 to 6 are interpolated down to the uniform
distribution over the vocabulary: Kneser-Ney with three discounts (Chen & Goodman 1999) and Witten-Bell (Bell, Cleary &
Witten 1990). Prints bits per byte beside the floor, and the accuracy on words that a fact decides, by distance. First,
though, it samples stories and reads each back: one derivation a text, the same that was drawn.
"""

import argparse
import re
import time

import numpy as np

from nanoeuler_lib import world
from nanoeuler_lib.text.ngram import Ngrams, Table

WORD = re.compile(r" ?\w+| ?[^\w\s]+|\n")
END = "<end>"
HIGHEST = 6


def kneser_ney(tables: list[Table], grams: list[np.ndarray], vocab_size: int) -> list[Table]:
    """The tables with three discounts; below the highest order a gram counts once for each token seen before it.

    grams: [n][t] the number of the n-gram that ends at t of the training text.
    """
    found = []
    for n, table in enumerate(tables, 1):
        seen = table.seen
        if n < len(tables):
            longer, at = np.unique(grams[n + 1], return_index=True)
            seen = np.bincount(grams[n][at[longer >= 0]], minlength=len(table.keys))
        found.append(discounted(table, seen, vocab_size))
    return found


def discounted(table: Table, seen: np.ndarray, vocab_size: int) -> Table:
    """The table with counts `seen`, less what Chen & Goodman (1999) take off 1, 2, 3 or more."""
    n = [max(int((seen == k).sum()), 1) for k in (1, 2, 3, 4)]
    y = n[0] / (n[0] + 2 * n[1])
    takes = np.clip([0] + [k - (k + 1) * y * n[k] / n[k - 1] for k in (1, 2, 3)], 0, [0, 1, 2, 3])
    taken = takes[np.minimum(seen, 3)]
    sums = [np.bincount(table.keys // vocab_size, part, len(table.total)) for part in (seen - taken, taken)]
    return Table(table.keys, seen - taken, table.first, *sums)


def read_back(n: int) -> None:
    """Parse n sampled stories, which must give themselves back, and count what they are made of."""
    began, size, lost, words, texts = time.perf_counter(), 0, 0, set(), set()
    for story in world.stories(n, seed=12):
        lost += world.parse(story.text) != story
        size += len(story.text.encode())
        texts.add(story.text)
        words.update(re.findall(r"\w+", story.text.lower()))
    print(f"{n} stories ({size / 1e6:.1f} MB), {len(texts)} different texts, {len(words)} different words:")
    print(f"{n - lost} read back to the derivation that wrote them, in {time.perf_counter() - began:.0f} s\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train-bytes", type=int, default=40_000_000)
    parser.add_argument("--valid-bytes", type=int, default=200_000)
    parser.add_argument("--stories", type=int, default=100_000, help="how many to read back first")
    options = parser.parse_args()
    read_back(options.stories)
    began = time.perf_counter()
    train = world.corpus(options.train_bytes, seed=10).split(world.SEPARATOR)
    valid = world.corpus(options.valid_bytes, seed=11).split(world.SEPARATOR)

    number: dict[str, int] = {END: 0}
    ids = [0]
    for text in train:
        ids += [number.setdefault(word, len(number)) for word in [*WORD.findall(text), END]]
    known = len(number)
    scored, tags, distances, costs = [0], [], [], []
    for text in valid:
        words = WORD.findall(text)
        scored += [number.setdefault(word, len(number)) for word in [*words, END]]
        truth = world.token_truth(text, [len(word.encode()) for word in words])
        tags += [*truth.tag, -1]
        distances += [*truth.words, -1]
        costs.append(truth.bits.sum())
    tokens, targets = np.array(scored)[None, :-1], np.array(scored)[None, 1:]
    tags, distances = np.array(tags), np.array(distances)
    n_bytes = sum(len(text.encode()) for text in valid)
    floor = sum(costs) / n_bytes
    size = sum(len(text.encode()) for text in train)
    print(f"trained on {size / 1e6:.1f} MB, {len(ids)} words, {known} of them different")
    print(
        f"validation: {n_bytes} bytes, {len(number) - known} words unseen, {len(set(valid) & set(train))} stories seen"
    )
    print(f"read in {time.perf_counter() - began:.0f} s\n\nfloor: {floor:.4f} bits per byte\n")
    print(f"{'model':<14}{'order':>6}{'bits/byte':>11}{'above':>9}{'facts':>8}{'facts > 10 words':>18}")
    facts = np.flatnonzero(tags == world.FACT)
    far = distances[facts] > 10
    # the words behind which each fact comes, as far back as the highest order looks
    before = tokens[0, np.maximum(facts[:, None] + np.arange(1 - HIGHEST, 1), 0)]
    pasts = np.array_split(before, max(1, len(facts) // 500))
    model = Ngrams(np.array(ids), len(number), HIGHEST)
    plain, grams = model.tables, [numbers[0] for numbers in model.contexts(np.array([ids]))]
    for name in ("Witten-Bell", "Kneser-Ney"):
        for order in range(1, HIGHEST + 1):
            model.tables = plain[:order]
            if name == "Kneser-Ney":
                model.tables = kneser_ney(model.tables, grams, len(number))
            bits = -np.log2(model.probability(tokens, targets)).sum() / n_bytes
            best = np.concatenate([model.probabilities(rows)[:, -1].argmax(-1) for rows in pasts])
            right = best == targets[0, facts]
            accuracy = f"{right.mean():>8.1%}{right[far].mean():>18.1%}"
            print(f"{name:<14}{order:>6}{bits:>11.4f}{bits - floor:>+9.4f}{accuracy}", flush=True)
    print(f"\nfacts: {len(facts)} words, {far.sum()} of them more than ten words from their fact")


if __name__ == "__main__":
    main()
