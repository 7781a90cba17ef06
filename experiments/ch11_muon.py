"""Appendix A2: train chapter 11's miniature with variants of Muon, each at its best learning rate, against AdamW.

The miniature and `train` are chapter 11's; the variants are in A2 (cells tagged `experiment`). Learning rates are
chosen with the seed that chose AdamW's, and the other seeds are AdamW's as well, whose rows are in ch11.json, so that
initial weights and batches are the same. The results are stored after every seed.
"""

import json
import math

from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import FOLDER, save


def main() -> None:
    names, ways, rows = run_tagged("11_optimisers", "experiment"), run_tagged("A2_muon", "experiment"), []
    config = json.loads((FOLDER / "ch11.json").read_text("utf-8"))["config"]

    def run(name: str, rule, rate: float, seed: int) -> float:
        losses, model = names["train"](config["steps"], seed, rule=rule, rate=rate)
        bits = bits_per_byte(model, names["valid"]) if math.isfinite(losses[-1]) else math.inf
        stored = round(bits, 5) if math.isfinite(bits) else None
        rows.append({"name": name, "rate": rate, "seed": seed, "bits_per_byte": stored})
        print(f"{name:32} rate {rate:<6} seed {seed:2}  {bits:.4f}", flush=True)
        return bits

    rules, tried, chosen = ways["MUONS"], ways["MUON_RATES"], {}
    for name, rule in rules.items():
        chosen[name] = min(tried, key=lambda rate: run(name, rule, rate, config["choosing_seed"]))
    for i, seed in enumerate(config["seeds"]):
        for name, rule in rules.items():
            run(name, rule, chosen[name], seed)
        kept = {"steps": config["steps"], "choosing_seed": config["choosing_seed"]}
        kept |= {"seeds": config["seeds"][: i + 1], "chosen": chosen, "model": config["model"]}
        save("ch11_muon", kept, rows)


if __name__ == "__main__":
    main()
