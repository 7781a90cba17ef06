"""Planted bugs: each line of BUGS changes the library's text in one place, and a named check must catch it.

To add a bug, add a `Bug`: what a person could get wrong, the function, the text to replace there and its
replacement, and the checks of `oracles.py`, each of which must fail. An edit whose text no longer occurs exactly once
in the function fails as well, so the list cannot fall behind the library. A last test shows that the checks
pass on the library as it is.
"""

import inspect
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import oracles
import pytest

from nanoeuler_lib import ops
from nanoeuler_lib.ops import cpu

CHECKS = {
    "forward cpu": partial(oracles.check_forward, "cpu"),
    "forward plain": partial(oracles.check_forward, "plain"),
    "gradients cpu": partial(oracles.check_gradients, "cpu"),
    "gradients plain": partial(oracles.check_gradients, "plain"),
    "layers": oracles.check_layers,
    "equality": oracles.check_equality,
    "accumulate": oracles.check_accumulate,
    "extremes cpu": partial(oracles.check_extremes, "cpu"),
    "extremes plain": partial(oracles.check_extremes, "plain"),
    "schedule": oracles.check_schedule,
    "adamw cpu": partial(oracles.check_adamw, "cpu"),
    "adamw plain": partial(oracles.check_adamw, "plain"),
    "muon cpu": partial(oracles.check_muon, "cpu"),
    "muon plain": partial(oracles.check_muon, "plain"),
    "step": oracles.check_step,
    "init": oracles.check_init,
    "targets": oracles.check_targets,
    "validation rows": oracles.check_validation_rows,
    "split": oracles.check_split,
    "bits per byte": oracles.check_bits_per_byte,
    "decoder": oracles.check_decoder,
    "sampling": oracles.check_sampling,
    "resume": oracles.check_resume,
    "batches differ": oracles.check_batches_differ,
}


def in_blocks(check):
    """The check with blocks so small that even a tiny model has several of each kind."""

    def run():
        with patch.object(cpu, "BLOCK", 2), patch.object(cpu, "ROWS", 3):
            check()

    return run


GPT2 = oracles.TINY_GPT2
CHECKS["gradients, GPT-2"] = partial(oracles.check_gradients, config=GPT2)
CHECKS["equality, GPT-2"] = partial(oracles.check_equality, GPT2)
CHECKS["accumulate, GPT-2"] = partial(oracles.check_accumulate, GPT2)
CHECKS["equality in blocks"] = in_blocks(oracles.check_equality)
CHECKS["gradients in blocks"] = in_blocks(partial(oracles.check_gradients, "cpu"))
# Heads of width 4 cannot tell pairing from unpairing, and pieces of one token take another way than longer ones.
CHECKS["equality, wide heads"] = partial(oracles.check_equality, replace(oracles.TINY, dim=24))
CHECKS["decoder, long pieces"] = partial(oracles.check_decoder, replace(oracles.TINY, context=40))
NEED_FOLDER = {"resume", "batches differ"}


class Bug(NamedTuple):
    what: str
    where: str  # module and function below nanoeuler_lib
    edits: tuple[str, ...]  # old, new, old, new, ...
    caught_by: tuple[str, ...]


def bug(what, where, *edits, by):
    return Bug(what, where, edits, (by,) if isinstance(by, str) else by)


GRADIENTS = ("layers", "gradients plain")

