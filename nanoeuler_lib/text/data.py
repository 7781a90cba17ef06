"""Read text files, split them into documents, tokenize them and draw batches of token ids for training.

A corpus is UTF-8 text. Its documents (stories, books, articles) are separated by the line `<|endoftext|>`. This line
may also occur before the first and after the last document. A file without it is one document. The token stream has
the end-of-text id before each document and after the last one. So rows can start with this id, and the model learns
where a document begins and ends.
"""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import one_line
from nanoeuler_lib.text.sources import UNPACKING, form, json_texts, opened, pages, without_mark
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, count_words

SEPARATOR = f"\n{END_OF_TEXT}\n"
CUT = re.compile(r"(?<=[^>\s])[ \n](?=\w)")  # a cut here splits no word, separator or line end


READABLE = ".txt", ".md", ".jsonl", ".parquet"  # endings of the files in a folder that are read, also with .xz or .gz


def read_text(*paths: str | Path) -> str:
    """Return the text of files and folders, each file a new document. Raises as `files_of` and `read_blocks` do."""
    files = (file for path in paths for file in files_of(path))
    return SEPARATOR.join(unix_separators("".join(read_blocks(file))) for file in files)


def files_of(path: str | Path) -> list[Path]:
    """Return a file itself, or a folder's texts (READABLE) by name. Raises NanoEulerError for a folder without any."""
    if not os.path.isdir(path):
        return [Path(path)]
    there = sorted(file for file in Path(path).iterdir() if not file.name.startswith("."))
    if not (found := [file for file in there if form(file) in READABLE and not file.is_dir()]):
        names = one_line(", ".join(file.name for file in there), 100) or "nothing"
        raise NanoEulerError(
            f"{path}: a folder must hold texts ({', '.join(READABLE)}, also .xz or .gz) or shards.json, got {names}"
        )
    return found


def read_parts(*paths: str | Path, size: int = 1 << 21) -> Iterator[str]:
    """Yield the text of `read_text` in parts of about `size` characters that are cut between words.

    No separator is cut in two, except between two files: the last line feed of that separator begins the next part.
    """
    for number, path in enumerate(paths, 1):
        rest = "" if number == 1 else "\n"
        for block in read_blocks(path, size):
            rest += block
            if len(rest) >= size // 2 and (cut := CUT.search(rest, len(rest) - size // 8 - 1)):
                part, rest = rest[: cut.start()], rest[cut.start() :]
                yield unix_separators(part)
        yield unix_separators(rest) + ("" if number == len(paths) else SEPARATOR[:-1])


def count_file_words(*paths: str | Path, end_of_text: bool = False) -> tuple[Counter[str], tuple[str, ...]]:
    """Count the words of files, with only a part of the text in memory at a time.

    Returns the counts, as `count_words` gives them for the text of `read_text`, and the special tokens that separate
    documents: (END_OF_TEXT,) if `end_of_text` is true, there are several files, or a separator occurs; else ().
    """
    for special in ((END_OF_TEXT,), ()):
        words: Counter[str] = Counter()
        divided, named = end_of_text or len(paths) > 1, False
        for part in read_parts(*paths):
            words.update(count_words(part, special))
            divided, named = divided or SEPARATOR in part, named or END_OF_TEXT in part
        if divided or not named:
            return words, special if divided else ()
    return words, ()  # the marker occurs only inside lines, where it is ordinary text


def read_blocks(path: str | Path, size: int = 1 << 24) -> Iterator[str]:
    """Yield the text of a file in blocks of about `size` bytes; .xz and .gz files are decompressed.

    In .jsonl and .parquet files, each value under "text" is a document. Raises NanoEulerError if the file is missing,
    empty or not UTF-8 text, but only when the reading comes to that point.
    """
    if form(path) == ".parquet":
        texts = _texts_of_pages(path)
    elif form(path) == ".jsonl":
        texts = json_texts(path, _decoded(path, size))
    else:
        yield from _decoded(path, size)
        return
    first = True
    for text in texts:
        if text.strip():
            yield text if first else SEPARATOR + text
            first = False
    if first:
        raise NanoEulerError(f'{path}: must hold at least one text under "text", got none')


def _texts_of_pages(path):
    for number, page in enumerate(pages(path), 1):
        if fault := page.get("fault"):
            raise NanoEulerError(f"{path}: row {number} must be text, got {fault}")
        yield page["text"] or ""


