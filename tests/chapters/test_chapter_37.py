"""Chapter 37: rounding is that of PyTorch, checks reject named mistakes, and blocks have the scales of their format."""

import json
import math

import numpy as np
import pytest
from chapters import ROOT, accepts, rejects, slips, verdict

from benchmarks import gpu_fp8
from experiments import ch37
from nanoeuler_book import few_bits, frame
from nanoeuler_book.few_bits import BFLOAT16, E2M1, E4M3, E5M2, FORMATS
from nanoeuler_lib import ops
from nanoeuler_lib.config import preset
from nanoeuler_lib.cuda import blas
from nanoeuler_lib.ops.reference import linear_backward, linear_forward

NOTEBOOK = ("37_few_bits",)
FORMS = E4M3, E5M2, E2M1


# ---- The gaps


def listed(exponent, mantissa, largest, bias=0, subnormal=True, zeros=1, both=True, nan=False, order=1):
    """All numbers by two loops; the arguments after largest are the mistakes that one can make."""
    bias += 2 ** (exponent - 1) - 1
    positive = []
    for e in range(2**exponent):
        for m in range(2**mantissa):
            small = e == 0 and subnormal
            value = m / 2**mantissa * 2.0 ** (1 - bias) if small else (1 + m / 2**mantissa) * 2.0 ** (e - bias)
            positive += [value] if 0 < value and (value <= largest or nan) else []
    return ([-v for v in positive[::-1]] if both else []) + [0.0] * zeros + positive[::order]


WRONG_CODES = {
    "the bias is one too large": dict(bias=1),
    "no subnormal numbers": dict(subnormal=False),
    "zero twice": dict(zeros=2),
    "no zero": dict(zeros=0),
    "no negative numbers": dict(both=False),
    "NaN's code as a number": dict(nan=True),
    "in descending order": dict(order=-1),
}


def near(x, form, half="even", least=True, limit=True, scale=1.0):
    """Nearest rounding by spacings; the arguments after form are the mistakes that one can make."""
    e = np.frexp(np.where(x == 0, 1, x))[1] - 1
    gap = 2.0 ** ((np.maximum(e, form.least) if least else e) - form.mantissa)
    q = x / gap
    q = {"even": np.rint, "up": lambda q: np.floor(q + 0.5), "down": np.floor, "zero": np.trunc}.get(half, np.rint)(q)
    y = np.sign(x) * np.floor(np.abs(x) / gap + 0.5) * gap if half == "away" else q * gap
    return (np.clip(y, -form.largest, form.largest) if limit else y) * scale


