"""Functions for supervised fine-tuning, which trains a base model to answer from examples of prompts and replies.

`text.sft_data` lays examples into rows in which only replies count for the loss. Everything else is as in pretraining
(`loop`). Chapter 20.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine.device import CPU
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.model import GPT, init
from nanoeuler_lib.text.chat_template import ASSISTANT, TEMPLATES, USER, markers
from nanoeuler_lib.text.sft_data import Encoded, Example, count_last, encode, read_examples, row_length, rows
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.datasets import SFTDataset, parted
from nanoeuler_lib.training.loop import first_checkpoint, start_run
from nanoeuler_lib.training.run_options import RunOptions

# ---- From a base model to one that answers


def extend(model: GPT, tokenizer: Tokenizer, multiple: int = 1) -> tuple[GPT, Tokenizer]:
    """Add the chat markers to a model and its tokenizer.

    The embedding gets new rows and the heads get new columns; the logits of the old tokens
    change only by rounding. multiple: the vocabulary size is rounded up to a multiple of
    it, with tokens that no text contains; the GPU's kernels need 8. If the tokenizer has
    the markers already, both are returned unchanged. Chapter 20.
    """
    names = list(tokenizer.special_tokens)
    names += [name for name in (END_OF_TEXT, USER, ASSISTANT) if name not in names]
    if len(names) == len(tokenizer.special_tokens):
        return model, tokenizer
    tokenizer = Tokenizer(tokenizer.merges, names, tokenizer.byte_order)
    old = model.config
    size = -(-max(old.vocab_size, tokenizer.vocab_size) // multiple) * multiple
    config = ModelConfig.from_dict(old.to_dict() | {"vocab_size": size})
    params = init(config, dtype=model.dtype)
    for name, p in model.params.items():
        if name == "heads":  # [D, K V]: each head has its own V columns
            wide = params[name].reshape(config.dim, config.predict, config.vocab_size)
            wide[..., : old.vocab_size] = p.reshape(config.dim, config.predict, old.vocab_size)
        else:
            params[name][: len(p)] = p
    return GPT(config, params), tokenizer


def fine_tune(
    run: str | Path,
    base: tuple[GPT, Tokenizer],
    examples: Iterable[Example],
    held_out: Iterable[Example],
    config: TrainConfig,
    template: str = "plain",
    info: dict | None = None,
    *options,
    **named,
) -> GPT:
    """Fine-tune a copy of a base model on examples, write a run folder, and return the trained model.

    base: model and tokenizer; template: stored so that a chat uses the same one; info: added to the header; options: of
    `RunOptions`. Raises NanoEulerError if the folder already has a run, or the examples do not fit the context.
    """
    options = RunOptions(*options, **named)
    if template not in TEMPLATES:
        raise NanoEulerError(f"template must be one of {', '.join(TEMPLATES)}, got {short(template)}")
    model, tokenizer = extend(*base, multiple=1 if options.device in (None, CPU) else 8)
    if model is base[0]:  # `extend` did not copy it, and the caller's parameters must not change
        model = model.copied()
    info = {"source": "examples", "template": template} | (info or {})
    state = first_checkpoint(run, model, tokenizer, config, info, options)
    return start_run(run, state, SFTDataset(examples, held_out, state), options)


def exact_match(model: GPT, tokenizer: Tokenizer, examples: Sequence[Example]) -> np.ndarray:
    """Return for each example whether the model's greedy reply equals its last: [n]. Raises as `greedy_match` does."""
    encoded = [encode(example, tokenizer) for example in examples]
    for example, tokens in zip(examples, encoded, strict=True):
        count_last(tokens, tokenizer, example)
    # tokens that a chat never generates either
    unsaid = [*markers(tokenizer)[1:], *range(tokenizer.vocab_size, model.config.vocab_size)]
    return greedy_match(model, encoded, unsaid)


def greedy_match(model: GPT, examples: Sequence[Encoded], never: Sequence[int] = ()) -> np.ndarray:
    """Return for each example whether greedy decoding would generate all its counted tokens: [n].

    One forward pass decides it. never: tokens left out. Raises NanoEulerError if an example does not fit the context.
    """
    matches, context = np.zeros(len(examples), bool), model.config.context
    if (longest := max((len(example.ids) for example in examples), default=0)) > context + 1:
        raise NanoEulerError(f"an example must have at most {context + 1} tokens, got {longest}")
    for start in range(0, len(examples), 16):
        some = examples[start : start + 16]
        inputs, targets = rows(some, row_length(some, context), 1)
        logits = model.logits(inputs)
        logits[..., list(never)] = -np.inf
        same = (logits.argmax(axis=-1) == targets[..., 0]) | (targets[..., 0] < 0)
        matches[start : start + 16] = same.all(axis=1)
    return matches


# ---- Where examples come from


def examples_of(
    file: str | Path, count: int = 0, seed: int = 0, valid_fraction: float = 0.1
) -> tuple[list[Example], list[Example], str]:
    """Read examples from a file (`read_examples`): examples to train on, examples held out, and their template.

    The first `count` (0: all) are split by `parted`. Raises NanoEulerError as `read_examples` and `parted` do.
    """
    examples, template = read_examples(file)
    return *parted(examples[: count or None], file, seed, valid_fraction), template
