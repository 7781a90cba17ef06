"""Who is in a class, and whose a file is that was handed in: one rule of names for papers and for notebooks.

A roster is a text file with a name a line, or a CSV file that Canvas, Moodle or Blackboard exports, told by its
headers. A name is compared folded: composed, in small letters, letters and digits alone. `handed_in` reads the names
that these platforms and browsers give to folders and files, and `write_grades` the table that the platform imports.
"""

import csv
import io
import math
import os
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line, write_text
from nanoeuler_lib.text.data import read_text

ABSENT = "nothing handed in"

# The headers that tell a platform's export, in small letters, and its columns that identify a student.
PLATFORMS = {
    "canvas": ([{"id", "section"}], ("id", "sis user id", "sis login id", "integration id", "root account")),
    "blackboard": ([{"last name", "first name", "username"}], ("username", "student id")),
    "moodle": (
        [{"email address"}, {"identifier", "full name"}],
        ("identifier", "id number", "username", "email address"),
    ),
}
NAMES = ("student", "lastname", "firstname", "full name", "last name", "surname", "first name", "section")
POINTS_POSSIBLE = "    Points Possible"  # Canvas's second row, with the most of each column

COPY = re.compile(r"(.*\S) ?\(\d{1,2}\)")  # what a browser makes of a second download
LABELS = (  # Canvas, Moodle, Blackboard: what they call a file, or the folder it lies in
    re.compile(r"(?P<who>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_\d+_(?P<file>.+)"),
    re.compile(r"(?P<who>.+?)_(?P<id>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)"),
    re.compile(r".*?_(?P<who>[^_]+)_attempt_(?P<stamp>\d{4}(?:-\d\d){5})_?(?P<file>.*)"),
)


def canonical(name: str) -> str:
    """A name with its letters composed (NFC) and single spaces."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def fold(name: str, marks: bool = True) -> str:
    """What is compared of a name: letters and digits, small, composed; without accents if not `marks`."""
    text = unicodedata.normalize("NFC" if marks else "NFKD", unicodedata.normalize("NFC", name).casefold())
    return "".join(c for c in text if unicodedata.category(c)[0] in ("LNM" if marks else "LN"))


def check_name(name: str) -> None:
    """NanoEulerError for a name that cannot be a folder's."""
    known = all(unicodedata.category(c)[0] in "LNM" or c in " ._@'’,()+-" for c in name)
    if not known or not name[:1].isalnum() or name[-1] in " .":
        raise NanoEulerError(
            f"student is {short(name)}, expected letters, digits, spaces and . - _ @ ' , ( ), "
            "with a letter or digit first"
        )


# ---- The roster


@dataclass(frozen=True)
class Student:
    """name: as papers and tables have it. known_by: other spellings. row: the platform's cells."""

    name: str
    known_by: tuple[str, ...] = ()
    row: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Roster:
    """platform: canvas, moodle, blackboard, or "" for a list of names. columns: those of the platform's file."""

    students: tuple[Student, ...]
    platform: str = ""
    columns: tuple[str, ...] = ()

    def matches(self, spelling: str) -> list[Student]:
        """The students whom a spelling may mean; one without accents counts if no other does."""
        for marks in (True, False):
            wanted = fold(spelling, marks)
            found = [s for s in self.students if wanted in {fold(k, marks) for k in _spellings(s)}]
            if found:
                return found
        return []


def _spellings(student: Student) -> list[str]:
    """How a student may be called: also with the last words of the name first, as platforms do."""
    words = student.name.split()
    return [*student.known_by, *(" ".join(words[i:] + words[:i]) for i in range(len(words)))]


