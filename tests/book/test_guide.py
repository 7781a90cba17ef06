"""The instructor guide says what the book says: its plans, wrong answers, exam answers; and can fail to."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from nanoeuler_book import few_bits  # noqa: E402
from nanoeuler_book.experts import routing  # noqa: E402
from nanoeuler_book.linear_attention import delta_forward, memory_bytes  # noqa: E402
from nanoeuler_lib.config import ModelConfig  # noqa: E402
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16  # noqa: E402
from nanoeuler_lib.formats import layout  # noqa: E402
from nanoeuler_lib.ops import reference  # noqa: E402
from nanoeuler_lib.training import rewards  # noqa: E402
from tools.book import guide  # noqa: E402
from tools.notebooks import count, heads  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BOOK = heads.chapters()
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "book/instructor").glob("part_*.md"))}
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.M | re.S)
SECTIONS = {title: body for page in PAGES.values() for title, body in SECTION.findall(page)}
PLANS_PAGE = "".join((ROOT / f"book/instructor/{name}.md").read_text("utf-8") for name in ("plans", "syllabus"))
PLANS = re.findall(r"^```\{plan\}\n((?::without:[^\n]*\n)?)(.*?)^```", PLANS_PAGE, re.M | re.S)


# ---- A small book


def head(needs: str) -> str:
    return (
        "# T\n\n```{list-table}\n:class: facts\n:stub-columns: 1\n\n* - Time\n  - long\n* - You need\n"
        f"  - {needs}\n* - Hardware\n  - a CPU\n* - Afterwards you can\n  - do it,\n    and well\n```"
    )


def chapter(number: str, *needs: str, words: int = 0) -> heads.Chapter:
    links = " ".join(f"[{n}]({n}_x.ipynb)" for n in needs)
    facts = {"You need": links, "Hardware": "a CPU", "Afterwards you can": "do it"}
    exercises = {"sum": ("A sum", False), "own": ("Your own", True)} if number == "00" else {}
    return heads.Chapter(f"{number}_x", f"{number} X", "I", facts, count.Length(words, 0, 0, 0), 7, exercises)


SMALL = {one.number: one for one in (chapter("00"), chapter("01", "00", words=4500), chapter("02", "01"))}


def write(folder: Path, *cells, name: str = "00_x") -> Path:
    (folder / "notebooks").mkdir(exist_ok=True)
    path = folder / "notebooks" / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)
    return path


def solution(*printed: str):
    output = nbformat.v4.new_output("stream", name="stdout", text="\n".join(printed))
    return nbformat.v4.new_code_cell("", metadata={"tags": ["solution"]}, outputs=[output])


# ---- Heads


def test_a_head_says_its_facts_and_needs(tmp_path):
    text = head("[04](04_a.ipynb), *x* from [08](08_b.ipynb),\n    and [04](04_a.ipynb) again; logarithms")
    one = heads.read(write(tmp_path, nbformat.v4.new_markdown_cell(text), name="09_y"))
    assert one.needs == ["04", "08"] and one.number == "09" and one.facts["Afterwards you can"] == "do it, and well"
    without = nbformat.v4.new_markdown_cell(text.replace("Hardware", "Machine"))
    with pytest.raises(LookupError, match="must have a row `Hardware`"):
        heads.read(write(tmp_path, without))


def test_every_chapter_needs_earlier_ones_and_gives_points():
    numbers = list(BOOK)
    for one in BOOK.values():
        assert one.points > 0
        assert all(numbers.index(need) < numbers.index(one.number) for need in one.needs), one.number


# ---- Plans


@pytest.mark.parametrize(
    ("text", "without", "said"),
    [
        ("a | 01 | x\nb | 00 | y", "", "a: 01 must come after 00, which it needs"),
        ("a | 00 07 | x", "", "a chapter must be one of 00, 01, 02, got 07"),
        ("a | 00 01 | x\nb | 00 | y", "", "b: a chapter must occur once in a plan, got 00 again"),
        ("a | 00 01", "", "a line must be `when | chapters | what happens`"),
        ("a | 00 01 | x", "02", "only chapters that the plan needs, got 02"),
        ("a | 00 | sum | x\nb | 01 | sum | y", "", "b: work must be due once, got sum again"),
        ("a | 00 | sum paper-04 | x", "", "a: work must be from a chapter up to this line, got paper-04"),
    ],
)
def test_a_plan_that_cannot_be_taught_is_refused(text, without, said):
    with pytest.raises(guide.GuideError, match=re.escape(said)):
        guide.plan(SMALL, text, without.split())


def test_the_plans_of_the_guide_can_be_taught():
    assert PLANS
    for option, text in PLANS:
        guide.plan(BOOK, text, option.removeprefix(":without:").split())


def test_hours_count_what_is_due():
    rows = guide.plan(SMALL, "a | 00 | | x\nb | 01 | sum own | y").split("\n")
    assert rows[2].endswith("|  |  |  | x |") and "| 1\xa0h | 3\xa0h | y |" in rows[3]
    assert "{ref}`A sum <ex-sum>`<br>{ref}`Your own <ex-own>`" in rows[3]


@pytest.mark.parametrize("number", BOOK)
def test_a_board_plan_fills_the_session(number):
    found = guide.board(BOOK, number)
    minutes = [int(m) for m in re.findall(r"^\d+\. \*\*.+\*\* \((\d+) min\)$", found, re.M)]
    assert 5 <= len(minutes) <= 10 and sum(minutes) == 90
    listed = re.findall(r"From the gaps: (.*?)\.(?:$| )", found, re.M)
    assert sum(len(names.split(", ")) for names in listed) >= BOOK[number].length.gaps


# ---- Wrong answers


def test_a_wrong_answer_brings_what_its_check_says(tmp_path):
    write(tmp_path, solution("swap: right", "rejected, one set only: return two; found `1`", "rejected, b: *no*"))
    text = guide.errors(SMALL, "00", "one set only\n: Ask\n  again.\nb\n: Why?\n", tmp_path)
    assert text.split("\n")[2:] == [
        "* **One set only.** Check: “return two; found \\`1\\`”. Ask again.",
        "* **B.** Check: “\\*no\\*”. Why?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "one sett only\n: Ask.",
            "00: a mistake must be named once in the solutions, which name ['one', 'twice'], got 'one sett only'",
        ),
        ("a real mistake\n: Ask.", "00: the chapter must have a box `A real mistake`"),
        ("one: Ask.", "mistakes must be lines `name` and `: response`"),
        ("one\n: Ask.\n\nand more", "must be lines"),
    ],
)
def test_a_wrong_answer_that_no_check_rejects_is_refused(tmp_path, text, said):
    write(tmp_path, solution("rejected, one: a", "rejected, twice: b"), solution("rejected, twice: c"))
    with pytest.raises(guide.GuideError, match=re.escape(said)):
        guide.errors(SMALL, "00", text, tmp_path)


@pytest.mark.parametrize("number", BOOK)
def test_each_chapter_has_its_sheet(number):
    """Facts, mistakes that the chapter has, and an exam question whose rubric adds up."""
    body = SECTIONS[BOOK[number].title]
    assert re.findall(r"\{chapter-sheet\} (\w+)", body) == [number]
    ((of, mistakes),) = re.findall(r"^```\{errors\} (\w+)\n(.*?)^```", body, re.M | re.S)
    assert of == number and guide.errors(BOOK, of, mistakes).count("\n* ") >= 2
    assert guide.chapter(BOOK, number).count("* - ") == 5
    (rubric,) = re.findall(r"Rubric, 10 points\n:class: dropdown\n(.*?)^::::", body, re.M | re.S)
    assert sum(map(int, re.findall(r"\((\d+)(?:;[^)]*)?\)", re.sub(r"\$.*?\$", "", rubric)))) == 10, rubric


# ---- The exam's answers, computed


def vector(numbers) -> str:
    """As a rubric writes it: (-3/8, 3/8)."""
    return f"({', '.join(str(Fraction(float(n)).limit_denominator(999)) for n in np.ravel(numbers))})"


def bfloat16(x: float) -> np.float32:
    return from_bfloat16(to_bfloat16(np.float32([x])))[0]


def bfloat16_sum(term: float) -> float:
    """Where a running sum stops that is rounded to bfloat16 after each addition."""
    total = np.float32(0)
    while (more := bfloat16(total + np.float32(term))) != total:
        total = more
    return float(total)


def exam_of_03():
    x, w, dy = np.array([[1, 0, 2], [0, 1, 1.0]]), np.array([[1], [-1], [2.0]]), np.array([[1], [3.0]])
    _, saved = reference.cross_entropy_forward(np.array([[0, math.log(3)]]), np.array([0]))
    back = reference.linear_backward(dy, reference.linear_forward(x, w)[1])[1]
    return vector(back), vector(reference.cross_entropy_backward(np.array([0.5]), saved)[0])


def exam_of_08():
    _, saved = reference.rmsnorm_forward(np.array([3.0, 4]), np.ones(2), eps=0.0)
    x, y = reference.rmsnorm_backward(np.array([1.0, 0]), saved)[0] * math.sqrt(12.5)
    return f"({x:.2f}, {y:.2f})", f"{1.01**8:.2f}"


def exam_of_22():
    own = rewards.advantages(np.array([[1.0, 1, 0, 0]]), True)[0]
    return "2/3", *(f"{Fraction(share)}" for share in own / [2, 4, 4, 8])


def exam_of_34():
    pairs = layout.to_pairs(np.arange(6)[:, None], 1).ravel().tolist()
    codes, _ = layout.quantise(np.array([[0.5, -2.54, 1, 0.03]]), 4)
    config = ModelConfig(64, 4, kv_heads=2, layers=2, context=10, vocab_size=100, predict=1, ffn=128)
    size = sum(math.prod(shape) for shape in layout.llama_shapes(config).values())
    cache = 2 * 2 * config.kv_heads * config.head_dim * 10 * 2
    return ", ".join(map(str, pairs)), "{}, {}, {}".format(*codes[0, :3]), f"{size:,}", f"{cache:,}"


def exam_of_35():
    logits, f, P = np.array([2.0, 1, 0, -1]), np.array([0.5, 0.5, 0, 0]), np.array([0.4, 0.4, 0.1, 0.1])
    p, q = routing(logits, 2), np.exp(logits) / np.exp(logits).sum()
    weights = [3 * 64 * 88 * n + 64 * 8 for n in (8, 2)]
    missing, loss = q[2:].sum(), 0.01 * 4 * (f * P).sum()
    return "{:.2f} and {:.2f}".format(*p[:2]), f"{missing:.2f}", *(f"{n:,}" for n in weights), f"{loss:.3f}"


def exam_of_36():
    keys, values = np.array([[1.0, 0], [0.6, 0.8]]), np.array([[4.0], [2]])
    S = delta_forward(keys, keys, values, np.ones(2), np.ones(2))[1][-1][-1]
    layer = ModelConfig(512, 8, kv_heads=8, layers=1, context=64, vocab_size=9, predict=1)
    cache = memory_bytes(layer, 64, full=1) / 2  # two bytes per number
    assert cache == 16 * 64 * 64 * 2
    return f"{(keys[0] @ S)[0]:.2f}", f"{1 - 64 / 256}", f"{255 / 64:.2f}", f"{6 * 511} tokens"


def exam_of_37():
    form = few_bits.Format(3, 2, 28.0)
    values, ends = few_bits.codes(*form), []
    for step in (0.15, 0.1):
        w = np.ones(1)
        for _ in range(100):
            w = few_bits.nearest(w + step, form)
        ends.append(f"{w[0]:g} (1)")
    p = few_bits.spread((values == 1).astype(float), values, 0.1)
    low, high = np.flatnonzero(p)
    known = f"{values[low]:g} and {values[high]:g} (1), with probabilities {p[low]:.1f} and {p[high]:.1f}"
    smallest, variance = values[values > 0].min(), p @ (values - 1.1) ** 2
    return f"{form.largest:g}", f"{smallest:g}", "; ".join(ends), known, f"{variance:.3f}", f"{(64 * 4 + 8) / 64:g}"


EXAMS = {  # what the rubric of a chapter's exam question must have: the library's answer, or a formula's
    "02": lambda: [f"{nats / (size * math.log(2)):.2f}" for nats, size in ((2.0, 4), (1.2, 2))],
    "03": exam_of_03,
    "04": lambda: [
        vector(np.full(4, 0.25) - [0, 0.75, 0.25, 0]),
        f"{-0.75 * math.log(0.75) - 0.25 * math.log(0.25):.2f}",
    ],
    "05": lambda: [f"{(1.1**3 - 0.9**3) / 0.2:.2f}"],
    "08": exam_of_08,
    "09": lambda: [f"{8 * 96 // 3}", f"{3 * 96 * 256:,}"],
    "13": lambda: [f"{2 * n * 256 * 256:,}" for n in (64, 4)] + [f"{1 / (0.4 + 0.3):.2f}"],
    "14": lambda: [f"{2 * 4 * 2 * 32 * 128 * 4:,}"],
    "22": exam_of_22,
    "26": lambda: [f"{bfloat16_sum(3.0):,.0f}", f"{3 ^ 6}"],
    "28": lambda: [vector(np.array([1, 2]) / 3 * (2 * np.array([3, 9]) - 14))],
    "29": lambda: [f"{bfloat16(0.1875 + 0.003):.4f}"],
    "32": lambda: [str(next(n for n in range(999) if 0.99**n <= 0.05))],
    "33": lambda: [f"{100 * 12 / 8:g} MB", f"{100 * 12 / 8 + 600:g} MB", f"{6e3 * (1e-5 + 4e8 / 4 / 100e9):.2f}"],
    "34": exam_of_34,
    "35": exam_of_35,
    "36": exam_of_36,
    "37": exam_of_37,
    "A2": lambda: ["{:.0f} and {:.0f}".format(*np.linalg.svd(np.array([[5.0, 4], [4, 5]]))[1])],
}


@pytest.mark.parametrize("number", EXAMS)
def test_the_rubric_of_an_exam_question_has_the_computed_numbers(number):
    rubric = SECTIONS[BOOK[number].title].partition("Rubric")[2].replace("{,}", ",").replace(r"\,", ",")
    assert [text for text in EXAMS[number]() if text not in rubric] == []


def test_citation_names_the_version():
    import yaml

    from tools.book import pages, status

    made = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert made["version"] == made["preferred-citation"]["version"] == status.version()
    entry = pages.bibtex(ROOT / "CITATION.cff", "https://example.org/")
    assert "url    = {https://example.org/}" in entry and f"Version {status.version()}" in entry
