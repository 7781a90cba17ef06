"""Examples of what a user says and what to reply, and pairs of replies: from files, as tokens, as rows of a batch.

The loss counts the tokens of replies and their end markers, nothing else: targets are -1 everywhere else. Each example
has a row of its own, so none can see another. Chapter 20.
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

LARGEST = 1 << 30  # bytes of a file of examples, unpacked: a few MB of .xz can hold terabytes
BUCKET = 32  # rows are as long as the longest example of their batch, rounded up to a multiple of this
Example = Sequence[tuple[str, str]]  # turns: what the user says, template and all; what to reply
Pair = tuple[Example, Example]  # the same but for the last reply: the one preferred, and the other


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


def encode_all(example: Example, tokenizer: Tokenizer, most: int, turns: str) -> list[Encoded]:
    """An example's tokens in as many rows of at most `most` tokens as it takes; none that has no reply.

    turns: "windows" for further rows for the turns that `encode` leaves out, each begun with the end marker as if the
    earlier ones were forgotten; "last" for a row in which the last reply alone counts, behind as many turns as fit
    before it. A turn that is longer than a row is left out.
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
    """How many replies an example has as tokens."""
    return int((encoded.counted[1:] & ~encoded.counted[:-1]).sum())


def count_last(encoded: Encoded, tokenizer: Tokenizer, example: Example) -> None:
    """Have the loss count the last reply alone, with its end marker."""
    encoded.counted[: -(len(tokenizer.encode(example[-1][1])) + 1)] = False


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

    An object is Alpaca's (instruction, input, output), Dolly's (instruction, context, response), or a dialogue:
    messages of role (user, assistant) and content, also as a list by itself; conversations of from (human, gpt) and
    value, as ShareGPT has them; prompt and completion. What a system message says begins the first user's turn. The
    first two get Alpaca's template, dialogues none. Raises NanoEulerError, with the place, for anything else and for a
    mixture.
    """
    examples, template = [], ""
    for place, value in json_values(path):
        example, its_template = _example(place, value)
        if its_template != (template := template or its_template):
            raise NanoEulerError(f"{place} is of another kind than those before, expected one kind a file")
        examples.append(_unicode(place, example))
    if not examples:
        raise NanoEulerError(f"{path}: holds no example, expected one or more")
    return examples, template


def read_pairs(path: str | Path) -> list[Pair]:
    """The pairs of a file, as `read_examples` takes it: objects of prompt, chosen and rejected.

    These are texts; or chosen and rejected are lists of messages that differ in the last alone, with a prompt of
    messages before both, or with none. Raises NanoEulerError, with the place, for anything else.
    """
    pairs = [_unicode(place, _pair(place, value)) for place, value in json_values(path)]
    if not pairs:
        raise NanoEulerError(f"{path}: holds no pair, expected one or more")
    return pairs


def _pair(place, value):
    """The pair that a JSON value holds. Raises NanoEulerError, which says what is wrong."""
    if not isinstance(value, dict) or not {"chosen", "rejected"} <= value.keys():
        found = f"has keys {short(sorted(value))}" if isinstance(value, dict) else f"is a {type(value).__name__}"
        raise NanoEulerError(f"{place} {found}, expected an object of prompt, chosen and rejected")
    if not isinstance(value["chosen"], list):
        prompt, chosen, rejected = (_text(place, value, name) for name in ("prompt", "chosen", "rejected"))
        return [(prompt, chosen)], [(prompt, rejected)]
    before = value["prompt"] if isinstance(value.get("prompt"), list) else []
    both = []
    for name in ("chosen", "rejected"):
        if not isinstance(value[name], list):
            raise NanoEulerError(f"{place}: {name} is {_shown(value[name])}, expected a list of messages, as chosen")
        both.append(_dialogue(place, f"{name} ", before + value[name]))
    chosen, rejected = both
    if chosen[:-1] != rejected[:-1] or chosen[-1][0] != rejected[-1][0]:
        raise NanoEulerError(f"{place}: chosen and rejected differ before the last reply, expected the same prompt")
    return chosen, rejected


def _unicode(place, turns):
    """The turns, of one example or of a pair, if text is Unicode."""
    text = json.dumps(turns, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise NanoEulerError(f"{place} holds {half}, half a surrogate pair: expected Unicode") from None
    return turns


def json_values(path: str | Path) -> Iterator[tuple[str, object]]:
    """The JSON values of a file, plain or packed, each with its place: the items of one array, or one value a line.

    Raises NanoEulerError for a file that cannot be read or holds too much, and for what is not JSON.
    """
    path = Path(path)
    try:
        with opened(path) as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise NanoEulerError(f"{path}: holds more than {LARGEST:,} bytes, expected at most that many")
        text = (without_mark(path, data[:4]) + data[4:]).decode()
    except NanoEulerError:
        raise
    except (OSError, EOFError, *UNPACKING, ValueError) as error:  # ValueError: not UTF-8; NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(f"{path}: cannot be read ({reason}), expected UTF-8 JSON, perhaps as .xz or .gz") from None
    if text.lstrip().startswith("[") and not _lists_by_line(text):
        yield from ((f"{path}: item {n}", value) for n, value in enumerate(_json(path, "the file", text), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}: line {number}", _json(path, f"line {number}", line)


def _lists_by_line(text):
    """Whether a text that begins with a bracket holds a list a line: its first line is one, and more follow."""
    first, _, rest = text.lstrip().partition("\n")
    try:
        return bool(rest.strip()) and isinstance(json.loads(first), list)
    except (ValueError, RecursionError):
        return False


def _json(path, place, text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NanoEulerError(f"{path}: {place} is not JSON ({error}), expected an array, or an object a line") from None


INSTRUCTIONS = ("instruction", "input", "output"), ("instruction", "context", "response")
ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}
KNOWN = "instruction and output, instruction and response, messages, conversations, or prompt and completion"


def _example(place, value):
    """The example that a JSON value holds, with its template. Raises NanoEulerError, which says what is wrong."""
    if isinstance(value, list):
        return _dialogue(place, "", value), "plain"
    if not isinstance(value, dict):
        raise NanoEulerError(f"{place} is a {type(value).__name__}, expected an object with texts under {KNOWN}")
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
    raise NanoEulerError(f"{place} has keys {short(sorted(value))}, expected texts under {KNOWN}")


def _text(place, value, name, optional=False):
    """The text under a name; optional: null and none are an empty one."""
    text = value.get(name)
    if optional and text is None:
        return ""
    if not isinstance(text, str):
        raise NanoEulerError(f"{place}: {name} is {_shown(text)}, expected text")
    return text


def _shown(value):
    return "null" if value is None else short(value)


def _dialogue(place, name, messages):
    """The turns of a list of messages: what the user says, and what to reply."""
    if not isinstance(messages, list) or not messages:
        raise NanoEulerError(f"{place}: {name}is {_shown(messages)}, expected a list of messages")
    said = [_message(f"{place}: {name}{number}", one) for number, one in enumerate(messages, 1)]
    first = 1 if said[0][0] == "system" else 0
    for number, (role, _) in enumerate(said[first:], first + 1):
        wanted = ("user", "assistant")[(number - first - 1) % 2]
        if role != wanted:
            raise NanoEulerError(
                f"{place}: {name}{number} is of {role}, expected {wanted}: user and assistant in turn, perhaps behind "
                "one of system"
            )
    if (len(said) - first) % 2 or len(said) == first:
        raise NanoEulerError(f"{place}: {name}{len(said)} is of {said[-1][0]}, expected assistant at the end")
    texts = [text for _, text in said[first:]]
    if first and said[0][1]:
        texts[0] = f"{said[0][1]}\n\n{texts[0]}"
    return list(zip(texts[::2], texts[1::2]))


def _message(place, message):
    """The role and the text of a message, which may come in parts of text."""
    if not isinstance(message, dict):
        raise NanoEulerError(f"{place} is {_shown(message)}, expected an object with role and content")
    of, what = ("from", "value") if "from" in message else ("role", "content")
    role, text = message.get(of), message.get(what)
    if not isinstance(role, str) or role not in ROLES:
        raise NanoEulerError(f"{place} has {of} {_shown(role)}, expected one of {', '.join(ROLES)}")
    if isinstance(text, list):
        for part in text:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise NanoEulerError(f"{place} has a part {_shown(part)} in {what}, expected parts of text")
        text = "".join(part["text"] for part in text)
    if not isinstance(text, str):
        raise NanoEulerError(f"{place}: {what} is {_shown(text)}, expected text")
    return ROLES[role], text
