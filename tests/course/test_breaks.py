"""Planted bugs: each is where it is said to be, runs, is found by its tool and by its smallest test; and what is said
about a reader's own test.

Two processes go through all broken copies, one after the other, importing the package anew from each.
"""

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

# Arguments: a JSON file with [[folder, tool, [test, ...]], ...], and where to write what was found, a line for each.
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
def folders(tmp_path_factory):
    """The folder of each bug, and a sound one under the name ""."""
    base = tmp_path_factory.mktemp("planted")
    made = {bug.name: breaks.plant(number, base / str(number), bug) for number, bug in enumerate(BUGS)}
    made[""] = breaks.plant(0, base / "sound")
    file = breaks.bug_of(0).file
    (made[""] / file).write_text((breaks.ROOT / file).read_text("utf-8"), "utf-8")
    return made


@pytest.fixture(scope="module")
def found(folders, tmp_path_factory):
    """What the driver found in each folder."""
    base = tmp_path_factory.mktemp("found")
    tasks = [(name, str(folders[name]), *what) for name, what in _tasks().items()]
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


def _tasks():
    return {bug.name: (bug.tool, [bug.test]) for bug in BUGS} | {"": ("curve", [bug.test for bug in BUGS])}


# The bugs.


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_fragment(bug):
    text = (breaks.ROOT / bug.file).read_text("utf-8")
    assert text.count(bug.old) == 1
    assert bug.old != bug.new
    compile(text.replace(bug.old, bug.new), bug.file, "exec")


@pytest.mark.full(but=["batch-for-ever", "targets-unshifted"])
@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_bug_is_found(bug, found):
    """The broken copy trains; the named tool finds the bug; the smallest test fails, by its assertion."""
    result = found[bug.name]
    assert "loss of the first step" in result["figures"]
    assert result["findings"], f"{bug.tool} finds nothing"
    assert not any("stopped with" in finding for finding in result["findings"])
    assert all("expected" in finding and "Look at" in finding for finding in result["findings"])
    assert result["tests"] == ["AssertionError"]


@pytest.mark.full
def test_sound_copy(found):
    """The same run, a tool, and all the smallest tests, with nothing broken."""
    result = found[""]
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
    """Any whole number has a bug; every bug has a seed; neighbours come from different areas."""
    number = len(BUGS)
    assert Counter(breaks.bug_of(seed).name for seed in range(number)) == Counter(NAMES)
    assert (
        breaks.bug_of(3) == breaks.bug_of(3 + number) == breaks.bug_of(3 - number) == breaks.bug_of(3 + number * 10**30)
    )
    same = [breaks.bug_of(seed).area == breaks.bug_of(seed + 1).area for seed in range(number)]
    assert sum(same) <= 2


def test_missing_fragment():
    bug = breaks.Bug(**vars(BUGS[0]) | {"old": "no such text"})
    with pytest.raises(NanoEulerError, match="stands there 0 times, expected 1"):
        bug.planted()


# The folder.


@pytest.mark.full
def test_folder(folders):
    """One file of the copy differs, by the fragment; nothing in the folder names the bug."""
    for bug in BUGS:
        folder = folders[bug.name]
        copied = {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}
        package = {
            file.relative_to(breaks.ROOT)
            for package in breaks.COPIED
            for file in (breaks.ROOT / package).rglob("*.*")
            if not {"__pycache__", "pretrained"} & set(file.parts)
        }
        assert {p for p in copied if p.parts[0] in breaks.COPIED and p.suffix != ".pyc"} == {
            p for p in package if p.stem != "breaks"
        }
        differ = [p for p in package & copied if (folder / p).read_bytes() != (breaks.ROOT / p).read_bytes()]
        assert differ == [Path(bug.file)]
        assert not any(bug.name.encode() in (folder / p).read_bytes() for p in copied)
        assert "breaks.toml" not in {p.name for p in copied}
        assert len({(folder / p).stat().st_mtime for p in package & copied}) == 1
        assert sum((folder / p).stat().st_size for p in copied if p.parts[0] != "run") < 2_000_000


@pytest.mark.full
def test_readme(folders):
    text = (folders[""] / "README.md").read_text("utf-8")
    assert "seed 0" in text and f"--hand-in {folders['']}" in text
    assert "| validation, bits per byte | 0.9" in text
    assert "{" not in text


