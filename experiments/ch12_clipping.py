"""Chapter 12: train with and without clipping, and with and without a batch from a wrong file, for five seeds.

    make results CH=12_clipping

The miniature, its training loop and the wrong file are in the notebook: its cells tagged `experiment` are run here.
"""

from dataclasses import replace

import numpy as np

import konigsberg
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS, STORIES = [0, 1, 2, 3, 4], 2500


def main() -> None:
    names, rows = run_tagged("12_pretraining", "experiment"), []
    np.seterr(all="ignore")
    tokens, draw, wrong = names["tokens_of"](konigsberg.stories(STORIES, seed=1)), names["draw"], names["wrong_file"]
    settings = {
        "healthy": (1, draw),
        "no clipping": (0, draw),
        "wrong file, no clipping": (0, wrong),
        "wrong file, clipped": (1, wrong),
    }
    for name, (clip, drawn) in settings.items():
        for seed in SEEDS:
            log, _ = names["run"](tokens, replace(names["BRIEF"], clip=clip, seed=seed), draw=drawn)
            rows.append({"name": name, "seed": seed, "loss": round(float(names["end_of"](log)), 4)})
            print(rows[-1], flush=True)
    config = {"seeds": SEEDS, "stories": STORIES, "model": names["MINI"].to_dict(), "train": names["BRIEF"].to_dict()}
    save("ch12_clipping", config, rows)


if __name__ == "__main__":
    main()
