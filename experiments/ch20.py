"""Chapter 20: how much data fine-tuning needs, what it forgets, and what it cannot teach.

    python -m experiments.ch20 --round-one runs/chat/one-exported

All runs are short, and start from the small model in the package. The runs on facts start from the chat model after its
first round, which benchmarks.chat_model leaves in its run folder. The part on Dolly and Alpaca needs the environment
variable NANOEULER_DATA; without it, the stored results of this part are kept.
"""

import argparse
import json
import os
import tempfile
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from unittest import mock

import numpy as np
from threadpoolctl import threadpool_limits

import konigsberg
from benchmarks.chat_model import as_chat, questions
from nanoeuler_book import evaluate
from nanoeuler_book.town import konigsberg_examples
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.text import sft_data as text_examples
from nanoeuler_lib.text.chat_template import ASSISTANT, alpaca_prompt
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training import checkpoint, sft
from tools.notebooks.results import FOLDER, save

SEEDS = [0, 1, 2, 3, 4]
SHORT = TrainConfig(steps=100, batch=8, rate=1e-3, warmup=10, valid_every=1000, sample_every=0, save_every=1000)
SIZES = [10, 30, 100, 300, 1000]
RATES = [1e-4, 3e-4, 3e-3]
TESTS, TEST_SEED = 100, 203  # stories, all of their questions
LOOKS = [10, 30, 60]  # steps after which forgetting is measured

# Facts that no training text of the base model contains. Each seed assigns the places at random.
ROLES = "mayor baker miller tailor smith cook monk widow painter hunter judge piper mason potter sailor shepherd"
ROLES = (ROLES + " teacher weaver pilot gardener").split()
PLACES = "mill tower barn cellar inn castle cave ship stable forest garden church harbour library prison school"
PLACES = (PLACES + " market palace lighthouse tent").split()
FORMS = {
    "as taught": ("Where does the {role} live?", "In the {place}."),
    "in other words": ("In which place is the {role} at home?", "In the {place}."),
    "the other way round": ("Who lives in the {place}?", "The {role}."),
    "inside a story": (
        "On Tuesday the {role} went home with the bell and left it there. Where was the bell left?",
        "In the {place}.",
    ),
    "told, then asked": ("The {role} lives in the {place}. Where does the {role} live?", "In the {place}."),
}
FACTS = replace(SHORT, steps=240)
FACT_STORIES = 40  # stories that go on being asked about meanwhile
DOLLY, ALPACA = "databricks-dolly-15k.nocategory.jsonl.xz", "alpaca_data.json.xz"
DOLLY_CONFIG = replace(SHORT, steps=150)


def tune(base, examples, config, seed, look=None):
    """A fine-tuned model with its tokenizer; its run folder is not kept. look: called with each step and the model."""
    tuned, start_run = [], sft.start_run

    def started(run, found, *arguments):
        tuned.append(found.model)
        return start_run(run, found, *arguments)

    def on_entry(entry):
        if look and "loss" in entry:
            look(entry["step"], tuned[0])

    held_out = konigsberg_examples(4, 1)  # validated on at the two ends only
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sft, "start_run", started):
        arguments = Path(folder) / "run", base, examples, held_out, replace(config, seed=seed)
        model = sft.fine_tune(*arguments, quiet=True, workers=1, on_entry=on_entry)
    return model, sft.extend(*base)[1]


def remembered(model, tokenizer):
    """Bits per byte on stories, and the share right of facts more than ten words back."""
    found = evaluate.measure(model, tokenizer, konigsberg.stories(50, 3))
    return round(found.bits_per_byte, 4), round(found.accuracy(konigsberg.FACT, 10), 4)


def right(pair, asked):
    return round(float(sft.exact_match(*pair, as_chat(asked)).mean()), 4)


# ---- How much data, how fast a rate, which tokens count


def all_counted(original):
    """`sft_data.encode`, with the prompt's tokens counted in the loss as well."""

    def encode(*arguments):
        found = original(*arguments)
        return text_examples.Encoded(found.ids, np.arange(len(found.ids)) > 0)

    return encode


