"""Chapter 29: its checks accept what is right and reject wrong answers, each of them named."""

import math

import numpy as np
import pytest
from chapters import accepts, gap_tests, rewritten_tests

from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16

NAMES = (
    "xp",
    "TINY",
    "SMALL",
    "COLUMNS",
    "SHUFFLED",
    "ROWS",
    "SCRATCH",
    "OP",
    "WRITES",
    "short",
    "choose_places",
)
NOTEBOOK = "29_gpu_engine", *NAMES
pytestmark = pytest.mark.compiler


# ---- The gaps


def record_with(note, names=None):
    """A recorder with something changed; its object has no attributes of its own."""

    def recorded(run):
        calls = []

        class Notes:
            def __getattr__(self, name):
                if names is not None and not names(name):
                    raise AttributeError(name)
                return lambda *arguments: note(calls, name, arguments)

        run(Notes())
        return calls

    return recorded


def record_by_a_class(run):
    """Another right answer: an object for each call."""
    found = []

    class Call:
        def __init__(self, name):
            self.name = name

        def __call__(self, *arguments):
            found.append((self.name, arguments))

    class Op:
        def __getattribute__(self, name):
            return Call(name)

    run(Op())
    return found


LATE = []


def late(calls, name, arguments):
    """The name of the last call for all: what a closure over a loop's variable does."""
    LATE[:] = [name]
    calls.append((name, arguments))
    calls[:] = [(LATE[0], given) for _, given in calls]


SHARED = []


def in_one_list(run):
    SHARED.clear()
    record_with(lambda calls, name, arguments: SHARED.append((name, arguments)))(run)
    return list(SHARED)


WRONG_RECORDS = {
    "the known composites alone": record_with(
        lambda calls, name, given: calls.append((name, given)), ("embed", "linear", "zero").__contains__
    ),
    "copies of the arguments": record_with(
        lambda calls, name, given: calls.append((name, tuple(map(np.array, given))))
    ),
    "the last name for all": record_with(late),
    "one list for all recordings": in_one_list,
    "the first call of a name": record_with(
        lambda calls, name, given: calls.append((name, given)) if name not in dict(calls) else None
    ),
}


def place_byte_by_byte(values):
    """Another right answer: every start from 0 on."""
    starts = []
    for size, first, last in values:
        at = 0
        while any(
            first <= z and a <= last and at < start + b and start < at + size
            for start, (b, a, z) in zip(starts, values, strict=False)
        ):
            at += 1
        starts.append(at)
    return starts


def place_with(meets=lambda a, z, first, last: a <= last and first <= z, behind=False):

    def place(values):
        found = {}
        for k in range(len(values)):
            size, first, last = values[k]
            met = [(found[j], found[j] + values[j][0]) for j in found if meets(*values[j][1:], first, last)]
            at = 0
            for start, end in sorted(met):
                if at + size <= start and not behind:
                    break
                at = max(at, end)
            found[k] = at
        return [found[k] for k in range(len(values))]

    return place


def place_tightly(values):
    """Best fit: the smallest hole that is large enough."""
    starts = []
    for size, first, last in values:
        met = sorted((s, s + b) for s, (b, a, z) in zip(starts, values, strict=False) if a <= last and first <= z)
        holes, at = [], 0
        for start, end in met:
            if start - at >= size:
                holes.append((start - at, at))
            at = max(at, end)
        starts.append(min(holes)[1] if holes else at)
    return starts


WRONG_PLACES = {
    "the tightest hole": place_tightly,
    "ends may touch": place_with(lambda a, z, first, last: a < last and first < z),
    "nobody meets": place_with(lambda *_: False),
    "never below another": place_with(behind=True),
    "met if it begins inside": place_with(lambda a, z, first, last: a <= first <= z),
    "one behind the other": lambda values: [sum(b for b, *_ in values[:k]) for k in range(len(values))],
}


