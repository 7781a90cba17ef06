"""The model on a GPU: parameters, buffers and steps in its memory, and lists of launches that run there.

`GPT` has the face of `model.GPT`, takes and returns NumPy's arrays; `Step` that of `model.step.Step`. What they run is
`model.forward` and `model.backward` themselves, on a plan whose composites write a list (`program.py`): once for each
shape, and on a card from its second run on as one CUDA graph. Without a GPU the same lists run through the CPU runtime,
where every access is checked: slow, for small models, and how the tests know the engine.

precision: "float32"; "tf32", whose products round float32 to 10 bits behind the point; "bfloat16", whose products
multiply bfloat16 copies of the weights, with everything that adds up over steps or layers in float32: the weights that
the optimiser moves, its moments, gradients of weights, the residual stream, norms and losses. Chapter 29.

`program.py` writes the lists; `flash.py`, `flash_backward.py` and `embedding.py` are its larger launches. `memory.py`:
parameters, moments and the plan of all buffers. `gpt.py`: the model. `step.py`: a training step, and where its time
goes. `decode.py`: one token after another. `device.py` chooses where a model runs. `unfused.py` and `trial.py`: a
reader's kernels in the engine.
"""

from nanoeuler_lib.engine.decode import Decoder
from nanoeuler_lib.engine.gpt import GPT
from nanoeuler_lib.engine.memory import AdamW, Parameters, bytes_needed
from nanoeuler_lib.engine.step import Step
from nanoeuler_lib.engine.trial import use

__all__ = ["GPT", "AdamW", "Decoder", "Parameters", "Step", "bytes_needed", "use"]
