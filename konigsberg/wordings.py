"""Provide more wordings of Königsberg's questions, for training or held out to test generalization. Chapter 20.

The corpus asks each question in one wording, and a model trained only on that wording does not answer others. For each
kind of question, `WORDINGS` contains fourteen more wordings, `MORE` contains about thirty by a second author, and
`STILL_MORE` contains about forty by a third author. From each of the first two lists, three random wordings are held
out of training. `READERS` contains wordings that a reader typed when the chat model had been trained on only one
wording per question; these wordings are held out too. All wordings are in `wordings.json`.

The second and third authors had read the stories and the training wordings that existed then, but no held-out wording.
Their proposals that coincided with held-out wordings were removed: 33 of the second author's 1,020 and 51 of the
third's 1,360.
"""

import json
from functools import cache
from pathlib import Path
from random import Random

from konigsberg.grammar import Slot, capitalised, parts_of
from konigsberg.stories import Question
from konigsberg.story import Story
from konigsberg.town import CRIMES, PEOPLE

UNTAUGHT = 3  # held-out wordings per kind of question, in each of two lists
NAMED = {str(word): word for word in (*CRIMES, *PEOPLE)}  # words that wordings use in forms other than the name

TEXTS = json.loads(Path(__file__).with_name("wordings.json").read_text("utf-8"))
WORDINGS, MORE, STILL_MORE = (  # keys: "kind of story: kind of question"
    {kind: tuple(wordings) for kind, wordings in TEXTS[author].items()} for author in ("first", "second", "third")
)
READERS = TEXTS["readers"]


@cache
def untaught(kind: str) -> tuple[str, ...]:
    """Return the wordings from `WORDINGS` that are held out of training, for a kind of question ("errand: holder")."""
    return _drawn(WORDINGS[kind])


@cache
def tried(kind: str) -> tuple[str, ...]:
    """Return the validation wordings from `MORE`: not used for training, but used to choose the length of training."""
    return _drawn(MORE[kind])


@cache
def taught(kind: str) -> tuple[str, ...]:
    """Return the wordings of a kind of question that are used for training, without the wording of the corpus."""
    every = *WORDINGS[kind], *MORE[kind], *STILL_MORE[kind]
    return tuple(wording for wording in every if wording not in untaught(kind) + tried(kind))


def _drawn(wordings):
    lots = {wording: Random(wording).random() for wording in wordings}
    return tuple(sorted(lots, key=lots.get)[:UNTAUGHT])


def reworded(story: Story, question: Question, random: Random) -> str:
    """Return a question in a random training wording, sometimes without its capital letter or final punctuation mark.

    The wording of the corpus is as likely as each of the training wordings.
    """
    choices = taught(f"{story.kind}: {question.kind}")
    choice = int(random.random() * (len(choices) + 1))
    text = question.text if choice == len(choices) else in_words(story, choices[choice])
    return carelessly(text, random)


def in_words(story: Story, wording: str) -> str:
    """Fill a wording's slots with the facts of a story."""
    pieces = []
    for part in parts_of(capitalised(wording)):
        if not isinstance(part, Slot):
            pieces.append(part.decode())
        elif part.form:
            pieces.append(part.fill(NAMED[story.facts[part.name]]))
        else:
            text = story.facts[part.name]
            pieces.append(capitalised(text) if part.capital else text)
    return "".join(pieces)


def carelessly(text: str, random: Random) -> str:
    """Make the first letter lower case and drop the final punctuation mark, each with probability 1/4."""
    if random.random() < 0.25:
        text = text[0].lower() + text[1:]
    return text[:-1] if random.random() < 0.25 else text
