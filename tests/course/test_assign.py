"""Test graded papers: right answers earn all points, a wrong answer loses its own points, cheating earns none."""

import csv
import os
import subprocess
import sys
import time
from itertools import product

import numpy as np
import paper_answers
import pytest

from nanoeuler_lib.command.cli import main
from tools.course.papers import papers, problems, worker

SEED, STUDENT = "a seed for the tests", "emmy"
full = pytest.mark.full(but=["06", "08"])
each_chapter = lambda test: full(pytest.mark.parametrize("chapter", papers.CHAPTERS)(test))


@pytest.fixture(scope="module")
def right():
    """Return {chapter: {problem: source of a right answer}}."""
    patch = pytest.MonkeyPatch()
    return {chapter: paper_answers.right(chapter, SEED, STUDENT, patch) for chapter in papers.CHAPTERS}


def marks_of(chapter, answers, tmp_path, seed=SEED, student=STUDENT):
    path = tmp_path / "answers.py"
    path.write_text(paper_answers.file(answers))
    return {m.problem: m for m in papers.grade(chapter, seed, student, path)}


# ---- Points


@each_chapter
@pytest.mark.parametrize("seed", [SEED, *(pytest.param(str(n), marks=pytest.mark.slow) for n in range(6))])
def test_right_answers_earn_everything(seed, chapter, tmp_path, monkeypatch):
    marks = marks_of(chapter, paper_answers.right(chapter, seed, STUDENT, monkeypatch), tmp_path, seed)
    assert {m.said for m in marks.values()} == {""}
    assert [m.points for m in marks.values()] == [m.of for m in marks.values()] == [4, 3, 3]


@each_chapter
def test_each_wrong_answer_is_wrong(chapter, right):
    """Test only the judgement, in this process; a test below checks the points that are lost."""
    for problem in papers.paper(chapter, SEED, STUDENT):
        source = right[chapter][problem.name]
        calls = problem.calls(np.random.default_rng(5))
        assert judged(problem, source, calls) == ""
        for name, answer in paper_answers.wrong(chapter, problem.name, source, problem.contract).items():
            assert judged(problem, answer, calls), f"{problem.name}: accepted: {name}"
        for value, shape in product((np.nan, np.inf, 1j, complex(np.nan, 0)), ((), (0,), (1,), (2,), (1, 1))):
            assert problem.judge(*calls[0], [np.full(shape, value)]), (problem.name, value, shape)
        assert problem.judge(*calls[0], [])


def judged(problem, source, calls):
    """Return the grader's message about a source, without a separate process."""
    names = problems.functions(paper_answers.TAPE + problem.given)
    exec(source, names)
    for inputs, truth in calls:
        with np.errstate(all="ignore"):
            result = names[problem.name](*(a.copy() for a in inputs))
            if result is None:
                return "not written yet"
            if said := problem.judge(inputs, truth, worker.arrays_of(result)):
                return said
    return ""


# ---- Papers


@each_chapter
def test_every_student_has_another_paper(chapter):
    texts = [[p.statement + p.contract for p in papers.paper(chapter, SEED, f"s{i}")] for i in range(12)]
    derive, repair, measure = (len(set(column)) for column in zip(*texts, strict=True))
    assert derive >= 11 and repair >= 11
    assert measure >= 3, "each student has new data, from one of a few distributions"
    again, other = (papers.paper(chapter, seed, "s1")[0] for seed in (SEED, SEED + "!"))
    assert again.statement + again.contract == texts[1][0] != other.statement + other.contract


@pytest.mark.full
def test_a_seed_and_a_name_that_run_together_are_another_pair():
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("a b", "c"), ("a", "b c")]
    papers_ = [papers.paper("08", *pair) for pair in pairs]
    assert len({"".join(p.statement + p.contract for p in paper) for paper in papers_}) == len(pairs)


@each_chapter
def test_a_classmates_answers_earn_nothing(chapter, right, tmp_path):
    marks = marks_of(chapter, right[chapter], tmp_path, student="ada")
    earned = {name for name, m in marks.items() if m.points}
    assert earned <= {"measured"}, "two students may share only the method of a measurement"


@each_chapter
def test_the_given_function_breaks_its_rule_on_the_graders_data(chapter):
    for student in range(40):
        repaired = papers.paper(chapter, SEED, str(student))[1]
        calls = repaired.calls(np.random.default_rng(student))
        assert judged(repaired, repaired.contract, calls), f"student {student}: the broken rule must be visible"


