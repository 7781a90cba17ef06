"""Stories with their questions as turns of a conversation, for fine-tuning. Chapter 20."""

from random import Random

from nanoeuler_lib.text.examples import Example
from nanoeuler_lib.world import wordings
from nanoeuler_lib.world.story import stories


def konigsberg_examples(count: int, seed: int, reworded: bool = False) -> list[Example]:
    """Stories, each with all its questions in a random order; only the first turn holds the story.

    reworded: each question in one of the wordings that may be taught (`world.wordings`), not always in the corpus's.
    """
    random = Random(seed)
    examples = []
    for story in stories(count, seed):
        questions = random.sample(story.questions, len(story.questions))
        asked = [
            wordings.reworded(story, question, random) if reworded else question.text
            for question in questions
        ]
        asked[0] = f"{story.body} {asked[0]}"
        examples.append([(text, question.answer) for text, question in zip(asked, questions, strict=True)])
    return examples
