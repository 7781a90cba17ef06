"""An autograder's zip, run as Gradescope runs it: whatever is handed in, there are results, and they are valid."""

import json
import zipfile

import paper_answers
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -e .[instructor]")

from submissions import Answers, fill, kinds  # noqa: E402

from nanoeuler_lib.errors import NanoEulerError  # noqa: E402
from tools.course import gradescope  # noqa: E402
from tools.course.papers import papers  # noqa: E402

SEED = "a seed that the tests know"
ADA = {"email": "ada@x.org", "name": "Lovelace, Ada"}


def unpacked(root, *words):
    with zipfile.ZipFile(gradescope.pack("08", *words, out=root / "autograder.zip")) as file:
        modes = {item.filename: item.external_attr >> 16 for item in file.infolist()}
        file.extractall(root / "source")
    assert modes["setup.sh"] & modes["run_autograder"] & 0o111 == 0o111
    (root / "source" / "nanoeuler").rename(root / "nanoeuler")  # as setup.sh does
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("paper")
    (root / "seed.txt").write_text(SEED + "\n")
    (root / "roster.csv").write_text("Student,ID,SIS Login ID,Section\nAda Lovelace,1,ada@x.org,S\nBob,2,bob,S\n")
    return unpacked(root, root / "seed.txt", root / "roster.csv")


def handed_in(root, tmp_path, files, users):
    """What results.json says of a submission. Without another user, whom root alone can choose."""
    for name, text in files.items():
        (root / "submission").mkdir(exist_ok=True)
        (root / "submission" / name).write_text(text)
    (root / "submission").rename(tmp_path / "submission") if files else (tmp_path / "submission").mkdir()
    for name in ("source", "nanoeuler"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "submission_metadata.json").write_text(json.dumps({"users": users}))
    found = json.loads(json.dumps(gradescope.results(tmp_path, user="")))
    assert "score" in found or all({"name", "score", "max_score", "output"} <= t.keys() for t in found["tests"])
    assert SEED not in json.dumps(found)
    return found


def test_a_paper_is_marked_and_its_marks_wait_until_they_are_published(root, tmp_path, monkeypatch):
    right = paper_answers.right("08", SEED, "Ada Lovelace", monkeypatch)
    wrong = right | {"repaired": "def repaired(*arrays):\n    raise SystemExit('no')\n"}
    found = handed_in(root, tmp_path, {"answers (1).py": paper_answers.file(wrong)}, [ADA])
    assert [(t["score"], t["max_score"]) for t in found["tests"]] == [(4, 4), (0, 3), (3, 3)]
    assert {t["visibility"] for t in found["tests"]} == {"after_published"}
    assert found["tests"][1]["output"] == "SystemExit: no"


@pytest.mark.parametrize(
    ("files", "users", "said"),
    [
        ({"notes.txt": ""}, [ADA], "Not graded: no file answers.py was handed in."),
        (
            {"answers.py": ""},
            [{"name": "Dan", "email": "dan@x.org"}],
            "'Dan' must be on the list of students exactly once",
        ),
        ({"answers.py": ""}, [ADA, {"name": "Bob"}], "a submission must have one student, got Lovelace, Ada, Bob"),
        ({"answers.py": ""}, [], "got none"),
    ],
)
def test_what_cannot_be_graded_is_told(root, tmp_path, files, users, said):
    found = handed_in(root, tmp_path, files, users)
    assert said in found["output"] and found["score"] == 0 and not found["tests"]


def test_a_file_that_points_to_the_seed_is_none(root, tmp_path):
    (root / "submission").mkdir()
    (root / "submission" / "answers.py").symlink_to(root / "source" / "seed")
    assert "no file answers.py" in handed_in(root, tmp_path, {"a.txt": ""}, [ADA])["output"]


def test_a_paper_without_its_list_or_with_a_short_seed_is_not_packed(tmp_path):
    (tmp_path / "seed.txt").write_text("short")
    (tmp_path / "names.txt").write_text("Ada\n")
    with pytest.raises(NanoEulerError, match="STUDENTS must be given with SEED"):
        gradescope.pack("08", tmp_path / "seed.txt")
    with pytest.raises(NanoEulerError, match="must have at least 12 characters, got 5"):
        gradescope.pack("08", tmp_path / "seed.txt", tmp_path / "names.txt")


@pytest.mark.parametrize("user", ["no-such-user", "root"])
def test_a_user_whose_processes_could_not_be_ended_is_refused(user, monkeypatch):
    with pytest.raises(NanoEulerError, match=r"an account of this machine|unless you are root|no running processes"):
        papers.check_user(user)
    monkeypatch.setattr(papers, "Path", lambda path, known=papers.Path: known(f"/nowhere{path}"))
    for system, said in ((papers.os, "without /proc"), (type("", (), {"name": "nt"}), "Linux or macOS, got")):
        monkeypatch.setattr(papers, "os", system)
        with pytest.raises(NanoEulerError, match=said):
            papers.check_user(user)


@pytest.mark.slow
def test_a_notebook_is_graded_check_by_check(tmp_path):
    root = unpacked(tmp_path)
    (release,) = (root / "nanoeuler" / "_build" / "assignments" / "release" / "08").glob("*.ipynb")
    handed_in = root / "submission" / release.name
    handed_in.parent.mkdir()
    handed_in.write_text("{")  # before the other: in one course an unreadable second hand-in replaces no first
    assert gradescope.results(root, user="")["output"].startswith("Not graded: not a notebook")
    fill(release, kinds(Answers("08").gaps)["wrong0"], handed_in)
    found = gradescope.results(root, user="")
    assert [t["score"] > 0 for t in found["tests"]] == [False, True] * 3
    assert {t["score"] for t in found["tests"]} > {0} and found["tests"][1]["output"] == "rmsnorm_backward: right"
