"""The instructor guide says what the book says: its plans, wrong answers, exam answers; and can fail to."""

import math
import re
from collections import Counter
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install -e .[book]")

from nanoeuler_lib.config import ModelConfig, RewardConfig  # noqa: E402
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
    with pytest.raises(LookupError, match="no row `Hardware`"):
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
        ("a | 01 | x\nb | 00 | y", "", "a: 01 needs 00 before it"),
        ("a | 00 02 | x", "", "needs 01 before it"),
        ("a | 00 07 | x", "", "no chapter 07; the book has 00, 01, 02"),
        ("a | 00 01 | x\nb | 00 | y", "", "00 stands twice"),
        ("a | 00 01", "", "expected `when | chapters | what happens`"),
        ("a | 00 01 | x", "02", "nothing needs it: 02"),
        ("a | 00 | sum | x\nb | 01 | sum | y", "", "sum is due twice"),
        ("a | 00 | sum paper-04 | x", "", "a: paper-04 is no exercise or paper of a chapter up to there"),
    ],
)
def test_a_plan_that_cannot_be_taught_is_refused(text, without, said):
    with pytest.raises(guide.GuideError, match=re.escape(said)):
        guide.plan(SMALL, text, without.split())


def test_the_plans_of_the_guide_can_be_taught():
    assert len(PLANS) == 6
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
    write(
        tmp_path,
        solution("swap: right", "rejected, one set only: return two; found `1`", "rejected, b: *no*"),
    )
    text = guide.errors(SMALL, "00", "one set only\n: Ask\n  again.\nb\n: Why?\n", tmp_path)
    assert text.split("\n")[2:] == [
        "* **One set only.** Check: “return two; found \\`1\\`”. Ask again.",
        "* **B.** Check: “\\*no\\*”. Why?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one sett only\n: Ask.", "rejects 0 answers named 'one sett only'; it names ['one', 'twice']"),
        ("twice\n: Ask.", "rejects 2 answers named 'twice'"),
        ("a real mistake\n: Ask.", "00 shows no real mistake"),
        ("one: Ask.", "expected lines `name` and `: response`"),
        ("one\n: Ask.\n\nand more", "expected lines"),
    ],
)
def test_a_wrong_answer_that_no_check_rejects_is_refused(tmp_path, text, said):
    write(tmp_path, solution("rejected, one: a", "rejected, twice: b"), solution("rejected, twice: c"))
    with pytest.raises(guide.GuideError, match=re.escape(said)):
        guide.errors(SMALL, "00", text, tmp_path)


@pytest.mark.parametrize("number", BOOK)
def test_each_chapter_has_its_sheet(number):
    """Facts, mistakes that the chapter has, questions, and an exam question whose rubric adds up."""
    body = SECTIONS[BOOK[number].title]
    assert re.findall(r"\{chapter-sheet\} (\w+)", body) == [number]
    ((of, mistakes),) = re.findall(r"^```\{errors\} (\w+)\n(.*?)^```", body, re.M | re.S)
    assert of == number and guide.errors(BOOK, of, mistakes).count("\n* ") >= 2
    assert guide.chapter(BOOK, number).count("* - ") == 5
    assert body.count("**To discuss.**") == 1
    (rubric,) = re.findall(r"Rubric, 10 points\n:class: dropdown\n(.*?)^::::", body, re.M | re.S)
    assert sum(map(int, re.findall(r"\((\d+)(?:;[^)]*)?\)", re.sub(r"\$.*?\$", "", rubric)))) == 10, rubric


def test_no_chapter_is_left_out_and_none_invented():
    assert set(SECTIONS) == {one.title for one in BOOK.values()}


# ---- The exam's answers, computed


def said(number: str, *texts: str) -> None:
    """The rubric of this chapter states these."""
    rubric = SECTIONS[BOOK[number].title].partition("Rubric")[2]
    for text in texts:
        assert text in rubric, f"{number}: {text}"


