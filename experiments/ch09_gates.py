"""Chapter 09: the layers of ch09.py once more, with gates that start ten times as large; the rest is the same.

    make results CH=09_gates

The file is written after every layer, so that a run that is stopped leaves what it has.
"""

import konigsberg
from nanoeuler_lib import ops
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.text import data
from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, RATE, SEEDS, GATES = 600, 1e-2, [0, 1, 2, 3, 4], 10.0
LAYERS = ["plain SiLU", "plain ReLU", "gated SiLU", "plain GELU", "plain linear", "gated linear", "gated GELU",
          "gated ReLU"]  # fmt: skip


def main() -> None:
    names, rows = run_tagged("09_swiglu", "experiment"), []
    valid = data.tokenize(konigsberg.corpus(60_000, seed=9009), names["tokens_of"])

    def run(layer: str, gates: float, seed: int) -> None:
        form, function = layer.split()
        with ops.use(**names["pair_of"](form, function)):
            _, model = names["train"](STEPS, seed, names["WIDTHS"][form], RATE, gates)
            bits = bits_per_byte(model, valid)
        row = {"form": form, "function": function, "rate": RATE, "gates": gates, "seed": seed}
        rows.append(row | {"bits_per_byte": round(bits, 5)})
        print(*row.values(), f"{bits:.4f}", flush=True)

    run(LAYERS[0], 1.0, SEEDS[0])  # a run of ch09.py again: does this machine give the same?
    config = {"steps": STEPS, "seeds": SEEDS, "model": names["MINI"], "widths": names["WIDTHS"]}
    for layer in LAYERS:
        for seed in SEEDS:
            run(layer, GATES, seed)
        save("ch09_gates", config, rows)


if __name__ == "__main__":
    with one_blas_thread():
        main()