def by_codes(x, form):
    """Nearest rounding by distances to all numbers."""
    values = few_bits.codes(*form)
    x = np.clip(np.asarray(x, float), values[0], values[-1])[..., None]
    order = np.abs(values - x) + 1e-12 * ((np.arange(len(values)) - len(values) // 2) % 2) * np.abs(values)
    return values[order.argmin(axis=-1)]


def drawn(x, form, u, flip=False, limit=True, use=True, absolute=False):
    gap = few_bits.spacing(x, form)
    u = (1 - u) if flip else u
    share = x / gap - np.floor(x / gap)
    up = (u < share) if not flip else (u >= share) & (share > 0)
    up = up if use else share >= 0.5
    y = np.floor((x + u) / gap) * gap if absolute else (np.floor(x / gap) + up) * gap
    return np.clip(y, -form.largest, form.largest) if limit else y


ROUNDINGS = {
    "midpoints up": dict(half="up"),
    "midpoints away from 0": dict(half="away"),
    "down": dict(half="down"),
    "towards 0": dict(half="zero"),
    "no subnormal numbers": dict(least=False),
    "no largest number": dict(limit=False),
    "twice as large": dict(scale=2.0),
    "NaN": dict(scale=np.nan),
}
RANDOM = {
    "probabilities exchanged": dict(flip=True),
    "no largest number": dict(limit=False),
    "to the nearest": dict(use=False),
    "u is not in spacings": dict(absolute=True),
}
ENDS = {"A": 1.0, "B": np.float64(2), "C": 2, "D": 3, "E": -2, "F": 2}
test_wrong_gaps = rejects(
    {
        "check_codes": slips(listed, WRONG_CODES),
        "check_nearest": slips(near, ROUNDINGS),
        "check_stochastic": slips(drawn, RANDOM),
        "check_ends": {"a list": lambda: list(ENDS.values()), "NaN": lambda: ENDS | {"A": math.nan}},
        "check_mean_errors": {"NaN": lambda f, n: (math.nan, math.nan), "one number": lambda f, n: 0.1},
        "check_accusations": {"infinity": lambda: {"a": 1.0625, "b": 0.003, "c": math.inf}},
        "check_hadamard": {"NaN": lambda n: np.full((n, n), np.nan)},
    }
)
test_right_gaps = accepts(
    {
        "check_codes": [few_bits.codes, listed, lambda *form: np.array(listed(*form))],
        "check_nearest": [few_bits.nearest, near, by_codes],
        "check_stochastic": [few_bits.stochastic, drawn],
        "check_ends": [lambda: ENDS],
        "check_mean_errors": [lambda f, n: [min(f, 1 - f) ** 2, f * (1 - f) / n]],
        "check_accusations": [lambda: {"a": -1.1875, "b": np.float32(0.003), "c": -1000}],
    }
)


def test_the_sentence_names_the_mistake(chapter):
    said = verdict(chapter.check_nearest, slips(near, ROUNDINGS)["midpoints up"])
    assert said.startswith("a midpoint must go to the even code")
    said = verdict(chapter.check_stochastic, slips(drawn, RANDOM)["to the nearest"])
    assert said.startswith("the result does not depend on u")


# ---- The formats


def test_codes_and_rounding_are_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: make oracle")
    rng = np.random.default_rng(0)
    for form, kind in ((E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)):
        every = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
        values = few_bits.codes(*form)
        assert np.array_equal(np.unique(every[np.isfinite(every)]), values)
        middle = (values[1:] + values[:-1]) / 2
        random = rng.normal(size=20000) * 2.0 ** rng.integers(form.least - 5, 16 if form is E5M2 else 9, 20000)
        x = np.concatenate([middle, random, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)])
        x = x[np.abs(x) <= form.largest].astype(np.float32)
        assert np.array_equal(few_bits.nearest(x, form), torch.tensor(x).to(kind).float().numpy())
    if torch.__version__.startswith("2.13"):  # the chapter names this version
        large = torch.tensor([1e5])
        assert large.to(torch.float8_e4m3fn).float() == 448 and large.to(torch.float8_e5m2).float() == math.inf


def test_bfloat16_is_that_of_the_library():
    x = (np.random.default_rng(1).normal(size=9999) * 10.0 ** np.arange(-33, 33).repeat(152)[:9999]).astype(np.float32)
    assert np.array_equal(few_bits.nearest(x, BFLOAT16), blas.from_bfloat16(blas.to_bfloat16(x)))


@pytest.mark.parametrize("form", FORMS)
def test_rounding_leaves_numbers_of_the_format_and_keeps_signs_and_order(form):
    values, rng = few_bits.codes(*form), np.random.default_rng(2)
    assert np.array_equal(few_bits.nearest(values, form), values)
    assert np.array_equal(few_bits.stochastic(values, form, rng.random(values.shape)), values)
    x = np.sort(rng.normal(size=5000) * form.largest / 3)
    y = few_bits.nearest(x, form)
    assert (np.diff(y) >= 0).all() and np.array_equal(few_bits.nearest(-x, form), -y) and np.isin(y, values).all()


@pytest.mark.parametrize("form", FORMS)
def test_spread_is_the_distribution_of_stochastic_rounding(form):
    values = few_bits.codes(*form)
    for w, step in ((1.0, 0.05), (-1.0, 0.3), (2.0, -0.4), (form.largest, 5.0)):
        p = few_bits.spread((values == w).astype(float), values, step)
        u = (np.arange(2**14) + 0.5) / 2**14
        found = few_bits.stochastic(np.full(2**14, w + step), form, u)
        assert np.abs(p - [(found == v).mean() for v in values]).max() < 1e-4 and abs(p.sum() - 1) < 1e-12


# ---- Scales


def test_blocks_have_the_scales_of_their_formats():
    x = np.random.default_rng(3).normal(size=(5, 3, 50)).astype(np.float32) * 7
    for k, size in ((0, 32), (32, 18)):  # blocks of 32, the last one shorter
        block = x[..., k : k + size]
        power = 2.0 ** (np.floor(np.log2(np.abs(block).max(axis=-1, keepdims=True))) - 2)
        wanted = few_bits.nearest((block / power).astype(np.float32), E2M1) * power
        assert np.array_equal(few_bits.mxfp4(x)[..., k : k + size], wanted)
    y = few_bits.nvfp4(x)
    outer = np.abs(x).max() / np.float32(6 * 448)
    for k in range(0, 50, 16):
        scale = few_bits.nearest(np.abs(x[..., k : k + 16]).max(axis=-1, keepdims=True) / 6 / outer, E4M3) * outer
        wanted = few_bits.nearest(x[..., k : k + 16] / scale, E2M1) * scale
        assert np.allclose(y[..., k : k + 16], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_keeps_zeros_shape_dtype_and_axis(name):
    rounded, x = FORMATS[name][1], np.random.default_rng(4).normal(size=(70, 3)).astype(np.float32)
    assert not rounded(0 * x, 0).any()
    y = rounded(x, 0)
    assert y.shape == x.shape and y.dtype == x.dtype and np.array_equal(rounded(x.T.copy(), -1).T, y)
    assert few_bits.decibels(x, y) > 2


def test_products_round_each_factor_along_the_axis_of_its_sum():
    rng, seen = np.random.default_rng(5), []

    def watch(x, axis):
        seen.append((x.shape, axis % x.ndim))
        return x

    x, w, dy = rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5)), rng.normal(size=(2, 3, 5))
    pair = few_bits.blocks(watch, watch)
    y, saved = pair["linear_forward"](x, w)
    dx, dw = pair["linear_backward"](dy, saved)
    wanted = linear_forward(x, w)
    for mine, right in zip((y, dx, dw), (wanted[0], *linear_backward(dy, wanted[1])), strict=True):
        assert np.allclose(mine, right)
    assert seen == [((2, 3, 4), 2), ((4, 5), 0), ((2, 3, 5), 2), ((4, 5), 1), ((6, 4), 0), ((6, 5), 0)]


