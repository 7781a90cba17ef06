"""Other wordings of Königsberg's questions: they ask the same, give nothing away, and some are never taught."""

import re
from collections import Counter
from random import Random

import pytest

import konigsberg
from konigsberg import wordings
from nanoeuler_book.town import konigsberg_examples

STORIES = list(konigsberg.stories(400, seed=77))
LISTS = wordings.WORDINGS, wordings.MORE, wordings.STILL_MORE
KINDS = sorted({f"{story.kind}: {question.kind}" for story in STORIES for question in story.questions})
VALUE = r"^(In|To|It is|It was|They cost|There are|There were) |\.$"  # what stands around an answer's value


def everything():
    """Each story, its questions, their wordings, and the text of each."""
    for story in STORIES:
        for question in story.questions:
            kind = f"{story.kind}: {question.kind}"
            own = wordings.READERS.get(kind)
            for wording in (*(w for of in LISTS for w in of[kind]), *filter(None, [own])):
                yield story, question, wording, wordings.in_words(story, wording)


def test_every_kind_of_question_has_its_wordings():
    assert sorted(wordings.WORDINGS) == KINDS and set(wordings.READERS) < set(KINDS)
    for kind in KINDS:
        assert len(set(wordings.WORDINGS[kind])) == 14
        assert len(set(wordings.MORE[kind])) >= 25 and len(set(wordings.STILL_MORE[kind])) >= 35
        every = {w for of in LISTS for w in of[kind]}
        never, tried = wordings.untaught(kind), wordings.tried(kind)
        assert len(set(never)) == len(set(tried)) == 3
        assert set(never) < set(wordings.WORDINGS[kind]) and set(tried) < set(wordings.MORE[kind])
        assert len(every) == len(wordings.taught(kind)) + 6 == sum(len(of[kind]) for of in LISTS)
        assert {*wordings.taught(kind), *never, *tried} == every
        assert wordings.READERS.get(kind) not in every
    assert sorted(wordings.MORE) == sorted(wordings.STILL_MORE) == KINDS


def test_a_wording_is_a_sentence_and_none_is_the_corpus_s():
    for story, question, _, text in everything():
        assert re.fullmatch(r'[A-ZÄÖÜ][^{}?."]*[?.]', text), text
        assert text not in {other.text for other in story.questions} - {question.text}
        assert text != question.text


def test_no_wording_gives_its_answer_away():
    for _, question, wording, text in everything():
        value = re.sub(VALUE, "", question.answer)
        told = value.lower() not in wording.lower() and re.search(rf"\b{re.escape(value)}\b", text, re.IGNORECASE)
        assert not told, (text, question.answer)  # "of the seven" is said whatever the answer


def test_no_wording_asks_two_questions_of_a_kind_of_story():
    for kind in konigsberg.KINDS:
        asked = Counter(w for of in LISTS for name, ws in of.items() if name.startswith(f"{kind}:") for w in ws)
        assert set(asked.values()) == {1}


@pytest.mark.parametrize("seed", [205, 206])
def test_what_is_never_taught_is_in_no_example(seed):
    """However it is typed; and what is taught is all there, with the answer of the same question."""

    def plain(text):
        return text.lower().rstrip(".?")

    stories = list(konigsberg.stories(400, seed))
    seen = Counter()
    for story, talk in zip(stories, konigsberg_examples(400, seed, reworded=True), strict=True):
        never, allowed = set(), {}
        for question in story.questions:
            kind = f"{story.kind}: {question.kind}"
            hidden = [*wordings.untaught(kind), *wordings.tried(kind)]
            hidden += filter(None, [wordings.READERS.get(kind)])
            never |= {plain(wordings.in_words(story, wording)) for wording in hidden}
            for wording in wordings.taught(kind):
                allowed[plain(wordings.in_words(story, wording))] = (wording, question.answer)
            allowed[plain(question.text)] = (question.kind, question.answer)
        assert talk[0][0].startswith(f"{story.body} ") and len(talk) == len(story.questions)
        for text, answer in talk:
            asked = plain(text.removeprefix(f"{story.body} "))
            assert asked not in never and allowed[asked][1] == answer
            seen[allowed[asked][0]] += 1
    assert len(seen) > 0.4 * sum(1 + len(wordings.taught(kind)) for kind in KINDS)


def test_typed_carelessly():
    random = Random(3)
    texts = Counter(wordings.carelessly("Who?", random) for _ in range(4000))
    assert set(texts) == {"Who?", "who?", "Who", "who"}
    assert 900 < texts["who?"] + texts["who"] < 1100 and 900 < texts["Who"] + texts["who"] < 1100
