"""Compute parts of the instructor guide: a chapter's facts, wrong answers, course plans and board plans.

Each function returns Markdown for the directive of the same name (`tools/book/pages.py`). All facts are read from the
chapters: hours from `tools.notebooks.count`, prerequisites and aims from the chapters' headers, messages of checks from
the stored outputs. A GuideError is raised if a plan puts a chapter before a chapter that it needs, or if a check does
not reject a wrong answer that the guide lists.
"""

import json
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from tools.course.mend import asked
from tools.course.papers.papers import CHAPTERS as PAPERS
from tools.notebooks import count
from tools.notebooks.heads import ROOT, Chapter

REJECTED = re.compile(r"^rejected, (.+?): (.+)$", re.M)
ENTRY = re.compile(r"^(?P<name>\S.*)\n: +(?P<response>.+(?:\n(?:[ \t].*)?)*)", re.M)
BOX = re.compile(r"\{admonition\} A real mistake\b")
MISTAKE = "a real mistake"


class GuideError(ValueError):
    """Raised if a page of the guide contradicts the book."""


def link(chapter: Chapter, text: str | None = None) -> str:
    return f"[{text or chapter.title}](/notebooks/{chapter.name}.ipynb)"


def hours(amount: float) -> str:
    """Format a number of hours or half hours with a no-break space: 1.5 -> "1½ h"."""
    whole, half = divmod(amount, 1)
    number = f"{whole:.0f}{'½' * bool(half)}" if whole or not half else "½"
    return f"{number}\N{NO-BREAK SPACE}h"


def named(book: dict[str, Chapter], numbers: Iterable[str]) -> list[Chapter]:
    """Return the chapters with these numbers. Raises GuideError if the book lacks one of these chapters."""
    numbers = list(numbers)
    if missing := [number for number in numbers if number not in book]:
        raise GuideError(f"a chapter must be one of {', '.join(book)}, got {', '.join(missing)}")
    return [book[number] for number in numbers]


# ---- A chapter


def chapter(book: dict[str, Chapter], number: str) -> str:
    """Return a table of a chapter's facts: aims, time, work, chapters needed, hardware."""
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
    """Return the wrong answers that a chapter's solutions name, each with the messages of the checks that reject it."""
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
    """List a chapter's wrong answers, each with its name in the solution, the check's message, and a response.

    text: a Markdown definition list, `name` and `: response`. The name "a real mistake" means the chapter's box with
    this title. Raises GuideError if a name does not occur exactly once in the chapter's outputs.
    """
    (one,) = named(book, [number])
    path = root / "notebooks" / f"{one.name}.ipynb"
    known, entries = rejected(path), list(ENTRY.finditer(text))
    if not entries or ENTRY.sub("", text).strip():
        raise GuideError(f"{number}: mistakes must be lines `name` and `: response`, got {text[:60]!r}")
    lines = ["**Mistakes, and what to say.**", ""]
    for entry in entries:
        name, response = entry["name"].strip(), " ".join(entry["response"].split())
        if name == MISTAKE:
            if not BOX.search(path.read_text("utf-8")):
                raise GuideError(f"{number}: the chapter must have a box `A real mistake`, got none")
            lines.append(f"* **The chapter's real mistake.** {response}")
            continue
        said = known.get(name, [])
        if len(said) != 1:
            raise GuideError(
                f"{number}: a mistake must be named once in the solutions, which name {list(known)}, got {name!r}"
            )
        lines.append(f"* **{name[0].upper()}{name[1:]}.** Check: “{literal(said[0])}”. {response}")
    return "\n".join(lines)