BUGS = [
    # The reference pairs: backward passes.
    bug("repeated tokens: the last gradient wins", "ops.reference.embed_backward",
        "np.add.at(dtable, tokens, dx)", "dtable[tokens] = dx", by=GRADIENTS),
    bug("repeated tokens: added once", "ops.reference.embed_backward",
        "np.add.at(dtable, tokens, dx)", "dtable[tokens] += dx", by=GRADIENTS),
    bug("weight gradient averaged over positions", "ops.reference.linear_backward",
        "rows_x.T @ rows_dy", "rows_x.T @ rows_dy / len(rows_x)", by=GRADIENTS),
    bug("weight gradient of the first sequence only", "ops.reference.linear_backward",
        "rows_x.T @ rows_dy", "rows_x[: x.shape[-2]].T @ rows_dy[: x.shape[-2]]", by="layers"),
    bug("RMSNorm: missing term", "ops.reference.rmsnorm_backward",
        "dnormed - normed * along", "dnormed", by=GRADIENTS),
    bug("RMSNorm: wrong sign", "ops.reference.rmsnorm_backward",
        "dnormed - normed * along", "dnormed + normed * along", by=GRADIENTS),
    bug("RMSNorm: gain missing in the mean", "ops.reference.rmsnorm_backward",
        "np.mean(dnormed * normed", "np.mean(dy * normed", by=GRADIENTS),
    bug("RMSNorm: mean over the wrong axis", "ops.reference.rmsnorm_backward",
        "dnormed * normed, axis=-1", "dnormed * normed, axis=0", by=GRADIENTS),
    bug("RMSNorm: sum in place of mean", "ops.reference.rmsnorm_backward",
        "np.mean(", "np.sum(", by=GRADIENTS),
    bug("RMSNorm: gain's gradient from x, not from x / rms", "ops.reference.rmsnorm_backward",
        "(dy * normed).reshape", "(dy * normed / rstd).reshape", by=GRADIENTS),
    bug("RoPE: gradient turned the wrong way", "ops.reference.rope_backward",
        "cos, -sin", "cos, sin", by=GRADIENTS),
    bug("attention: missing 1/sqrt(C) in the backward", "ops.reference.attention_backward",
        "dscores /= math.sqrt(C)", "dscores /= 1", by=GRADIENTS),
    bug("attention: softmax without its second term", "ops.reference.attention_backward",
        "dprobs - (dprobs * probs).sum(axis=-1, keepdims=True)", "dprobs", by=GRADIENTS),
    bug("attention: softmax sum over queries, not keys", "ops.reference.attention_backward",
        "(dprobs * probs).sum(axis=-1", "(dprobs * probs).sum(axis=-2", by=GRADIENTS),
    bug("attention: dk without the transpose", "ops.reference.attention_backward",
        "dscores.swapaxes(-1, -2) @ qg", "dscores @ qg", by=GRADIENTS),
    bug("attention: dv from untransposed probabilities", "ops.reference.attention_backward",
        "probs.swapaxes(-1, -2) @ dyg", "probs @ dyg", by=GRADIENTS),
    bug("GQA: dk is the mean over query heads", "ops.reference.attention_backward",
        "dkg.sum(axis=2)", "dkg.mean(axis=2)", by=GRADIENTS),
    bug("GQA: dv from the first query head only", "ops.reference.attention_backward",
        "dvg.sum(axis=2)", "dvg[:, :, 0]", by=GRADIENTS),
    bug("SwiGLU: derivative of the sigmoid only", "ops.reference.swiglu_backward",
        "(sigmoid + silu * (1.0 - sigmoid))", "sigmoid * (1.0 - sigmoid)", by=GRADIENTS),
    bug("SwiGLU: derivative without its second term", "ops.reference.swiglu_backward",
        "(sigmoid + silu * (1.0 - sigmoid))", "sigmoid", by=GRADIENTS),
    bug("SwiGLU: gate's gradient without up", "ops.reference.swiglu_backward",
        "dy * up *", "dy *", by=GRADIENTS),
    bug("SwiGLU: gradients of gate and up swapped", "ops.reference.swiglu_backward",
        "return dgate, dup", "return dup, dgate", by=GRADIENTS),
    bug("cross-entropy: softmax without minus one-hot", "ops.reference.cross_entropy_backward",
        "axis=-1) - 1.0", "axis=-1)", by=GRADIENTS),
    bug("cross-entropy: masked targets leak gradient", "ops.reference.cross_entropy_backward",
        "np.where(valid, dlosses, 0.0)", "dlosses", by=GRADIENTS),
    # The reference pairs: forward passes, which a difference quotient of the same forward pass cannot see.
    bug("RMSNorm: eps outside the root", "ops.reference.rmsnorm_forward",
        "np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)",
        "(np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + eps)", by=("forward plain", "equality")),
    bug("RoPE: turned the wrong way, backward too", "ops.reference.rope_forward",
        "x1 * cos - x2 * sin, x1 * sin + x2 * cos", "x1 * cos + x2 * sin, x2 * cos - x1 * sin",
        by=("forward plain", "equality")),
    bug("RoPE: neighbours paired, not halves", "ops.reference.rope_forward",
        "np.split(x, 2, axis=-1)", "(x[..., ::2], x[..., 1::2])", by="forward plain"),
    bug("RoPE: frequencies of half the exponent", "ops.reference.rope_tables",
        "np.arange(0, width, 2)", "np.arange(width // 2)", by=("forward plain", "forward cpu")),
    bug("RoPE: positions counted from 1 for keys' tables", "ops.reference.rope_tables",
        "theta ** (-", "theta ** (", by=("forward plain", "forward cpu")),
    bug("attention: mask off by one, sees the next token", "ops.reference.attention_forward",
        "bool), 1)", "bool), 2)", by=("forward plain", "equality")),
    bug("attention: missing 1/sqrt(C)", "ops.reference.attention_forward",
        " / math.sqrt(C)", "", by=("forward plain", "layers")),
    bug("attention: softmax over queries", "ops.reference.attention_forward",
        "probs.sum(axis=-1", "probs.sum(axis=-2", by=("forward plain", "layers")),
    bug("GQA: query heads dealt round, not in groups", "ops.reference.attention_forward",
        "q.reshape(B, G, H // G, T, C)", "q.reshape(B, H // G, G, T, C).swapaxes(1, 2)",
        by=("forward plain", "equality")),
    bug("SwiGLU: up goes through the sigmoid, gate does not", "ops.reference.swiglu_forward",
        "np.exp(-gate)", "np.exp(-up)", by=("forward plain", "layers")),
    bug("cross-entropy: exponential without subtracting the largest", "ops.reference.cross_entropy_forward",
        "logits - logits.max(axis=-1, keepdims=True)", "logits", by="extremes plain"),
    bug("cross-entropy: masked targets count", "ops.reference.cross_entropy_forward",
        "np.where(valid, losses, 0.0)", "losses", by=("forward plain", "layers")),
    # The fast composites.
    bug("embedding's gradient: accumulate overwrites", "ops.cpu.embed_back",
        "] += np.add.reduceat", "] = np.add.reduceat", by="accumulate"),
    bug("embedding's gradient: rows not put in the order of their tokens", "ops.cpu.embed_back",
        "np.take(dx, order,", "np.take(dx, np.sort(order),", by=("gradients cpu", "equality")),
    bug("embedding's gradient: not cleared", "ops.cpu.embed_back",
        "dtable[...] = 0", "pass", by=("equality", "step")),
    bug("weight gradient: accumulate overwrites", "ops.cpu._product",
        "dw += product", "dw[...] = product", by=("accumulate", "step")),
    bug("residual add forgotten", "ops.cpu.add_rmsnorm",
        "np.add(residual, update, out=x)", "x[...] = update", by=("forward cpu", "equality")),
    bug("residual gradient dropped at a norm", "ops.cpu.add_rmsnorm_back",
        "dx += dy", "dx[...] = dy", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: missing 1/D in the mean", "ops.cpu.add_rmsnorm_back",
        "rstd**3 / x.shape[1]", "rstd**3", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: 1/N in place of 1/D", "ops.cpu.add_rmsnorm_back",
        "rstd**3 / x.shape[1]", "rstd**3 / x.shape[0]", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: gain missing in the mean", "ops.cpu.add_rmsnorm_back",
        "product @ gain", "product.sum(axis=1)", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: x taken for x / rms", "ops.cpu.add_rmsnorm_back",
        "rstd**3", "rstd**2", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: gain's gradient from x, not from x / rms", "ops.cpu.add_rmsnorm_back",
        "np.matmul(rstd[:, 0], product, out=dgain)", "np.sum(product, axis=0, out=dgain)",
        by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: missing 1/rms", "ops.cpu.add_rmsnorm_back",
        "dy *= rstd", "pass", by=("gradients cpu", "equality")),
    bug("RMSNorm, fast: gain's gradient overwritten", "ops.cpu.add_rmsnorm_back",
        "dgain += ", "dgain[...] = ", by=("accumulate", "step")),
    bug("RMSNorm, fast: eps misplaced", "ops.cpu.add_rmsnorm",
        "rstd += eps\n    np.sqrt(rstd, out=rstd)", "np.sqrt(rstd, out=rstd)\n    rstd += eps",
        by=("forward cpu", "equality")),
    bug("RoPE, fast: turned the wrong way", "ops.cpu.qkv_rope",
        "rope.turn)", "rope.turn_back)", by=("forward cpu", "equality")),
    bug("RoPE, fast: gradient turned the wrong way", "ops.cpu.qkv_rope_back",
        "rope.turn_back)", "rope.turn)", by=("gradients cpu", "equality")),
    bug("RoPE, fast: weight gradient left in the paired order", "ops.cpu.qkv_rope_back",
        "dw[...] = work_qkv_weight", "dw[...] = product", by=("gradients cpu", "equality")),
    bug("RoPE, fast: accumulated gradient left in the paired order", "ops.cpu.qkv_rope_back",
        "dw += work_qkv_weight", "dw += product", by=("accumulate", "step")),
    bug("RoPE, fast: weight gradient paired twice, not unpaired", "ops.cpu.qkv_rope_back",
        "rope.place", "rope.order", by="equality, wide heads"),
    bug("RoPE, fast: 1/sqrt(C) missing in the queries", "model.plan.Rope.__init__",
        "turn / np.sqrt(C)", "turn", by=("forward cpu", "equality")),
    bug("RoPE, fast: 1/sqrt(C) missing in the queries' gradient", "model.plan.Rope.__init__",
        "self.turn.conj()", "self.turn.conj() / np.abs(self.turn)", by=("gradients cpu", "equality")),
    bug("RoPE, fast: keys scaled as well", "model.plan.Rope.__init__",
        "np.tile(turn, (1, G))", "np.tile(turn / np.sqrt(C), (1, G))", by=("forward cpu", "equality")),
    bug("attention, fast: mask off by one, sees the next token", "ops.cpu._mask",
        "dtype), 1)", "dtype), 2)", by=("forward cpu", "equality")),
    bug("attention, fast: mask off by one, blind to itself", "ops.cpu._mask",
        "dtype), 1)", "dtype), 0)", by=("forward cpu", "equality")),
    bug("attention, fast: output not divided by the sums", "ops.cpu.attention",
        "out *= softmax_stats", "pass", by=("forward cpu", "equality")),
    bug("attention, fast: exponential without subtracting the largest", "ops.cpu._exp_scores",
        "scores -= scores.max(axis=-1, keepdims=True)", "pass", by="extremes cpu"),
    bug("attention, fast: the largest of all rows subtracted from each", "ops.cpu._exp_scores",
        "scores.max(axis=-1, keepdims=True)", "scores.max()", by="extremes cpu"),
    bug("attention, fast: the largest of the future subtracted", "ops.cpu._exp_scores",
        "last += _mask(last.shape[-1], scores.dtype)", "pass",
        "np.exp(scores, out=scores)", "last += _mask(last.shape[-1], scores.dtype); np.exp(scores, out=scores)",
        by="extremes cpu"),
    bug("softmax, fast: exponential always taken for safe", "ops.cpu._far_from_zero",
        "> SAFE", "> np.inf", by="extremes cpu"),
    bug("attention, fast: softmax_stats missing in the backward", "ops.cpu.attention_back",
        "dout *= softmax_stats", "pass", by=("gradients cpu", "equality")),
    bug("attention, fast: softmax_stats missing in dv", "ops.cpu.attention_back",
        "_product(dv[:, :, :end], group_p, group,",
        "_product(dv[:, :, :end], group_p, (block / softmax_stats[:, :, :, rows]).reshape(group.shape),",
        by=("gradients cpu", "equality")),
    bug("attention, fast: softmax without its second term", "ops.cpu.attention_back",
        "dp -= along[:, :, :, rows]", "pass", by=("gradients cpu", "equality")),
    bug("GQA, fast: dk is the mean over query heads", "ops.cpu.attention_back",
        "group_dp, group, work,", "group_dp, group / R, work,", by=("gradients cpu", "equality")),
    bug("GQA, fast: dv from the first query head only", "ops.cpu.attention_back",
        "group_p, group, work,", "p[:, :, 0], block[:, :, 0], work,", by=("gradients cpu", "equality")),
    bug("attention, fast: scores of all blocks in one place", "ops.cpu.score_blocks",
        "start += scores.size", "pass", by="equality in blocks"),
    bug("attention, fast: each block overwrites what later rows send to its keys", "ops.cpu.attention_back",
        "end < softmax_stats.shape[3]", "False", by=("gradients in blocks", "equality in blocks")),
    bug("attention, fast: adds to gradients that no block has begun", "ops.cpu.attention_back",
        "reversed(score_blocks(probs, softmax_stats.shape))", "score_blocks(probs, softmax_stats.shape)",
        by=("gradients in blocks", "equality in blocks")),
    bug("attention, fast: sums of the first block's rows only", "ops.cpu.attention",
        "softmax_stats[:, :, :, rows, 0]", "softmax_stats[:, :, :, : rows.stop - rows.start, 0]",
        by="equality in blocks"),
    bug("SwiGLU, fast: the last rows are left out", "ops.cpu._row_blocks",
        "range(0, len(arrays[0]), ROWS)", "range(0, len(arrays[0]) - ROWS + 1, ROWS)",
        by=("gradients in blocks", "equality in blocks")),
    bug("packed heads: k and v swapped", "ops.cpu._heads",
        "heads[:, G * R : G * R + G], heads[:, G * R + G :]", "heads[:, G * R + G :], heads[:, G * R : G * R + G]",
        by=("forward cpu", "equality")),
    bug("SwiGLU, fast: gate and up swapped", "ops.cpu.swiglu",
        "gate, up =", "up, gate =", by=("forward cpu", "equality")),
    bug("SwiGLU, fast: gradients of gate and up swapped", "ops.cpu.swiglu_back",
        "(dgate, dup) =", "(dup, dgate) =", by=("gradients cpu", "equality")),
    bug("SwiGLU, fast: missing term", "ops.cpu.swiglu_back",
        "slope += 1.0", "pass", by=("gradients cpu", "equality")),
    bug("heads, fast: one-hot not scaled", "ops.cpu.heads_loss",
        "z[pick] -= weight", "z[pick] -= 1.0", by=("gradients cpu", "equality")),
    bug("heads, fast: masked targets leak gradient", "ops.cpu.heads_loss",
        "weight = np.where(target >= 0,", "weight = np.where(True,", by=("gradients cpu", "equality")),
    bug("heads, fast: masked targets leak loss", "ops.cpu.heads_loss",
        "losses[rows, head] = np.where(target >= 0,", "losses[rows, head] = np.where(True,",
        by=("forward cpu", "equality")),
    bug("heads, fast: weight gradient of the last rows only", "ops.cpu.heads_loss",
        "accumulate or start > 0", "accumulate", by=("gradients cpu", "equality")),
    bug("heads, fast: gradient of the last head only", "ops.cpu.heads_loss",
        "dy[rows] += part", "dy[rows] = part", by=("gradients cpu", "equality")),
    bug("heads, fast: every head weighted as head 0", "ops.cpu.heads_loss",
        "scale[rows, head]", "scale[rows, 0]", by=("gradients cpu", "equality")),
    bug("heads, fast: exponential without subtracting the largest", "ops.cpu.heads_loss",
        "z -= z.max(axis=1, keepdims=True)", "pass", by="extremes cpu"),
    bug("AdamW, fast: second moment of g, not of its square", "ops.cpu.adamw",
        "np.multiply(gg, gg, out=aa)", "np.multiply(gg, 1, out=aa)", by="adamw cpu"),
    bug("AdamW, fast: eps inside the root", "ops.cpu.adamw",
        "np.sqrt(aa, out=aa)\n        aa += eps", "aa += eps\n        np.sqrt(aa, out=aa)", by="adamw cpu"),
    bug("AdamW, fast: decay without the rate", "ops.cpu.adamw",
        "rate * decay", "decay", by="adamw cpu"),
    bug("AdamW, fast: first moment not corrected", "ops.cpu.adamw",
        "rate / correct1", "rate", by="adamw cpu"),
    bug("AdamW: bias correction with the next step", "ops.reference.adamw_step",
        "(1 - beta1**step)", "(1 - beta1 ** (step + 1))", by="adamw plain"),
    bug("AdamW: decay inside the gradient (L2)", "ops.reference.adamw_step",
        "m = m +", "g = g + decay * p\n    m = m +", "rate * decay * p - ", "", by="adamw plain"),
    bug("Muon, fast: momentum of Polyak, not of Nesterov", "ops.cpu.muon",
        "u = m * beta\n    u += g", "u = m.copy()", by="muon cpu"),
    bug("Muon, fast: momentum as a mean", "ops.cpu.muon", "m += g", "m += (1 - beta) * g", by="muon cpu"),
    bug("Muon, fast: decay without the rate", "ops.cpu.muon", "1 - rate * decay", "1 - decay", by="muon cpu"),
    bug("Muon, fast: a step of the smaller side", "ops.cpu.muon", "max(move.shape)", "min(move.shape)", by="muon cpu"),
    bug("Muon, fast: norm of the largest singular value's square", "ops.cpu._newton_schulz",
        "float(np.linalg.norm(u))", "float(np.linalg.norm(u)) ** 2", by="muon cpu"),
    bug("Muon, fast: four steps", "ops.cpu._newton_schulz",
        "range(SCHULZ_STEPS)", "range(SCHULZ_STEPS - 1)", by="muon cpu"),
    bug("Muon, fast: the larger Gram matrix of a square one", "ops.cpu._newton_schulz",
        "np.matmul(gram, gram, out=square)", "np.copyto(square, gram)", by="muon cpu"),
    bug("Muon, fast: a tall matrix from the left", "ops.cpu._newton_schulz",
        "np.matmul(x.T, x, out=gram)", "np.matmul(x[: len(gram)], x[: len(gram)].T, out=gram)", by="muon cpu"),
    bug("Muon: momentum of Polyak, not of Nesterov", "ops.reference.muon_step",
        "u = g + beta * m", "u = m", by="muon plain"),
    bug("Muon: decay inside the gradient (L2)", "ops.reference.muon_step",
        "m = beta * m + g", "g = g + decay * p\n    m = beta * m + g", " + decay * p)", ")", by="muon plain"),
    bug("Muon: two coefficients exchanged", "ops.reference.newton_schulz",
        "b * gram + c * gram @ gram", "c * gram + b * gram @ gram", by="muon plain"),
    bug("Muon: a tall matrix comes back lying", "ops.reference.newton_schulz",
        "return x if u.shape[0] <= u.shape[1] else x.T", "return x.reshape(u.shape)", by="muon plain"),
    # The model.
    bug("loss divided by all positions, not by the valid ones", "model.gpt.loss_scale",
        "np.maximum(valid, 1)", "(targets.size // targets.shape[-1])", by=("forward cpu", "step")),
    bug("weights of the heads misapplied", "model.gpt.head_weights",
        "[1.0] + [later_heads] * (config.predict - 1)", "[later_heads] * (config.predict - 1) + [1.0]",
        by=("forward cpu", "step")),
    bug("feed-forward half reads the stream before attention", "model.gpt.feed_forward",
        "return a.x2", "return a.x1", by=("forward cpu", "forward plain", "gradients cpu")),
    bug("residual gradient not cleared", "model.gpt.backward",
        "plan.clear(dx)", "pass", by=("gradients cpu", "gradients plain", "step")),
    bug("backward uses the gain of the other norm", "model.gpt.feed_forward_back",
        "a.rstd2, w.norm2", "a.rstd2, w.norm1", by=("gradients cpu", "gradients plain")),
    bug("backward goes through the layers from the first", "model.gpt.backward",
        "reversed(list(enumerate(plan.layers)))", "enumerate(plan.layers)",
        by=("gradients cpu", "gradients plain")),
    bug("embedding's gradient never accumulates", "model.gpt.backward",
        "dx, tokens, add)", "dx, tokens, False)",
        by=("accumulate", "step")),
    bug("residual projections start as large as the others", "model.parameters.init",
        "std / np.sqrt(2 * config.layers)", "std", by="init"),
    bug("residual projections divided by L, not by 2L", "model.parameters.init",
        "np.sqrt(2 * config.layers)", "np.sqrt(config.layers)", by="init"),
    # GPT-2.
    bug("the gradient of layer norm keeps its mean", "ops.reference.layernorm_backward",
        "- np.mean(dcentred, axis=-1, keepdims=True)", "", by=("layers", "equality, GPT-2")),
    bug("GELU: slope of tanh", "ops.reference.gelu_backward", "tanh * tanh)", "tanh)", by="layers"),
    bug("GELU: slope of the cube", "ops.reference.gelu_backward", "3 * c", "2 * c", by="layers"),
    bug("positions learn from the first sequence alone", "ops.reference.positions_backward",
        "dy.sum(axis=0)", "dy[0]", by="layers"),
    bug("GELU, fast: sigmoid of u", "ops.cpu.gelu",
        "s *= -2 * r * c\n        s -= 2 * r", "s *= -r * c\n        s -= r", by="equality, GPT-2"),
    bug("GELU, fast: slope of the cube", "ops.cpu.gelu_back",
        "6 * r * c", "2 * r * c", by=("equality, GPT-2", "gradients, GPT-2")),
    bug("layer norm, fast: the gradient keeps its mean", "ops.cpu.add_layernorm_back",
        "dx -= dy @ _mean(x)", "pass", by=("equality, GPT-2", "gradients, GPT-2")),
    bug("queries' gradient not divided by sqrt(C)", "model.gpt2.attend_back",
        "_divide_queries(plan.dqkv, plan.config)", "pass", by="gradients, GPT-2"),
    bug("a bias's gradient never accumulates", "ops.cpu._sum_rows",
        "total += ones @ rows", "total[...] = ones @ rows", by="accumulate, GPT-2"),
    bug("the tied embedding forgets what the head sent", "model.gpt2.backward",
        "dx, tokens, True)", "dx, tokens, add)", by="gradients, GPT-2"),
    bug("positions' gradient never accumulates", "model.gpt2.backward",
        "dx, plan.time, add)", "dx, plan.time, False)", by="accumulate, GPT-2"),
    bug("the bias of the other norm", "model.gpt2.feed_forward",
        "w.norm2_bias", "w.norm1_bias", by="gradients, GPT-2"),
    # The optimiser and the step.
    bug("Muon leaves a matrix to AdamW", "model.optim.moved_by_muon",
        "name.endswith(MUON_MATRICES)", "name.endswith(MUON_MATRICES[:3])", by=("muon cpu", "muon plain")),
    bug("Muon forgets to clip", "model.optim.Muon.update", "if factor != 1.0:", "if False:", by="muon cpu"),
    bug("Muon's rate of the next step", "model.optim.Muon.update", "self.step - 1", "self.step", by="muon cpu"),
    bug("decay on norms", "model.optim.AdamW.update",
        "if params[name].ndim == 2 else 0.0", "", by=("adamw cpu", "adamw plain")),
    bug("no decay on the embedding", "model.optim.AdamW.update",
        "params[name].ndim == 2", 'params[name].ndim == 2 and name != "embed"', by="adamw cpu"),
    bug("bias correction with the wrong step", "model.optim.AdamW.update",
        "m, v, self.step,", "m, v, self.step + 1,", by="adamw cpu"),
    bug("rate of the next step", "model.optim.AdamW.update",
        "self.step - 1", "self.step", by="adamw cpu"),
    bug("clipping after the update", "model.optim.AdamW.update",
        "if factor != 1.0:", "if False:", "c.adam_eps, decay)", "c.adam_eps, decay); g *= factor",
        by=("adamw cpu", "step")),
    bug("clipping never happens", "model.optim.clip_factor",
        "limit / norm if", "1.0 if", by="step"),
    bug("warm-up starts at a rate of 0", "model.optim.learning_rate",
        "(step + 1) / config.warmup", "step / config.warmup", by=("schedule", "adamw cpu")),
    bug("cosine goes down and up again", "model.optim.learning_rate",
        "math.cos(math.pi *", "math.cos(2 * math.pi *", by="schedule"),
    bug("cosine counts the warm-up twice", "model.optim.learning_rate",
        "(step - config.warmup) / max", "step / max", by="schedule"),
    bug("norm of the gradient is its square", "model.step.Step.apply",
        "math.sqrt(sum(", "(sum(", by="step"),
    bug("norm of one worker's gradient", "model.step.Step.apply",
        "squares += float(np.vdot(total, total))", "squares += float(np.vdot(other[name], other[name]))",
        by="step"),
    bug("second worker's gradient dropped", "model.step.Step.apply",
        "self.grads[1:]", "self.grads[2:]", by="step"),
    bug("only the last micro-batch counts", "model.step.Step.gradient",
        "accumulate=count > 0", "accumulate=False", by="step"),
    bug("gradients of the step before are kept", "model.step.Step.gradient",
        "accumulate=count > 0", "accumulate=True", by="step"),
    bug("mean of the micro-batches' means", "model.step.Step.gradient",
        "scale = by_head", "scale = loss_scale(targets[part], self.weights) / len(starts)", by="step"),
    # Data, validation, generation, runs.
    bug("head shift off by one", "text.data.batch",
        "1 + k : 1 + k + time", "k : k + time", by="targets"),
    bug("all heads predict the next token", "text.data.batch",
        "1 + k : 1 + k + time", "1 : 1 + time", by="targets"),
    bug("the last row of the text is never drawn", "text.data.draw",
        "rng.integers(0, last + 1, rows)", "rng.integers(0, last, rows)", by="targets"),
    bug("rows ignore where documents start", "text.data.row_starts",
        "or not starts_at_documents(tokens, time):", "or True:", by="targets"),
    bug("validation skips a token at each window's end", "text.data.validation_rows",
        "len(tokens.ids) - 1, time)", "len(tokens.ids) - 1, time + 1)", by=("validation rows", "bits per byte")),
    bug("validation windows overlap", "text.data.validation_rows",
        "len(tokens.ids) - 1, time)", "len(tokens.ids) - 1, time - 1)", by=("validation rows", "bits per byte")),
    bug("validation of documents misses their ends", "text.data.validation_rows",
        "min(end + 1, start + time + 1)", "min(end, start + time + 1)", by="validation rows"),
    bug("validation text starts with the separator", "text.data.split_text",
        "return text[:cut] + before, after", "return text[:cut] + before, separator + after", by="split"),
    bug("validation text is the training text's end", "text.data.split_text",
        "return text[:cut], text[cut:]", "return text, text[cut:]", by="split"),
    bug("nats called bits", "training.datasets.bits_per_byte",
        "nats / math.log(2)", "nats", by="bits per byte"),
    bug("bits per token", "training.datasets.bits_per_byte",
        "scored.sum()", "len(scored)", by="bits per byte"),
    bug("cache: positions start again with each piece", "model.decoder.Decoder._many",
        "self.turn[start:end]", "self.turn[:T]", by="decoder, long pieces"),
    bug("cache: mask forgets what was there before", "model.decoder.Decoder._many",
        "np.arange(start, end)[:, None]", "np.arange(T)[:, None]", by="decoder, long pieces"),
    bug("cache: first piece's values only", "model.decoder.Decoder._many",
        "self.length = end", "self.length = T", by="decoder, long pieces"),
    bug("cache, one token: every token stands at the first position", "model.decoder.Decoder._one",
        "self.turn[position]", "self.turn[0]", by="decoder"),
    bug("cache, one token: the token before is overwritten", "model.decoder.Decoder._one",
        "a.cache[:, position]", "a.cache[:, position - 1]", by="decoder"),
    bug("cache, one token: all heads share one sum", "model.decoder.Decoder._one",
        "np.add.reduce(scores, axis=-1, keepdims=True)", "scores.sum()", by="decoder"),
    bug("cache: queries not paired as RoPE expects", "model.decoder.Decoder.__init__",
        '.qkv"][:, rope.order]', '.qkv"]', by="decoder"),
    bug("cache: gain of the last norm dropped", "model.decoder.Decoder.__init__",
        'p["norm_final"][:, None] * ', "", by="decoder"),
    bug("top-k keeps one more", "generation.generate.filtered_probs",
        "top_k or None", "top_k + 1 if top_k else None", by="sampling"),
    bug("top-p drops the token that reaches p", "generation.generate.filtered_probs",
        "top_p)) + 1", "top_p))", by="sampling"),
    bug("temperature upside down", "generation.generate.filtered_probs",
        "/ temperature", "* temperature", by="sampling"),
    bug("every step draws the same batch", "training.datasets.TextDataset.batch",
        "[self.train.seed, step]", "[self.train.seed, 0]", by="batches differ"),
    bug("the seed is forgotten", "training.datasets.TextDataset.batch",
        "[self.train.seed, step]", "[0, step]", by="batches differ"),
    bug("resume: one step is done twice", "training.loop._train",
        "range(state.step, config.steps)", "range(max(0, state.step - 1), config.steps)", by="resume"),
    bug("resume: the optimiser's step starts again", "training.checkpoint.load",
        'optimizer.step = head["step"]', "optimizer.step = 0", by="resume"),
    bug("resume: moments swapped", "training.checkpoint.load",
        """tensors, f"{kind}.\"""", """tensors, f"{'vm'['mv'.index(kind)]}.\"""", by="resume"),
    bug("resume: the log keeps what was done after the checkpoint", "training.run_folder.trim_log",
        'if entry["step"] <= step', "", by="resume"),
]  # fmt: skip


