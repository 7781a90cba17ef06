"""Kernels that nobody wrote for this runtime: bugs that are reported, sound ones that are right, hostile ones that end.

tests/cuda/corpus/bugs and correct hold texts whose first comments say how they are launched:

    // what: a sentence
    // array x: normal(64)                       NumPy, in order; the names of HELPERS below and of earlier arrays
    // launch: name<<<grid, block, shared>>>(args)       as often as there are launches; name<8> instantiates a template
    // option: seconds=2                         of the launch
    // gives y ~ 1e-5: 2 * x                     correct: y afterwards, of the arrays as they were; no ~: exactly
    // finds: race | y                           bug: its kind and words of the finding
    // unseen: 7                                 bug: the number in A1's list of what the checker may not see

A finding must name one of the lines marked HERE and all of those marked THERE. A text that says `what` several times
holds as many cases, each with the lines below it: one compilation serves them all. A run takes ten texts of one case
from each folder and all texts of several cases; `make test-all` takes all.
"""

import functools
import json
import os
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import NamedTuple

import hostile_kernels
import numpy as np
import pytest
from test_cuda_matrix import bits_of, value_of

from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

FOLDER = Path(__file__).parent / "corpus"

pytestmark = pytest.mark.compiler
SEED = 14
SECONDS = 20  # that a hostile case may take in the mean, its compilation included
LAUNCH = re.compile(r"(\w+(?:<[^<>]*>)?)<<<(.*)>>>\((.*)\)$")
UNSEEN = re.compile(r"^(\d+)\. \*\*", re.M)
NOISE = re.compile(
    r"runtime::|self\(\)|candidate|included|note:|device\.h|\.cpp|\[-W|expansion|poison|/tmp|<command|error:|0x[0-9a-f]{9}"
)
WIDTH = 99  # of a line of a finding that quotes no code

# ----------------------------------------------------------------------------------------------------------------
# what the headers may say


def helpers(seed: str) -> dict:
    rng = np.random.default_rng(list(seed.encode()))
    return {
        "np": np, "zlib": zlib, "rng": rng, "f32": np.float32, "bf16": lambda x: bits_of(x, "__nv_bfloat16"),
        "widen": lambda x: value_of(x, "__nv_bfloat16").astype("f4"),
        "splitmix": splitmix,
        "xorshift": xorshift, "jacobi": jacobi, "life": life,
        "normal": lambda *shape: rng.standard_normal(shape, np.float32),
        "zeros": lambda *shape: np.zeros(shape, np.float32),
        "ints": lambda low, high, *shape: rng.integers(low, high, shape).astype(np.int32),
    }  # fmt: skip


def splitmix(z):
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def xorshift(state, times):
    for _ in range(times):
        state = state ^ (state << np.uint32(13))
        state = state ^ (state >> np.uint32(17))
        state = state ^ (state << np.uint32(5))
    return state


def jacobi(u):
    v = u.copy()
    v[1:-1] = 0.5 * (u[:-2] + u[2:])
    return v