def literal(said: str) -> str:
    """Escape the characters of a check's message that have a meaning in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>$|#^~])", r"\\\1", said)


# ---- Plans


def plan(book: dict[str, Chapter], text: str, without: Iterable[str] = ()) -> str:
    """Return the table of a course plan: one row per line `when | chapters | what happens`, with hours and a total.

    A line may list work that is due: `when | chapters | due | what happens`, with labels of exercises (without `ex-`)
    and of individual assignments (`paper-06`). The row's hours then include only these exercises.
    without: chapters that the plan leaves out on purpose although others need them. Raises GuideError if a chapter is
    unknown, occurs twice or comes before one that it needs; if nothing needs a chapter in `without`; or if work is
    unknown, occurs twice or is due before its chapter.
    """
    lines = [[c.strip() for c in line.split("|")] for line in text.split("\n") if line.strip()]
    with_due = all(len(cells) == 4 for cells in lines)
    rows = ["| when | chapters | page | with exercises | what happens |", "|:--|:--|--:|--:|:--|"]
    if with_due:
        rows = ["| when | chapters | due | page | page + due | what happens |", "|:--|:--|:--|--:|--:|:--|"]
    seen, left_out, done, sums = [], set(), [], [0.0, 0.0]
    for cells in lines:
        if len(cells) != 3 + with_due:
            raise GuideError(f"a line must be `when | chapters | what happens`, got {' | '.join(cells)!r}")
        when, numbers, *due, what = cells
        group = named(book, numbers.split())
        for one in group:
            if one.number in seen:
                raise GuideError(f"{when}: a chapter must occur once in a plan, got {one.number} again")
            seen.append(one.number)
        missing = {need for one in group for need in one.needs} - set(seen)
        if unmet := sorted(missing - set(without)):
            raise GuideError(f"{when}: {numbers} must come after {', '.join(unmet)}, which it needs")
        left_out |= missing
        amounts = [sum(one.length.hours[i] for one in group) for i in (0, 1)]
        if due:
            work = due[0].split()
            done += work
            told, minutes = _due(named(book, seen), work, when)
            amounts[1] = amounts[0] + -(-minutes // 30) / 2
            if len(set(done)) < len(done):
                raise GuideError(f"{when}: work must be due once, got {max(done, key=done.count)} again")
        sums = [old + new for old, new in zip(sums, amounts, strict=True)]
        page, whole = (hours(amount) if amount else "" for amount in amounts)
        when = when.replace(" ", "\N{NO-BREAK SPACE}")
        cells = [when, "<br>".join(map(link, group)), *([told] if due else []), page, whole, what]
        rows.append(f"| {' | '.join(cells)} |")
    if idle := sorted(set(without) - left_out):
        raise GuideError(f"`without` must list only chapters that the plan needs, got {', '.join(idle)}")
    total = ["in all", f"{len(seen)} chapters", *([""] if with_due else []), *map(hours, sums), ""]
    rows.append(f"| {' | '.join(total)} |")
    return "\n".join(rows)


def _due(group: list[Chapter], work: list[str], when: str) -> tuple[str, float]:
    """Return the work that is due as Markdown, and the minutes of its exercises."""
    told, minutes = [], 0.0
    exercises = {label: one for one in group for label in one.exercises}
    for name in work:
        if name.removeprefix("paper-") in {one.number for one in group} & set(PAPERS):
            told.append(name.replace("paper-", "assignment "))
        elif name in exercises:
            title, is_open = exercises[name].exercises[name]
            told.append(f"{{ref}}`{title} <ex-{name}>`")
            minutes += count.OPEN if is_open else count.EXERCISE
        else:
            raise GuideError(f"{when}: work must be from a chapter up to this line, got {name}")
    return "<br>".join(told), minutes


def needs(book: dict[str, Chapter]) -> str:
    """Return a table that lists, for each chapter, the chapters that it needs and the chapters that need it."""
    rows = ["| chapter | needs | is needed by |", "|:--|:--|:--|"]
    for one in book.values():
        before = ", ".join(link(other, other.number) for other in named(book, one.needs))
        after = ", ".join(link(other, other.number) for other in book.values() if one.number in other.needs)
        rows.append(f"| {link(one)} | {before} | {after} |")
    return "\n".join(rows)


# ---- Board plans

STEPS, SESSION = 10, 90  # most steps of a board plan; minutes of a session
HEADING = re.compile(r"^#{2,3} (.+)$", re.M)
EQUATION = re.compile(r"^`{3,}\{math\}\n(?::[^\n]*\n)*(.*?)\n^`{3,}$", re.M | re.S)
DERIVED = re.compile(r"\\begin\{align\*\}.*?\\end\{align\*\}", re.S)
LABELLED = re.compile(r"^:{3,}\{(figure|prf:theorem)\}[^\n]*\n:label: (\S+)", re.M)
PREDICT = re.compile(r"^:{3,}\{admonition\} Predict\n:class: predict\n(.*?)^:{3,}$", re.M | re.S)
AWAY = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass
class Step:
    """A step of a board plan, one or more sections: Markdown to write on the board, to show, and to ask the class."""

    titles: list[str]
    minutes: float = 0.0
    board: list[str] = field(default_factory=list)
    derivations: int = 0
    shown: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    mistake: bool = False

    def __add__(self, other: "Step") -> "Step":
        return Step(*(getattr(self, name) + getattr(other, name) for name in Step.__dataclass_fields__))


def steps(notebook: nbformat.NotebookNode) -> list[Step]:
    """Divide a chapter into at most ten steps, by joining the two neighbouring steps with the least total time."""
    found = [Step([])]
    for part, cell in count.parts(notebook):
        if part != "page":
            break
        tags = set(cell.metadata.get("tags", ()))
        if cell.cell_type == "code":
            found[-1].minutes += count.seen(cell) / 10
            if "gap" in tags:
                found[-1].gaps += sorted(asked(cell))
            continue
        pieces = HEADING.split(cell.source)
        for number, piece in enumerate(pieces):
            if number % 2:
                found.append(Step([piece]))
            else:
                _fill(found[-1], piece)
    found = [one for one in found if one.titles and one.titles[0] not in ("Summary", "Where it landed")]
    while len(found) > STEPS:
        pairs = [found[i].minutes + found[i + 1].minutes for i in range(len(found) - 1)]
        at = pairs.index(min(pairs))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


def _fill(step: Step, text: str) -> None:
    """Add to a step the equations, figures and questions in a piece of Markdown."""
    step.minutes += count.words(text) / 110 + 0.3 * len(count.FORMULA.findall(text))
    step.board += [body.strip().rstrip(".,; ") for body in EQUATION.findall(text)]
    step.derivations += len(DERIVED.findall(text))
    step.shown += [f"{{numref}}`{label}`" for kind, label in LABELLED.findall(text) if kind == "figure"]
    step.board += [f"{{prf:ref}}`{label}`" for kind, label in LABELLED.findall(text) if kind != "figure"]
    step.asked += [AWAY.sub(r"\1", " ".join(said.split())) for said in PREDICT.findall(text)]
    step.mistake |= bool(BOX.search(text))


def board(book: dict[str, Chapter], number: str, root: Path = ROOT) -> str:
    """Return a folded box with the board plan of a chapter: a numbered list of steps with their minutes."""
    (one,) = named(book, [number])
    found = steps(nbformat.read(root / "notebooks" / f"{one.name}.ipynb", as_version=4))
    total, until = sum(step.minutes for step in found), 0.0
    lines = [f"::::{{admonition}} Board plan, {SESSION} minutes", ":class: dropdown", ""]
    for place, step in enumerate(found, 1):
        began = round(until * SESSION / total)
        until += step.minutes
        told = [f"Derivations: {step.derivations}."] if step.derivations else []
        told += [f"Show {', '.join(step.shown)}."] if step.shown else []
        told += [f"Ask: {' '.join(step.asked)}"] if step.asked else []
        told += [f"From the gaps: {', '.join(f'`{name}`' for name in step.gaps)}."] if step.gaps else []
        told += ["Show the real mistake."] if step.mistake else []
        texts = [body if body[0] == "{" else f"$$\n{body}\n$$" for body in step.board]
        texts = "\n\n".join([*texts, *filter(None, [" ".join(told)])])
        minutes = round(until * SESSION / total) - began
        lines += [
            f"{place}. **{'; '.join(step.titles)}** ({minutes} min)",
            "",
            textwrap.indent(texts, " " * 4),
            "",
        ]
    return "\n".join([*lines, "::::"])
