"""Measure how many facts the frame of chapters 06 to 10 gets right at several settings of sampling: five seeds.

    make results CH=14

The share is an expectation, the mean probability of the right token where a fact decides it. So no token is sampled.
"""

import numpy as np
from threadpoolctl import threadpool_limits

import konigsberg
from nanoeuler_book import frame
from nanoeuler_lib.generation.generate import dense, filtered_probs
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from tools.notebooks.results import save

SEEDS = range(5)
SETTINGS = {
    "greedy": dict(temperature=0.0),
    "temperature 0.7": dict(temperature=0.7),
    "temperature 1": dict(temperature=1.0),
    "temperature 1.3": dict(temperature=1.3),
    "1.3 and top-p 0.7": dict(temperature=1.3, top_p=0.7),
}


def facts(model: frame.Frame) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probabilities [n, V] and the right tokens [n] of all facts in the held-out stories."""
    tokenizer = frame.tokenizer()
    end, log_p, right = tokenizer.special_tokens[END_OF_TEXT], [], []
    for story in frame.held_out():
        ids = np.asarray(tokenizer.encode(story.text)).astype(np.int64)
        fact = konigsberg.token_truth(story.text, tokenizer.token_lengths[ids]).tag == konigsberg.FACT
        log_p.append(model(np.array([[end, *ids]]))[0, :-1][fact])
        right.append(ids[fact])
    return np.concatenate(log_p), np.concatenate(right)


def run(seed: int) -> dict:
    """Train one model and return the share of facts right at each setting."""
    log_p, right = facts(frame.train(seed=seed))
    row = {"seed": seed, "facts": len(right)}
    for name, options in SETTINGS.items():
        chances = [dense(*filtered_probs(u, **options), len(u))[token] for u, token in zip(log_p, right, strict=True)]
        row[name] = round(float(np.mean(chances)), 4)
    p = np.exp(log_p.astype(np.float64))
    row |= {
        "largest p": round(float(p.max(axis=1).mean()), 4),
        "sum of p squared": round(float((p * p).sum() / len(p)), 4),
    }
    print(row, flush=True)
    return row


def main() -> None:
    with threadpool_limits(1, user_api="blas"):
        rows = [run(seed) for seed in SEEDS]
    save("ch14", {"seeds": list(SEEDS), "stories": frame.STORIES, "settings": SETTINGS}, rows)


if __name__ == "__main__":
    main()
