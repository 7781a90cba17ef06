"""Test extracting books from Project Gutenberg's files: no licence text stays, and no text of the book is lost."""

import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_lib.corpus import gutenberg
from nanoeuler_lib.corpus.gutenberg import Book, decode, expect_title, strip
from nanoeuler_lib.corpus.registry import corpora
from nanoeuler_lib.errors import NanoEulerError

DATA = Path(os.environ.get("NANOEULER_DATA", "nowhere"))
RAW = DATA / "gutenberg_raw"

# For each file, the first and last words of the book, read by hand, and whether an end marker closes the book.
NINE = {
    "11-alice30.txt": ("ALICE'S ADVENTURES IN WONDERLAND\n\n", "THE END", False),
    "1952-0.txt": ("THE YELLOW WALLPAPER\n\nBy Charlotte", "creep over him every time!", True),
    "46-carol10.txt": ("A CHRISTMAS CAROL\n\n", "observed, God bless Us, Every One!", True),
    "46-carol13.txt": ("A CHRISTMAS CAROL\n\nby Charles Dickens", "observed, God bless Us, Every One!", True),
    "84-frank15.txt": ("[Chapters 1-6:  mostly scanned", "lost in darkness and distance.", True),
    "pg11-2025.txt": ("[Illustration]\n\n\n\n\nAlice’s Adventures", "days.\n\nTHE END", True),
    "pg1342-no-start.txt": ("PAGE\n\nFrontispiece", "TOOKS COURT, CHANCERY LANE, LONDON.", True),
    "pg1661-2011.txt": ("The Adventures of Sherlock Holmes\n", "she has met with considerable success.", True),
    "pg64317-crlf.txt": ("The Great Gatsby\n", "borne back ceaselessly into\nthe past.", True),
}


@pytest.mark.full
@pytest.mark.skipif(not RAW.is_dir(), reason="NANOEULER_DATA/gutenberg_raw is not there")
@pytest.mark.parametrize("name", NINE)
def test_the_nine_files(name):
    first, last, closed = NINE[name]
    text = decode((RAW / name).read_bytes())
    book = strip(text)
    assert book.text.lstrip().startswith(first) and book.text.endswith(last) and book.closed == closed
    left = r"gutenberg|small print|\betexts?\b|\be-?books?\b|\*\*\*|[\r\ufeff\x85]"
    assert not re.search(left, book.text.replace("not*******", ""), re.I)
    body = "\n".join(line.rstrip() for line in text.split("\n"))
    assert book.text in body  # one contiguous part of the file
    file = next(f for f in corpora()["books"].files if f.number == int(re.match(r"(?:pg)?(\d+)", name)[1]))
    expect_title(book, file.title, file.author)
    for other in corpora()["books"].files:
        if other != file:
            with pytest.raises(NanoEulerError, match="this is a different book, or the registry has a wrong number"):
                expect_title(book, other.title, other.author)


# ---- The test's own files, one for each form

STORY = "CHAPTER I\n\nKäthe crossed the Honey Bridge.\n\n    * * * * *\n\n“Is it far?” asked Jürgen.\n\nTHE END"
PARTS = tomllib.loads(Path(__file__).with_name("gutenberg_parts.toml").read_text("utf-8"))
MODERN, SMALL, LICENCE, NOTE, OF_TRANSCRIBER, BOX, PORTIONS, OLD = PARTS.values()
SMALL_END = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"
START, END = (f"*** {word} OF THE PROJECT GUTENBERG EBOOK THE BRIDGES ***" for word in ("START", "END"))


def framed(start=START, end=END, story=STORY, header=MODERN, licence=LICENCE):
    return f"{header}\n{start}\n\n\n{story}\n\n\n{end}\n\n{licence}"


