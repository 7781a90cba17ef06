"""Muon by hand: what five steps of Newton and Schulz make of singular values, and how a matrix moves by it.

The oracle is the singular value decomposition in float64 (`oracles.orthogonalised`), and the polynomial itself.
"""

import json
import math
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import oracles
import pytest

from nanoeuler_lib import files, ops
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model.optim import AdamW, Muon, optimizer_of
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.ops import cpu, reference
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training import checkpoint, loop, sft, train

A, B, C = 3.4445, -4.7750, 2.0315
# f(s) = A s + B s^3 + C s^5 turns where 5 C s^4 + 3 B s^2 + A = 0: a hill at 0.5545, a valley at 1.0501.
ROOT = math.sqrt(9 * B * B - 20 * A * C)
HILL, VALLEY = (math.sqrt((-3 * B + sign * ROOT) / (10 * C)) for sign in (-1, 1))
SHAPES = [(7, 5), (5, 7), (6, 6), (1, 9), (9, 1), (1, 1), (33, 65), (130, 48)]
FORMS = {"reference": reference.newton_schulz, "cpu": cpu._newton_schulz}
MUON = {"optimizer": "muon"}
WIDTHS = [oracles.TINY.heads * oracles.TINY.head_dim, *2 * [oracles.TINY.kv_heads * oracles.TINY.head_dim]]


def polynomial(s):
    return A * s + B * s**3 + C * s**5


LOW, HIGH = polynomial(VALLEY), polynomial(HILL)  # the band
ENOUGH = 0.00151  # singular values of u / ||u|| from here on reach it in five steps


def five(s):
    for _ in range(5):
        s = polynomial(s)
    return s


def test_the_band():
    """f maps [LOW, HIGH] into itself, and five times f maps all from ENOUGH to 1 there; below, values only grow."""
    assert abs(LOW - 0.6818) < 1e-4 and abs(HIGH - 1.2024) < 1e-4
    inside = polynomial(np.linspace(LOW, HIGH, 100_001))
    assert LOW - 1e-12 <= inside.min() and inside.max() <= HIGH
    reached = five(np.geomspace(ENOUGH, 1, 1_000_001))
    assert LOW - 1e-12 <= reached.min() and reached.max() <= HIGH
    assert five(ENOUGH - 1e-5) < LOW, "the smallest is the smallest"
    small = np.geomspace(1e-12, ENOUGH, 10_001)
    assert (five(small) > 400 * small).all() and (five(small) <= A**5 * small * (1 + 1e-12)).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_singular_vectors_stay_and_singular_values_are_the_polynomials(shape, form, seed):
    u = np.random.default_rng(seed).standard_normal(shape) * 10.0 ** np.random.default_rng(seed).integers(-9, 9)
    o, before = FORMS[form](u), u.copy()
    np.testing.assert_array_equal(FORMS[form](before), o)
    np.testing.assert_array_equal(u, before)
    oracles.close(o, oracles.orthogonalised(u), 1e-12, "U f(S) V^T")


@pytest.mark.parametrize("form", FORMS)
def test_only_the_direction_of_a_gradient_counts(form):
    """Not its size, not its orientation; float32 gives what float64 gives, but for its rounding."""
    u = np.random.default_rng(5).standard_normal((12, 31))
    o = FORMS[form](u)
    for size in (1e-12, 1e9):
        np.testing.assert_allclose(FORMS[form](size * u), o, atol=1e-12)
    np.testing.assert_allclose(FORMS[form](-u), -o, atol=1e-12)
    np.testing.assert_allclose(FORMS[form](u.T), o.T, atol=1e-12)
    single = FORMS[form](u.astype(np.float32))
    assert single.dtype == np.float32 and np.abs(single - o).max() < 2e-5
    with np.errstate(all="raise", under="ignore"):
        tiny = FORMS[form](u.astype(np.float32) * np.float32(1e-24))  # its squares are 0 in float32
        assert np.abs(tiny).max() < 1e-3
        assert not FORMS[form](np.zeros((5, 3), np.float32)).any(), "no gradient, no direction"
        one_direction = FORMS[form](np.outer(np.arange(1.0, 6), np.ones(4)))  # four singular values are 0
    assert abs(np.linalg.svd(one_direction)[1][0] - five(1.0)) < 1e-9
    assert np.linalg.svd(one_direction)[1][1:].max() < 1e-9


@pytest.mark.parametrize("version", ["cpu", "plain"])
@pytest.mark.parametrize("widths", [None, [3, 1, 8], [12]], ids=str)
def test_a_step(version, widths):
    """Three steps by their formula; matrices that stand side by side are orthogonalised each alone."""
    rng, rate, beta, decay = np.random.default_rng(0), 0.3, 0.9, 0.2
    p, m = rng.standard_normal((5, 12)), rng.standard_normal((5, 12))
    expected, momentum = p.copy(), m.copy()
    with ops.use(version):
        for _ in range(3):
            g = rng.standard_normal((5, 12))
            kept = g.copy()
            momentum = beta * momentum + g
            u, ends = g + beta * momentum, np.cumsum([0, *(widths or [12])])
            for start, end in pairwise(ends):
                part = slice(start, end)
                move = 0.2 * math.sqrt(max(5, end - start)) * oracles.orthogonalised(u[:, part])
                expected[:, part] -= rate * (move + decay * expected[:, part])
            ops.active().muon(p, g, m, rate, beta, decay, widths)
            assert np.array_equal(g, kept), "the gradient is read"
    oracles.close(p, expected, 1e-11, "p")
    oracles.close(m, momentum, 1e-12, "m")


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_the_optimiser(version):
    oracles.check_muon(version)


