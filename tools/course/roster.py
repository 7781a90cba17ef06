"""Read class lists, and find the student to whom a submitted notebook or individual assignment belongs.

A roster is a text file with one name per line, or a CSV file that Canvas, Moodle or Blackboard exports, recognised by
its headers. Names are compared after folding: Unicode composed, lower case, only letters and digits. `handed_in`
recognises the names that these platforms and browsers give to folders and files, and `write_grades` writes the table
that the platform imports.
"""

import csv
import io
import math
import os
import re
import stat
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.text.data import read_text

ABSENT = "nothing handed in"

# For each platform, in lower case: the headers by which its export is recognised, the columns that identify a student.
PLATFORMS = {
    "canvas": ([{"id", "section"}], ("id", "sis user id", "sis login id", "integration id", "root account")),
    "blackboard": ([{"last name", "first name", "username"}], ("username", "student id")),
    "moodle": (
        [{"email address"}, {"identifier", "full name"}],
        ("identifier", "id number", "username", "email address"),
    ),
}
NAMES = ("student", "lastname", "firstname", "full name", "last name", "surname", "first name", "section")
POINTS_POSSIBLE = "    Points Possible"  # label of Canvas's second row, with the maximum of each column

COPY = re.compile(r"(.*\S) ?\(\d{1,2}\)")  # the name that a browser gives to a second download
LABELS = (  # how Canvas, Moodle and Blackboard name a file, or the folder that contains it
    re.compile(r"(?P<who>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_\d+_(?P<file>.+)"),
    re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)"),
    re.compile(r".*?_(?P<who>[^_]+)_attempt_(?P<stamp>\d{4}(?:-\d\d){5})_?(?P<file>.*)"),
)


def canonical(name: str) -> str:
    """Return a name in Unicode's composed form (NFC), with single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def fold(name: str, marks: bool = True) -> str:
    """Return a name's lower-case letters and digits (NFC) for comparisons, with accents only if `marks` is true."""
    text = unicodedata.normalize("NFC" if marks else "NFKD", unicodedata.normalize("NFC", name).casefold())
    return "".join(c for c in text if unicodedata.category(c)[0] in ("LNM" if marks else "LN"))


def check_name(name: str) -> None:
    """Raise NanoEulerError if a student's name cannot be the name of a folder."""
    known = all(unicodedata.category(c)[0] in "LNM" or c in " ._@'’,()+-" for c in name)
    if not known or not name[:1].isalnum() or name[-1] in " .":
        raise NanoEulerError(
            "a student's name must begin with a letter or digit and have only letters, digits, spaces "
            f"and . - _ @ ' , ( ), got {short(name)}"
        )


# ---- The roster


@dataclass(frozen=True)
class Student:
    """A student of a class: the name used in tables, other spellings (known_by), and the row of the platform's file."""

    name: str
    known_by: tuple[str, ...] = ()
    row: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Roster:
    """A class list. platform: canvas, moodle, blackboard, or "" for a list of names. columns: the file's columns."""

    students: tuple[Student, ...]
    platform: str = ""
    columns: tuple[str, ...] = ()

    def matches(self, spelling: str) -> list[Student]:
        """Return the students whose names match a spelling; accents are ignored if no name with accents matches."""
        for marks in (True, False):
            wanted = fold(spelling, marks)
            found = [s for s in self.students if wanted in {fold(k, marks) for k in _spellings(s)}]
            if found:
                return found
        return []


def _spellings(student: Student) -> list[str]:
    """Return possible spellings of a student's name, including the platforms' spellings with the last words first."""
    words = student.name.split()
    return [*student.known_by, *(" ".join(words[i:] + words[:i]) for i in range(len(words)))]


def read(path: Path) -> Roster:
    """Read a roster from a file.

    Raises NanoEulerError if the file is in no known format, has no name, has a name twice, or has a name that cannot be
    the name of a folder.
    """
    text = read_text(path)
    rows = _table(text)
    header = [cell.strip() for cell in rows[0]] if rows else []
    small = {cell.casefold() for cell in header}
    platform = next((name for name, (sets, _) in PLATFORMS.items() if any(s <= small for s in sets)), "")
    if platform:
        cells = (dict(zip(header, row, strict=False)) for row in rows[1:])
        students = [s for s in (_student(platform, row) for row in cells) if s]
        twice = {s.name for s in students if sum(fold(o.name) == fold(s.name) for o in students) > 1}
        students = [  # students of the same name get the first cell that identifies them as well
            Student(f"{s.name} {s.known_by[0]}", (s.name, *s.known_by), s.row) if s.name in twice else s
            for s in students
        ]
    elif len(header) > 2:
        raise NanoEulerError(
            f"{path}: must have one name per line, or the columns of Canvas (Student, ID, Section), Moodle (Email "
            f"address) or Blackboard (Last Name, First Name, Username), got the columns {', '.join(header)}"
        )
    else:
        students = [Student(canonical(line)) for line in text.splitlines() if line.strip()]
    folded = [fold(s.name) for s in students]
    repeated = next((s.name for s in students if folded.count(fold(s.name)) > 1), "")
    if repeated or not students:
        got = f"{short(repeated)} twice" if students else "no name"
        raise NanoEulerError(f"{path}: must have each student's name once, got {got}")
    for student in students:
        check_name(student.name)
    return Roster(tuple(students), platform, tuple(header) if platform else ())


