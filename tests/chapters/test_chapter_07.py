"""Chapter 07: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
from chapters import rejects

import konigsberg
from experiments import longer_texts
from nanoeuler_book.checks import verdict
from nanoeuler_lib.training.checkpoint import load_pretrained

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


# ---- The experiment on longer texts


def test_each_repair_changes_the_frequencies_that_the_page_names():
    """The angles that a repair gives to the vector (1, 0) at position 1; YaRN also makes it longer."""
    base, width = 10_000.0, 32
    plain = base ** (-2 * np.arange(16) / width)
    one = np.concatenate([np.ones((2, 16)), np.zeros((2, 16))], axis=1)

    def read(name):
        y = longer_texts.repairs(base, width, 128)[name]["rope_forward"](one, None, None)[0][1]
        z = y[:16] + 1j * y[16:]
        return np.angle(z) / plain, abs(z)

    ratio = {name: read(name)[0] for name in ("interpolation", "larger base", "YaRN, 0.5 to 1 turn", "YaRN, its code")}
    assert np.allclose(ratio["interpolation"], 1 / 4)
    assert np.allclose(ratio["larger base"], 4.0 ** (-np.arange(16) / 15))
    turns = 128 * plain / (2 * np.pi)
    assert np.allclose(ratio["YaRN, 0.5 to 1 turn"][turns >= 1], 1)
    assert np.allclose(ratio["YaRN, 0.5 to 1 turn"][turns <= 0.5], 1 / 4)
    assert np.allclose(ratio["YaRN, its code"][:7], 1 - np.arange(7) / 8)  # linear from pair 0 to pair 6
    assert np.allclose(read("YaRN, 1 to 32 turns")[1], 0.1 * np.log(4) + 1)


def test_the_rows_begin_with_stories_of_known_cost():
    tokenizer = load_pretrained()[1]
    read = longer_texts.texts(tokenizer, rows=2)
    assert {name: part.shape for name, part in read.items()} == dict.fromkeys(read, (2, 512))
    assert np.array_equal(read["tokens"][:, 1:], read["targets"][:, :-1])
    first = next(konigsberg.stories(1, longer_texts.SEED)).text
    end = int(np.argmax(read["targets"][0] == tokenizer.end))
    assert tokenizer.decode(read["targets"][0, :end]) == first and read["place"][0, end + 1] == 0
    assert np.isclose(read["costs"][0, : end + 1].sum(), konigsberg.code_length(first))
    assert (read["distance"] < read["place"]).all()
