"""Feedback pages for students: each exercise with its points, the message of its check, and the student's answer.

A page is one HTML file that loads nothing from other hosts.
"""

import html
import re
from pathlib import Path

import nbformat

from nanoeuler_lib.files import printable

TITLE = re.compile(r"^`{3,}\{exercise\} *(.*)$|^#{2,4} +(.*)$", re.M)
COLOURS = re.compile(r"\x1b\[[\d;]*m")
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }}
h2 {{ font-size: 1.1rem; margin: 1.6rem 0 0; padding-left: .6rem; border-left: .3rem solid #888 }}
h2.right {{ border-color: #1b7a3d }} h2.wrong {{ border-color: #c02020 }} p {{ margin: .2rem 0 }}
pre {{ background: #f4f4f4; color: #111; padding: .6rem; overflow: auto; white-space: pre-wrap }}
</style></head><body>
<h1>{title}</h1>
<p>{points}</p>
{remark}{parts}
</body></html>
"""


def write(path: Path, notebook: Path, title: str, line: dict, graded: dict[str, dict]) -> None:
    """Write a student's page.

    notebook: the graded notebook. line: the student's row of the table. graded: for each graded cell, by its nbgrader
    id, a dict with score, of (the maximum), waiting (whether a person must grade it) and comment.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    waiting = f", and {line['waiting for a person']:g} that a person gives" if line["waiting for a person"] else ""
    late = f" Late days: {line['late days']}." if str(line["late days"]) not in ("", "0") else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        PAGE.format(
            title=html.escape(title),
            points=f"{line['points']:g} of {line['of']:g} points{waiting}.{late}",
            remark=f"<p>{html.escape(line['remark'])}</p>\n" if line["remark"] else "",
            parts="\n".join(_parts(cells, graded)),
        ),
        encoding="utf-8",
    )


def _parts(cells: list, graded: dict[str, dict]):
    for exercise, answer, cell in exercises(cells):
        found = graded.get(cell.metadata.nbgrader.grade_id)
        if found is None:
            continue
        words = cell.cell_type == "markdown"
        given = "a person will grade it" if found["waiting"] else f"{found['score']:g} of {found['of']:g} points"
        colour = {found["of"]: "right", 0: "wrong"}.get(found["score"], "") if not found["waiting"] else ""
        yield f'<h2 class="{colour}">{html.escape(exercise)}: {given}</h2>'
        said = "" if words else sentence(cell, answer if found["score"] < found["of"] else None)
        yield from (f"<p>{html.escape(text)}</p>" for text in (said, found["comment"]) if text)
        yield f"<pre>{html.escape(cell.source if words or not answer else answer.source)}</pre>"


def exercises(cells: list):
    """For each graded cell, yield the exercise's name, the answer's cell (None if missing), and the graded cell."""
    exercise, answer = "", None
    for cell in cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            yield exercise, answer, cell
        elif marks.get("grade_id"):
            answer = cell
        elif cell.cell_type == "markdown" and (titles := TITLE.findall(cell.source)):
            exercise = "".join(titles[-1])


def sentence(cell, answer=None) -> str:
    """Return the message of a check: its output or its error. An error of the answer comes first."""
    before = stop(answer, where=True) if answer is not None else ""
    texts = [out.text for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    printed = "".join(text for text in texts if not before or "the cell above stopped" not in text)
    said = [before, printed.strip(), "" if before else stop(cell)]
    return printable(COLOURS.sub("", ". ".join(filter(None, said)))).strip()


def stop(cell, where: bool = False) -> str:
    """Return the error that stopped a cell, "" if there is none; if `where` is true, include the line number."""
    errors = [out for out in cell.get("outputs", []) if out.output_type == "error"]
    if not errors:
        return ""
    if errors[-1].ename == "CellTimeoutError":
        return f"stopped: {errors[-1].evalue}"
    trace = COLOURS.sub("", "\n".join(errors[-1].traceback))
    line = re.search(r"Cell In\[\d+\], line (\d+)", trace)
    said = re.sub(r" \([^()]*line \d+\)$", "", errors[-1].evalue)
    return f"{errors[-1].ename}{f' in line {line[1]}' if line and where else ''}: {said}"