FORMS = {
    "as today": framed(),
    "no space": framed(START.replace("*** ", "***").replace(" ***", "***"), END.replace("*** ", "***")),
    "this, not the": framed(START.replace("THE P", "THIS P"), END.replace("THE P", "THIS P")),
    "neither this nor the": framed(START.replace("THE P", "P"), END.replace("THE P", "P")),
    "a comma": framed(START.replace("EBOOK", "EBOOK,"), END.replace("EBOOK", "EBOOK,")),
    "small letters": framed(START.lower(), END.lower()),
    "title over two lines": framed(START.replace("EBOOK THE", "EBOOK THE\n"), END.replace("EBOOK THE", "EBOOK THE\n")),
    "broken inside the marker": framed(START.replace("PROJECT ", "PROJECT\n"), END.replace("PROJECT ", "PROJECT\n")),
    "no stars after the marker": framed(START.removesuffix(" ***"), END.removesuffix(" ***")),
    "stuck to the text": framed().replace(f"{START}\n\n\n", START).replace(f"\n\n\n{END}", END),
    "a straight apostrophe": framed(end="End of Project Gutenberg's The Bridges, by Leonhard Euler\n\n" + END),
    "only the sentence": framed(end="End of the Project Gutenberg EBook of The Bridges", licence=""),
    "this is the end": framed(end="This is the end of the Project Gutenberg Etext of The Bridges", licence=""),
    "1990s": framed(f"{SMALL_END}\n", "End of The Project Gutenberg Etext of The Bridges.", header=SMALL, licence=""),
    "1990s, more stars": framed("*END* THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS *Ver.07.02.92* *END*", header=SMALL),
    "1990s, two lines": framed(SMALL_END.replace("*Ver", "\n*Ver"), header=SMALL),
    "1990s, no end": framed(SMALL_END, "", header=SMALL, licence=""),
    "small print below": framed(licence=f"This file should be named b10.txt or b10.zip\n\n{SMALL}\n{SMALL_END}\n"),
    "small print below, no end": framed(end="", licence=f"{SMALL[66:]}\n" * 9 + SMALL_END),
    "small print after a start": framed(f"{START}\n\n{SMALL}\n{SMALL_END}"),
    "start after small print": framed(f"{SMALL}\n{SMALL_END}\n\n{START}"),
    "no start": framed(start=""),
    "no start, credits": framed(start="Produced by A. Volunteer and the\nDistributed Proofreading Team"),
    "no end": framed(end=""),
    "no end, full licence": framed(end="", licence="*** START: FULL LICENSE ***\n\n" + LICENCE),
    "neither start nor end": framed(start="", end=""),
    "no end, named file": framed(end="", licence="***** This file should be named 9-0.txt or 9.zip *****\n" + LICENCE),
    "produced by": framed(START + "\n\nProduced by A. Volunteer and B. Volunteer (b@example.org)"),
    "e-text prepared by": framed(START + "\n\n\nE-text prepared by A. Volunteer\nfrom page images"),
    "no header": framed(header=""),
    "mark": "\ufeff" + framed(),
    "Windows": framed().replace("\n", "\r\n"),
    "old Macintosh": framed().replace("\n", "\r"),
    "mixed line ends": framed().replace("\n\n", "\r\n\r").replace("\r\r", "\r\n"),
    "closed by ^Z": framed(SMALL_END, "", header=SMALL, licence="\x1a"),
    "spaces at ends of lines": framed().replace("\n", "  \n"),
}  # fmt: skip


LAST = "End of the Project Gutenberg Etext of The Bridges, by Leonhard Euler"
BY, VOLUME = "E-text prepared by A. Volunteer", "End of the Project Gutenberg EBook of The Bridges, Vol. I"
old = lambda front: framed(f"{OLD}\n{SMALL}\n{SMALL_END}\n\n{front}\n", LAST, header="", licence="")
FORMS |= {
    "notes on other forms": framed(story=f"{BY}\n\n\n\n{NOTE}\n\n\n\n{STORY}"),
    "notes of the transcriber": framed(story=f"{BY}\n\n\n{NOTE}\n\n{OF_TRANSCRIBER}\n\n\n{STORY}"),
    "a box": framed(story=f"{BOX}\n\n\n{STORY}"),
    "a note in brackets": framed(story=f"[Transcriber's Note: Two\nlines.\n\nThree.]\n\n{STORY}"),
    "a note in the middle": framed(story=STORY.replace("far?", "far [Transcriber’s note: sic]?")),
    "notes at the end": framed(story=f"{STORY}\n\n\n\nTRANSCRIBER'S NOTES\n\nSpelling is kept."),
    "a blurb": framed(story="Produced by A. Volunteer and the Online Distributed\nProofreading Team "
                      f"(This file was produced from\nimages generously made available by A.)\n\n\n\n{STORY}"),
    "the legal small print": framed(f"{OLD}\n{PORTIONS}\n", LAST, header="", licence=""),
    "credits in brackets": old("[This etext was created by A. Volunteer, Omaha]"),
    "titles between stars": old("**The Project Gutenberg Etext of The Bridges**"),
    "the legal small print below": framed(end=LAST, header=OLD, licence=PORTIONS, start=START),
    "the legal small print below, no end": framed(end="", header=OLD, licence=PORTIONS, start=START),
    "only the legal small print": framed(end="", start=START, licence="The Legal Small Print\n\nBy using\n"),
    "an end inside": framed(story=STORY.replace("“Is", f"{VOLUME}\n\n“Is")),
}  # fmt: skip


@pytest.mark.full(but=["stars"])
@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, encoding):
    if encoding == "cp1252" and form == "mark":
        return
    book = strip(decode(FORMS[form].encode(encoding)))
    assert book.text == STORY
    assert book.closed == (form not in ("1990s, no end", "closed by ^Z"))


UPDATED = STORY.replace("“Is it far?”", "“Updated editions will replace the previous one,”")
TWO = f"{STORY}\n\n{VOLUME}\n\n{STORY * 20}"
KEPT = {  # rule: (file, the book in the file)
    "a book contains the first words of a licence": (framed(story=UPDATED), UPDATED),
    "the same without an end marker": (framed(end="", story=UPDATED), UPDATED),
    "a volume without a second end line": (f"{START}\n{TWO}", TWO.replace(f"{VOLUME}\n\n", "")),
}