@pytest.mark.full
def test_a_student_can_try_the_examples(right, tmp_path):
    folder = tmp_path / "paper"
    papers.hand_out("08", SEED, STUDENT, folder)
    tried = dict(cwd=folder, capture_output=True, text=True, check=True)
    run = lambda: subprocess.run([sys.executable, "try_answers.py"], **tried).stdout
    assert "backward: None: not written yet" in run()
    (folder / "answers.py").write_text(paper_answers.file(right["08"]))
    said = run()
    assert "backward: float64 (4, 3), float64 (3,)" in said and "the example was made from [" in said


# ---- Cheats and accidents


HOSTILE = {
    "system exit": "raise SystemExit(0)\n",
    "no Python": "def weights(:\n",
    "an object": "import numpy as np\ndef weights(o):\n    return np.array([object()] * len(o))\n",
    "a liar": """
import numpy as np
class Liar(np.ndarray):
    __sub__ = __mul__ = __eq__ = lambda self, other: 0
def weights(o):
    return np.zeros(o.shape).view(Liar)
""",
    "its own results": "import os\nopen('results.npz', 'wb').write(b'PK' + b'0' * 99)\nos._exit(0)\n",
    "the grader": "from tools.course.papers import papers\ndef weights(o):\n    return papers.paper\n",
    "another process": "import os, sys\nif os.fork():\n    os._exit(0)\n",
    "memory": "import numpy as np\nkept = [np.ones(2**27) for _ in range(99)]\n",
    "a large file": "open('x', 'wb').write(bytes(2**28))\n",
    "a deep stack": "def weights(o):\n    return weights(o)\n",
    "=1+1": "raise ValueError('\\x1b]0;=1\\x07')",
    "no room": "",
}  # fmt: skip
LEFT = {  # instead of the results
    "other keys": "np.savez('results.npz', **{'0/x': np.zeros(3)})",
    "a pipe": "os.mkfifo('results.npz')",
    "a link": "np.savez('x.npz', x=1)\nos.symlink('x.npz', 'results.npz')",
    "a bomb": "np.savez_compressed('results.npz', **{f'{n}/0': np.zeros(2**20) for n in range(6)})",
    "a pickle": "np.savez('results.npz', **{'0/0': np.array([print], object)})",
    "forged": "np.savez('results.npz', error='right\\nweights: 4 of 4\\x1b[2J')",
}
HOSTILE |= {name: f"import os\nimport numpy as np\n{does}\nos._exit(0)\n" for name, does in LEFT.items()}
SAID = {"other keys": "not every call", "forged": "right weights: 4 of 4", "memory": "MemoryError"}
SAID |= {"=1+1": "ValueError: \ufffd]0;=1\ufffd", "the grader": "ImportError: tool", "no room": "this problem"}


@pytest.mark.full
def test_a_hostile_submission_costs_its_own_points_alone(right, tmp_path, capsys, monkeypatch):
    for name, text in (HOSTILE | {STUDENT: paper_answers.file(right["05"])}).items():
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "answers.py").write_text(text)
    (tmp_path / "in" / "linked.py").symlink_to(__file__)
    (tmp_path / "in" / "to a file of the marker").mkdir()
    (tmp_path / "in" / "to a file of the marker" / "answers.py").symlink_to(__file__)
    (tmp_path / "in" / "nowhere.py").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "in" / "waits.py")
    run, calls = papers.run, iter(range(999))

    def interrupted(*arguments):
        if next(calls) == 9:  # while it grades the fourth student
            raise KeyboardInterrupt
        if arguments[3].parent.name == "no room":
            raise OSError(28, "No space left on device")
        return run(*arguments)

    mark = ["assign", "05", "--seed", SEED, "--grade", f"{tmp_path}/in", "--out", f"{tmp_path}/out"]
    monkeypatch.setattr(papers, "run", interrupted)
    assert main(mark) == 130
    assert len(list(csv.reader((tmp_path / "out" / "marks.csv").open()))) == 4, "a header and three students"
    assert main(mark) == 0 and capsys.readouterr().out.count("graded before") == 3
    rows = {r["student"].lstrip("'"): r for r in csv.DictReader((tmp_path / "out" / "marks.csv").open())}
    none = {"linked", "nowhere", "waits", "to a file of the marker"}
    assert rows.keys() == {*HOSTILE, STUDENT, *none}
    assert not [row for row in rows.values() if None in row.values() or row["student"].startswith("=")]
    assert {papers.cell(text)[0] for text in ("=1", "+1", "-1", "@S", "\t=", "\r=")} == {"'"}
    for name in HOSTILE:
        wrong = rows[name]["weights: what was wrong"]
        assert wrong and wrong.startswith(SAID.get(name, "the process ended" if name in LEFT else "")), name
    assert [rows[name]["points"] for name in (*HOSTILE, STUDENT)] == [*"0" * len(HOSTILE), "10"]
    assert all(rows[name]["remark"].startswith("no file answers.py") for name in none)
    texts = "".join(path.read_text() for path in (tmp_path / "out").iterdir())
    assert "weights: 4 of 4. Right.\n" in texts and not {"\x1b", "\x07"} & {*texts}


