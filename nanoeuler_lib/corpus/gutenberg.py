"""Extract a book from a Project Gutenberg file: remove the header, licence and credits around it.

The format of these files has changed many times since 1991. A file may have a start marker, the "Small Print!" of the
1990s, or neither; an end marker, only a licence, or nothing. It is in UTF-8 or cp1252, with any line ends, and a marker
may be broken over lines or joined to the text. Markers, and sentences that do not occur in novels, determine what is
removed. If sentences of the licence are left after that, the file has an unknown format and is refused.
"""

import re
import unicodedata
from dataclasses import dataclass

from nanoeuler_lib.errors import NanoEulerError, short


def _pattern(text: str, flags: int = 0) -> re.Pattern:
    """Compile a pattern that ignores case; a space in it matches any white space, since lines may break anywhere."""
    return re.compile(text.replace(" ", r"\s+"), re.IGNORECASE | flags)


OF_GUTENBERG = r"\s*OF\s*(?:TH(?:E|IS)\s*)?PROJECT\s*GUTENBERG"
# A match starts at the first star of a run and never gives stars back (++), so the time is linear in the run's length.
# The stars must be in the marker's own line; a line of stars above it belongs to the book.
STARS = r"(?<!\*)\*++[^\S\n]*+"
START = _pattern(rf"{STARS}START{OF_GUTENBERG}")
END = _pattern(
    rf"{STARS}END{OF_GUTENBERG}|^[^\S\n]*+(?:{STARS})?+(?:THIS IS )?(?:THE )?END{OF_GUTENBERG}", re.MULTILINE
)
SMALL_PRINT = _pattern(r"^.*\*\s*START\s*\**\s*THE SMALL PRINT!?.*\n", re.MULTILINE)
SMALL_PRINT_ENDS = _pattern(
    r"\*\s*END\s*\**\s*THE SMALL PRINT!?(?:[^\n]*+\n){0,2}?[^\n]*\*\s*END\s*\*+[^\n]*\n?|"
    r"\*\s*END\s*\**\s*THE SMALL PRINT!?[^\n]*\n?"
)

# In a book without an end marker, the licence begins with one of these. A book that still has LEFT_OVER is refused.
LICENCE = _pattern(
    rf"(?:{STARS})?+(?:START\s*+\**+:?+\s*+(?:THE SMALL PRINT|FULL LICENSE)|THE FULL PROJECT GUTENBERG|"
    r"Updated editions will replace the previous one|Creating the works from (?:public domain )?print editions|"
    r"This file should be named \S+\.(?:txt|zip)|This and all associated files of various formats will be found|"
    r"A Word from Project Gutenberg|(?:Section 1\. )?General Terms of Use (?:and|&) Redistributing Project)|"
    r"^[^\w\n]*+The Legal Small Print[^\w\n]*+$", re.MULTILINE,
)  # fmt: skip
# These words may also occur in a book, so they begin a licence only at the start of a paragraph, with more of it near.
DOUBTFUL = _pattern(r"\W*(?:Updated|Creating)")
OF_A_LICENCE = _pattern(r"Project Gutenberg|electronic works")
LEFT_OVER = _pattern(
    r"Project Gutenberg\s*(?:-?tm|™|\(TM\)|Licen[sc]e|Literary Archive|Association|E-?text|E-?book)|THE SMALL PRINT!|"
    r"START\s*+\**+:?+\s*+FULL LICENSE|gutenberg\.(?:org|net)/licen[sc]e|almost no restrictions whatsoever"
)

