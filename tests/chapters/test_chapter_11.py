"""Chapter 11: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import inspect
import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rewritten_tests, run_tagged

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW, clip_factor
from nanoeuler_lib.text import data

NOTEBOOK = ("11_optimisers", "RULES", "SLIPS", "mystery_step", "inside_root_step", "uncorrected_step")

# Wrong answers to the gaps, as the book's version with one fragment replaced; the wrong answers to the exercises
# are in the notebook's solution cells.
WRONG = {
    "largest_curvature": {
        "one-sided difference": (
            "(gradient(w + h * v) - gradient(w - h * v)) / (2 * h)",
            "(gradient(w + h * v) - gradient(w)) / h",
        ),
        "sign lost": ("value, v = v @ Hv, Hv", "value, v = np.linalg.norm(Hv), Hv"),
        "products ignored": ("range(products)", "range(30)"),
        "h ignored": ("    for _ in", "    h = 1e-4\n    for _ in"),
        "the direction in float32": ("return value, v / np", "return value, v.astype(np.float32) / np"),
    },
    "adamw_step": {
        "no correction": ("m_hat = m / (1 - beta1**step)", "m_hat = m"),
        "the correction stops at step 5": ("beta1**step", "beta1 ** min(step, 5)"),
        "epsilon inside the root": ("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)"),
        "decay in the gradient": (" - rate * decay * p - rate * m_hat", " - rate * (m_hat + decay * p)"),
        "in place": ("m = m + (1 - beta1) * (g - m)", "m += (1 - beta1) * (g - m)"),
        "m in float32": ("return p, m, v", "return p, m.astype(np.float32), v"),
        "m in float32, and back": ("return p, m, v", "return p, m.astype(np.float32).astype(float), v"),
        "the corrected v returned": ("return p, m, v", "return p, m, v_hat"),
    },
    "learning_rate": {
        "warm-up begins at 0": ("(step + 1) / config.warmup", "step / config.warmup"),
        "cosine from step 0": ("(step - config.warmup) / max(1, config.steps - config.warmup)", "step / config.steps"),
        "goes on after the end": ("min(done, 1.0)", "done"),
        "a decay of one step takes two": ("max(1, config.steps", "max(2, config.steps"),
        "falls in a straight line": ("0.5 * (1 + math.cos(math.pi * min(done, 1.0)))", "(1 - min(done, 1.0))"),
        "rate_end of 0.1 written in": ("(config.rate_end + (1 - config.rate_end)", "(0.1 + 0.9"),
    },
}


@pytest.fixture(scope="module")
def names():
    return run_tagged(NOTEBOOK[0], "setup")


test_right_gaps, test_wrong_gaps = rewritten_tests(
    {f"check_{name}": (name, {"as it is": ()}, wrong) for name, wrong in WRONG.items()}
)


# ---- Other right answers


def adamw_by_powers(p, g, m, v, step, rate, beta1, beta2, eps, decay):
    m, v = beta1 * m + g * (1 - beta1), beta2 * v + g**2 * (1 - beta2)
    size = np.sqrt(v) / np.sqrt(1 - beta2**step) + eps
    return (1 - rate * decay) * p - rate / (1 - beta1**step) * m / size, m, v


def one_call_test(f):
    """All of it at a later step, by keyword, as the page itself calls its rules."""
    names = list(inspect.signature(adamw_by_powers).parameters)
    given = np.array([[1.5, -2.0, 0.5, 1.0], [1e-3, 0.0, -4.0, 2.0], [0.2, 1e-3, 3.0, 0.0], [0.4, 1e-7, 2.0, 0.1]])
    numbers = 5, 0.3, 0.6, 0.9, 1e-3, 0.2
    found = f(**dict(zip(names, (*given, *numbers), strict=True)))
    return all(
        np.allclose(a, b, rtol=1e-9, atol=1e-15) for a, b in zip(found, adamw_by_powers(*given, *numbers), strict=True)
    )


def test_a_noise_scale_in_float32_is_rejected(names):
    with pytest.raises(AssertionError, match="without bias"):
        names["check_noise_scale"](lambda each: np.float32(names["noise_scale"](each)))


test_other_right_answers = accepts(
    {
        "check_adamw_step": [adamw_by_powers],
        "check_same": [lambda: [("ball", "turn"), ("sgd", "turn"), ("adamw", "loss"), ("adam", "loss")]],
        "check_test": [one_call_test],
    }
)


# ---- The chapter's loop and the library


def test_the_chapters_loop_takes_the_steps_of_the_library(names):
    config, settings = names["MINI"], TrainConfig(steps=100, rate=0.01, warmup=10)
    model, optimizer, losses = GPT(config, seed=0), AdamW(config, settings), []
    for step in range(20):
        batch = data.batch(names["corpus"], np.random.default_rng([0, step]), 8, config.context, 1)
        loss, grads = model.loss_and_gradients(*batch)
        optimizer.step += 1
        factor = clip_factor(float(np.linalg.norm(grads.flat)), settings.clip)
        optimizer.update(model.params, grads, list(model.params), factor)
        losses.append(loss)
    assert np.allclose(names["train"](100, 0)[0][:20], losses, rtol=1e-3)


# ---- The stored results


def test_stored_frames_are_of_this_experiment():
    result = json.loads((ROOT / "data" / "results" / "ch11_frame.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert len(config["seeds"]) >= 5 and config["choosing_seed"] not in config["seeds"]
    tried = {row["rate"]: row["bits"] or math.inf for row in rows if row["seed"] == config["choosing_seed"]}
    assert list(tried) == config["rates"] and config["chosen"] == min(tried, key=tried.get)
    final = {row["seed"]: row["rate"] for row in rows if row["seed"] in config["seeds"]}
    assert final == dict.fromkeys(config["seeds"], config["chosen"])


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
