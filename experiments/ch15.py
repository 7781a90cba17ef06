"""Chapter 15: quality with fewer key/value heads, and a trained model whose key/value heads are pooled.

The miniature, its training and the pooling are in the notebook: its cells tagged `experiment` are run here.
"""

from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

SEEDS = [0, 1, 2, 3, 4]
STORIES, TESTS, WINDOW = 6000, 300, 20
TRAIN = {"steps": 600, "batch": 16, "rate": 6e-3, "warmup": 50}
UPTRAIN = {"steps": 60, "batch": 16, "rate": 2e-3, "warmup": 10}  # a tenth of the steps
LOOKS = [0, 5, 10, 20, 40, 60]  # steps of uptraining after which the models are measured


def main() -> None:
    n, rows = run_tagged("15_grouped_queries", "experiment"), []
    world, settings = n["konigsberg"], n["TrainConfig"]
    tokens = n["tokens_of"]([world.sample(10**6 + i, "errand") for i in range(STORIES)])
    test = [world.sample(2 * 10**6 + i, "errand") for i in range(TESTS)]

    def score(model) -> dict:
        found = n["evaluate"].measure(model, n["tokenizer"], test)
        return {
            "bits_above_floor": round(found.bits_per_byte - found.floor, 5),
            "fact_accuracy_beyond_10_words": round(found.accuracy(world.FACT, 10), 4),
        }

    def trained(name: str, seed: int):
        model = n["GPT"](n["ARMS"][name], seed=seed)
        losses = n["train"](model, tokens, settings(**TRAIN, seed=seed))
        row = {"experiment": "ablation", "name": name, "seed": seed, "parameters": model.size} | score(model)
        rows.append(row | {"losses": losses.reshape(-1, WINDOW).mean(axis=1).round(4).tolist()})
        print(row, flush=True)
        return model

    def uptrained(model, groups: int, how: str, seed: int) -> None:
        scores = [score(model)]
        look = lambda step: scores.append(score(model)) if step in LOOKS else None
        n["train"](model, tokens, settings(**UPTRAIN, seed=1000 + seed), look)
        row = {"experiment": "uptraining", "groups": groups, "how": how, "seed": seed, "steps": LOOKS}
        rows.append(row | {key: [one[key] for one in scores] for key in scores[0]})
        print(rows[-1], flush=True)

    with n["one_blas_thread"]():
        for seed in SEEDS:
            models = {name: trained(name, seed) for name in n["ARMS"]}
            whole = models["G = 4"]
            for groups in (2, 1):
                for how in ("mean", "first", "random"):
                    uptrained(n["pooled"](whole, groups, how, seed), groups, how, seed)
            uptrained(whole, 4, "as it was", seed)
    config = {
        "seeds": SEEDS,
        "stories": STORIES,
        "tests": TESTS,
        "window": WINDOW,
        "train": TRAIN,
        "uptrain": UPTRAIN,
        "models": {name: shape.to_dict() for name, shape in n["ARMS"].items()},
    }
    save("ch15", config, rows)


if __name__ == "__main__":
    main()
