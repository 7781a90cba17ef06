"""Chapter 10: compare the training of a miniature with six planted bugs to that of a correct twin on the same batches.

The miniature, the text and the bugs are in the notebook: its cells tagged `experiment` are run here.
"""

from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, SEEDS, WINDOW = 200, [0, 1, 2, 3, 4], 10


def main() -> None:
    names = run_tagged("10_whole_model", "experiment")
    train, ops = names["train"], names["ops"]
    variants = {"healthy": {}} | names["bugs"] | {"exercise": names["by_width"]}
    rows = []
    for seed in SEEDS:
        for bug, functions in variants.items():
            with ops.use(**functions):
                losses, _ = train(STEPS, seed)
            windows = losses.reshape(-1, WINDOW).mean(axis=1)
            rows.append({"bug": bug, "seed": seed, "losses": [round(float(x), 4) for x in windows]})
            print(f"seed {seed}  {bug:20} {windows[-1]:.3f}", flush=True)
    config = {"steps": STEPS, "seeds": SEEDS, "window": WINDOW, "model": names["MINI"].to_dict()}
    save("ch10", config, rows)


if __name__ == "__main__":
    main()
