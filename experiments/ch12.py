"""Chapter 12: the order in which things are learnt, two baselines of the ladder, overfitting, and canaries.

The miniature, its training loop, the silent layers and the canaries are in the notebook: its cells tagged `experiment`
are run here.
"""

from dataclasses import replace

import numpy as np

import konigsberg
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS = [0, 1, 2, 3, 4]
ORDER = {"steps": 2400, "rate": 1e-2, "every": 100, "kind": "errand", "stories": 6000, "tests": 60}
LADDER = {"steps": 400, "stories": 6000, "tests": 150}
OVERFIT = {"steps": 400, "sizes": [20, 80, 320, 1280], "tests": 40, "every": 50}
CANARIES = {"steps": 600, "tests": 40}
SETTINGS = {
    "as it is": {},
    "half the steps": {"steps": 300},
    "no decay": {"decay": 0.0},
    "ten times the decay": {"decay": 1.0},
}
WORDS = {"0-4 words": (0, 5), "5-9 words": (5, 10), "10-19 words": (10, 20), "20+ words": (20, 10**6)}


def order(names: dict, seed: int) -> dict:
    """Accuracy by step, on stories of one kind."""
    kind, tests = ORDER["kind"], ORDER["tests"]
    train = names["tokens_of"]([konigsberg.sample(10**6 + i, kind) for i in range(ORDER["stories"])])
    test = [konigsberg.sample(2 * 10**6 + i, kind) for i in range(tests)]
    config = replace(names["BRIEF"], steps=ORDER["steps"], rate=ORDER["rate"], warmup=50, seed=seed)
    model = names["GPT"](names["MINI"], seed=seed)
    row = {"experiment": "order", "seed": seed, "steps": [], "grammar": []} | {name: [] for name in WORDS}

    def look(entry):
        if "loss" not in entry or entry["step"] % ORDER["every"]:
            return
        found = names["evaluate"].measure(model, names["tokenizer"], test)
        row["steps"].append(entry["step"])
        row["grammar"].append(round(found.accuracy(konigsberg.GRAMMAR), 4))
        for name, (low, high) in WORDS.items():
            far = (found.tag == konigsberg.FACT) & (found.words >= low) & (found.words < high)
            row[name].append(round(float(found.right[far].mean()), 4))

    names["run"](train, config, model, on_entry=look)
    return row


def ladder(names: dict, seed: int, rung: str) -> dict:
    train = names["tokens_of"](konigsberg.stories(LADDER["stories"], seed=1))
    test = list(konigsberg.stories(LADDER["tests"], seed=3))
    with names["ops"].use(**names["RUNGS"][rung]):
        _, model = names["run"](train, replace(names["BRIEF"], steps=LADDER["steps"], seed=seed))
        found = names["evaluate"].measure(model, names["tokenizer"], test)
    return {
        "experiment": "ladder",
        "name": rung,
        "seed": seed,
        "bits_per_byte": round(found.bits_per_byte, 5),
        "fact_accuracy": round(found.accuracy(konigsberg.FACT), 4),
        "fact_accuracy_beyond_10_words": round(found.accuracy(konigsberg.FACT, 10), 4),
    }


def overfit(names: dict, seed: int, stories: int) -> dict:
    train = names["tokens_of"](konigsberg.stories(stories, seed=100 + seed))
    valid = names["tokens_of"](konigsberg.stories(OVERFIT["tests"], seed=2))
    shown = min(stories - 2, OVERFIT["tests"])  # no row reaches to the end of the last two
    few = names["tokens_of"](konigsberg.stories(shown, seed=100 + seed))
    config = replace(names["BRIEF"], steps=OVERFIT["steps"], valid_every=OVERFIT["every"], seed=seed)
    log, model = names["run"](train, config, valid=valid)
    bits = names["series"](log, "valid_bits_per_byte")
    figures = {"train": names["bits_per_byte"](model, few), "valid": bits[-1], "best": bits.min()}
    row = {"experiment": "overfit", "stories": stories, "seed": seed}
    return row | {name: round(float(value), 5) for name, value in figures.items()}


def canaries(names: dict, seed: int, setting: str) -> dict:
    tokens, planted = names["with_canaries"](seed)
    valid = names["tokens_of"](konigsberg.stories(CANARIES["tests"], seed=2))
    changes = {"steps": CANARIES["steps"]} | SETTINGS[setting]
    _, model = names["run"](tokens, replace(names["BRIEF"], seed=seed, **changes))
    return {
        "experiment": "canaries",
        "setting": setting,
        "seed": seed,
        "exposure": [round(bits, 4) for bits in names["exposures"](model, planted)],
        "valid": round(names["bits_per_byte"](model, valid), 5),
    }


def main() -> None:
    names, rows = run_tagged("12_pretraining", "experiment"), []
    np.seterr(all="ignore")
    for seed in SEEDS:
        rows += [canaries(names, seed, setting) for setting in SETTINGS]
        rows += [overfit(names, seed, stories) for stories in OVERFIT["sizes"]]
        rows += [ladder(names, seed, rung) for rung in names["RUNGS"]]
        rows += [order(names, seed)]
        print(f"seed {seed}", *rows[-12:], sep="\n", flush=True)
    config = {
        "seeds": SEEDS,
        "model": names["MINI"].to_dict(),
        "train": names["BRIEF"].to_dict(),
        "order": ORDER,
        "ladder": LADDER,
        "overfit": OVERFIT | {"rows": OVERFIT["steps"] * names["BRIEF"].batch},
        "canaries": CANARIES | {"copies": list(names["COPIES"]), "settings": SETTINGS},
    }
    save("ch12", config, rows)


if __name__ == "__main__":
    main()