def read(path: Path) -> Roster:
    """The roster in a file. NanoEulerError if it names nobody, or somebody twice, or has names no folder can have."""
    text = read_text(path)
    rows = _table(text)
    header = [cell.strip() for cell in rows[0]] if rows else []
    small = {cell.casefold() for cell in header}
    platform = next((name for name, (sets, _) in PLATFORMS.items() if any(s <= small for s in sets)), "")
    if platform:
        cells = (dict(zip(header, row, strict=False)) for row in rows[1:])
        students = [s for s in (_student(platform, row) for row in cells) if s]
        twice = {s.name for s in students if sum(fold(o.name) == fold(s.name) for o in students) > 1}
        students = [  # two of one name are told apart by the first column that identifies them
            Student(f"{s.name} {s.known_by[0]}", (s.name, *s.known_by), s.row) if s.name in twice else s
            for s in students
        ]
    elif len(header) > 2:
        raise NanoEulerError(
            f"{path} has the columns {', '.join(header)}, expected a name a line, or those of Canvas (Student, ID, "
            "Section), Moodle (Email address) or Blackboard (Last Name, First Name, Username)"
        )
    else:
        students = [Student(canonical(line)) for line in text.splitlines() if line.strip()]
    folded = [fold(s.name) for s in students]
    repeated = next((s.name for s in students if folded.count(fold(s.name)) > 1), "")
    if repeated or not students:
        got = f"{short(repeated)} twice" if students else "no name"
        raise NanoEulerError(f"{path} has {got}, expected each student's name once")
    for student in students:
        check_name(student.name)
    return Roster(tuple(students), platform, tuple(header) if platform else ())


def _table(text: str) -> list[list[str]]:
    first = text.partition("\n")[0]
    separator = max("\t;,", key=first.count)
    return [row for row in csv.reader(io.StringIO(text), delimiter=separator) if any(map(str.strip, row))]


def _student(platform: str, row: dict[str, str]) -> Student | None:
    """The student of a platform's row; None for a row of something else."""
    cells = {key.casefold(): (value or "").strip() for key, value in row.items()}
    whole = cells.get("student") or cells.get("full name") or ""
    last, first = (
        next((cells[key] for key in keys if cells.get(key)), "")
        for keys in (("last name", "lastname", "surname"), ("first name", "firstname"))
    )
    if "," in whole:
        last, _, first = whole.partition(",")
    if "points possible" in (whole or last).casefold() or whole == "Student, Test":  # Canvas's own rows
        return None
    name = canonical(f"{first} {last}" if last else whole)
    ids = [cells[key] for key in PLATFORMS[platform][1] if fold(cells.get(key, ""))]
    ids += [i.rpartition(" ")[2] for i in ids if i.startswith("Participant ")]
    ids += [i.partition("@")[0] for i in ids if "@" in i]
    return Student(name, tuple(ids), row) if name and ids else None


# ---- What was handed in


@dataclass(frozen=True)
class HandedIn:
    """What a student handed in: a file, or None; when, if known; whether the platform says late; what is remarkable."""

    path: Path | None
    when: datetime | None = None
    late: bool = False
    remark: str = ""

    def late_days(self, due: datetime | None) -> int | str:
        """Days after the due date, begun ones counted whole; "" if none is known. Canvas tells that a file is late."""
        after = (self.when - due) / timedelta(days=1) if due and self.when else 0
        days = max(math.ceil(after), int(self.late))
        return days if days or (due and self.path) else ""


def due_date(text: str) -> datetime | None:
    """A date, which lasts until midnight, or a date and time, as this machine's clock tells it; None for no text."""
    try:
        due = datetime.fromisoformat(text) if text else None
    except ValueError:
        raise NanoEulerError(f"the due date is {short(text)}, expected one as 2026-12-01T12:00") from None
    if due and due.tzinfo:
        return due.astimezone().replace(tzinfo=None)
    return due + timedelta(days=1) if due and len(text) == 10 else due