def test_recipes_train_and_stored_weights_are_numbers_of_the_format():
    for name in ch37.RECIPES:
        trained = frame.train(1, **ch37.recipe(name, 0))
        assert np.isfinite(trained.model.params.flat).all()
        if "E4M3" in name:
            w = trained.model.params["layers.1.down"] * 64
            assert np.array_equal(few_bits.nearest(w, E4M3), w)


def test_the_cache_is_rounded_inside_the_model():
    with ops.use(**ch37.within("cache", "int2")):
        rounded = frame.train(1).model.hidden(np.arange(9).reshape(1, 9))
    assert np.abs(rounded - frame.train(1).model.hidden(np.arange(9).reshape(1, 9))).max() > 1e-3


# ---- Stored results


def test_stored_results_are_of_this_experiment():
    stored = json.loads((ROOT / "data" / "results" / "ch37.json").read_text("utf-8"))
    runs = {(row["recipe"], row["seed"]) for row in stored["rows"] if row["part"] == "training"}
    assert runs == {(name, seed) for name in ch37.RECIPES for seed in ch37.SEEDS} and len(ch37.SEEDS) >= 5
    shipped = {(r["place"], r["format"]): len(r["more"]) for r in stored["rows"] if r["part"] == "shipped"}
    assert shipped == {(place, name): ch37.ROWS for place in ch37.PLACES for name in FORMATS}
    assert stored["config"]["steps"] == ch37.STEPS and stored["config"]["frame"] == frame.CONFIG.to_dict()


def test_the_gpu_layer_is_that_of_base():
    base, shapes = preset("base"), gpu_fp8.shapes()
    step = 16 * shapes["base"].flops / 6 / shapes["base"].rows  # multiplications of a token with the layers' weights
    per_layer = base.dim * (base.heads + 2 * base.kv_heads) * base.head_dim + base.dim**2 + 3 * base.dim * base.ffn
    assert step == base.layers * per_layer and shapes["base"].rows == 64 * base.context
    stored = json.loads((ROOT / "data" / "results" / "ch37_gpu.json").read_text("utf-8"))
    assert stored["config"]["shapes"] == {size: shape._asdict() for size, shape in shapes.items()}
    assert sum(row["row"] == "product" for row in stored["rows"]) == 24
