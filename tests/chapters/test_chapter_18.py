"""Chapter 18: its checks accept what is right and reject wrong answers, each of them named."""

from hashlib import sha256

import numpy as np
from chapters import gap_tests, slips

from nanoeuler_book.checks import verdict
from tools.release.chapter_mutants import Gap, Value

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


def beliefs_from(rng):
    beliefs = rng.dirichlet(np.ones(12))
    return beliefs, float(rng.uniform(0.01, 1)), int(rng.integers(12))


def sites_from(rng):
    m, d, n = rng.integers(2, 9, 3)
    return rng.normal(size=(m, d)), rng.normal(size=(m, n)), float(10 ** rng.uniform(-2, 1))


def patch_from(rng):
    rows, time, d = rng.integers(1, 6, 3)
    return rng.integers(0, time, rows), rng.normal(size=(rows, d)), rng.normal(size=(rows, time, d))


def patch_does(c, given):
    places, values, x = given
    return c.patched(places, values)(x), x


def batch_from(rng):
    """A law that allows some tokens at the places cut to end of each row, and a model's log-probabilities."""
    rows, time, vocabulary = int(rng.integers(1, 4)), 6, 5
    cut = rng.integers(0, 4, rows)
    end = cut + rng.integers(0, 3, rows)
    law = [(b, t, int(v), p) for b in range(rows) for t in range(cut[b], end[b] + 1)
           for v, p in zip(rng.permutation(vocabulary)[:2], rng.dirichlet([1, 1]), strict=True)]  # fmt: skip
    tokens = np.zeros((rows, time), int)
    return np.log(rng.dirichlet(np.ones(vocabulary), (rows, time))), tokens, cut, end, law


def bits_do(c, given):
    log_p, tokens, cut, end, law = given
    some = c.Batch(tokens, tokens, cut, cut, end, c.Law(*map(np.array, zip(*law, strict=True))))
    return c.bits(log_p, some)


def labelled_from(rng):
    """Vectors that hold four labels twice, inside a subspace and outside; new ones with what they are."""
    turn = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    means = np.concatenate([3 * rng.normal(size=(4, 3)), 2 * np.eye(4), np.zeros((4, 13))], axis=1)
    labels = rng.integers(0, 4, 400)
    x = (means[labels] + 0.4 * rng.normal(size=(400, 20))) @ turn.T + rng.normal(size=20)
    return x[:250], labels[:250], turn[:, :3], x[250:], labels[250:]


def unused_does(c, given):
    x, labels, basis, new, truth = given
    W = c.unused(x, labels, basis)
    share = (((new - x.mean(axis=0)) @ W).argmax(axis=1) == truth).mean()
    return W.shape, bool(np.abs(basis.T @ W).max() <= 1e-6 * np.abs(W).max()), bool(share >= 0.9)


def texts_from(rng):
    return [f"{rng.integers(1e9)} keys" for _ in range(600)]


def split_does(c, stories):
    side, again = np.asarray(c.split(stories)), np.asarray(c.split(stories[::-3]))
    return side.dtype, side.shape, bool(0.2 < side.mean() < 0.4), bool((side[::-3] == again).all())


def wires_from(rng):
    layers, time = (int(n) for n in rng.integers(1, 5, 2))
    ends = [sorted(int(p) for p in rng.integers(0, time, 2)) for _ in range(rng.integers(0, 6))]
    wires = [(int(rng.integers(layers)), a, b) for a, b in ends if a < b]
    name, answer, place = (int(p) for p in rng.integers(0, time, 3))
    return wires, layers, name, answer, (int(rng.integers(layers + 1)), place)


DOMAINS = [
    Gap("check_heard", ("heard",), lambda c: verdict(c.check_heard, c.heard), lambda c, x: c.heard(*x), beliefs_from),
    Gap("check_weights", ("book_weights",), lambda c: verdict(c.check_weights, c.book_weights),
        lambda c, x: c.book_weights(*x), sites_from),
    Gap("check_bits", ("bits",), lambda c: verdict(c.check_bits, c.bits), bits_do, batch_from),
    Gap("check_patched", ("patched",), lambda c: verdict(c.check_patched, c.patched), patch_does, patch_from),
    Gap("check_unused", ("unused",), lambda c: verdict(c.check_unused, c.unused), unused_does, labelled_from),
    Gap("check_split", ("split",), lambda c: verdict(c.check_split, c.split), split_does, texts_from),
    Value("check_control", "control", lambda c, value: verdict(c.check_control, lambda: value),
          lambda c, value: [x for x in str(value).upper() if x.isalpha()] == [*"BDAC"]),
    Gap("check_null", ("null", "reached"), lambda c: verdict(c.check_null, c.null),
        lambda c, x: c.null(*x), wires_from),
]  # fmt: skip
