"""What the instructor guide computes: a chapter's facts, wrong answers with what checks say, term plans, board plans.

Each function returns Markdown for the directive of its name (`tools/book/pages.py`). Nothing here is typed twice: hours
come from `tools.notebooks.count`, needs and aims from the chapters' heads, sentences of checks from the stored outputs.
A plan that puts a chapter before one that it needs, or a wrong answer that no check rejects, is a GuideError.
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
    """What a page of the guide says and the book does not."""


def link(chapter: Chapter, text: str | None = None) -> str:
    return f"[{text or chapter.title}](/notebooks/{chapter.name}.ipynb)"


def hours(amount: float) -> str:
    """Whole and half hours: 1.5 -> "1½ h", with a space that breaks no line."""
    whole, half = divmod(amount, 1)
    number = f"{whole:.0f}{'½' * bool(half)}" if whole or not half else "½"
    return f"{number}\N{NO-BREAK SPACE}h"


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

    A line may name what is due: `when | chapters | due | what happens`, with labels of exercises (without `ex-`) and
    papers (`paper-06`). Its hours are then those of the page and of these exercises.
    without: chapters that others of the plan need and that it leaves out on purpose. GuideError on a chapter that is
    unknown or comes twice, on a need that no row up to its own meets, on a `without` that nothing needs, and on work
    that is unknown, comes twice or is due before its chapter.
    """
    lines = [[c.strip() for c in line.split("|")] for line in text.split("\n") if line.strip()]
    with_due = all(len(cells) == 4 for cells in lines)
    rows = ["| when | chapters | page | with exercises | what happens |", "|:--|:--|--:|--:|:--|"]
    if with_due:
        rows = ["| when | chapters | due | page | page + due | what happens |", "|:--|:--|:--|--:|--:|:--|"]
    seen, left_out, done, sums = [], set(), [], [0.0, 0.0]
    for cells in lines:
        if len(cells) != 3 + with_due:
            raise GuideError(f"expected `when | chapters | what happens`, got {' | '.join(cells)!r}")
        when, numbers, *due, what = cells
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
        if due:
            work = due[0].split()
            done += work
            told, minutes = _due(named(book, seen), work, when)
            amounts[1] = amounts[0] + -(-minutes // 30) / 2
            if len(set(done)) < len(done):
                raise GuideError(f"{when}: {max(done, key=done.count)} is due twice")
        sums = [old + new for old, new in zip(sums, amounts, strict=True)]
        page, whole = (hours(amount) if amount else "" for amount in amounts)
        when = when.replace(" ", "\N{NO-BREAK SPACE}")
        cells = [when, "<br>".join(map(link, group)), *([told] if due else []), page, whole, what]
        rows.append(f"| {' | '.join(cells)} |")
    if idle := sorted(set(without) - left_out):
        raise GuideError(f"left out on purpose, and nothing needs it: {', '.join(idle)}")
    total = ["in all", f"{len(seen)} chapters", *([""] if with_due else []), *map(hours, sums), ""]
    rows.append(f"| {' | '.join(total)} |")
    return "\n".join(rows)


def _due(group: list[Chapter], work: list[str], when: str) -> tuple[str, float]:
    """What is due as Markdown, and the minutes of its exercises."""
    told, minutes = [], 0.0
    exercises = {label: one for one in group for label in one.exercises}
    for name in work:
        if name.removeprefix("paper-") in {one.number for one in group} & set(PAPERS):
            told.append(name.replace("-", " "))
        elif name in exercises:
            title, is_open = exercises[name].exercises[name]
            told.append(f"{{ref}}`{title} <ex-{name}>`")
            minutes += count.OPEN if is_open else count.EXERCISE
        else:
            raise GuideError(f"{when}: {name} is no exercise or paper of a chapter up to there")
    return "<br>".join(told), minutes


def needs(book: dict[str, Chapter]) -> str:
    """A table of what each chapter needs and what needs it."""
    rows = ["| chapter | needs | is needed by |", "|:--|:--|:--|"]
    for one in book.values():
        before = ", ".join(link(other, other.number) for other in named(book, one.needs))
        after = ", ".join(link(other, other.number) for other in book.values() if one.number in other.needs)
        rows.append(f"| {link(one)} | {before} | {after} |")
    return "\n".join(rows)


# ---- Board plans

STEPS, SESSION = 10, 90  # of a chapter; minutes
HEADING = re.compile(r"^#{2,3} (.+)$", re.M)
EQUATION = re.compile(r"^`{3,}\{math\}\n(?::[^\n]*\n)*(.*?)\n^`{3,}$", re.M | re.S)
DERIVED = re.compile(r"\\begin\{align\*\}.*?\\end\{align\*\}", re.S)
LABELLED = re.compile(r"^:{3,}\{(figure|prf:theorem)\}[^\n]*\n:label: (\S+)", re.M)
PREDICT = re.compile(r"^:{3,}\{admonition\} Predict\n:class: predict\n(.*?)^:{3,}$", re.M | re.S)
AWAY = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass
class Step:
    """What an instructor does between two headings: lines of Markdown for the board, for the screen, to ask."""

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
    """The chapter's page as at most ten steps, the shortest joined to the shorter of their neighbours."""
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
    """Add to a step what a piece of its section's text holds."""
    step.minutes += count.words(text) / 110 + 0.3 * len(count.FORMULA.findall(text))
    step.board += [body.strip().rstrip(".,; ") for body in EQUATION.findall(text)]
    step.derivations += len(DERIVED.findall(text))
    step.shown += [f"{{numref}}`{label}`" for kind, label in LABELLED.findall(text) if kind == "figure"]
    step.board += [f"{{prf:ref}}`{label}`" for kind, label in LABELLED.findall(text) if kind != "figure"]
    step.asked += [AWAY.sub(r"\1", " ".join(said.split())) for said in PREDICT.findall(text)]
    step.mistake |= bool(BOX.search(text))


def board(book: dict[str, Chapter], number: str, root: Path = ROOT) -> str:
    """A folded box with a chapter's session at the board: a numbered list of steps with their minutes."""
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
        told += ["Tell the real mistake."] if step.mistake else []
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
