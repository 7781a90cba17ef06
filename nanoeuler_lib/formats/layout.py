"""The same numbers in another order: what lies between this library's parameters and those of a Llama elsewhere.

Matrices here are [in, out], there [out, in]; q, k and v are packed here, as are gate and up; the two halves of a head
that RoPE turns lie apart here and in Hugging Face's files, and next to each other in llama.cpp's and llama2.c's. All
of this is transposing, cutting and permuting: no number changes. Rounding to eight bits changes them. Chapter 34.
"""

from collections.abc import Mapping

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import memory
from nanoeuler_lib.model import parameter_shapes


def to_pairs(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection to q or k, halves to pairs: row 2j is the old j, row 2j+1 the old j + C/2.

    w: [heads * C, D], each head's C rows in halves; heads: H for q, G for k. Returns the same shape, a copy.
    """
    halves = w.reshape(heads, 2, -1, w.shape[-1])  # [heads, half, C/2, D]
    return halves.swapaxes(1, 2).reshape(w.shape)  # [heads, C/2, half, D]


def to_halves(w: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of `to_pairs`: row j is the old 2j, row j + C/2 the old 2j+1.

    w: [heads * C, D], each head's C rows in pairs. Returns the same shape, a copy.
    """
    pairs = w.reshape(heads, -1, 2, w.shape[-1])  # [heads, C/2, half, D]
    return pairs.swapaxes(1, 2).reshape(w.shape)  # [heads, half, C/2, D]


def quantise(w: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Round a matrix to eight bits, each group of neighbours with a scale of its own.

    w: [out, in]; group: how many share a scale: `in` (one a row), `w.size` (one a tensor), or a divisor of them, as
    llama2.c's 64. Returns codes int8 [n, group], -127 to 127, and scales float32 [n, 1]; w is about codes * scales.
    """
    groups = w.reshape(-1, group).astype(np.float32)  # [n, group]
    scales = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)  # [n, 1]
    codes = np.rint(groups / np.where(scales > 0, scales, 1))  # a group of zeros has scale 0
    return codes.astype(np.int8), scales


def dequantise(codes: np.ndarray, scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The float32 matrix of a shape that codes [n, group] and scales [n, 1] of `quantise` stand for."""
    return (codes * scales.astype(np.float32)).reshape(shape)


def llama_views(params: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Hugging Face's name of each tensor of a Llama, and the view [out, in] of our parameters that it is.

    Reading the views exports head 0 and all below it; writing into them imports. Tensors: embed [V, D]; for each layer
    q [HC, D], k and v [GC, D], o [D, HC], gate and up [F, D], down [D, F], two norms [D]; a norm [D]; lm_head [V, D].
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
    """Name and shape of each tensor of `llama_views`; no memory is taken."""
    nothing = {n: np.broadcast_to(np.float32(0), shape) for n, shape in parameter_shapes(config).items()}
    return {name: view.shape for name, view in llama_views(nothing, config).items()}


def is_tied(params: Mapping[str, np.ndarray], config: ModelConfig) -> bool:
    """Whether head 0 is the embedding, number by number: then files elsewhere hold it once."""
    return np.array_equal(params["embed"], params["heads"][:, : config.vocab_size].T)


def expect_memory(config: ModelConfig, source) -> None:
    """Raises NanoEulerError where the parameters of a model would not fit into this machine's memory as float32."""
    needed = 4 * sum(int(np.prod(shape, dtype=object)) for shape in parameter_shapes(config).values())
    if (there := memory()) is not None and needed > there:
        raise NanoEulerError(
            f"{source}: the weights take {needed / 1e9:,.1f} GB as float32, expected at most the {there / 1e9:,.1f} GB "
            "of this machine"
        )
