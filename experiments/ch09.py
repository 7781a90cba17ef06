"""Chapter 09: compare four activations in the feed-forward sublayer, plain at width 4D and gated at width 8D/3.

The eight pairs of functions are in the notebook: its cells tagged `experiment` are run here. The learning rate of each
form is chosen with a seed that the comparison does not use.
"""

from functools import cache

import numpy as np

import konigsberg
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW, clip_factor
from nanoeuler_lib.text import data
from nanoeuler_lib.training.checkpoint import load_pretrained
from nanoeuler_lib.training.datasets import bits_per_byte
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

STEPS, SEEDS, CHOOSING_SEED, RATES = 600, [0, 1, 2, 3, 4], 99, (5e-3, 1e-2)


@cache
def tokens(size: int, seed: int) -> data.Tokens:
    """Return a corpus in tokens of the shipped model's tokenizer, the same for all models."""
    return data.tokenize(konigsberg.corpus(size, seed=seed), load_pretrained()[1])


def train(config: dict, seed: int, ffn: int, rate: float, gates: float = 1.0) -> GPT:
    """Train a miniature for 600 steps on batches of 8 rows; `gates` multiplies the matrix of the gate before that."""
    model = GPT(ModelConfig(**config, ffn=ffn), seed=seed)
    for layer in range(config["layers"]):
        model.params[f"layers.{layer}.gate_up"][:, :ffn] *= gates
    optimizer = AdamW(model.config, TrainConfig(steps=STEPS, rate=rate, warmup=20))
    for step in range(STEPS):
        rng = np.random.default_rng([seed, step])
        _, grads = model.loss_and_gradients(*data.batch(tokens(300_000, 9), rng, rows=8, time=64, predict=1))
        optimizer.step += 1
        factor = clip_factor(float(np.linalg.norm(grads.flat)), 1.0)
        optimizer.update(model.params, grads, list(grads), factor)
    return model


def main() -> None:
    names, rows = run_tagged("09_swiglu", "experiment"), []

    def run(form: str, function: str, rate: float, seed: int) -> float:
        with ops.use(**names["pair_of"](form, function)):
            model = train(names["MINI"], seed, names["WIDTHS"][form], rate)
            bits = bits_per_byte(model, tokens(60_000, 9009))
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
