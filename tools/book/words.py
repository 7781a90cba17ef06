"""Refuse the private words of this book where the field has a word of its own.

`words.toml` lists the words, what to write instead, and in which sense or file each word is allowed. The program reads
Markdown and notebooks (without code, formulas and titles of chapters), the docstrings, comments, help and errors of
Python, and the comments of other code.

    python -m tools.book.words             # check all files; exit status 1 if a word is found
    python -m tools.book.words PATH...     # check these files
"""

import io
import itertools
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".toml")
OWN = ("tools/book/words.toml", "tests/book/words.toml", "tests/book/test_words.py")
GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*)"  # a space in a pattern also matches the end of a line, but not an empty line
NEAR = 100  # characters around a word in which its right sense must show
NOT_READ = re.compile(
    r"^(?P<fence>`{3,})(?!\{(?!code|math|eval)).*?^(?P=fence)[^\n]*$"  # fences, except directives with text
    r"|^:::\{admonition\} You are here.*?^:::$|\[[^\]]*\]\([^)]*\.ipynb[^)]*\)"  # titles of chapters
    r"|^:(?:label|name|class|target|tags):[^\n]*$|^\([\w-]+\)=$"
    r"|\$\$.+?\$\$|\$[^$\n]+\$|``[^`]+``|`[^`\n]+`|\]\([^)\s]*\)|<[^>\n]+>|https?://\S+",
    re.S | re.M,
)
HASH, SLASHES = {".toml", ".yml", ".sh", ""}, {".cu", ".cuh", ".h", ".cpp", ".js"}  # what a comment begins with
KINDS = {".md", ".py", ".ipynb"} | HASH | SLASHES
KERNEL = re.compile(r"__global__|__device__|threadIdx|#include")
QUOTES = re.compile(r"^\w*(?:\'\'\'|\"\"\"|['\"])|(?:\'\'\'|\"\"\"|['\"])$")
SENTENCE = re.compile(r"[A-Za-z,]\s+[a-z]+\s+[a-z]")


class Word:
    """A private word: its pattern, its replacement, and exceptions: regular expressions `allow`, globs `files`."""

    def __init__(self, pattern: str, use: str, allow: tuple[str, ...] = (), files: tuple[str, ...] = ()):
        self.use, self.files = use, files
        self.pattern, *self.allow = (re.compile(text.replace(" ", GAP), re.I) for text in (pattern, *allow))

    def find(self, text: str, path: str = "") -> list[re.Match]:
        """Find the matches in `text` where the word is not allowed."""
        if any(fnmatch(path, glob) for glob in self.files):
            return []
        return [hit for hit in self.pattern.finditer(text) if not self._is_right(text, *hit.span())]

    def _is_right(self, text: str, start: int, end: int) -> bool:
        senses = (right.finditer(text, max(0, start - NEAR), end + NEAR) for right in self.allow)
        return any(sense.start() <= start and end <= sense.end() for some in senses for sense in some)


def load(path: Path) -> list[Word]:
    """Read the private words."""
    return [Word(**row) for row in tomllib.loads(path.read_text("utf-8"))["word"]]


def blank(text: str | re.Match) -> str:
    """Replace text that is not checked by one backquote per line."""
    return re.sub(r"[^\S\n]*\S[^\n]*", "`", text if isinstance(text, str) else text[0])


def comments(text: str, mark: str) -> str:
    """Return the text with only the comments that begin with `mark`."""
    lines = (re.split(rf"(?:^|(?<=\s)){mark}+", line, maxsplit=1) for line in text.splitlines(keepends=True))
    return "".join(f"{blank(code)} {''.join(comment)}" for code, *comment in lines)


def python(text: str) -> str:
    """Return Python source with only its comments and its strings of at least three words."""
    starts = list(itertools.accumulate(map(len, text.splitlines(keepends=True)), initial=0))
    kept, last = [], 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = tokenize.tok_name[token.type]
            start, end = (starts[line - 1] + column for line, column in (token.start, token.end))
            words = text[start:end]
            if kind == "COMMENT":
                words = words.replace("#", " ")
            elif kind in ("STRING", "FSTRING_MIDDLE") and SENTENCE.search(words) and not KERNEL.search(words):
                words = re.sub(r"\{[^{}\n]*\}|`[^`\n]+`", blank, QUOTES.sub(" ", words))
            elif kind in ("FSTRING_START", "FSTRING_END"):
                words = " "
            else:
                continue
            kept += [blank(text[last:start]), words]
            last = end
    except (tokenize.TokenError, SyntaxError):
        pass  # a cell's magic
    return "".join(kept)


def texts(path: str, content: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each text of a file; the name is the path and, in a notebook, the number of the cell."""
    kind = Path(path).suffix
    if kind == ".ipynb":
        for number, cell in enumerate(json.loads(content)["cells"], 1):
            source = "".join(cell["source"])
            read = NOT_READ.sub(blank, source) if cell["cell_type"] == "markdown" else python(source)
            yield f"{path}:cell {number}", comments(source, "//") if source.startswith("%%") else read
    elif kind in (".md", ".py"):
        yield path, python(content) if kind == ".py" else NOT_READ.sub(blank, content)
    else:
        yield path, comments(content, "#" if kind in HASH else "//")


def check(path: str, words: list[Word], root: Path) -> list[str]:
    """Return one line for each private word in a file: its place, the word, and the replacement."""
    return [
        f'{name}:{text.count(chr(10), 0, hit.start()) + 1}: "{" ".join(hit[0].split())}" -> {word.use}'
        for name, text in texts(path, (root / path).read_text("utf-8", "replace"))
        for word in words
        for hit in word.find(text, path)
    ]


def files(root: Path) -> list[str]:
    """Return the files of the repository that have texts, except data and the lists of private words."""
    listed = subprocess.check_output(["git", "ls-files"], cwd=root, text=True).splitlines()
    listed = [path for path in listed if (root / path).is_file() and Path(path).suffix in KINDS]
    return [path for path in listed if not path.startswith("data/") and path not in OWN]


def main(given: list[str]) -> int:
    """Print the private words of the given files, by default of all files; return the exit status."""
    words = load(LIST)
    found = [line for path in given or sorted(files(ROOT)) for line in check(path, words, ROOT)]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
