"""Stories with their questions as turns of a conversation, for fine-tuning and for preferences. Chapters 20, 21."""

from random import Random

from nanoeuler_lib.text.examples import Example, Pair
from nanoeuler_lib.world import wordings
from nanoeuler_lib.world.story import stories
from nanoeuler_lib.world.tasks import RouteProblem, preference, question_of, valid_answers


def konigsberg_examples(count: int, seed: int, reworded: bool = False) -> list[Example]:
    """Stories, each with all its questions in a random order; only the first turn holds the story.

    reworded: each question in one of the wordings that may be taught (`world.wordings`), not always in the corpus's.
    """
    random = Random(seed)
    examples = []
    for story in stories(count, seed):
        questions = random.sample(story.questions, len(story.questions))
        asked = [wordings.reworded(story, question, random) if reworded else question.text for question in questions]
        asked[0] = f"{story.body} {asked[0]}"
        examples.append([(text, question.answer) for text, question in zip(asked, questions, strict=True)])
    return examples


def konigsberg_pairs(count: int, seed: int) -> list[Pair]:
    """Stories, each with a question and two replies to it: one that gives the true reason, and one a wrong one."""
    random, pairs = Random(seed), []
    for _ in range(count):
        drawn = preference(random.getrandbits(32))
        prompt = " ".join(drawn.prompt.split("\n")).strip()
        pairs.append(([(prompt, drawn.chosen)], [(prompt, drawn.rejected)]))
    return pairs


def route_examples(problems: list[RouteProblem], seed: int) -> list[Example]:
    """Questions after a route, each with one of its right answers, drawn from those of at most three bridges."""
    random, right = Random(seed), {}
    for problem in problems:
        if (question := question_of(problem)) not in right:
            right[question] = valid_answers(problem)
    return [[(problem.prompt, random.choice(right[question_of(problem)]))] for problem in problems]