def _decoded(path, size):
    """Yield the characters of a UTF-8 file, without a byte-order mark at its start."""
    path, decoder, before, blank = Path(path), codecs.getincrementaldecoder("utf-8")(), 0, True
    try:
        if path.is_char_device() or path.is_block_device():  # such as /dev/zero, which has no end
            raise NanoEulerError(f"{path}: must be a UTF-8 text file, got a device")
        with opened(path) as file:
            begin = file.read(4)
            block = without_mark(path, begin)
            before, block = len(begin) - len(block), block + file.read(size)
            while True:
                blank = blank and not block.strip()
                if b"\0" in block:
                    at = before + block.index(0)
                    raise NanoEulerError(f"{path}: must be UTF-8 text, got NUL at byte {at}: is it a binary file?")
                pending = len(decoder.getstate()[0])  # bytes of a character that is split between two blocks
                yield decoder.decode(block, final=not block)
                before += len(block)
                if not block:
                    break
                block = file.read(size)
    except NanoEulerError:
        raise
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], before - pending + error.start
        raise NanoEulerError(f"{path}: must be UTF-8 text, got 0x{byte:02x} at byte {at}") from None
    except FileNotFoundError:
        raise NanoEulerError(f"{path}: no such file, expected a UTF-8 text file") from None
    except (OSError, ValueError, EOFError, *UNPACKING) as error:  # ValueError: a name with NUL
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(f"{path}: cannot be read ({reason}), expected a UTF-8 text file") from None
    if blank:
        raise NanoEulerError(f"{path}: must hold UTF-8 text, got {before} bytes without text")


def unix_separators(text: str) -> str:
    """Replace Windows line ends around separators by line feeds; all other line ends stay as they are."""
    if "\r" not in text:
        return text
    text = re.sub(rf"^{re.escape(END_OF_TEXT)}\r$", END_OF_TEXT, text, flags=re.MULTILINE)
    return re.sub(rf"\r(?=\n{re.escape(END_OF_TEXT)}(\n|\Z))", "", text)


def without_outer_separators(text: str) -> str:
    """Remove separators before the first and after the last document of a text."""
    while text.startswith((SEPARATOR, SEPARATOR[1:])):
        text = text.removeprefix("\n").removeprefix(SEPARATOR[1:])
    while text.endswith((SEPARATOR, SEPARATOR[:-1])):
        text = text.removesuffix("\n").removesuffix(SEPARATOR[:-1])
    return text


def documents(text: str) -> list[str]:
    """Split a text into its documents at the separators. Empty documents are left out."""
    return [found for part in without_outer_separators(text).split(SEPARATOR) if (found := document(part))]


def document(part: str) -> str:
    """Return the document in a part of a split, or "", without separators that remain because they share line feeds."""
    part = without_leading_marks(part)
    return "" if part == END_OF_TEXT else part


def without_leading_marks(part: str) -> str:
    """Remove separators without their first line feed from the start of a text."""
    while part.startswith(SEPARATOR[1:]):
        part = part.removeprefix(SEPARATOR[1:])
    return part


def split_text(text: str, valid_fraction: float) -> tuple[str, str]:
    """Split a text into training and validation text; the last `valid_fraction` of its characters is for validation.

    The cut is moved to the next document boundary, or to the last boundary before it if no boundary follows.
    """
    text = without_outer_separators(text)
    cut = round(len(text) * (1 - valid_fraction))
    before, separator, after = text[cut:].partition(SEPARATOR)
    if separator:
        return text[:cut] + before, after
    before, separator, after = text.rpartition(SEPARATOR)
    if separator and valid_fraction > 0:  # the cut is inside the last document: use all of it for validation
        return before, after
    return text[:cut], text[cut:]


def hold_out(text: str, share: float) -> tuple[str, str]:
    """Split a text into training and validation text; about the last fraction `share` of it is for validation.

    The cut is moved to a document boundary, so that documents stay complete, if one is at most half the size of the
    validation text away.
    """
    text = without_outer_separators(text)
    cut = round(len(text) * (1 - share))
    for at in (text.find(SEPARATOR, cut), text.rfind(SEPARATOR, 0, cut + len(SEPARATOR) - 1)):
        if at >= 0 and abs(at - cut) <= (len(text) - cut) / 2:
            return text[:at], text[at + len(SEPARATOR) :]
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class Tokens:
    """Hold a tokenized text.

    ids: token ids [n]; starts: positions in `ids` of the end-of-text tokens before the documents, or None for a text
    without documents; lengths: bytes of each token [V], 0 for special tokens; cut: whether documents longer than a row
    continue in further rows (`row_starts`).
    """

    ids: np.ndarray
    starts: np.ndarray | None
    lengths: np.ndarray
    cut: bool = False

    @property
    def bytes(self) -> int:
        """Number of bytes of text; special tokens have none."""
        return int(self.lengths[self.ids].sum())


