"""Train the chat model that comes with the package: `konigsberg-small`, fine-tuned on Königsberg's questions.

    python -m benchmarks.chat_model --run runs/chat     # trains, evaluates and exports; the same command resumes
    python -m benchmarks.chat_model --steps 6000        # a different length of round two, on wordings kept for this

There are two rounds. The first is that of `nanoeuler sft --run one`, with each question in the wording of the corpus.
The second is that of `nanoeuler sft --base one --data konigsberg-reworded`: it continues on different stories, with
many wordings.

Writes nanoeuler_lib/pretrained/konigsberg-chat and data/results/konigsberg-chat.json. The file has the fraction of
held-out questions that are answered correctly, over all questions and by kind, for five answerers: the most frequent
answer of each kind, the base model prompted as in its corpus, the base model prompted as in a chat, and the chat model
after each round. It also has the same by wording, trained or not, and what the model forgot. Chapter 20 reads the wrong
answers.
"""

import argparse
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

import konigsberg
from konigsberg import wordings
from nanoeuler_book import evaluate
from nanoeuler_book.significance import half_width
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import SFT_DATA_SEED, SFT_DEFAULTS, TrainConfig
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.text import sft_data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training import checkpoint, loop, sft
from nanoeuler_lib.training.checkpoint import PRETRAINED
from tools.notebooks.results import save

TEST_STORIES, TEST_SEED, MAJORITY_SEED = 1000, 203, 204
BASE, NAME = PRETRAINED / "konigsberg-small", "konigsberg-chat"
FIRST = TrainConfig(**SFT_DEFAULTS, valid_every=250, sample_every=0, save_every=500)
SECOND, SECOND_SEED = replace(FIRST, steps=6000, valid_every=500, save_every=500), 205
ASKED = {
    "taught": 2,
    "tried": 15,  # not taught either; they decided the length of round two
    "never taught": 15,
    "a reader's": 15,
    "never taught, typed carelessly": 5,
}  # questions per wording


def questions(count: int, seed: int) -> list[dict]:
    """Return all questions of some stories, each with its kind and with the story without its last line."""
    found = []
    for story in konigsberg.stories(count, seed):
        body = story.text.rpartition("\n")[0]
        for question in story.questions:
            found.append({"kind": f"{story.kind}: {question.kind}", "body": body, "question": question})
    return found


def as_chat(asked: list[dict]) -> list[sft_data.Example]:
    return [[(f"{one['body']} {one['question'].text}", one["question"].answer)] for one in asked]


def as_text(asked: list[dict], tokenizer) -> list[sft_data.Encoded]:
    """Encode story, question and answer as the corpus has them; the answer and the end of the text are scored."""
    end, found = tokenizer.special_tokens[END_OF_TEXT], []
    for one in asked:
        before = tokenizer.encode(f"{one['body']}\n{one['question'].text}").tolist()
        ids = tokenizer.encode(f"{one['body']}\n{one['question'].text} {one['question'].answer}").tolist()
        assert ids[: len(before)] == before
        counted = [False] * (1 + len(before)) + [True] * (len(ids) - len(before) + 1)
        found.append(sft_data.Encoded(np.array([end, *ids, end]), np.array(counted)))
    return found


def majority(asked: list[dict]) -> np.ndarray:
    """Return which questions the most frequent answer of their kind answers; it is counted on different stories."""
    counts: dict[str, Counter] = {}
    for one in questions(TEST_STORIES, MAJORITY_SEED):
        counts.setdefault(one["kind"], Counter())[one["question"].answer] += 1
    return np.array([counts[one["kind"]].most_common(1)[0][0] == one["question"].answer for one in asked])


def shares(asked: list[dict], right: dict[str, np.ndarray]) -> list[dict]:
    """Return the fraction of correct answers, over all questions and for each kind."""
    kinds = np.array([one["kind"] for one in asked])
    found = []
    for kind in ["all", *sorted(set(kinds))]:
        chosen = np.ones(len(kinds), bool) if kind == "all" else kinds == kind
        row = {name: round(float(values[chosen].mean()), 4) for name, values in right.items()}
        found.append({"kind": kind, "questions": int(chosen.sum()), **row})
    return found


