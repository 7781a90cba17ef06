"""The way in: README.md, the first page, the project's addresses, and a chapter in a folder of its own."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
from types import SimpleNamespace

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")
pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e .[book]")

import konigsberg  # noqa: E402
from tools.book import landing, project  # noqa: E402
from tools.notebooks import heads, runs  # noqa: E402

ROOT = project.ROOT
README = (ROOT / "README.md").read_text()
INTRO = (ROOT / "book" / "intro.md").read_text()
SOMEWHERE = project.Project(
    "https://github.com/anna/euler", "https://anna.github.io/euler", "main", ("binder", "colab")
)


BOOK = list(heads.chapters().values())
PAGE_HOURS, WHOLE_HOURS = (f"{sum(one.length.hours[i] for one in BOOK):g}" for i in (0, 1))


# ---- Numbers and links of the two first pages


def test_readme_says_how_many_chapters_and_hours_there_are():
    assert f"{len(BOOK)} chapters, about {PAGE_HOURS} hours, {WHOLE_HOURS} with all exercises" in README


def rows_of(name: str) -> list[dict]:
    return json.loads((ROOT / f"data/results/{name}.json").read_text("utf-8"))["rows"]


def test_figures_from_a_card_are_the_stored_ones():
    """Each is computed here from the stored result that README's table means, and must stand in a row of it."""
    said = []
    bfloat16, tf32, (token, *_) = (rows_of(name) for name in ("gpu_step_0", "gpu_step_1", "gpu_decode"))
    behind = f"its next token, behind {token['position']} others, on an H100, {token['precision']}"
    said.append(f"{behind} | {token['speedup']:.2f} times as fast")
    for row, work in zip(bfloat16 + tf32, ("64 x 512 tokens, on an H100, bfloat16", "the same in TF32"), strict=True):
        ours, peer = (row["rounds"][who] for who in ("NanoEuler", "torch.compile"))
        faster = statistics.median(b / a for a, b in zip(ours, peer, strict=True))
        memory = row["gib"]["NanoEuler"] / row["gib"]["torch.compile"]
        said.append(f"{work} | {faster:.2f} times as fast, in {memory:.2f} of the memory")
    levers = {row["section"]: row["times"] for row in rows_of("gpu_levers") if "times" in row}
    times = lambda section, way: levers[section][way]["milliseconds"]
    step = times("step", "torch.compile") / times("step", "as it is")
    token = times("token", "PyTorch") / times("token", "greedy on the card")
    said.append(f"that step on an H200 of a busy host | {step:.2f} times as fast")
    said.append(f"that token there, chosen on the card | {token:.2f} times as fast")
    (known,) = (r for r in rows_of("gpu_speculate") if (r["way"], r["propose"]) == ("sampled", 1))
    samples = "the trained 116M model samples, one proposal at a time, on an H100"
    said.append(f"{samples} | {known['speedup']:.2f} times as fast | the same without proposals")
    config = json.loads((ROOT / "data/results/race.json").read_text())["config"]
    recipes, seconds = (config["adamw"], config["adamw"] | {"steps": 1100}, config["recipe"]), {}
    for row in rows_of("race"):
        if row.get("recipe") in recipes:
            seconds.setdefault((row["section"], row["recipe"]["steps"]), []).append(row["seconds"])
    runs_of = lambda *name: np.array(seconds[name])
    own = (runs_of("recipe", 410) / runs_of("adamw", 1050)).mean()
    same = runs_of("sigma", 1100).mean() / runs_of("adamw", 1100).mean()
    said.append(f"on an H200, bfloat16, by its own recipe | in {own:.2f} of the time")
    said.append(f"AdamW on both sides, 1,100 steps of it | in {same:.2f} of the time")
    run = rows_of("ch32")
    (base,) = (row["about"] for row in run if row["what"] == "run" and row["run"] == "base")
    tokens = base["train"]["steps"] * base["train"]["batch"] * base["model"]["context"]
    again = sum(row["milliseconds"] for row in run if row["what"] == "wall") / 1e3
    first = sum(json.loads((ROOT / "data/results/ch32.json").read_text())["config"]["before"]["walls"])
    said.append(f"{tokens / 1e9:.1f} billion tokens in {first:.0f} s, and again in {again:.0f} s")
    assert [text for text in said if text not in README] == []


