"""Chapter 21: its checks accept right answers and reject wrong ones by name."""

from math import exp, log

import numpy as np
from chapters import accepts, rewritten_tests

NOTEBOOK = ("21_preferences",)

OPTIMUM = {
    "times beta": ("rewards / beta", "rewards * beta"),
    "no reference": ("logps + ", ""),
    "normalised over all questions": ("axis=-1", "axis=None"),
    "overflows": (
        "np.logaddexp.reduce(tilted, axis=-1, keepdims=True)",
        "np.log(np.exp(tilted).sum(axis=-1, keepdims=True))",
    ),
}
DPO = {
    "no reference": ("(logps - reference)", "logps"),
    "beta not in the slope": ("beta * slope", "slope"),
    "both slopes of one sign": ("[:, None] * sign", "[:, None] * abs(sign)"),
    "rejected held fixed": ("[:, None] * sign", "[:, None] * (sign > 0)"),
    "overflows": ("np.logaddexp(0, -margin)", "np.log1p(np.exp(-margin))"),
    "the mean loss": ("return losses,", "return losses.mean(),"),
    "slopes of the mean": ("beta * slope", "beta / len(logps) * slope"),
}
_, test_wrong_gaps = rewritten_tests(
    {"check_optimum": ("book_optimum", {}, OPTIMUM), "check_dpo": ("dpo_loss", {}, DPO)}
)


# ---- Other right answers: pair by pair, token by token; the notebook tries the exercises' wrong ones


def dpo_pair_by_pair(logps, reference, beta):
    losses, slopes = [], []
    for (good, bad), (was_good, was_bad) in zip(logps.tolist(), np.asarray(reference).tolist(), strict=True):
        m = beta * ((good - was_good) - (bad - was_bad))
        losses.append(log(1 + exp(-m)) if m > -700 else -m)
        weight = beta / (1 + exp(m)) if m < 700 else 0.0
        slopes.append([-weight, weight])
    return np.array(losses), np.array(slopes)


def dpo_in_lists(logps, reference, beta):
    losses, slopes = dpo_pair_by_pair(logps, reference, beta)
    return losses.tolist(), slopes.tolist()


def win_rate_by_loops(logps, before, rewards):
    model, start = ([exp(x) for x in some] for some in (logps, before))
    total = sum(
        a * b / (1 + exp(rewards[j] - rewards[i])) for i, a in enumerate(model) for j, b in enumerate(start)
    )  # fmt: skip
    return total / sum(model) / sum(start)


def logp_by_steps(logits, ids, start):
    total = 0.0
    for place in range(start, len(ids)):
        row = logits[place - 1] - max(logits[place - 1])
        total += row[ids[place]] - log(sum(np.exp(row)))
    return total


test_other_right_answers = accepts(
    {
        "check_dpo": [dpo_pair_by_pair, dpo_in_lists],
        "check_reply_logp": [logp_by_steps],
        "check_win_rate": [win_rate_by_loops],
    }
)
