"""Chapter 07: the small model of the package reads rows that are four times as long as its training rows.

Each row begins with a story, so the true cost of every token is known. A row's result is the mean number of bits per
token above this cost, in five ranges of positions. Nothing is trained. YaRN's second ramp was the best of six on 16
rows of other stories (seed 555).
"""

import dataclasses
import itertools
import math

import numpy as np

import konigsberg
from nanoeuler_book.linear_attention import window_attention
from nanoeuler_book.significance import half_width
from nanoeuler_book.town import token_costs
from nanoeuler_lib import GPT, ops
from nanoeuler_lib.ops import reference
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import save

MODEL, SEED, ROWS, TIME, BATCH = "konigsberg-small", 987654, 96, 512, 8
EDGES, STRETCH, WINDOWS = [0, 128, 192, 256, 384, 512], 4, [128, 96, 64]


def texts(tokenizer: Tokenizer, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Return rows that begin with a story: tokens, targets, and facts about each target, all [rows, TIME].

    costs: in bits; place: number of tokens from the <|endoftext|> before its story to the token that predicts it;
    distance: number of tokens since the step that states the fact that decides it, or -1 if no fact does.
    """
    end, told = tokenizer.special_tokens[END_OF_TEXT], konigsberg.stories(10**6, SEED)
    found: dict[str, list] = {"ids": [], "costs": [], "distance": [], "place": []}
    for _ in range(rows):
        row: dict[str, list] = {"ids": [end], "costs": [], "distance": [], "place": []}
        while len(row["costs"]) < TIME:
            text = next(told).text
            ids = tokenizer.encode(text)
            sizes = [len(tokenizer.token_bytes[i]) for i in ids]
            truth, edges = konigsberg.token_truth(text, sizes), np.cumsum([0, *sizes])
            stated = np.searchsorted(edges, edges[:-1] - truth.bytes)  # the first token after the step
            row["ids"] += [*ids, end]
            row["costs"] += [*token_costs(text, tokenizer), 0.0]  # the end of a story is certain
            row["distance"] += [*np.where(truth.tag == konigsberg.FACT, np.arange(len(ids)) - stated, -1), -1]
            row["place"] += range(len(ids) + 1)
        for name, values in row.items():
            found[name].append(values[: TIME + (name == "ids")])
    arrays = {name: np.array(values) for name, values in found.items()}
    ids = arrays.pop("ids")
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]} | arrays


def turned(frequency: np.ndarray, factor: float = 1.0):
    """Return a rope_forward that turns pair j by frequency[j] per position and scales the result by a factor."""

    def forward(x, cos, sin):
        angle = np.outer(np.arange(x.shape[-2]), frequency)
        y, saved = reference.rope_forward(x, *(f(angle).astype(x.dtype) for f in (np.cos, np.sin)))
        return y * x.dtype.type(factor), saved

    return forward


def repairs(base: float, width: int, context: int) -> dict[str, dict]:
    """Return the functions that each repair puts into the model, by name."""
    frequency = base ** (-np.arange(0, width, 2) / width)  # [C/2]
    turns = context * frequency / (2 * math.pi)  # within a training row

    def ramp(kept: np.ndarray) -> np.ndarray:  # 1: the old frequency, 0: divided by STRETCH
        return frequency * (np.clip(kept, 0, 1) + (1 - np.clip(kept, 0, 1)) / STRETCH)

    def pair(count: float) -> float:  # of the pair that makes so many turns; not an integer
        return width * math.log(context / (2 * math.pi * count)) / (2 * math.log(base))

    low, high = max(math.floor(pair(32)), 0), math.ceil(pair(1))  # YaRN's code: linear in the number of the pair
    larger = (base * STRETCH ** (width / (width - 2))) ** (-np.arange(0, width, 2) / width)
    sharper = 0.1 * math.log(STRETCH) + 1
    angles = {
        "interpolation": turned(frequency / STRETCH),
        "larger base": turned(larger),
        "YaRN, 1 to 32 turns": turned(ramp((turns - 1) / 31), sharper),
        "YaRN, its code": turned(ramp((high - np.arange(width // 2)) / (high - low)), sharper),
        "YaRN, 0.5 to 1 turn": turned(ramp((turns - 0.5) / 0.5), sharper),
    }
    found = {"plain": {}} | {name: {"rope_forward": f} for name, f in angles.items()}
    return found | {f"window of {W}": {"attention_forward": window_attention(W)[0]} for W in WINDOWS}


def bits(model: GPT, read: dict[str, np.ndarray], **functions) -> np.ndarray:
    """Return the bits above the true cost of each token, [rows, TIME], with these functions in the model."""
    with ops.use(**functions):
        batches = range(0, len(read["tokens"]), BATCH)
        nats = [model.losses(read["tokens"][i : i + BATCH], read["targets"][i : i + BATCH]) for i in batches]
    return np.concatenate(nats).astype(np.float64) / math.log(2) - read["costs"]


def main() -> None:
    model, tokenizer = load_pretrained(MODEL)
    config, read = model.config, texts(tokenizer)
    longer, rows = GPT(dataclasses.replace(config, context=TIME), model.params), []
    for name, functions in repairs(config.rope_theta, config.head_dim, config.context).items():
        above = bits(longer, read, **functions)
        by_row = [above[:, a:b].mean(axis=1) for a, b in itertools.pairwise(EDGES)]
        cut = read["place"][:, 128:] >= min(WINDOWS)  # a window of 64 no longer reads where the story begins
        sums = {"sum": float(above[:, 128:].sum()), "sum_cut": float(above[:, 128:][cut].sum())}
        row = {"repair": name, "bits": [[round(float(x), 5) for x in part] for part in by_row]} | sums
        rows.append(row)
        print(f"{name:20}", *(f"{1000 * part.mean():7.1f} ± {1000 * half_width(part):5.1f}" for part in by_row), sums)
    longest = {"longest_story": int(read["place"].max()) + 1, "longest_distance": int(read["distance"].max())}
    settings = {"model": MODEL, "rows": ROWS, "tokens_per_row": TIME, "context": config.context, "seed": SEED}
    settings |= {"edges": EDGES, "stretch": STRETCH, "floor": round(float(read["costs"].mean()), 5)}
    print(settings | longest)
    save("longer_texts", settings | longest, rows)


if __name__ == "__main__":
    main()