def _table(text: str) -> list[list[str]]:
    first = text.partition("\n")[0]
    separator = max("\t;,", key=first.count)
    return [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(map(str.strip, row))]


def _student(platform: str, row: dict[str, str]) -> Student | None:
    """Return the student in a row of a platform's file; None if the row has no student."""
    cells = {key.casefold(): (value or "").strip() for key, value in row.items()}
    whole = cells.get("student") or cells.get("full name") or ""
    last, first = (
        next((cells[key] for key in keys if cells.get(key)), "")
        for keys in (("last name", "lastname", "surname"), ("first name", "firstname"))
    )
    if "," in whole:
        last, _, first = whole.partition(",")
    if "points possible" in (whole or last).casefold() or whole == "Student, Test":  # rows that Canvas adds
        return None
    name = canonical(f"{first} {last}" if last else whole)
    ids = [cells[key] for key in PLATFORMS[platform][1] if fold(cells.get(key, ""))]
    ids += [i.rpartition(" ")[2] for i in ids if i.startswith("Participant ")]
    ids += [i.partition("@")[0] for i in ids if "@" in i]
    return Student(name, tuple(ids), row) if name and ids else None


# ---- What was handed in


@dataclass(frozen=True)
class HandedIn:
    """A student's submission: the file (or None), the time if known, the platform's late flag, and a remark."""

    path: Path | None
    when: datetime | None = None
    late: bool = False
    remark: str = ""

    def late_days(self, due: datetime | None) -> int | str:
        """Return the days after the due date, rounded up; "" if there is no due date.

        A file that Canvas calls late is at least one day late.
        """
        after = (self.when - due) / timedelta(days=1) if due and self.when else 0
        days = max(math.ceil(after), int(self.late))
        return days if days or (due and self.path) else ""


def due_date(text: str) -> datetime | None:
    """Read a due date in local time: a date, which ends at midnight, or a date and time; None for an empty text.

    Raises NanoEulerError if the text is neither a date nor a date and time.
    """
    try:
        due = datetime.fromisoformat(text) if text else None
    except ValueError:
        raise NanoEulerError(f"the due date must be like 2026-12-01T12:00, got {short(text)}") from None
    if due and due.tzinfo:
        return due.astimezone().replace(tzinfo=None)
    return due + timedelta(days=1) if due and len(text) == 10 else due


def handed_in(folder: Path, wanted: str, roster: Roster | None = None) -> dict[str, HandedIn]:
    """Find each student's submission in a folder: folder/NAME/wanted, or folder/NAME with the ending of `wanted`.

    With a roster, the result has exactly the roster's students. Without a roster, it has the names of folders and
    files. Raises NanoEulerError if there is no submission, or if an entry fits no student of the roster, or several.
    """
    ending = Path(wanted).suffix
    if not folder.is_dir():
        raise NanoEulerError(f"{folder}: no such folder, expected NAME/{wanted} or NAME{ending} for each student in it")
    found, refused = {}, []
    for entry in sorted(folder.iterdir()):
        if entry.name[0] == "." or entry.name == "__MACOSX" or not (entry.is_dir() or entry.suffix == ending):
            continue
        label = canonical(entry.name if entry.is_dir() else entry.stem)
        students = [label] if roster is None else [s.name for s in students_named(label, roster)]
        if len(students) == 1:
            try:
                files = _files(entry, wanted, label)
            except (OSError, ValueError, OverflowError, RecursionError) as error:  # e.g. no permission
                files = [HandedIn(None, remark=f"no file {wanted} that can be read ({type(error).__name__})")]
            found.setdefault(students[0], []).extend(files)
        else:
            refused.append(f"{entry.name} ({' or '.join(students) if students else 'not on the roster'})")
    if refused:
        raise NanoEulerError(f"{folder}: each name must fit one student of the roster, got {', '.join(refused)}")
    if not found:
        raise NanoEulerError(f"{folder}: must have NAME/{wanted} or NAME{ending} for each student, got no submission")
    names = [s.name for s in roster.students] if roster else sorted(found)
    return {name: _last(found[name], wanted) if name in found else HandedIn(None, remark=ABSENT) for name in names}


