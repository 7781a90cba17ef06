"""Chapter 22: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import accepts, rejected, rewritten_tests

from nanoeuler_lib.training import rewards

NOTEBOOK = "22_rewards", "LISTS", "SENTENCES"


# ---- The gaps

ADVANTAGES = {
    "the own mean throughout": ("apart * G / (G - 1)", "apart"),
    "one mean for all groups": ("rewards.mean(axis=1, keepdims=True)", "rewards.mean()"),
    "with n - 1": ("rewards.std(axis=1", "rewards.std(axis=1, ddof=1"),
    "the rewards changed": ("    apart = rewards - ", "    rewards += 0.5\n    apart = rewards - "),
    "0 / 0": ("np.where(spread > 0, spread, 1.0)", "spread"),
}
CLIPPED = {
    "the larger one": ("np.minimum", "np.maximum"),
    "held on both sides": ("held < gain", "held != gain"),
    "no upper edge": ("1 + edge)", "np.inf)"),
    "the edge always 0.2": ("    ratio =", "    edge = 0.2\n    ratio ="),
}
TERMS = {
    "digits lost": ("np.expm1(-apart)", "(np.exp(-apart) - 1)"),
    "k2 without its half": ("apart**2 / 2", "apart**2"),
    "means": ("return apart, np.ones_like(apart)", "return apart.mean(), 1.0"),
}
DISTILLATION = {
    "the other way round": ("student - teacher", "teacher - student"),
    "the own token only": ("discount * weights", "0 * weights"),
    "the discount always 1": ("discount * weights", "weights"),
    "the whole answer": ("return weights", "return weights[:, :1] + 0 * weights"),
    "the discount twice": ("+= discount *", "+= discount**2 *"),
    "the arguments changed": ("weights = student - teacher", "weights = student\n    weights -= teacher"),
}
_, test_wrong_gaps = rewritten_tests(
    {
        "check_advantages": ("advantages", {}, ADVANTAGES),
        "check_clipped": ("clipped_objective", {}, CLIPPED),
        "check_kl_terms": ("kl_terms", {}, TERMS),
        "check_distillation_weights": ("distillation_weights", {}, DISTILLATION),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def listed(f, precision=np.float64):
    """The same function, with numbers of this precision in lists or tuples of lists."""

    def g(*args):
        found = f(*args)
        rounded = [np.asarray(x, precision) for x in (found if isinstance(found, tuple) else [found])]
        plain = [x.tolist() if precision is np.float64 else x for x in rounded]
        return tuple(plain) if isinstance(found, tuple) else plain[0]

    return g


def by_cases(logp, old, advantage, edge=0.2):
    """The clipped objective by cases of the sign."""
    ratio = np.exp(logp - old)
    cap = np.where(advantage > 0, np.minimum(ratio, 1 + edge), np.maximum(ratio, 1 - edge))
    return cap * advantage, np.where(cap == ratio, ratio * advantage, 0.0)


def by_matrix(student, teacher, discount):
    """The weights of distillation by a matrix of powers of the discount."""
    apart = np.arange(np.shape(student)[1])[:, None] - np.arange(np.shape(student)[1])
    powers = np.where(apart >= 0, float(discount) ** np.maximum(apart, 0), 0.0)
    return (np.asarray(student) - teacher) @ powers


test_other_right_answers = accepts(
    {
        "check_advantages": [listed(rewards.advantages), listed(rewards.advantages, np.float32)],
        "check_clipped": [by_cases, listed(by_cases), listed(by_cases, np.float32)],
        "check_kl_terms": [listed(rewards.kl_terms), listed(rewards.kl_terms, np.float32)],
        "check_distillation_weights": [by_matrix, listed(by_matrix), listed(by_matrix, np.float32)],
        "check_objective": [lambda p: -2 * np.arccos(np.sqrt(p)) + 7, lambda p: np.arcsin(2 * p - 1)],
        "check_curves": [lambda: "D, B, A, C"],
    }
)


def test_a_verifier_that_pays_for_no_bridge_is_rejected(chapter):
    pays = lambda problem, answer: 1.0 if not chapter.bridges_of(answer) else chapter.mended(problem, answer)
    assert rejected(chapter.check_mend, (chapter.broken, pays))
