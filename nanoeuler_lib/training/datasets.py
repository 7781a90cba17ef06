"""Datasets: the training and validation data of a run, from a text, from shards on the disk, or from examples.

`preferences` has the dataset of pairs, `rewards` that of questions. All datasets have the same members (`Dataset`):

    batch         inputs and targets of a step
    validation    validation loss of a model, for the log; sample: a text for the log
    fingerprint   string that differs if the training data differ; valid_fingerprint: the same for validation data
    sizes         numbers of training and validation tokens (or examples), for run.json
    tokens        number of training tokens; row_tokens: average number per row (per pair, in the dataset of pairs)
    warnings      warnings to print before the first step
    sampled       whether most validations score only a sample, because there is so much validation data
    reach         fraction of the training data that rows can contain; unit: the unit in which the data is counted
    seen          fraction of the training data in the rows of the first n steps
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

# Number of the rule that holds out validation data; a run stores it as "split". Runs without it are older: they hold
# out the end of all texts joined together, from the beginning of a document on, however long that document is.
SPLIT = 2


def split_text(
    text: str | Sequence[str], valid_text: str | None, config: TrainConfig, rule: int | None = SPLIT
) -> tuple[str, str]:
    """Return the training text and the validation text of a run.

    valid_text None: hold out the last `config.valid_fraction` of each text. rule: how to cut; None: as older runs do.
    """
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
    """Compute the bits per byte of head 0 on a text, with every token scored once.

    `data.validation_rows` cuts the text; rows: how many rows the model scores at a time.
    """
    inputs, targets = data.validation_rows(tokens, model.config.context)
    plans = range(0, len(inputs), rows)
    nats = nats_of(model, ((inputs[i : i + rows], targets[i : i + rows]) for i in plans))
    scored = tokens.lengths[targets[targets >= 0]]
    return nats / math.log(2) / max(1, int(scored.sum()))


def nats_of(model: GPT, parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Sum the loss of head 0 in nats over parts, each inputs and targets [B, T].

    Targets of -1 do not count.
    """
    return sum(float(model.losses(inputs, targets).sum(dtype=np.float64)) for inputs, targets in parts)


class Dataset:
    """Base class of all datasets: default values and methods."""

    span = 1  # a run may only be saved every `span` steps
    together = 1  # number of consecutive rows that belong together: 2 for pairs
    figures: Sequence[str] = ()  # names in the log of a step's values after the loss; (): losses of the later heads
    frequencies = None  # entropy of the token frequencies, in nats per token; None if the data is not text
    prompt: str | None = None  # held-out prompt that samples reply to; None: samples start a new text
    measure = "valid_bits_per_byte"  # name of the validation loss, one of `monitor.MEASURES`

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Write this dataset's files in the folder of a new run, or read them when a run is resumed."""

    def sample(self, model: GPT, seed: int) -> str:
        """Generate a text for the log: the model's reply to `prompt`, or a new text if `prompt` is None."""
        if self.prompt is None:
            return generate(model, self.tokenizer, "", 100, seed=seed)
        return "".join(Chat(model, self.tokenizer).reply(self.prompt, 60, seed, temperature=0.0))


class TextDataset(Dataset):
    """Hold a tokenised text and draw rows of the model's context from it.

    part: training text; valid: validation text, or empty with `train.valid_fraction` 0. With `train.cut_documents`,
    long documents continue in further rows (`data.row_starts`). Raises NanoEulerError if a text is too short for a row.
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
                f"rows cover only {percent(self.reach)} of the {size} training tokens: use a smaller context or more "
                "text to cover more"
            )
        if data.SEPARATOR in part and self.part.starts is None:
            self.warnings.append(
                f"the tokenizer has no token {END_OF_TEXT}, so it splits the lines between documents into ordinary "
                "tokens"
            )

    def batch(self, step: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs [B, T] and targets [B, T, K] of a step (0, 1, ...); B is `rows`."""
        rng = np.random.default_rng([self.train.seed, step])
        return data.batch(self.part, rng, rows, self.model.context, self.model.predict, self.starts)

    def seen(self, steps: int) -> float:
        """Return the fraction of the tokens in the rows of the first `steps` steps; `steps` must never decrease."""
        for step in range(self.counted, steps):
            rng, last = np.random.default_rng([self.train.seed, step]), len(self.read) - self.window
            for at in data.draw(self.starts, last, rng, _rows_of(self.train)):
                self.read[at : at + self.window] = True
        self.counted = steps
        return float(self.read.mean())

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """Return the bits per byte of the validation text, for the log; `whole` makes no difference here."""
        if not len(self.valid.ids):
            return {}
        return {"valid_bits_per_byte": bits_per_byte(model, self.valid)}


REACHED = 0.95  # fraction of a text; a warning is given if rows cover less


def _expect_a_row(source, name, tokens, model=None):
    if tokens < (least := model.context + model.predict if model else 2):
        why = f" (--context {model.context} plus --predict {model.predict})" if model else ""
        raise NanoEulerError(f"{source}: {name} part must have at least {least} tokens{why}, got {tokens}")


