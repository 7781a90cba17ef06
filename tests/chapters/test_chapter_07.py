"""Chapter 07: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import rejects

NOTEBOOK = "07_positions", "SUSPECTS"


# ---- The gaps


def turn(x, cos, sin, layout="half", way=1, both=1, second=True, scale=1.0):
    """The turn; the arguments after sin are the mistakes that one can make."""
    half = x.shape[-1] // 2
    if layout == "half":
        x1, x2 = x[..., :half], x[..., half:]
    elif layout == "mirrored":  # j with C - 1 - j
        x1, x2 = x[..., :half], x[..., half:][..., ::-1]
    else:
        x1, x2 = x[..., 0::2], x[..., 1::2]
    y1 = scale * (x1 * cos - way * x2 * sin)
    y2 = scale * (both * way * x1 * sin + x2 * cos) if second else x2
    if layout == "interleaved":
        return np.stack([y1, y2], axis=-1).reshape(x.shape), (cos, sin)
    return np.concatenate([y1, y2[..., ::-1] if layout == "mirrored" else y2], axis=-1), (cos, sin)


def in_place(x, cos, sin):
    """Overwrites the first half before the second half reads it."""
    half = x.shape[-1] // 2
    y = x.copy()
    y[..., :half] = y[..., :half] * cos - y[..., half:] * sin
    y[..., half:] = y[..., :half] * sin + y[..., half:] * cos
    return y, (cos, sin)


WRONG_FORWARD = {
    "neighbours paired": lambda x, c, s: turn(x, c, s, layout="interleaved"),
    "j paired with C - 1 - j": lambda x, c, s: turn(x, c, s, layout="mirrored"),
    "scaled as well": lambda x, c, s: turn(x, c, s, scale=0.5),
    "one position too many": lambda x, c, s: turn(turn(x, c, s)[0], c[-1:], s[-1:]),
    "second half from the new first half": in_place,
}


WRONG_BACKWARD = {
    "the sign of the sine": lambda dy, saved: turn(dy, *saved)[0],
    "passed through": lambda dy, saved: dy,
    "neighbours paired": lambda dy, saved: turn(dy, *saved, layout="interleaved", way=-1)[0],
    "only the first of a pair": lambda dy, saved: turn(dy, *saved, way=-1, second=False)[0],
    "the sine forgotten": lambda dy, saved: dy * np.tile(saved[0], 2),
}
test_wrong_gaps = rejects(
    {
        "check_forward": WRONG_FORWARD,
        "check_backward": WRONG_BACKWARD,
    },
    {"check_backward": "rope_forward"},
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def test_learned_angles_with_only_the_forward_pass_are_not_written_yet(chapter):
    c = chapter
    assert c.check_learned((c.learned_forward, c.my_learned_backward)) == "not written yet"


def test_the_penalty_of_the_open_exercise_has_the_right_backward_pass(chapter):
    """Its gradient is attention's own: checked with difference quotients, grouped queries, odd sizes."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(2, heads, 5, 3)) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    rows = chapter.gradcheck.check_layer(chapter.alibi_forward, chapter.attention_backward, inputs)
    assert all(row.ok for row in rows)