@pytest.mark.full
def test_healthy_figures(folders):
    """What README.md says of a healthy run holds: each figure of run.py lies within twice the spread of the mean."""
    code = "import json, run; print(json.dumps(run.run(192, 0, 400_000)))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folders[""], env=environment, capture_output=True, text=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    healthy = breaks.texts()["healthy"]
    assert list(figures) == list(healthy)
    for name, (mean, spread) in healthy.items():
        assert abs(figures[name] - mean) <= 2 * spread + 1e-4 * mean, f"{name}: {figures[name]}"


def sounds(figures: dict, printed: str) -> float:
    """How far a run is from a healthy one: the largest distance of a figure in spreads; infinity if it warns."""
    if "no warnings" not in printed:
        return float("inf")
    healthy = breaks.texts()["healthy"].items()
    return max(abs(figures.get(name, 0) - mean) / (spread or 0.01 * mean) for name, (mean, spread) in healthy)


@pytest.mark.full(but=["batch-for-ever", "targets-unshifted"])
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_visibility(bug, folders):
    """silent: about as far from a healthy run as another seed is; obvious: far outside, or warned about."""
    code = "import json, run; print(json.dumps(run.run(192, 0, 400_000)))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folders[bug.name], env=environment, capture_output=True, text=True
    )
    distance = sounds(json.loads(done.stdout.splitlines()[-1]), done.stdout)
    low, high = {"silent": (0, 3), "slower": (1.5, 12), "obvious": (6, float("inf"))}[bug.visible]
    assert low <= distance <= high