def _entropy(ids):
    """Compute the entropy of the frequencies of these tokens, in nats per token."""
    counts = np.bincount(ids)
    shares = counts[counts > 0] / len(ids)
    return float(-(shares * np.log(shares)).sum())


def _rows_of(train):
    return train.batch * train.accumulate


def fingerprint(ids: np.ndarray) -> str:
    """Return the length and CRC-32 of token ids as a short string, to detect that the data has changed."""
    return f"{len(ids)}-{zlib.crc32(np.ascontiguousarray(ids, '<i8')):08x}"


COUNTED = 1 << 16  # token frequencies are counted over this many tokens at the start of the text
SAMPLE = 500_000  # tokens that a sampled validation scores, over all validation sets
ROWS = 16  # validation rows per forward pass


class ShardDataset(Dataset):
    """Read shards from the disk in windows of the model's context, for training and validation.

    A row is a window of `context` tokens; documents may begin anywhere in it. An epoch reads consecutive windows once
    each, in random order, from a random offset near the start, so windows are cut at different tokens in each epoch,
    and at most two windows' worth of tokens is left out. Offset and order depend only on the seed and the number of the
    epoch, and step s takes rows s B to (s+1) B of the sequence of epochs, so a resumed run needs only its step. The
    order takes 4 bytes per window. valid: shards to validate on, reported by the names of their folders; None: the last
    `valid_fraction` of the tokens, cut at the beginning of a document if one is near. Validation scores all their
    tokens in consecutive windows, or a sample of evenly spaced windows. Raises NanoEulerError if a part is too short
    for a row, or if validation sets have the same name or different tokenizers.
    """

    def __init__(self, shards: Shards, valid: Sequence[Shards] | None, state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        source = state.info.get("source", shards.path)
        for other in valid or ():
            if other.vocabulary != shards.vocabulary:
                raise NanoEulerError(
                    f"{other.path}: must have the tokenizer of {shards.path}, got shards of a different tokenizer"
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
                    f"--valid must name folders with different names, got {', '.join(other.name for other in valid)}"
                )
        _expect_a_row(source, "training", self.part.tokens, self.model)
        for part in self.valid.values():
            _expect_a_row(source if valid is None else part.shards.path, "validation", part.tokens)
        self.tokens, self.row_tokens = self.part.tokens, self.model.context
        self.windows = max(1, (self.tokens - self.model.predict) // self.row_tokens - 1)
        self.reach, self.unit = 1.0, "tokens"
        # number of each of the last two epochs -> its first token and the order of its windows
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
        """Return the first token of an epoch's windows, and the order in which they are read [windows]."""
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
        """Return inputs [B, T] and targets [B, T, K] of a step (0, 1, ...); B is `rows`."""
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
        """Return bits per byte over all validation sets, for the log, and for each set by name if there are several.

        whole: score all tokens, not only about `SAMPLE` in evenly spaced windows, whose fraction is "valid_share".
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
        """Return the fraction of the training tokens in the windows of the first `steps` steps."""
        return min(steps * _rows_of(self.train), self.windows) * self.row_tokens / self.tokens

    def _scored(self, model, part, chosen):
        """Score the windows with these numbers: the bits of head 0, the bytes and the tokens."""
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
    """Hold out the last documents, about this fraction of the tokens; under SPLIT, cut one if none begins nearby."""
    cut = round(shards.tokens * (1 - fraction))
    number = min(int(np.searchsorted(shards.starts, cut)), shards.documents - 1)
    for at in map(int, shards.starts[[number, number - 1]]):
        if rule != SPLIT or abs(at - cut) <= (shards.tokens - cut) / 2:
            return Part(shards, 0, at + 1), Part(shards, at, shards.tokens)
    return Part(shards, 0, cut), Part(shards, cut, shards.tokens)


def _fingerprint_of_shards(part):
    return f"{part.tokens}-{sha256(f'{part.shards.digest} {part.start}'.encode()).hexdigest()[:16]}"


def parted(items: list, source: str | Path, seed: int, fraction: float) -> tuple[list, list]:
    """Shuffle items in place and split them: training items, and this fraction, but at least one, held out.

    Raises NanoEulerError, with the name of the source, for fewer than two items.
    """
    if len(items) < 2:
        raise NanoEulerError(f"{source}: must have at least two examples, because some are held out, got 1")
    Random(seed).shuffle(items)
    cut = len(items) - max(1, round(len(items) * fraction))
    return items[:cut], items[cut:]


MEASURABLE = 8  # with fewer held-out examples, the validation loss is too noisy to be useful


class SFTDataset(Dataset):
    """Hold examples for fine-tuning, with batches whose rows have about the same length.

    The run's info "turns" selects how turns that do not fit into the context are treated (`sft_data.encode_all`;
    absent: "first", those that fit into one row). `sizes` counts the examples left. Raises NanoEulerError if no
    training example fits, or fewer than `MEASURABLE` held-out examples and less than half of them.
    """

    sampled, unit = False, "reply tokens"

    def __init__(self, examples: Iterable[Example], held_out: Iterable[Example], state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        self.template, self.turns = state.info["template"], state.info.get("turns", "first")
        examples, held_out, self.warnings = list(examples), list(held_out), []
        self.source = one_line(state.info.get("source", "examples"), 200)
        self.part, count, self.reach = self._fitting(examples, "training", 1)
        self.valid, held, _ = self._fitting(held_out, "validation", min(MEASURABLE, -(-len(held_out) // 2)))
        self.order = np.argsort([len(e.ids) for e in self.part], kind="stable")  # shortest first
        self.tokens = sum(len(e.ids) for e in self.part)
        self.row_tokens = self.tokens / len(self.part)
        self.sizes = {"train_examples": count, "valid_examples": held}
        if count < len(self.part):
            self.sizes |= {"train_rows": len(self.part)}
        replies = np.array([e.counted.sum() for e in self.part])
        self.share = self.reach * replies / replies.sum()  # of each row in all reply tokens
        self.drawn, self.done = np.zeros(len(self.part), bool), 0
        self.fingerprint, self.valid_fingerprint = (
            fingerprint(np.concatenate([np.where(e.counted, ~e.ids, e.ids) for e in part]))
            for part in (self.part, self.valid)
        )
        prompts = (turn for e in held_out for turn in (e[:1] if self.turns == "first" else e))
        most = self.model.context + 1
        fits = lambda turn: encode([turn], self.tokenizer, most - (not turn[1])).counted.any()
        # a chat accepts a prompt only if it leaves room for a reply
        self.prompt = next((turn[0] for turn in prompts if fits(turn)), held_out[0][0][0])
        said = [reply for example in examples for _, reply in example]
        if empty := sum(not reply.strip() for reply in said):
            self.warnings.append(
                f"{empty:,} of {len(said):,} training replies are empty: the model learns to give empty replies"
            )
        self._warn_of_examples()

    def _warn_of_examples(self):
        if copies := len(self.part) - len({e.ids.tobytes() for e in self.part}):
            self.warnings.append(f"{copies} of {len(self.part)} training examples are copies of earlier ones")
        if len(self.valid) < MEASURABLE:
            self.warnings.append(
                f"only {len(self.valid)} examples are held out, so the validation loss is noisy: hold out more "
                "(--valid-fraction)"
            )

    def _fitting(self, examples, name, least):
        """Return the rows of the examples that fit, the number of examples, and their fraction of reply tokens."""
        context = self.model.context
        encoded = [self._encoded(example) for example in examples]
        fitting = [e for e in encoded if e]
        fits = f"{len(fitting)} of {len(encoded)} {name} examples fit in {context} tokens"
        if len(fitting) < max(least, 1):
            raise NanoEulerError(
                f"{self.source}: {fits}, expected at least {max(least, 1)}: use a base model with a longer context "
                "(--base), shorter examples, or more of them"
            )
        if len(fitting) < len(encoded):
            self.warnings.append(
                f"{fits}; the others are left out: use a base model with a longer context to keep more"
            )
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
                "which do not contain the turns before them"
            )
        if turns:
            self.warnings.append(
                f"{turns:,} later turns of {short:,} {name} examples do not fit in {context} tokens and are left out: "
                f"{percent(kept / (kept + lost))} of the reply tokens are {'trained on' if least == 1 else 'scored'}"
            )
        return [e for found in fitting for e in found], len(fitting), kept / (kept + lost)

    def _encoded(self, example):
        """Return the rows of an example; none if no reply fits the context."""
        most = self.model.context + 1
        if self.turns != "first":
            return encode_all(example, self.tokenizer, most, self.turns)
        return [one] if (one := encode(example, self.tokenizer, most)).counted.any() else []

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs [B, T] and targets [B, T, K] of a step: examples adjacent in the order of their lengths.

        The first is drawn at random; the shortest follows the longest, so that all examples are equally likely.
        """
        start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
        chosen = [self.part[i] for i in np.take(self.order, range(start, start + rows_), mode="wrap")]
        return rows(chosen, row_length(chosen, self.model.context), self.model.predict)

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """Return the bits per byte of all held-out replies, for the log; nothing if the replies are empty."""
        if not any(self.tokenizer.token_lengths[e.ids[e.counted]].any() for e in self.valid):
            return {}
        return {"valid_bits_per_byte": self.bits_per_byte(model)}

    def seen(self, steps: int) -> float:
        """Return the fraction of all reply tokens in the first `steps` steps' rows; `steps` must never decrease."""
        for step in range(self.done, steps):
            start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
            some = np.take(self.order, range(start, start + _rows_of(self.train)), mode="wrap")
            self.drawn[some] = True
        self.done = steps
        return float(self.share[self.drawn].sum())

    def bits_per_byte(self, model: GPT) -> float:
        """Compute the bits of head 0 for the held-out replies and their end markers, per byte of reply."""
        parts = []
        for start in range(0, len(self.valid), 16):
            some = self.valid[start : start + 16]
            inputs, targets = rows(some, row_length(some, self.model.context), 1)
            parts.append((inputs, targets[..., 0]))
        scored = np.concatenate([e.ids[e.counted] for e in self.valid])
        return nats_of(model, parts) / np.log(2) / max(1, int(self.tokenizer.token_lengths[scored].sum()))
