"""The fast operations write what the plain ones write; `ops.use` switches between them; a step allocates nothing."""

from functools import partial
from unittest.mock import patch

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoeuler_book import checks
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.model import step as step_module
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.plan import Plan
from nanoeuler_lib.ops import cpu, plain, reference

# Equality, in every buffer that both have.


@pytest.mark.parametrize("seed", range(3))
def test_close_in_float32(seed):
    oracles.check_equality(seed=seed, dtype=np.float32, rtol=1e-5)


@pytest.mark.parametrize("dtype, rtol", [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_equal_at_the_size_of_small(dtype, rtol):
    oracles.check_equality(preset("small", layers=2), 3, 127, std=0.02, dtype=dtype, rtol=rtol)


@st.composite
def cases(draw):
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    config = ModelConfig(
        dim=heads * draw(st.sampled_from([2, 4, 6, 8])),
        heads=heads,
        kv_heads=kv_heads,
        layers=draw(st.integers(1, 3)),
        context=9,
        vocab_size=draw(st.integers(1, 12)),
        predict=draw(st.integers(1, 4)),
        ffn=draw(st.integers(1, 11)),
    )
    return config, draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 99))


# Weights of deviation 2 make sums whose terms cancel: of 5,000 models the worst was 3e-11 apart.
ANY_SIZE = 1e-9


@settings(max_examples=60)
@given(cases(), st.booleans(), st.sampled_from([0.02, 0.3, 2.0]))
def test_equal_at_any_size(case, accumulate, std):
    oracles.check_equality(*case, accumulate=accumulate, std=std, rtol=ANY_SIZE)


@settings(max_examples=15)
@given(cases())
def test_forward_is_the_formula_at_any_size(case):
    for version in ("cpu", "plain"):
        oracles.check_forward(version, *case)


@settings(max_examples=30)
@given(cases(), st.booleans(), st.integers(1, 5), st.integers(1, 5), st.sampled_from([0.3, 2.0]))
def test_equal_in_blocks_of_any_size(case, accumulate, block, rows, std):
    """Rows of scores, and of SwiGLU, in blocks that do and do not divide their number."""
    with patch.object(cpu, "BLOCK", block), patch.object(cpu, "ROWS", rows):
        oracles.check_equality(*case, accumulate=accumulate, std=std, rtol=ANY_SIZE)


def test_blocks_of_scores_skip_the_future():
    """Every pair that may be seen is there, each once, and less than 3/4 of all pairs at two blocks, 5/8 at four."""
    for block, time, share in ((64, 128, 0.75), (32, 128, 0.625), (4, 9, 1), (4, 1, 1)):
        with patch.object(cpu, "BLOCK", block):
            probs = np.arange(3 * 2 * sum((b.stop - b.start) * b.stop for b in cpu.row_blocks(time)))
            blocks = cpu.score_blocks(probs, (3, 2, 1, time, 1))
        seen = np.zeros((time, time), int)
        for rows, end, _ in blocks:
            seen[rows, :end] += 1
        assert (np.tril(seen) == np.tri(time)).all() and seen.max() == 1 and seen.mean() <= share
        assert sorted(np.concatenate([part.ravel() for _, _, part in blocks])) == list(probs)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_head_of_weight_zero_has_no_gradient(accumulate):
    """Its losses are those of the plain version all the same, and what stood in its gradient is overwritten."""
    rng = np.random.default_rng(0)
    y, w, targets = rng.normal(size=(5, 3)), rng.normal(size=(3, 12)), rng.integers(-1, 4, (5, 3))
    before, scale, found = rng.normal(size=(3, 12)), np.array([0.5, 0.0, 2.0]), []
    work = dict(work_logits=np.empty((2, 7)), work_weight=np.empty(36))  # two rows at a time
    for version in (partial(cpu.heads_loss, **work), plain.Plain(ops.FUNCTIONS).heads_loss):
        losses, dy, dw = np.empty((5, 3)), np.empty((5, 3)), before.copy()
        version(losses, dy, dw, y, w, targets, scale, accumulate)
        found.append(np.concatenate([losses.ravel(), dy.ravel(), dw.ravel()]))
    oracles.close(*found, 1e-12)
    np.testing.assert_array_equal(dw[:, 4:8], before[:, 4:8] if accumulate else 0)


