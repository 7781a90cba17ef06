"""Other wordings of Königsberg's questions: some to teach, some never taught, to see what was learnt.

The corpus asks each question in one wording, and a model that has read no other answers no other. Of each kind of
question `WORDINGS` holds fourteen more, `MORE` about thirty by a second author, `STILL_MORE` about forty by a third.
Three of each of the first two lists, drawn by lot, are never taught. `READERS` are wordings that a reader typed when
the chat model knew one of each question; they are never taught either. All of them are in `wordings.json`. Chapter 20.

The second and the third author had read the stories and the wordings taught until then, but none of those held out.
Wordings of theirs that were held out are not in their lists: 33 of the second author's 1,020, 51 of the third's 1,360.
"""

import json
from functools import cache
from pathlib import Path
from random import Random

from konigsberg.grammar import Slot, capitalised, parts_of
from konigsberg.stories import Question
from konigsberg.story import Story
from konigsberg.town import CRIMES, PEOPLE

UNTAUGHT = 3  # wordings of each kind of question, in each of two lists
NAMED = {str(word): word for word in (*CRIMES, *PEOPLE)}  # what a wording needs in another form than its name

TEXTS = json.loads(Path(__file__).with_name("wordings.json").read_text("utf-8"))
WORDINGS, MORE, STILL_MORE = (  # kind of story: kind of question
    {kind: tuple(wordings) for kind, wordings in TEXTS[author].items()} for author in ("first", "second", "third")
)
READERS = TEXTS["readers"]


@cache
def untaught(kind: str) -> tuple[str, ...]:
    """Wordings of a kind of question ("errand: holder"), drawn by lot from `WORDINGS`: no training has shown them."""
    return _drawn(WORDINGS[kind])


@cache
def tried(kind: str) -> tuple[str, ...]:
    """Wordings drawn by lot from `MORE`: no training has shown them, but its length was chosen by them."""
    return _drawn(MORE[kind])


@cache
def taught(kind: str) -> tuple[str, ...]:
    """The other wordings of a kind of question; the corpus's own is not among them."""
    every = *WORDINGS[kind], *MORE[kind], *STILL_MORE[kind]
    return tuple(wording for wording in every if wording not in untaught(kind) + tried(kind))


def _drawn(wordings):
    lots = {wording: Random(wording).random() for wording in wordings}
    return tuple(sorted(lots, key=lots.get)[:UNTAUGHT])


def reworded(story: Story, question: Question, random: Random) -> str:
    """The question in a wording that may be taught, as people type: sometimes without its capital or its mark.

    The corpus's own wording is as likely as each of the others.
    """
    choices = taught(f"{story.kind}: {question.kind}")
    choice = int(random.random() * (len(choices) + 1))
    text = question.text if choice == len(choices) else in_words(story, choices[choice])
    return carelessly(text, random)


def in_words(story: Story, wording: str) -> str:
    """A wording, filled from the facts of a story."""
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
    """One text in four begins small, one in four has lost the mark at its end."""
    if random.random() < 0.25:
        text = text[0].lower() + text[1:]
    return text[:-1] if random.random() < 0.25 else text
