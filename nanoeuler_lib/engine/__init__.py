"""The GPU engine: the model's parameters, buffers and training steps in GPU memory, run as lists of kernel launches.

`GPT` has the same methods as `model.GPT` and takes and returns NumPy arrays; `Step` has the interface of
`model.step.Step`. Both call `model.forward` and `model.backward` on a plan whose operations do not compute but record
launches in a list (`program.py`). A list is recorded once for each shape; on a GPU it is a CUDA graph from its second
run on. Without a GPU, the same lists run in the CPU runtime, which checks every memory access. That is slow and meant
for small models; the tests use it.

precision: "float32"; "tf32", whose products round float32 to 10 mantissa bits; "bfloat16" and "float16", whose products
multiply copies of the weights in 16 bits. Everything that is summed over steps or layers is float32 in all of them: the
weights that the optimiser updates, its moments, gradients of weights, the residual stream, norms and losses. float16 is
for GPUs without bfloat16; its gradients need a loss scale (`loss_scale.py`). Chapter 29.

`program.py` records the lists; `flash.py`, `flash_backward.py` and `embedding.py` hold its larger launches.
`memory.py`: parameters, moments and the plan of all buffers. `gpt.py`: the model. `step.py`: a training step and its
profile. `decode.py`: generation, token by token. `device.py` chooses where a model runs. `unfused.py` and `trial.py`
run a reader's own kernels in the engine.
"""

from nanoeuler_lib.engine.decode import Decoder
from nanoeuler_lib.engine.gpt import GPT
from nanoeuler_lib.engine.memory import AdamW, Parameters, bytes_needed
from nanoeuler_lib.engine.step import Step
from nanoeuler_lib.engine.trial import use

__all__ = ["GPT", "AdamW", "Decoder", "Parameters", "Step", "bytes_needed", "use"]