def test_exam_01_merges():
    merges, words = [], [list(b"abababa")]
    for new in (256, 257):
        counts = Counter(pairwise(words[0]))
        spelt = {256: b"ba", **{b: bytes([b]) for b in b"ab"}}
        best = max(counts, key=lambda pair: (counts[pair], spelt[pair[0]], spelt[pair[1]]))
        merges.append((best, counts[best]))
        words = [apply(word, best, new) for word in (words[0], list(b"abab"))] if new == 256 else words
    assert merges == [((98, 97), 3), ((256, 256), 2)]
    assert words[1] == [97, 256, 98] and apply(words[1], (256, 256), 257) == words[1]
    said("01", "*a*, *ba*, *b*", "*a ba ba ba*")


def apply(word: list[int], pair: tuple[int, int], new: int) -> list[int]:
    done = []
    for token in word:
        if done and (done[-1], token) == pair:
            done[-1] = new
        else:
            done.append(token)
    return done


def test_exams_of_part_1():
    pairs = lambda word: Counter(map("".join, pairwise(word)))
    before, after = pairs("xyxyz"), pairs("NNz")
    changes = {pair: after[pair] - before[pair] for pair in before | after}
    assert {p: c for p, c in changes.items() if c} == {"xy": -2, "yx": -1, "yz": -1, "NN": 1, "Nz": 1}
    said("03", *(f"{nats / (size * math.log(2)):.2f}" for nats, size in ((2.0, 4), (1.2, 2))), "2^{-1000}")
    x, w, dy = np.array([[1, 0, 2], [0, 1, 1.0]]), np.array([[1], [-1], [2.0]]), np.array([[1], [3.0]])
    dx, dw = reference.linear_backward(dy, reference.linear_forward(x, w)[1])
    assert dw.ravel().tolist() == [1, 3, 5] and dx.tolist() == [[1, -1, 2], [3, -3, 6]]
    said("04", "(1, 3, 5)", r"\begin{pmatrix} 1 & -1 & 2 \\ 3 & -3 & 6 \end{pmatrix}", "(-3/8, 3/8)")
    loss, saved = reference.cross_entropy_forward(np.array([[0, math.log(3)]]), np.array([0]))
    assert loss == pytest.approx(math.log(4))
    assert reference.cross_entropy_backward(np.array([0.5]), saved)[0] == pytest.approx([-3 / 8, 3 / 8])
    said("05", f"{(1.1**3 - 0.9**3) / 0.2:.2f}")


def test_exams_of_part_2():
    column = lambda *numbers: np.array(numbers, float).reshape(1, 1, -1, 1)
    y, saved = reference.attention_forward(column(1, 1), column(0, math.log(3)), column(2, 10))
    dq, dk, dv = reference.attention_backward(column(0, 1), saved)
    assert y.ravel() == pytest.approx([2, 8]) and dv.ravel() == pytest.approx([1 / 4, 3 / 4])
    assert dk.ravel() == pytest.approx([-3 / 2, 3 / 2]) and dq.ravel()[0] == 0
    y, saved = reference.rmsnorm_forward(np.array([3.0, 4]), np.ones(2), eps=0.0)
    dx, _ = reference.rmsnorm_backward(np.array([1.0, 0]), saved)
    assert dx == pytest.approx(np.array([0.64, -0.48]) / math.sqrt(12.5))
    said("08", "(0.64, -0.48)", f"{1.01**8:.2f}")
    y, saved = reference.swiglu_forward(np.zeros(1), np.full(1, 2.0))
    assert [*y, *np.ravel(reference.swiglu_backward(np.ones(1), saved))] == [0, 1, 0]
    assert 2 * 96 * 4 * 96 == 3 * 96 * 256
    said("09", f"{8 * 96 // 3}, with {3 * 96 * 256:,}")
    cos, sin = np.cos(np.arange(6) * math.pi / 6)[:, None], np.sin(np.arange(6) * math.pi / 6)[:, None]
    turned = reference.rope_forward(np.tile([1.0, 0], (6, 1)), cos, sin)[0]
    assert turned[5] @ turned[2] == pytest.approx(0, abs=1e-15)