@pytest.mark.parametrize("version", ["cpu", "plain"])
def test_heads_loss_without_gradients(version):
    """Only losses are wanted: the same losses, and nothing else is touched."""
    rng = np.random.default_rng(0)
    y, w, targets = rng.standard_normal((7, 5)), rng.standard_normal((5, 12)), rng.integers(-1, 4, (7, 3))
    losses, again, dy, dw = np.empty((7, 3)), np.empty((7, 3)), np.empty((7, 5)), np.empty((5, 12))
    scale, work = rng.random(3), dict(work_logits=np.empty((4, 12)), work_weight=np.empty(60))
    with ops.use(version):
        op = ops.bind(vars(ops.active()), work)
        op.heads_loss(losses, dy, dw, y, w, targets, scale, False)
        work["work_weight"][...] = np.nan
        op.heads_loss(again, None, None, y, w, targets, scale, False)
    assert np.array_equal(losses, again) and not losses[targets < 0].any() and (losses[targets >= 0] > 0).all()


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 1000), st.integers(0, 99))
def test_adamw_in_blocks(size, block, step, seed):
    rng = np.random.default_rng(seed)
    p, g, m = rng.standard_normal((3, size))
    v = rng.random(size)
    expected = reference.adamw_step(p, g, m, v, step, 0.1, 0.9, 0.95, 1e-8, 0.2)
    kept = g.copy()
    cpu.adamw(p, g, m, v, step, 0.1, 0.9, 0.95, 1e-8, 0.2, block=block)
    for found, wanted in zip((p, m, v), expected):
        oracles.close(found, wanted, 1e-12)
    assert np.array_equal(g, kept)


def test_embedding_gradient_is_the_same_bits_each_time():
    rng = np.random.default_rng(0)
    dx, tokens = rng.standard_normal((500, 8)).astype(np.float32), rng.integers(0, 5, 500)
    results = []
    for _ in range(3):
        table, work = np.empty((7, 8), np.float32), np.empty((500, 9), np.float32)
        cpu.embed_back(table, dx, tokens, False, work_rows=work)
        results.append(table.tobytes())
    assert len(set(results)) == 1


# The switch.


def test_use_switches_and_restores():
    assert ops.active().attention is cpu.attention
    with ops.use("plain"):
        assert isinstance(ops.active().attention.__self__, plain.Plain)
        with ops.use("cpu"):
            assert ops.active().attention is cpu.attention
        assert isinstance(ops.active().attention.__self__, plain.Plain)
    assert ops.active().attention is cpu.attention
    with pytest.raises(ZeroDivisionError), ops.use("plain"):
        raise ZeroDivisionError
    assert ops.active().attention is cpu.attention


@pytest.mark.parametrize("name", sorted(ops.FUNCTIONS))
def test_use_switches_whole_layers(name):
    """A reader's function carries its layer, forward and backward; all others stay fast."""
    function = ops.FUNCTIONS[name]
    with ops.use(**{name: lambda *arguments: function(*arguments)}):
        active = vars(ops.active())
        for composites, needs in ops.ALL_LAYERS.items():
            for composite in composites:
                assert (active[composite] is getattr(cpu, composite)) == (name not in needs)


@pytest.mark.parametrize("name", sorted(set(ops.FUNCTIONS) - {"adamw_step", "muon_step"}))
def test_readers_function_runs_in_the_model(name):
    function, calls = ops.FUNCTIONS[name], []

    def mine(*arguments):
        calls.append(1)
        return function(*arguments)

    of_gpt2 = name.startswith(("affine", "layernorm", "gelu", "positions"))
    config = oracles.TINY_GPT2 if of_gpt2 else oracles.TINY
    model = GPT(config, oracles.random_parameters(config))
    tokens, targets = check_batch(model.config, 2, 5, 0)
    expected_loss, expected = model.loss_and_gradients(tokens, targets)
    with ops.use(**{name: mine}):
        loss, grads = model.loss_and_gradients(tokens, targets)
    assert calls
    oracles.close(loss, expected_loss, 1e-12)
    oracles.close(grads.flat, expected.flat, 1e-12)


