"""Convert between the layout of this library's parameters and the layouts of Llama weights in other programs.

Our matrices are [in, out], theirs are [out, in]. We pack q, k and v into one matrix, and gate and up into another. The
two coordinates of a RoPE pair are C/2 apart in our matrices and in Hugging Face's files, but next to each other in the
files of llama.cpp and llama2.c. Transposing, splitting and permuting change no number; rounding to eight bits
(`quantise`) does. Chapter 34.
"""

from collections.abc import Mapping

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import memory
from nanoeuler_lib.model import parameter_shapes


def to_pairs(w: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves to pairs: row j becomes 2j, j + C/2 becomes 2j+1.

    w: [heads * C, D], the projection to q or k with each head's rows in halves; heads: H
    for q, G for k. Returns a copy of the same shape. Chapter 34.
    """
    halves = w.reshape(heads, 2, -1, w.shape[-1])  # [heads, half, C/2, D]
    # Without the copy, the result for C = 2 would be a view of w.
    return halves.swapaxes(1, 2).copy().reshape(w.shape)  # [heads, C/2, half, D]


def to_halves(w: np.ndarray, heads: int) -> np.ndarray:
    """Return w [heads * C, D] with each head's rows reordered from pairs to halves, the inverse of `to_pairs`."""
    pairs = w.reshape(heads, -1, 2, w.shape[-1])  # [heads, C/2, half, D]
    return pairs.swapaxes(1, 2).reshape(w.shape)  # [heads, half, C/2, D]


def quantise(w: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to eight bits, with one scale for each group of neighbouring numbers.

    w: [out, in]; group: numbers per scale: `in` for one scale per row, `w.size` for one
    per tensor, or a divisor of w.size, such as 64 in llama2.c. Returns codes int8
    [n, group], -127 to 127, and scales float32 [n, 1]; w is approximately codes * scales.
    Chapter 34.
    """
    groups = w.reshape(-1, group).astype(np.float32)  # [n, group]
    scales = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)  # [n, 1]
    codes = np.rint(groups / np.where(scales > 0, scales, 1))  # a group of zeros has scale 0
    return codes.astype(np.int8), scales


def dequantise(codes: np.ndarray, scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the float32 matrix codes * scales in a given shape; codes [n, group], scales [n, 1]: see `quantise`."""
    return (codes * scales.astype(np.float32)).reshape(shape)


def llama_views(params: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Return a view of our parameters for each tensor of a Llama, by Hugging Face's name and in its layout [out, in].

    Reading the views exports the model with head 0; writing into them imports a model. Tensors: embed [V, D]; for each
    layer q [HC, D], k and v [GC, D], o [D, HC], gate and up [F, D], down [D, F], two norms [D]; a final norm [D];
    lm_head [V, D].
    """
    H, G, C, V = config.heads, config.kv_heads, config.head_dim, config.vocab_size
    views = {"model.embed_tokens.weight": params["embed"]}
    for i in range(config.layers):
        w = {name: params[f"layers.{i}.{name}"].T for name in ("qkv", "out", "gate_up", "down")}
        q, k, v = np.split(w["qkv"], [H * C, (H + G) * C])  # [(H+2G)C, D]
        gate, up = np.split(w["gate_up"], 2)  # [2F, D]
        tensors = {
            "input_layernorm": params[f"layers.{i}.norm1"], "self_attn.q_proj": q, "self_attn.k_proj": k,
            "self_attn.v_proj": v, "self_attn.o_proj": w["out"],
            "post_attention_layernorm": params[f"layers.{i}.norm2"], "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": w["down"],
        }  # fmt: skip
        views |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in tensors.items()}
    return views | {"model.norm.weight": params["norm_final"], "lm_head.weight": params["heads"][:, :V].T}


def llama_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each tensor of `llama_views` without allocating parameters."""
    nothing = {n: np.broadcast_to(np.float32(0), shape) for n, shape in parameter_shapes(config).items()}
    return {name: view.shape for name, view in llama_views(nothing, config).items()}


def is_tied(params: Mapping[str, np.ndarray], config: ModelConfig) -> bool:
    """Return whether head 0 equals the embedding exactly; other programs then store the matrix only once."""
    return np.array_equal(params["embed"], params["heads"][:, : config.vocab_size].T)


def expect_memory(config: ModelConfig, source) -> None:
    """Raise NanoEulerError if a model's float32 parameters do not fit into memory; source: named in the message."""
    needed = 4 * sum(int(np.prod(shape, dtype=object)) for shape in parameter_shapes(config).values())
    if (there := memory()) is not None and needed > there:
        raise NanoEulerError(
            f"{source}: the weights must fit into this machine's {there / 1e9:,.1f} GB, got {needed / 1e9:,.1f} GB as "
            "float32"
        )