def test_exams_of_part_3():
    assert max(abs(1 - 0.2 * c) for c in (1, 9)) == pytest.approx(0.8)
    assert round(math.log(4096) + 256 * 0.02**2 / 2, 2) == 8.37
    flops, size = lambda n: 2 * n * 256 * 256, lambda n: 4 * (256 * 256 + 2 * n * 256)
    batch, few = ((f"{flops(n):,}", f"{size(n):,}", f"{flops(n) / size(n):.0f}") for n in (64, 4))
    said("13", "{} flops over {} bytes, about {}".format(*batch), "{} over {}, about {}".format(*few))
    said("13", f"{1 / (0.4 + 0.3):.2f}")
    p = np.array([1, 2, 4]) / 7
    assert p**2 / (p**2).sum() == pytest.approx(np.array([1, 4, 16]) / 21)
    assert p[2] < 0.8 <= p[2] + p[1] and (p >= 0.3 * p[2]).tolist() == [False, True, True]
    said("14", "(1, 4, 16)/21", f"{2 * 4 * 2 * 32 * 128 * 4:,}".replace(",", "{,}"))
    p, q = np.array([2, 1, 1]) / 4, np.array([1, 1, 2]) / 4
    kept = np.minimum(p, q)
    assert kept.sum() == 3 / 4 and ((p - q).clip(0) > 0).tolist() == [True, False, False]
    assert kept[0] + (1 - kept.sum()) * p[0] == 3 / 8 and sum(0.5**j for j in range(4)) == 1.875


def test_exams_of_parts_4_to_6():
    heun = lambda z: 1 + z + z * z / 2
    assert heun(-3) == 2.5 and abs(heun(-1.99)) < 1 < abs(heun(-2.01))
    assert (500 - 1) // 128 + 1 == 4 and divmod(500, 128) == (3, 116) and 4 * 128 - 500 == 12
    assert len({4 * 4 * lane // 32 for lane in range(32)}) == 16 and math.gcd(36, 32) == 4
    said("26", f"{bfloat16_sum(3.0):,.0f}", f"= {3 ^ 6}$")
    m, total, o = math.log(2), 1.5, 7.5
    keep = math.exp(m - math.log(4))
    total, o = total * keep + 1, o * keep + 12
    assert (total, o, o / total) == pytest.approx((7 / 4, 63 / 4, 9))
    assert math.log(4) + math.log(total) == pytest.approx(math.log(7))
    said("27", "7/4", "63/4", r"\ln 7", "10, of which 4")
    weights, values = np.array([1, 2]) / 3, np.array([3, 9])
    delta = 2 * weights @ values
    assert delta == pytest.approx(14) and weights * (2 * values - delta) == pytest.approx([-8 / 3, 8 / 3])
    said("28", "(-8/3, 8/3)", "14")
    moved = [float(from_bfloat16(to_bfloat16(np.float32([w + 0.003])))[0]) for w in (1.5, 0.1875)]
    assert moved[0] == 1.5 and moved[1] == 195 * 2.0**-10
    taken, placed = set(), []
    for size, first, last in [(6, 0, 1), (4, 1, 3), (5, 2, 4), (2, 4, 5)]:
        space = lambda at, n=size, calls=range(first, last + 1): {(c, at + b) for c in calls for b in range(n)}
        placed.append(next(at for at in range(20) if not space(at) & taken))
        taken |= space(placed[-1])
    most = 1 + max(byte for _, byte in taken)
    said("29", f"{moved[1]:.4f}", ", ".join(map(str, placed)), f"{most} bytes")


def test_exam_22():
    others, own = (rewards.advantages(np.array([[1.0, 1, 0, 0]]), own)[0] for own in (False, True))
    assert others == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3]) and own.tolist() == [0.5, 0.5, -0.5, -0.5]
    assert (own / [2, 4, 4, 8]).tolist() == [1 / 4, 1 / 8, -1 / 8, -1 / 16]
    moved, good = np.log([[1.3], [0.7]]), np.array([1.0, -1.0])
    held = rewards.surrogate(moved, 0 * moved, good, np.ones((2, 1), bool), RewardConfig())[2]
    assert held.all()
    said("22", r"$\pm 2/3$", r"$\pm 1/2$", "$1/4$, $1/8$, $-1/8$, $-1/16$", "Both: a good one above 1.2")


