"""How a conversation is written: templates, and the markers that say who speaks. Chapter 20.

    <|endoftext|> <|user|> what is asked <|assistant|> the reply <|endoftext|> <|user|> ...

The markers are special tokens. What a person types is encoded as plain text, in which no special token ever stands, so
typing a marker's name cannot end a turn or speak in the model's name.
"""

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer

USER, ASSISTANT = "<|user|>", "<|assistant|>"


def plain_prompt(text: str) -> str:
    """What a user says, as it is: for stories whose questions need no introduction."""
    return text


def alpaca_prompt(text: str, context: str = "") -> str:
    """An instruction, with its input if it has one, in the words of Stanford Alpaca (Taori et al. 2023)."""
    paired = ", paired with an input that provides further context" if context else ""
    about = f"### Input:\n{context}\n\n" if context else ""
    return (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request.\n\n"
        f"### Instruction:\n{text}\n\n{about}### Response:\n"
    )


TEMPLATES = {"plain": plain_prompt, "alpaca": alpaca_prompt}


def markers(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of the end, user and assistant markers. Raises NanoEulerError for a tokenizer without them."""
    names = (END_OF_TEXT, USER, ASSISTANT)
    if missing := [name for name in names if name not in tokenizer.special_tokens]:
        raise NanoEulerError(
            f"tokenizer has no {' '.join(missing)}, expected that of a model made to answer (nanoeuler sft)"
        )
    return tuple(tokenizer.special_tokens[name] for name in names)


def encode_turn(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A user's turn as token ids, up to where the model's reply begins. Special tokens in the prompt are plain text."""
    _, user, assistant = markers(tokenizer)
    return [user, *tokenizer.encode(prompt).tolist(), assistant]
