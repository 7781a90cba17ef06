"""8-bit weights: store each matrix as integers from -127 to 127, with one float32 scale per output. Chapter 34.

W [in, out] becomes q [in, out] in int8 and s [out] in float32, where W is approximately q s. The scale s is the largest
magnitude in the column divided by 127, so the error of a weight is at most s / 2. The embedding has a scale for each
row, because its rows are looked up. Gains stay float32. The files are a quarter of the size; products are computed in
float32 as before. This is row-wise absmax quantization (Dettmers et al., "LLM.int8()", 2022, section 2.1), applied only
to weights.
"""

from collections.abc import Mapping

import numpy as np

MOST = 127
SCALE = ".scale"


def _outputs(name: str) -> int:
    """Return the axis that has one scale per entry: rows of the embedding, columns of other matrices."""
    return 0 if name == "embed" else 1


def scale_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the scale of each matrix. shapes: tensor shapes by name, from `parameter_shapes`."""
    return {f"{name}{SCALE}": (shape[_outputs(name)],) for name, shape in shapes.items() if len(shape) == 2}


def quantized(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert matrices, by name, to int8, each with a float32 vector `NAME.scale`; vectors stay float32."""
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
    """Convert the tensors of `quantized` back to float32 parameters by name; each weight is q s, rounded once."""
    found = {}
    for name, p in tensors.items():
        if name.endswith(SCALE):
            continue
        if p.ndim == 2:
            p = p.astype(np.float32) * np.expand_dims(tensors[f"{name}{SCALE}"], 1 - _outputs(name))
        found[name] = p
    return found