@contextmanager
def planted(where: str, edits: tuple[str, ...]):
    """Change the source of a function and put the result in its place, everywhere in the library."""
    module, owner, name = _find(where)
    original = vars(owner)[name]
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {where}, expected once"
        source = source.replace(old, new)
    made = {}
    exec(compile(source, f"<{where}, with a bug>", "exec"), vars(module), made)
    places = [(owner, name)]
    for other in [m for key, m in sys.modules.items() if key.split(".")[0] in ("nanoeuler_lib", "nanoeuler_book")] + [
        oracles
    ]:
        places += [(other, key) for key, value in vars(other).items() if value is original]
    listed = ops.FUNCTIONS.get(name) is original
    try:
        cpu._masks.clear()
        for place, key in places:
            setattr(place, key, made[name])
        if listed:
            ops.FUNCTIONS[name] = made[name]
        with ops.use():  # composites are looked up when a version is chosen
            yield
    finally:
        cpu._masks.clear()
        for place, key in places:
            setattr(place, key, original)
        if listed:
            ops.FUNCTIONS[name] = original


def _find(where):
    *path, name = where.split(".")
    if path[-1][0].isupper():
        module = import_module(".".join(["nanoeuler_lib", *path[:-1]]))
        return module, getattr(module, path[-1]), name
    module = import_module(".".join(["nanoeuler_lib", *path]))
    return module, module, name


