"""What a run learns from and is measured on: a text, shards on the disk, or examples; `preferences` has pairs.

All have the same members (`Dataset`): `batch` and `validation`, `sample` for the reader of the log; the fingerprints
tell one text from another, `sizes` goes into run.json, `tokens` is how many there are to learn from, `row_tokens` how
many a row has on average (a pair, for pairs), `warnings` what to say first, `sampled` whether there is so much to
validate on that most validations score a part of it. `reach` is the share of the training tokens (of replies, for
examples: `unit`) that any row can hold, `seen` that which the rows of the first steps did hold.
"""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

import numpy as np

from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import one_line
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data
from nanoeuler_lib.text.sft_data import Example, encode, encode_all, replies, row_length, rows
from nanoeuler_lib.text.shards import Part, Shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.monitor import document_warnings, percent, text_warnings

# The rule by which a share of the data is held out, as runs keep it ("split"). Runs that name none hold out the end of
# all texts together, from a document's beginning on, however much that is.
SPLIT = 2


def split_text(
    text: str | Sequence[str], valid_text: str | None, config: TrainConfig, rule: int | None = SPLIT
) -> tuple[str, str]:
    """The parts to train on and to validate on; without a validation text the last share of each text."""
    texts = [text] if isinstance(text, str) else text
    if valid_text is not None:
        text = data.SEPARATOR.join(texts)
        return data.without_outer_separators(text), data.without_outer_separators(valid_text)
    if rule != SPLIT:
        return data.split_text(data.SEPARATOR.join(texts), config.valid_fraction)
    parts = zip(*(data.hold_out(text, config.valid_fraction) for text in texts), strict=True)
    part, valid = (data.SEPARATOR.join(filter(None, part)) for part in parts)
    return part, valid


def bits_per_byte(model: GPT, tokens: data.Tokens, rows: int = 8) -> float:
    """Bits that head 0 needs for each byte of a text, every token scored once (`data.validation_rows`)."""
    inputs, targets = data.validation_rows(tokens, model.config.context)
    plans = range(0, len(inputs), rows)
    nats = nats_of(model, ((inputs[i : i + rows], targets[i : i + rows]) for i in plans))
    scored = tokens.lengths[targets[targets >= 0]]
    return nats / math.log(2) / max(1, int(scored.sum()))


