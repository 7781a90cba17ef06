"""`nanoeuler lab`, `test` and `progress`: which folder they take, what they run, and what counts as done."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nanoeuler_book import notebooks
from nanoeuler_lib.command import cli
from nanoeuler_lib.errors import NanoEulerError

ROOT = Path(__file__).resolve().parents[2]
NAME = "06_attention.ipynb"


@pytest.fixture
def folder(tmp_path):
    """A folder with two downloaded chapters, and another notebook."""
    for name in (NAME, "A2_muon.ipynb"):
        shutil.copy(ROOT / "notebooks" / name, tmp_path)
    (tmp_path / "mine.ipynb").write_text("{}")
    return tmp_path


def edit(path: Path, change) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    for cell in notebook["cells"]:
        change(cell, cell["metadata"].get("tags", []))
    path.write_text(json.dumps(notebook), "utf-8")


def test_the_folder_is_the_given_one_this_one_or_the_clones(folder, monkeypatch, tmp_path_factory):
    assert notebooks.find(folder) == folder
    monkeypatch.chdir(folder)
    assert notebooks.find(None) == folder
    monkeypatch.chdir(ROOT / "tests" / "book")
    assert notebooks.find(None) == ROOT / "notebooks"
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(NanoEulerError, match=f"must have chapters such as 00_start_here.ipynb, got {empty}: clone"):
        notebooks.find(empty)


def test_a_chapter_is_found_by_its_number_or_file(folder):
    assert [notebooks.chapter(name, folder).name[:2] for name in ("6", "06", "a2")] == ["06", "06", "A2"]
    assert notebooks.chapter(str(folder / NAME), ROOT) == folder / NAME
    with pytest.raises(NanoEulerError, match="the chapter must be one of 06, A2, got '07'"):
        notebooks.chapter("07", folder)


def test_lab_opens_the_first_chapter_of_a_folder(folder, monkeypatch):
    ran = []
    monkeypatch.setattr(
        subprocess, "run", lambda words, **how: ran.append(words) or subprocess.CompletedProcess(words, 3)
    )
    assert notebooks.lab(folder) == 3
    assert ran[0][1:5] == ["-m", "jupyterlab", f"--ServerApp.root_dir={folder.resolve()}", NAME]
    monkeypatch.setattr(notebooks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NanoEulerError, match="jupyterlab must be installed for this command: pip install jupyterlab"):
        notebooks.lab(folder)


def test_test_fails_if_an_output_differs(tmp_path, capfd):
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": 1, "source": "print(6.5)"}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for stored, status in (("6.6", 0), ("7.5", 1)):  # one unit of the last digit is allowed
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": stored + "\n"}]
        content = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (tmp_path / "00_start.ipynb").write_text(json.dumps(content))
        assert cli.main(["test", "00", "--folder", str(tmp_path)]) == status, capfd.readouterr()


def test_right_answers_count_and_solutions_do_not(folder, capsys):
    def answer(cell, tags):
        if "check" in tags and any("my_attention" in line for line in cell["source"]):
            cell["outputs"][0]["text"] = [
                "a line of the check\n",
                "\x1b[1mmy_attention: right\x1b[0m (with your my_head)\n",
            ]
        if "".join(cell["source"]).startswith("*Your answer"):
            cell["source"] = "The head of layer 2: *its* weight is largest."

    before = {row.name: row for row in notebooks.progress(folder)}
    assert before["06_attention"].gaps == (0, 3) and before["06_attention"].exercises == (0, 5)
    edit(folder / NAME, answer)
    assert notebooks.progress(folder)[0] == notebooks.Progress("06_attention", (2, 3), (1, 5))
    assert cli.main(["progress", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "chapter                    gaps  exercises",
        "06_attention                2/3        1/5",
        "next: 06_attention (begun)",
    ]
    (folder / NAME).write_text("[]")
    assert (
        cli.main(["progress", str(folder)]) == 2 and "06_attention.ipynb must be a notebook" in capsys.readouterr().err
    )


# ---- With pip alone, from the network


def environment(folder: Path, python: str, *packages) -> Path:
    """Make a virtual environment and return its folder of commands; skip the test if the machine has no such Python."""
    try:
        subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this machine has no {python} with the module venv")
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *packages], check=True, env=OUTSIDE)
    return folder / "bin"


def source(folder: Path) -> Path:
    """Copy what pip needs of the repository."""
    for name in ("nanoeuler_lib", "nanoeuler_book", "konigsberg", "cudacheck", "data/results"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may lead to this clone


@pytest.mark.slow
@pytest.mark.parametrize("python", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_chapters_run_where_only_pip_has_installed_the_library(tmp_path, python):
    """Install the library with its dependencies and plain Jupyter; then run three plain copies from another folder."""
    from tools.book import plain

    commands = environment(tmp_path / "venv", python, source(tmp_path / "source"), "nbval", "ipykernel")
    plain.write(tmp_path / "plain")
    subprocess.run([commands / "nanoeuler", "test", "00", "06", "18"], cwd=tmp_path / "plain", check=True, env=OUTSIDE)


@pytest.mark.slow
def test_the_first_cell_installs_the_library_in_colab(tmp_path):
    """Take Colab's versions and a local repository; run the cell offline, online and again, then two chapters."""
    from tools.book import plain, project

    nbformat = pytest.importorskip("nbformat")
    there = project.Project("https://github.com/anna/euler")
    commands = environment(tmp_path / "venv", "python3.12", "-r", ROOT / "data/platforms/colab.txt", "nbval")
    git = ["git", "-C", source(tmp_path / "source"), "-c", "user.name=a", "-c", "user.email=b"]
    for words in ("init -q -b main", "add .", "commit -qm a"):
        subprocess.run([*git, *words.split()], check=True)
    plain.write(tmp_path / "content")
    for name in ("00_start_here.ipynb", NAME):
        path = tmp_path / "content" / name
        nbformat.write(project.with_library(nbformat.read(path, as_version=4), there), path)

    def run(*words, repository="source"):
        address = {"GIT_CONFIG_KEY_0": f"url.{tmp_path / repository}.insteadOf", "GIT_CONFIG_VALUE_0": there.repository}
        how = {"cwd": tmp_path / "content", "env": OUTSIDE | address | {"GIT_CONFIG_COUNT": "1"}, "text": True}
        return subprocess.run([commands / words[0], *words[1:]], capture_output=True, **how)

    cell = project.library_cell(there).source
    before = run("pip", "freeze").stdout.splitlines()
    off = run("python", "-c", cell, repository="nowhere")
    assert off.returncode and off.stderr.count("\n") == 1 and "connect to the network" in off.stderr, off.stderr
    (tmp_path / "content/nanoeuler").mkdir()
    first = run("python", "-c", f"{cell}\nimport nanoeuler_lib")
    assert first.returncode == 0, first.stderr
    added = set(run("pip", "freeze").stdout.splitlines()) ^ set(before)
    assert len(added) == 1 and added.pop().startswith("nanoeuler @"), "a replaced package needs a restart"
    again = run("python", "-c", cell, repository="nowhere")
    assert again.returncode == 0, again.stderr
    done = run("nanoeuler", "test", "00", "06")
    assert done.returncode == 0, done.stdout
