"""The format of a conversation: prompt templates, and markers that show whose turn it is. Chapter 20.

    <|endoftext|> <|user|> the question <|assistant|> the reply <|endoftext|> <|user|> ...

The markers are special tokens. Text that a user types is encoded as ordinary text, which never contains special tokens.
So a user who types the name of a marker cannot end a turn or write the model's reply.
"""

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

USER, ASSISTANT = "<|user|>", "<|assistant|>"


def plain_prompt(text: str) -> str:
    """Return the user's text unchanged; used for stories, whose questions need no introduction."""
    return text


def alpaca_prompt(text: str, context: str = "") -> str:
    """Write an instruction, and its input `context` if any, in the format of Stanford Alpaca (Taori et al. 2023)."""
    paired = ", paired with an input that provides further context" if context else ""
    about = f"### Input:\n{context}\n\n" if context else ""
    return (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{text}\n\n{about}### Response:\n"
    )


TEMPLATES = {"plain": plain_prompt, "alpaca": alpaca_prompt}


def markers(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the end, user and assistant markers. Raises NanoEulerError if the tokenizer lacks one."""
    names = (END_OF_TEXT, USER, ASSISTANT)
    if missing := [name for name in names if name not in tokenizer.special_tokens]:
        raise NanoEulerError(
            f"tokenizer must have the token {' '.join(missing)}: fine-tune the model first (nanoeuler sft)"
        )
    return tuple(tokenizer.special_tokens[name] for name in names)


def encode_turn(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids from the user marker to the assistant marker; the prompt is encoded as ordinary text."""
    _, user, assistant = markers(tokenizer)
    return [user, *tokenizer.encode(prompt).tolist(), assistant]
