"""Test what a reader meets first: README.md, the first page, the project's addresses, and a lone chapter."""

import dataclasses
import json
import math
import os
import re
import shlex
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
from nanoeuler_lib.command import cli  # noqa: E402
from tools.book import landing, project  # noqa: E402
from tools.notebooks import heads  # noqa: E402

ROOT = project.ROOT
README = (ROOT / "README.md").read_text()
INTRO, COMMAND, SPEED = ((ROOT / f"book/{name}.md").read_text() for name in "intro command speed".split())
SOMEWHERE = project.Project(
    "https://github.com/anna/euler", "https://anna.github.io/euler", "main", ("colab", "binder")
)


BOOK = list(heads.chapters().values())
PAGE_HOURS, WHOLE_HOURS = (f"{sum(one.length.hours[i] for one in BOOK):.0f}" for i in (0, 1))


# ---- Numbers and links of the first two pages


def test_readme_is_short_and_its_table_is_the_books():
    """Compute its chapters, hours and sentences; a model's ability is listed only if a chapter describes it."""
    assert len(README.splitlines()) <= 100 and len(README.split()) <= 1400
    assert project.readme(project.load(environment={}), README) == README, "python -m tools.book.project --write"
    table = landing.readme_table()
    assert f"{len(BOOK)} chapters, about {PAGE_HOURS} hours" in table and "<br>04: write" in table


def rows_of(name: str) -> list[dict]:
    return json.loads((ROOT / f"data/results/{name}.json").read_text("utf-8"))["rows"]


def attention_said() -> list[str]:
    """Return what the table says about attention, from the stored times."""
    forward, back = rows_of("gpu_attention"), {}
    for row in rows_of("gpu_attention_backward"):
        if row["numbers"] == "bfloat16" and row["C"] > 32:
            shape = tuple(row[name] for name in "BHGTC")
            back.setdefault(shape, {})[row["way"]] = row["milliseconds"]
    against = lambda peer: [ways[peer] / ways["ours"] for ways in back.values()]
    cudnn = [row["speedup"]["cudnn"] for row in forward if row["numbers"] == "bfloat16"]
    efficient = [row["speedup"]["efficient"] for row in forward if row["numbers"] == "float32"]
    span = lambda ratios, digits=2: f"{min(ratios):.{digits}f} to {max(ratios):.{digits}f} times as fast"
    return [
        f"| cuDNN | {span(cudnn)} |",
        f"| cuDNN, whose sums have no fixed order | {span(against('cuDNN'))}, the same bits in every run |",
        f"| FlashAttention-2 | {span(against('flash'), 1)} |",
        f"memory-efficient kernel | {span(efficient)} |",
    ]


