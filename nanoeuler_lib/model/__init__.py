"""The model on a CPU: parameters, plan, one straight line forward and back, optimisers, a step, a decoder.

`gpt.py` is that line. It calls composites (`ops`), which write into the buffers of a plan (`plan.py`); `step.py`
spreads a step over cores; `gradcheck.py` asks whether each gradient is a slope. `gpt2.py` is the line of GPT-2.
"""

from nanoeuler_lib._moved import name_of
from nanoeuler_lib.model.gpt import GPT, RowLoss, backward, forward, head_weights, loss_scale
from nanoeuler_lib.model.gpt2 import GPT2
from nanoeuler_lib.model.parameters import Parameters, init, layer_tensors, parameter_shapes

__all__ = [
    "GPT",
    "GPT2",
    "Parameters",
    "RowLoss",
    "backward",
    "forward",
    "head_weights",
    "init",
    "layer_tensors",
    "loss_scale",
    "parameter_shapes",
]


def __getattr__(name: str) -> object:
    return name_of(f"model.{name}")