@pytest.mark.full
def test_an_endless_loop_ends(tmp_path, monkeypatch):
    path = tmp_path / "answers.py"
    path.write_text("import time\ndef weights(o):\n    while True: time.sleep(1)\n")
    monkeypatch.setattr(papers, "WALL_SECONDS", 3)
    began = time.perf_counter()
    assert papers.run("weights", [(np.ones(2),)], "", path)[1].startswith("no end after")
    assert time.perf_counter() - began < 30


@full
@pytest.mark.slow
@pytest.mark.parametrize("chapter", [c for c in papers.CHAPTERS if c not in ("02", "05", "25")])
def test_difference_quotients_instead_of_a_derivation_run_out_of_time(chapter, tmp_path):
    source = """
import numpy as np
from given import forward

def backward(dy, *inputs):
    grads = []
    for x in inputs:
        grad = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            kept, sums = x[i], []
            for h in (1e-5, -1e-5):
                x[i] = kept + h
                sums.append((forward(*inputs) * dy).sum())
            x[i], grad[i] = kept, (sums[0] - sums[1]) / 2e-5
        grads.append(grad)
    return tuple(grads)
"""
    mark = marks_of(chapter, {"backward": source}, tmp_path)["backward"]
    assert mark.points == 0 and mark.said.startswith("no end after")


# ---- The command


REFUSED = [
    ("8 --seed s --student a", f"CHAPTER must be one of {', '.join(papers.CHAPTERS)}, got '8'"),
    ("08 --seed s --student ../a", "a student's name must begin with a letter or digit"),
    ("08 --seed= --student a", "--seed must be a text that nobody can guess, got an empty one"),
    ("08 --seed s", "one of --student, --students and --grade must be given, got none"),
    ("08 --seed s --grade there", "there: must have NAME/answers.py or NAME.py for each student, got no submission"),
    ("08 --seed s --student a --out there", "there: exists already, expected a new folder"),
]


@pytest.mark.parametrize("words, said", REFUSED)
def test_command_refuses_in_one_line(words, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["assign", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error


@pytest.mark.full
def test_answers_are_marked_against_the_paper_of_the_roster_and_no_other(tmp_path, capsys, right, monkeypatch):
    """Check also that the files handed out do not contain the seed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text(
        "Student,ID,SIS Login ID,Section\n Points Possible,,,\n"
        + f'"{STUDENT}",7,login,S\n"Lovelace, Ada",12345,al,S\n"Müller, Käthe",8,k,S\n'
    )
    hand_out = ["assign", "05", "--seed", SEED, "--students", "list.csv"]
    assert (
        main([*hand_out, "--out", "papers"]) == 0
        and capsys.readouterr().out == "papers: 3 assignments for chapter 05\n"
    )
    files = {file.name: file.read_bytes() for file in (tmp_path / "papers" / "Ada Lovelace").iterdir()}
    assert sorted(files) == ["README.md", "answers.py", "examples.npz", "given.py", "try_answers.py"]
    assert SEED.encode() not in b"".join(files.values())
    mark = [*hand_out, "--grade", "in", "--due", "2999-12-31", "--out"]
    (tmp_path / "in").mkdir()
    answers = tmp_path / "in" / f"{STUDENT.upper()} (1).py"
    answers.write_text(paper_answers.file(right["05"]))
    (tmp_path / "in" / "lovelaceada_LATE_12345_678910_answers.py").write_text("")
    assert main([*mark, "marks"]) == 0
    assert "warning" not in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "marks" / "marks.csv").open()))
    told = {row["student"]: (row["points"], row["late days"], row["remark"]) for row in rows}
    ada, kathe = ("0", "1", ""), ("0", "", "nothing handed in")
    assert told == {STUDENT: ("10", "0", ""), "Ada Lovelace": ada, "Käthe Müller": kathe}
    table = list(csv.DictReader((tmp_path / "marks" / "marks-canvas.csv").open()))
    assert [row["Chapter 05: paper"] for row in table] == ["10", "10", "0", ""]

    answers.rename(tmp_path / "in" / "dan.py")
    assert main([*mark, "other"]) == 2
    assert "in: each name must fit one student of the roster, got dan.py (not on the roster)" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert main(["assign", "05", "--seed", SEED, "--grade", "in"]) == 0
    assert "warning: without --students, names are taken from the folders" in capsys.readouterr().err