def test_speeds_are_the_stored_ones():
    """Compute each number from the stored result that the table refers to; README's rows repeat some numbers."""
    said = []
    steps, tokens, texts = (rows_of(name) for name in ("cpu_step", "decode", "chA4"))
    for who in ("PyTorch eager", "torch.compile"):
        (row,) = (row for row in steps if (row["contender"], row["rows"]) == (who, 16))
        peer = who.replace("PyTorch", "PyTorch,") if "eager" in who else f"`{who}`"
        said.append(f"| {peer} | {row['time_by_ours']:.2f} times as fast |")
    _, eager = (row for row in tokens if row["shape"] == "small" and row["best"])
    said.append(f"| PyTorch, eager | {eager['time_by_ours']:.2f} times as fast |")
    texts = [row for row in texts if row["what"] in ("train", "encode") and row["bytes"] == 77_000_000]
    taken = {(row["what"], row["who"]): row["seconds"] for row in texts}
    ours = taken["train", "NanoEuler, 2 processes"]
    for who, name in (("Hugging Face (Rust)", "Hugging Face tokenizers"), ("rustbpe", "rustbpe")):
        assert re.search(rf"\| {name}[^|]* \| {ours / taken['train', who]:.2f} of the time \|", SPEED)
    for heat in ("cold", "warm"):
        mine, peer = taken["encode", f"NanoEuler, {heat}"], taken["encode", "tiktoken"]
        speeds = f"{77 / mine:.1f} and {77 / peer:.1f} MB/s"
        said.append(f"{heat} cache | tiktoken | {peer / mine:.2f} times as fast ({speeds})")
    bfloat16, tf32, (token, *_) = (rows_of(name) for name in ("gpu_step_0", "gpu_step_1", "gpu_decode"))
    after = f"next token of the 116M model after {token['position']} others, H100, {token['precision']}"
    said.append(f"{after} | `torch.compile`, in a CUDA graph | {token['speedup']:.2f} times as fast")
    for row, work in zip(bfloat16 + tf32, ("64 x 512 tokens, H100, bfloat16", "the same in TF32"), strict=True):
        ours, peer = (row["rounds"][who] for who in ("NanoEuler", "torch.compile"))
        faster = statistics.median(b / a for a, b in zip(ours, peer, strict=True))
        memory = row["gib"]["NanoEuler"] / row["gib"]["torch.compile"]
        said.append(f"{work} | `torch.compile` | {faster:.2f} times as fast, in {memory:.2f} of the memory")
    levers = {row["section"]: row["times"] for row in rows_of("gpu_levers") if "times" in row}
    times = lambda section, way: levers[section][way]["milliseconds"]
    step = times("step", "torch.compile") / times("step", "as it is")
    greedy = next(way for way in levers["token"] if way.startswith("greedy"))
    token = times("token", "PyTorch") / times("token", greedy)
    said.append(f"the training step on an H200 of a busy host | `torch.compile` | {step:.2f} times as fast")
    said.append(f"there, chosen on the GPU | `torch.compile`, in a CUDA graph | {token:.2f} times as fast")
    said += attention_said()
    (known,) = (r for r in rows_of("gpu_speculate") if (r["way"], r["propose"]) == ("sampled", 1))
    samples = "sampled from the trained 116M model with one draft token, H100 | the same without drafts"
    said.append(f"{samples} | {known['speedup']:.2f} times as fast |")
    config = json.loads((ROOT / "data/results/race.json").read_text())["config"]
    recipes, seconds = (config["adamw"], config["adamw"] | {"steps": 1100}, config["recipe"]), {}
    for row in rows_of("race"):
        if row.get("recipe") in recipes:
            seconds.setdefault((row["section"], row["recipe"]["steps"]), []).append(row["seconds"])
    runs_of = lambda *name: np.array(seconds[name])
    own = (runs_of("recipe", 410) / runs_of("adamw", 1050)).mean()
    same = runs_of("sigma", 1100).mean() / runs_of("adamw", 1100).mean()
    recipe = runs_of("recipe", 410).mean() / (runs_of("sigma", 1100).mean() * 1050 / 1100)
    said.append(f"H200, bfloat16: recipe and engine together | AdamW, `torch.compile` | {own:.2f} of the time")
    said.append(f"only the recipe: both on our engine | AdamW on our engine | {recipe:.2f} of the time")
    said.append(f"AdamW on both sides, 1,100 steps | AdamW, `torch.compile` | {same:.2f} of the time")
    run = rows_of("ch32")
    (base,) = (row["about"] for row in run if row["what"] == "run" and row["run"] == "base")
    tokens = base["train"]["steps"] * base["train"]["batch"] * base["model"]["context"]
    again = sum(row["milliseconds"] for row in run if row["what"] == "wall") / 1e3
    first = sum(json.loads((ROOT / "data/results/ch32.json").read_text())["config"]["before"]["walls"])
    said.append(f"{tokens / 1e9:.1f} billion tokens in {first:.0f} s, and again in {again:.0f} s")
    page = " ".join(SPEED.split())
    assert [text for text in said if text not in page] == []
    rows = re.findall(r"^\| .+ \| (\d\.\d\d .+?) \|$", README, re.M)
    assert len(rows) == 6 and all(text.replace(", 0", ", in 0") in SPEED for text in rows)


def test_what_the_english_model_is_said_to_write_is_a_stored_sample():
    english = json.loads((ROOT / "data/results/english.json").read_text("utf-8"))
    of = lambda what: [row for row in english["rows"] if row["what"] == what]
    (shipped,) = (row for row in of("measured") if row["size"] == english["config"]["shipped"])
    sample = next(s["prompt"] + s["text"] for s in shipped["samples"] if s["seed"] == 0)
    page = " ".join(COMMAND.split())
    books, said = re.search(r'`english-small` has read (\d+) books .*?: "(.+?), \.\.\."', page).groups()
    assert int(books) == of("text")[0]["books"] and " ".join(sample.split()).startswith(said)


