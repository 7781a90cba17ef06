"""Measure how accurate the engine's numbers on a GPU are, compared with NumPy's and PyTorch's.

    python -m benchmarks.gpu_numbers               # gradients and again; stores data/results/gpu_numbers.json
    python -m benchmarks.gpu_numbers --curves      # curves; stores data/results/gpu_numbers_curves.json
    python -m benchmarks.gpu_numbers --out FOLDER  # writes the JSON there

gradients: relative error (in norm) of each tensor's gradient in float32 against float64, for `small` and `base`, fresh
and after STEPS steps, by the engine and by NumPy. It is the root mean square over TEXTS texts, because one text is only
one sample of rounding errors. In these texts, each token depends on the previous one, so that there is something to
learn. curves: difference between the loss in bfloat16 and the engine's loss in float32, as the mean of |difference|
over the last LAST steps, for the engine and for PyTorch's autocast, with SEEDS initial weights. again: whether two runs
with the same seed give bitwise identical losses.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.gpu_step import SETTINGS, US
from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.model import optim
from tools.notebooks.results import FOLDER, save

STEPS, LAST, SEEDS, ROWS, TEXTS = 300, 50, 3, 4, 8
PEER = "PyTorch"


def text(config: ModelConfig, rows: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, T] and targets [rows, T, K] of the source: after t comes (7 t + 0, 1, 2 or 3) mod V."""
    rng, T, K, V = np.random.default_rng(number), config.context, config.predict, config.vocab_size
    tokens = np.empty((rows, T + K), np.int64)
    tokens[:, 0] = rng.integers(0, V, rows)
    drawn = rng.integers(0, 4, tokens.shape)
    for t in range(1, T + K):
        tokens[:, t] = (7 * tokens[:, t - 1] + drawn[:, t]) % V
    return tokens[:, :T].copy(), np.stack([tokens[:, 1 + k : 1 + k + T] for k in range(K)], axis=-1)


def trained(config: ModelConfig, precision: str, seed: int, where: str, steps: int):
    """A model of the engine after some steps, and the loss before each."""
    made = engine.GPT(config, seed=seed, precision=precision, where=where)
    take = engine.Step(made, engine.AdamW(config, SETTINGS, where), SETTINGS, ROWS)
    return made, [float(take(*text(config, ROWS, n))[0] @ take.weights) for n in range(steps)]


def gradients(config: ModelConfig, made: engine.GPT, texts: int = TEXTS) -> dict[str, list[float]]:
    """By tensor: how much of its length the gradient of our float32 and of NumPy's is off float64's."""
    params, doubled = made.params.host(), model.Parameters(config, np.float64)
    doubled.flat[...] = params.flat
    models = model.GPT(config, doubled), made, model.GPT(config, params)
    squares = {name: np.zeros(2) for name in params}
    for number in range(texts):
        exact, *found = (m.loss_and_gradients(*text(config, 1, 10**6 + number))[1] for m in models)
        for name, wanted in exact.items():
            squares[name] += [(np.linalg.norm(g[name] - wanted) / np.linalg.norm(wanted)) ** 2 for g in found]
    return {name: np.sqrt(sums / texts).tolist() for name, sums in squares.items()}


def curves(config: ModelConfig, seed: int, where: str, steps: int) -> dict[str, float]:
    """Mean of |bfloat16 - float32| over the last losses, ours and PyTorch's."""
    from benchmarks.torch_peer import Trainer

    ours = [trained(config, precision, seed, where, steps)[1] for precision in ("bfloat16", "float32")]
    theirs = []
    for precision in ("bfloat16", "float32"):
        on = "cuda" if where == "gpu" else "cpu"
        params = model.init(config, seed)
        trainer = Trainer(config, params, SETTINGS, False, on, precision)
        rate = (optim.learning_rate(n, SETTINGS) for n in range(steps))
        theirs.append([trainer.step(*text(config, ROWS, n), one) for n, one in enumerate(rate)])
    return {name: float(np.abs(np.subtract(*losses))[-LAST:].mean()) for name, losses in ((US, ours), (PEER, theirs))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    parser.add_argument("--curves", action="store_true", help="the curves, in a file of their own")
    options, rows = parser.parse_args(), []
    import torch

    def store(row):
        rows.append(row)
        config = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "rows": ROWS,
            "texts": TEXTS,
        }
        save("gpu_numbers_curves" if options.curves else "gpu_numbers", config, rows, options.out)

    for name in () if options.curves else ("small", "base"):
        for steps in (0, STEPS):
            made, _ = trained(preset(name), "float32", 0, "gpu", steps)
            found = gradients(preset(name), made)
            worst = max(found, key=lambda key: found[key][0])
            store({"gradients": name, "steps": steps, "off": found})
            allowed = max(ours / max(1e-6, 2 * numpy) for ours, numpy in found.values())
            print(f"{name}, {steps} steps: worst {worst} {found[worst][0]:.1e}, NumPy {found[worst][1]:.1e}; "
                  f"largest share of what is allowed {allowed:.2f}", flush=True)  # fmt: skip
    if not options.curves:
        first, second = (trained(preset("base"), "bfloat16", 0, "gpu", 30)[1] for _ in range(2))
        store({"again": "base", "precision": "bfloat16", "steps": 30, "equal": first == second})
        print("two runs of one seed, equal bit for bit:", first == second, flush=True)
    for seed in range(SEEDS if options.curves else 0):
        apart = curves(preset("base"), seed, "gpu", STEPS)
        store({"curves": "base", "seed": seed, "steps": STEPS, "last": LAST} | apart)
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
