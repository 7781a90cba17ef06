"""Kernels that are off until a card has measured them: the same step, by the checker and against float64."""

import functools
import re
from dataclasses import replace

import numpy as np
import pytest
from test_engine import batch, parameters

from nanoeuler_lib import cuda, engine
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import flash, program
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT

pytestmark = pytest.mark.compiler
CONFIG = ModelConfig(dim=64, heads=2, kv_heads=1, layers=1, context=37, vocab_size=176, predict=2, ffn=256)
WIDE = ModelConfig(dim=128, heads=2, kv_heads=1, layers=1, context=33, vocab_size=176, predict=2, ffn=128)


def gradients(config, *levers):
    """The loss, all gradients as one array, and the kernels that ran."""
    with program.pulled(*levers):
        on = flash.Card(86, 99 << 10, processors=1)  # which takes several tiles
        model = engine.GPT(config, parameters(config), precision="bfloat16", where="cpu", on=on)
        tokens, targets = batch(config.context, 4, config=config)
        ran, record = [], program.Program.take
        model.program.take = lambda: (lambda found: ran.extend(map(str, found)) or found)(
            record(model.program)
        )
        loss, grads = model.loss_and_gradients(tokens, targets)
        names = {text.split(": ")[1].split(",")[0] for text in ran}
        if config is WIDE:
            assert np.array_equal(model.loss_and_gradients(tokens, targets)[1].flat, grads.flat), "to the bit"
    exact = GPT(config, parameters(config)).loss_and_gradients(tokens, targets)
    norm = np.linalg.norm
    return loss, norm(grads.flat - exact[1].flat) / norm(exact[1].flat), names, exact[0]


@functools.cache
def of_the_kernels_in_use(config=CONFIG):
    return gradients(config)


@pytest.mark.parametrize("config", [CONFIG, WIDE], ids=["width 32", "width 64"])
def test_own_products_make_the_same_step(config):
    """FlashAttention's rule, narrower: against float64 an error of at most 1.2 times that of the kernels in use."""
    plain = of_the_kernels_in_use(config)
    own = gradients(config, "swiglu", "swiglu_back", "rope")
    ran = " ".join(own[2])
    assert all(name in ran for name in ("matmul16_glu<", "matmul16_glu_back<", "matmul16_rope<"))
    assert "swiglu_packed" not in ran and "rope_packed" not in ran
    assert "matmul16" not in " ".join(plain[2])
    assert own[1] <= 1.2 * plain[1] and abs(own[0] / own[3] - 1) <= 1e-3


def test_what_was_written_last_is_read_first_and_the_numbers_stay(monkeypatch):
    monkeypatch.setattr(program, "LOGITS_IN_CACHE", 7)
    plain, other = of_the_kernels_in_use(), gradients(CONFIG, "latest", "logits")
    assert abs(plain[0] - other[0]) <= 1e-6 * plain[0] and other[1] == pytest.approx(plain[1], rel=1e-3)


@pytest.mark.parametrize(
    "old, new",
    [
        ("PAIRED ? pair / 128 * 256", "false ? pair / 128 * 256"),
        ("__fdividef(g, 1.0f + __expf(-g))", "__fdividef(g, 1.0f + __expf(g))"),
        ("if (column + head * C >= turning) continue;", ""),
        ("of * up * (s + silu * (1.0f - s))", "of * up * s"),
        ("end(sum[1], row + 64, at.y);", "end(sum[0], row + 64, at.y);"),
        ("step += (K + WIDTH - 1) / WIDTH;", ""),
        ("turn_of(blockIdx.x, gridDim.x);\n  size_t", "0;\n  size_t"),
    ],
)
def test_planted_bugs_are_caught(monkeypatch, old, new):
    real, planted = cuda.module, []

    def module(source, **options):
        text = source.read_text("utf-8")
        planted.extend([source] if old in text else [])
        return real(text.replace(old, new), **options)

    plain = of_the_kernels_in_use()[1]
    monkeypatch.setattr(cuda, "module", module)
    try:
        error = gradients(CONFIG, "swiglu", "swiglu_back", "rope", "latest")[1]
    except NanoEulerError:
        error = np.inf
    assert planted and not error <= 2 * plain


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_that_come_early_change_nothing(monkeypatch, precision):
    """What is asked for ends where the next attention begins; the checker reads its first and last numbers."""
    config, seen = replace(CONFIG, layers=2), []
    made = engine.GPT(config, parameters(config), precision=precision, where="cpu")
    wanted = made.decoder(1).feed_all(np.array([3, 1, 4, 1, 5]))
    real = program.Program.attend
    monkeypatch.setattr(program.Program, "attend", lambda self, *x: seen.append(x[-2]) or real(self, *x))
    with program.pulled("fetch"):
        decoder = made.decoder(1)
        found = np.concatenate([decoder.feed_all(np.array(some)) for some in ([3, 1], [4], [1, 5])])
        assert any("grid 34 x 2" in str(entry) for entry in decoder._list(2))
    assert np.array_equal(found, wanted)
    sizes = {key: w.size for key, w in decoder.weights.items()}
    for layer in range(2):
        names = [(layer, name) for name in ("out", "gate_up", "down")] + [[(1, "qkv"), "heads"][layer]]
        assert seen[layer].size == sum(sizes[name] for name in names)
        assert np.shares_memory(seen[layer][:1], decoder.weights[names[0]])
        assert np.shares_memory(seen[layer][-1:], decoder.weights[names[-1]])


