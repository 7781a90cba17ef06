"""Examples of what a user says and what to reply: read from files, encoded, and laid into the rows of a batch.

The loss counts the tokens of replies and their end markers, nothing else: targets are -1 everywhere else. Each example
has a row of its own, so none can see another. Chapter 20.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.text.sources import UNPACKING, opened, without_mark
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.text.turns import alpaca_prompt, encode_turn, markers

LARGEST = 1 << 30  # bytes of a file of examples, unpacked: a few MB of .xz can hold terabytes
BUCKET = 32  # rows are as long as the longest example of their batch, rounded up to a multiple of this
Example = Sequence[tuple[str, str]]  # turns: what the user says, template and all; what to reply


@dataclass(frozen=True)
class Encoded:
    """An example as tokens: ids [n], and for each whether the loss counts it (replies and their end markers)."""

    ids: np.ndarray
    counted: np.ndarray


def encode(example: Example, tokenizer: Tokenizer, most: int | None = None) -> Encoded:
    """An example's tokens: the end marker, then as many turns as fit into `most`.

    `turns` says how a turn is written.
    """
    end = markers(tokenizer)[0]
    ids, counted = [end], [False]
    for prompt, reply in example:
        question = encode_turn(tokenizer, prompt)
        answer = [*tokenizer.encode(reply).tolist(), end]
        if most is not None and len(ids) + len(question) + len(answer) > most:
            break
        ids += question + answer
        counted += [False] * len(question) + [True] * len(answer)
    return Encoded(np.array(ids), np.array(counted))


def rows(examples: Sequence[Encoded], time: int, predict: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [B, T] and targets [B, T, K]: example b in row b; target k of position t is token t+1+k if that counts.

    Behind the end of an example stand zeros that no counted position sees: attention only looks back.
    """
    inputs = np.zeros((len(examples), time), np.int64)
    targets = np.full((len(examples), time, predict), -1, np.int64)
    for row, example in enumerate(examples):
        n = len(example.ids) - 1
        inputs[row, :n] = example.ids[:-1]
        counted = np.where(example.counted, example.ids, -1)
        for k in range(min(predict, n)):
            targets[row, : n - k, k] = counted[1 + k :]
    return inputs, targets


def row_length(examples: Iterable[Encoded], context: int) -> int:
    """How long a row must be for the longest of these examples: a multiple of BUCKET, at most the context."""
    longest = max(len(example.ids) - 1 for example in examples)
    return min(-(-longest // BUCKET) * BUCKET, context)


def read_examples(path: str | Path) -> tuple[list[Example], str]:
    """The examples of a file, plain or compressed (.xz, .gz), and their template: a JSON array, or one object a line.

    An object is Alpaca's (instruction, input, output), Dolly's (instruction, context, response), or a conversation:
    {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}. The first two get
    Alpaca's template, conversations none. Raises NanoEulerError, with the place, for anything else and for a mixture.
    """
    path = Path(path)
    try:
        with opened(path) as file:
            data = file.read(LARGEST + 1)
        text = (without_mark(path, data[:4]) + data[4:]).decode() if len(data) <= LARGEST else None
    except NanoEulerError:
        raise
    except (OSError, EOFError, *UNPACKING, ValueError) as error:  # ValueError: not UTF-8; NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(
            f"{path}: cannot be read ({reason}), expected UTF-8 JSON, perhaps as .xz or .gz"
        ) from None
    if text is None:
        raise NanoEulerError(f"{path}: holds more than {LARGEST:,} bytes, expected at most that many")
    examples, template = [], None
    for place, value in _objects(path, text):
        example, its_template = _conversation(value) or _instruction(value) or (None, None)
        if example is None:
            known = (
                "instruction and output, instruction and response, or messages of user and assistant in turn"
            )
            raise NanoEulerError(f"{path}: {place} has {_keys(value)}, expected texts under {known}")
        if its_template != (template := template or its_template):
            raise NanoEulerError(
                f"{path}: {place} is of another kind than those before, expected one kind a file"
            )
        for text in (text for turn in example for text in turn):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = ascii(text[error.start])
                raise NanoEulerError(
                    f"{path}: {place} holds {half}, half a surrogate pair: expected Unicode"
                ) from None
        examples.append(example)
    if not examples:
        raise NanoEulerError(f"{path}: holds no example, expected one or more")
    return examples, template


def _objects(path, text):
    """The JSON values of a file, each with where it stands."""
    if text.lstrip().startswith("["):
        yield from ((f"item {n}", value) for n, value in enumerate(_json(path, "the file", text), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"line {number}", _json(path, f"line {number}", line)


def _json(path, place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NanoEulerError(
            f"{path}: {place} is not JSON ({error}), expected an array, or an object a line"
        ) from None


def _instruction(value):
    """The example in Alpaca's or Dolly's form, with its template; None if it is not."""
    if not isinstance(value, dict):
        return None
    for about, answer in (("input", "output"), ("context", "response")):
        texts = [value.get("instruction"), value.get(about, ""), value.get(answer)]
        if all(isinstance(text, str) for text in texts):
            return [(alpaca_prompt(*texts[:2]), texts[2])], "alpaca"
    return None


def _conversation(value):
    """The example in the form of messages, with its template; None if it is not."""
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages or len(messages) % 2:
        return None
    for message, role in zip(messages, ("user", "assistant") * (len(messages) // 2)):
        if not isinstance(message, dict) or message.get("role") != role:
            return None
        if not isinstance(message.get("content"), str):
            return None
    texts = [message["content"] for message in messages]
    return list(zip(texts[::2], texts[1::2])), "plain"


def _keys(value):
    return f"keys {short(sorted(value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