# Handing in.


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
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()"
NO_END = "does not end within 2 seconds"
HANDED_IN = {  # the test; what it does with the broken copy, and with the sound package; what is said
    "right": (RIGHT, "fails: AssertionError", "passes", "Found."),
    "leaves a thread": (RIGHT + THREAD, "fails: AssertionError", "passes", "Found."),
    "passes everywhere": ("def test_a():\n    pass", "passes", "passes", "does not see this bug"),
    "fails everywhere": (
        "def test_a():\n    assert 1 > 2, 'no'",
        "fails: AssertionError: no",
        "fails: AssertionError: no",
        "fails everywhere",
    ),
    "syntax error": ("def test_a(:", "fails: SyntaxError", "fails: SyntaxError", "fails everywhere"),
    "wrong way round": (RIGHT.replace("== 0.5", "== 0"), "passes", "fails: AssertionError", "wrong way round"),
    "never ends": ("def test_a():\n    while True: pass", NO_END, NO_END, "in both"),
    "waits for a child": (
        "import subprocess\ndef test_a():\n    subprocess.run(['sleep', '99'])", NO_END, NO_END, "in both",
    ),
    "ends the process": (
        "import os\ndef test_a():\n    os._exit(0)", "ends the process with code 0", "ends the process", "in both",
    ),
    "leaves politely": ("raise SystemExit(0)", "fails: SystemExit: 0", "fails: SystemExit: 0", "fails everywhere"),
    "no function": ("assert True", "holds no function", "holds no function", "in both"),
    "asks the tool": (ASKS, "fails: AssertionError", "passes", "It asks the tool"),
    "reads input": (RIGHT + "    input()", "fails: AssertionError", "fails: EOFError", "fails everywhere"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("case", HANDED_IN)
def test_hand_in(case, folder):
    text, broken, sound, verdict = HANDED_IN[case]
    (folder / "test_found.py").write_text(text, "utf-8")
    right, said = breaks.hand_in(folder, seconds=2 if broken == NO_END else 60)
    lines = said.splitlines()
    assert right == (verdict == "Found.")
    assert lines[0].removeprefix("broken copy, must fail:    ").startswith(broken)
    assert lines[1].removeprefix("sound package, must pass:  ").startswith(sound)
    assert verdict in lines[2] and len(lines) == 3


@pytest.mark.full
def test_stub_fails_everywhere(tmp_path):
    breaks.plant(2, tmp_path / "b")
    right, said = breaks.hand_in(tmp_path / "b")
    assert not right and said.count("fails: NotImplementedError: write the test here") == 2


@pytest.mark.full
def test_pytest_in_the_folder_imports_the_copy(folder):
    """In a repository with a pytest.ini of its own, too."""
    (folder / "test_found.py").write_text(RIGHT, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_found.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout


# Revealing.


@pytest.mark.full
def test_reveal(folder):
    seed, bug = breaks.found_in(folder)
    text = breaks.reveal(bug)
    assert seed == 1 and bug.name == "warm-up-in-whole-numbers"
    assert text.startswith("warm-up-in-whole-numbers (schedule)\n\n--- sound/nanoeuler_lib/model/optim.py")
    assert "\n-        return config.rate * (step + 1) / config.warmup\n+" in text
    assert "FOUND   schedule: the rate of step 6: 0, expected 0.0175. Look at optim.learning_rate" in text
    assert "whole numbers gives whole numbers" in " ".join(text.split()) and text.endswith(bug.test)


# The command.


@pytest.fixture
def nanoeuler(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse's
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.full
def test_command_break(nanoeuler):
    assert nanoeuler("break", "--seed", 5)[0] == 0
    name = breaks.bug_of(5).name
    code, out, _ = nanoeuler("break", "--reveal", "broken-5")
    assert code == 0 and out.startswith(f"seed 5: {name} (")
    assert nanoeuler("break", "--seed", 5, "--reveal")[1] == out
    Path("broken-5/test_found.py").write_text(breaks.bug_of(5).test, "utf-8")
    code, out, err = nanoeuler("break", "--hand-in", "broken-5")
    assert (code, err) == (0, "") and "Found." in out
    Path("broken-5/test_found.py").write_text("def test_a(): pass", "utf-8")
    assert nanoeuler("break", "--hand-in", "broken-5")[0] == 1
    code, out, _ = nanoeuler("break", "--seed", -1, "--out", "other")
    assert code == 0 and "other/README.md" in out and Path("other/run.py").exists()


@pytest.mark.full
def test_command_inside_the_copy(folder):
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "break", "--seed", "1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("nanoeuler: this is a broken copy, expected")


@pytest.mark.full
def test_command_diagnose(nanoeuler):
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "sampling")
    assert code == 0 and [line.split(":")[0] for line in out.splitlines()] == ["ok      schedule", "ok      sampling"]
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "--json")
    assert code == 0 and json.loads(out) == {"sound": True, "findings": {"schedule": []}}


@pytest.mark.full
def test_command_diagnose_finds(nanoeuler, monkeypatch):
    monkeypatch.setattr("nanoeuler_lib.model.optim.learning_rate", lambda step, config: config.rate)
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule")
    assert code == 1 and out.startswith("FOUND   schedule: the rate of step ")
    monkeypatch.setattr("nanoeuler_lib.model.optim.learning_rate", lambda step: 1 / 0)
    code, out, _ = nanoeuler("diagnose", "--tool", "schedule", "--json")
    assert code == 1 and "stopped with TypeError" in json.loads(out)["findings"]["schedule"][0]


NONE, WAYS = "no broken copy of this version, expected a folder made by --seed", "expected --seed N"
REFUSED = {
    "break --seed 1 --out .": ".: exists already, expected a new folder",
    "break --seed 1 --out file/x": "file/x: cannot be written (Not a directory)",
    "break --hand-in none": f"none: {NONE}",
    "break --reveal none": f"none: {NONE}",
    "break --reveal .": f".: {NONE}",
    "break": WAYS,
    "break --reveal": WAYS,
    "break --seed 1 --hand-in x": WAYS,
    "break --seed 1 --reveal x": WAYS,
    "break --seed 1 --reveal --out x": WAYS,
    "break --hand-in x --out y": WAYS,
    "diagnose --tool schedule hammer": "no tool 'hammer', expected one of initialisation, forward,",
}


@pytest.mark.parametrize("command", REFUSED)
def test_refusals(command, nanoeuler):
    Path("file").write_text("")
    before = sorted(Path.cwd().rglob("*"))
    code, out, err = nanoeuler(*command.split())
    assert (code, out) == (2, "") and err.startswith(f"nanoeuler: {REFUSED[command]}") and err.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before


def test_seed_is_a_number(nanoeuler):
    code, _, err = nanoeuler("break", "--seed", "seven")
    assert code == 2 and "--seed must be an integer, got 'seven'" in err


@pytest.mark.full
def test_missing_test_file(folder):
    (folder / "test_found.py").unlink(missing_ok=True)
    with pytest.raises(NanoEulerError, match="no such file, expected the test to hand in"):
        breaks.hand_in(folder)
