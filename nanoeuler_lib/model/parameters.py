"""The parameters of a model: names, shapes, and one flat array with a view of each tensor."""

from collections.abc import Iterable, Mapping
from functools import singledispatch
from types import SimpleNamespace

import numpy as np

from nanoeuler_lib.config import ModelConfig


@singledispatch
def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of each parameter tensor, in the order in which they lie in memory. Matrices are [in, out]."""
    D, F = config.dim, config.ffn
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, D)}
    for layer in range(config.layers):
        shapes |= {
            f"layers.{layer}.norm1": (D,),
            f"layers.{layer}.qkv": (D, config.qkv_dim),
            f"layers.{layer}.out": (config.heads * config.head_dim, D),
            f"layers.{layer}.norm2": (D,),
            f"layers.{layer}.gate_up": (D, 2 * F),
            f"layers.{layer}.down": (F, D),
        }
    return shapes | {"norm_final": (D,), "heads": (D, config.predict * config.vocab_size)}


class Parameters(Mapping):
    """All parameters (or their gradients, or moments) of a model: one flat array, and a named view of each tensor.

    `p["layers.0.qkv"]` is a view, so changing it changes `p.flat`. Filled with zeros at first.
    """

    def __init__(self, config: ModelConfig, dtype=np.float32):
        shapes = parameter_shapes(config)
        self.flat = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()), dtype)
        self._views, start = {}, 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            self._views[name] = self.flat[start : start + size].reshape(shape)
            start += size

    def __getitem__(self, name):
        return self._views[name]

    def __iter__(self):
        return iter(self._views)

    def __len__(self):
        return len(self._views)

    def host(self) -> "Parameters":
        """The parameters in this machine's memory: here the object itself. (`engine.Parameters` copies.)"""
        return self


def layer_tensors(params: Mapping, layer: int, names: Iterable[str]) -> SimpleNamespace:
    """Return the tensors of a layer by the last part of their names: `layer_tensors(params, 2, ["qkv"]).qkv`."""
    return SimpleNamespace(**{name: params[f"layers.{layer}.{name}"] for name in names})


def init(config: ModelConfig, seed: int = 0, std: float = 0.02, dtype=np.float32) -> Parameters:
    """Fresh parameters: gains 1, biases 0, matrices N(0, std), those that write to the stream divided by sqrt(2L).

    The 2L half-blocks each add to the residual stream; with the division its variance does not grow with depth
    (Radford et al. 2019, section 2.3). Chapter 08.
    """
    rng = np.random.default_rng(seed)
    params = Parameters(config, dtype)
    for name, p in params.items():
        if p.ndim == 1:
            p[...] = 0 if name.endswith("_bias") else 1
        else:
            writes_residual = name.endswith((".out", ".down"))
            p[...] = rng.standard_normal(p.shape) * (std / np.sqrt(2 * config.layers) if writes_residual else std)
    return params
