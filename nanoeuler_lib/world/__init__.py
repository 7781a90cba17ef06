"""Königsberg: short stories from a seed, with the truth behind every sentence and the exact cost of every byte.

    >>> story = sample(seed=7, kind="errand")
    >>> print(story.text)               # the story; its last line is a question with its answer, or `Ende.`
    >>> story.questions                 # all that may be asked, each with its answer and wrong ones
    >>> parse(story.text) == story      # the text gives the whole derivation back
    >>> byte_costs(story.text).sum()    # bits under the true source: the floor of this text
    >>> next_tokens(story.text, tokenizer)  # what the source might say next, by a model's tokens

`grammar` is the engine, `town` the people, things and bridges, `stories` what happens to them, `story` the functions
above, `tokens` the source by tokens, `tasks` what is built from them: preferences, routes and their rewards,
`wordings` other ways to ask. `rumours` is a world of its own, for chapter 18.
"""

import importlib

from nanoeuler_lib.world import wordings
from nanoeuler_lib.world.errors import KonigsbergError
from nanoeuler_lib.world.stories import KINDS, Question
from nanoeuler_lib.world.story import (
    FACT,
    FREE,
    GRAMMAR,
    SEPARATOR,
    Story,
    TokenTruth,
    byte_costs,
    code_length,
    corpus,
    floor,
    parse,
    sample,
    stories,
    token_truth,
)
from nanoeuler_lib.world.tasks import (
    Preference,
    RouteProblem,
    preference,
    question_of,
    route_problem,
    route_problems,
    route_reward,
    route_reward_brief,
    route_reward_hackable,
    valid_answers,
)

__all__ = [
    "FACT",
    "FREE",
    "GRAMMAR",
    "KINDS",
    "SEPARATOR",
    "KonigsbergError",
    "Preference",
    "Question",
    "RouteProblem",
    "Story",
    "TokenTruth",
    "byte_costs",
    "code_length",
    "corpus",
    "floor",
    "next_tokens",
    "parse",
    "preference",
    "question_of",
    "route_problem",
    "route_problems",
    "route_reward",
    "route_reward_brief",
    "route_reward_hackable",
    "sample",
    "stories",
    "token_costs",
    "token_truth",
    "valid_answers",
    "wordings",
]


def __getattr__(name: str):  # until the move: `tokens` needs the tokenizer, which the town itself does not
    if name not in ("next_tokens", "token_costs"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.tokens"), name)
