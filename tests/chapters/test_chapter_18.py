"""Chapter 18: its checks accept what is right and reject wrong answers, each of them named."""

from hashlib import sha256

import numpy as np
from chapters import gap_tests, slips

from nanoeuler_book.checks import verdict

# ---- The gaps

NOTEBOOK = ("18_what_the_model_knows",)
LN2 = float(np.log(2))


def heard(beliefs, rate, place, others=1, prior=True, normal=True, at=0):
    """Bayes' rule for one witness, with one thing wrong, if asked."""
    likelihood = np.full(len(beliefs), (1 - rate) / (len(beliefs) - others))
    likelihood[(place + at) % len(beliefs)] = rate
    found = likelihood * beliefs if prior else likelihood
    return found / found.sum() if normal else found


WRONG_HEARD = {
    "a wrong witness may name the right place": dict(others=0),
    "what was believed before is forgotten": dict(prior=False),
    "not divided by the sum": dict(normal=False),
    "the place beside it": dict(at=1),
}


def weights(z, y, strength, m=True, sign=1.0, swapped=False):
    """The normal equations, with one thing wrong, if asked."""
    gram = z.T @ z + sign * strength * (len(z) if m else 1) * np.eye(z.shape[1])
    return np.linalg.solve(gram, z.T @ y) * (0.5 if swapped else 1)


WRONG_WEIGHTS = {
    "the penalty once, and not for each row": dict(m=False),
    "the penalty rewarded": dict(sign=-1.0),
    "no penalty": dict(sign=0.0),
    "half of it": dict(swapped=True),
}


def bits(log_p, batch, unit=LN2, mean=True, reverse=False, entropy=True, last=1):
    """KL in bits a place, with one thing wrong, if asked."""
    row, place, token, p = batch.law
    q = log_p[row, place, token] / unit
    each = np.exp2(q) * (q - np.log2(p)) if reverse else p * ((np.log2(p) if entropy else 0) - q)
    total = np.bincount(row, each, len(batch.cut))
    return total / (batch.end - batch.cut + last) if mean else total


WRONG_BITS = {
    "nats of the model, bits of the law": dict(unit=1.0),
    "a sum over places": dict(mean=False),
    "the other direction": dict(reverse=True),
    "the law's own entropy not taken off": dict(entropy=False),
    "a place more": dict(last=2),
}


def patched(places, values, copied=True, everywhere=False, at=0):
    """The patch, with one thing wrong, if asked."""

    def edit(x):
        x = x.copy() if copied else x
        where = slice(None) if everywhere else (places + at) % x.shape[1]
        x[np.arange(len(places)), where] = values[:, None] if everywhere else values
        return x

    return edit


WRONG_PATCHED = {
    "the stream itself written to": dict(copied=False),
    "at all places": dict(everywhere=True),
    "a place too late": dict(at=1),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_heard": ([heard], slips(heard, WRONG_HEARD)),
        "check_weights": ([weights], slips(weights, WRONG_WEIGHTS)),
        "check_bits": ([bits], slips(bits, WRONG_BITS)),
        "check_patched": ([patched], slips(patched, WRONG_PATCHED)),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_other_right_ways_are_right(chapter):
    """A probe by class means of the projected vectors; a split by another digest; routes counted by matrices."""

    def by_means(x, labels, basis):
        z = (x - x.mean(axis=0)) @ (np.eye(x.shape[1]) - basis @ basis.T)
        W = np.stack([z[labels == i].mean(axis=0) for i in range(labels.max() + 1)], axis=1)
        scatter = (z.T @ z) / len(z) + 1e-3 * np.eye(len(W))
        return (np.eye(len(W)) - basis @ basis.T) @ np.linalg.solve(scatter, W)

    def by_sum(stories):
        return np.array([int(sha256(b"x" + s.encode()).hexdigest(), 16) % 10 < 3 for s in stories])

    def counted(wires, layers, name, answer, site):
        size = 1 + max([name, answer, site[1], *(p for _, *ends in wires for p in ends)])
        steps = [np.eye(size, dtype=int) for _ in range(layers)]
        for block, a, b in {*wires}:
            steps[block][a, b] = 1
        below, above = (np.linalg.multi_dot([np.eye(size, dtype=int), *some, np.eye(size, dtype=int)])
                        for some in (steps[: site[0]], steps[site[0] :]))  # fmt: skip
        through, whole = below[name, site[1]] * above[site[1], answer], (below @ above)[name, answer]
        return "says nothing" if not through else "unused" if through == whole else "another way"

    assert verdict(chapter.check_unused, by_means) == "right"
    assert verdict(chapter.check_split, by_sum) == "right"
    assert verdict(chapter.check_null, counted) == "right"


def test_a_split_that_knows_its_rows_alone_is_rejected(chapter):
    """By the length of the list, and by the hash of another process."""
    for wrong in (
        lambda stories: np.array([len(s) % 10 < 3 for s in stories]) ^ (len(stories) < 99),
        lambda stories: [sha256(s.encode()).digest()[0] < 77 for s in stories[:-1]],
    ):
        assert verdict(chapter.check_split, wrong) not in ("right", "not written yet")


# ---- Domains for the mutants, written from the contracts
