"""Data for fine-tuning: read conversations and preference pairs from files, encode them, and make rows of a batch.

The loss counts only the tokens of replies and their end markers; all other targets are -1. Each example has its own
row, so that examples cannot attend to each other. Chapter 20.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.text.chat_template import alpaca_prompt, encode_turn, markers
from nanoeuler_lib.text.sources import UNPACKING, opened, without_mark
from nanoeuler_lib.text.tokenizer import Tokenizer

LARGEST = 1 << 30  # maximum bytes of a decompressed file of examples: a few MB of .xz can expand to terabytes
BUCKET = 32  # rows are as long as the longest example of their batch, rounded up to a multiple of this
Example = Sequence[tuple[str, str]]  # turns: the user's text in its template, and the reply
Pair = tuple[Example, Example]  # two examples that differ only in the last reply: the preferred one comes first


@dataclass(frozen=True)
class Encoded:
    """Hold an example as token ids [n] and booleans `counted` [n], true for replies and their end markers."""

    ids: np.ndarray
    counted: np.ndarray


def encode(example: Example, tokenizer: Tokenizer, most: int | None = None) -> Encoded:
    """Encode an example: the end marker, then the turns that fit into `most` tokens.

    most: None for no limit. Raises NanoEulerError if the tokenizer lacks a marker of
    `chat_template`. Chapter 20.
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


def encode_all(example: Example, tokenizer: Tokenizer, most: int, turns: str) -> list[Encoded]:
    """Encode an example as a list of rows with at most `most` tokens each; every row contains a reply.

    turns: "windows" makes further rows for the turns that `encode` leaves out, each starting with the end marker, as if
    the earlier turns were forgotten. "last" makes one row in which only the last reply counts, after as many of the
    previous turns as fit. A turn that is longer than a row is left out.
    """
    if turns == "last":
        pieces = (encode(example[n:], tokenizer, most) for n in range(len(example)))
        row = next((e for n, e in enumerate(pieces) if replies(e) == len(example) - n), None)
        if row is not None:
            count_last(row, tokenizer, example)
        return [row] if row is not None else []
    found, begin = [], 0
    while begin < len(example):
        encoded = encode(example[begin:], tokenizer, most)
        found += [encoded] if (fitting := replies(encoded)) else []
        begin += max(1, fitting)
    return found


def replies(encoded: Encoded) -> int:
    """Return the number of replies in an encoded example."""
    return int((encoded.counted[1:] & ~encoded.counted[:-1]).sum())


def count_last(encoded: Encoded, tokenizer: Tokenizer, example: Example) -> None:
    """Change `encoded.counted` so that the loss counts only the last reply and its end marker."""
    encoded.counted[: -(len(tokenizer.encode(example[-1][1])) + 1)] = False


