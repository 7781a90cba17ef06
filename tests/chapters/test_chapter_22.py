"""Chapter 22: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import gap_tests, slips

import konigsberg
from konigsberg.town import across, shores_of
from nanoeuler_book.checks import verdict

NOTEBOOK = "22_rewards", "LISTS", "SENTENCES"


# ---- The gaps


def compared(paid, own=False, std=False, less=1, root=True, whole=False, ddof=0, copy=True, equal=0.0):
    """Group by group, with one thing wrong, if asked."""
    rows = []
    for group in paid if copy else np.ndarray.__iadd__(paid, 0.5):
        G, middle = len(group), (paid if whole else group).mean()
        apart = group - middle
        if not own:
            apart = apart * G / (G - less)
        spread = (paid if whole else group).std(ddof=ddof) if G > ddof else 1.0
        spread = spread if root else spread**2
        flat = np.ptp(group) == 0
        rows.append(np.full(G, equal) if flat else apart / spread if std else apart)
    return np.array(rows)


WRONG_ADVANTAGES = slips(
    compared,
    {
        "the own mean throughout": dict(less=0),
        "one mean for all groups": dict(whole=True),
        "with n - 1": dict(ddof=1),
        "the rewards changed": dict(copy=False),
    },
) | {
    "rewards themselves": lambda paid, own=False, std=False: paid.copy(),
    "0 / 0": lambda paid, own=False, std=False: (
        (paid - paid.mean(axis=1, keepdims=True))
        / (paid.std(axis=1, keepdims=True) if std else 1)
        * (1 if own else paid.shape[1] / (paid.shape[1] - 1))
    ),
}


def clipped(logp, old, advantage, edge=0.2, pick=np.minimum, by_ratio=False, both=False, upper=True, back=False):
    """Token by token, with one thing wrong, if asked."""
    ratio = np.exp(old - logp if back else logp - old)
    gain, held = ratio * advantage, np.clip(ratio, 1 - edge, 1 + edge if upper else 9) * advantage
    out = (np.abs(ratio - 1) > edge) if both else pick(gain, held) != gain
    return pick(gain, held), np.where(out, 0.0, advantage if by_ratio else gain)


WRONG_CLIPPED = slips(
    clipped,
    {
        "the larger one": dict(pick=np.maximum),
        "held on both sides": dict(both=True),
        "no upper edge": dict(upper=False),
    },
) | {
    "nothing held": lambda logp, old, advantage, edge=0.2: (np.exp(logp - old) * advantage,) * 2,
    "the edge always 0.2": lambda logp, old, advantage, edge=0.2: clipped(logp, old, advantage),
}


def terms(logps, reference, estimator, sign=1, exact=True, half=0.5, slope=1.0):
    """The three, with one thing wrong, if asked."""
    d = sign * (logps - reference)
    small = np.expm1(-d) if exact else (np.exp(-d).astype(np.float32) - 1).astype(float)
    values = {"k1": d, "k2": half * d**2, "k3": small + d}
    return values[estimator], {"k1": np.ones_like(d), "k2": 2 * half * d, "k3": -small * slope}[estimator]


WRONG_TERMS = slips(
    terms,
    {
        "digits lost": dict(exact=False),
        "k2 without its half": dict(half=1.0),
    },
) | {
    "k1 for all": lambda logps, reference, estimator: terms(logps, reference, "k1"),
    "means": lambda logps, reference, estimator: tuple(x.mean() for x in terms(logps, reference, estimator)),
}


def walks(problem, answer, goal=True, closed=True, twice=False, nothing=0.0):
    """A walk, with one thing wrong, if asked."""
    here = next(shore for shore in konigsberg.town.SHORES if str(shore) == problem.start)
    named = list(bridges(answer))
    if not named:
        return nothing
    if not twice and len({str(b) for b in named}) < len(named):
        return 0.0
    for bridge in named:
        if here not in shores_of(bridge) or (closed and str(bridge) in problem.closed):
            return 0.0
        here = across(bridge, here)
    return float(not goal or str(here) == problem.goal)


def bridges(answer):
    places = ((answer.find(str(b)), b) for b in konigsberg.town.BRIDGES for _ in range(answer.count(str(b))))
    return [b for at, b in sorted(places, key=lambda pair: pair[0]) if at >= 0]


def hole(problem):
    """Any answer of two bridges that the loose verifier pays and that does not arrive."""
    for a in konigsberg.town.BRIDGES:
        for b in konigsberg.town.BRIDGES:
            if a is not b and not {str(a), str(b)} & set(problem.closed):
                answer = f"Over {a} and {b}."
                touches = problem.start in map(str, shores_of(a)) and problem.goal in map(str, shores_of(b))
                if touches and not walks(problem, answer):
                    return answer
    for a in konigsberg.town.BRIDGES:
        ends = list(map(str, shores_of(a)))
        if problem.start in ends and problem.goal in ends and not walks(problem, f"Over {a}."):
            return f"Over {a}."
    return ""


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_advantages": ([compared], WRONG_ADVANTAGES),
        "check_clipped": ([clipped], WRONG_CLIPPED),
        "check_kl_terms": ([terms], WRONG_TERMS),
        "check_objective": (
            [lambda p: -2 * np.arccos(np.sqrt(p)) + 7, lambda p: np.arcsin(2 * p - 1)],
            {
                "the entropy": lambda p: -p * np.log(p) - (1 - p) * np.log(1 - p),
                "falling": lambda p: -2 * np.arcsin(np.sqrt(p)),
                "the deviation": lambda p: np.sqrt(p * (1 - p)),
            },
        ),
        "check_curves": (
            [lambda: "D, B, A, C"],
            {name: (lambda letters=name: letters) for name in ("ABCD", "DBCA", "BDAC", "DDBA", "CABD")},
        ),
        "check_mend": (
            [],
            {
                "the goal forgotten": (hole, lambda p, s: walks(p, s, goal=False)),
                "closed bridges": (hole, lambda p, s: walks(p, s, closed=False)),
                "bridges twice": (hole, lambda p, s: walks(p, s, twice=True)),
                "nothing is paid": (hole, lambda p, s: walks(p, s, nothing=1.0)),
                "any answer": (lambda p: "Over the Honey Bridge.", walks),
                "not paid": (lambda p: "I would swim.", walks),
            },
        ),
    }
)


def test_an_own_search_for_a_hole_is_right(chapter):
    """Another search and another walk than the book's, on the problems of the check and beyond."""
    assert verdict(chapter.check_mend, (chapter.broken, walks)) == "right"
    for seed in range(60):
        problem = konigsberg.route_problem(seed)
        assert all(walks(problem, s) == konigsberg.route_reward(problem, s) for s in chapter.SENTENCES[::5])
        found = chapter.broken(problem)
        assert not found or (chapter.loose(problem, found) and not konigsberg.route_reward(problem, found))
        assert found or not hole(problem)