def life(words):
    """Conway's rule on a torus whose rows are the words' bits."""
    cells = (words[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(int)
    around = sum(np.roll(cells, (r, c), (0, 1)) for r in (-1, 0, 1) for c in (-1, 0, 1)) - cells
    alive = (around == 3) | ((cells == 1) & (around == 2))
    return (alive.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)


# ----------------------------------------------------------------------------------------------------------------
# bugs and sound kernels


class Text(NamedTuple):
    name: str
    source: str  # of the file, with its other cases
    says: list[tuple[str, str]]  # (key, value), in order
    lines: range  # of this case

    def all(self, key: str) -> list[str]:
        return [value for k, value in self.says if k == key]

    def marked(self, mark: str) -> set[int]:
        lines = self.source.split("\n")
        return {i for i in self.lines if lines[i - 1].endswith(f"// {mark}")}


def read(file: Path) -> list[Text]:
    source = file.read_text("utf-8")
    before, *parts = re.split(r"^(?=// what: )", source, flags=re.M)
    found, line = [], 1 + before.count("\n")
    for part in parts:
        says = re.findall(r"^// (\w+[^:]*): (.*)$", part, re.M)
        name = file.stem if len(parts) == 1 else f"{file.stem}: {dict(says)['what']}"
        found.append(Text(name, source, says, range(line, line + part.count("\n"))))
        line += part.count("\n")
    return found


def texts(folder: str) -> list[list[Text]]:
    """The cases of each file."""
    return [read(file) for file in sorted((FOLDER / folder).glob("*.cu"))]


@functools.cache
def compiled(source: str) -> cuda.Module:
    launches = re.findall(r"^// launch: (.*)$", source, re.M)
    names = dict.fromkeys(LAUNCH.match(line)[1] for line in launches)
    return cuda.module(source, where="cpu", instantiate=tuple(name for name in names if "<" in name))


def launch(text: Text) -> tuple[dict, dict]:
    """Run it: the arrays before and after. Raises what the launch raises."""
    names = helpers(text.name)
    arrays = {}
    for key, value in text.says:
        if key.startswith("array "):
            arrays[key[6:]] = np.ascontiguousarray(eval(value, names | arrays))
    before = {name: array.copy() for name, array in arrays.items()}
    launches = [LAUNCH.match(line).groups() for line in text.all("launch")]
    module = compiled(text.source)
    options = eval("dict(" + ", ".join(text.all("option")) + ")")
    for name, shape, arguments in launches:
        grid, block, *shared = eval(f"({shape},)")
        values = eval(f"({arguments},)" if arguments else "()", names | arrays)
        module[name](grid, block, values, *shared, **options)
    return names | before, arrays


def judge_correct(text: Text) -> str:
    """Empty if it gives what its header says."""
    try:
        before, after = launch(text)
    except NanoEulerError as error:
        return f"reported: {error}"
    gives = [(key, value) for key, value in text.says if key.startswith("gives ")]
    assert gives, f"{text.name} says nothing of its result"
    for key, value in gives:
        name, free, tolerance = re.fullmatch(r"gives (\w+)(\.sort\(\))?(?: ~ (\S+))?", key).groups()
        found, wanted = after[name], np.asarray(eval(value, before))
        if free:
            found = np.sort(found)
        if tolerance:
            bound = float(tolerance) * max(1.0, np.abs(wanted).max())
            same = found.shape == wanted.shape and (np.abs(found.astype(float) - wanted) <= bound).all()
        else:
            same = np.array_equal(found, wanted)
        if not same:
            return f"wrong value of {name}: {found.ravel()[:8]}, expected {wanted.ravel()[:8]}"
    return ""


def judge_bug(text: Text) -> str:
    """Empty if it is reported as its header says, before the launch or in it, or is not and A1 says so."""
    try:
        launch(text)
        return "" if text.all("unseen") else "not reported"
    except NanoEulerError as error:
        told, finding = str(error), getattr(error, "finding", None)
    words = (f"{finding.kind}: {told}" if finding else told).replace("\n    ", " ")
    missing = [word for word in text.all("finds")[0].split(" | ") if word not in words]
    lines = {int(line) for line in re.findall(r"\bline (\d+)", told)}
    if missing:
        return f"the finding lacks {' and '.join(map(repr, missing))}: {told}"
    here, there = text.marked("HERE"), text.marked("THERE")
    if (here and not lines & here) or not there <= lines:
        return f"the finding names lines {sorted(lines)}, the bug is in {sorted(here | there)}: {told}"
    rows = told.split("\n")
    if NOISE.search(told) or len(rows) > 7 or any(len(row) > WIDTH for row in rows if "line " not in row):
        return f"the finding holds what a learner cannot read: {told}"
    return ""


def ten_of(names: list[str], config: pytest.Config) -> list[str]:
    if config.getoption("--all") or config.getoption("--slow"):
        return names
    return sorted(random.Random(SEED).sample(names, 10))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for folder in ("bugs", "correct"):
        if folder in metafunc.fixturenames:
            files = {cases[0].name: cases for cases in texts(folder)}
            single = ten_of([name for name, cases in files.items() if len(cases) == 1], metafunc.config)
            chosen = [text for name, cases in files.items() if len(cases) > 1 or name in single for text in cases]
            metafunc.parametrize(folder, chosen, ids=[text.name for text in chosen])


def test_a_bug_is_reported(bugs):
    """A file of bugs may also hold the sound kernel from which they were made."""
    complaint = judge_bug(bugs) if bugs.all("finds") else judge_correct(bugs)
    assert not complaint, complaint


def test_a_sound_kernel_is_right_and_not_reported(correct):
    assert not (complaint := judge_correct(correct)), complaint


def test_each_unseen_bug_is_in_the_appendix():
    notebook = json.loads((FOLDER.parents[2] / "notebooks" / "A1_cpu_runtime.ipynb").read_text("utf-8"))
    listed = next(
        t for t in ("".join(c["source"]) for c in notebook["cells"]) if "### What the checker cannot see" in t
    )
    unseen = [(text.name, number) for cases in texts("bugs") for text in cases for number in text.all("unseen")]
    assert all(number in UNSEEN.findall(listed) for _, number in unseen), unseen
    assert len(unseen) <= 9, f"at least 85 of 100 bugs are reported, but these are not: {unseen}"


# ----------------------------------------------------------------------------------------------------------------
# hostile ones, in a process of their own
def test_hostile_kernels_end_in_a_result_or_an_error(request):
    names = ten_of(list(hostile_kernels.CASES), request.config)
    ended = subprocess.run(
        [sys.executable, hostile_kernels.__file__, *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(FOLDER.parents[2])}, timeout=SECONDS * len(names), check=False,
    )  # fmt: skip
    lines = ended.stdout.decode("utf-8", "replace").split("\n")
    found = [json.loads(line) for line in lines if line.startswith('{"name": ')]
    complaints = [one for one in found if one["outcome"] not in ("result", "error")]
    complaints += [one for one in found if hostile_kernels.CASES[one["name"]].wanted not in ("any", one["outcome"])]
    assert not complaints, json.dumps(complaints, indent=1, ensure_ascii=False)
    assert len(found) == len(names), f"{names[len(found)]} ends the process with {ended.returncode}"
