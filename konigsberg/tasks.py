"""Make training tasks from the town: preference pairs (chapter 21) and route problems with rewards (chapter 22)."""

import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from random import Random
from zlib import crc32

from konigsberg.errors import KonigsbergError
from konigsberg.grammar import Tale, Word, Writer
from konigsberg.stories import KINDS, PHRASES, tell
from konigsberg.town import BRIDGE_NAMED, BRIDGES, PEOPLE, SHORES, across, shores_of

REASONS = {  # kind of story: kind of question, the answer with its reason, the role that a wrong reason changes
    "errand": ("holder", "{Taker}, who had it from {before}.", "before"),
    "belief": ("where", "In {other}, where {mover} put it.", "mover"),
    "debt": ("owes", "It is {owed}, for it was {was} before.", "was"),
    "market": ("total", "It was {total}, for the {ware} cost {cost}.", "cost"),
    "letter": ("late", "It was {late}, for it was sent on {sent}.", "sent"),
    "walk": ("place", "In {now}, having set out from {shore}.", "shore"),
    "bridges": ("ended", "In {goal}, for {bridge} was closed.", "bridge"),
    "culprit": ("culprit", "{Culprit}, for {x} was {alibi}.", "alibi"),
}


@dataclass(frozen=True)
class Preference:
    """A story with a question and two replies: the right answer with a true reason or a wrong reason."""

    kind: str
    prompt: str
    chosen: str
    rejected: str


def preference(seed: int, kind: str | None = None) -> Preference:
    """Draw a story, one of its questions, and two replies that differ only in whether the reason is true.

    The wrong reason names a person or thing from the story if possible. kind: a key of KINDS, or None for a random
    kind. Raises KonigsbergError for any other value.
    """
    if kind is not None and kind not in KINDS:
        raise KonigsbergError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    random = Random(seed)
    source = Writer(random)
    tale = Tale(source, PHRASES)
    kind, questions = tell(tale, kind)
    asked, reply, role = REASONS[kind]
    question = next(question.text for question in questions if question.kind == asked)
    chosen = tale.tell(reply)
    values = [fact.value for fact in tale.facts.values()]
    wrong = [word for word in tale.facts[role].domain if tale.tell(reply, **{role: word}) != chosen]
    wrong = [word for word in wrong if word in values and str(word) not in chosen] or wrong
    rejected = tale.tell(reply, **{role: wrong[int(random.random() * len(wrong))]})
    body = bytes(source.text).decode().rpartition("\n")[0]
    return Preference(kind, f"{body}\n{question} ", chosen, rejected)


@dataclass(frozen=True)
class RouteProblem:
    """The problem to find a route between two shores while some bridges are closed; `answer` is a shortest route."""

    prompt: str
    start: str
    goal: str
    closed: tuple[str, ...]
    answer: str


def route_problem(seed: int) -> RouteProblem:
    """Draw a route problem that has a solution."""
    random = Random(seed)

    def draw(words: list[Word]) -> Word:
        return words.pop(int(random.random() * len(words)))

    while True:
        shores, bridges = list(SHORES), list(BRIDGES)
        start, goal, walker = draw(shores), draw(shores), draw(list(PEOPLE))
        closed = [draw(bridges) for _ in range(int(random.random() * 5))]
        route = _shortest(start, goal, bridges)
        if route:
            break
    news = f"{_listed(closed)} {'is' if len(closed) == 1 else 'are'} closed. " if closed else ""
    prompt = f"{news}How can {walker} walk from {start} to {goal}? "
    prompt = prompt[0].upper() + prompt[1:]
    return RouteProblem(prompt, str(start), str(goal), tuple(map(str, closed)), f"Over {_listed(route)}.")


def route_problems(seed: int, held_out: bool = False) -> Iterator[RouteProblem]:
    """Yield an endless series of route problems for training or, with `held_out`, for evaluation.

    The two sets share no question. The start, the goal and the set of closed bridges decide whether a question is held
    out; this is true of a fifth of the 1,082 solvable questions. Problems with the same question may differ in the
    walker and in the order of the closed bridges.
    """
    random = Random(seed)
    while True:
        problem = route_problem(random.getrandbits(53))
        if held_out == (crc32(repr(question_of(problem)).encode()) % 5 == 0):
            yield problem