def tokenize(text: str, tokenizer: Tokenizer) -> Tokens:
    """Convert a text to its token stream, with the end-of-text id before each document and after the last one.

    A text of a single document gets no end-of-text id, nor does any text if the tokenizer has no such token.
    """
    lengths, texts = np.asarray(tokenizer.token_lengths), documents(text)
    if len(texts) < 2 or END_OF_TEXT not in tokenizer.special_tokens:
        return Tokens(np.asarray(tokenizer.encode(without_outer_separators(text))), None, lengths)
    end = np.array([tokenizer.special_tokens[END_OF_TEXT]])
    pieces = [np.asarray(tokenizer.encode(text)) for text in texts]
    starts = np.concatenate([[0], np.cumsum([1 + len(piece) for piece in pieces])[:-1]])
    ids = np.concatenate([part for piece in pieces for part in (end, piece)] + [end])
    return Tokens(ids.astype(pieces[0].dtype), starts, lengths)


def batch(
    tokens: Tokens, rng: np.random.Generator, rows: int, time: int, predict: int, starts: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a random batch: inputs [B, T] and targets [B, T, K], where target k of position t is token t+1+k.

    rows, time, predict: B, T and K; starts: positions where rows may begin, by default those of `row_starts`.
    Raises NanoEulerError if the text has fewer than T + K tokens.
    """
    if len(tokens.ids) < time + predict:
        raise NanoEulerError(
            f"text must have at least {time + predict} tokens, {time} for a row and {predict} to predict, "
            f"got {len(tokens.ids)}"
        )
    starts = row_starts(tokens, time, predict) if starts is None else starts
    at = draw(starts, len(tokens.ids) - time - predict, rng, rows)
    windows = tokens.ids[at[:, None] + np.arange(time + predict)].astype(np.int64)  # [B, T + K]
    targets = np.stack([windows[:, 1 + k : 1 + k + time] for k in range(predict)], axis=-1)
    return windows[:, :time], targets


def draw(starts: np.ndarray | None, last: int, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Draw start positions [B] from `starts`, or if None from 0 to `last`, the last place where a complete row fits."""
    return rng.integers(0, last + 1, rows) if starts is None else starts[rng.integers(0, len(starts), rows)]


def starts_at_documents(tokens: Tokens, time: int) -> bool:
    """Return whether rows begin at documents: whether there are documents and at least half of them fit into a row."""
    return tokens.starts is not None and float(np.median(np.diff(tokens.starts))) <= time


def row_starts(tokens: Tokens, time: int, predict: int) -> np.ndarray | None:
    """Return the sorted positions where rows may begin, [n], or None if they may begin anywhere.

    The result is None for a text without documents, and if most documents are longer than a row. Otherwise rows begin
    at documents, and a row that is longer than its document continues into the next ones. With `tokens.cut`, a document
    of at least T + K tokens gets further rows, each starting where the one before it ended; the last row ends with the
    text. Without `tokens.cut`, training never uses what such a document has after its first row.
    """
    if tokens.starts is None or not starts_at_documents(tokens, time):
        return None
    starts, last = tokens.starts, len(tokens.ids) - time - predict
    if tokens.cut:
        lengths = np.diff(np.append(starts, len(tokens.ids) - 1))
        pieces = np.where(lengths < time + predict, 1, -(-lengths // time))
        number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # 0, 1, ... of each
        if number.any():
            starts = np.unique(np.minimum(np.repeat(starts, pieces) + time * number, max(last, 0)))
    return starts[: np.searchsorted(starts, last, side="right")]


def validation_rows(tokens: Tokens, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and head-0 targets [R, T] for validation, so that every token is scored exactly once.

    If rows begin at documents (`starts_at_documents`), each document has its own row; the part of a longer document
    that exceeds the row is cut into further rows with `tokens.cut`, and left out without it. Any other text is cut into
    consecutive windows. Targets after the end of a row's text are -1.
    """
    if tokens.starts is not None and starts_at_documents(tokens, time):
        ends = np.append(tokens.starts[1:], len(tokens.ids) - 1)  # for each document, the end-of-text after it
        spans = [
            (start, min(end + 1, start + time + 1))
            for first, end in zip(tokens.starts, ends)
            for start in range(first, end if tokens.cut else first + 1, time)
        ]
    else:
        spans = [(start, min(start + time + 1, len(tokens.ids))) for start in range(0, len(tokens.ids) - 1, time)]
    return window_rows([tokens.ids[start:end] for start, end in spans], time)


def window_rows(windows: Sequence[np.ndarray], time: int, rows: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and head-0 targets [R, T] for windows of up to T + 1 ids, one per row; other targets are -1.

    rows: smallest R; rows without a window have only targets of -1.
    """
    inputs = np.zeros((max(rows, len(windows)), time), np.int64)
    targets = np.full_like(inputs, -1)
    for row, ids in enumerate(windows):
        inputs[row, : len(ids) - 1], targets[row, : len(ids) - 1] = ids[:-1], ids[1:]
    return inputs, targets
