"""Test chapter 29: its checks accept right answers and reject wrong ones by name."""

import pytest
from chapters import rewritten_tests

NAMES = "xp TINY SMALL COLUMNS SHUFFLED ROWS SCRATCH OP WRITES short choose_places"
NOTEBOOK = "29_gpu_engine", *NAMES.split()
pytestmark = pytest.mark.compiler


# ---- The gaps

NOTE = "return lambda *arguments: calls.append((name, arguments))"
WRONG_RECORDS = {
    "only the known composites": (NOTE, f"assert name in ('embed', 'linear', 'zero')\n            {NOTE}"),
    "copies of the arguments": ("(name, arguments)", "(name, tuple(map(np.array, arguments)))"),
    "one list for all recordings": ("record(run):\n    calls = []", "record(run, calls=[]):"),
    "the first call of a name": ("arguments: calls", "arguments: name in dict(calls) or calls"),
}
MEET = "begin <= last and first <= end"
WRONG_PLACES = {
    "ends may touch": (MEET, "begin < last and first < end"),
    "no lifetimes overlap": (f" if {MEET}", " if False"),
    "never below a live array": ("if at + size <= start", "if False"),
    "overlap only if it begins inside": (MEET, "begin <= first <= end"),
}
RIGHT_KERNELS = {
    "weighted sums": (
        ("m[i] += (1.0f - beta1) * (slope - m[i]);", "m[i] = beta1 * m[i] + (1.0f - beta1) * slope;"),
        ("v[i] += (1.0f - beta2) * (slope * slope - v[i]);", "v[i] = beta2 * v[i] + (1.0f - beta2) * slope * slope;"),
    ),
    "decay first": (
        ("if (i < decayed) change += decay * p[i];", "if (i < decayed) p[i] -= step[0] * decay * p[i];"),
    ),
    "a comparison with the largest float": (("!isfinite(factor[1])", "!(factor[1] <= 3.4e38f)"),),
}  # fmt: skip
WRONG_KERNELS = {
    "a NaN norm is accepted": ("!isfinite(factor[1])", "isinf(factor[1])"),
    "the decay is clipped away": ("change += decay * p[i];", "change += factor[0] * decay * p[i];"),
    "eps inside the root": ("(sqrtf(step[2] * v[i]) + eps)", "sqrtf(step[2] * v[i] + eps)"),
    "one thread per number": ("i < n; i += gridDim.x * blockDim.x", "i < n; i += n"),
}
test_right_kernels, test_wrong_gaps = rewritten_tests(
    {
        "check_record": ("record", {}, WRONG_RECORDS),
        "check_place": ("place", {}, WRONG_PLACES),
        "check_adamw": ("adamw", RIGHT_KERNELS, WRONG_KERNELS),
    }
)
