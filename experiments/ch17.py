"""Chapter 17: analyse narrow models of 4 and 12 layers as walks through depth, and train models that take half steps.

The models of 4 and 12 layers are fresh and trained; those with half steps have 8 layers and are trained like the ones
with 4. The sublayers, the solvers and the rebuilt models are in the notebook: its cells tagged `experiment` are run
here, in one process per seed.
"""

import multiprocessing
from dataclasses import replace
from itertools import pairwise

import numpy as np

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.optim import AdamW
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS, DEPTHS = [0, 1, 2, 3, 4], [4, 12]
SHAPE = dict(dim=32, heads=2, kv_heads=1, context=128, vocab_size=512, predict=1)
TRAIN = dict(steps=1000, batch=8, rate=6e-3, warmup=50)
TEXT_BYTES, STORIES = 2_000_000, 40


class HalfSteps(AdamW):
    """AdamW on x + f(x) / 2 for a model whose matrices that write hold the half: they move and decay half as far.

    So W / 2 follows W / 2 of a model with the step written out, but for the norm by which gradients are clipped.
    """

    def update(self, params, grads, names, factor):
        whole = self.config
        writes = [name for name in names if name.endswith((".out", ".down"))]
        super().update(params, grads, [name for name in names if name not in writes], factor)
        self.config = replace(whole, rate=whole.rate / 2, decay=2 * whole.decay)
        super().update(params, grads, writes, factor)
        self.config = whole


def rows_of(seed: int) -> list[dict]:
    """The rows of a seed's models."""
    n, rows = run_tagged("17_eulers_method", "experiment"), []
    world, evaluate, rebuilt, lens, slopes = (
        n[x] for x in ("konigsberg", "evaluate", "book_rebuilt", "lens", "slopes")
    )
    tokenizer = n["load_pretrained"]()[1]
    text = n["data"].tokenize(world.corpus(TEXT_BYTES, seed=1700), tokenizer)
    stories = [world.sample(1_700_000 + i) for i in range(STORIES)]
    some = [row for row in map(tokenizer.encode, (story.text for story in stories)) if len(row) >= 64]
    tokens = np.array([row[:64] for row in some[:16]])

    def last(model, tokens, depth=None):
        return n["trajectory"](model, tokens, slopes(model)[:depth])[-1]

    def portrait(model) -> dict:
        """Everything that the chapter shows of a model, by depth or by solver; name_away: how far off."""
        L = model.config.layers
        order, found = list(range(L)), {}

        def above(stream) -> float:
            """Bits per byte above the floor, if the heads read this stream, a function of the tokens."""
            read = evaluate.measure(lambda tokens: lens(model, stream(tokens)), tokenizer, stories)
            return round(read.bits_per_byte - read.floor, 4)

        def walked(name, stream):
            found[name] = above(stream)
            found[f"{name}_away"] = round(float(n["away"](stream(tokens), last(model, tokens))), 4)

        def by(order, scale=1.0):
            new = rebuilt(model, order, scale)
            return lambda tokens: last(new, tokens)

        ratio, next_to, random = n["geometry"](model, tokens, slopes(model)).round(3).tolist()
        found |= {"layer_ratio": ratio, "layer_next": next_to[:-1], "layer_random": random[:-1]}
        at, fs = n["trajectory"](model, tokens, slopes(model)), slopes(model)
        alike = [n["cosine"](f(x), g(x)).mean() for (f, g), x in zip(pairwise(fs), at)]
        found["same_point"] = np.round(alike, 3).tolist()
        found["lens"] = [above(lambda tokens, d=depth: last(model, tokens, d)) for depth in range(L + 1)]
        found["whole"] = found["lens"][-1]
        found["skip"] = [above(by(order[:i] + order[i + 1 :])) for i in order]
        found["swap"] = [above(by([*order[:i], i + 1, i, *order[i + 2 :]])) for i in range(L - 1)]
        for name, step, steps in [(f"euler{k}", n["euler"], k) for k in (2, 4, 8)] + [
            ("heun", n["book_heun"], 1),
            ("runge_kutta", n["runge_kutta"], 2),
        ]:
            walked(name, lambda tokens, step=step, k=steps: n["walk"](model, tokens, step, k))
        walked("coarse", by(order[::2], 2.0))
        rng = np.random.default_rng(0)
        walked("random", lambda tokens: n["displaced"](model, tokens, rng))
        return found

    def look(model, **about):
        row = {"layers": model.config.layers, **about, "parameters": model.size}
        rows.append(row | portrait(model))
        print({key: rows[-1][key] for key in (*row, "whole", "euler2", "coarse")}, flush=True)

    with n["one_blas_thread"]():
        config = TrainConfig(**TRAIN, seed=seed)
        shallow, deep = (n["GPT"](n["ModelConfig"](layers=d, **SHAPE), seed=seed) for d in DEPTHS)
        for model in (shallow, deep):
            look(model, seed=seed, state="fresh")
        # twice the depth of `shallow`: each layer twice, or all drawn independently; the writes have its size times 1/2
        pairs = rebuilt(shallow, np.repeat(range(DEPTHS[0]), 2), 1 / 2)
        drawn = n["GPT"](pairs.config, seed=seed)
        drawn = rebuilt(drawn, range(2 * DEPTHS[0]), 1 / np.sqrt(2))
        for model in (shallow, deep):
            n["train"](model, text, config)
            look(model, seed=seed, state="trained")
        for model, start in ((pairs, "in pairs"), (drawn, "each for itself")):
            n["train"](model, text, config, rule=HalfSteps)
            look(model, seed=seed, state=f"half steps, {start}")
    return rows


def main() -> None:
    with multiprocessing.get_context("spawn").Pool(len(SEEDS)) as pool:
        rows = [row for found in pool.map(rows_of, SEEDS) for row in found]
    config = {"seeds": SEEDS, "text_bytes": TEXT_BYTES, "stories": STORIES, "train": TRAIN, "model": SHAPE}
    save("ch17", config, rows)


if __name__ == "__main__":
    main()
