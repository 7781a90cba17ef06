"""Other wordings of Königsberg's questions: they ask the same, give nothing away, and some are never taught."""

import re
from collections import Counter

import konigsberg
from konigsberg import wordings
from nanoeuler_book.town import konigsberg_examples

LISTS = wordings.WORDINGS, wordings.MORE, wordings.STILL_MORE
KINDS = sorted(wordings.WORDINGS)
VALUE = r"^(In|To|It is|It was|They cost|There are|There were) |\.$"  # what stands around an answer's value


def test_a_wording_is_a_sentence_other_than_the_corpus_s_and_does_not_give_its_answer_away():
    for story in konigsberg.stories(160, 77):
        for question in story.questions:
            kind = f"{story.kind}: {question.kind}"
            value = re.sub(VALUE, "", question.answer)
            for wording in (*(w for of in LISTS for w in of[kind]), *filter(None, [wordings.READERS.get(kind)])):
                text = wordings.in_words(story, wording)
                assert re.fullmatch(r'[A-ZÄÖÜ][^{}?."]*[?.]', text), text
                assert text not in {other.text for other in story.questions}
                told = re.search(rf"\b{re.escape(value)}\b", text, re.IGNORECASE)
                # "of the seven" is said whatever the answer
                assert not told or value.lower() in wording.lower(), (text, question.answer)


def test_no_wording_asks_two_questions_of_a_kind_of_story():
    for kind in konigsberg.KINDS:
        asked = Counter(w for of in LISTS for name, ws in of.items() if name.startswith(f"{kind}:") for w in ws)
        assert set(asked.values()) == {1}


def test_what_is_never_taught_is_in_no_example():
    """However it is typed; and what is taught is all there, with the answer of the same question."""

    def plain(text):
        return text.lower().rstrip(".?")

    seen = Counter()
    talks = konigsberg_examples(400, 205, reworded=True)
    for story, talk in zip(konigsberg.stories(400, 205), talks, strict=True):
        never, allowed = set(), {}
        for question in story.questions:
            kind = f"{story.kind}: {question.kind}"
            hidden = *wordings.untaught(kind), *wordings.tried(kind), *filter(None, [wordings.READERS.get(kind)])
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