def with_stories(original, tokenizer, seed):
    """`rows`, with the last quarter of a training batch replaced by stories as the base model's corpus has them."""
    end = tokenizer.special_tokens[END_OF_TEXT]
    told = [np.array([end, *tokenizer.encode(s.text), end]) for s in konigsberg.stories(400, 300 + seed)]
    told = cycle([text_examples.Encoded(ids, np.arange(len(ids)) > 0) for ids in told if len(ids) <= 129])

    def rows(examples, time, predict):
        if predict > 1:  # validation and tests ask for one head
            kept = len(examples) * 3 // 4
            examples, time = [*examples[:kept], *(next(told) for _ in examples[kept:])], 128
        return original(examples, time, predict)

    return rows


def one_run(base, asked, seed, **changes):
    """A fine-tuning of the base model, its answers, and what it forgot on the way."""
    count, rate, way = (
        changes.get("stories", 1000),
        changes.get("rate", SHORT.rate),
        changes.get("way", "replies"),
    )
    examples, tokenizer, bits_by_step = konigsberg_examples(count, 1000 + seed), sft.extend(*base)[1], []

    def look(step, model):
        if step in LOOKS:
            bits_by_step.append([step, remembered(model, tokenizer)[0]])

    patches = {
        "replies": mock.patch.object(text_examples, "encode", text_examples.encode),
        "all tokens": mock.patch.object(text_examples, "encode", all_counted(text_examples.encode)),
        "with stories": mock.patch.object(text_examples, "rows", with_stories(text_examples.rows, tokenizer, seed)),
    }
    with patches[way]:
        model, _ = tune(base, examples, replace(SHORT, rate=rate), seed, look if count == 1000 else None)
    taught = questions(min(count, 30), 1000 + seed)
    bits, facts = remembered(model, tokenizer)
    return {
        "experiment": "short", "stories": count, "rate": rate, "way": way, "seed": seed,
        "right": right((model, tokenizer), asked), "right_on_taught": right((model, tokenizer), taught),
        "story_bits": bits, "story_facts": facts, "bits_by_step": [*bits_by_step, [SHORT.steps, bits]],
    }  # fmt: skip


# ---- Facts that pretraining never saw


def log_probability(pair, examples):
    """Of each example's last reply with its end marker, in nats: [n]."""
    model, tokenizer = pair
    encoded = [text_examples.encode(example, tokenizer) for example in examples]
    found = []
    for start in range(0, len(encoded), 40):
        some = encoded[start : start + 40]
        inputs, targets = text_examples.rows(some, text_examples.row_length(some, model.config.context), 1)
        found.append(-model.losses(inputs, targets[..., 0]).sum(axis=1))
    return np.concatenate(found)


def ask_facts(pair, facts):
    """For each form: how often the greedy answer is right, and how often the right one of twenty is most likely."""
    answers = {}
    for form, (question, answer) in FORMS.items():
        chats = [[(question.format(**fact), answer.format(**fact))] for fact in facts]
        chosen = []
        for chat in chats:
            choices = [[(chat[0][0], answer.format(**fact))] for fact in facts]
            chosen.append(choices[int(log_probability(pair, choices).argmax())] == chat)
        answers[form] = [
            round(float(sft.exact_match(*pair, chats).mean()), 4),
            round(float(np.mean(chosen)), 4),
        ]
    return answers


def facts_run(chat, asked, seed):
    places = np.random.default_rng(seed).permutation(PLACES)
    facts = [{"role": role, "place": str(place)} for role, place in zip(ROLES, places)]
    question, answer = FORMS["as taught"]
    examples = [[(question.format(**fact), answer.format(**fact))] for fact in facts]
    examples += konigsberg_examples(FACT_STORIES, 2000 + seed)
    pair = tune(chat, examples, FACTS, seed)
    otherwise = [fact | {"place": str(place)} for fact, place in zip(facts, np.roll(places, 1))]
    return {
        "experiment": "facts", "seed": seed, "before": ask_facts(chat, facts), "after": ask_facts(pair, facts),
        "told_otherwise": ask_facts(pair, otherwise)["told, then asked"],
        "questions_before": right(chat, asked), "questions_after": right(pair, asked),
    }  # fmt: skip


