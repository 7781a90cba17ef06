"""The frame of chapters 06 to 10: parts that are left out, steady sampling, and what a reader keeps."""

import numpy as np
import pytest

from nanoeuler_book import frame
from nanoeuler_lib import ops
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, gradcheck
from nanoeuler_lib.ops import reference

SMALL = ModelConfig(dim=6, heads=1, kv_heads=1, layers=1, context=8, vocab_size=11, predict=1)
READER = """
import numpy as np

def sigmoid(x):
    return 1 / (1 + np.exp(-x))

def my_swiglu(gate, up):
    return gate * sigmoid(gate) * up, (gate, up)

def my_swiglu_back(dy, saved):
    gate, up = saved
    s = sigmoid(gate)
    return dy * up * (s + gate * s * (1 - s)), dy * gate * s
"""


@pytest.mark.parametrize("part", frame.WITHOUT)
def test_a_part_that_is_left_out_has_a_right_gradient(part):
    with ops.use(**frame.WITHOUT[part]):
        assert [row for row in gradcheck.check_model(SMALL) if not row.ok] == []


def test_without_attention_a_position_reads_only_itself():
    model, tokens = GPT(SMALL, seed=0, dtype=np.float64), np.arange(7)[None] % SMALL.vocab_size
    with ops.use(**frame.WITHOUT["attention"]):
        whole = model.logits(tokens).copy()
        for i in range(7):
            assert np.allclose(model.logits(tokens[:, i : i + 1])[0, 0], whole[0, i])


def test_rounding_does_not_change_what_is_drawn():
    number = np.random.default_rng(0).random()  # the first that is drawn: it falls on the border of tokens 65 and 66

    def predict(tokens, shift):
        p = np.full(512, 1e-9)
        p[[65, 66]] = number + shift, 1 - number - shift
        return np.log(p) * frame.TEMPERATURE + np.zeros((*tokens.shape, 1))

    assert len({frame.draw(lambda tokens, s=s: predict(tokens, s), tokens=1) for s in (-1e-6, 1e-6)}) == 1
    assert len({frame.draw(lambda tokens, s=s: predict(tokens, s), tokens=1) for s in (-0.5, 0.3)}) == 2
    assert frame.draw(lambda tokens: np.where(np.arange(512) == 511, 0, -np.inf) + np.zeros((*tokens.shape, 1))) == ""


def test_a_kept_function_trains_the_next_chapters_model(tmp_path, monkeypatch, capsys):
    def my_norm(x, gain, eps=1e-5):
        return reference.rmsnorm_forward(x, gain, eps)

    frame.keep(rmsnorm_forward=my_norm)  # outside the folder work/
    assert frame.kept() == {}
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    frame.keep(rmsnorm_forward=my_norm)
    assert frame.kept() == {} and "my_norm needs reference: later chapters use" in capsys.readouterr().out
    source = tmp_path / "reader.py"
    source.write_text(READER)
    exec(compile(READER, source, "exec"), reader := {})
    frame.keep(swiglu_forward=reader["my_swiglu"], swiglu_backward=reader["my_swiglu_back"])
    frame.keep(rope_forward=reader["my_swiglu"], rope_backward=None)  # of no use without its backward pass
    model = frame.train(2)
    assert list(model.functions) == ["swiglu_forward", "swiglu_backward"]
    frame.report("09", model)
    assert "yours: SwiGLU\nthe book's: embedding (00)," in capsys.readouterr().out
    frame.table()
    assert capsys.readouterr().out.startswith("09 ")


def test_a_function_that_fails_in_the_model_is_not_used_again(monkeypatch):
    monkeypatch.setattr(ops, "on_failure", lambda functions, error: None)  # as in a notebook
    assert frame.train(1, swiglu_forward=lambda gate, up: 1 / 0, swiglu_backward=lambda dy, _: dy).functions == {}


def test_a_part_that_the_frame_does_not_have():
    with pytest.raises(NanoEulerError, match=r"without must be a list of attention, .*, got 'SwiGlu'"):
        frame.train(1, without=["SwiGlu"])
