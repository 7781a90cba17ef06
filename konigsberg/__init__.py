"""Generate short stories from a seed, with all facts of each story and the exact probability of every byte.

    >>> story = sample(seed=7, kind="errand")
    >>> print(story.text)               # the story; its last line is a question with its answer, or `Ende.`
    >>> story.questions                 # its possible questions, each with the right answer and wrong ones
    >>> parse(story.text) == story      # `parse` recovers the derivation from the text
    >>> byte_costs(story.text).sum()    # bits under the true source: the floor of this text

`grammar` generates and parses texts, `town` lists the people, things and bridges, `stories` defines the kinds of story,
and `story` defines the functions above. `tasks` makes preference pairs and route problems with rewards, and `wordings`
rephrases the questions. `nanoeuler_book.town` computes the source's distribution over the tokens of a tokenizer.
`rumours` is a separate, smaller source for chapter 18.
"""

from konigsberg import wordings
from konigsberg.errors import KonigsbergError
from konigsberg.stories import KINDS, Question
from konigsberg.story import (
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
from konigsberg.tasks import (
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
    "token_truth",
    "valid_answers",
    "wordings",
]
