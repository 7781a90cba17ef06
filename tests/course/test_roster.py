"""One rule of names: rosters, what platforms and browsers call a hand-in, the table that goes back."""

import csv
import os
import unicodedata
from datetime import datetime

import pytest

from nanoeuler_lib.errors import NanoEulerError
from tools.course import roster

CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Chapter 08 (42),Final Score
    Points Possible,,,,,10,(read only)
"Lovelace, Ada",12345,u1,alovelace,S1,,
"Müller, Käthe",12346,u2,km@uni.edu,S1,3,
"O'Brien, Tim",12347,u3,tim_o,S1,,
"Student, Test",9,,x,S1,,
"""
MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (grade)
Participant 123456,Ada Lovelace,alovelace@uni.edu,Submitted,,10.00,-
Participant 123457,Käthe Müller,km@uni.edu,Submitted,,10.00,-
Participant 123458,Tim O'Brien,tim_o@uni.edu,Submitted,,10.00,-
"""
BLACKBOARD = """"Last Name","First Name","Username","Student ID","Chapter 08 [Total Pts: 10 Score] |77"
"Lovelace","Ada","alovelace","1",""
"Müller","Käthe","km","2",""
"O'Brien","Tim","tim_o","3",""
"""
FILES = {"canvas": CANVAS, "moodle": MOODLE, "blackboard": BLACKBOARD, "": "Ada Lovelace\nMüller, Käthe\nTim O'Brien\n"}


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "roster").write_text(text)
        return roster.read(tmp_path / "roster")

    return read


@pytest.mark.parametrize("platform", FILES)
def test_a_roster_is_read_and_a_mark_of_windows_is_no_letter(platform, read):
    found = read("\ufeff" + FILES[platform])
    assert found.platform == platform
    second = "Käthe Müller" if platform else "Müller, Käthe"
    assert [s.name for s in found.students] == ["Ada Lovelace", second, "Tim O'Brien"]


@pytest.mark.parametrize(
    "text, said",
    [
        ("a\nb\nA\n", "'a' twice"),
        (unicodedata.normalize("NFD", "Käthe") + "\nKäthe", "'Käthe' twice"),
        ("a/b\n", "got 'a/b'"),
        ("-a\n", "must begin with a letter or digit"),
        ("name,mail,group\na,b,c\n", "got the columns name, mail, group"),
    ],
)
def test_a_roster_that_cannot_be_one_is_refused(text, said, read):
    with pytest.raises(NanoEulerError, match=said):
        read(text)


def test_two_of_one_name_are_told_apart_by_their_ids(read):
    found = read("Full name,ID number,Email address\nAda L,-,a1@x.edu\nAda L,-,a2@x.edu\n")
    assert [s.name for s in found.students] == ["Ada L a1@x.edu", "Ada L a2@x.edu"]
    assert [s.name for s in found.matches("Ada L")] == ["Ada L a1@x.edu", "Ada L a2@x.edu"]
    assert [s.name for s in found.matches("a2")] == ["Ada L a2@x.edu"]


LABELS = {  # what a platform or a browser calls it, and whose it is of all four rosters above
    "Ada Lovelace": 0,
    "ada.lovelace": 0,
    "Lovelace Ada": 0,
    "lovelaceada_12345_678910_answers": 0,
    "lovelaceada_LATE_12345_678910_answers-1": 0,
    "Ada Lovelace_123456_assignsubmission_file": 0,
    "Ada Lovelace_123456_assignsubmission_file_answers": 0,
    "Käthe Müller (1)": 1,
    unicodedata.normalize("NFD", "Käthe Müller"): 1,
    "MÜLLER, KÄTHE": 1,
    "Kathe Muller": 1,
    "Chapter 08_alovelace_attempt_2026-11-26-12-00-00_answers": 0,
    "Chapter 08_alovelace_attempt_2026-11-26-12-00-00_x_km_attempt_2026-11-26-12-00-00_answers": 0,
    "Part_2_tim_o_attempt_2026-11-26-12-00-00_answers": 2,
    "dan": None,
    "Ada": None,
    "__": None,
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("platform", FILES)
def test_whose_a_label_is(label, platform, read):
    if "attempt" in label and platform == "":
        pytest.skip("a login is on no list of names")
    found = read(FILES[platform])
    expected = [] if LABELS[label] is None else [found.students[LABELS[label]]]
    assert roster.students_named(roster.canonical(label), found) == expected


def test_the_last_file_counts_and_what_belongs_to_nobody_is_refused(read, tmp_path):
    found, folder = read(BLACKBOARD), tmp_path / "in"
    (folder / "__MACOSX").mkdir(parents=True)
    for hour in (12, 9):
        (folder / f"Chapter 08_alovelace_attempt_2026-12-02-{hour:02}-00-00_answers.py").touch()
    (folder / "Käthe Müller" / "__MACOSX").mkdir(parents=True)
    for name, seconds in (
        ("answers.py", 100),
        ("answers (1).py", 200),
        ("given.py", 300),
        ("__MACOSX/answers.py", 400),
    ):
        (folder / "Käthe Müller" / name).touch()
        os.utime(folder / "Käthe Müller" / name, (seconds, seconds))
    got = roster.handed_in(folder, "answers.py", found)
    assert list(got) == ["Ada Lovelace", "Käthe Müller", "Tim O'Brien"]
    ada, kathe, tim = got.values()
    assert ada.when == datetime(2026, 12, 2, 12) and ada.remark.startswith("2 files, the last counts")
    for due, days in (("", ""), ("2026-12-01T12:00", 1), ("2026-12-01", 1), ("2026-11-30T11:59", 3)):
        assert ada.late_days(roster.due_date(due)) == days
    assert kathe.path.name == "answers (1).py"
    assert (tim.path, tim.remark) == (None, "nothing handed in")
    (folder / "obrientim_LATE_3_9_answers.py").touch()
    assert roster.handed_in(folder, "answers.py", found)["Tim O'Brien"].late_days(None) == 1
    (folder / "dan.py").touch()
    with pytest.raises(NanoEulerError, match=r"got dan\.py \(not on the roster\)"):
        roster.handed_in(folder, "answers.py", found)
    with pytest.raises(NanoEulerError, match="must be like 2026-12-01T12:00"):
        roster.due_date("tomorrow")


@pytest.mark.parametrize("platform, column", [("canvas", "Chapter 08 (42)"), ("moodle", "Grade"), ("blackboard", None)])
def test_the_table_goes_back_with_the_columns_that_identify(platform, column, read, tmp_path):
    found = read(FILES[platform])
    points = {"Ada Lovelace": 7.5, "Käthe Müller": None, "Tim O'Brien": 0}
    roster.write_grades(tmp_path / "out.csv", found, "Chapter 08", points, 10)
    *above, ada, kathe, tim = csv.DictReader((tmp_path / "out.csv").open())
    column = column or found.columns[-1]
    assert [row[column] for row in (ada, kathe, tim)] == ["7.5", "", "0"]
    identified = {"canvas": "12345", "moodle": "Participant 123456", "blackboard": "alovelace"}[platform]
    assert identified in ada.values() and "Final Score" not in ada
    assert [row["Student"].strip() + row[column] for row in above] == ["Points Possible10"] * (platform == "canvas")
    assert roster.read(tmp_path / "out.csv").students[0].name == "Ada Lovelace"
