"""What the instructor guide computes: a chapter's facts, wrong answers with what their checks say, and term plans.

Each function returns Markdown for the directive of its name (`tools/book/pages.py`). Nothing here is typed twice: hours
come from `tools.notebooks.count`, needs and aims from the chapters' heads, sentences of checks from the stored outputs.
A plan that puts a chapter before one that it needs, or a wrong answer that no check rejects, is a GuideError.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tools.notebooks.heads import ROOT, Chapter

REJECTED = re.compile(r"^rejected, (.+?): (.+)$", re.M)
ENTRY = re.compile(r"^(?P<name>\S.*)\n: +(?P<response>.+(?:\n(?:[ \t].*)?)*)", re.M)
BOX = re.compile(r"\{admonition\} A real mistake\b")
MISTAKE = "a real mistake"


class GuideError(ValueError):
    """What a page of the guide says and the book does not."""


def link(chapter: Chapter, text: str | None = None) -> str:
    return f"[{text or chapter.title}](/notebooks/{chapter.name}.ipynb)"


def hours(amount: float) -> str:
    """Whole and half hours: 1.5 -> "1½ h"."""
    whole, half = divmod(amount, 1)
    return f"{whole:.0f}{'½' * bool(half)} h" if whole or not half else "½ h"


def named(book: dict[str, Chapter], numbers: Iterable[str]) -> list[Chapter]:
    """The chapters of these numbers. GuideError on one that the book does not have."""
    numbers = list(numbers)
    if missing := [number for number in numbers if number not in book]:
        raise GuideError(f"no chapter {', '.join(missing)}; the book has {', '.join(book)}")
    return [book[number] for number in numbers]


# ---- A chapter


def chapter(book: dict[str, Chapter], number: str) -> str:
    """The facts of a chapter in four rows."""
    (one,) = named(book, [number])
    page, whole = map(hours, one.length.hours)
    needs = ", ".join(link(other, other.number) for other in named(book, one.needs)) or "none"
    return "\n".join(
        [
            "```{list-table}",
            ":class: facts",
            ":stub-columns: 1",
            "",
            "* - Afterwards they can",
            f"  - {one.facts['Afterwards you can']}",
            "* - Time",
            f"  - {page} for the page, {whole} with the exercises ({link(one, 'open the chapter')})",
            "* - Work",
            f"  - {one.length.gaps} gaps, {one.length.exercises} exercises, {one.points} points",
            "* - Chapters needed",
            f"  - {needs}",
            "* - Hardware",
            f"  - {one.facts['Hardware']}",
            "```",
        ]
    )


def rejected(path: Path) -> dict[str, list[str]]:
    """The wrong answers that a chapter names, each with the sentences by which its checks reject it."""
    printed = "\n".join(
        "".join(output.get("text", ""))
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if "solution" in cell["metadata"].get("tags", ())
        for output in cell.get("outputs", ())
    )
    found = {}
    for name, said in REJECTED.findall(printed):
        found.setdefault(name, []).append(said)
    return found


def errors(book: dict[str, Chapter], number: str, text: str, root: Path = ROOT) -> str:
    """Wrong answers and what helps: each by its name in the solution, with what the check says of it.

    text: a Markdown definition list, `name` and `: what to say`. "a real mistake" stands for the chapter's box of that
    title. GuideError on a name that the chapter's outputs do not hold, or hold twice.
    """
    (one,) = named(book, [number])
    path = root / "notebooks" / f"{one.name}.ipynb"
    known, entries = rejected(path), list(ENTRY.finditer(text))
    if not entries or ENTRY.sub("", text).strip():
        raise GuideError(f"{number}: expected lines `name` and `: response`, got {text[:60]!r}")
    lines = ["**Mistakes, and what to say.**", ""]
    for entry in entries:
        name, response = entry["name"].strip(), " ".join(entry["response"].split())
        if name == MISTAKE:
            if not BOX.search(path.read_text("utf-8")):
                raise GuideError(f"{number} shows no real mistake")
            lines.append(f"* **The chapter's real mistake.** {response}")
            continue
        said = known.get(name, [])
        if len(said) != 1:
            raise GuideError(f"{number} rejects {len(said)} answers named {name!r}; it names {list(known)}")
        lines.append(f"* **{name[0].upper()}{name[1:]}.** Check: “{literal(said[0])}”. {response}")
    return "\n".join(lines)


def literal(said: str) -> str:
    """A check's sentence as text: none of its signs are Markdown's."""
    return re.sub(r"([\\`*_{}\[\]<>$|#^~])", r"\\\1", said)


# ---- Plans


def plan(book: dict[str, Chapter], text: str, without: Iterable[str] = ()) -> str:
    """A table of a course: a row for each line `when | chapters | what happens`, with hours and their sum.

    without: chapters that others of the plan need and that it leaves out on purpose. GuideError on a chapter that is
    unknown or comes twice, on a need that no row up to its own meets, and on a `without` that nothing needs.
    """
    rows = ["| | chapters | page | with exercises | |", "|:--|:--|--:|--:|:--|"]
    seen, left_out, sums = [], set(), [0.0, 0.0]
    for line in filter(None, map(str.strip, text.split("\n"))):
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 3:
            raise GuideError(f"expected `when | chapters | what happens`, got {line!r}")
        when, numbers, what = cells
        group = named(book, numbers.split())
        for one in group:
            if one.number in seen:
                raise GuideError(f"{one.number} stands twice in the plan")
            seen.append(one.number)
        missing = {need for one in group for need in one.needs} - set(seen)
        if unmet := sorted(missing - set(without)):
            raise GuideError(f"{when}: {numbers} needs {', '.join(unmet)} before it")
        left_out |= missing
        amounts = [sum(one.length.hours[i] for one in group) for i in (0, 1)]
        sums = [old + new for old, new in zip(sums, amounts, strict=True)]
        page, whole = map(hours, amounts) if group else ("", "")
        when = when.replace(" ", "\N{NO-BREAK SPACE}")
        rows.append(f"| {when} | {'<br>'.join(map(link, group))} | {page} | {whole} | {what} |")
    if idle := sorted(set(without) - left_out):
        raise GuideError(f"left out on purpose, and nothing needs it: {', '.join(idle)}")
    rows.append(f"| in all | {len(seen)} chapters | {hours(sums[0])} | {hours(sums[1])} | |")
    return "\n".join(rows)


def needs(book: dict[str, Chapter]) -> str:
    """A table of what each chapter needs and what needs it."""
    rows = ["| chapter | needs | is needed by |", "|:--|:--|:--|"]
    for one in book.values():
        before = ", ".join(link(other, other.number) for other in named(book, one.needs))
        after = ", ".join(link(other, other.number) for other in book.values() if one.number in other.needs)
        rows.append(f"| {link(one)} | {before} | {after} |")
    return "\n".join(rows)