REFUSED = {
    "two books": (framed() + "\n\n" + framed(), "second start marker after the end marker"),
    "no book": (framed(story=""), "nothing between header and licence"),
    "nothing": ("", "nothing between"),
    "an unknown licence": (framed(story=STORY + "\n\nProject Gutenberg Association asks"), "in line 11 of it"),
    "header in the middle": (framed(start="A word before.\n\n" + MODERN, header=""), "no words of the licence"),
}


@pytest.mark.full
def test_what_is_kept_and_what_is_refused():
    for rule, (file, book) in KEPT.items():
        assert strip(file).text == book, rule
    for text, said in REFUSED.values():
        with pytest.raises(NanoEulerError, match=said):
            strip(text)


@pytest.mark.full
def test_bytes_that_cp1252_does_not_have_are_kept():
    assert decode(b"MAX\r\n\x1a\x1a") == "MAX\n" and decode(b"MAX\x1a") == "MAX"
    assert decode(b"a\x81b\x93c\x94\x85") == "a\x81b“c”…"
    with pytest.raises(NanoEulerError, match="must be UTF-8 throughout, got 0xff at byte 4"):
        decode(b"a\xe2\x80\x99\xffb")


line = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x1a\ufeff", exclude_categories=("Cs",)), max_size=60
)
words = re.compile(
    r"gutenberg|small\s+print|full\s+license|produced|prepared|transcribed|scanned|typed|digit|proof", re.I
)
plain = lambda text: text.strip() and not words.search(text) and not gutenberg.HEADER.search(text)
story = st.lists(line, min_size=1, max_size=12).map("\n".join).filter(plain)


@pytest.mark.full
@settings(max_examples=300)
@given(story, st.sampled_from(["as today", "1990s", "no end", "a comma", "title over two lines", "no start"]))
def test_whatever_stands_between_survives(text, form):
    """Keep all lines in order, except spaces at their ends and empty lines around the book."""
    kept = strip(decode(FORMS[form].replace(STORY, text).encode())).text
    assert kept == "\n".join(row.rstrip() for row in text.split("\n")).strip("\n")


@pytest.mark.full
@pytest.mark.parametrize("story", ["Käthe crossed the bridge.", "Käthe crossed the bridge.\n\n* * *"])
@pytest.mark.parametrize("sentence", [LAST, END, "THE FULL PROJECT GUTENBERG LICENSE"])
def test_what_stands_right_below_a_book_is_not_of_it_and_takes_nothing(story, sentence):
    book = strip(f"{story}\n{sentence}")
    assert (book.text, book.header, book.closed) == (story, "", True)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "stuck to the text"])
@pytest.mark.parametrize("stars", ["*", "    * * * * *", "***"])
def test_stars_that_close_a_book_are_of_the_book(form, stars):
    """Keep stars that blank lines separate from the marker, the sentence or the licence."""
    assert strip(decode(FORMS[form].replace("THE END", stars).encode())).text.split("\n")[-1] == stars


RUNS = (" ", "\n", "*", " \n", "* ", "*\n", "START ", "*END*", "* START\n", "THE END OF ")


@pytest.mark.full
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("before", ["", f"{START}\n", "START", "*END*THE SMALL PRINT!"])
def test_a_long_run_takes_no_longer_than_its_length(before, run):
    """Check the time: a pattern that tried every way to divide the run would take hours."""
    text = f"{before}{run * (600_000 // len(run))}\nA book.\n*** END OF THE PROJECT GUTENBERG EBOOK ***\n"
    try:
        assert strip(text).text.endswith("A book.")
    except NanoEulerError as error:
        assert "must" in str(error)


HEADER_OF_1993 = "Title: Frankenstein; Or, The Modern\n  Prometheus\n\nAuthor: Mary Wollstonecraft (Godwin) Shelley\n"
TITLES = [  # header, first page, title and author in the registry, whether they belong to the book
    (HEADER_OF_1993, "x", "Frankenstein", "Mary Wollstonecraft Shelley", True),
    (HEADER_OF_1993, "x", "The Modern Prometheus", "Mary Shelley", True),
    (HEADER_OF_1993, "x", "Dracula", "Mary Shelley", False),
    (HEADER_OF_1993, "x", "Frankenstein", "Bram Stoker", False),
    (HEADER_OF_1993, "x", "Franken", "Mary Shelley", False),
    ("Title: Les Miserables\nAuthor: Victor Hugo", "x", "Les Misérables", "Victor Hugo", True),
    ("a.orgTitle: Alice’s Adventures\n\nAuthor: Lewis Carroll", "x", "Alice's Adventures", "L. Carroll", True),
    ("", "MOBY-DICK\n\nby Herman Melville", "The Moby Dick", "Herman Melville", True),
    ("", "<html>log in</html>", "Emma", "Jane Austen", False),
]


@pytest.mark.full
@pytest.mark.parametrize("header, page, title, author, right", TITLES, ids=range(len(TITLES)))
def test_titles(header, page, title, author, right):
    book = Book(page, header, True)
    if right:
        return expect_title(book, title, author)
    has = ".*" if header else "no Title"
    with pytest.raises(
        NanoEulerError, match=f"its header must name '{title}' by {author}, got {has}: this is a different book"
    ):
        expect_title(book, title, author)
