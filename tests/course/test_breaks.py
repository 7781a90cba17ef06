"""Test the planted bugs and the messages about a reader's own test.

Each bug is in its file, the broken copy runs, and the bug's tool and its smallest test find the bug. Two processes go
through all broken copies, and import the package again from each copy.
"""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nanoeuler_book.drills import breaks, diagnose
from nanoeuler_lib.command import cli
from nanoeuler_lib.errors import NanoEulerError

BUGS = breaks.bugs()
NAMES = [bug.name for bug in BUGS]
AREAS = "data tokenizer loss forward initialisation backward optimiser schedule clipping threads evaluation"
AREAS += " generation resume"

# Arguments: a JSON file with [[folder, tool, [test, ...]], ...], and a file for the results, one line per folder.
DRIVER = """
import contextlib, importlib, io, json, os, sys, warnings

def outcome(test):
    space = {}
    exec(test, space)
    try:
        for name, function in list(space.items()):
            if name.startswith("test"):
                function()
    except BaseException as error:
        return type(error).__name__
    return "passes"

warnings.simplefilter("ignore")
with open(sys.argv[2], "w") as out:
    for folder, tool, tests in json.load(open(sys.argv[1])):
        for name in [name for name in sys.modules if name.split(".")[0] in ("nanoeuler_lib", "nanoeuler_book", "run")]:
            del sys.modules[name]
        sys.path[0] = folder
        importlib.invalidate_caches()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            import run
            figures = run.run(6, 0, 20_000)
        from nanoeuler_book.drills import diagnose
        assert diagnose.__file__.startswith(folder), diagnose.__file__
        [(_, findings)] = diagnose.diagnose([tool])
        found = dict(figures=figures, printed=printed.getvalue(), findings=findings, tests=[outcome(t) for t in tests])
        print(json.dumps(found), file=out, flush=True)
"""


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a function from the name of a bug to its folder, planted on first use; "" is the sound folder."""
    base = tmp_path_factory.mktemp("planted")

    @functools.cache
    def folder_of(name):
        if name:
            number = NAMES.index(name)  # README.md contains the folder's name, so that name must not be the bug's
            return breaks.plant(number, base / str(number), BUGS[number])
        folder, file = breaks.plant(0, base / "sound"), breaks.bug_of(0).file
        (folder / file).write_text((breaks.ROOT / file).read_text("utf-8"), "utf-8")
        return folder

    return folder_of


@pytest.fixture(scope="module")
def found(folder_of, tmp_path_factory, request):
    """Return what the driver found in the folder of each bug whose test will run."""
    base = tmp_path_factory.mktemp("found")
    here = [item for item in request.session.items if item.path == request.path and "found" in item.fixturenames]
    cases = [item.callspec.params for item in here]
    tasks = [(bug.name, str(folder_of(bug.name)), bug.tool, [bug.test]) for bug in BUGS if {"bug": bug} in cases]
    if {"bug": None} in cases:
        tasks.append((None, str(folder_of("")), "curve", [bug.test for bug in BUGS]))
    running = []
    for half in range(2):
        (base / f"{half}.json").write_text(json.dumps([task[1:] for task in tasks[half::2]]))
        command = [sys.executable, "-c", DRIVER, base / f"{half}.json", base / f"{half}.out"]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        running.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    results = {}
    for half, process in enumerate(running):
        _, err = process.communicate(timeout=900)
        lines = (base / f"{half}.out").read_text().splitlines()
        names = [task[0] for task in tasks[half::2]]
        assert process.returncode == 0, f"{names[len(lines)]}: {err}"
        results |= {name: json.loads(line) for name, line in zip(names, lines, strict=True)}
    return results


# The bugs.


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_fragment(bug):
    """Check that the fragment occurs once in its file, and that its replacement compiles."""
    assert bug.old != bug.new
    compile(bug.planted(), bug.file, "exec")


@pytest.mark.full(but=["batch-for-ever", "targets-unshifted"])
@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_bug_is_found(bug, found):
    """Check that the broken copy trains, its tool finds the bug, and its smallest test fails by an assertion."""
    result = found[bug.name]
    assert "loss of the first step" in result["figures"]
    assert result["findings"], f"{bug.tool} finds nothing"
    assert not any("stopped with" in finding for finding in result["findings"])
    assert all("expected" in finding and "Look at" in finding for finding in result["findings"])
    assert result["tests"] == ["AssertionError"]


@pytest.mark.full
@pytest.mark.parametrize("bug", [None])
def test_sound_copy(bug, found):
    """Run the same, with one tool and all smallest tests, on a sound copy."""
    result = found[bug]
    assert "no warnings" in result["printed"] and not result["findings"]
    assert dict(zip(NAMES, result["tests"])) == dict.fromkeys(NAMES, "passes")


@pytest.mark.parametrize("tool", diagnose.TOOLS)
def test_sound_package(tool):
    assert list(diagnose.diagnose([tool])) == [(tool, [])] and list(diagnose.differ("x", 1, float("nan")))


def test_list_of_bugs():
    assert len(BUGS) >= 48 and len(set(NAMES)) == len(BUGS)
    assert len({(bug.file, bug.old, bug.new) for bug in BUGS}) == len(BUGS)
    assert {bug.area for bug in BUGS} == set(AREAS.split())
    assert {bug.visible for bug in BUGS} == set(breaks.texts()["visible"])
    assert {bug.tool for bug in BUGS} == set(diagnose.TOOLS)
    assert all(bug.story.strip() and bug.effect.strip() for bug in BUGS)
    assert not any("diagnose" in bug.test for bug in BUGS)


def test_seeds():
    """Check that each integer has a bug, each bug has a seed, and neighbouring seeds have bugs of different areas."""
    number = len(BUGS)
    assert Counter(breaks.bug_of(seed).name for seed in range(number)) == Counter(NAMES)
    assert breaks.bug_of(3) == breaks.bug_of(3 + number) == breaks.bug_of(3 - number * 10**30)
    same = [breaks.bug_of(seed).area == breaks.bug_of(seed + 1).area for seed in range(number)]
    assert sum(same) <= 2


# The folder.


@pytest.mark.full
def test_folder(folder_of):
    """Check that one file of the copy differs, by the fragment, and that no text in the folder names the bug."""
    package = {
        file.relative_to(breaks.ROOT)
        for package in breaks.COPIED
        for file in (breaks.ROOT / package).rglob("*.*")
        if not {"__pycache__", "pretrained"} & set(file.parts)
    }
    for bug in BUGS:
        folder = folder_of(bug.name)
        copied = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}
        assert {p for p in copied if p.parts[0] in breaks.COPIED} == {p for p in package if p.stem != "breaks"}
        differ = [p for p in package & copied if (folder / p).read_bytes() != (breaks.ROOT / p).read_bytes()]
        assert differ == [Path(bug.file)]
        assert not any(bug.name.encode() in (folder / p).read_bytes() for p in copied)
        assert len({(folder / p).stat().st_mtime for p in package & copied}) == 1
        assert sum((folder / p).stat().st_size for p in copied if p.parts[0] != "run") < 2_000_000
    text = (folder / "README.md").read_text("utf-8")
    assert f"seed {len(BUGS) - 1}" in text and f"--hand-in {folder}" in text
    assert "| validation, bits per byte | 0.9" in text and "{" not in text


SEEN = {"sound": (0, 2), "silent": (0, 3), "slower": (1.5, 12), "obvious": (6, float("inf"))}
SLOW = [pytest.param(bug, marks=pytest.mark.slow, id=bug.name) for bug in BUGS]


@pytest.mark.full(but=["batch-for-ever", "targets-unshifted"])
@pytest.mark.parametrize("bug", [pytest.param(None, id="sound"), *SLOW])
def test_visibility(bug, folder_of):
    """Compare with README.md: a sound copy agrees, a silent bug nearly agrees, an obvious bug is far off or warns.

    The unit is the spread over seeds; the distance is the largest of all figures.
    """
    code = "import json, run; print(json.dumps(run.run(192, 0, 400_000)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder_of(bug.name if bug else ""), capture_output=True, text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    figures, healthy = json.loads(done.stdout.splitlines()[-1]), breaks.texts()["healthy"]
    assert list(figures) == list(healthy) or bug
    apart = [
        (abs(figures.get(name, 0) - mean) - (0 if bug else 1e-4 * mean)) / (spread or 0.01 * mean)
        for name, (mean, spread) in healthy.items()
    ]
    low, high = SEEN[bug.visible if bug else "sound"]
    assert low <= (max(0, *apart) if "no warnings" in done.stdout else float("inf")) <= high


# Handing in a test.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    [bug] = [bug for bug in BUGS if bug.name == "warm-up-in-whole-numbers"]
    return breaks.plant(1, tmp_path_factory.mktemp("hand in") / "broken", bug)


RIGHT = """
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.model.optim import learning_rate