def test_a_readers_own_step():
    """`ops.use(muon_step=...)` puts a function into the real optimiser."""
    c, seen = TrainConfig(warmup=0, **MUON), []

    def mine(p, g, m, *numbers):
        seen.append((p.shape, numbers))
        return p + 1, m - 1

    params, optimizer = Parameters(oracles.TINY), Muon(oracles.TINY, c)
    optimizer.step = 1
    with ops.use(muon_step=mine):
        optimizer.update(params, Parameters(oracles.TINY), list(params), 1.0)
    assert seen[0] == (params["layers.0.qkv"].shape, (c.rate, 0.95, c.decay, WIDTHS))
    assert (params["layers.0.qkv"] == 1).all() and (optimizer.m["layers.0.down"] == -1).all()
    assert len(seen) == 4 * oracles.TINY.layers and not params["embed"].any()


def test_the_optimiser_that_is_named():
    assert type(optimizer_of(oracles.TINY, TrainConfig())) is AdamW
    muon = optimizer_of(oracles.TINY, TrainConfig(**MUON), np.float64)
    assert type(muon) is Muon and muon.m.flat.dtype == np.float64 and muon.config.optimizer == "muon"


def losses_of(workers, dtype=np.float32, **changes):
    """The losses of twelve steps that learn two batches, and the parameters behind them."""
    config = ModelConfig(dim=32, heads=4, kv_heads=2, layers=2, context=96, vocab_size=50, predict=2)
    settings = TrainConfig(steps=12, batch=12, warmup=2, rate=1e-2, **changes)
    model = GPT(config, oracles.random_parameters(config, 0, 0.1, dtype))
    batches = [oracles.check_batch(config, 12, 96, number) for number in range(2)]
    with one_blas_thread(), Step(model, optimizer_of(config, settings, dtype), settings, 12, workers) as step:
        losses = [step(*batches[number % 2])[0][0] for number in range(12)]
    return losses, model.params.flat


def test_it_learns_on_several_threads():
    """The same bits each time for a number of workers; another number rounds otherwise, and no more than that."""
    (losses, params), (again, same) = losses_of(2, **MUON), losses_of(2, **MUON)
    assert losses == again and np.array_equal(params, same) and losses[-1] < losses[0] - 0.5
    (one, first), (three, third) = losses_of(1, np.float64, **MUON), losses_of(3, np.float64, **MUON)
    np.testing.assert_allclose(three, one, rtol=1e-9)
    assert np.abs(third - first).max() < 1e-8
    assert losses_of(1, np.float64)[0] != one, "AdamW goes another way"


def test_a_run_from_before_goes_on_with_adamw(tmp_path):
    """What run.json and checkpoints said when there was one optimiser; every other name is still needed."""
    text = oracles.run_text()
    for folder in ("now", "before"):
        with patch.object(loop, "_train", lambda *given, **named: None):
            train.train(tmp_path / folder, text, oracles.RUN_MODEL, oracles.RUN_CONFIG, quiet=True)
    (place,) = checkpoint.folders(tmp_path / "before")

    def rewritten(change):
        file = place / "checkpoint.json"
        head = json.loads(file.read_text("utf-8"))
        head.pop("digest")
        change(head["train"])
        file.write_text(json.dumps(files.seal(head)), "utf-8")

    rewritten(lambda settings: settings.pop("optimizer"))
    said = json.loads((tmp_path / "before" / "run.json").read_text("utf-8"))
    said["train"].pop("optimizer")
    (tmp_path / "before" / "run.json").write_text(json.dumps(said), "utf-8")
    for folder in ("now", "before"):
        loop.resume(tmp_path / folder, text, quiet=True)
    oracles.assert_same_run(tmp_path / "now", tmp_path / "before")
    assert type(checkpoint.load(tmp_path / "before", training=True).optimizer) is AdamW
    values = oracles.RUN_CONFIG.to_dict()
    values.pop("optimizer")
    assert TrainConfig.from_dict(values) == oracles.RUN_CONFIG
    with pytest.raises(NanoEulerError, match=r"^optimizer is 'sgd', expected one of adamw, muon$"):
        TrainConfig.from_dict(values | {"optimizer": "sgd"})


def test_fine_tuning_with_muon(tmp_path):
    base = GPT(ModelConfig(16, 2, 1, 1, 64, 300, predict=2)), Tokenizer([], ())
    examples = [[(f"What is {n}?", str(n))] for n in range(12)]
    config = TrainConfig(steps=3, batch=2, warmup=1, rate=1e-2, valid_every=3, sample_every=0, **MUON)
    before = base[0].params["layers.0.qkv"].copy()
    sft.fine_tune(tmp_path / "run", base, examples, examples[:2], config, quiet=True)
    found = checkpoint.load(tmp_path / "run", training=True)
    assert type(found.optimizer) is Muon and not found.optimizer.v["layers.0.out"].any()
    assert not np.array_equal(found.model.params["layers.0.qkv"], before)