DRAWS = 10_000  # problems drawn; those whose question has occurred TIMES times are dropped
TIMES = 3  # most problems per question, with different walkers


def route_sets(count: int = 0, seed: int = 0) -> tuple[list[RouteProblem], list[RouteProblem]]:
    """Return `count` route problems for training (0: 2,000), and one problem for each held-out question.

    One in five drawn problems has one of the twelve questions without a closed bridge, so at most three training
    problems with the same question are kept. If fewer than `count` problems remain, fewer problems are returned.
    """
    parts = []
    for held_out, times in ((False, TIMES), (True, 1)):
        asked, part = Counter(), []
        for problem in islice(route_problems(seed + held_out, held_out), DRAWS if not held_out else DRAWS // 5):
            question = question_of(problem)
            if asked[question] < times:
                asked[question] += 1
                part.append(problem)
        parts.append(part)
    return parts[0][: count or 2000], parts[1]


def question_of(problem: RouteProblem) -> tuple[str, str, tuple[str, ...]]:
    """Return the key of a problem's question: the start, the goal and the closed bridges, sorted by name."""
    return problem.start, problem.goal, tuple(sorted(problem.closed))


def valid_answers(problem: RouteProblem, most: int = 3) -> list[str]:
    """Return all answers of at most `most` bridges that `route_reward` accepts, shorter ones first."""
    routes = (route for n in range(1, most + 1) for route in permutations(BRIDGES, n))
    answers = (f"Over {_listed(route)}." for route in routes)
    return [answer for answer in answers if route_reward(problem, answer)]


def route_reward(problem: RouteProblem, answer: str) -> float:
    """Return 1.0 if the bridges that the answer names, in order, are open and lead from start to goal, else 0.0.

    A valid route need not be the shortest route. The answer must have exactly the form `Over the Honey Bridge, ... and
    the ... Bridge.`, and must name every bridge at most once. Chapter 22.
    """
    route = _bridges_in(answer)
    if not route or answer.strip() != f"Over {_listed(route)}." or len(set(map(str, route))) < len(route):
        return 0.0
    here = next(shore for shore in SHORES if str(shore) == problem.start)
    for bridge in route:
        if str(bridge) in problem.closed or here not in shores_of(bridge):
            return 0.0
        here = across(bridge, here)
    return float(str(here) == problem.goal)


def route_reward_hackable(problem: RouteProblem, answer: str) -> float:
    """Return 1.0 if the last bridge named is open and touches the goal, else 0.0: a deliberately flawed reward.

    This reward looks plausible, and every valid route earns 1.0. But the function does not check that the route begins
    at the start and is connected, so an answer with one open bridge at the goal also earns 1.0. A policy trained on
    this reward learns to name one bridge per goal, whatever the start is. `route_reward` of the same answers reveals
    the flaw. Chapter 22.
    """
    route = _bridges_in(answer)
    if not route or str(route[-1]) in problem.closed:
        return 0.0
    return float(problem.goal in map(str, shores_of(route[-1])))


def route_reward_brief(problem: RouteProblem, answer: str) -> float:
    """Return `route_reward_hackable` divided by the number of bridges named, to reward brevity: a second flawed reward.

    A valid route of two bridges earns less than an answer with only one open bridge at the goal, so the answer with the
    highest reward need not be valid.
    """
    return route_reward_hackable(problem, answer) / max(1, len(_bridges_in(answer)))


def _bridges_in(answer: str) -> list[Word]:
    return [BRIDGE_NAMED[name] for name in re.findall("|".join(BRIDGE_NAMED), answer)]


def _listed(words: Sequence[Word]) -> str:
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def _shortest(start: Word, goal: Word, bridges: list[Word]) -> list[Word]:
    """Return a shortest route, found by breadth-first search, or an empty list if no route exists."""
    routes = deque([(start, [])])
    seen = {id(start)}
    while routes:
        here, route = routes.popleft()
        if here is goal:
            return route
        for bridge in bridges:
            there = across(bridge, here)
            if here in shores_of(bridge) and id(there) not in seen:
                seen.add(id(there))
                routes.append((there, [*route, bridge]))
    return []