def by_wording(asked: list[dict], stories: list[konigsberg.Story]) -> list[dict]:
    """Return questions in other wordings, each from a different story, with the wording and its group."""
    found, of_kind = [], {}
    for one, story in zip(asked, stories, strict=True):
        of_kind.setdefault(one["kind"], []).append((one, story))
    for kind, ones in of_kind.items():
        groups = {
            "taught": wordings.taught(kind),
            "tried": wordings.tried(kind),
            "never taught": wordings.untaught(kind),
            "a reader's": [wordings.READERS[kind]] if kind in wordings.READERS else [],
            "never taught, typed carelessly": wordings.untaught(kind),
        }
        for group, texts in groups.items():
            for number, wording in enumerate(texts):
                for one, story in ones[number :: len(texts)][: ASKED[group]]:
                    text = wordings.in_words(story, wording)
                    if group.endswith("carelessly"):
                        text = (text[0].lower() + text[1:]).rstrip(".?")
                    question = one["question"]._replace(text=text)
                    found.append(one | {"question": question, "group": group, "wording": wording})
    return found


def shares_by_wording(asked: list[dict], right: dict[str, np.ndarray]) -> list[dict]:
    """Return the fraction of correct answers for each wording."""
    cells: dict[tuple, list[int]] = {}
    for i, one in enumerate(asked):
        cells.setdefault((one["group"], one["kind"], one["wording"]), []).append(i)
    return [
        {"group": group, "kind": kind, "wording": wording, "wordings": 1, "questions": len(chosen)}
        | {name: round(float(values[chosen].mean()), 4) for name, values in right.items()}
        for (group, kind, wording), chosen in cells.items()
    ]


def taught_by_author(rows: list[dict]) -> list[dict]:
    """Average the rows of taught wordings in `shares_by_wording`, with one row per kind and author.

    The row has the first of its wordings.
    """
    lists, same = (wordings.WORDINGS, wordings.MORE, wordings.STILL_MORE), {}
    for row in rows:
        taught, wording = row["group"] == "taught", row["wording"]
        author = next(i for i, texts in enumerate(lists) if wording in texts[row["kind"]]) if taught else wording
        same.setdefault((row["group"], row["kind"], author), []).append(row)
    return [
        alike[0]
        | {name: sum(row[name] for row in alike) for name in ("wordings", "questions")}
        | {name: round(float(np.mean([row[name] for row in alike])), 6) for name in ("one_wording", "chat")}
        for alike in same.values()
    ]


def wrong_answers(found: checkpoint.Checkpoint, asked: list[dict], right: np.ndarray) -> list[dict]:
    """Return the wrong answers to wordings that were not taught, and the questions that they would answer."""
    told = {story.body: story for story in konigsberg.stories(TEST_STORIES, TEST_SEED)}
    wrong = []
    for one, good in zip(asked, right, strict=True):
        if one["group"] == "never taught" and not good:
            body, question = one["body"], one["question"]
            chat = Chat(found.model, found.tokenizer)
            said = "".join(chat.reply(f"{body} {question.text}", 30, temperature=0.0))
            others = [other.text for other in told[body].questions if other.answer == said]
            wrong.append({
                "kind": one["kind"], "body": body, "asked": question.text, "expected": question.answer, "said": said,
                "right_for": others[0] if others else None,
            })  # fmt: skip
    return wrong


def fine_tuned(run: Path, base: Path, name: str, source: str, seed: int, config: TrainConfig) -> Path:
    """Fine-tune a model or resume the run, and export the model next to its run, in float16 as for a reader."""
    exported = run.with_name(f"{run.name}-exported")
    if exported.exists():
        return exported
    given = (source, 0, seed)
    examples, held_out, template = sources.examples(*given)
    if run.exists():
        loop.resume(run, examples, held_out)
    else:
        found = checkpoint.load(base)
        info = {"source": source, "examples": given, "base": name}
        sft.fine_tune(run, (found.model, found.tokenizer), examples, held_out, config, template, info)
    checkpoint.export(checkpoint.load(run), exported)
    return exported


