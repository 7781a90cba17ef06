"""From a text file to batches of token ids.

A corpus is UTF-8 text. Documents in it (stories, books, articles) are separated by the line `<|endoftext|>`, which may
also stand before the first and behind the last; a file without that line is one document. The token stream has the
end-of-text id before each document and after the last: rows can then start with it, and the model learns where a
document begins and ends.
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
CUT = re.compile(r"(?<=[^>\s])[ \n](?=\w)")  # before it no word goes on, nor a separator or its line end


READABLE = ".txt", ".md", ".jsonl", ".parquet"  # the files of a folder that are read, also as .xz or .gz


def read_text(*paths: str | Path) -> str:
    """The text of files (`files_of`), one after another; each begins a document. Raises what `read_blocks` does."""
    files = (file for path in paths for file in files_of(path))
    return SEPARATOR.join(unix_separators("".join(read_blocks(file))) for file in files)


def files_of(path: str | Path) -> list[Path]:
    """The file itself; of a folder the texts directly in it (READABLE), by their names.

    Raises NanoEulerError for a folder without any.
    """
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
    """The text that `read_text` gives, in parts of about `size` characters, between which no word goes across.

    None of the parts but those that end a file ends in a separator, and none begins in one.
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
    """Count the words of files as `count_words` counts those of `read_text`, a part of them in memory at a time.

    Returns also the special tokens that divide them: the end of texts, if `end_of_text` or a separator stands there.
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
    """The text of a file, some `size` bytes at a time, of packed files unpacked (.xz, .gz).

    Of lines of JSON (.jsonl) and of parquet the texts under "text" are documents. Raises NanoEulerError if the file is
    missing, empty, or not UTF-8 text, where it comes to it.
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
        raise NanoEulerError(f"{path}: holds no text under text, expected one or more")


def _texts_of_pages(path):
    for number, page in enumerate(pages(path), 1):
        if fault := page.get("fault"):
            raise NanoEulerError(f"{path}: row {number} holds {fault}, expected text")
        yield page["text"] or ""


def _decoded(path, size):
    """The characters of a file of UTF-8, without the mark at its beginning."""
    path, decoder, before, blank = Path(path), codecs.getincrementaldecoder("utf-8")(), 0, True
    try:
        if path.is_char_device() or path.is_block_device():  # such as /dev/zero, which has no end
            raise NanoEulerError(f"{path}: is a device, expected a UTF-8 text file")
        with opened(path) as file:
            begin = file.read(4)
            block = without_mark(path, begin)
            before, block = len(begin) - len(block), block + file.read(size)
            while True:
                blank = blank and not block.strip()
                if b"\0" in block:
                    at = before + block.index(0)
                    raise NanoEulerError(f"{path}: byte {at} is NUL, expected UTF-8 text, not a binary file")
                pending = len(decoder.getstate()[0])  # bytes of a character that the last block has cut
                yield decoder.decode(block, final=not block)
                before += len(block)
                if not block:
                    break
                block = file.read(size)
    except NanoEulerError:
        raise
    except UnicodeDecodeError as error:
        byte, at = error.object[error.start], before - pending + error.start
        raise NanoEulerError(f"{path}: byte {at} is 0x{byte:02x}, expected UTF-8 text") from None
    except FileNotFoundError:
        raise NanoEulerError(f"{path}: no such file, expected a UTF-8 text file") from None
    except (OSError, ValueError, EOFError, *UNPACKING) as error:  # ValueError: a name with NUL
        reason = getattr(error, "strerror", None) or error
        raise NanoEulerError(f"{path}: cannot be read ({reason}), expected a UTF-8 text file") from None
    if blank:
        raise NanoEulerError(f"{path}: holds {before} bytes and no text, expected UTF-8 text")


def unix_separators(text: str) -> str:
    """The text with line feeds around the separators of a file from Windows; its other lines end as they did."""
    if "\r" not in text:
        return text
    text = re.sub(rf"^{re.escape(END_OF_TEXT)}\r$", END_OF_TEXT, text, flags=re.MULTILINE)
    return re.sub(rf"\r(?=\n{re.escape(END_OF_TEXT)}(\n|\Z))", "", text)


def without_outer_separators(text: str) -> str:
    """The text without separators before its first document and behind its last: there they separate nothing."""
    while text.startswith((SEPARATOR, SEPARATOR[1:])):
        text = text.removeprefix("\n").removeprefix(SEPARATOR[1:])
    while text.endswith((SEPARATOR, SEPARATOR[:-1])):
        text = text.removesuffix("\n").removesuffix(SEPARATOR[:-1])
    return text


def documents(text: str) -> list[str]:
    """The documents of a text; between separators that follow one another stands none."""
    return [found for part in without_outer_separators(text).split(SEPARATOR) if (found := document(part))]


def document(part: str) -> str:
    """The text between two separators, without further separators that share a line feed with the first."""
    part = without_leading_marks(part)
    return "" if part == END_OF_TEXT else part


def without_leading_marks(part: str) -> str:
    """The text without separators at its beginning that lack their first line feed."""
    while part.startswith(SEPARATOR[1:]):
        part = part.removeprefix(SEPARATOR[1:])
    return part


