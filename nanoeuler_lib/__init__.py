"""Build, train and run a GPT-2-class language model written by hand.

    from nanoeuler_lib import GPT, Tokenizer, generate, load, train

gives the five names that most programs need. `load` is `training.checkpoint.load_model`; the other four have the same
name in their modules. Each is imported when it is first asked for, so `import nanoeuler_lib` is quick.

Text, model and CUDA do not know one another; engine = model x kernels; generation = text x model; training = all of it.
Nothing is imported upward, and nothing of this project is imported inside a function, except in `command`.

    (top level)     `errors`, `config`, `files`, `machine` (cores and memory)
    ops             the layers: `reference`, the truth; `cpu`, the same and fast; `plain`; `ops.use` for a reader's own
    cuda            compile and launch a kernel on a GPU, or with `cudacheck` on a CPU; `kernels`: the book's CUDA files
    text            `bpe`, `tokenizer`, `other_tokenizers`, `sources`, `data`, `shards`; `chat_template`, `sft_data`
    model           parameters, plan, forward and backward, optimisers, a step, decoders; `gpt2`: another model
    corpus          other people's text, fetched and cleaned
    engine          the model on a GPU: steps as lists of launches; `device` chooses, `data_parallel`: several GPUs
    generation      `generate` samples from a model, `score` measures bits per byte of a text, `chat` answers
    training        `datasets`, `loop`, `checkpoint`, `run_folder`, `report`; `train`, `sft`, `preferences`, `rewards`
    formats         a run as Hugging Face's folder or a GGUF file; their Llamas and GPT-2s, and llama2.c's, as a run
    command         `nanoeuler`: `cli` runs the subcommands, `arguments` parses and explains their options
    pretrained      checkpoints that come with the package

Beside it, in the same wheel: `konigsberg`, stories whose exact distribution is known; `cudacheck`, CUDA C++ on a CPU
with every access checked; `nanoeuler_book`, what the chapters import and a run does not.
"""

from importlib import import_module

from nanoeuler_lib import _moved as _moved  # old names of modules

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
    """Import a public name when it is first asked for (PEP 562). Raises AttributeError on any other name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _HOMES[name]
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{module}"), there))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