def test_the_first_page_takes_its_numbers_from_the_chapters():
    """Check that the numbers are computed when the page is built, and that none is typed by hand."""
    config = SimpleNamespace(myst_substitutions={})
    landing.substitute(None, config)
    made = {"chapters": len(BOOK), "hours": PAGE_HOURS, "hours_with_exercises": WHOLE_HOURS}
    assert config.myst_substitutions == made
    assert set(re.findall(r"\{\{ (\w+) \}\}", INTRO)) == {*config.myst_substitutions, "repository"}
    assert not re.search(r"\d+ (chapters|hours)", INTRO)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "AGENTS.md", "contributing"])
def test_links_lead_to_files_and_headings(page):
    """Resolve links as GitHub does: a heading's address is its words in lower case, joined by hyphens."""
    for path in sorted((ROOT / page).glob("*.md")) or [ROOT / page]:
        text = re.sub(r"`[^`\n]+`", "", path.read_text("utf-8"))
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            there = (path.parent / target).resolve() if target else path
            assert there.exists(), f"{path.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", there.read_text("utf-8"), re.M)
                slugs = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
                assert anchor in slugs, f"{path.name}: {target}#{anchor}"


def test_the_example_in_python_runs(tmp_path):
    *_, code = re.findall(r"```python\n(.*?)```", COMMAND, re.S)
    text = "".join(f"{konigsberg.sample(seed=seed).text}\n" for seed in range(40))
    (tmp_path / "town.txt").write_text(text, "utf-8")
    done = run(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code.replace('200', '2')}", tmp_path)
    assert len(done.stdout) > 40 and (tmp_path / "runs/from-python/checkpoints").exists(), done.stderr


def test_commands_of_the_pages_are_understood():
    """Try each line that begins with the command, exactly as printed; it has no placeholder in capitals."""
    lines = re.findall(r"^(?:\.venv/bin/)?nanoeuler (.+)$", README + COMMAND, re.M)
    assert len(re.findall("^\\.venv/bin/nanoeuler ", README, re.M)) == 6 < 40 < len(lines)
    for line in lines:
        words = shlex.split(line, comments=True)
        assert cli.parser().parse_args(words).function and "FILE" not in line, line


PACKAGES = "nanoeuler_lib nanoeuler_book konigsberg cudacheck".split()
FOLDERS = [*PACKAGES, "experiments", "benchmarks", "tests", "tools"]


def test_paths_that_chapters_and_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("contributing/*.md"), *ROOT.glob("book/**/*.md")]
    texts = {page.name: page.read_text("utf-8") for page in pages}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        texts[path.name] = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for name, text in texts.items():
        named = re.findall(rf"(?<![\w/])(?:{'|'.join(FOLDERS)})/[\w./]*\w", text)
        missing = [path for path in named if not (ROOT / path).exists() and not re.search(r"NN|/name\.", path)]
        assert not missing, f"{name}: {missing}"


def test_every_chapter_stands_in_the_map_with_its_question_hours_and_needs():
    drawn = landing.chapter_map()
    rows = re.findall(r"<li>(.*?)</li>", drawn)
    titles = [one.title for one in BOOK]
    assert [re.sub(r"<.*?>", "", re.search(r"<a .*?</a>", row)[0]).replace("&#x27;", "'") for row in rows] == titles
    assert all('class="question"' in row and re.search(r"[\d.]+ h<", row) for row in rows)
    assert drawn.count("<path ") == sum(len(c.needs) for c in landing.all_chapters().values()) > 30
    assert landing.all_chapters()["06"].needs == ("02", "03", "05")


def test_every_part_has_a_card_with_a_figure_out_of_it(tmp_path):
    cards = re.findall(r"<li>(.*?)</li>", landing.book_parts())
    assert len(cards) == len(landing.parts())
    landing.copy_figures(SimpleNamespace(outdir=str(tmp_path)), None)
    for card, (caption, chapters) in zip(cards, landing.parts(), strict=True):
        assert f'href="{chapters[0].address}"' in card and caption in card
        picture = tmp_path / "_static" / re.search(r'src="../_static/(parts/[\w-]+\.png)"', card)[1]
        assert picture.read_bytes().startswith(b"\x89PNG")
        source = next(c for c, figure in landing.FIGURES.values() if figure == picture.stem)
        assert any(source in chapter.address for chapter in chapters), "a figure of a different part"


