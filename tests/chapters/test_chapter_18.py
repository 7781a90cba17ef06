"""Chapter 18: its checks accept what is right and reject wrong answers, each of them named."""

from hashlib import sha256

import numpy as np
from chapters import accepts, rejects, rewritten_tests

# ---- The gaps

NOTEBOOK = ("18_what_the_model_knows",)

GAIN = {
    "nats": ("np.log2", "np.log"),
    "a sum over the rows": (".mean()", ".sum()"),
    "0 log 0 is not a number": ("np.where(q > 0, r, 1)", "r + 0 * q"),
    "the gain of the prior over the probe": ("losses[0] - losses[1]", "losses[1] - losses[0]"),
    "the bound is the prior's loss": ("losses[0] - losses[2]", "losses[0]"),
    "the loss left instead of the gain": ("losses[0] - losses[1]", "losses[1] - losses[2]"),
}
WEIGHTS = {
    "the penalty once, and not for each row": ("strength * len(z)", "strength"),
    "half of it": ("return ", "return 0.5 * "),
}
BITS = {
    "nats of the model, bits of the source": (" / np.log(2)", ""),
    "a sum over positions": (" / (batch.end - batch.cut + 1)", ""),
    "the entropy of the source not subtracted": ("np.log2(p) - ", "-"),
    "one position more": ("batch.cut + 1", "batch.cut + 2"),
}
PATCHED = {
    "the stream itself written to": ("x = x.copy()", ""),
    "at all positions": ("x[np.arange(len(places)), places] = values", "x[:] = values[:, None]"),
    "a position too late": (", places]", ", (places + 1) % x.shape[1]]"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_gain": ("book_gain", {}, GAIN),
        "check_weights": ("book_weights", {}, WEIGHTS),
        "check_bits": ("bits", {}, BITS),
        "check_patched": ("patched", {}, PATCHED),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def by_means(x, labels, basis):
    """Class means of the projected vectors."""
    z = (x - x.mean(axis=0)) @ (np.eye(x.shape[1]) - basis @ basis.T)
    W = np.stack([z[labels == i].mean(axis=0) for i in range(labels.max() + 1)], axis=1)
    scatter = (z.T @ z) / len(z) + 1e-3 * np.eye(len(W))
    return (np.eye(len(W)) - basis @ basis.T) @ np.linalg.solve(scatter, W)


def by_another_digest(stories):
    return np.array([int(sha256(b"x" + s.encode()).hexdigest(), 16) % 10 < 3 for s in stories])


def by_odds(beliefs, rate, place):
    """The form that the page derives: one factor for the odds of the named place."""
    odds = beliefs.copy()
    odds[place] *= rate * (len(beliefs) - 1) / (1 - rate)
    return (odds / odds.sum()).tolist()


def by_divergences(q, p, prior):
    """The second line of the formula: the bound minus a mean KL divergence, as a list."""
    kl = [sum(a * np.log2(a / b) for a, b in zip(x, y, strict=True) if a > 0) for x, y in zip(q, p, strict=True)]
    bound = np.mean([sum(a * np.log2(a / b) for a, b in zip(x, prior, strict=True) if a > 0) for x in q])
    return [bound - np.mean(kl), bound]


def by_mask(places, values):
    """An edit by arithmetic in float64, which rounds differently."""

    def edit(x):
        mask = (np.arange(x.shape[1]) == np.asarray(places)[:, None])[..., None].astype(float)
        return x * (1 - mask) + np.asarray(values)[:, None] * mask

    return edit


def nan_elsewhere(places, values):
    """A mistake: other positions become NaN."""
    return lambda x: np.where((np.arange(x.shape[1]) == places[:, None])[..., None], values[:, None], np.nan * x)


test_other_right_answers = accepts(
    {
        "check_heard": [by_odds],
        "check_gain": [by_divergences],
        "check_patched": [by_mask],
        "check_unused": [by_means],
        "check_split": [by_another_digest],
    }
)
test_other_wrong_answers = rejects(
    {
        "check_patched": {"the other positions are NaN": nan_elsewhere},
        "check_split": {
            "Python's own hash by method": lambda stories: np.array([s.__hash__() % 10 < 3 for s in stories]),
            "the length of the text": lambda stories: np.array([len(s) % 10 < 3 for s in stories]),
        },
    }
)