RIGHT_KERNELS = {
    "weighted sums": (
        ("m[i] += (1.0f - beta1) * (slope - m[i]);", "m[i] = beta1 * m[i] + (1.0f - beta1) * slope;"),
        ("v[i] += (1.0f - beta2) * (slope * slope - v[i]);", "v[i] = beta2 * v[i] + (1.0f - beta2) * slope * slope;"),
    ),
    "decay first": (
        ("if (i < decayed) change += decay * p[i];", "if (i < decayed) p[i] -= step[0] * decay * p[i];"),
    ),
    "no norm above all floats": (("!isfinite(factor[1])", "!(factor[1] <= 3.4e38f)"),),
}  # fmt: skip
WRONG_KERNELS = {
    "a norm that is no number goes on": ("!isfinite(factor[1])", "isinf(factor[1])"),
    "looks at the factor": ("!isfinite(factor[1])", "!isfinite(factor[0])"),
    "the decay is clipped away": ("change += decay * p[i];", "change += factor[0] * decay * p[i];"),
    "eps inside of the root": ("(sqrtf(step[2] * v[i]) + eps)", "sqrtf(step[2] * v[i] + eps)"),
    "one thread a number": ("i < n; i += gridDim.x * blockDim.x", "i < n; i += n"),
    "the square of the gradient before clipping": ("(slope * slope - v[i])", "(g[i] * g[i] - v[i])"),
}
test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_record": ([record_by_a_class], WRONG_RECORDS),
        "check_place": ([place_byte_by_byte, place_with()], WRONG_PLACES),
    }
)
test_right_kernels, test_wrong_kernels = rewritten_tests({"check_adamw": ("adamw", RIGHT_KERNELS, WRONG_KERNELS)})


# ---- What the chapter stands on


def test_the_list_names_every_buffer(chapter):
    """Two layers: each value begins with a call that writes it, and what a step returns is read at its end."""
    c = chapter
    calls = c.record(c.step_of(c.TINY))
    sizes = {name: math.prod(s) for part in c.plan.shapes(c.TINY, 2, 5) for name, s in part.items()}
    values = c.values_of(calls, sizes)
    assert {name.split(".")[-1] for name, *_ in values} >= {"x1", "hidden", "dx", "dqkv", "losses"}
    for name, first, last in values:
        assert first <= last and (name.startswith("work") or name in c.written(*calls[first]))
    assert [last for name, _, last in values if name == "losses"] == [len(calls) - 1]


@pytest.mark.parametrize("mistake", ["ends may touch", "nobody meets"])
def test_a_wrong_plan_gives_wrong_gradients(chapter, mistake):
    """What the section says: the plan is what keeps a step right."""
    c = chapter
    params, pair = c.init(c.TINY, 0, 0.1, np.float64), c.a_batch(c.TINY, 9)
    calls = c.record(c.step_of(c.TINY))
    _, wanted = c.GPT(c.TINY, params).loss_and_gradients(*pair)
    with np.errstate(all="ignore"):
        for place, right in ((c.place, True), (WRONG_PLACES[mistake], False)):
            _, grads, _ = c.step_in(calls, c.TINY, params, *pair, place)
            assert (c.apart(grads, wanted) <= 1e-12) == right


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def halves_by_bits(w):
    """Another: from the neighbours themselves."""
    bits = int(to_bfloat16(np.float32([w]))[0])
    below, above = (float(x) for x in from_bfloat16(np.array([bits - 1, bits + 1], np.uint16)))
    return (above - w) / 2, (w - below) / 2


def segment_by_parts(L, a, b):
    """Another: the peak of every segment."""
    peaks = {}
    for s in range(L, 0, -1):
        peaks[s] = max((j + 1) * a + len(range(j * s, min(j * s + s, L))) * b for j in range(-(-L // s)))
    return min(peaks, key=lambda s: (peaks[s], s))


test_other_right_answers = accepts({"check_halves": [halves_by_bits], "check_segment": [segment_by_parts]})
