"""The limits that CONTRIBUTING.md sets for the tests' length, in lines of Python."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("nanoeuler_lib", "konigsberg", "cudacheck", "nanoeuler_book", "tools")


def lines(*paths: Path) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def test_the_tests_are_shorter_than_what_they_test():
    code = lines(*(path for folder in CODE for path in (ROOT / folder).rglob("*.py")))
    tests = lines(*(path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "chapters"))
    assert tests <= 0.8 * code, f"{tests:,} lines of tests for {code:,} of {', '.join(CODE)}: {tests / code:.2f}"


def test_a_chapter_is_tested_in_a_page_or_two():
    long = {path.name: lines(path) for path in (ROOT / "tests/chapters").glob("test_chapter_*.py")}
    long = {name: length for name, length in long.items() if length > 250}
    assert not long, f"lines of tests of a chapter, expected at most 250: {long}"