def test_readers_step_runs_in_the_optimiser():
    params, config = oracles.random_parameters(oracles.TINY), TrainConfig()
    before, grads = params.flat.copy(), Parameters(oracles.TINY, np.float64)
    optimizer = AdamW(oracles.TINY, config, np.float64)
    with ops.use(adamw_step=lambda p, g, m, v, *settings: (p + 1, m + 2, v + 3)):
        optimizer.update(params, grads, list(params), 1.0)
    assert (params.flat == before + 1).all() and (optimizer.m.flat == 2).all() and (optimizer.v.flat == 3).all()


def late(function, fails):
    """The function; from its second call on `fails` is made of its result."""
    calls = []

    def my_function(*arguments):
        calls.append(1)
        return fails(function(*arguments)) if len(calls) > 1 else function(*arguments)

    return my_function


def first_of(result, change):
    """`change` made to the first array of a result."""
    return (change(result[0]), *result[1:]) if isinstance(result, tuple) else change(result)


FAILS = {
    "raises": (lambda result: 1 / 0, "ZeroDivisionError at `return fails(function(*arguments))"),
    "one row": (lambda result: first_of(result, lambda x: x[..., :1]), "what it returns cannot be used, "),
    "complex": (lambda result: first_of(result, lambda x: x * 1j), "returned complex128 ["),
    "none": (lambda result: None, "what it returns cannot be used, "),
}


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize(
    "name", ["embed_backward", "linear_forward", "rope_backward", "attention_backward", "adamw_step"]
)
def test_in_a_notebook_the_whole_step_is_taken_again(monkeypatch, capsys, name, fails):
    """The same bits as without the function that failed; what the other functions did is undone as well."""
    tokens, targets = check_batch(oracles.TINY, 4, oracles.TINY.context, 0)

    def trained():
        model = GPT(oracles.TINY, oracles.random_parameters(oracles.TINY), dtype=np.float64)
        optimizer = AdamW(oracles.TINY, TrainConfig(), np.float64)
        with (
            step_module.Step(model, optimizer, TrainConfig(), len(tokens), workers=2) as step,
            one_blas_thread(),
        ):
            for _ in range(2):
                step(tokens, targets)
        return np.concatenate([model.params.flat, optimizer.m.flat, optimizer.v.flat, [optimizer.step]])

    change, said = FAILS[fails]
    layer = next(needs for needs in ops.LAYERS.values() if name in needs)
    with patch.object(step_module, "MICRO_TOKENS", oracles.TINY.context):
        with ops.use(**{n: ops.FUNCTIONS[n] for n in layer}):
            by_layer = trained()
        expected = trained()
        oracles.close(by_layer, expected, 1e-9)
        monkeypatch.setattr(ops, "on_failure", checks.say_failure)
        with ops.use(**{name: late(ops.FUNCTIONS[name], change)}):
            found = trained()
            assert name not in ops.functions()
        assert np.array_equal(found, expected)
        told = capsys.readouterr().out
        assert told.count("\n") == 1 and said in told and told.endswith(f"with the book's {name}.\n")
        monkeypatch.setattr(ops, "on_failure", None)
        with pytest.raises((ZeroDivisionError, NanoEulerError, TypeError, ValueError)):
            with ops.use(**{name: late(ops.FUNCTIONS[name], change)}):
                trained()


def test_the_embedding_keeps_rows_and_positions():
    """A gradient with two loops, as its docstring has the shapes, and lists where arrays are meant."""

    def backward(dx, saved):
        tokens, shape = saved
        dtable = np.zeros(shape)
        for row, drow in zip(tokens, dx, strict=True):
            for token, d in zip(row, drow, strict=True):
                dtable[token] += d
        return dtable.tolist()

    def forward(tokens, table):
        B, T = tokens.shape
        return [[list(table[tokens[b, t]]) for t in range(T)] for b in range(B)], (tokens, table.shape)

    params, pair = oracles.random_parameters(oracles.TINY), check_batch(oracles.TINY, 2, 5, 0)
    loss, grads = GPT(oracles.TINY, params).loss_and_gradients(*pair)
    with ops.use(embed_forward=forward, embed_backward=backward):
        again, found = GPT(oracles.TINY, params).loss_and_gradients(*pair)
    assert again == loss
    oracles.close(found.flat, grads.flat, 1e-12)


