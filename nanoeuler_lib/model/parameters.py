"""The parameters of a model: their names and shapes, one flat array with a view of each tensor, and initial values."""

from collections.abc import Iterable, Mapping
from functools import singledispatch
from types import SimpleNamespace

import numpy as np

from nanoeuler_lib.config import ModelConfig


@singledispatch
def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each parameter tensor, in the order of their memory. Matrices are [in, out]."""
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
    """Store parameters, gradients or moments: one flat array, at first 0, and a view of each tensor by its name."""

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
        """Return the parameters in the computer's main memory: the object itself; `engine.Parameters` copies them."""
        return self


def layer_tensors(params: Mapping, layer: int, names: Iterable[str]) -> SimpleNamespace:
    """Return tensors of one layer as attributes: `layer_tensors(params, 2, ["qkv"]).qkv` is "layers.2.qkv"."""
    return SimpleNamespace(**{name: params[f"layers.{layer}.{name}"] for name in names})


def init(config: ModelConfig, seed: int = 0, std: float = 0.02, dtype=np.float32) -> Parameters:
    """Return initial parameters: gains 1, biases 0, and normally distributed matrices.

    std: standard deviation of the matrices; for `out` and `down` divided by sqrt(2L), so that their 2L additions to the
    residual stream do not make its variance grow with depth (Radford et al. 2019, section 2.3). Chapter 08.
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
