"""Chapter 35: compare dense layers with mixtures of experts, and measure what a router knows about the dialect.

    make results CH=35

All models are the frame of chapters 06 to 16. Every finished run is kept in _build/ch35, so the script can be stopped
and started again.
"""

from itertools import product

import numpy as np

import konigsberg
from nanoeuler_book import evaluate, experts, frame
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data
from tools.notebooks.results import run_all, save

SEEDS, STEPS, E, TOP, WIDTH, BALANCE = [0, 1, 2, 3, 4], 400, 8, 2, 88, 0.01
LAYERS = {  # name -> width F, number of experts (0: dense), weight of the auxiliary loss
    "dense 176": (176, 0, 0.0),
    "dense 704": (704, 0, 0.0),
    "8 experts": (E * WIDTH + E, E, 0.0),
    "8 experts, balanced": (E * WIDTH + E, E, BALANCE),
}
STORIES, PLACES, SHUFFLES, EVERY = 4000, 4, 20, 20


def loads(p: np.ndarray) -> list[float]:
    """Return the share of the choices that fell on each expert, from routing weights [N, E]."""
    return ((p > 0).mean(axis=0) / TOP).round(4).tolist()


def compare(name: str, seed: int) -> dict:
    """Train one frame and measure it; for a mixture, store the load of the experts during training."""
    ffn, mixed, balance = LAYERS[name]
    log = []
    functions = experts.mixture(E, TOP, balance, log=log) if mixed else {}
    trained = frame.train(STEPS, seed=seed, ffn=ffn, **functions)
    history = log[: 4 * STEPS].copy()  # two layers, each twice per step: forward, and again before its backward pass
    log.clear()
    measured = evaluate.measure(trained, frame.tokenizer(), frame.held_out())
    row = {"part": "layers", "layer": name, "seed": seed, "weights": trained.model.size}
    row |= {"bits": round(measured.bits_per_byte, 5), "facts": round(measured.accuracy(konigsberg.FACT), 5)}
    if mixed:
        row["load"] = [loads(np.concatenate(log[layer::2])) for layer in range(2)]
        steps = range(0, STEPS, EVERY)
        row["load_by_step"] = [[loads(history[4 * step + layer]) for step in steps] for layer in range(2)]
    return row


def dialect_tokens(size: int) -> data.Tokens:
    """Return the frame's training stories, each told in a random dialect."""
    rng = np.random.default_rng(35)
    texts = frame.training_text()[:size].split(konigsberg.SEPARATOR)
    told = [experts.spelled(text, int(rng.integers(4)), rng) for text in texts]
    return data.tokenize(konigsberg.SEPARATOR.join(told), frame.tokenizer())


def dialects(seed: int) -> dict:
    """Train a balanced mixture on stories in four dialects, and measure what its router knows at full stops."""
    ffn, _, balance = LAYERS["8 experts, balanced"]
    trained = frame.train(
        STEPS, seed=seed, ffn=ffn, tokens=dialect_tokens(frame.BYTES), **experts.mixture(E, TOP, balance)
    )
    fresh = GPT(trained.model.config, seed=seed)
    tokens, dialect, places, marks = experts.exam(STORIES, frame.tokenizer(), seed=900 + seed, first=PLACES)
    rng, half, found = np.random.default_rng(seed), len(tokens) // 2, []
    for name, model in (("trained", trained.model), ("fresh", fresh)):
        inputs, p = experts.routed(model, tokens, E, TOP)
        sets = (p > 0) @ (1 << np.arange(E))  # [L, B, T]: one number per set of experts
        for layer, kind, k in product(range(2), range(2), range(PLACES)):
            at = np.arange(len(tokens)), places[:, kind, k]
            chosen, guess = sets[layer][at], experts.guesses(inputs[layer][at], dialect)
            shuffled = [experts.information(chosen, rng.permutation(dialect)) for _ in range(SHUFFLES)]
            found.append(
                {
                    "model": name,
                    "layer": layer + 1,
                    "place": ("marked word", "full stop")[kind],
                    "k": k + 1,
                    "router": round(experts.information(chosen, dialect), 4),
                    "shuffled": round(float(np.mean(shuffled)), 4),
                    "probe": round(experts.information(guess, dialect[half:]), 4),
                    "probe_right": round(float((guess == dialect[half:]).mean()), 4),
                    "known": round(float(np.mean([experts.known(int(m)) for m in marks[:, kind, k]])), 4),
                    "marks": round(float(marks[:, kind, k].mean()), 3),
                }
            )
    return {"part": "dialects", "seed": seed, "stories": len(tokens), "found": found}


def run(part: str, *job) -> dict:
    return {"dialects": dialects, "layers": compare}[part](*job)


def main() -> None:
    jobs = [job for s in SEEDS for job in (("dialects", s), *(("layers", name, s) for name in LAYERS))]
    rows = run_all("ch35", run, jobs)
    config = {"seeds": SEEDS, "steps": STEPS, "experts": E, "top": TOP, "width": WIDTH, "balance": BALANCE}
    config |= {"stories": STORIES, "places": PLACES, "every": EVERY, "model": frame.CONFIG.to_dict()}
    save("ch35", config, rows)


if __name__ == "__main__":
    main()
