"""Supervised fine-tuning: a base model learns to answer, from examples of what a user says and what to reply.

The loss counts the tokens of replies and their end marker, nothing else: targets are -1 everywhere else. Each example
has a row of its own, so none can see another; rows of a batch have about the same length, so that little of a row is
empty. Everything else, steps, log, checkpoints and resume, is that of pretraining (`train`). Chapter 20.
"""

import json
import lzma
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from nanoeuler_lib import checkpoint, train, world
from nanoeuler_lib.chat import ASSISTANT, TEMPLATES, USER, Chat, alpaca_prompt, encode_turn, markers
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.device import CPU, Device
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line
from nanoeuler_lib.model import GPT, init
from nanoeuler_lib.optim import optimizer_of
from nanoeuler_lib.step import cores
from nanoeuler_lib.tokenizer import Tokenizer

LARGEST = 1 << 30  # bytes of a file of examples, unpacked: a few MB of .xz can hold terabytes
MEASURABLE = 8  # with fewer examples held out, validation says little
BUCKET = 32  # rows are as long as the longest example of their batch, rounded up to a multiple of this

Example = Sequence[tuple[str, str]]  # turns: what the user says, template and all; what to reply


# ---- From examples to rows


@dataclass(frozen=True)
class Encoded:
    """An example as tokens: ids [n], and for each whether the loss counts it (replies and their end markers)."""

    ids: np.ndarray
    counted: np.ndarray


def encode(example: Example, tokenizer: Tokenizer, most: int | None = None) -> Encoded:
    """An example's tokens: the end marker, then as many turns as fit into `most`.

    `chat` says how a turn is written.
    """
    end = markers(tokenizer)[0]
    ids, counted = [end], [False]
    for prompt, reply in example:
        asked = encode_turn(tokenizer, prompt)
        said = [*tokenizer.encode(reply).tolist(), end]
        if most is not None and len(ids) + len(asked) + len(said) > most:
            break
        ids += asked + said
        counted += [False] * len(asked) + [True] * len(said)
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