def students_named(label: str, roster: Roster) -> list[Student]:
    """Return the students whom `label` may mean; it is the name of a folder, or of a file without the ending."""
    copy = COPY.fullmatch(label)
    if found := roster.matches(label) or (roster.matches(copy[1]) if copy else []):
        return found
    for pattern in LABELS:
        if match := pattern.fullmatch(label):
            named = roster.matches(match["who"])
            by_id = [s for s in roster.students if match.groupdict().get("id") in s.known_by]
            if found := [s for s in named if s in by_id] or named or by_id:
                return found
    at = label.find("_attempt_")  # a login in Blackboard may contain underscores
    cuts = [m.end() for m in re.finditer("_", label[: max(at, 0)])]
    return next((found for cut in cuts if (found := roster.matches(label[cut:at]))), [])


def _files(entry: Path, wanted: str, label: str) -> list[HandedIn]:
    """Return the files in an entry that may be the wanted one, each with its time."""
    parts = next((m.groupdict() for p in LABELS if (m := p.fullmatch(label))), {})
    inside = [entry]
    if entry.is_dir() and not entry.is_symlink():
        hidden = lambda path: any(n[0] == "." or n == "__MACOSX" for n in path.relative_to(entry).parts)
        found = sorted(entry.rglob(f"*{Path(wanted).suffix}"))
        inside = [path for path in found if not hidden(path) and path.name not in ("given.py", "try_answers.py")]
    own = [path for path in inside if is_own(path, entry.parent)]
    paths = [path for path in own if entry in own or _is(path, wanted)] or own
    stamp, late = parts.get("stamp"), bool(parts.get("late"))
    when = datetime.strptime(stamp, "%Y-%m-%d-%H-%M-%S") if stamp else None
    if not paths:
        why = ": links and pipes are not accepted" if inside else ""
        return [HandedIn(None, when, late, f"no file {wanted}{why}")]
    return [HandedIn(path, when or datetime.fromtimestamp(path.stat().st_mtime), late) for path in paths]


def is_own(path: Path, folder: Path) -> bool:
    """Return whether a path is a regular file in the folder without links, because a link may lead out of it."""
    whole = os.path.join(os.path.realpath(folder), path.relative_to(folder))
    return os.path.isfile(path) and os.path.realpath(path) == whole


def _is(path: Path, wanted: str) -> bool:
    """Return whether a file has the wanted name, apart from additions by browsers and platforms."""
    return re.fullmatch(rf"(.*_)?{re.escape(Path(wanted).stem)}( ?\(\d+\)|-\d+)?", path.stem) is not None


def _last(files: list[HandedIn], wanted: str) -> HandedIn:
    """Return a student's last file, and a remark if the student has several files."""
    there = [f for f in files if f.path] or files[:1]
    there = [f for f in there if f.path and _is(f.path, wanted)] or there
    last = max(there, key=lambda f: (f.when or datetime.min, str(f.path)))
    if len(there) == 1:
        return last
    return HandedIn(last.path, last.when, last.late, f"{len(there)} files, the last counts: {one_line(last.path.name)}")


# ---- The platform's table


def write_grades(path: Path, roster: Roster, title: str, points: dict[str, float | None], most: float) -> None:
    """Write the CSV file that the roster's platform imports: the columns that identify students, and the points.

    points: the points of each student; None leaves the cell empty. title: the name of the points' column. If the roster
    has this column, it is used (Canvas appends an id to the name, Blackboard more). most: the maximum. A Moodle
    worksheet keeps all its columns.
    """
    known = {*NAMES, *PLATFORMS[roster.platform][1]}
    worksheet = roster.platform == "moodle" and {"Identifier", "Grade"} <= set(roster.columns)
    same = [c for c in roster.columns if re.split(r" [(\[]", c)[0].casefold() == title.casefold()]
    column = "Grade" if worksheet else same[0] if same else title
    columns = [c for c in roster.columns if worksheet or c.casefold() in known]
    columns += [column] if column not in columns else []
    rows = [columns]
    if roster.platform == "canvas":
        rows.append([{columns[0]: POINTS_POSSIBLE, column: f"{most:g}"}.get(c, "") for c in columns])
    for student in roster.students:
        mark = points.get(student.name)
        cells = student.row | {column: "" if mark is None else f"{mark:g}"}
        rows.append([cells.get(c, "") for c in columns])
    table = io.StringIO()
    csv.writer(table, quoting=csv.QUOTE_ALL if roster.platform == "blackboard" else csv.QUOTE_MINIMAL).writerows(rows)
    write_text(path, table.getvalue())


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a regular file from an untrusted folder, without following a link or waiting for a pipe.

    Raises NanoEulerError if it is a link, pipe, device or folder, has more than `most` bytes, or cannot be read.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        handle = os.open(path, flags)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode) or about.st_size > most:
                raise NanoEulerError(f"{path}: must be a regular file of at most {most} bytes")
            with open(handle, "rb", closefd=False) as file:
                return file.read(about.st_size)
        finally:
            os.close(handle)
    except OSError as error:
        raise NanoEulerError(f"{path}: cannot be read ({error.strerror or error})") from None