def test_exam_34():
    pairs = layout.to_pairs(np.arange(6)[:, None], 1).ravel().tolist()
    codes, scales = layout.quantise(np.array([[0.5, -2.54, 1, 0.03]]), 4)
    assert scales.item() == pytest.approx(0.02) and codes[0, :3].tolist() == [25, -127, 50]
    config = ModelConfig(64, 4, kv_heads=2, layers=2, context=10, vocab_size=100, predict=1, ffn=128)
    size = sum(math.prod(shape) for shape in layout.llama_shapes(config).values())
    cache = 2 * 2 * config.kv_heads * config.head_dim * 10 * 2
    said("34", ", ".join(map(str, pairs)), "25, -127, 50 and 2", f"{size:,}", f"{cache:,}")


def test_exam_33():
    two = Context(prec=2)
    a, b = Decimal(97), Decimal("0.4")
    assert two.add(two.add(two.add(a, b), b), b) == 97 and two.add(two.add(a, b), two.add(b, b)) == 98
    said("33", str(a + b), "so 98", f"{Fraction(6 + 6, 3 + 1)} nats", f"{Fraction(6, 3) / 2 + Fraction(6, 1) / 2} nats")
    said("33", f"{100 * 12 / 8:g} MB", f"{100 * 12 / 8 + 100 * (4 + 2):g} MB", f"{400 / 100:g} MB")
    assert 4e6 / 4 / 100e9 == pytest.approx(1e-5)
    said("33", f"{6e3 * (1e-5 + 400e6 / 4 / 100e9):.2f}")


def test_exam_30():
    """The loops of a product, a clock that goes on by microseconds, coins in all ways."""
    flops = sum(2 for _ in range(100) for _ in range(100) for _ in range(200))
    moved = 2 * len({*product("a", range(100), range(200)), *product("b", range(200), range(100))})
    moved += 2 * len(set(product(range(100), range(100))))
    assert flops / moved == 40 < 400e12 / 2e12
    ends, now = [], 0
    for written, took in zip((5, 10, 15, 20), (3, 3, 20, 3), strict=True):
        now = max(now, written) + took
        ends.append(now)
    heads = Counter(sum(coins) for coins in product((0, 1), repeat=8))
    rare, often = (heads[0] + heads[8]) / 2**8, (heads[0] + heads[1] + heads[7] + heads[8]) / 2**8
    assert rare <= 0.05 < often
    said(
        "30", *(f"{n:,}".replace(",", r"\,") for n in (flops, moved)), "40 flops a byte", f"{rare:.3f}", f"{often:.2f}"
    )
    said("30", "{}, {}, {} and {}".format(*ends), f"{ends[-1] - (3 + 3 + 20 + 3)} us")


def test_exam_a2():
    dW = np.array([[5.0, 4], [4, 5]])
    u, s, vt = np.linalg.svd(dW)
    assert s == pytest.approx([9, 1]) and u @ vt == pytest.approx(np.eye(2))
    against = dW / np.linalg.norm(dW, 2)
    assert [0.1 * (dW * step).sum() for step in (against, u @ vt)] == pytest.approx([8.2 / 9, 1.0])
    cubic = lambda x: 1.5 * x - 0.5 * x**3
    said("A2", "9 and 1", f"82 / 9 = {8.2 / 9:.3f}", "(9 + 1) = 1", "identity")
    said("A2", f"{cubic(0.2):.3f}, then {cubic(cubic(0.2)):.3f}")


def test_exam_a3():
    assert 0.010 * 4**0.5 > 4.3 * 0.004
    s = np.linspace(0.5, 1, 1001)
    off, a = min((np.abs(1 - a * s).max(), a) for a in np.linspace(1, 2, 3001))
    assert [off, a] == pytest.approx([1 / 3, 4 / 3], abs=1e-3)
    said("A3", "0.02", f"{4.3 * 0.004:.4f}", f"{1.70 - 4.3 * 0.004:.4f}", f"{0.4 * 0.9:.2f}", "a = 4/3", "1/3")
    said("A3", f"{1e3 * 60 * 5 * (3 * 2 * 1000**3) / 600e12:.0f} ms")


