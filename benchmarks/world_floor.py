"""How far word n-gram models stay from the floor of Königsberg, and from its facts.

    python benchmarks/world_floor.py [--train-bytes 40000000] [--valid-bytes 200000] [--stories 100000]

Words are the pieces of `WORD`, which spell a text exactly. Models of order 1 to 6 are interpolated down to the uniform
distribution over the vocabulary: Kneser-Ney with three discounts (Chen & Goodman 1999) and Witten-Bell (Bell, Cleary &
Witten 1990). Prints bits per byte beside the floor, and the accuracy on words that a fact decides, by distance. First,
though, it samples stories and reads each back: one derivation a text, the same that was drawn.
"""

import argparse
import re
import time
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib import world

WORD = re.compile(r" ?\w+| ?[^\w\s]+|\n")
END = "<end>"
HIGHEST = 6


@dataclass
class Counts:
    """The n-grams of one order: sorted keys (context * vocabulary + word) with counts, and sums per context."""

    keys: np.ndarray
    counts: np.ndarray
    total: np.ndarray  # [contexts] sum of the counts
    followers: np.ndarray  # [contexts, 3] how many words follow with count 1, 2, 3 or more
    discounts: np.ndarray  # [4] what Kneser-Ney takes off a count of 0, 1, 2, 3 or more

    @classmethod
    def of(cls, keys: np.ndarray, size: int, n_contexts: int) -> "Counts":
        keys, counts = np.unique(keys, return_counts=True)
        contexts = keys // size
        followers = np.stack(
            [np.bincount(contexts, np.minimum(counts, 3) == k, n_contexts) for k in (1, 2, 3)], 1
        )
        n = [max(int((counts == k).sum()), 1) for k in (1, 2, 3, 4)]
        y = n[0] / (n[0] + 2 * n[1])
        discounts = np.clip([0] + [k - (k + 1) * y * n[k] / n[k - 1] for k in (1, 2, 3)], 0, [0, 1, 2, 3])
        return cls(keys, counts, np.bincount(contexts, counts, n_contexts), followers, discounts)

    def count(self, keys: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.counts[at], 0)


class NgramModels:
    """Interpolated word n-gram models of every order up to HIGHEST, over a stream whose first part is for training.

    A gram is known by the number that it has among all grams of its order in the stream: the key of a gram of order n
    is (the number of its first n - 1 words, its last word).
    """

    def __init__(self, ids: np.ndarray, n_train: int, size: int):
        self.ids, self.size = ids, size
        self.contexts, self.plain, self.continued = [], [], []
        gram, n_grams, keys = np.zeros(len(ids), np.int64), 1, None
        for _ in range(HIGHEST):
            context = np.concatenate([[0], gram[:-1]])
            shorter, keys = keys, context * size + ids
            self.contexts.append(context)
            self.plain.append(Counts.of(keys[:n_train], size, n_grams))
            numbers, gram = np.unique(keys, return_inverse=True)
            if shorter is not None:  # in how many different contexts each gram of the order below is seen
                kinds = np.unique(keys[:n_train], return_index=True)[1]
                self.continued.append(Counts.of(shorter[kinds], size, len(self.plain[-2].total)))
            n_grams = len(numbers)

    def probabilities(self, at: np.ndarray, words: np.ndarray, order: int, method: str) -> np.ndarray:
        """Return P(words | the words before position `at`); arrays that broadcast against each other."""
        p = np.full(np.broadcast_shapes(at.shape, words.shape), 1 / self.size)
        for n in range(order):
            kneser_ney = method == "Kneser-Ney"
            table = self.continued[n] if kneser_ney and n < order - 1 else self.plain[n]
            context = self.contexts[n][at]
            count, total, followers = (
                table.count(context * self.size + words),
                table.total[context],
                table.followers[context],
            )
            if kneser_ney:
                seen = count - table.discounts[np.minimum(count, 3)]
                rest = followers @ table.discounts[1:]
            else:
                seen, rest = count, followers.sum(-1)
                total = total + rest
            mixed = (seen + rest * p) / np.maximum(total, 1)
            p = np.where(total > 0, mixed, p)
        return p


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
    n_train, known = len(ids), len(number)
    tags, distances, costs = [], [], []
    for text in valid:
        words = WORD.findall(text)
        ids += [number.setdefault(word, len(number)) for word in [*words, END]]
        truth = world.token_truth(text, [len(word.encode()) for word in words])
        tags += [*truth.tag, -1]
        distances += [*truth.words, -1]
        costs.append(truth.bits.sum())
    ids, tags, distances = np.array(ids), np.array(tags), np.array(distances)
    n_bytes = sum(len(text.encode()) for text in valid)
    floor = sum(costs) / n_bytes
    models = NgramModels(ids, n_train, len(number))
    size = sum(len(text.encode()) for text in train)
    print(f"trained on {size / 1e6:.1f} MB, {n_train} words, {known} of them different")
    print(
        f"validation: {n_bytes} bytes, {len(number) - known} words unseen, {len(set(valid) & set(train))} stories seen"
    )
    print(f"counted in {time.perf_counter() - began:.0f} s\n\nfloor: {floor:.4f} bits per byte\n")
    print(f"{'model':<14}{'order':>6}{'bits/byte':>11}{'above':>9}{'facts':>8}{'facts > 10 words':>18}")
    positions = np.arange(n_train, len(ids))
    facts = positions[tags == world.FACT]
    far = distances[tags == world.FACT] > 10
    for method in ("Witten-Bell", "Kneser-Ney"):
        for order in range(1, HIGHEST + 1):
            p = models.probabilities(positions, ids[positions], order, method)
            right = np.concatenate([
                models.probabilities(some[:, None], np.arange(len(number)), order, method).argmax(1) == ids[some]
                for some in np.array_split(facts, max(1, len(facts) // 500))
            ])  # fmt: skip
            bits = -np.log2(p).sum() / n_bytes
            accuracy = f"{right.mean():>8.1%}{right[far].mean():>18.1%}"
            print(f"{method:<14}{order:>6}{bits:>11.4f}{bits - floor:>+9.4f}{accuracy}", flush=True)
    print(f"\nfacts: {len(facts)} words, {far.sum()} of them more than ten words from their fact")


if __name__ == "__main__":
    main()
