"""Chapter 31: measure the effect of duplicates on validation loss and on secrets, and whether a model amplifies a bias.

The crawl, its cleaning, the miniature and the measurements are in the notebook: its cells tagged `experiment` are run
here. For each seed there are three runs: on the pages as crawled; on the cleaned pages; and on the cleaned pages for
fewer steps, so that each page is read as often as by the crawl's model ("cleaned, as often").
"""

import numpy as np

from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS = list(range(8))


def row(names: dict, seed: int, text: str) -> dict:
    held, crawled, planted = names["crawl"](seed)
    pages = crawled if text == "as crawled" else names["clean"](held, crawled, seed)
    share = len(pages) / len(crawled) if text == "cleaned, as often" else 1
    model = names["train_on"](pages, seed, round(share * names["BRIEF"].steps))
    share = {
        title: [names["share_in"](pages, title)]
        + [names["share_of_bakers"](model, title, temperature) for temperature in (1.0, 0.5, 0)]
        for title in names["WHO"]
    }
    return {
        "text": text,
        "seed": seed,
        "pages": len(pages),
        "bits": [round(bits, 5) for bits in names["by_twins"](model, held)],
        "exposure": [[round(bits, 4) for bits in family] for family in names["exposures"](model, planted)],
        "share": {title: [round(x, 5) for x in found] for title, found in share.items()},
    }


def main() -> None:
    names, rows = run_tagged("31_text_from_elsewhere", "experiment"), []
    np.seterr(all="ignore")
    for seed in SEEDS:
        rows += [row(names, seed, text) for text in ("as crawled", "cleaned", "cleaned, as often")]
        print(*rows[-3:], sep="\n", flush=True)
    config = {
        "seeds": SEEDS,
        "model": names["MINI"].to_dict(),
        "train": names["BRIEF"].to_dict(),
        "pages": names["PAGES"],
        "held_out": names["HELD"],
        "twins": list(names["TWINS"]),
        "families": list(names["FAMILIES"]),
        "copies": list(names["COPIES"]),
        "trades": list(names["TRADES"]),
        "usual": names["USUAL"],
    }
    save("ch31", config, rows)


if __name__ == "__main__":
    main()