# Paragraphs at the top of a file: a header without a start marker, and the names of the transcribers.
HEADER = _pattern(
    r"Project Gutenberg|^\W*(?:Title|Author|Translator|Illustrator|Editor|Contributor|Posting Date|Release Date|"
    r"Last Updated|Most recently updated|Edition|Language|Credits|Character set encoding|Original publication)\s*:|"
    r"E-?(?:book|text) #\d|almost no restrictions|Plain Vanilla Electronic Texts|"
    r"(?:eBooks|Etexts) (?:Readable By|(?:Were )?Prepared By)|Copyright laws are changing"
)
CREDITS = _pattern(
    r"^\W*(?:This (?:e-?book|e-?text|file) was )?(?:E-?(?:book|text) )?"
    r"(?:produced|prepared|transcribed|scanned|digitized|proofread|typed)\b[^\n]{0,60}(?:\n[^\n]{0,30})?\b(?:by|from)\b"
)
# Notes between header and book: titles of the file, its other formats, transcribers' notes, in brackets and boxes.
TRANSCRIBER = r"(?:Transcriber|Redactor)(?:['’]?s?|s['’]) (?:Foot)?notes?\b"
NOTES = _pattern(
    rf"^\W*(?:This is )?(?:The )?Project Gutenberg(?:['’]s)? E-?(?:book|text)|^\W*E-?(?:book|text) #\d+|"
    rf"^\W*{TRANSCRIBER}|^\W*This file should be named|images generously made available|Distributed Proofread|"
    r"^\W*Note:(?=[^]]*(?:Project Gutenberg|HTML|images|original pages|archive\.org))|"
    r"^\[(?=[^]]*(?:\be-?texts?\b|\be-?books?\b|transcri|Project Gutenberg|Michael S\. Hart))"
)
HEADING = _pattern(rf"\W*{TRANSCRIBER}\W*\Z")
IN_BRACKETS = _pattern(rf"\x20?\[\s*+{TRANSCRIBER}[^][]{{0,4000}}\]")
FIRST_IN_BRACKETS = _pattern(rf"\s*+\[\s*+{TRANSCRIBER}[^][]{{0,4000}}\]")
AT_THE_END = _pattern(rf"\n[^\S\n]*\n[^\S\n]*\n[^\w\n]*(?:\+-+\+\n\W*)?{TRANSCRIBER}")
PARAGRAPH = re.compile(r"\s*+((?:[^\S\n]*+\S[^\n]*+(?:\n|\Z))++)")


@dataclass(frozen=True)
class Book:
    """Hold a book's text, the header before it, and whether an end marker or a licence followed it (`closed`)."""

    text: str
    header: str
    closed: bool


CP1252 = {code: bytes([code]).decode("cp1252", errors="ignore") or chr(code) for code in range(0x80, 0xA0)}


