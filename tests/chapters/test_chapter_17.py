"""Chapter 17: its checks accept what is right and reject wrong answers, each of them named."""

from dataclasses import replace

import numpy as np
from chapters import gap_tests, rejected, slips

from nanoeuler_book.checks import verdict
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model import GPT

# ---- The gaps

NOTEBOOK = ("17_eulers_method",)


def rebuilt(model, order, scale=1.0, wrote=(".out", ".down"), at=lambda order, i: order[i], own=False, heads=True):
    """The model with its layers in a new order, with one thing wrong, if asked."""
    new = GPT(replace(model.config, layers=len(order)), dtype=model.dtype)
    for name, tensor in new.params.items():
        if name == "heads" and not heads:
            continue
        parts = name.split(".")
        if len(parts) == 3:
            parts[1] = str(at(order, int(parts[1])))
        tensor[...] = model.params[".".join(parts)] * (scale if name.endswith(wrote) else 1.0)
    if own:
        model.params["heads"][...] *= 2
    return new


WRONG_REBUILT = {
    "attention's write not scaled": dict(wrote=(".down",)),
    "order ignored": dict(at=lambda order, i: i % 3),
    "the given model changed": dict(own=True),
    "the heads left as they were drawn": dict(heads=False),
}


def heun(f, x, h, inside=1.0, weight=0.5, second=True):
    """Heun's step, with one thing wrong, if asked."""
    here = f(x)
    there = f(x + (h if inside == 1.0 else inside(h)) * here) if second else here
    return x + h * ((1 - weight) * here + weight * there)


WRONG_HEUN = {"Euler's step": dict(second=False), "the midpoint method": dict(inside=lambda h: h / 2, weight=1.0)}
test_right_gaps, test_wrong_gaps = gap_tests(
    {"check_rebuilt": ([rebuilt], slips(rebuilt, WRONG_REBUILT)), "check_heun": ([], slips(heun, WRONG_HEUN))}
)


def test_rebuilt_models_of_more_layers_and_of_orders_in_an_array(chapter):
    """Answers right for the short lists, in float64, that the check once asked for; each then broke a later cell."""

    def auto_scale(model, order, scale=1.0):
        n = model.config.layers
        return chapter.book_rebuilt(model, order, n / len(order) if len(order) > n else scale)

    def one_digit(model, order, scale=1.0):
        new = GPT(replace(model.config, layers=len(order)), dtype=model.dtype)
        for name, t in new.params.items():
            source = f"layers.{order[int(name[7])]}{name[8:]}" if name.startswith("layers.") else name
            t[...] = model.params[source] * (scale if name.endswith((".out", ".down")) else 1)
        return new

    def compares(model, order, scale=1.0):
        if order == list(range(model.config.layers)) and scale == 1:
            return chapter.book_rebuilt(model, order)
        return chapter.book_rebuilt(model, order, scale)

    def always_double(model, order, scale=1.0):
        book = chapter.book_rebuilt(model, order, scale)
        new = GPT(book.config, dtype=np.float64)
        new.params.flat[...] = book.params.flat
        return new

    for wrong in (auto_scale, one_digit, compares, always_double):
        assert verdict(chapter.check_rebuilt, wrong) != "right", wrong.__name__


def test_a_difference_quotient_is_no_backward_pass(chapter):
    def quotient(f, vjp, x, h, dy):
        vjp(x, dy), vjp(x, dy)  # for show
        found = np.empty_like(x)
        for at in np.ndindex(x.shape):
            move = np.zeros_like(x)
            move[at] = 1e-5
            ends = [chapter.book_heun(f, x + s * move, h) for s in (1, -1)]
            found[at] = ((ends[0] - ends[1]) * dy).sum() / 2e-5
        return found

    assert rejected(chapter.check_heun_back, quotient)


def test_two_thousand_steps_are_not_infinitely_many(chapter):
    def many(a):
        a = np.array(a)
        return np.prod(1 + a), np.prod((1 + a / 2) ** 2), np.prod((1 + a / 2000) ** 2000)

    assert rejected(chapter.check_factors, many)


# ---- What the chapter measures


def test_distance_leaves_length_out_and_a_random_turn_equals_half_steps_in_length_and_angle(chapter):
    x = np.array([[3.0, 4.0], [1.0, 0.0]])
    assert chapter.away(7 * x, x) < 1e-12
    assert np.isclose(chapter.away(np.array([[8.0, -6.0], [0.0, 2.0]]), x), np.sqrt(2))
    rng = np.random.default_rng(3)
    model = GPT(ModelConfig(8, 2, 1, 1, context=6, vocab_size=9, predict=2, ffn=5), dtype=np.float64)
    model.params.flat[...] = rng.normal(size=model.params.flat.size) * 0.5
    tokens = rng.integers(0, 9, (1, 6))
    one, half = (chapter.walk(model, tokens, chapter.euler, n) for n in (1, 2))
    turned = chapter.displaced(model, tokens, np.random.default_rng(4))
    assert np.allclose((turned**2).sum(-1), (half**2).sum(-1))
    assert np.allclose((turned * one).sum(-1), (half * one).sum(-1))
    assert np.linalg.norm(turned - half, axis=-1).min() > 0.01


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_the_adjoint_tends_to_the_gradient_and_the_steps_have_it_exactly(chapter):
    """Against difference quotients of the solver's own loss, and of a walk in very many steps."""
    rng = np.random.default_rng(5)
    x, goal, W = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.normal(size=(2, 2))

    def end(W, n):
        y = x
        for _ in range(n):
            y = y + chapter.field(y, W) / n
        return y

    def gradient(n):
        slope = np.empty_like(W)
        for at in np.ndindex(W.shape):
            losses = []
            for move in (1e-6, -1e-6):
                moved = W.copy()
                moved[at] += move
                losses.append(((end(moved, n) - goal) ** 2).sum() / 2)
            slope[at] = (losses[0] - losses[1]) / 2e-6
        return slope

    assert np.allclose(chapter.through_steps(x, W, lambda y: y - goal, 7)[1], gradient(7), rtol=1e-6)
    off = []
    for n in (100, 200):
        back, _, dW = chapter.adjoint(end(W, n), W, end(W, n) - goal, n)
        off.append((np.abs(back - x).max(), np.abs(dW - gradient(n)).max()))
    assert all(0.4 < fine / coarse < 0.6 for coarse, fine in zip(*off, strict=True))