def handed_in(folder: Path, wanted: str, roster: Roster | None = None) -> dict[str, HandedIn]:
    """The students of a folder, each with what was handed in: FOLDER/NAME/WANTED, or FOLDER/NAME with its ending.

    With a roster every student of it, and no other: NanoEulerError names what belongs to nobody, or to several.
    Without one the names are those of the folders and files.
    """
    ending = Path(wanted).suffix
    if not folder.is_dir():
        raise NanoEulerError(f"{folder} is no folder, expected one with NAME/{wanted} or NAME{ending} for each student")
    found, refused = {}, []
    for entry in sorted(folder.iterdir()):
        if entry.name[0] == "." or entry.name == "__MACOSX" or not (entry.is_dir() or entry.suffix == ending):
            continue
        label = canonical(entry.name if entry.is_dir() else entry.stem)
        students = [label] if roster is None else [s.name for s in students_named(label, roster)]
        if len(students) == 1:
            try:
                files = _files(entry, wanted, label)
            except (OSError, ValueError, OverflowError, RecursionError) as error:  # no permission, no such date
                files = [HandedIn(None, remark=f"no file {wanted} that can be read ({type(error).__name__})")]
            found.setdefault(students[0], []).extend(files)
        else:
            refused.append(f"{entry.name} ({'of ' + ' or '.join(students) if students else 'on no roster'})")
    if refused:
        raise NanoEulerError(f"{folder} holds {', '.join(refused)}, expected names of the roster, each of one student")
    if not found:
        raise NanoEulerError(f"{folder} holds no submission, expected NAME/{wanted} or NAME{ending} for each student")
    names = [s.name for s in roster.students] if roster else sorted(found)
    return {name: _last(found[name], wanted) if name in found else HandedIn(None, remark=ABSENT) for name in names}


def students_named(label: str, roster: Roster) -> list[Student]:
    """The students of a roster whom the name of a folder or a file without its ending may mean."""
    copy = COPY.fullmatch(label)
    if found := roster.matches(label) or (roster.matches(copy[1]) if copy else []):
        return found
    for pattern in LABELS:
        if match := pattern.fullmatch(label):
            named = roster.matches(match["who"])
            by_id = [s for s in roster.students if match.groupdict().get("id") in s.known_by]
            if found := [s for s in named if s in by_id] or named or by_id:
                return found
    at = label.find("_attempt_")  # a login of Blackboard's may have lines in it
    cuts = [m.end() for m in re.finditer("_", label[: max(at, 0)])]
    return next((found for cut in cuts if (found := roster.matches(label[cut:at]))), [])


def _files(entry: Path, wanted: str, label: str) -> list[HandedIn]:
    """The files of an entry that may be the one wanted, each with its time."""
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
        why = ": a link or a pipe is not taken" if inside else ""
        return [HandedIn(None, when, late, f"no file {wanted}{why}")]
    return [HandedIn(path, when or datetime.fromtimestamp(path.stat().st_mtime), late) for path in paths]


def is_own(path: Path, folder: Path) -> bool:
    """Whether a path in a folder is a regular file to which no link leads: a link may point to somebody else's."""
    whole = os.path.join(os.path.realpath(folder), path.relative_to(folder))
    return os.path.isfile(path) and os.path.realpath(path) == whole


def _is(path: Path, wanted: str) -> bool:
    """Whether a file has the name that is wanted, perhaps with what a browser or a platform adds to it."""
    return re.fullmatch(rf"(.*_)?{re.escape(Path(wanted).stem)}( ?\(\d+\)|-\d+)?", path.stem) is not None


def _last(files: list[HandedIn], wanted: str) -> HandedIn:
    """Of several files of a student the last, with a remark."""
    there = [f for f in files if f.path] or files[:1]
    there = [f for f in there if f.path and _is(f.path, wanted)] or there
    last = max(there, key=lambda f: (f.when or datetime.min, str(f.path)))
    if len(there) == 1:
        return last
    return HandedIn(last.path, last.when, last.late, f"{len(there)} files, the last counts: {one_line(last.path.name)}")


# ---- The platform's table


def write_grades(path: Path, roster: Roster, title: str, points: dict[str, float | None], most: float) -> None:
    """Write the CSV file that the roster's platform imports: its own columns that identify students, and the points.

    points: for each student; None leaves the cell empty. title: the column's name; if the roster has a column of that
    name (Canvas puts an id behind it, Blackboard more), it is that one. A worksheet of Moodle's keeps all its columns.
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
