"""Chapter 11: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import inspect
import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, rewritten_tests, run_tagged

from nanoeuler_lib.config import ModelConfig, TrainConfig

NOTEBOOK = ("11_optimisers", "RULES", "SLIPS", "mystery_step", "inside_root_step", "uncorrected_step")

# Wrong answers to the gaps, as the book's version with one fragment replaced; those to the exercises stand in the
# notebook's solution cells.
WRONG = {
    "largest_curvature": {
        "a gradient instead of a difference": (
            "(gradient(w + h * v) - gradient(w - h * v))",
            "gradient(w + h * v)",
        ),
        "one-sided difference": (
            "(gradient(w + h * v) - gradient(w - h * v)) / (2 * h)",
            "(gradient(w + h * v) - gradient(w)) / h",
        ),
        "sign lost": ("value, v = v @ Hv, Hv", "value, v = np.linalg.norm(Hv), Hv"),
    },
    "adamw_step": {
        "no correction": ("m_hat = m / (1 - beta1**step)", "m_hat = m"),
        "steps counted from 0": ("(1 - beta1**step)", "(1 - beta1 ** (step + 1))"),
        "epsilon inside the root": ("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)"),
        "decay in the gradient": (" - rate * decay * p - rate * m_hat", " - rate * (m_hat + decay * p)"),
        "old moments used": ("m_hat = m /", "m_hat = (m - (1 - beta1) * g) / beta1 /"),
        "in place": ("m = m + (1 - beta1) * (g - m)", "m += (1 - beta1) * (g - m)"),
    },
    "learning_rate": {
        "warm-up begins at 0": ("(step + 1) / config.warmup", "step / config.warmup"),
        "cosine from step 0": (
            "(step - config.warmup) / max(1, config.steps - config.warmup)",
            "step / config.steps",
        ),
        "a straight line": ("0.5 * (1 + math.cos(math.pi * min(done, 1.0)))", "(1 - min(done, 1.0))"),
        "goes on after the end": ("min(done, 1.0)", "done"),
    },
}


@pytest.fixture(scope="module")
def names():
    return run_tagged(NOTEBOOK[0], "setup")


_, test_wrong_gaps = rewritten_tests({f"check_{name}": (name, {}, wrong) for name, wrong in WRONG.items()})


def test_slips_differ_from_the_rule_they_are_made_of(names):
    numbers = (3, 0.1, 0.5, 0.8, 1e-3, 0.1)
    p, g, m, v = np.array([[1.0, -2.0], [3.0, 1e-3], [0.5, 0.1], [0.2, 0.3]])
    right = names["adamw_step"](p, g, m, v, *numbers)[0]
    for rule in ("sgd_step", "heavy_ball_step", "l2_step", "inside_root_step", "uncorrected_step"):
        assert not np.allclose(names[rule](p, g, m, v, *numbers)[0], right), rule


# ---- Other right answers, and wrong ones that earlier checks accepted


def curvature_by_rayleigh(gradient, w, v, products=30, h=1e-4):
    """One more product gives the value."""
    times = lambda u: (gradient(w + h * u) - gradient(w - h * u)) / (2 * h)
    for _ in range(products):
        u = v / np.sqrt(v @ v)
        v = times(u)
    u = v / np.sqrt(v @ v)
    return u @ times(u), u


def adamw_by_powers(p, g, m, v, step, rate, beta1, beta2, eps, decay):
    m, v = beta1 * m + g * (1 - beta1), beta2 * v + g**2 * (1 - beta2)
    size = np.sqrt(v) / np.sqrt(1 - beta2**step) + eps
    return (1 - rate * decay) * p - rate / (1 - beta1**step) * m / size, m, v


def rate_by_parts(step, config):
    if step < config.warmup:
        return (step + 1) * config.rate / config.warmup
    low, span = config.rate * config.rate_end, config.steps - config.warmup
    share = min(1.0, (step - config.warmup) / span) if span else 1.0
    return low + (config.rate - low) * math.cos(math.pi / 2 * share) ** 2


def hand_test(f):
    """Two steps from moments that are not zero, against AdamW by weighted parts."""
    p, g = np.array([2.0, 1.0, -1.0]), np.array([1.0, 1e-4, -2.0])
    m, v = np.array([0.1, 0.2, 0.0]), np.array([0.3, 1e-8, 0.5])
    for step in (3, 4):
        new = f(p, g, m, v, step, 0.2, 0.7, 0.6, 1e-4, 0.3)
        right = adamw_by_powers(p, g, m, v, step, 0.2, 0.7, 0.6, 1e-4, 0.3)
        if len(new) != 3 or not all(np.allclose(a, b, rtol=1e-8, atol=0) for a, b in zip(new, right, strict=True)):
            return False
        p, m, v = (np.array(a) for a in new)
        g = g[::-1]
    return True


def one_call_test(f):
    """All of it at a later step."""
    given = np.array([[1.5, -2.0, 0.5, 1.0], [1e-3, 0.0, -4.0, 2.0], [0.2, 1e-3, 3.0, 0.0], [0.4, 1e-7, 2.0, 0.1]])
    found = f(*given, 5, 0.3, 0.6, 0.9, 1e-3, 0.2)
    return all(
        np.allclose(a, b, rtol=1e-9, atol=1e-15)
        for a, b in zip(found, adamw_by_powers(*given, 5, 0.3, 0.6, 0.9, 1e-3, 0.2), strict=True)
    )


def by_keyword(f):
    """As the page itself calls its rules."""
    names = list(inspect.signature(adamw_by_powers).parameters)
    return one_call_test(lambda *given: f(**dict(zip(names, given, strict=True))))


OTHERS = {
    "largest_curvature": [curvature_by_rayleigh],
    "same": [
        lambda: [("ball", "turn"), ("sgd", "turn"), ("adamw", "loss"), ("adam", "loss")],
        lambda: frozenset({("adam", "loss"), ("adamw", "loss"), ("sgd", "turn"), ("ball", "turn")}),
    ],
    "limit": [lambda curvature, beta: 2 / curvature + 2 * beta / curvature,
              lambda curvature, beta: np.float64(2 + 2 * beta) / curvature],
    "test": [hand_test, one_call_test, by_keyword],
}  # fmt: skip
test_other_right_answers = accepts({f"check_{name}": answers for name, answers in OTHERS.items()})


def four_numbers(p, g, m, v, *rest):
    rows = [adamw_by_powers(p[i], g[i], m[i], v[i], *rest) for i in range(4)]
    return tuple(np.array(part) for part in zip(*rows, strict=True))


ACCEPTED_ONCE = {
    "adamw_step": {
        "four numbers and no others": four_numbers,
        "the correction stops at step 5": lambda p, g, m, v, step, *rest: adamw_by_powers(
            p, g, m, v, min(step, 5), *rest
        ),
    },
    "learning_rate": {
        "rate_end of 0.1 written in": lambda step, c: rate_by_parts(
            step, TrainConfig(steps=c.steps, rate=c.rate, rate_end=0.1, warmup=c.warmup)
        ),
    },
    "largest_curvature": {
        "products ignored": lambda gradient, w, v, products=30, h=1e-4: curvature_by_rayleigh(gradient, w, v, 30, h),
        "h ignored": lambda gradient, w, v, products=30, h=1e-4: curvature_by_rayleigh(gradient, w, v, products),
    },
}  # fmt: skip
test_wrong_answers_that_were_once_accepted = rejects(
    {f"check_{name}": answers for name, answers in ACCEPTED_ONCE.items()}
)


# ---- The stored results


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch11.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert ModelConfig.from_dict(config["model"]) == names["MINI"]
    assert len(config["seeds"]) >= 5 and config["choosing_seed"] not in config["seeds"]
    entries = names["OPTIMISERS"] | names["SCHEDULES"]
    assert {row["name"] for row in rows} == {*entries, *names["VARIANTS"]}
    for name, (_, rates) in entries.items():
        bits = {
            row["rate"]: row["bits_per_byte"] or math.inf
            for row in rows
            if row["name"] == name and row["seed"] == config["choosing_seed"]
        }
        assert set(bits) == set(rates) and config["chosen"][name] == min(bits, key=bits.get)
    for name in {row["name"] for row in rows}:
        final = [row for row in rows if row["name"] == name and row["seed"] in config["seeds"]]
        assert sorted(row["seed"] for row in final) == config["seeds"]
        assert {row["rate"] for row in final} == {config["chosen"].get(name, config["chosen"]["AdamW"])}