def test_what_the_english_model_is_said_to_write_is_a_stored_sample():
    english = json.loads((ROOT / "data/results/english.json").read_text("utf-8"))
    of = lambda what: [row for row in english["rows"] if row["what"] == what]
    (shipped,) = (row for row in of("measured") if row["size"] == english["config"]["shipped"])
    sample = next(s["prompt"] + s["text"] for s in shipped["samples"] if s["seed"] == 0)
    books, said = re.search(r"`english-small` has read (\d+) books .*?\n\s+\"(.+?), \.\.\.\"", README).groups()
    assert int(books) == of("text")[0]["books"] and " ".join(sample.split()).startswith(said)


def test_the_first_page_takes_its_numbers_from_the_chapters():
    """They are computed when it is built; none is typed."""
    config = SimpleNamespace(myst_substitutions={})
    landing.substitute(None, config)
    made = {"chapters": len(BOOK), "hours": PAGE_HOURS, "hours_with_exercises": WHOLE_HOURS}
    assert config.myst_substitutions == made
    assert set(re.findall(r"\{\{ (\w+) \}\}", INTRO)) == {*config.myst_substitutions, "repository"}
    assert not re.search(r"\d+ (chapters|hours)", INTRO)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "AGENTS.md", "contributing"])
def test_links_lead_to_files_and_headings(page):
    """As GitHub shows them: a heading's address is its words in small letters, joined by hyphens."""
    for path in sorted((ROOT / page).glob("*.md")) or [ROOT / page]:
        text = re.sub(r"`[^`\n]+`", "", path.read_text("utf-8"))
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            there = (path.parent / target).resolve() if target else path
            assert there.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", there.read_text("utf-8"), re.M)
                slugs = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
                assert anchor in slugs, f"{path.name}: {target}#{anchor}"


def test_readmes_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    text = "".join(f"{konigsberg.sample(seed=seed).text}\n" for seed in range(40))
    (tmp_path / "FILE.txt").write_text(text, "utf-8")
    done = run(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code.replace('200', '2')}", tmp_path)
    assert len(done.stdout) > 40 and (tmp_path / "runs/from-python/checkpoints").exists(), done.stderr


PACKAGES = "nanoeuler_lib nanoeuler_book konigsberg cudacheck".split()
FOLDERS = [*PACKAGES, *"tests tools benchmarks experiments book data notebooks contributing .github".split()]
PLACEHOLDER = re.compile(r"\bname\.|NN|_name|FOLDER|^_build/")  # `notebooks/NN_name.ipynb`: a file to be written


def files() -> list[str]:
    """Every file of the repository but caches, as "/path"."""
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*") if "__pycache__" not in path.parts)
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*ROOT.glob("*.*"), *inside]]


def test_files_that_contributors_are_told_of_exist():
    """By the end of the path, as in `ops/cpu.py`; a star stands for any letters."""
    there = "\n".join(files()) + "\n"
    for page in [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "contributing").glob("*.md"))]:
        for quoted in re.findall(r"`([^`]+)`", page.read_text("utf-8")):
            for name in re.findall(r"[\w./*-]*\w\.(?:py|cu|cuh|cpp|h|toml|md|json|js|yml|txt|bib|ipynb)\b", quoted):
                end = re.escape(name.removeprefix("./")).replace(r"\*", r"[^/\n]*")
                assert PLACEHOLDER.search(name) or re.search(f"/{end}\n", there), f"{page.name}: `{name}`"


