"""The model on a CPU: parameters, forward and backward pass, optimisers, training step, decoders, gradient check.

`gpt.py` contains the forward and backward pass. They call composites (`ops`), which write into the buffers of a plan
(`plan.py`). `step.py` distributes a training step over cores, `optim.py` has the optimisers, `decoder.py` and
`batch_decoder.py` read one token after another, `gradcheck.py` compares gradients with difference quotients, and
`gpt2.py` is the model that GPT-2's weights need.
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