def split_text(text: str, valid_fraction: float) -> tuple[str, str]:
    """Training text and validation text: the last `valid_fraction`, moved to a document boundary if there are any."""
    text = without_outer_separators(text)
    cut = round(len(text) * (1 - valid_fraction))
    before, separator, after = text[cut:].partition(SEPARATOR)
    if separator:
        return text[:cut] + before, after
    before, separator, after = text.rpartition(SEPARATOR)
    if separator and valid_fraction > 0:  # the last document began before the cut: hold it out whole
        return before, after
    return text[:cut], text[cut:]


def hold_out(text: str, share: float) -> tuple[str, str]:
    """Training text and validation text: the end of a text, so much of it.

    The end is moved to a document boundary where one lies within half the share, so that documents stay whole.
    """
    text = without_outer_separators(text)
    cut = round(len(text) * (1 - share))
    for at in (text.find(SEPARATOR, cut), text.rfind(SEPARATOR, 0, cut + len(SEPARATOR) - 1)):
        if at >= 0 and abs(at - cut) <= (len(text) - cut) / 2:
            return text[:at], text[at + len(SEPARATOR) :]
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class Tokens:
    """A tokenised text.

    ids: [n] token ids; starts: positions in `ids` of the end-of-text tokens that stand before a document, or None
    for text without documents; lengths: [V] bytes of each token, 0 for special ones; cut: whether documents longer than
    a row go on in further rows (`row_starts`).
    """

    ids: np.ndarray
    starts: np.ndarray | None
    lengths: np.ndarray
    cut: bool = False

    @property
    def bytes(self) -> int:
        return int(self.lengths[self.ids].sum())


def tokenize(text: str, tokenizer: Tokenizer) -> Tokens:
    """Token stream of a text; see the module's first lines for where the end-of-text id stands."""
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
    """A random batch: inputs [B, T] and targets [B, T, K], where target k of position t is token t+1+k.

    Rows begin where `draw` says; starts: where they may, by default where documents do, or anywhere.
    """
    if len(tokens.ids) < time + predict:
        raise NanoEulerError(
            f"text has {len(tokens.ids)} tokens, expected at least {time + predict}: "
            f"a row of {time} and {predict} to predict"
        )
    starts = row_starts(tokens, time, predict) if starts is None else starts
    at = draw(starts, len(tokens.ids) - time - predict, rng, rows)
    windows = tokens.ids[at[:, None] + np.arange(time + predict)].astype(np.int64)  # [B, T + K]
    targets = np.stack([windows[:, 1 + k : 1 + k + time] for k in range(predict)], axis=-1)
    return windows[:, :time], targets


def draw(starts: np.ndarray | None, last: int, rng: np.random.Generator, rows: int) -> np.ndarray:
    """Where the rows of a batch begin [B]: at some of these starts, or, where there are none, anywhere from 0 to last.

    last: the last position where a whole row with its targets fits.
    """
    return rng.integers(0, last + 1, rows) if starts is None else starts[rng.integers(0, len(starts), rows)]


def starts_at_documents(tokens: Tokens, time: int) -> bool:
    """Whether rows begin at documents: there are some, and at least half of them fit into a row."""
    return tokens.starts is not None and float(np.median(np.diff(tokens.starts))) <= time


def row_starts(tokens: Tokens, time: int, predict: int) -> np.ndarray | None:
    """Where rows may begin [n], in order; None: anywhere, in a text without documents or with mostly longer ones.

    A row that begins at a document runs on into the next ones. With `tokens.cut`, a document that neither a row nor the
    last targets of its heads hold to its end goes on in further rows, each begun where the one before it ended, and a
    last row ends with the text. Without it nothing is drawn of what lies behind a row's length.
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
    """Inputs and head-0 targets [R, T] that score every token of a text exactly once.

    Documents that fit have a row of their own; other text is cut into consecutive windows. What exceeds a row of a
    longer document among shorter ones is cut into windows too (`tokens.cut`), or left out. Targets after the end are
    -1.
    """
    if tokens.starts is not None and starts_at_documents(tokens, time):
        ends = np.append(tokens.starts[1:], len(tokens.ids) - 1)  # of each document: its closing end-of-text
        spans = [
            (start, min(end + 1, start + time + 1))
            for first, end in zip(tokens.starts, ends)
            for start in range(first, end if tokens.cut else first + 1, time)
        ]
    else:
        spans = [(start, min(start + time + 1, len(tokens.ids))) for start in range(0, len(tokens.ids) - 1, time)]
    return window_rows([tokens.ids[start:end] for start, end in spans], time)


def window_rows(windows: Sequence[np.ndarray], time: int, rows: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and head-0 targets [R, T] of windows of up to T + 1 ids, one a row; other targets are -1.

    rows: R, where there may be fewer windows.
    """
    inputs = np.zeros((max(rows, len(windows)), time), np.int64)
    targets = np.full_like(inputs, -1)
    for row, ids in enumerate(windows):
        inputs[row, : len(ids) - 1], targets[row, : len(ids) - 1] = ids[:-1], ids[1:]
    return inputs, targets
