"""Chapter 17: narrow models of 4 and 12 layers, fresh and trained, looked at as walks through depth.

The half-blocks, the solvers and the rebuilt models are the notebook's own: its cells tagged `experiment` are run here.
"""

import numpy as np

from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS, DEPTHS = [0, 1, 2, 3, 4], [4, 12]
SHAPE = dict(dim=32, heads=2, kv_heads=1, context=128, vocab_size=512, predict=1)
TRAIN = dict(steps=1000, batch=8, rate=6e-3, warmup=50)
TEXT_BYTES, STORIES = 2_000_000, 40


def main() -> None:
    n, rows = run_tagged("17_eulers_method", "experiment"), []
    world, evaluate, rebuilt, walk = n["world"], n["evaluate"], n["book_rebuilt"], n["walk"]
    tokenizer = n["load_pretrained"]()[1]
    text = n["data"].tokenize(world.corpus(TEXT_BYTES, seed=1700), tokenizer)
    stories = [world.sample(1_700_000 + i) for i in range(STORIES)]
    some = [row for row in map(tokenizer.encode, (story.text for story in stories)) if len(row) >= 64]
    tokens = np.array([row[:64] for row in some[:16]])

    def above(predict) -> float:
        """Bits per byte above the floor."""
        found = evaluate.measure(predict, tokenizer, stories)
        return round(found.bits_per_byte - found.floor, 4)

    def by_lens(model, depth: int) -> float:
        pieces = n["slopes"](model)[:depth]
        return above(lambda tokens: n["lens"](model, n["trajectory"](model, tokens, pieces)[-1]))

    def portrait(model) -> dict:
        """Everything that the chapter shows of a model, by depth or by solver."""
        L = model.config.layers
        order = list(range(L))
        found = {"whole": above(model)}
        for name, pieces in (("half", n["half_blocks"](model)), ("layer", n["slopes"](model))):
            ratio, next_to, random = n["geometry"](model, tokens, pieces).round(3).tolist()
            found |= {f"{name}_ratio": ratio, f"{name}_next": next_to[:-1], f"{name}_random": random[:-1]}
        found["lens"] = [by_lens(model, depth) for depth in range(L + 1)]
        found["skip"] = [above(rebuilt(model, order[:i] + order[i + 1 :])) for i in order]
        found["swap"] = [above(rebuilt(model, [*order[:i], i + 1, i, *order[i + 2 :]])) for i in range(L - 1)]
        found |= {f"euler{k}": above(walk(model, n["euler"], k)) for k in (2, 4, 8)}
        found |= {"heun": above(walk(model, n["book_heun"], 1))}
        found |= {"runge_kutta": above(walk(model, n["runge_kutta"], 2))}
        found |= {f"rebuilt{k}": above(rebuilt(model, np.repeat(order, k), 1 / k)) for k in (2, 4)}
        found |= {"twice": above(rebuilt(model, np.repeat(order, 2)))}
        return found | {"random": above(n["displaced"](model, random=True))}

    with n["one_blas_thread"]():
        for seed in SEEDS:
            for depth in DEPTHS:
                model = n["GPT"](n["ModelConfig"](layers=depth, **SHAPE), seed=seed)
                for state in ("fresh", "trained"):
                    if state == "trained":
                        n["train"](model, text, n["TrainConfig"](**TRAIN, seed=seed))
                    row = {"layers": depth, "seed": seed, "state": state, "parameters": model.size}
                    rows.append(row | portrait(model))
                    print({key: rows[-1][key] for key in ("layers", "seed", "state", "whole")}, flush=True)
    config = {"seeds": SEEDS, "text_bytes": TEXT_BYTES, "stories": STORIES, "train": TRAIN, "model": SHAPE}
    save("ch17", config, rows)


if __name__ == "__main__":
    main()
