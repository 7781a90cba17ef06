"""Chapter 07: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import rejects

from nanoeuler_book.checks import verdict

NOTEBOOK = "07_positions", "SUSPECTS"


def turn(x, cos, sin, order=np.arange, way=1, scale=1.0):
    """The turn; the arguments after sin are the mistakes that one can make."""
    places = order(x.shape[-1])
    x1, x2 = np.split(x[..., places], 2, axis=-1)
    y = np.empty_like(x)
    y[..., places] = scale * np.concatenate([x1 * cos - way * x2 * sin, way * x1 * sin + x2 * cos], axis=-1)
    return y, (cos, sin)


def in_place(x, cos, sin):
    """Overwrites the first half before the second half reads it."""
    half = x.shape[-1] // 2
    y = x.copy()
    y[..., :half] = y[..., :half] * cos - y[..., half:] * sin
    y[..., half:] = y[..., :half] * sin + y[..., half:] * cos
    return y, (cos, sin)


WRONG_FORWARD = {
    "neighbours paired": lambda x, c, s: turn(x, c, s, lambda n: np.arange(n).reshape(-1, 2).T.ravel()),
    "j paired with C - 1 - j": lambda x, c, s: turn(x, c, s, lambda n: np.r_[: n // 2, n - 1 : n // 2 - 1 : -1]),
    "scaled as well": lambda x, c, s: turn(x, c, s, scale=0.5),
    "second half from the new first half": in_place,
}


WRONG_BACKWARD = {
    "the sign of the sine": lambda dy, saved: turn(dy, *saved)[0],
    "neighbours paired": lambda dy, saved: turn(dy, *saved, lambda n: np.r_[0:n:2, 1:n:2], way=-1)[0],
}
test_wrong_gaps = rejects(
    {"check_forward": WRONG_FORWARD, "check_backward": WRONG_BACKWARD}, {"check_backward": "rope_forward"}
)


def test_the_checks_name_the_mistake(chapter):
    said = [verdict(chapter.check_forward, f) for f in WRONG_FORWARD.values()]
    said += [verdict(chapter.check_backward, f, chapter.rope_forward) for f in WRONG_BACKWARD.values()]
    names = "neighbours", "C - 1 - j", "position 0", "new first half", "wrong way", "neighbours"
    assert all(name in line for name, line in zip(names, said, strict=True))


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_learned_angles_with_only_the_forward_pass_are_not_written_yet(chapter):
    c = chapter
    assert c.check_learned((c.learned_forward, c.my_learned_backward)) == "not written yet"


def test_the_penalty_of_the_open_exercise_has_the_right_backward_pass(chapter):
    """Its gradient is attention's own: checked with difference quotients, odd sizes."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(2, 3, 5, 7)) for name in "qkv"}
    rows = chapter.gradcheck.check_layer(chapter.alibi_forward, chapter.attention_backward, inputs)
    assert all(row.ok for row in rows)
