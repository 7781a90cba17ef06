"""Chapter 11: compare optimisers and schedules, each at its best learning rate, and variants of AdamW, on a miniature.

The miniature, the rules and the lists of variants are in the notebook: its cells tagged `experiment` are run here. A
learning rate is chosen with a seed that the comparison does not use.
"""

import math

import numpy as np

from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, SEEDS, CHOOSING_SEED, WINDOW = 600, [0, 1, 2, 3, 4], 99, 20


def main() -> None:
    names, rows = run_tagged("11_optimisers", "experiment"), []

    def run(group: str, name: str, settings: dict, rate: float, seed: int) -> dict:
        losses, model = names["train"](STEPS, seed, rate=rate, **settings)
        bits = bits_per_byte(model, names["valid"]) if math.isfinite(losses[-1]) else math.inf
        row = {"group": group, "name": name, "rate": rate, "seed": seed, "bits_per_byte": None}
        if math.isfinite(bits):
            row["bits_per_byte"] = round(bits, 5)
            row["losses"] = [round(float(x), 4) for x in losses.reshape(-1, WINDOW).mean(axis=1)]
        rows.append(row)
        print(f"{group:9}  {name:24} rate {rate:<6} seed {seed:2}  {bits:.4f}", flush=True)
        return row

    def best_rate(group: str, name: str, settings: dict, rates: tuple) -> float:
        tried = {rate: run(group, name, settings, rate, CHOOSING_SEED)["bits_per_byte"] for rate in rates}
        return min(tried, key=lambda rate: math.inf if tried[rate] is None else tried[rate])

    chosen = {}
    with np.errstate(all="ignore"):  # a rate that is too high is part of the comparison
        for group, entries in (("optimiser", names["OPTIMISERS"]), ("schedule", names["SCHEDULES"])):
            for name, (settings, rates) in entries.items():
                chosen[name] = best_rate(group, name, settings, rates)
                for seed in SEEDS:
                    run(group, name, settings, chosen[name], seed)
        for name, settings in names["VARIANTS"].items():
            for seed in SEEDS:
                run("variant", name, settings, chosen["AdamW"], seed)
    config = {
        "steps": STEPS,
        "seeds": SEEDS,
        "choosing_seed": CHOOSING_SEED,
        "window": WINDOW,
        "chosen": chosen,
    }
    save("ch11", config | {"model": names["MINI"].to_dict()}, rows)


if __name__ == "__main__":
    main()