def test_ways_through_the_book_name_chapters_that_exist():
    chapters = landing.all_chapters()
    table = landing.reading_paths()
    for name, (numbers, _) in landing.PATHS.items():
        way = [chapters[number] for number in numbers.split()]
        assert len(set(way)) == len(way)
        low, high = (math.floor(amount + 0.5) for amount in landing.total(way))
        assert f"{low}–{high} h" in table, name
    on_a_laptop = landing.PATHS["On a laptop"][0].split()
    for number in on_a_laptop:  # the chapters that a chapter needs come before it on that path
        assert set(chapters[number].needs) <= set(on_a_laptop[: on_a_laptop.index(number)])


# ---- Where the project lives


@pytest.mark.parametrize("found", [project.Project(), SOMEWHERE])
def test_pages_and_readme_lead_to_the_projects_addresses_if_it_has_any(found, monkeypatch):
    monkeypatch.setattr(project, "load", lambda: found)
    config = SimpleNamespace(myst_substitutions={}, html_theme_options={}, html_baseurl="")
    project.configure(None, config)
    part, options = project.readme_part(found), config.html_theme_options
    if found is SOMEWHERE:
        assert "git clone https://github.com/anna/euler nanoeuler" in part and "(https://anna.github.io/euler)" in part
        assert f"({found.issues})" in part and found.issues == "https://github.com/anna/euler/issues"
        assert options["use_repository_button"] and options["use_issues_button"] and options["use_source_button"]
        assert found.report("book/intro") == f"{found.issues}/new?title=Mistake%20in%20book/intro"
        assert options["launch_buttons"].keys() == {"binderhub_url", "notebook_interface", "colab_url"}
        assert config.html_baseurl == "https://anna.github.io/euler/"
    else:
        assert "](http" not in part and (found.issues, options, config.html_baseurl) == ("", {}, "")
        assert found.report("book/intro") == ""
        assert config.myst_substitutions == {"repository": "repository"}


def test_readme_says_what_project_toml_says():
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
        ('repository = "github.com/a/b"', "repository must be an address that begins with https://"),
        ('launch = ["mars"]', "launch must have only binder, colab, got 'mars'"),
        ('repo = ""', "entries must be repository, book, branch, launch, got 'repo'"),
    ],
)
def test_a_wrong_address_is_named(tmp_path, text, said):
    (tmp_path / "project.toml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        project.load(tmp_path / "project.toml", {})


# ---- A chapter in a folder of its own


def run(code: str, folder) -> subprocess.CompletedProcess:
    """Run code where a reader might have put a download: in an otherwise empty folder."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


MISSING = """
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "nanoeuler_lib" else real(name)
"""


RACE = """import numpy as np, cudacheck.kernel
text = "__global__ void add(float* x) { x[0] += threadIdx.x; }"
try:
    cudacheck.kernel.compile(text)["add"](1, 32, (np.zeros(1, np.float32),))
except cudacheck.errors.CudaCheckError as error:
    print(error)
"""


def test_a_chapter_reads_its_results_from_an_installed_library(tmp_path):
    """Run in a virtual environment that has only the wheel; all other packages are those of the tests."""
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


def test_a_chapter_installs_the_library_where_the_repository_is_known(tmp_path):
    """Replace pip by a stand-in that prints its arguments and fails or not; see also test_notebooks.py, in Colab."""
    stand_in = (
        "import subprocess\n"
        "def play(command, capture_output):\n"
        "    print(*command[1:])\n"
        "    return subprocess.CompletedProcess(command, {status})\n"
        "subprocess.run = play\n"
    )
    cell = project.library_cell(dataclasses.replace(SOMEWHERE, branch="next")).source
    library = "git+https://github.com/anna/euler@next"
    done, failed = (run(f"{MISSING}{stand_in.format(status=status)}{cell}", tmp_path) for status in (0, 1))
    assert done.stdout == failed.stdout == f"-m pip install --quiet {library}\n"
    assert (done.returncode, done.stderr) == (0, "") and failed.returncode == 1
    assert "connect to the network" in failed.stderr and f"%pip install {library} shows" in failed.stderr
    assert failed.stderr.count("\n") == 1, "one line, without a traceback"
    there = run(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{stand_in.format(status=1)}{cell}", tmp_path)
    assert (there.returncode, there.stdout) == (0, ""), "a library that is there must not be installed again"