@pytest.mark.parametrize("on", [flash.Card(90, 227 << 10), flash.Card(86, 99 << 10)], ids=["hopper", "mma"])
def test_powers_by_multiply_adds_are_as_right(on):
    """Against float64, also where scores are far apart; and the bits show that they are others."""
    rng, (B, T, H, G, C) = np.random.default_rng(0), (1, 150, 3, 1, 64)
    qkv = to_bfloat16(rng.normal(0, 1, (B, T, (H + 2 * G) * C)).astype(np.float32) * 3)
    exact = from_bfloat16(qkv).astype(np.float64)
    q, k, v = (x.reshape(T, -1, C).swapaxes(0, 1) for x in np.split(exact[0], [H * C, (H + G) * C], axis=1))
    scores = np.where(np.tri(T, dtype=bool), q @ k.swapaxes(1, 2) / 8, -np.inf)
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - top)
    wanted, logs = p / p.sum(-1, keepdims=True) @ v, np.log(p.sum(-1)) + top[..., 0]
    found = []
    for levers in ((), ("powers",)):
        with program.pulled(*levers):
            out, lse = flash.attention(qkv, H, G, where="cpu", on=on)
        got = from_bfloat16(out)[0].reshape(T, H, C).swapaxes(0, 1)
        found.append(
            (np.linalg.norm(got - wanted) / np.linalg.norm(wanted), np.abs(lse[0] - logs).max(), lse)
        )
    assert found[1][0] <= 1.05 * found[0][0] and found[1][1] <= 1e-5
    assert not np.array_equal(found[0][2], found[1][2])


TEXT = (cuda.KERNELS / "matmul16.cu").read_text("utf-8")
ENGINE = TEXT.index("// ---- v3 in the engine")
HOPPER = range(
    TEXT.index(
        "#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n\ntemplate <int STAGES> __device__ __forceinline__ void start_t"
    ),
    TEXT.index("#else\n\ntemplate <int STAGES> __device__ __forceinline__ void start_turns"),
)
ORDERING = re.compile(
    r"(?:__syncthreads|copy_async_commit|copy_async_wait<0>|named_barrier_(?:sync|arrive)"
    r"|(?:wait_filled|tell_emptied|wait_turn|tell_turn)<STAGES>)\([^;{}]*\);"
)
ORDERED = [m for m in ORDERING.finditer(TEXT, ENGINE) if m.start() not in HOPPER]


def own_products(monkeypatch, text=TEXT):
    """Each kernel once, of more steps than stages, by one block that takes several tiles."""
    real = cuda.module
    monkeypatch.setattr(cuda, "module", lambda source, **options: real(text, **options))
    program._module.cache_clear()
    rng, (M, N, K) = np.random.default_rng(0), (130, 512, 520)
    bits = lambda *shape: to_bfloat16(rng.normal(0, 1, shape).astype(np.float32))
    new = lambda *shape: np.zeros(shape, np.uint16)
    one = program.Program(CONFIG, "bfloat16", "cpu", on=flash.Card(86, 99 << 10, processors=1))
    a, w, space, hidden, both = bits(M, K), bits(K, N), new(N, K), new(M, N // 2), new(M, N)
    name = f"matmul16_glu<{one.number}, 4>"
    one._own_product("x", name, both, a, w, space, (hidden,), paired=True)
    back = f"matmul16_glu_back<{one.number}, 6>"
    arrays = a, bits(N // 2, K), bits(M, N), new(M, N)
    one._by_tiles("x", one._file("matmul16.cu", (back,))[back], program.IN_TURNS, arrays, (M, N // 2, K))
    program.run(one.take())
    program._module.cache_clear()


def test_own_products_order_what_they_do(monkeypatch):
    own_products(monkeypatch)
    assert len(ORDERED) == 15, "and each is deleted below"


@pytest.mark.parametrize("number", range(15))
def test_without_one_of_its_barriers_an_own_product_is_told(monkeypatch, number):
    place = ORDERED[number]
    with pytest.raises(cuda.KernelError):
        own_products(monkeypatch, TEXT[: place.start()] + "(void)0;" + TEXT[place.end() :])


def test_levers_are_off_and_only_where_they_fit():
    assert not program.LEVERS
    with pytest.raises(NanoEulerError, match=r"levers are swiglu, .*, got swigl"), program.pulled("swigl"):
        pass
    with program.pulled("swiglu", "rope"):
        odd = ModelConfig(
            dim=64, heads=2, kv_heads=1, layers=1, context=37, vocab_size=96, predict=2, ffn=176
        )
        for config, options in ((odd, dict(precision="bfloat16")), (CONFIG, dict(precision="float32"))):
            model = engine.GPT(config, where="cpu", **options)
            plan = model.plan(2, 37)
            plan.op.linear(plan.layers[0].gate_up, plan.layers[0].y2, model.weights["layers.0.gate_up"])
            plan.op.swiglu(plan.layers[0].hidden, None, plan.layers[0].gate_up)
            assert "swiglu_packed" in str(model.program.take()[-1])
        on = flash.Card(86, 99 << 10)
        card = program.Program(CONFIG, "bfloat16", "cpu", on=on)
        card.where = "gpu"
        assert not card._owns("swiglu", np.zeros((2, 2)), np.zeros(4))
    assert not program.LEVERS
