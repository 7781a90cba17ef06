"""Weights in a byte each: a matrix as whole numbers from -127 to 127, and a scale for each of its outputs.

W [in, out] becomes q [in, out] of int8 and s [out] of float32, with W about q s: s is the largest weight of the column
by 127, so no weight is off by more than half of that. Of the embedding, whose rows are looked up, each row has its
scale. Gains stay float32. A quarter of the bytes; products are computed with float32 as before. The scheme is row-wise
absmax quantization (Dettmers et al., "LLM.int8()", 2022, section 2.1), of weights alone.
"""

from collections.abc import Mapping

import numpy as np

MOST = 127
SCALE = ".scale"


def _outputs(name: str) -> int:
    """The axis whose entries have a scale each: the rows of the embedding, the columns of other matrices."""
    return 0 if name == "embed" else 1


def scale_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Name and shape of the scales of tensors of these names and shapes, as `parameter_shapes` gives them."""
    return {f"{name}{SCALE}": (shape[_outputs(name)],) for name, shape in shapes.items() if len(shape) == 2}


def quantized(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters by name -> the same names, matrices as int8, and `NAME.scale` for each matrix, float32."""
    found = {}
    for name, p in params.items():
        p = np.asarray(p, np.float32)
        if p.ndim == 1:
            found[name] = p
            continue
        largest = np.abs(p).max(axis=1 - _outputs(name), keepdims=True)
        scale = np.where(largest > 0, largest / np.float32(MOST), np.float32(1))
        found[name] = np.rint(p / scale).clip(-MOST, MOST).astype(np.int8)
        found[f"{name}{SCALE}"] = scale.reshape(-1)
    return found


def restored(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `quantized` gave -> parameters by name in float32, each weight q s rounded once."""
    found = {}
    for name, p in tensors.items():
        if name.endswith(SCALE):
            continue
        if p.ndim == 2:
            p = p.astype(np.float32) * np.expand_dims(tensors[f"{name}{SCALE}"], 1 - _outputs(name))
        found[name] = p
    return found