def test_paths_that_chapters_and_pages_name_exist():
    pages = [ROOT / "README.md", *sorted((ROOT / "book").rglob("*.md"))]
    texts = {page.name: page.read_text("utf-8") for page in pages}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        texts[path.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for name, text in texts.items():
        named = re.findall(
            r"(?<![\w/])(?:nanoeuler_lib|nanoeuler_book|konigsberg|cudacheck|experiments|benchmarks|tests|tools)/[\w./]*\w",
            text,
        )
        missing = [path for path in named if not (ROOT / path).exists()]
        assert not missing, f"{name}: {missing}"


def test_contributing_is_read_in_ten_minutes():
    assert len((ROOT / "CONTRIBUTING.md").read_bytes()) <= 8000, "the rest belongs to contributing/"


def test_every_chapter_stands_in_the_map_with_its_question_hours_and_needs():
    drawn = landing.chapter_map()
    rows = re.findall(r"<li>(.*?)</li>", drawn)
    titles = [one.title for one in BOOK]
    assert [re.sub(r"<.*?>", "", re.search(r"<a .*?</a>", row)[0]).replace("&#x27;", "'") for row in rows] == titles
    assert all('class="question"' in row and re.search(r"[\d.]+ h<", row) for row in rows)
    assert drawn.count("<path ") == sum(len(c.needs) for c in landing.all_chapters().values()) > 30
    assert landing.all_chapters()["06"].needs == ("04", "05")


def test_every_part_has_a_card_with_a_figure_out_of_it(tmp_path):
    cards = re.findall(r"<li>(.*?)</li>", landing.book_parts())
    assert len(cards) == len(landing.parts())
    landing.copy_figures(SimpleNamespace(outdir=str(tmp_path)), None)
    for card, (caption, chapters) in zip(cards, landing.parts(), strict=True):
        assert f'href="{chapters[0].address}"' in card and caption in card
        picture = tmp_path / "_static" / re.search(r'src="../_static/(parts/[\w-]+\.png)"', card)[1]
        assert picture.read_bytes().startswith(b"\x89PNG")
        source = next(c for _, c, figure in landing.GIVES.values() if figure == picture.stem)
        assert any(source in chapter.address for chapter in chapters), "a figure of another part"


def test_ways_through_the_book_name_chapters_that_exist():
    chapters = landing.all_chapters()
    table = landing.reading_paths()
    for name, (numbers, _) in landing.PATHS.items():
        way = [chapters[number] for number in numbers.split()]
        assert len(set(way)) == len(way)
        assert f"{sum(c.hours[0] for c in way):g} h, {sum(c.hours[1] for c in way):g} with exercises" in table, name
    on_a_laptop = landing.PATHS["On a laptop"][0].split()
    for number in on_a_laptop:  # what a chapter of that way needs stands before it
        assert set(chapters[number].needs) <= set(on_a_laptop[: on_a_laptop.index(number)])


# ---- Where the project lives


@pytest.fixture
def configured(monkeypatch):
    """What the theme is told of a project."""

    def configure(found: project.Project) -> SimpleNamespace:
        config = SimpleNamespace(myst_substitutions={}, html_theme_options={}, html_baseurl="")
        monkeypatch.setattr(project, "load", lambda: found)
        project.configure(None, config)
        return config

    return configure


def test_without_an_address_nothing_leads_anywhere(configured):
    nowhere = project.Project()
    assert "](http" not in project.readme_part(nowhere) and nowhere.issues == ""
    config = configured(nowhere)
    assert (config.html_theme_options, config.html_baseurl) == ({}, "")
    assert config.myst_substitutions == {"repository": "repository"}


def test_with_addresses_pages_and_readme_use_them(configured):
    part = project.readme_part(SOMEWHERE)
    assert "git clone https://github.com/anna/euler nanoeuler" in part
    read = "[Read the book](https://anna.github.io/euler), [report a mistake](https://github.com/anna/euler/issues)"
    assert read in part
    config = configured(SOMEWHERE)
    options = config.html_theme_options
    assert options["use_repository_button"] and options["use_issues_button"] and options["use_source_button"]
    assert options["launch_buttons"].keys() == {"binderhub_url", "notebook_interface", "colab_url"}
    assert config.html_baseurl == "https://anna.github.io/euler/"


def test_readme_says_what_project_toml_says():
    assert project.readme(project.load(environment={}), README) == README, "python -m tools.book.project --write"
    other = project.readme(SOMEWHERE, README)
    assert other != README and project.readme(project.load(environment={}), other) == README


def test_the_environment_fills_in_what_the_file_leaves_empty(tmp_path):
    path = tmp_path / "project.toml"
    given = {"NANOEULER_REPOSITORY": "https://github.com/anna/euler/", "NANOEULER_BOOK": "https://x.io"}
    path.write_text('book = "https://mine.org/euler"\nlaunch = ["colab"]\n')
    found = project.load(path, given)
    assert found == project.Project("https://github.com/anna/euler", "https://mine.org/euler", "main", ("colab",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('repository = "github.com/a/b"', "repository is 'github.com/a/b', expected an address"),
        ('launch = ["mars"]', "launch has 'mars', expected some of binder, colab"),
        ('repo = ""', "'repo', expected repository, book, branch, launch"),
    ],
)
def test_a_wrong_address_is_named(tmp_path, text, said):
    (tmp_path / "project.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        project.load(tmp_path / "project.toml", {})


# ---- A chapter in a folder of its own


def run(code: str, folder) -> subprocess.CompletedProcess:
    """Run code where a reader might have put a download: in a folder that has nothing else in it."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


MISSING = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "nanoeuler_lib" else real(name)
"""


def test_a_chapter_runs_where_the_library_is(tmp_path):
    """From any folder it finds what the chapters read."""
    cell = project.library_cell(project.Project()).source
    look = "from nanoeuler_book.checks import results\nprint(results('ladder')['name'])"
    done = run(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{cell}\n{look}", tmp_path)
    assert done.stdout == "ladder\n", done.stderr


RACE = """import numpy as np, cudacheck.kernel
text = "__global__ void add(float* x) { x[0] += threadIdx.x; }"
try:
    cudacheck.kernel.compile(text)["add"](1, 32, (np.zeros(1, np.float32),))
except cudacheck.errors.CudaCheckError as error:
    print(error)
"""


def test_a_chapter_reads_its_results_from_an_installed_library(tmp_path):
    """In a virtual environment that has the wheel alone; all other packages are the tests' own."""
    for name in (*PACKAGES, "data/results", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "source" / name)
    (tmp_path / "source/project.toml").write_text('repository = "https://github.com/anna/euler"')
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tmp_path / "source"]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *wheel], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python, empty = tmp_path / "venv/bin/python", tmp_path / "empty"
    install = ["--python", python, "install", "--no-deps", *tmp_path.glob("*.whl")]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *install], check=True)
    cells = json.loads((ROOT / "notebooks/18_what_the_model_knows.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    reads = next(text for text in code if "results(" in text)
    text = "\n".join([*code[:2], reads, "print(figures.__file__)", "results('ch99')"])
    empty.mkdir()
    env = {"PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run([python, "-c", text], cwd=empty, env=env, capture_output=True, text=True)
    *_, models, file = done.stdout.splitlines() or ["", done.stderr]
    assert models.startswith("5 models") and file.startswith(str(tmp_path)), done.stdout + done.stderr
    assert "NanoEulerError: the stored result must be a file of data/results" in done.stderr
    assert "pip install" in done.stderr and "FileNotFoundError" not in done.stderr
    tells = "print(konigsberg.sample(seed=7, kind='errand').text); " + RACE
    command = [python.with_name("nanoeuler"), "generate", "Euler", "--tokens", "8"]
    for words, expected in (([python, "-c", f"import konigsberg; {tells}"], "race"), (command, "Euler")):
        env = {"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        done = subprocess.run(words, cwd=empty, env=env, capture_output=True, text=True)
        assert expected in done.stdout and not done.returncode, done.stdout + done.stderr
    site = next((tmp_path / "venv").glob("lib/*/site-packages"))
    assert all((site / name).exists() for name in (*PACKAGES, "nanoeuler_lib/py.typed"))
    (facts,) = site.glob("*.dist-info/METADATA")
    assert "Project-URL: Repository, https://github.com/anna/euler\n" in facts.read_text("utf-8")


def test_a_chapter_says_what_to_do_where_the_library_is_not(tmp_path):
    done = run(MISSING + project.library_cell(project.Project()).source, tmp_path)
    assert done.returncode and "make lab" in done.stderr and "Traceback" not in done.stderr


def test_a_chapter_fetches_the_library_where_the_repository_is_known(tmp_path):
    """git and pip are played: what they are asked for, and that the library is found where git would have put it."""
    played = MISSING + (
        "import subprocess, pathlib\n"
        "def play(command, check):\n"
        "    print(*command[-2:] if command[0] == 'git' else command[-3:])\n"
        "    if command[0] == 'git':\n"
        "        pathlib.Path('nanoeuler').mkdir()\n"
        "subprocess.run = play\n"
    )
    done = run(f"{played}{project.library_cell(SOMEWHERE).source}\nprint(sys.path[0])", tmp_path)
    assert done.stdout.split("\n")[:2] == [
        "https://github.com/anna/euler nanoeuler",
        "--quiet --editable nanoeuler",
    ]
    assert done.stdout.endswith("/nanoeuler\n"), done.stdout + done.stderr


def test_the_cell_is_put_in_once_and_counted_and_leaves_the_record_of_the_run(tmp_path):
    """The record's sum of the code stays, for the same cell is in every chapter."""
    result = nbformat.v4.new_output("execute_result", {}, execution_count=1)
    code = nbformat.v4.new_code_cell("1", execution_count=1, outputs=[result])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("head"), code])
    digests = []
    for _ in range(3):
        nbformat.write(notebook, tmp_path / "a.ipynb")
        digests.append(runs.digest(tmp_path / "a.ipynb"))
        head, library, one = project.with_library(notebook, SOMEWHERE).cells
        assert (head.source, one.source) == ("head", "1") and "anna/euler" in library.source
        assert (library.execution_count, one.execution_count, one.outputs[0].execution_count) == (1, 2, 2)
    assert digests[0] == digests[1] == digests[2]