class SFTDataset:
    """Examples to learn from and to be measured on, in the form in which `train` takes a text (`train.TextDataset`).

    examples: to train on; held_out: to validate on. A first turn too long for the context leaves its example out, a
    later one only itself; `sizes` counts what is left, `warnings` says what is not. Raises NanoEulerError when a part
    has nothing left, and when the second has lost more than half and is too small to measure by.
    """

    sampled = False

    def __init__(
        self, examples: Iterable[Example], held_out: Iterable[Example], found: checkpoint.Checkpoint
    ):
        self.model, self.train, self.tokenizer = found.model.config, found.train, found.tokenizer
        self.template = found.info["template"]
        examples, held_out, self.warnings = list(examples), list(held_out), []
        self.source = one_line(found.info.get("source", "examples"), 200)
        self.part = self._fitting(examples, "training", 1)
        self.valid = self._fitting(held_out, "validation", min(MEASURABLE, -(-len(held_out) // 2)))
        self.order = np.argsort([len(e.ids) for e in self.part], kind="stable")  # by length
        self.tokens = sum(len(e.ids) for e in self.part)
        self.row_tokens = self.tokens / len(self.part)
        self.sizes = {"train_examples": len(self.part), "valid_examples": len(self.valid)}
        self.fingerprint, self.valid_fingerprint = (
            train.fingerprint(np.concatenate([np.where(e.counted, ~e.ids, e.ids) for e in part]))
            for part in (self.part, self.valid)
        )
        self.prompt = next(e[0][0] for e in held_out if self._encoded(e).counted.any())
        if copies := len(self.part) - len({e.ids.tobytes() for e in self.part}):
            self.warnings.append(f"{copies} of {len(self.part)} training examples stand there more than once")
        if len(self.valid) < MEASURABLE:
            self.warnings.append(
                f"validation rests on {len(self.valid)} examples, which say little: hold out more (--valid-fraction)"
            )

    def _fitting(self, examples, name, least):
        """The examples that fit the context, encoded; says how many do not, and refuses when fewer than `least` do."""
        given = [self._encoded(example) for example in examples]
        kept, context = [e for e in given if e.counted.any()], self.model.context
        fits = f"{len(kept)} of {len(given)} {name} examples fit in {context} tokens"
        if len(kept) < max(least, 1):
            raise NanoEulerError(
                f"{self.source}: {fits}, expected at least {max(least, 1)}: take a base model of a longer context "
                "(--base), shorter examples, or more of them"
            )
        if len(kept) < len(given):
            self.warnings.append(
                f"{fits}; the others are left out. A base model of a longer context takes more"
            )
        return kept

    def _encoded(self, example):
        return encode(example, self.tokenizer, self.model.context + 1)

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K]: neighbours in the order of length, so that T is little more than each.

        Every example is drawn equally often: the run of neighbours begins anywhere, and goes on at the other end.
        """
        start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
        chosen = [self.part[i] for i in np.take(self.order, range(start, start + rows_), mode="wrap")]
        return rows(chosen, row_length(chosen, self.model.context), self.model.predict)

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """What the log says of a validation, of all examples that are held out."""
        return {"valid_bits_per_byte": self.bits_per_byte(model)}

    def bits_per_byte(self, model: GPT) -> float:
        """Bits that head 0 needs for the held-out replies with their end markers, for each byte of a reply."""
        parts = []
        for start in range(0, len(self.valid), 16):
            some = self.valid[start : start + 16]
            inputs, targets = rows(some, row_length(some, self.model.context), 1)
            parts.append((inputs, targets[..., 0]))
        scored = np.concatenate([e.ids[e.counted] for e in self.valid])
        return (
            train.nats_of(model, parts) / np.log(2) / max(1, int(self.tokenizer.token_lengths[scored].sum()))
        )

    def sample(self, model: GPT, seed: int) -> str:
        """The reply to the first held-out prompt, which has its template on already."""
        return "".join(Chat(model, self.tokenizer).reply(self.prompt, 60, seed, temperature=0.0))


# ---- From a base model to one that answers


def extend(model: GPT, tokenizer: Tokenizer, multiple: int = 1) -> tuple[GPT, Tokenizer]:
    """The same model with markers for who speaks: rows of the embedding and columns of the heads are added.

    multiple: of what the vocabulary's size shall be one; the GPU's kernels want 8. No text has the tokens beyond.
    Logits of the tokens there were change by rounding only. Returned as they are if the tokenizer has the markers.
    """
    names = list(tokenizer.special_tokens)
    names += [name for name in (train.END_OF_TEXT, USER, ASSISTANT) if name not in names]
    if len(names) == len(tokenizer.special_tokens):
        return model, tokenizer
    tokenizer = Tokenizer(tokenizer.merges, names, tokenizer.byte_order)
    old = model.config
    size = -(-max(old.vocab_size, tokenizer.vocab_size) // multiple) * multiple
    config = ModelConfig.from_dict(old.to_dict() | {"vocab_size": size})
    params = init(config, dtype=model.dtype)
    for name, p in model.params.items():
        if name == "heads":  # [D, K V]: each head has its own V columns
            wide = params[name].reshape(config.dim, config.predict, config.vocab_size)
            wide[..., : old.vocab_size] = p.reshape(config.dim, config.predict, old.vocab_size)
        else:
            params[name][: len(p)] = p
    return GPT(config, params), tokenizer


def fine_tune(
    run: str | Path,
    base: tuple[GPT, Tokenizer],
    examples: Iterable[Example],
    held_out: Iterable[Example],
    config: TrainConfig,
    template: str = "plain",
    info: dict | None = None,
    quiet: bool = False,
    workers: int | None = None,
    on_entry: Callable[[dict], None] | None = None,
    device: Device = CPU,
) -> GPT:
    """Fine-tune a base model on examples and leave a run folder; the model given is not changed.

    template: what the examples' prompts are made with, stored so that a chat uses the same; info: what else to store;
    the rest as for `train.train`. Raises NanoEulerError when the folder holds a run or no example fits the context.
    """
    if template not in TEMPLATES:
        raise NanoEulerError(f"template is {short(template)}, expected one of {', '.join(TEMPLATES)}")
    model, tokenizer = extend(*base, multiple=1 if device == CPU else 8)
    if model is base[0]:  # it had the markers: leave the caller's parameters alone
        model = GPT(model.config, init(model.config, dtype=model.dtype))
        model.params.flat[...] = base[0].params.flat
    info = {"source": "examples", "workers": workers or cores(), "template": template} | (info or {})
    info |= device.info
    run, optimizer = Path(run), optimizer_of(model.config, config)
    found = checkpoint.Checkpoint(run, model, tokenizer, 0, config, optimizer, info)
    return train.start_run(run, found, SFTDataset(examples, held_out, found), quiet, on_entry)


def resume(
    run: str | Path,
    examples: Iterable[Example],
    held_out: Iterable[Example],
    quiet: bool = False,
    on_entry: Callable[[dict], None] | None = None,
    files: dict[str, str] | None = None,
    steps: int | None = None,
    device: str | None = None,
) -> GPT:
    """Go on with a run of `fine_tune` from its latest checkpoint; examples and held_out as they were given to it.

    files, steps, device: as for `train.resume`.
    """

    def again(found):
        if found.info.get("template") not in TEMPLATES:
            raise NanoEulerError(f"{run}: was not begun by fine-tuning, expected a run of nanoeuler sft")
        return SFTDataset(examples, held_out, found)

    return train.resume_run(Path(run), again, quiet, on_entry, files, steps, device)


def exact_match(model: GPT, tokenizer: Tokenizer, examples: Sequence[Example]) -> np.ndarray:
    """Whether the model's greedy reply to each example's last turn, after the turns before it, is the one given: [n].

    Raises NanoEulerError when an example does not fit the context.
    """
    encoded = []
    for example in examples:
        found = encode(example, tokenizer)
        last = len(tokenizer.encode(example[-1][1])) + 1  # tokens of the last reply and its end marker
        found.counted[:-last] = False
        encoded.append(found)
    # by a chat, too
    unsaid = [*markers(tokenizer)[1:], *range(tokenizer.vocab_size, model.config.vocab_size)]
    return greedy_match(model, encoded, unsaid)


def greedy_match(model: GPT, examples: Sequence[Encoded], never: Sequence[int] = ()) -> np.ndarray:
    """Whether greedy decoding would give the tokens that count, all of them, after those before: [n].

    Decided without decoding: it would if each of them has the largest logit but for the tokens in `never`. Raises
    NanoEulerError when an example does not fit the context.
    """
    found, context = np.zeros(len(examples), bool), model.config.context
    if (longest := max((len(example.ids) for example in examples), default=0)) > context + 1:
        raise NanoEulerError(f"an example has {longest} tokens, expected at most {context + 1}")
    for start in range(0, len(examples), 16):
        some = examples[start : start + 16]
        inputs, targets = rows(some, row_length(some, context), 1)
        logits = model.logits(inputs)
        logits[..., list(never)] = -np.inf
        same = (logits.argmax(axis=-1) == targets[..., 0]) | (targets[..., 0] < 0)
        found[start : start + 16] = same.all(axis=1)
    return found


# ---- Where examples come from


def konigsberg_examples(count: int, seed: int, reworded: bool = False) -> list[Example]:
    """Stories with all their questions in an order of their own: the first turn holds the story, the others do not.

    reworded: each question in one of the wordings that may be taught (`world.wordings`), not always in the corpus's.
    """
    random = Random(seed)
    found = []
    for story in world.stories(count, seed):
        questions = random.sample(story.questions, len(story.questions))
        asked = [
            world.wordings.reworded(story, question, random) if reworded else question.text
            for question in questions
        ]
        asked[0] = f"{story.body} {asked[0]}"
        found.append([(text, question.answer) for text, question in zip(asked, questions, strict=True)])
    return found


SOURCES = KONIGSBERG, REWORDED = "konigsberg", "konigsberg-reworded"  # the names of those that need no file
STORIES, HELD_OUT = 10_000, 200


def examples_of(
    source: str | Path, count: int = 0, seed: int = 0, valid_fraction: float = 0.1
) -> tuple[list[Example], list[Example], str]:
    """Examples to train on, examples held out, and the template they are in; the same for the same arguments.

    source: "konigsberg" for `count` stories of this seed (0: 10,000) with their questions as the corpus asks them, or
    "konigsberg-reworded" for the same in many wordings, with stories of the next seed held out; or a file
    (`read_examples`) of which the first `count` examples are taken (0: all), shuffled, and a share held out.
    """
    if source in SOURCES:
        parts = ((count or STORIES, seed), (HELD_OUT, seed + 1))
        return *(konigsberg_examples(*part, reworded=source == REWORDED) for part in parts), "plain"
    examples, template = read_examples(source)
    examples = examples[: count or None]
    if len(examples) < 2:
        raise NanoEulerError(f"{source}: holds 1 example, expected two or more: some are held out")
    Random(seed).shuffle(examples)
    cut = len(examples) - max(1, round(len(examples) * valid_fraction))
    return examples[:cut], examples[cut:], template


def read_examples(path: str | Path) -> tuple[list[Example], str]:
    """The examples of a file, plain or compressed (.xz), and their template: a JSON array, or one object a line.

    An object is Alpaca's (instruction, input, output), Dolly's (instruction, context, response), or a conversation:
    {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}. The first two get
    Alpaca's template, conversations none. Raises NanoEulerError, with the place, for anything else and for a mixture.
    """
    path = Path(path)
    try:
        with lzma.open(path) if path.suffix == ".xz" else open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        text = data.decode() if len(data) <= LARGEST else None
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:  # ValueError: not UTF-8; NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(
            f"{path}: cannot be read ({reason}), expected UTF-8 JSON, perhaps as .xz"
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
                found = ascii(text[error.start])
                raise NanoEulerError(
                    f"{path}: {place} holds {found}, half a surrogate pair: expected Unicode"
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
    said = [message["content"] for message in messages]
    return list(zip(said[::2], said[1::2])), "plain"


def _keys(value):
    return f"keys {short(sorted(value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