# ---- Real text


def real_text(base):
    """Lengths of Alpaca's and Dolly's examples, and a short run on what fits of Dolly."""
    folder = Path(os.environ["NANOEULER_DATA"]) / "sft"
    tokenizer, rows = sft.extend(*base)[1], []
    for name, file in (("Dolly", DOLLY), ("Alpaca", ALPACA)):
        examples, _ = text_examples.read_examples(folder / file)
        lengths = np.array([len(text_examples.encode(e, tokenizer).ids) - 1 for e in examples[::5]])
        rows.append({
            "experiment": "lengths", "data": name, "examples": len(examples), "measured": len(lengths),
            "percentiles": {str(q): int(np.percentile(lengths, q)) for q in (1, 5, 25, 50, 75, 95)},
            "fits": {str(context): round(float((lengths <= context).mean()), 4) for context in (128, 256, 512)},
            "template_tokens": len(tokenizer.encode(alpaca_prompt(""))),
        })  # fmt: skip
    examples, held_out, template = sft.examples_of(folder / DOLLY)
    with tempfile.TemporaryDirectory() as run:
        bits = []

        def note(entry):
            bits.extend([entry["valid_bits_per_byte"]] if "valid_bits_per_byte" in entry else [])

        model = sft.fine_tune(
            Path(run) / "run",
            base,
            examples,
            held_out,
            DOLLY_CONFIG,
            template,
            quiet=True,
            workers=1,
            on_entry=note,
        )
        sizes = json.loads((Path(run) / "run" / "run.json").read_text("utf-8"))["data"]
    fitting = [e for e in held_out if text_examples.encode(e, tokenizer, 129).counted.any()]
    said = []
    for example in fitting[:3]:
        reply = "".join(Chat(model, tokenizer).reply(example[0][0], 60, temperature=0.0))  # its template is on already
        asked = example[0][0].split("### Instruction:\n")[1].split("\n\n###")[0]
        said.append({"instruction": asked, "expected": example[0][1], "reply": reply})
    assert ASSISTANT in tokenizer.special_tokens
    rows.append({
        "experiment": "dolly", "train_examples": sizes["train_examples"], "valid_examples": sizes["valid_examples"],
        "bits_per_byte": [round(b, 4) for b in bits], "replies": said, "story_bits": remembered(model, tokenizer)[0],
    })  # fmt: skip
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--round-one", type=Path, default=Path("runs/chat/one-exported"))
    one = checkpoint.load(arguments.parse_args().round_one)
    base, chat = checkpoint.load_pretrained(), (one.model, one.tokenizer)
    asked = questions(TESTS, TEST_SEED)
    config = {
        "seeds": SEEDS, "train": SHORT.to_dict(), "sizes": SIZES, "rates": [*RATES, SHORT.rate], "tests": len(asked),
        "facts": {"train": FACTS.to_dict(), "stories": FACT_STORIES, "forms": FORMS, "count": len(ROLES)},
        "dolly": DOLLY_CONFIG.to_dict(), "base_story_bits": remembered(*base)[0],
        "base_story_facts": remembered(*base)[1],
    }  # fmt: skip
    with threadpool_limits(1):
        if "NANOEULER_DATA" in os.environ:
            real = real_text(base)
        else:
            stored = json.loads((FOLDER / "ch20.json").read_text("utf-8"))["rows"]
            real = [row for row in stored if row["experiment"] in ("lengths", "dolly")]
        rows = []
        for seed in SEEDS:
            rows += [facts_run(chat, asked, seed)]
            rows += [one_run(base, asked, seed, stories=count) for count in SIZES]
            rows += [one_run(base, asked, seed, rate=rate) for rate in RATES]
            rows += [one_run(base, asked, seed, way=way) for way in ("all tokens", "with stories")]
            save("ch20", config | {"seeds": SEEDS[: seed + 1]}, real + rows)


if __name__ == "__main__":
    main()
