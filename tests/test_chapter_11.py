"""Chapter 11: its checks accept the right answer and reject wrong ones by name; its stored results are its own."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, code_cells

CELLS = code_cells("11_optimisers")

# Wrong answers to the gaps, as the book's version with one fragment replaced; those to the exercises stand in the
# notebook's solution cells.
WRONG = {
    "largest_curvature": {
        "quotient not divided by 2h": ("/ (2 * h)", "/ h"),
        "a gradient instead of a difference": (
            "(gradient(w + h * v) - gradient(w - h * v))",
            "gradient(w + h * v)",
        ),
        "one-sided difference": (
            "(gradient(w + h * v) - gradient(w - h * v)) / (2 * h)",
            "(gradient(w + h * v) - gradient(w)) / h",
        ),
        "vector not made length 1": ("v = v / np.linalg.norm(v)\n", "v = v\n"),
        "sign lost": ("value, v = v @ Hv, Hv", "value, v = np.linalg.norm(Hv), Hv"),
        "direction not made length 1": ("return value, v / np.linalg.norm(v)", "return value, v"),
    },
    "adamw_step": {
        "no correction": ("m_hat = m / (1 - beta1**step)", "m_hat = m"),
        "correction of the first step for all": ("1 - beta2**step", "1 - beta2"),
        "steps counted from 0": ("(1 - beta1**step)", "(1 - beta1 ** (step + 1))"),
        "epsilon inside the root": ("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)"),
        "decay in the gradient": (" - rate * decay * p - rate * m_hat", " - rate * (m_hat + decay * p)"),
        "decay without the rate": ("rate * decay * p", "decay * p"),
        "betas swapped": ("(1 - beta1) * (g - m)", "(1 - beta2) * (g - m)"),
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
        "ends at 0": ("config.rate_end + (1 - config.rate_end) * 0.5", "0.5"),
        "a whole cosine": ("math.pi * min", "2 * math.pi * min"),
    },
}
EXERCISES = [
    ("same", "same", "wrong_same"),
    ("limit", "ball_limit", "wrong_limits"),
    ("test", "small_test", "wrong_tests"),
    ("noise_scale", "noise_scale", "wrong_scales"),
]


@pytest.fixture(scope="module")
def names():
    """What the notebook's cells tagged `setup` define: functions, checks, solutions, wrong answers."""
    defined: dict = {}
    for cell in CELLS:
        if "setup" in cell.metadata.get("tags", ()):
            exec(cell.source, defined)
    return defined


def source_of(function: str) -> str:
    found = [cell.source for cell in CELLS if f"\ndef {function}(" in f"\n{cell.source}"]
    assert len(found) == 1, f"{len(found)} cells define {function}"
    return found[0]


@pytest.mark.parametrize("gap", [*WRONG, *(check for check, _, _ in EXERCISES)])
def test_untouched_gap_is_not_an_error(names, gap):
    assert names[f"check_{gap}"](names[f"my_{gap}"]) == "not written yet"


@pytest.mark.parametrize("check, answer", [(gap, gap) for gap in WRONG] + [pair[:2] for pair in EXERCISES])
def test_check_accepts_the_right_answer(names, check, answer):
    assert names[f"check_{check}"](names[answer]) == "right"


def test_check_accepts_adamw_written_differently(names):
    assert names["check_adamw_step"](names["rearranged_step"]) == "right"


@pytest.mark.parametrize("gap, wrong", [(gap, wrong) for gap, answers in WRONG.items() for wrong in answers])
def test_check_rejects_a_wrong_gap(names, gap, wrong):
    old, new = WRONG[gap][wrong]
    source, defined = source_of(gap), dict(names)
    assert source.count(old) == 1
    exec(source.replace(old, new), defined)
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        names[f"check_{gap}"](defined[gap])


@pytest.mark.parametrize("check, _, answers", EXERCISES)
def test_check_rejects_every_wrong_answer(names, check, _, answers):
    assert len(names[answers]) >= 3
    for name, wrong in names[answers].items():
        with pytest.raises(AssertionError):
            names[f"check_{check}"](wrong)
            pytest.fail(f"the check accepts {name}", pytrace=False)


def test_slips_differ_from_the_rule_they_are_made_of(names):
    numbers = (3, 0.1, 0.5, 0.8, 1e-3, 0.1)
    p, g, m, v = np.array([[1.0, -2.0], [3.0, 1e-3], [0.5, 0.1], [0.2, 0.3]])
    right = names["adamw_step"](p, g, m, v, *numbers)[0]
    for rule in ("sgd_step", "heavy_ball_step", "l2_step", "inside_root_step", "uncorrected_step"):
        assert not np.allclose(names[rule](p, g, m, v, *numbers)[0], right), rule


def test_stored_results_are_of_this_experiment(names):
    result = json.loads((ROOT / "data" / "results" / "ch11.json").read_text("utf-8"))
    config, rows = result["config"], result["rows"]
    assert config["model"] == names["MINI"].to_dict()
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