def run_check(name, folder):
    with np.errstate(all="ignore"):
        CHECKS[name](folder) if name in NEED_FOLDER else CHECKS[name]()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a bug may well overflow
@pytest.mark.parametrize("bug", BUGS, ids=[f"{b.where}: {b.what}" for b in BUGS])
def test_bug_is_caught(bug, tmp_path):
    assert bug.caught_by, "no check is named"
    with planted(bug.where, bug.edits):
        for name in bug.caught_by:
            folder = tmp_path / name
            folder.mkdir()
            with pytest.raises(AssertionError):
                run_check(name, folder)


@pytest.mark.parametrize("name", CHECKS)
def test_library_passes(name, tmp_path):
    run_check(name, tmp_path)


def test_list_of_bugs():
    assert len(BUGS) >= 25
    assert len({(b.where, b.edits) for b in BUGS}) == len(BUGS)
    assert {name for b in BUGS for name in b.caught_by} == set(CHECKS), "a check that catches nothing"


def test_planting_leaves_no_trace():
    from nanoeuler_lib.ops import reference

    before = reference.rmsnorm_backward, cpu.attention_back, ops.active().attention_back
    for where, edits in (
        ("ops.reference.rmsnorm_backward", ("np.mean(", "np.sum(")),
        ("ops.cpu.attention_back", ("dout *= softmax_stats", "pass")),
    ):
        with pytest.raises(ZeroDivisionError), planted(where, edits):
            raise ZeroDivisionError
    assert before == (reference.rmsnorm_backward, cpu.attention_back, ops.active().attention_back)
    assert ops.FUNCTIONS["rmsnorm_backward"] is reference.rmsnorm_backward
    with pytest.raises(AssertionError, match="stands 0 times"), planted("ops.cpu.linear", ("no such text", "")):
        pass