def nats_of(model: GPT, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Nats that head 0 needs for all targets that count (-1 does not), over parts of inputs and targets [B, T]."""
    return sum(float(model.losses(inputs, targets).sum(dtype=np.float64)) for inputs, targets in parts)


class Dataset:
    """What all datasets have, as it is unless they say otherwise."""

    span = 1  # a run may only be saved every `span` steps
    together = 1  # rows of a batch that belong together: 2 for pairs
    figures: Sequence[str] = ()  # names in the log of what a step gives beside its loss; none: nats of the later heads
    frequencies = None  # entropy of the token frequencies, in nats per token; None where the data is not text
    prompt: str | None = None  # of the held-out examples, the one that samples reply to
    measure = "valid_bits_per_byte"  # what its validations are judged by, of `monitor.MEASURES`

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Write, or read again, this data's own files in the run's folder, before a run begins or goes on."""

    def sample(self, model: GPT, seed: int) -> str:
        """A text for the reader of the log: the model's own, or its reply to the prompt, which has its template on."""
        if self.prompt is None:
            return generate(model, self.tokenizer, "", 100, seed=seed)
        return "".join(Chat(model, self.tokenizer).reply(self.prompt, 60, seed, temperature=0.0))


class TextDataset(Dataset):
    """A text, tokenised, in rows of the model's context.

    `train.cut_documents` says whether documents longer than a row are read whole (`data.row_starts`). Without a
    validation text (`train.valid_fraction` 0) nothing is validated. Raises NanoEulerError when a part is too short for
    a row.
    """

    sampled, unit = False, "tokens"

    def __init__(self, part: str, valid: str, state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        self.part, self.valid = (
            replace(data.tokenize(text, state.tokenizer), cut=self.train.cut_documents) for text in (part, valid)
        )
        source = state.info.get("source", "text")
        _expect_a_row(source, "training", len(self.part.ids), self.model)
        if valid or self.train.valid_fraction:
            source = state.info.get("files", {}).get("valid") or source
            _expect_a_row(source, "validation", len(self.valid.ids))
        size, self.row_tokens = len(self.part.ids), self.model.context
        self.starts = data.row_starts(self.part, self.row_tokens, self.model.predict)
        self.window, self.read, self.counted = self.row_tokens + self.model.predict, np.zeros(size, bool), 0
        self.tokens = size
        if self.starts is not None:
            self.tokens = int(np.minimum(np.diff(np.append(self.starts, size)), self.window).sum())
        self.reach = self.tokens / size
        self.sizes = {"train_tokens": size, "valid_tokens": len(self.valid.ids)}
        self.fingerprint, self.valid_fingerprint = fingerprint(self.part.ids), fingerprint(self.valid.ids)
        self.frequencies = _entropy(self.part.ids[:COUNTED])
        self.warnings = text_warnings(part, valid, data.SEPARATOR)
        if self.reach < REACHED:
            self.warnings.append(
                f"rows reach {percent(self.reach)} of the {size} training tokens: a smaller context, or more text, "
                "leaves less behind"
            )
        if data.SEPARATOR in part and self.part.starts is None:
            self.warnings.append(
                f"the tokenizer has no {END_OF_TEXT}: the lines between documents are ordinary letters to it"
            )

    def batch(self, step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K] of step 0, 1, ..."""
        rng = np.random.default_rng([self.train.seed, step])
        return data.batch(self.part, rng, rows, self.model.context, self.model.predict, self.starts)

    def seen(self, steps: int) -> float:
        """Share of the training tokens that rows of the first so many steps have held. Steps may only grow."""
        for step in range(self.counted, steps):
            rng, last = np.random.default_rng([self.train.seed, step]), len(self.read) - self.window
            for at in data.draw(self.starts, last, rng, _rows_of(self.train)):
                self.read[at : at + self.window] = True
        self.counted = steps
        return float(self.read.mean())

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """What the log says of a validation; whole: false where a part of the text would do."""
        if not len(self.valid.ids):
            return {}
        return {"valid_bits_per_byte": bits_per_byte(model, self.valid)}


REACHED = 0.95  # of a text; if rows reach less, that is told


def _expect_a_row(source, name, tokens, model=None):
    """Raises NanoEulerError for fewer tokens than a row needs: that of a model to train, or any to validate on."""
    if tokens < (least := model.context + model.predict if model else 2):
        why = f", {model.context} of --context and {model.predict} of --predict" if model else ""
        raise NanoEulerError(f"{source}: {name} part has {tokens} tokens, expected at least {least}{why}")


def _entropy(ids):
    """Return the entropy of the frequencies of these tokens, in nats per token."""
    counts = np.bincount(ids)
    shares = counts[counts > 0] / len(ids)
    return float(-(shares * np.log(shares)).sum())


def _rows_of(train):
    """Rows of a step."""
    return train.batch * train.accumulate


def fingerprint(ids: np.ndarray) -> str:
    """A short string that tells one sequence of token ids from another."""
    return f"{len(ids)}-{zlib.crc32(np.ascontiguousarray(ids, '<i8')):08x}"


COUNTED = 1 << 16  # the frequencies are counted over so many tokens at the beginning
SAMPLE = 500_000  # tokens of all validation sets together that a validation between whole ones scores
ROWS = 16  # of validation that go through the model at a time


class ShardDataset(Dataset):
    """What a run learns from and is measured on: shards, read in windows of the model's context.

    Has the members of `datasets.TextDataset`. A row is a window of `context` tokens, wherever documents begin in it. An
    epoch is windows that follow one another, each once, in an order that it draws, from a place near the beginning that
    it draws too, so that other tokens begin a window the next time: all tokens but two windows' at most. Both come from
    the seed and the epoch's number alone. Step s takes rows s B to (s+1) B of the epochs in turn, so a run that goes on
    has to know its step and nothing else. The order takes 4 bytes a window.

    valid: shards to validate on, each reported by the name of its folder; None: the last `valid_fraction` of the
    tokens, from a document's beginning on if one is near, which are then not trained on. Every token of them is scored
    in consecutive windows, or a sample of windows at equal distances (`validation`).
    Raises NanoEulerError when a part is too short for a row, when two validation sets have one name, and when one was
    tokenized with another vocabulary.
    """

    def __init__(self, shards: Shards, valid: Sequence[Shards] | None, state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        source = state.info.get("source", shards.path)
        for other in valid or ():
            if other.vocabulary != shards.vocabulary:
                raise NanoEulerError(
                    f"{other.path}: was tokenized with another tokenizer, expected that of {shards.path}"
                )
        if valid is None and self.train.valid_fraction == 0:
            self.part, self.valid = Part(shards, 0, shards.tokens), {}
        elif valid is None:
            self.part, held_out = _split_shards(shards, self.train.valid_fraction, state.info.get("split"))
            self.valid = {"valid": held_out}
        else:
            self.part = Part(shards, 0, shards.tokens)
            self.valid = {other.name: Part(other, 0, other.tokens) for other in valid}
            if len(self.valid) < len(valid):
                raise NanoEulerError(
                    f"--valid is {', '.join(other.name for other in valid)}, expected folders of different names"
                )
        _expect_a_row(source, "training", self.part.tokens, self.model)
        for part in self.valid.values():
            _expect_a_row(source if valid is None else part.shards.path, "validation", part.tokens)
        self.tokens, self.row_tokens = self.part.tokens, self.model.context
        self.windows = max(1, (self.tokens - self.model.predict) // self.row_tokens - 1)
        self.reach, self.unit = 1.0, "tokens"
        # the last two epochs: where each begins, and the order of its windows
        self.epochs: dict[int, tuple[int, np.ndarray]] = {}
        self.sizes = {"train_tokens": self.tokens, "valid_tokens": sum(p.tokens for p in self.valid.values())}
        self.sampled = self.sizes["valid_tokens"] > SAMPLE
        self.frequencies = _entropy(self.part.read(0, min(self.tokens, COUNTED)))
        self.fingerprint = _fingerprint_of_shards(self.part)
        self.valid_fingerprint = "+".join(map(_fingerprint_of_shards, self.valid.values()))
        marks = self.part.marks()
        held_out = np.concatenate([marks[:0], *(part.marks() for part in self.valid.values())])
        self.warnings = document_warnings(
            len(marks), len(np.unique(marks)), len(held_out), int(np.isin(held_out, marks).sum())
        )

    def epoch(self, number: int) -> tuple[int, np.ndarray]:
        """Where the windows of an epoch begin, and their order [windows]."""
        if number not in self.epochs:
            rng = np.random.default_rng([self.train.seed, number])
            spare = self.tokens - self.model.predict - self.windows * self.row_tokens
            begin = int(rng.integers(spare + 1))
            rng.shuffle(order := np.arange(self.windows, dtype=np.uint32))
            for old in [one for one in self.epochs if abs(one - number) > 1]:
                del self.epochs[old]
            self.epochs[number] = begin, order
        return self.epochs[number]

    def batch(self, step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K] of step 0, 1, ..."""
        time, predict = self.model.context, self.model.predict
        windows = np.empty((rows, time + predict), np.int64)
        for row in range(rows):
            number, place = divmod(step * rows + row, self.windows)
            begin, order = self.epoch(number)
            start = begin + int(order[place]) * time
            windows[row] = self.part.read(start, start + time + predict)
        targets = np.stack([windows[:, 1 + k : 1 + k + time] for k in range(predict)], axis=-1)
        return windows[:, :time], targets

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """For the log: bits per byte of all validation sets together, and of each by its name if there are several.

        whole: score every token; else windows at equal distances, `SAMPLE` tokens of all sets, and say their share.
        """
        if not self.valid:
            return {}
        rows_each, sets = math.inf if whole else SAMPLE // self.row_tokens // len(self.valid), {}
        for name, part in self.valid.items():
            rows = -(-(part.tokens - 1) // self.row_tokens)
            chosen = np.linspace(0, rows - 1, max(1, int(min(rows, rows_each)))).round().astype(np.int64)
            sets[name] = self._scored(model, part, chosen)
        bits, size, tokens = map(sum, zip(*sets.values(), strict=True))
        entry = {"valid_bits_per_byte": bits / max(1, size)}
        if len(sets) > 1:
            entry["valid_sets"] = {name: bits / max(1, size) for name, (bits, size, _) in sets.items()}
        if (share := tokens / (self.sizes["valid_tokens"] - len(sets))) < 1:
            entry["valid_share"] = round(share, 4)
        return entry

    def seen(self, steps: int) -> float:
        """Share of the training tokens that windows of the first so many steps have held."""
        return min(steps * _rows_of(self.train), self.windows) * self.row_tokens / self.tokens

    def _scored(self, model, part, chosen):
        """The bits that head 0 needs for the windows of these numbers, their bytes and their tokens."""
        time, nats, size, count = self.row_tokens, 0.0, 0, 0
        rows = min(ROWS, len(chosen))
        for first in range(0, len(chosen), rows):
            starts = [int(window) * time for window in chosen[first : first + rows]]
            windows = [part.read(start, min(start + time + 1, part.tokens)) for start in starts]
            inputs, targets = data.window_rows(windows, time, rows)
            scored = targets[targets >= 0]
            size, count = size + int(self.tokenizer.token_lengths[scored].sum()), count + len(scored)
            nats += nats_of(model, [(inputs, targets)])
        return nats / math.log(2), size, count


def _split_shards(shards, fraction, rule):
    """A part to train on and one to validate on: the last documents, which hold about this share of the tokens.

    By the rule SPLIT a document is cut where none begins within half the share.
    """
    cut = round(shards.tokens * (1 - fraction))
    number = min(int(np.searchsorted(shards.starts, cut)), shards.documents - 1)
    for at in map(int, shards.starts[[number, number - 1]]):
        if rule != SPLIT or abs(at - cut) <= (shards.tokens - cut) / 2:
            return Part(shards, 0, at + 1), Part(shards, at, shards.tokens)
    return Part(shards, 0, cut), Part(shards, cut, shards.tokens)


def _fingerprint_of_shards(part):
    """A short string that tells the tokens of a part from others: by the digests of its shards."""
    return f"{part.tokens}-{sha256(f'{part.shards.digest} {part.start}'.encode()).hexdigest()[:16]}"


def parted(items: list, source: str | Path, seed: int, fraction: float) -> tuple[list, list]:
    """What a file held, shuffled: to train on, and this share, at least one, held out."""
    if len(items) < 2:
        raise NanoEulerError(f"{source}: holds 1 example, expected two or more: some are held out")
    Random(seed).shuffle(items)
    cut = len(items) - max(1, round(len(items) * fraction))
    return items[:cut], items[cut:]


MEASURABLE = 8  # with fewer examples held out, validation says little


class SFTDataset(Dataset):
    """Examples to learn from and to be measured on, laid into rows of about the same length.

    examples: to train on; held_out: to validate on. The info "turns" of the run says what becomes of turns that do not
    fit into the context (`text.sft_data.encode_all`; absent: "first", the turns that fit into one row). `sizes` counts
    what is left, `warnings` says what is not. Raises NanoEulerError when a part has nothing left, and when the second
    has lost more than half and is too small to measure by.
    """

    sampled, unit = False, "reply tokens"

    def __init__(self, examples: Iterable[Example], held_out: Iterable[Example], state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        self.template, self.turns = state.info["template"], state.info.get("turns", "first")
        examples, held_out, self.warnings = list(examples), list(held_out), []
        self.source = one_line(state.info.get("source", "examples"), 200)
        self.part, count, self.reach = self._fitting(examples, "training", 1)
        self.valid, held, _ = self._fitting(held_out, "validation", min(MEASURABLE, -(-len(held_out) // 2)))
        self.order = np.argsort([len(e.ids) for e in self.part], kind="stable")  # by length
        self.tokens = sum(len(e.ids) for e in self.part)
        self.row_tokens = self.tokens / len(self.part)
        self.sizes = {"train_examples": count, "valid_examples": held}
        if count < len(self.part):
            self.sizes |= {"train_rows": len(self.part)}
        replies = np.array([e.counted.sum() for e in self.part])
        self.share = self.reach * replies / replies.sum()  # of the reply tokens, in each row
        self.drawn, self.done = np.zeros(len(self.part), bool), 0
        self.fingerprint, self.valid_fingerprint = (
            fingerprint(np.concatenate([np.where(e.counted, ~e.ids, e.ids) for e in part]))
            for part in (self.part, self.valid)
        )
        prompts = (turn for e in held_out for turn in (e[:1] if self.turns == "first" else e))
        most = self.model.context + 1
        fits = lambda turn: encode([turn], self.tokenizer, most - (not turn[1])).counted.any()
        # a chat takes a prompt that leaves room for a reply
        self.prompt = next((turn[0] for turn in prompts if fits(turn)), held_out[0][0][0])
        said = [reply for example in examples for _, reply in example]
        if empty := sum(not reply.strip() for reply in said):
            self.warnings.append(
                f"{empty:,} of {len(said):,} training replies are empty: from them a model learns to say nothing"
            )
        self._warn_of_examples()

    def _warn_of_examples(self):
        """Copies, and too few examples to validate on."""
        if copies := len(self.part) - len({e.ids.tobytes() for e in self.part}):
            self.warnings.append(f"{copies} of {len(self.part)} training examples stand there more than once")
        if len(self.valid) < MEASURABLE:
            self.warnings.append(
                f"validation rests on {len(self.valid)} examples, which say little: hold out more (--valid-fraction)"
            )

    def _fitting(self, examples, name, least):
        """The rows of the examples that fit the context, how many these are, and the share of reply tokens in them.

        Says how many do not fit, and refuses when fewer than `least` do.
        """
        context = self.model.context
        encoded = [self._encoded(example) for example in examples]
        fitting = [e for e in encoded if e]
        fits = f"{len(fitting)} of {len(encoded)} {name} examples fit in {context} tokens"
        if len(fitting) < max(least, 1):
            raise NanoEulerError(
                f"{self.source}: {fits}, expected at least {max(least, 1)}: take a base model of a longer context "
                "(--base), shorter examples, or more of them"
            )
        if len(fitting) < len(encoded):
            self.warnings.append(f"{fits}; the others are left out. A base model of a longer context takes more")
        kept = lost = turns = short = 0
        for example, found in zip(examples, encoded):
            kept += sum(int(e.counted.sum()) for e in found)
            missing = 0 if found and self.turns == "last" else len(example) - sum(map(replies, found))
            if missing:
                every = encode(example if self.turns != "last" else example[-1:], self.tokenizer)
                lost += int(every.counted.sum()) - sum(int(e.counted.sum()) for e in found)
                turns, short = turns + missing * bool(found), short + bool(found)
        if (further := sum(map(len, fitting)) - len(fitting)) and least == 1:
            self.warnings.append(
                f"later turns of training examples that do not fit in {context} tokens make {further:,} further rows, "
                "in which the turns before them are forgotten"
            )
        if turns:
            self.warnings.append(
                f"{turns:,} later turns of {short:,} {name} examples do not fit in {context} tokens and are left out: "
                f"{percent(kept / (kept + lost))} of the reply tokens are {'learnt from' if least == 1 else 'scored'}"
            )
        return [e for found in fitting for e in found], len(fitting), kept / (kept + lost)

    def _encoded(self, example):
        """The rows of an example that has a reply which fits, else none."""
        most = self.model.context + 1
        if self.turns != "first":
            return encode_all(example, self.tokenizer, most, self.turns)
        return [one] if (one := encode(example, self.tokenizer, most)).counted.any() else []

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs [B, T] and targets [B, T, K]: neighbours in the order of length, all nearly T tokens long.

        The neighbours begin anywhere and go on at the other end, so every example is drawn equally often.
        """
        start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
        chosen = [self.part[i] for i in np.take(self.order, range(start, start + rows_), mode="wrap")]
        return rows(chosen, row_length(chosen, self.model.context), self.model.predict)

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """What the log says of a validation, of all examples that are held out; nothing of replies without a byte."""
        if not any(self.tokenizer.token_lengths[e.ids[e.counted]].any() for e in self.valid):
            return {}
        return {"valid_bits_per_byte": self.bits_per_byte(model)}

    def seen(self, steps: int) -> float:
        """Share of all reply tokens that rows of the first so many steps have held. Steps may only grow."""
        for step in range(self.done, steps):
            start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
            some = np.take(self.order, range(start, start + _rows_of(self.train)), mode="wrap")
            self.drawn[some] = True
        self.done = steps
        return float(self.share[self.drawn].sum())

    def bits_per_byte(self, model: GPT) -> float:
        """Bits that head 0 needs for the held-out replies with their end markers, for each byte of a reply."""
        parts = []
        for start in range(0, len(self.valid), 16):
            some = self.valid[start : start + 16]
            inputs, targets = rows(some, row_length(some, self.model.context), 1)
            parts.append((inputs, targets[..., 0]))
        scored = np.concatenate([e.ids[e.counted] for e in self.valid])
        return nats_of(model, parts) / np.log(2) / max(1, int(self.tokenizer.token_lengths[scored].sum()))
