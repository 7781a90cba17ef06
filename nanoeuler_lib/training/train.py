"""Functions that begin a run in a new folder: on a text, on shards, with preferences, or with rewards.

`sft.fine_tune` begins a run on examples, and `loop.resume` resumes a run of any kind.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from nanoeuler_lib.config import ModelConfig, RewardConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.machine import memory
from nanoeuler_lib.model import GPT, parameter_shapes
from nanoeuler_lib.text import data
from nanoeuler_lib.text.chat_template import markers
from nanoeuler_lib.text.sft_data import Pair
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import SPLIT, ShardDataset, TextDataset, split_text
from nanoeuler_lib.training.loop import first_checkpoint, start_run
from nanoeuler_lib.training.preferences import PairsDataset
from nanoeuler_lib.training.rewards import Problem, RewardDataset
from nanoeuler_lib.training.run_folder import expect_new
from nanoeuler_lib.training.run_options import DEFAULTS, RunOptions


def train(
    run: str | Path,
    text: str | Sequence[str],
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer | None = None,
    source: str = "text",
    valid_text: str | None = None,
    *options,
    **named,
) -> GPT:
    """Train a new model on one or several texts, write a run folder, and return the trained model.

    run: a folder that has no run yet; tokenizer: by default, one with `model_config.vocab_size` tokens is trained;
    source: name of the text in run.json; valid_text: by default, the last `config.valid_fraction` of each text (0: no
    validation); options: of `RunOptions`. Raises NanoEulerError if the folder already has a run, the text is too short,
    the model does not fit in memory, or the loss is not finite. Chapter 12.
    """
    options = _checked(run, model_config, options, named)
    split = _split(valid_text, config)
    part, valid = split_text(text, valid_text, config, split.get("split"))
    if tokenizer is None:
        special = (END_OF_TEXT,) if data.SEPARATOR in part else ()
        tokenizer = Tokenizer.train(part, model_config.vocab_size, special_tokens=special)
    info = {"source": source, "floor_bits_per_byte": options.floor and options.floor(valid)} | split
    state = fresh(run, model_config, config, tokenizer, info, options)
    return start_run(run, state, TextDataset(part, valid, state), options)


def pretrain(
    run: str | Path,
    shards: Shards,
    valid: Sequence[Shards] | None,
    model_config: ModelConfig,
    config: TrainConfig,
    *options,
    **named,
) -> GPT:
    """Train a new model on shards, which are read from the disk, write a run folder, and return the trained model.

    The arguments are those of `train` and `ShardDataset`. Raises NanoEulerError as they do.
    """
    options = _checked(run, model_config, options, named)
    info = {"source": str(shards.path)} | _split(valid, config)
    state = fresh(run, model_config, config, shards.tokenizer, info, options)
    return start_run(run, state, ShardDataset(shards, valid, state), options)


def prefer(
    run: str | Path,
    base: tuple[GPT, Tokenizer],
    pairs: Iterable[Pair],
    held_out: Iterable[Pair],
    config: TrainConfig,
    beta: float = 0.1,
    label_noise: float = 0.0,
    robust: bool = False,
    template: str = "plain",
    info: dict | None = None,
    *options,
    **named,
) -> GPT:
    """Train a copy of a chat model on preference pairs (DPO), write a run folder, and return the trained model.

    base: chat model and tokenizer; the model is also the reference, and is not changed. config: its `batch` counts
    pairs; beta, label_noise, robust: of `preferences.dpo_loss`; template: of the prompts; info: added to the header;
    options: of `RunOptions`, on the CPU. Raises NanoEulerError if the folder already has a run, an argument is out of
    range, the tokenizer has no chat markers, or no pair fits the context. Chapter 21.
    """
    options = RunOptions(*options, **named)
    options.expect_cpu("preferences")
    if not (isinstance(beta, float | int) and 0 < beta < 1e6):
        raise NanoEulerError(f"--beta must be a number above 0, got {short(beta)}")
    if not (isinstance(label_noise, float | int) and 0 <= label_noise < 0.5):
        raise NanoEulerError(f"--label-noise must be at least 0 and below 0.5, got {short(label_noise)}")
    if robust and not label_noise:
        raise NanoEulerError("--robust needs --label-noise above 0, the assumed fraction of swapped labels")
    model, tokenizer = base
    markers(tokenizer)
    settings = {"beta": beta, "label_noise": label_noise, "robust": robust, "template": template}
    info = {"source": "pairs"} | settings | (info or {})
    state = first_checkpoint(run, model.copied(), tokenizer, config, info, options)
    return start_run(run, state, PairsDataset(pairs, held_out, state), options)


def reinforce(
    run: str | Path,
    base: tuple[GPT, Tokenizer],
    problems: Sequence[Problem],
    held_out: Sequence[Problem],
    rewards: RewardConfig,
    config: TrainConfig,
    info: dict | None = None,
    *options,
    **named,
) -> GPT:
    """Train a copy of a chat model with rewards (GRPO), write a run folder, and return the trained model.

    base: chat model (`sft.fine_tune`) and tokenizer; the model is also the reference of the KL penalty `rewards.kl`.
    config: a step has `batch` times `accumulate` answers; info: added to the header; options: of `RunOptions`, on the
    CPU, with `verifiers`. Raises NanoEulerError if the folder already has a run, the tokenizer has no chat markers, or
    as `RewardDataset` does. Chapter 22.
    """
    options = RunOptions(*options, **named)
    options.expect_cpu("rewards")
    info = {"source": "questions", "template": "plain"} | (info or {}) | {"rewards": rewards.to_dict()}
    state = first_checkpoint(run, base[0].copied(), base[1], config, info, options)
    return start_run(run, state, RewardDataset(problems, held_out, state, options.verifiers or {}), options)


def _checked(run, model_config, options, named):
    options = RunOptions(*options, **named)
    expect_new(Path(run))
    if options.device and options.device.group is not None:
        options.device.group.barrier()  # before any process of the group writes there
    expect_memory(model_config)
    return options


def _split(valid, config):
    """Return the rule that holds out validation data, for the header; {} if no data is held out."""
    return {"split": SPLIT} if valid is None and config.valid_fraction else {}


def expect_memory(config: ModelConfig) -> None:
    """Raise NanoEulerError if a model's parameters, gradients and first moments do not fit in memory.

    Every optimiser needs these 12 bytes per parameter. Some systems allocate memory they lack, then kill the process.
    """
    count, there = sum(math.prod(shape) for shape in parameter_shapes(config).values()), memory()
    if there is None or (need := 12 * count) <= there:
        return
    needs, has = (f"{size / 2**30:,.1f} GiB" for size in (need, there))
    raise NanoEulerError(
        f"the model must fit in the {has} of memory of this machine, got {count:,} parameters, which need at least "
        f"{needs}: use a smaller dim, ffn or vocab_size, or fewer layers"
    )


def fresh(
    run: str | Path,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer,
    info: dict,
    options: RunOptions = DEFAULTS,
) -> Checkpoint:
    """Return the checkpoint of step 0 of a pretraining run: a model initialised from the seed, or `options.base`'s.

    info: for the header. Raises NanoEulerError as `first_checkpoint` does, or if the tokenizer has too many tokens.
    """
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer must have at most vocab_size ({model_config.vocab_size}) tokens, got {tokenizer.vocab_size}"
        )
    model = GPT(model_config, seed=config.seed)
    if options.base is not None:
        model.params.flat[...] = options.base.model.params.flat
        info = info | {"base": str(options.base.path)}
    return first_checkpoint(run, model, tokenizer, config, info, options)