def test_use_refuses():
    for version in ("gpu2", "CPU"):
        with pytest.raises(NanoEulerError, match="expected 'cpu' or 'plain'"), ops.use(version):
            pass
    with pytest.raises(NanoEulerError, match=r"no function 'rmsnorm' to replace, expected one of .*rmsnorm_forward"):
        with ops.use(rmsnorm=lambda x: x):
            pass
    with pytest.raises(NanoEulerError, match="rmsnorm_forward is None, expected a function"):
        with ops.use(rmsnorm_forward=None):
            pass
    assert ops.active().attention is cpu.attention


def test_use_nested():
    """An inner `use` keeps the version and the functions of the outer one."""
    with ops.use("plain"), ops.use(swiglu_forward=lambda gate, up: (gate * 0 + 7, None)):
        assert ops.active().attention.__self__.__class__ is plain.Plain
        with ops.use("cpu"):
            hidden = np.empty((2, 3))
            ops.active().swiglu(hidden, None, np.ones((2, 6)))
            assert (hidden == 7).all() and ops.active().attention is cpu.attention


def test_plain_has_every_composite():
    names = [name for group in ops.ALL_LAYERS for name in group]
    assert sorted(names) == sorted(oracles.WRITES)
    for name in names:
        code, own = getattr(cpu, name).__code__, getattr(plain.Plain, name).__code__
        shared = [key for key in code.co_varnames[: code.co_argcount] if key != "block"]
        assert shared == list(own.co_varnames[1 : own.co_argcount]), name


# Memory.


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_buffers_start_at_cache_lines(dtype):
    plan = Plan(oracles.TINY, 3, 7, dtype)
    for name, buffer in plan.buffers.items():
        assert buffer.ctypes.data % 64 == 0 and buffer.flags.c_contiguous and buffer.dtype == dtype, name


def test_plan_counts_its_bytes():
    plan = Plan(oracles.TINY, 2, 5, np.float64)
    assert plan.nbytes == sum(buffer.nbytes for buffer in plan.buffers.values())
    assert plan.buffers["layers.1.qkv"] is plan.layers[1].qkv and plan.buffers["dx"] is plan.dx
    for time in (0, 10):
        with pytest.raises(NanoEulerError, match=f"context is 9, got {time} tokens: expected 1 to 9"):
            Plan(oracles.TINY, 2, time)


def test_reference_keeps_the_dtype():
    """float32 in, float32 out: no step of a pure pair computes in double precision on the way."""
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=shape).astype(np.float32) for name, shape in dict(
        q=(1, 4, 3, 2), k=(1, 2, 3, 2), v=(1, 2, 3, 2), x=(3, 4), gain=(4,), w=(4, 5), logits=(3, 4),
    ).items()}  # fmt: skip
    cos, sin = reference.rope_tables(3, 2, dtype=np.float32)
    targets = np.array([1, -1, 0])
    calls = {
        "linear": (x["x"], x["w"]),
        "rmsnorm": (x["x"], x["gain"]),
        "rope": (x["q"], cos, sin),
        "attention": (x["q"], x["k"], x["v"]),
        "swiglu": (x["x"], x["x"]),
        "cross_entropy": (x["logits"], targets),
        "embed": (np.array([[0, 1, 0]]), x["w"]),
    }
    for name, arguments in calls.items():
        y, saved = getattr(reference, f"{name}_forward")(*arguments)
        grads = getattr(reference, f"{name}_backward")(y, saved)
        for array in (y, *(grads if isinstance(grads, tuple) else (grads,))):
            assert array.dtype == np.float32, f"{name}: {array.dtype}"