def decode(data: bytes) -> str:
    """Decode a file in UTF-8, with or without a byte-order mark, or in cp1252. Line ends become line feeds.

    Raises NanoEulerError for UTF-8 text with an invalid byte. Reading it as cp1252 would turn each of its quotation
    marks into three characters.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\xe2\x80" in data:
            byte = data[error.start]
            raise NanoEulerError(f"must be UTF-8 throughout, got 0x{byte:02x} at byte {error.start}") from None
        text = data.decode("latin-1").translate(CP1252)
    return text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\x1a")  # DOS closed its files with ^Z


def strip(text: str) -> Book:
    """Extract the book from the text of a Project Gutenberg file. text: the result of `decode`.

    Raises NanoEulerError if no book is found, the file contains two books, or sentences of the licence are left.
    """
    begin, marked = _begin(text)
    end = END.search(text, begin)
    if end and START.search(text, end.end()):
        raise NanoEulerError("must hold one book, got a second start marker after the end marker")
    while end and (goes_on := _inner(text, end)):  # the end of a volume
        text = text[: end.start()] + text[goes_on:].lstrip("\n")
        end = END.search(text, begin)
    last = end.start() if end else len(text)
    licence = _licence(text, begin, last)
    if licence:
        last = licence.start()
    if not marked:
        begin = _after_paragraphs(text, begin, last, HEADER)
    for _ in range(2):
        begin = _after_paragraphs(text, begin, last, CREDITS, most=2)
        begin = _after_notes(text, begin, last)
    book = IN_BRACKETS.sub("", text[begin:last])
    for note in AT_THE_END.finditer(book):
        if len(book) - note.start() <= min(note.start(), 10_000):
            book = book[: note.start()]
            break
    book = book.strip("\n")
    book = "\n".join(line.rstrip() for line in book.split("\n")).strip("\n")
    if not book.strip():
        raise NanoEulerError("must hold a book, got nothing between header and licence")
    if left := LEFT_OVER.search(book):
        number = book.count("\n", 0, left.start()) + 1
        raise NanoEulerError(
            f"must have no words of the licence in its book, got {short(left[0])} in line {number} of it: "
            "its format is unknown"
        )
    return Book(book, text[:begin], bool(end or licence))


def _begin(text):
    """Return where the book begins, after all markers of its start, and whether there was any marker."""
    begin, marked = 0, False
    while True:
        end = END.search(text, begin)
        last = end.start() if end else len(text)
        if start := START.search(text, begin, last):
            begin, marked = _behind_marker(text, start), True
            continue
        closing = SMALL_PRINT_ENDS.search(text, begin, last)
        if closing is None or _in_footer(text, begin, closing, last, marked):
            return begin, marked
        begin, marked = closing.end(), True


def _behind_marker(text, start):
    """Return where a start marker ends: after the closing stars in its paragraph, or at the end of its line."""
    paragraph = re.compile(r"\n[^\S\n]*\n|\Z").search(text, start.end()).start()
    if closing := re.compile(r"\*{2,}[^\S\n]*\n?").search(text, start.end(), paragraph):
        return closing.end()
    line = text.find("\n", start.end())
    return len(text) if line < 0 else line + 1


def _in_footer(text, begin, closing, last, marked):
    """Return whether a "Small Print!" ends the book: no text follows or, given a start marker, less than precedes."""
    after = len(text[_after_notes(text, closing.end(), last) : last].strip())
    opening = SMALL_PRINT.search(text, begin, closing.start())
    before = len(text[begin : opening.start() if opening else closing.start()].strip())
    return after == 0 or (marked and after < before)


def _inner(text, end):
    """Return where text continues after an end line that ends only a volume, or 0 if it ends the book."""
    line = PARAGRAPH.match(text, text.rfind("\n", 0, end.start()) + 1)
    at = line.end() if line else len(text)
    next_end = END.search(text, end.end())
    below = text[at : next_end.start() if next_end else len(text)].strip()
    if LICENCE.search(below) or LEFT_OVER.search(below) or SMALL_PRINT.search(f"{below}\n"):
        return 0
    return at if len(below.strip("* \n")) > (0 if next_end else 1000) else 0


def _licence(text, begin, last):
    for found in LICENCE.finditer(text, begin, last):
        more = text[found.end() : min(last, found.end() + 2000)]
        paragraph = re.search(r"(?:\n[^\S\n]*\n|\A)\s*\Z", text[max(0, found.start() - 200) : found.start()])
        if not DOUBTFUL.match(found[0]) or (paragraph and OF_A_LICENCE.search(more)):
            return found
    return None


def _after_notes(text, begin, last):
    """Return the end of the notes that start at `begin`; notes with a heading extend to two empty lines."""
    while True:
        if bracket := FIRST_IN_BRACKETS.match(text, begin, last):
            begin = bracket.end()
            continue
        paragraph = PARAGRAPH.match(text, begin, last)
        if not paragraph or not NOTES.search(paragraph[1]):
            return begin
        begin = paragraph.end()
        if HEADING.match(paragraph[1]):
            gap = re.compile(r"\n[^\S\n]*\n[^\S\n]*\n").search(text, begin + 2, min(last, begin + 4000))
            begin = gap.start() if gap else begin


def _after_paragraphs(text, begin, last, pattern, most=None):
    """Return the end of the paragraphs from `begin` on that match the pattern, at most `most` of them."""
    while most is None or most > 0:
        paragraph = PARAGRAPH.match(text, begin, last)
        if paragraph is None or not pattern.search(paragraph[1]):
            break
        begin, most = paragraph.end(), most and most - 1
    return begin


def expect_title(book: Book, title: str, author: str) -> None:
    """Raise NanoEulerError if a book does not have this title and author, by the Title and Author of its header.

    The title in the header may be longer ("Frankenstein; Or, The Modern Prometheus"). Articles at its start, accents,
    capitals and apostrophes are ignored. If the header has no such lines, the whole header and the first page are
    searched instead.
    """
    page = f"{book.header}\n{book.text[:2000]}"
    lines = {key: re.search(rf"{key}:\s*(\S[^\n]*(?:\n[^\S\n]+\S[^\n]*)*)", book.header) for key in ("Title", "Author")}
    wanted = {"Title": _words(title).removeprefix("the ").removeprefix("a "), "Author": _words(author).split()[-1]}
    for key, line in lines.items():
        text = line[1] if line else page
        if f" {wanted[key]} " not in f" {_words(text)} ":
            what = short(" ".join(text.split())) if line else f"no {key}"
            raise NanoEulerError(
                f"its header must name {title!r} by {author}, got {what}: this is a different book, or the registry "
                "has a wrong number"
            )


def _words(text):
    """Return the words of a text in small letters without accents, separated by single spaces."""
    plain = unicodedata.normalize("NFKD", text.casefold()).replace("'", "").replace("’", "")
    return " ".join(re.findall(r"[^\W_]+", "".join(c for c in plain if not unicodedata.combining(c))))