def test_half_way():
    assert learning_rate(4, TrainConfig(warmup=10, rate=1.0)) == 0.5
"""
ASKS = """
from nanoeuler_book.drills import diagnose

def test_a():
    assert not dict(diagnose.diagnose(["schedule"]))["schedule"]
"""
NO_END = "does not end within 2 seconds"
STUB = breaks.texts()["folder"]["test_found.py"]
UNWRITTEN = "fails: NotImplementedError: write the test here"
HANDED_IN = {  # the test; its result on the broken copy and on the sound package; the message
    "right": (RIGHT, "fails: AssertionError", "passes", "Found."),
    "the stub": (STUB, UNWRITTEN, UNWRITTEN, "fails everywhere"),
    "passes everywhere": ("def test_a():\n    pass", "passes", "passes", "does not see this bug"),
    "fails everywhere": ("assert 1 > 2, 'no'", "fails: AssertionError: no", "fails: AssertionError: no", "everywhere"),
    "wrong way round": (RIGHT.replace("== 0.5", "== 0"), "passes", "fails: AssertionError", "wrong way round"),
    "never ends": ("def test_a():\n    while True: pass", NO_END, NO_END, "in both"),
    "ends the process": (
        "import os\ndef test_a():\n    os._exit(0)", "ends the process with code 0", "ends the process", "in both",
    ),
    "no function": ("assert True", "holds no function", "holds no function", "in both"),
    "asks the tool": (ASKS, "fails: AssertionError", "passes", "It asks the tool"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", HANDED_IN)
def test_hand_in(case, folder):
    text, broken, sound, verdict = HANDED_IN[case]
    (folder / "test_found.py").unlink(missing_ok=True)
    with pytest.raises(NanoEulerError, match="no such file, expected the test to hand in"):
        breaks.hand_in(folder)
    (folder / "test_found.py").write_text(text, "utf-8")
    right, said = breaks.hand_in(folder, seconds=2 if broken == NO_END else 60)
    lines = said.splitlines()
    assert right == (verdict == "Found.")
    assert lines[0].removeprefix("broken copy, must fail:    ").startswith(broken)
    assert lines[1].removeprefix("sound package, must pass:  ").startswith(sound)
    assert verdict in lines[2] and len(lines) == 3


@pytest.mark.full
def test_pytest_in_the_folder_imports_the_copy(folder):
    """Check this also inside a repository with its own pytest.ini."""
    (folder / "test_found.py").write_text(RIGHT, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_found.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout


# The command.


@pytest.fixture
def nanoeuler(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:  # from argparse
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.full
def test_command_break(nanoeuler):
    assert nanoeuler("break", "--seed", 5)[0] == 0
    code, out, _ = nanoeuler("break", "--reveal", "broken-5")
    bug = breaks.bug_of(5)
    assert code == 0 and out.startswith(f"seed 5: {bug.name} ({bug.area})\n\n--- sound/{bug.file}")
    assert "\nFOUND   " in out and bug.story.split()[-1] in out and out.rstrip().endswith(bug.test.rstrip())
    assert nanoeuler("break", "--seed", 5, "--reveal")[1] == out
    Path("broken-5/test_found.py").write_text(bug.test, "utf-8")
    code, out, err = nanoeuler("break", "--hand-in", "broken-5")
    assert (code, err) == (0, "") and "Found." in out
    Path("broken-5/test_found.py").write_text("def test_a(): pass", "utf-8")
    assert nanoeuler("break", "--hand-in", "broken-5")[0] == 1


@pytest.mark.full
def test_command_inside_the_copy(folder):
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "break", "--seed", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("nanoeuler: nanoeuler break must be run from")


@pytest.mark.full
def test_command_diagnose(nanoeuler, monkeypatch):
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "sampling")
    assert code == 0 and out.count("ok      ") == 2
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "--json")
    assert code == 0 and json.loads(out) == {"sound": True, "findings": {"schedule": []}}
    monkeypatch.setattr("nanoeuler_lib.model.optim.learning_rate", lambda step, config: config.rate)
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule")
    assert code == 1 and out.startswith("FOUND   schedule: the rate of step ")
    monkeypatch.setattr("nanoeuler_lib.model.optim.learning_rate", lambda step: 1 / 0)
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "--json")
    assert code == 1 and "stopped with TypeError" in json.loads(out)["findings"]["schedule"][0]


NONE, WAYS = "must be made by --seed with this version, got another folder", "give one of --seed N"
REFUSED = {
    "break --seed 1 --out .": ".: exists already, expected a new folder",
    "break --seed 1 --out file/x": "file/x: cannot be written (Not a directory)",
    "break --hand-in none": f"none: {NONE}",
    "break --reveal .": f".: {NONE}",
    "break": WAYS,
    "break --seed 1 --hand-in x": WAYS,
    "break --hand-in x --out y": WAYS,
    "break --seed seven": "--seed must be an integer, got 'seven'",
    "diagnose --tool schedule hammer": "a tool must be one of initialisation, forward,",
}


@pytest.mark.parametrize("command", REFUSED)
def test_refusals(command, nanoeuler):
    Path("file").write_text("")
    before = sorted(Path.cwd().rglob("*"))
    code, out, err = nanoeuler(*command.split())
    assert (code, out) == (2, "") and err.count("\n") == 1 and f": {REFUSED[command]}" in err
    assert sorted(Path.cwd().rglob("*")) == before
