"""Chapter 09: train the layers of ch09.py again, with gates that start ten times as large and everything else the same.

    make results CH=09_gates

The file is written after every layer, so that a run that is stopped keeps its results.
"""

from experiments.ch09 import STEPS, tokens, train
from nanoeuler_book.checks import results
from nanoeuler_lib import ops
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS, GATES = [0, 1, 2, 3, 4], 10.0
LAYERS = ["plain SiLU", "plain ReLU", "gated SiLU", "plain GELU", "plain linear", "gated linear", "gated GELU",
          "gated ReLU"]  # fmt: skip


def main() -> None:
    names, rows = run_tagged("09_swiglu", "experiment"), []
    chosen = {f"{row['form']} {row['function']}": row["rate"] for row in results("ch09")["rows"] if row["seed"] == 0}

    def run(layer: str, gates: float, seed: int) -> None:
        form, function = layer.split()
        with ops.use(**names["pair_of"](form, function)):
            model = train(names["MINI"], seed, names["WIDTHS"][form], chosen[layer], gates)
            bits = bits_per_byte(model, tokens(60_000, 9009))
        row = {"form": form, "function": function, "rate": chosen[layer], "gates": gates, "seed": seed}
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