def rows(examples: Sequence[Encoded], time: int, predict: int) -> tuple[np.ndarray, np.ndarray]:
    """Put each example in a row: inputs [B, T] and targets [B, T, K].

    time, predict: T and K. Target k of position t is token t+1+k if the loss counts that
    token, else -1. The zeros after the end of an example do not matter, because attention
    only looks back. Chapter 20.
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
    """Return the row length for the longest of these examples: a multiple of BUCKET, at most the context."""
    longest = max(len(example.ids) - 1 for example in examples)
    return min(-(-longest // BUCKET) * BUCKET, context)


def read_examples(path: str | Path) -> tuple[list[Example], str]:
    """Read the examples of a JSON file, an array or one object per line. Returns them and the name of their template.

    The file may be compressed (.xz, .gz). These objects are accepted: Alpaca's (instruction, input, output) and Dolly's
    (instruction, context, response), which get the template "alpaca"; and dialogues, which get "plain". A dialogue is a
    list of messages with role (user, assistant) and content, possibly under "messages"; a list with from (human, gpt)
    and value under "conversations", the format of ShareGPT; or prompt and completion. The text of a system message is
    put before the first user's text. Raises NanoEulerError, with the place in the file, for any other object and for a
    mixture of the two templates.
    """
    examples, template = [], ""
    for place, value in json_values(path):
        example, its_template = _example(place, value)
        if its_template != (template := template or its_template):
            raise NanoEulerError(f"{place} must be of the same kind as those before, got a different kind")
        examples.append(_unicode(place, example))
    if not examples:
        raise NanoEulerError(f"{path}: must hold at least one example, got none")
    return examples, template


def read_pairs(path: str | Path) -> list[Pair]:
    """Read the preference pairs of a JSON file: objects with prompt, chosen and rejected.

    The file formats are those of `read_examples`. Either all three are texts; or chosen and rejected are lists of
    messages that differ only in the last one, with an optional list of messages as prompt for both. Raises
    NanoEulerError, with the place in the file, for anything else.
    """
    pairs = [_unicode(place, _pair(place, value)) for place, value in json_values(path)]
    if not pairs:
        raise NanoEulerError(f"{path}: must hold at least one pair, got none")
    return pairs


def _pair(place, value):
    if not isinstance(value, dict) or not {"chosen", "rejected"} <= value.keys():
        found = f"keys {short(sorted(value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise NanoEulerError(f"{place} must be an object with prompt, chosen and rejected, got {found}")
    if not isinstance(value["chosen"], list):
        prompt, chosen, rejected = (_text(place, value, name) for name in ("prompt", "chosen", "rejected"))
        return [(prompt, chosen)], [(prompt, rejected)]
    before = value["prompt"] if isinstance(value.get("prompt"), list) else []
    both = []
    for name in ("chosen", "rejected"):
        if not isinstance(value[name], list):
            raise NanoEulerError(f"{place}: {name} must be a list of messages, as chosen is, got {_shown(value[name])}")
        both.append(_dialogue(place, f"{name} ", before + value[name]))
    chosen, rejected = both
    if chosen[:-1] != rejected[:-1] or chosen[-1][0] != rejected[-1][0]:
        raise NanoEulerError(f"{place}: chosen and rejected must differ only in the last reply, got different prompts")
    return chosen, rejected


def _unicode(place, turns):
    """Return the turns of an example or a pair unchanged, after checking that their text is valid Unicode."""
    text = json.dumps(turns, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise NanoEulerError(f"{place} must be Unicode, got {half}, half a surrogate pair") from None
    return turns


def json_values(path: str | Path) -> Iterator[tuple[str, object]]:
    """Yield the JSON values of a file, each with a description of its place: the items of an array, or one per line.

    Raises NanoEulerError if the (possibly compressed) file cannot be read, exceeds LARGEST bytes, or is not JSON.
    """
    path = Path(path)
    try:
        with opened(path) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise NanoEulerError(f"{path}: must hold at most {LARGEST:,} bytes when decompressed, got more")
        text = (without_mark(path, data[:4]) + data[4:]).decode()
    except NanoEulerError:
        raise
    except (OSError, EOFError, *UNPACKING, ValueError) as error:  # ValueError: not UTF-8; NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(f"{path}: cannot be read ({reason}), expected UTF-8 JSON, also as .xz or .gz") from None
    if text.lstrip().startswith("[") and not _lists_by_line(text):
        yield from ((f"{path}: item {n}", value) for n, value in enumerate(_json(path, "the file", text), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}: line {number}", _json(path, f"line {number}", line)


def _lists_by_line(text):
    """Return whether each line of a text is a list: whether its first line is a list and more lines follow."""
    first, _, rest = text.lstrip().partition("\n")
    try:
        return bool(rest.strip()) and isinstance(json.loads(first), list)
    except (ValueError, RecursionError):
        return False


def _json(path, place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NanoEulerError(
            f"{path}: {place} must be JSON ({error}): a file must hold one array, or one object per line"
        ) from None


INSTRUCTIONS = ("instruction", "input", "output"), ("instruction", "context", "response")
ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}
KNOWN = "instruction and output, instruction and response, messages, conversations, or prompt and completion"


def _example(place, value):
    if isinstance(value, list):
        return _dialogue(place, "", value), "plain"
    if not isinstance(value, dict):
        raise NanoEulerError(f"{place} must be an object with texts under {KNOWN}, got a {type(value).__name__}")
    for name in ("messages", "conversations"):
        if name in value:
            return _dialogue(place, f"{name} ", value[name]), "plain"
    if "prompt" in value and "completion" in value:
        if isinstance(value["prompt"], list) and isinstance(value["completion"], list):
            return _dialogue(place, "", value["prompt"] + value["completion"]), "plain"
        return [(_text(place, value, "prompt"), _text(place, value, "completion"))], "plain"
    for ask, about, answer in INSTRUCTIONS:
        if ask in value and answer in value:
            prompt = alpaca_prompt(_text(place, value, ask), _text(place, value, about, optional=True))
            return [(prompt, _text(place, value, answer))], "alpaca"
    raise NanoEulerError(f"{place} must have texts under {KNOWN}, got keys {short(sorted(value))}")


def _text(place, value, name, optional=False):
    """Return the text under a name; optional: return "" if it is null or missing."""
    text = value.get(name)
    if optional and text is None:
        return ""
    if not isinstance(text, str):
        raise NanoEulerError(f"{place}: {name} must be text, got {_shown(text)}")
    return text


def _shown(value):
    return "null" if value is None else short(value)


def _dialogue(place, name, messages):
    """Return the turns of a list of messages: pairs of the user's text and the reply."""
    if not isinstance(messages, list) or not messages:
        raise NanoEulerError(f"{place}: {name}must be a list of messages, got {_shown(messages)}")
    said = [_message(f"{place}: {name}{number}", one) for number, one in enumerate(messages, 1)]
    first = 1 if said[0][0] == "system" else 0
    for number, (role, _) in enumerate(said[first:], first + 1):
        wanted = ("user", "assistant")[(number - first - 1) % 2]
        if role != wanted:
            raise NanoEulerError(
                f"{place}: {name}{number} must be from {wanted}, got {role}: user and assistant must alternate, after "
                "at most one system message"
            )
    if (len(said) - first) % 2 or len(said) == first:
        raise NanoEulerError(f"{place}: {name}{len(said)}, the last one, must be from assistant, got {said[-1][0]}")
    texts = [text for _, text in said[first:]]
    if first and said[0][1]:
        texts[0] = f"{said[0][1]}\n\n{texts[0]}"
    return list(zip(texts[::2], texts[1::2]))


def _message(place, message):
    """Return the role and the text of a message, whose content may be a list of parts."""
    if not isinstance(message, dict):
        raise NanoEulerError(f"{place} must be an object with role and content, got {_shown(message)}")
    of, what = ("from", "value") if "from" in message else ("role", "content")
    role, text = message.get(of), message.get(what)
    if not isinstance(role, str) or role not in ROLES:
        raise NanoEulerError(f"{place}: {of} must be one of {', '.join(ROLES)}, got {_shown(role)}")
    if isinstance(text, list):
        for part in text:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise NanoEulerError(f"{place}: {what} must consist of parts of text, got {_shown(part)}")
        text = "".join(part["text"] for part in text)
    if not isinstance(text, str):
        raise NanoEulerError(f"{place}: {what} must be text, got {_shown(text)}")
    return ROLES[role], text
