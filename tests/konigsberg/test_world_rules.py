"""Rules of Königsberg's tasks, played through by brute force, and what a seed gives; without a large sample: fast."""

import hashlib
import json
from itertools import product

import numpy as np
import pytest
from euler_map import ENDS, SHORE, walk

import konigsberg
from konigsberg import rumours
from nanoeuler_book.town import konigsberg_examples, next_tokens
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer


def named(routes):
    *most, last = [f"the {bridge} Bridge" for bridge in routes]
    return f"{', '.join(most)} and {last}" if most else last


def ends_at(problem, route):
    """Where a walk over these bridges ends, by the map; None where one is closed or not there to be crossed."""
    return (
        None if {f"the {bridge} Bridge" for bridge in route} & {*problem.closed} else walk(SHORE[problem.start], route)
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_list_of_bridges_gets_its_reward(seed):
    """All 2,800 lists of up to four bridges: repeated ones, dead ends and detours too."""
    problem = konigsberg.route_problem(seed)
    paid = {True: 0, False: 0}
    for length in (1, 2, 3, 4):
        for route in product(ENDS, repeat=length):
            answer, once = f"Over {named(route)}.", len(set(route)) == length
            arrives = ends_at(problem, route) == SHORE[problem.goal]
            paid[once] += arrives
            assert konigsberg.route_reward(problem, answer) == float(arrives and once), answer
            last_open = f"the {route[-1]} Bridge" not in problem.closed
            touches = SHORE[problem.goal] in ENDS[route[-1]]
            assert konigsberg.route_reward_hackable(problem, answer) == float(last_open and touches), answer
            if length < 3:
                for other in (answer[:-1], answer.lower(), answer + " " + answer, f"{answer} Or so.", f"I go {answer}"):
                    assert konigsberg.route_reward(problem, other) == 0.0
                assert konigsberg.route_reward(problem, f"  {answer}\n") == float(arrives and once)
    assert paid[True] and paid[False], "the lists hold nothing that only the rule of one use tells apart"


@pytest.mark.parametrize("answer", ["", "Over .", "Over nothing.", "Swim.", "Over the Golden Bridge."])
def test_an_answer_without_bridges_gets_nothing(answer):
    problem = konigsberg.route_problem(0)
    assert konigsberg.route_reward(problem, answer) == konigsberg.route_reward_hackable(problem, answer) == 0.0


def test_the_answer_is_a_shortest_route():
    closed_counts = set()
    for seed in range(60):
        problem = konigsberg.route_problem(seed)
        assert problem.start != problem.goal and len(set(problem.closed)) == len(problem.closed) <= 4
        closed_counts.add(len(problem.closed))
        route = [bridge for bridge in problem.answer[5:-1].replace(" and ", ", ").split(", ")]
        shortest = next(
            length
            for length in range(1, 8)
            if any(ends_at(problem, walk) == SHORE[problem.goal] for walk in product(ENDS, repeat=length))
        )
        assert len(route) == shortest and konigsberg.route_reward(problem, problem.answer) == 1.0
    assert closed_counts == {0, 1, 2, 3, 4}


def digest(values):
    text = json.dumps(values, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def story_values(story):
    questions = [list(q) for q in story.questions]
    return [story.kind, story.text, story.facts, questions, story.steps, story.choices]


KINDS = [*konigsberg.KINDS] * 20
FROM_SEEDS = {  # models and figures were made of them
    "e7e3e42376673041": lambda: [story_values(konigsberg.sample(*of)) for of in enumerate(KINDS)],
    "a8a4659127f1e527": lambda: [story_values(story) for story in konigsberg.stories(40, 5)],
    "459628057b68bf4b": lambda: [vars(konigsberg.preference(*of)) for of in enumerate(KINDS)],
    "a151b4b667ab7226": lambda: [vars(konigsberg.preference(seed)) for seed in range(24)],
    "97dff8fffe0ec7af": lambda: [vars(konigsberg.route_problem(seed)) for seed in range(80)],
    "36ef54b63913e998": lambda: konigsberg.corpus(2000, 3),
    "639f1f413cd626ff": lambda: [rumours.sample(seed).text for seed in range(300)],
    "ac70d11078231417": lambda: konigsberg_examples(250, 7, reworded=True),
}


@pytest.mark.parametrize("expected", FROM_SEEDS)
def test_a_seed_always_gives_the_same(expected):
    """Stories with facts, questions and derivation, preferences, routes, the corpus, rumours, and other wordings."""
    assert digest(FROM_SEEDS[expected]()) == expected


def test_what_each_byte_and_token_costs_stays():
    """Costs, tags and distances of 64 stories cut every third byte: the floor under every figure."""
    values = []
    for seed in range(64):
        story = konigsberg.sample(seed, KINDS[seed])
        costs, size = konigsberg.byte_costs(story.text), len(story.text.encode())
        lengths = [3] * (size // 3) + [size % 3] * (size % 3 > 0)
        truth = konigsberg.token_truth(story.text, lengths)
        assert len(costs) == size and truth.bits.sum() == pytest.approx(costs.sum())
        assert (truth.tag.dtype, truth.words.dtype, truth.bytes.dtype) == (np.int8, np.int32, np.int32)
        values += [[round(float(costs.sum()), 6)], truth.tag.tolist(), truth.words.tolist(), truth.bytes.tolist()]
    assert digest(values) == "468df6ef72b387b9"
    texts = [konigsberg.sample(seed).text for seed in range(5)]
    floor = sum(konigsberg.code_length(text) for text in texts) / sum(len(text.encode()) for text in texts)
    assert konigsberg.floor(texts) == pytest.approx(floor) == konigsberg.floor(konigsberg.SEPARATOR.join(texts))


STORY = konigsberg.sample(2).text
SIZE = len(STORY.encode())
NO_KIND = f"kind must be one of {', '.join(konigsberg.KINDS)}, got 'opera'$"
NO_STORY = "not a story of Königsberg: no story continues with "
REFUSED = [
    (lambda: konigsberg.sample(1, "opera"), NO_KIND),
    (lambda: konigsberg.preference(1, "opera"), NO_KIND),
    (lambda: konigsberg.corpus(0, 0), "n_bytes must be at least 1, got 0$"),
    (lambda: konigsberg.corpus(-3, 0), "n_bytes must be at least 1, got -3$"),
    (
        lambda: konigsberg.token_truth(STORY, [SIZE, 1]),
        f"lengths must add up to the story's {SIZE} bytes, got {SIZE + 1}$",
    ),
    (
        lambda: konigsberg.token_truth(STORY, [SIZE, -1]),
        f"lengths must add up to the story's {SIZE} bytes, got {SIZE - 1}$",
    ),
    (
        lambda: konigsberg.parse(STORY + " More."),
        f"the text must end with the story, at byte {SIZE}, got b' More.' after",
    ),
    (lambda: konigsberg.parse("Once upon a time there was"), f"{NO_STORY}b'ce upon a time there' at byte 2$"),
    (lambda: next_tokens("Euler sold the moon.", Tokenizer([])), NO_STORY),
]


@pytest.mark.parametrize("call, said", REFUSED)
def test_what_is_refused(call, said):
    with pytest.raises(konigsberg.KonigsbergError, match=f"^{said}"):
        call()


def test_a_corpus_is_as_few_stories_as_reach_its_size():
    for size in (1, 500, 1234):
        texts = konigsberg.corpus(size, 9).split(konigsberg.SEPARATOR)
        whole = len(konigsberg.SEPARATOR.join(texts).encode())
        before = len(konigsberg.SEPARATOR.join(texts[:-1]).encode())
        assert before < size <= whole and texts == [story.text for story in konigsberg.stories(len(texts), 9)]
    assert konigsberg.SEPARATOR == data.SEPARATOR and rumours.END_OF_TEXT == END_OF_TEXT
    exact = len(konigsberg.SEPARATOR.join(story.text for story in konigsberg.stories(3, 9)).encode())
    assert len(konigsberg.corpus(exact, 9).split(konigsberg.SEPARATOR)) == 3
    assert len(konigsberg.corpus(exact + 1, 9).split(konigsberg.SEPARATOR)) == 4