def test_exam_18():
    """Outcomes one by one, prefixes one by one, the loss on a grid."""
    joint = Counter()
    for place in range(3):
        joint[place] = Fraction(1, 3)
        for rate, named in ((Fraction(1, 2), 0), (Fraction(1, 2), 1), (Fraction(3, 4), 1)):
            joint[place] *= rate if named == place else (1 - rate) / 2
    assert [joint[i] / joint.total() for i in range(3)] == [Fraction(n, 15) for n in (2, 12, 1)]
    won = np.mean([math.log2(4 / left) for left in (2, 2, 1, 1)])
    grid = np.linspace(-2, 2, 4001)
    best = [grid[np.argmin(2 * (grid - 1) ** 2 + penalty * 2 * grid**2)] for penalty in (1, 0)]
    assert np.allclose(best, [0.5, 1])
    said("18", "2/15, 12/15, 1/15", f"{won:g}", f"{won - 1.2:.1f} bits", "1/2$; 1")


def test_exam_19():
    """The law on a grid of sizes, the parabolas on a grid of floors."""
    n = np.geomspace(1e4, 1e8, 40_001)
    loss = 0.2 + 4 * n**-0.5 + 4 * (1e12 / n) ** -0.5
    assert n[loss.argmin()] == pytest.approx(1e6, rel=1e-3)
    said("19", f"{loss.min():.3f}", "0.149 to 0.164", f"{0.164 - 0.149 + 2 / 0.05 * (0.165 - 0.164):.3f}")
    floors = np.linspace(0.14, 0.17, 30_001)
    for e, v, s in ((0.16, 4e-6, 12), (0.15, 1e-6, 15)):
        low, high = floors[s + (floors - e) ** 2 / v <= 16 + 1e-9][[0, -1]]
        said("19", f"{low:.3f} to {high:.3f}")


def test_exam_31():
    """Shingles of two pages as sets, bands by all outcomes, odds by a softmax."""
    page = [f"w{i}" for i in range(54)]
    other = [f"x{i}" if i in (15, 35) else word for i, word in enumerate(page)]
    sets = [{tuple(words[i : i + 5]) for i in range(50)} for words in (page, other)]
    similar = Fraction(len(sets[0] & sets[1]), len(sets[0] | sets[1]))
    agree = list(product((0, 1), repeat=4))
    banded = Fraction(sum((a and b) or (c and d) for a, b, c, d in agree), 16)
    sharp = np.exp(np.log([0.8, 0.2]) / 0.5)
    said("31", f"40/60 = {similar}", f"{float(similar * (1 - similar) / 100) ** 0.5:.3f}", str(banded))
    said("31", str(Fraction(sum(map(any, agree)), 16)), f"16/17 = {sharp[0] / sharp.sum():.2f}")


def test_exam_32():
    """Products one by one, powers one by one, rows one by one."""
    weights = sum(2 * 3 for _ in range(8) for _ in range(500))  # forward, and twice backward
    attention = sum(3 * 2 * 2 * 3 * (t + 1) for _ in range(2) for _ in range(2) for t in range(4))
    share = next(p / 1e6 for p in range(10**6) if (1 - p / 1e6) ** 50 < 0.05)
    assert Counter(1 + row // 10 for row in range(28, 32)) == {3: 2, 4: 2}
    said("32", str(weights), str(weights + attention), f"{share:.3f}", "two for the third time, two for the fourth")
    said("32", str(next(n for n in range(1, 999) if 0.99**n <= 0.05)))


def bfloat16_sum(term: float) -> float:
    """Where a running sum stops that is rounded to bfloat16, ties to even, after each addition."""
    total = np.float32(0)
    while True:
        bits = (total + np.float32(term)).astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        if rounded == total:
            return float(total)
        total = rounded


def test_citation_names_the_version():
    import yaml

    from tools.book import pages, status

    made = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert made["version"] == made["preferred-citation"]["version"] == status.version()
    entry = pages.bibtex(ROOT / "CITATION.cff")
    assert "url" not in entry and f"Version {status.version()}" in entry
    assert "url    = {https://example.org/}" in pages.bibtex(ROOT / "CITATION.cff", "https://example.org/")