def try_out(found: checkpoint.Checkpoint) -> None:
    """Print the fraction of correct answers for the wordings in `tried`, as a mean over kinds of question."""
    told = [story for story in konigsberg.stories(TEST_STORIES, TEST_SEED) for _ in story.questions]
    asked = [one for one in by_wording(questions(TEST_STORIES, TEST_SEED), told) if one["group"] == "tried"]
    encoded = [sft_data.encode(chat, found.tokenizer) for chat in as_chat(asked)]
    asked = [asked[i] for i in fitting(asked, encoded, most=found.model.config.context + 1)]
    right = {"right": sft.exact_match(found.model, found.tokenizer, as_chat(asked))}
    kinds: dict[str, list[float]] = {}
    for row in shares_by_wording(asked, right):
        kinds.setdefault(row["kind"], []).append(row["right"])
    means = [np.mean(of) for of in kinds.values()]
    print(f"tried: {np.mean(means):.1%} +- {half_width(means):.1%} of {len(asked)} questions")


def fitting(asked: list[dict], *forms: list[sft_data.Encoded], most: int) -> list[int]:
    """Return which questions have at most `most` tokens in all their forms."""
    return [i for i in range(len(asked)) if max(len(form[i].ids) for form in forms) <= most]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--run", type=Path, default=Path("runs/chat"))
    arguments.add_argument("--export", type=Path, default=PRETRAINED / NAME)
    arguments.add_argument(
        "--steps", type=int, help="steps of round two; prints the accuracy on `tried` and stores nothing"
    )
    args = arguments.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    one = fine_tuned(args.run / "one", BASE, BASE.name, sources.KONIGSBERG, SFT_DATA_SEED, FIRST)
    again = f"{BASE.name}, fine-tuned on {sources.KONIGSBERG}"
    if args.steps:
        two = (
            args.run / f"two-{args.steps}",
            one,
            again,
            sources.REWORDED,
            SECOND_SEED,
            replace(SECOND, steps=args.steps),
        )
        return try_out(checkpoint.load(fine_tuned(*two)))
    two = fine_tuned(args.run / "two", one, again, sources.REWORDED, SECOND_SEED, SECOND)
    shutil.rmtree(args.export, ignore_errors=True)
    shutil.copytree(two, args.export)
    base, first, shipped = (checkpoint.load(path) for path in (BASE, one, args.export))

    asked, most = questions(TEST_STORIES, TEST_SEED), base.model.config.context + 1
    told = [story for story in konigsberg.stories(TEST_STORIES, TEST_SEED) for _ in story.questions]
    encoded = [sft_data.encode(chat, shipped.tokenizer) for chat in as_chat(asked)]
    kept = fitting(asked, as_text(asked, base.tokenizer), encoded, most=most)
    reworded = by_wording([asked[i] for i in kept], [told[i] for i in kept])
    left_out, asked = len(asked) - len(kept), [asked[i] for i in kept]
    encoded = [sft_data.encode(chat, shipped.tokenizer) for chat in as_chat(reworded)]
    reworded = [reworded[i] for i in fitting(reworded, encoded, most=most)]
    chats, rounds = as_chat(asked), {"one_wording": first, "chat": shipped}
    right = {
        "majority": majority(asked),
        "base_in_its_own_words": sft.greedy_match(base.model, as_text(asked, base.tokenizer)),
        "base_in_a_chat": sft.exact_match(*sft.extend(base.model, base.tokenizer), chats),
    } | {name: sft.exact_match(found.model, found.tokenizer, chats) for name, found in rounds.items()}
    in_words = {
        name: sft.exact_match(found.model, found.tokenizer, as_chat(reworded)) for name, found in rounds.items()
    }
    stories = list(konigsberg.stories(TEST_STORIES, 3))
    forgetting = {}
    for name, model in (("base", base), ("chat", shipped)):
        measured = evaluate.measure(model.model, model.tokenizer, stories)
        forgetting[name] = {
            "bits_per_byte": round(measured.bits_per_byte, 4),
            "fact_accuracy_beyond_10_words": round(measured.accuracy(konigsberg.FACT, 10), 4),
        }
    rows = [
        {"shares": shares(asked, right), "too_long": left_out, "stories": forgetting,
         "floor": round(measured.floor, 4)},
        {"wordings": taught_by_author(shares_by_wording(reworded, in_words)),
         "wrong": wrong_answers(shipped, reworded, in_words["chat"])},
    ]  # fmt: skip
    for row in rows[0]["shares"]:
        print(*row.values(), sep="\t")
    print(forgetting)
    config = {
        "model": shipped.model.config.to_dict(),
        "rounds": [FIRST.to_dict(), SECOND.to_dict()],
        **shipped.info,
    }
    save("konigsberg-chat", config, rows)


if __name__ == "__main__":
    main()
