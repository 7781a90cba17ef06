"""Chapter 09: four functions, plain at width 4D and gated at width 8D/3, in the feed-forward half of a miniature.

The miniature, its text and the eight pairs of functions are the notebook's own: its cells tagged `experiment` are run
here. A learning rate is chosen for each form by one seed that is not among those of the comparison.
"""

import konigsberg
from nanoeuler_lib import ops
from nanoeuler_lib.text import data
from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, SEEDS, CHOOSING_SEED, RATES = 600, [0, 1, 2, 3, 4], 99, (5e-3, 1e-2)


def main() -> None:
    names, rows = run_tagged("09_swiglu", "experiment"), []
    valid = data.tokenize(konigsberg.corpus(60_000, seed=9009), names["tokens_of"])

    def run(form: str, function: str, rate: float, seed: int) -> float:
        with ops.use(**names["pair_of"](form, function)):
            _, model = names["train"](STEPS, seed, names["WIDTHS"][form], rate)
            bits = bits_per_byte(model, valid)
        rows.append({"form": form, "function": function, "rate": rate, "seed": seed, "bits_per_byte": round(bits, 5)})
        print(f"{form:6} {function:6} rate {rate:<6} seed {seed:2}  {bits:.4f}", flush=True)
        return bits

    for function in names["FUNCTIONS"]:
        for form in names["WIDTHS"]:
            tried = {rate: run(form, function, rate, CHOOSING_SEED) for rate in RATES}
            for seed in SEEDS:
                run(form, function, min(tried, key=tried.get), seed)
    config = {"steps": STEPS, "seeds": SEEDS, "choosing_seed": CHOOSING_SEED, "rates": RATES}
    save("ch09", config | {"model": names["MINI"], "widths": names["WIDTHS"]}, rows)


if __name__ == "__main__":
    main()
