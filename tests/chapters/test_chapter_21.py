"""Chapter 21: its checks accept right answers and reject wrong ones by name; its stored result holds what it says."""

import json
from math import exp, inf, log

import numpy as np
from chapters import ROOT, gap_tests, rejected, slips

NOTEBOOK = ("21_preferences",)


def optimum(logps, rewards, beta, sign=1, tilt="divide", normalise="row", shift=True, reference=True):
    """The best model, question by question, with one thing wrong, if asked."""
    out = np.zeros_like(logps)
    for i, (row, paid) in enumerate(zip(logps, rewards, strict=True)):
        tilted = row * reference + sign * (paid / beta if tilt == "divide" else paid * beta)
        top = tilted.max() if shift else 0.0
        out[i] = tilted - top - np.log(np.exp(tilted - top).sum()) if normalise else tilted
    return out - np.log(len(out)) if normalise == "all" else out


WRONG_OPTIMUM = slips(optimum, {
    "away from reward": dict(sign=-1), "times beta": dict(tilt="multiply"), "not normalised": dict(normalise=None),
    "normalised over all questions": dict(normalise="all"), "overflows": dict(shift=False),
    "no reference": dict(reference=False),
})  # fmt: skip
WRONG_OPTIMUM["probabilities"] = lambda *given: np.exp(optimum(*given))
WRONG_OPTIMUM["the likeliest alone"] = lambda a, r, b: np.where(
    optimum(a, r, b) == optimum(a, r, b).max(1, keepdims=True), 0, -inf
)


def dpo(logps, reference, beta, flip=1, slope=1.0, inside=True, same=1, careful=True, both=True):
    """DPO's losses and slopes, pair by pair, with one thing wrong, if asked."""
    losses, slopes = [], []
    for (good, bad), (was_good, was_bad) in zip(logps.tolist(), np.asarray(reference).tolist(), strict=True):
        m = flip * beta * ((good - was_good) - (bad - was_bad))
        if careful:
            losses.append(log(1 + exp(-m)) if m > -700 else -m)
            weight = 1 / (1 + exp(m)) if m < 700 else 0.0
        else:
            losses.append(np.log1p(np.exp(-np.float64(m))))
            weight = np.exp(-np.float64(m)) / (1 + np.exp(-np.float64(m)))
        weight *= slope * (beta if inside else 1)
        slopes.append([-weight, same * weight * both])
    return np.array(losses), np.array(slopes)


WRONG_DPO = slips(dpo, {
    "pairs turned round": dict(flip=-1), "slope half": dict(slope=0.5), "beta not in the slope": dict(inside=False),
    "both slopes of one sign": dict(same=-1), "overflows": dict(careful=False), "rejected held fixed": dict(both=False),
})  # fmt: skip
WRONG_DPO["no reference"] = lambda a, b, beta: dpo(a, 0 * b, beta)
WRONG_DPO["the mean loss"] = lambda a, b, beta: (dpo(a, b, beta)[0].mean(), dpo(a, b, beta)[1])
WRONG_DPO["slopes of the mean"] = lambda a, b, beta: (dpo(a, b, beta)[0], dpo(a, b, beta)[1] / len(a))


def by_steps(logits, ids, start):
    total = 0.0
    for place in range(start, len(ids)):
        row = logits[place - 1] - max(logits[place - 1])
        total += row[ids[place]] - log(sum(np.exp(row)))
    return total


def draws(logps, before, rewards):
    one, other = np.exp(logps), np.exp(before)
    wins = [[1 / (1 + exp(b - a)) for b in rewards.tolist()] for a in rewards.tolist()]
    return float(one / one.sum() @ np.array(wins) @ (other / other.sum()))


def squares(logps, reference, beta):
    h = [(a - c) - (b - d) - 0.5 / beta for (a, b), (c, d) in zip(logps.tolist(), reference.tolist(), strict=True)]
    return np.array([x * x for x in h]), np.array([[2 * x, -2 * x] for x in h])


test_right, test_wrong = gap_tests({
    "check_optimum": ([optimum], WRONG_OPTIMUM),
    "check_dpo": ([dpo], WRONG_DPO),
    "check_reply_logp": ([by_steps], {"one more": lambda z, i, s: by_steps(z, i, s - 1) if s > 1 else 0.0}),
    "check_win_rate": ([draws], {"a list": lambda *given: [draws(*given)], "always": lambda *given: 1.0}),
    "check_ipo": ([squares], {"the target is 1": lambda a, b, beta: squares(a, b, 0.5)}),
})  # fmt: skip


def test_named_wrong_answers_are_rejected(chapter):
    for check, wrong in (
        (chapter.check_reply_logp, chapter.wrong_logps),
        (chapter.check_win_rate, chapter.wrong_rates),
        (chapter.check_ipo, chapter.wrong_ipo),
    ):
        for name, answer in wrong.items():
            assert rejected(check, answer), name


# ---- Inputs that the contracts allow, for mutants


# ---- What the chapter shows


def test_stored_result():
    """Five seeds of both runs, looked at equally often, from references that meet the condition."""
    result = json.loads((ROOT / "data" / "results" / "ch21.json").read_text("utf-8"))
    seeds, found = result["config"]["seeds"], {}
    assert len(seeds) >= 5 and min(result["config"]["mass"]) >= 0.95 and "dirty" not in result["commit"]
    for row in result["rows"]:
        found.setdefault((row["run"], row["seed"]), []).append(row)
        for part in ("trained", "held_out"):
            kept = row[part]["inside"] + row[part]["rest"] + row[part]["outside"]
            assert abs(kept - 1) < 1e-9 and row[part]["kl"] >= 0
    assert {run: sorted(seed for r, seed in found if r == run) for run, _ in found} == {
        "whole": seeds,
        "part": seeds,
    }
    assert len({len(rows) for rows in found.values()}) == 1
