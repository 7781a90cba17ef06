"""Chapter 16: train with and without additional heads, and measure the speed of speculative decoding.

    python -m experiments.ch16              # both parts
    python -m experiments.ch16 speed        # only one part; the stored results of the other are kept

Training: a small model with four prediction heads, the later ones with weight 0, 0.25 or 1 in the loss, with five seeds
each, measured on held-out stories. Speed: the time of a forward pass by the number of tokens that it reads, and texts
by the shipped model with and without draft tokens, in alternating rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import konigsberg
from nanoeuler_book import evaluate
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.generation.generate import speculate
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.decoder import Decoder
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training import train as training
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import FOLDER, save

WEIGHTS, SEEDS, STEPS, BATCH = (0.0, 0.25, 1.0), (0, 1, 2, 3, 4), 800, 16
MINI = ModelConfig(dim=64, heads=4, kv_heads=2, layers=2, context=128, vocab_size=512, predict=4)
TEXT_BYTES, TEXT_SEED, TEST_STORIES, TEST_SEED = 3_000_000, 1600, 400, 1601

SHAPES = {
    "small": preset("small"),
    "15M": ModelConfig(288, 6, 6, 6, context=256, vocab_size=32000, predict=4, ffn=768),
    "base": preset("base"),
}
READ, REPEATS = (1, 2, 3, 4), 41
TEMPERATURES, STORIES, ROUNDS, V = (0.0, 0.8, 1.0), 12, 7, 512


def heads_on(model: GPT, tokenizer, stories: list) -> tuple[list[float], list[float]]:
    """Return for each head: nats per token, and the mean overlap with head 0, which has read the tokens between."""
    end = tokenizer.special_tokens[END_OF_TEXT]
    nats, overlap = np.zeros((2, model.config.predict))
    count = np.zeros(model.config.predict)
    for story in stories:
        row = np.array([end, *tokenizer.encode(story.text), end])
        u = model.hidden(row[None, :-1])[0] @ model.params["heads"]  # [T, K V]
        u = u.reshape(len(u), model.config.predict, -1).astype(np.float64)
        p = np.exp(u - u.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        for k in range(model.config.predict):
            told = p[: len(p) - k, k]  # at t, of the token t + 1 + k
            nats[k] -= np.log(told[np.arange(len(told)), row[1 + k :]]).sum()
            overlap[k] += np.minimum(told, p[k:, 0]).sum()
            count[k] += len(told)
    return (nats / count).round(4).tolist(), (overlap / count).round(4).tolist()


def train_all() -> list[dict]:
    _, tokenizer = load_pretrained()
    text, stories = konigsberg.corpus(TEXT_BYTES, TEXT_SEED), list(konigsberg.stories(TEST_STORIES, TEST_SEED))
    stories = [story for story in stories if len(tokenizer.encode(story.text)) < MINI.context]
    valid = konigsberg.corpus(20_000, TEST_SEED + 1)
    rows = []
    for seed in SEEDS:
        for weight in WEIGHTS:
            began = time.perf_counter()
            config = TrainConfig(
                steps=STEPS, batch=BATCH, later_heads=weight, seed=seed, valid_every=STEPS, sample_every=0,
                save_every=STEPS,
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                model = training.train(
                    Path(folder) / "run",
                    text,
                    MINI,
                    config,
                    tokenizer,
                    valid_text=valid,
                    quiet=True,
                    workers=1,
                )
            with one_blas_thread():
                found = evaluate.measure(model, tokenizer, stories)
                nats, overlap = heads_on(model, tokenizer, stories)
            rows.append(
                {
                    "kind": "training", "weight": weight, "seed": seed,
                    "bits_above_floor": round(found.bits_per_byte - found.floor, 5),
                    "fact_accuracy": round(found.accuracy(konigsberg.FACT), 4),
                    "fact_accuracy_beyond_10_words": round(found.accuracy(konigsberg.FACT, 10), 4),
                    "nats": nats, "overlap": overlap,
                }
            )  # fmt: skip
            print(f"{time.perf_counter() - began:.0f} s  {rows[-1]}", flush=True)
    return rows


def quantiles(times: list[float]) -> dict:
    return {"milliseconds": round(1e3 * statistics.median(times), 4), "fastest": round(1e3 * min(times), 4)}


def pass_costs(shape: str) -> list[dict]:
    """CPU time of a pass over 1 to 4 tokens after the first 64, with head 0's logits for each of them."""
    decoder, tokens = Decoder(GPT(SHAPES[shape])), np.arange(64 + max(READ))
    decoder.read(tokens[:64])
    times = {count: [] for count in READ}
    for _ in range(REPEATS):
        for count in READ:
            decoder.length = 64
            began = time.process_time()
            decoder.feed_all(tokens[64 : 64 + count])
            times[count].append(time.process_time() - began)
    return [{"kind": "pass", "shape": shape, "tokens": count, **quantiles(times[count])} for count in READ]


def text_costs(temperature: float) -> list[dict]:
    """CPU time of a token of text by the shipped model, and tokens a pass, for each number of proposals."""
    model, tokenizer = load_pretrained()
    end, K = tokenizer.special_tokens[END_OF_TEXT], model.config.predict
    times, tokens, passes = {n: [] for n in range(K)}, dict.fromkeys(range(K), 0), dict.fromkeys(range(K), 0)
    for turn in range(ROUNDS):
        for propose in range(K):
            began, count = time.process_time(), 0
            for seed in range(STORIES):
                rng = np.random.default_rng([turn, seed])
                for new in speculate(model, [end], rng, propose, end, V, temperature=temperature):
                    count, passes[propose] = count + len(new), passes[propose] + 1
                    if end in new:
                        break
            times[propose].append((time.process_time() - began) / count)
            tokens[propose] += count
    return [
        {
            "kind": "text", "temperature": temperature, "propose": n, **quantiles(times[n]),
            "faster": round(statistics.median(a / b for a, b in zip(times[0], times[n])), 3),
            "tokens_a_pass": round(tokens[n] / passes[n], 3),
        }
        for n in times
    ]  # fmt: skip


def measure_speed() -> list[dict]:
    rows = []
    with one_blas_thread():
        for shape in SHAPES:
            rows += pass_costs(shape)
        for temperature in TEMPERATURES:
            rows += text_costs(temperature)
    for row in rows:
        print(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="?", choices=["training", "speed"], help="only this (default: both)")
    part = parser.parse_args().part
    rows = {"training": [], "speed": []}
    if part and (FOLDER / "ch16.json").exists():
        for row in json.loads((FOLDER / "ch16.json").read_text("utf-8"))["rows"]:
            rows["training" if row["kind"] == "training" else "speed"].append(row)
    if part != "speed":
        rows["training"] = train_all()
    if part != "training":
        rows["speed"] = measure_speed()
    config = {
        "model": MINI.to_dict(), "weights": WEIGHTS, "seeds": SEEDS, "steps": STEPS, "batch": BATCH,
        "text": f"Königsberg, seed {TEXT_SEED}, {TEXT_BYTES} bytes",
        "test": f"{TEST_STORIES} stories of seed {TEST_SEED}",
        "shapes": {name: shape.to_dict() for name, shape in SHAPES.items()},
        "time": "CPU time of one thread",
    }  # fmt: skip
    save("ch16", config, rows["training"] + rows["speed"])


if __name__ == "__main__":
    main()
