"""Measure a text under a model in bits per byte, and write an HTML page that marks its high-loss tokens."""

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import escaped, html_page
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import Tokenizer

SHOWN = 50_000  # maximum number of tokens on a page
LEVELS = 2, 4, 7, 11  # tokens are marked from 2 bits on, and more strongly at each further level


@dataclass(frozen=True)
class Scored:
    """Hold a scored text: token ids [n], the bits [n] of each, and the text's number of bytes and documents."""

    ids: np.ndarray
    bits: np.ndarray
    bytes: int
    documents: int

    @property
    def bits_per_byte(self) -> float:
        """Bits of all tokens divided by the bytes of the text."""
        return float(self.bits.sum() / self.bytes)

    @property
    def bits_per_token(self) -> float:
        """Mean bits per token."""
        return float(self.bits.mean())


def score(
    model: GPT, tokenizer: Tokenizer, text: str, rows: int = 8, follow: Callable[[Iterable], Iterable] = iter
) -> Scored:
    """Measure how many bits head 0 needs for each token of a text; every token is scored once.

    Each document is preceded by the token that begins a document, if the tokenizer has one; if there are several, the
    end of each is scored too. Documents longer than the context are read in windows that overlap by half, so at least
    half a context, or all of the document so far, precedes every token. So documents that fit into the context have a
    run's validation loss, and longer ones a slightly lower loss. rows: windows per batch; follow: receives the iterable
    of batches, to show progress. Raises NanoEulerError if the text has no token to score.
    """
    time, begin, end = model.config.context, tokenizer.begin, tokenizer.end
    texts = data.documents(text) if end is not None else [data.without_outer_separators(text)]
    before = [np.array([begin])] if begin is not None else []
    closing = [np.array([end])] if len(texts) > 1 else []
    streams = [np.concatenate([*before, tokenizer.encode(one), *closing]).astype(np.int64) for one in texts]
    windows = [window for number, ids in enumerate(streams) for window in _windows(number, len(ids), time)]
    if not windows:
        raise NanoEulerError(f"the text must have at least 2 tokens, got {sum(map(len, streams))}")
    bits = [np.zeros(len(ids)) for ids in streams]
    for at in follow(range(0, len(windows), rows)):
        some = windows[at : at + rows]
        inputs, targets = data.window_rows([streams[number][start:stop] for number, start, _, stop in some], time)
        for row, (_, start, first, _) in enumerate(some):
            targets[row, : first - start - 1] = -1  # the previous window has scored these
        nats = model.losses(inputs, targets)
        for row, (number, start, first, stop) in enumerate(some):
            bits[number][first:stop] = nats[row, first - start - 1 : stop - start - 1] / math.log(2)
    ids, bits = (np.concatenate([one[1:] for one in parts]) for parts in (streams, bits))
    size = int(np.asarray(tokenizer.token_lengths)[ids].sum())
    return Scored(ids, bits, size, len(texts))


def _windows(number, length, time):
    """Yield the windows of a document: (its number, start of the window, first token to score, end of the window)."""
    first, stop = 1, min(length, time + 1)
    while first < length:
        yield number, max(0, stop - time - 1), first, stop
        first, stop = stop, min(length, stop + max(1, time // 2))


STYLE = """\
div { white-space: pre-wrap; overflow-wrap: anywhere }
.b1 { background: #e6a80033 } .b2 { background: #e6a80077 }
.b3 { background: #e0600088 } .b4 { background: #d0200099 }
hr { border: 0; border-top: 1px solid }"""
BODY = """<p>{facts}</p>
<p>A mark says what a token costs: <span class="b1">from 2 bits</span> <span class="b2">4</span>
<span class="b3">7</span> <span class="b4">11</span>. Point at one for its number.{cut}</p>
<div>{text}</div>"""


def page(scored: Scored, tokenizer: Tokenizer, title: str, facts: str) -> str:
    """Return an HTML page that marks the high-loss tokens among a text's first `SHOWN`; title, facts: plain text."""
    parts, characters, pending = [], codecs.getincrementaldecoder("utf-8")("replace"), 0.0
    for token, bits in zip(scored.ids[:SHOWN].tolist(), scored.bits[:SHOWN].tolist()):
        pending += bits
        if token == tokenizer.end:
            piece, end = (characters.decode(b"", final=True), f'<hr title="end of the document, {bits:.1f} bits">')
        else:
            piece, end = characters.decode(tokenizer.token_bytes[token]), ""
        if piece:  # tokens that form one character are marked together
            level = sum(pending >= least for least in LEVELS)
            shown = escaped(piece)
            parts.append(f'<span class="b{level}" title="{pending:.1f} bits">{shown}</span>' if level else shown)
        if piece or end:
            pending = 0.0
        parts.append(end)
    cut = f" The first {SHOWN:,} of {len(scored.ids):,} tokens are shown." if len(scored.ids) > SHOWN else ""
    return html_page(title, STYLE, BODY.format(facts=escaped(facts), cut=cut, text="".join(parts)))
