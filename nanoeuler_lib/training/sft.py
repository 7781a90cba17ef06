"""Supervised fine-tuning: a base model learns to answer, from examples of what a user says and what to reply.

`text.sft_data` lays examples into rows, of which replies alone count. Everything else, steps, log, checkpoints and
resume, is that of pretraining (`loop`). Chapter 20.
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
    """The same model with markers for who speaks: rows of the embedding and columns of the heads are added.

    multiple: the vocabulary's size is rounded up to a multiple of it; the GPU's kernels want 8. No text has the tokens
    added by that. Logits of the old tokens change by rounding only. If the tokenizer has the markers, both return as
    they are.
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
    """Fine-tune a base model on examples and leave a run folder; the model given is not changed.

    template: what the examples' prompts are made with, stored so that a chat uses the same; info: what else to store;
    options: of `RunOptions`. Raises NanoEulerError when the folder holds a run or no example fits the context.
    """
    options = RunOptions(*options, **named)
    if template not in TEMPLATES:
        raise NanoEulerError(f"template is {short(template)}, expected one of {', '.join(TEMPLATES)}")
    model, tokenizer = extend(*base, multiple=1 if options.device in (None, CPU) else 8)
    if model is base[0]:  # it had the markers: leave the caller's parameters alone
        model = model.copied()
    info = {"source": "examples", "template": template} | (info or {})
    state = first_checkpoint(run, model, tokenizer, config, info, options)
    return start_run(run, state, SFTDataset(examples, held_out, state), options)


def exact_match(model: GPT, tokenizer: Tokenizer, examples: Sequence[Example]) -> np.ndarray:
    """Whether the model's greedy reply to each example's last turn, after the turns before it, is the one given: [n].

    Raises NanoEulerError when an example does not fit the context.
    """
    encoded = [encode(example, tokenizer) for example in examples]
    for example, tokens in zip(examples, encoded, strict=True):
        count_last(tokens, tokenizer, example)
    # by a chat, too
    unsaid = [*markers(tokenizer)[1:], *range(tokenizer.vocab_size, model.config.vocab_size)]
    return greedy_match(model, encoded, unsaid)


def greedy_match(model: GPT, examples: Sequence[Encoded], never: Sequence[int] = ()) -> np.ndarray:
    """Whether greedy decoding would give the tokens that count, all of them, after those before: [n].

    Decided without decoding: it would if each has the largest logit, leaving out the tokens in `never`. Raises
    NanoEulerError when an example does not fit the context.
    """
    matches, context = np.zeros(len(examples), bool), model.config.context
    if (longest := max((len(example.ids) for example in examples), default=0)) > context + 1:
        raise NanoEulerError(f"an example has {longest} tokens, expected at most {context + 1}")
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
    """Examples of a file to train on, examples held out, and the template they are in.

    The first `count` examples (0: all) of the file (`read_examples`) are shuffled, and a share is held out; the same
    arguments give the same examples.
    """
    examples, template = read_examples(file)
    return *parted(examples[: count or None], file, seed, valid_fraction), template
