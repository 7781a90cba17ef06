"""The page "What this model is not": measure changes to the small model of the package, without training it again.

Texts: stories that the model has not read, each after the token <|endoftext|>, cut into 32 rows of 512 tokens. The
model's context is 128. Standard errors are over rows; the difference to the unchanged model is paired by row.
"""

import dataclasses
import itertools
import math

import numpy as np

import konigsberg
from experiments.longer_texts import turned
from nanoeuler_book.linear_attention import window_attention
from nanoeuler_lib import GPT, ops
from nanoeuler_lib.model.gpt import head_weights
from nanoeuler_lib.ops import reference
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import save

MODEL, SEED, STORIES, ROWS, TIME = "konigsberg-small", 987654, 400, 32, 512
WINDOW, STRETCH, BITS, LIMIT, BATCH = 128, 4, [8, 4, 3, 2], 10.0, 8


def texts(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and targets, [ROWS, TIME] each."""
    end = tokenizer.special_tokens[END_OF_TEXT]
    told = itertools.islice(konigsberg.stories(10**6, SEED), STORIES)
    ids = np.array([token for story in told for token in (end, *tokenizer.encode(story.text))])
    return ids[: ROWS * TIME].reshape(ROWS, TIME), ids[1 : ROWS * TIME + 1].reshape(ROWS, TIME)


def losses(model: GPT, tokens: np.ndarray, targets: np.ndarray, **own) -> np.ndarray:
    """Return the loss in nats at each position, [ROWS, T], with the functions `own` in the model."""
    with ops.use(**own):
        parts = [model.losses(tokens[i : i + BATCH], targets[i : i + BATCH]) for i in range(0, len(tokens), BATCH)]
    return np.concatenate(parts).astype(np.float64)


def rounded(bits: int):
    """Attention with each key and value rounded to integers of so many bits, with one scale per vector."""

    def to_integers(x):
        scale = abs(x).max(axis=-1, keepdims=True) / (2 ** (bits - 1) - 1)
        return np.round(x / scale) * scale

    return lambda q, k, v: reference.attention_forward(q, to_integers(k), to_integers(v))


def largest_scores(model: GPT, tokens: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the largest score of each head, [layers, heads], and the largest absolute value of all scores."""
    largest, absolute = [], []

    def watch(q, k, v):
        scores = q @ np.repeat(k, q.shape[1] // k.shape[1], axis=1).swapaxes(-1, -2) / math.sqrt(q.shape[3])
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        largest.append(np.where(seen, scores, -np.inf).max(axis=(0, 2, 3)))
        absolute.append(abs(scores[..., seen]).max())
        return reference.attention_forward(q, k, v)

    with ops.use(attention_forward=watch):
        model.hidden(tokens)
    return np.array(largest), float(max(absolute))


def later_heads(model: GPT, tokens: np.ndarray) -> dict:
    """Compare the gradients of later heads of weight 0 with those of a model that has only head 0."""
    config, V, T = model.config, model.config.vocab_size, model.config.context
    targets = np.stack([tokens[:4, 1 + k : T + 1 + k] for k in range(config.predict)], axis=-1)
    _, grads = model.loss_and_gradients(tokens[:4, :T], targets, head_weights(config, 0.0))
    one = GPT(dataclasses.replace(config, predict=1))
    for name, p in one.params.items():
        p[...] = model.params[name][:, :V] if name == "heads" else model.params[name]
    _, alone = one.loss_and_gradients(tokens[:4, :T], targets[..., :1])
    first, later = grads["heads"][:, :V], grads["heads"][:, V:]
    differences = [abs(alone[name] - (first if name == "heads" else grads[name])).max() for name in alone]
    found = {"largest_of_later_heads": float(abs(later).max()), "largest_difference": float(max(differences))}
    return {"change": "weight 0 for later heads"} | found


def mean_and_error(by_row: np.ndarray) -> list[float]:
    return [round(float(by_row.mean()), 7), round(float(by_row.std(ddof=1) / math.sqrt(len(by_row))), 7)]


def main() -> None:
    model, tokenizer = load_pretrained(MODEL)
    config, rows = model.config, []
    tokens, targets = texts(tokenizer)
    first, last = slice(config.context), slice(TIME - config.context, TIME)
    short, long = (tokens[:, first], targets[:, first]), GPT(dataclasses.replace(config, context=TIME), model.params)

    def record(change: str, new: np.ndarray, old: np.ndarray, **more) -> None:
        parts = {"first": first, "last": last} if new.shape[1] == TIME else {"first": first}
        row = {"change": change}
        for name, part in parts.items():
            row[name] = mean_and_error(new[:, part].mean(axis=1))
            row[f"{name}_more"] = mean_and_error((new - old)[:, part].mean(axis=1))
        rows.append(row | more)
        print(rows[-1], flush=True)

    frequency = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    plain, within = losses(long, tokens, targets), losses(model, *short)
    record("none", plain, plain, to_the_short_model=float(abs(plain[:, first] - within).max()))
    record("angles", losses(long, tokens, targets, rope_forward=turned(frequency / STRETCH)), plain)
    record("window", losses(long, tokens, targets, attention_forward=window_attention(WINDOW)[0]), plain)
    for bits in BITS:
        record(f"{bits} bits", losses(model, *short, attention_forward=rounded(bits)), within)

    (scores, absolute), clipped, C = largest_scores(model, short[0]), model.copied(), config.head_dim
    layer, head = (int(i) for i in np.unravel_index(scores.argmax(), scores.shape))
    clipped.params[f"layers.{layer}.qkv"][:, head * C : (head + 1) * C] *= np.float32(LIMIT / scores.max())
    after, _ = largest_scores(clipped, short[0])
    others = bool((np.delete(after[layer], head) == np.delete(scores[layer], head)).all())
    found = {"layer": layer, "head": head, "largest": round(float(scores.max()), 3), "absolute": round(absolute, 3)}
    found |= {"clipped": round(float(after[layer, head]), 5), "others_equal": others}
    record("QK-clip", losses(clipped, *short), within, **found)
    rows.append(later_heads(model, tokens))
    print(rows[-1])
    settings = {"model": MODEL, "rows": ROWS, "tokens_per_row": TIME, "context": config.context, "seed": SEED}
    save("other_models", settings | {"window": WINDOW, "stretch": STRETCH, "bits": BITS, "limit": LIMIT}, rows)


if __name__ == "__main__":
    main()
