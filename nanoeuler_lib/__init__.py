"""Build, train and run a GPT-2-class language model written by hand.

    from nanoeuler_lib import GPT, Tokenizer, generate, load, train

imports the five names that most programs need. `load` is `training.checkpoint.load_model`; the other four have the same
name in their modules. Each name is imported when it is first used, so `import nanoeuler_lib` is quick.

The packages `text`, `model` and `cuda` do not import one another; `engine` imports `model` and `cuda`, `generation`
imports `text` and `model`, and `training` imports all of these. A package imports only packages listed above it, always
at the top of a module, except in `command`.

    (top level)     `errors`, `config`, `files`, `machine` (cores and memory)
    ops             the layers: `reference` (definitions), `cpu` (fast), `plain` (slow); `ops.use` swaps in a function
    cuda            compile and launch a kernel on a GPU, or with `cudacheck` on a CPU; `kernels`: the book's CUDA files
    text            `bpe`, `tokenizer`, `other_tokenizers`, `sources`, `data`, `shards`; `chat_template`, `sft_data`
    model           parameters, plan, forward and backward, optimisers, a step, decoders; `gpt2`: a second architecture
    corpus          download and clean other people's text
    engine          the model on a GPU: steps as lists of launches; `device` chooses one, `data_parallel` uses several
    generation      `generate` samples from a model, `score` measures bits per byte of a text, `chat` answers
    training        `datasets`, `loop`, `checkpoint`, `run_folder`, `report`; `train`, `sft`, `preferences`, `rewards`
    formats         export runs to Hugging Face and GGUF; import their Llamas and GPT-2s, and models of llama2.c
    command         `nanoeuler`: `cli` runs the subcommands, `arguments` parses and explains their options
    pretrained      checkpoints that come with the package

The same wheel contains `konigsberg` (stories whose exact distribution is known), `cudacheck` (run CUDA C++ on a CPU
with every memory access checked) and `nanoeuler_book` (code that only the chapters import).
"""

import os
import sys
from importlib import import_module

from nanoeuler_lib import _moved as _moved  # makes the old names of modules work

if sys.platform == "darwin":  # threadpoolctl does not limit the threads of Apple's BLAS, which reads this at its start
    os.environ.setdefault("VECLIB_MAXIMUM_THREADS", "1")

__version__ = "0.2.0"
_HOMES = {  # public name -> module and name there
    "GPT": ("model", "GPT"),
    "Tokenizer": ("text.tokenizer", "Tokenizer"),
    "generate": ("generation.generate", "generate"),
    "load": ("training.checkpoint", "load_model"),
    "train": ("training.train", "train"),
}
__all__ = ["GPT", "Tokenizer", "generate", "load", "train"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562). Raises AttributeError on any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOMES[name]
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{module}"), there))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
