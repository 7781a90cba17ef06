"""Train the chat model that comes with the package: `konigsberg-small`, fine-tuned on Königsberg's questions.

    python -m benchmarks.chat_model --run runs/chat     # ends with the figures, and exports; the same again goes on

Writes nanoeuler_lib/pretrained/konigsberg-chat and data/results/konigsberg-chat.json: the share of held-out questions
answered right by the most frequent answer of each kind, by the base model asked as its corpus asks, by the base model
asked as a chat asks, and by the chat model, over all and by kind; what it forgot. Chapter 20 reads the wrong answers.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from nanoeuler_lib import checkpoint, evaluate, sft, world
from nanoeuler_lib import train as training
from nanoeuler_lib.checkpoint import PRETRAINED
from nanoeuler_lib.config import SFT_DATA_SEED, SFT_DEFAULTS, TrainConfig
from nanoeuler_lib.tokenizer import END_OF_TEXT
from tools.results import save

TEST_STORIES, TEST_SEED, MAJORITY_SEED = 1000, 203, 204
BASE, NAME = PRETRAINED / "konigsberg-small", "konigsberg-chat"


def questions(count: int, seed: int) -> list[dict]:
    """All questions of some stories: kind, the story without its last line, question, answer, words since the fact."""
    found = []
    for story in world.stories(count, seed):
        body = story.text.rpartition("\n")[0]
        for question in story.questions:
            found.append({"kind": f"{story.kind}: {question.kind}", "body": body, "question": question})
    return found


def as_chat(asked: list[dict]) -> list[sft.Example]:
    return [[(f"{one['body']} {one['question'].text}", one["question"].answer)] for one in asked]


def as_text(asked: list[dict], tokenizer) -> list[sft.Encoded]:
    """Story, question and answer as the corpus has them, the answer and the end of the text counted."""
    end, found = tokenizer.special_tokens[END_OF_TEXT], []
    for one in asked:
        before = tokenizer.encode(f"{one['body']}\n{one['question'].text}").tolist()
        ids = tokenizer.encode(f"{one['body']}\n{one['question'].text} {one['question'].answer}").tolist()
        assert ids[: len(before)] == before
        counted = [False] * (1 + len(before)) + [True] * (len(ids) - len(before) + 1)
        found.append(sft.Encoded(np.array([end, *ids, end]), np.array(counted)))
    return found


def majority(asked: list[dict]) -> np.ndarray:
    """The most frequent answer of each kind of question, taken from other stories."""
    counts: dict[str, Counter] = {}
    for one in questions(TEST_STORIES, MAJORITY_SEED):
        counts.setdefault(one["kind"], Counter())[one["question"].answer] += 1
    return np.array([counts[one["kind"]].most_common(1)[0][0] == one["question"].answer for one in asked])


def shares(asked: list[dict], right: dict[str, np.ndarray]) -> list[dict]:
    """The share right, over all questions and for each kind."""
    kinds = np.array([one["kind"] for one in asked])
    found = []
    for kind in ["all", *sorted(set(kinds))]:
        chosen = np.ones(len(kinds), bool) if kind == "all" else kinds == kind
        row = {name: round(float(values[chosen].mean()), 4) for name, values in right.items()}
        found.append({"kind": kind, "questions": int(chosen.sum()), **row})
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--run", type=Path, default=Path("runs/chat"))
    arguments.add_argument("--export", type=Path, default=PRETRAINED / NAME)
    args = arguments.parse_args()
    source = (sft.KONIGSBERG, 0, SFT_DATA_SEED)
    examples, held_out, template = sft.examples_of(*source)
    base = checkpoint.load(BASE)
    if args.run.exists():
        sft.resume(args.run, examples, held_out)
    else:
        config = TrainConfig(**SFT_DEFAULTS, valid_every=250, sample_every=0, save_every=500)
        info = {"source": sft.KONIGSBERG, "examples": source, "base": BASE.name}
        pair = (base.model, base.tokenizer)
        sft.fine_tune(args.run, pair, examples, held_out, config, template, info)
    found = checkpoint.load(args.run)
    checkpoint.export(found, args.export)
    shipped = checkpoint.load(args.export)  # what the reader gets: float16

    asked, most = questions(TEST_STORIES, TEST_SEED), base.model.config.context + 1
    both = zip(as_text(asked, base.tokenizer), as_chat(asked), strict=True)
    lengths = [max(len(text.ids), len(sft.encode(chat, shipped.tokenizer).ids)) for text, chat in both]
    fitting = [i for i, length in enumerate(lengths) if length <= most]
    left_out, asked = len(asked) - len(fitting), [asked[i] for i in fitting]
    chats = as_chat(asked)
    right = {
        "majority": majority(asked),
        "base_in_its_own_words": sft.greedy_match(base.model, as_text(asked, base.tokenizer)),
        "base_in_a_chat": sft.exact_match(*sft.extend(base.model, base.tokenizer), chats),
        "chat": sft.exact_match(shipped.model, shipped.tokenizer, chats),
    }
    stories = list(world.stories(TEST_STORIES, 3))
    forgetting = {}
    for name, model in (("base", base), ("chat", shipped)):
        measured = evaluate.measure(model.model, model.tokenizer, stories)
        forgetting[name] = {
            "bits_per_byte": round(measured.bits_per_byte, 4),
            "fact_accuracy_beyond_10_words": round(measured.accuracy(world.FACT, 10), 4),
        }
    log = training.read_log(args.run)
    rows = [
        {"shares": shares(asked, right), "too_long": left_out, "stories": forgetting,
         "floor": round(measured.floor, 4)},
        {"seconds": round(sum(entry.get("seconds", 0) for entry in log)),
         "valid": [[e["step"], round(e["valid_bits_per_byte"], 5)] for e in log if "valid_bits_per_byte" in e]},
    ]  # fmt: skip
    for row in rows[0]["shares"]:
        print(*row.values(), sep="\t")
    print(forgetting)
    config = {"model": shipped.model.config.to_dict(), "train": found.train.to_dict(), **found.info}
    save("konigsberg-chat", config, rows)


if __name__ == "__main__":
    main()
