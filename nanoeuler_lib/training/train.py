"""Begin a run in a new folder: train a model on a text, on shards, by preferences or by rewards.

`sft.fine_tune` begins a run on examples, `loop.resume` goes on with a run of any kind.
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
    """Train a model on a text, or several, and leave a run folder.

    run: a folder that does not hold a run yet; tokenizer: by default one of `model_config.vocab_size` tokens is
    trained on the training part; source: what to call the text in run.json; valid_text: by default the last
    `config.valid_fraction` of each text; options: of `RunOptions`. With `config.valid_fraction` 0 and no valid_text
    nothing is validated. Returns the trained model. Raises NanoEulerError when the folder holds a run, the text is too
    short, the model does not fit in memory, or the loss is not finite.
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
    """Train a model on shards and leave a run folder: `train` for text that lies on the disk.

    valid: as for `ShardDataset`; the rest as for `train`. Raises NanoEulerError as both do.
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
    """Train a model on pairs by DPO and leave a run folder; the model given is the reference and is not changed.

    config: a batch is so many pairs; beta, label_noise, robust: of `preferences.dpo_loss`; template: what prompts were
    made with; info: what else to store; options: of `RunOptions`, on the CPU. Raises NanoEulerError when the folder
    holds a run, the model was not taught to answer, or no pair fits the context.
    """
    options = RunOptions(*options, **named)
    options.expect_cpu("preferences")
    if not (isinstance(beta, float | int) and 0 < beta < 1e6):
        raise NanoEulerError(f"beta is {short(beta)}, expected a number above 0")
    if not (isinstance(label_noise, float | int) and 0 <= label_noise < 0.5):
        raise NanoEulerError(f"label noise is {short(label_noise)}, expected a share from 0 to below 0.5")
    if robust and not label_noise:
        raise NanoEulerError("robust is on and label noise is 0, expected the share of wrong labels too")
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
    """Train a model that answers by rewards and leave a run folder; the model given is not changed.

    base: a model that was taught to answer (`sft.fine_tune`), from which `rewards.kl` keeps it near; config: of its
    `batch` times `accumulate` answers a step; info: what else to store; options: of `RunOptions`, on the CPU, with
    `verifiers`. Raises NanoEulerError when the folder holds a run, when the model was not taught to answer, and as
    `RewardDataset` does.
    """
    options = RunOptions(*options, **named)
    options.expect_cpu("rewards")
    info = {"source": "questions", "template": "plain"} | (info or {}) | {"rewards": rewards.to_dict()}
    state = first_checkpoint(run, base[0].copied(), base[1], config, info, options)
    return start_run(run, state, RewardDataset(problems, held_out, state, options.verifiers or {}), options)


def _checked(run, model_config, options, named):
    """The options of a pretraining run, once its folder and its model have been looked at."""
    options = RunOptions(*options, **named)
    expect_new(Path(run))
    if options.device and options.device.group is not None:
        options.device.group.barrier()  # before any process of the group writes there
    expect_memory(model_config)
    return options


def _split(valid, config):
    """By which rule a part of the data is held out, as a header keeps it; nothing where no part is."""
    return {"split": SPLIT} if valid is None and config.valid_fraction else {}


def expect_memory(config: ModelConfig) -> None:
    """Raises NanoEulerError for a model whose parameters, gradients and first moments do not fit in memory.

    Every optimiser needs these 12 bytes per parameter. Some systems promise memory that they do not have, and kill a
    process that uses it without a message.
    """
    count, there = sum(math.prod(shape) for shape in parameter_shapes(config).values()), memory()
    if there is None or (need := 12 * count) <= there:
        return
    needs, has = (f"{size / 2**30:,.1f} GiB" for size in (need, there))
    raise NanoEulerError(
        f"the model has {count:,} parameters: a run takes {needs} at least, and this machine has {has}: "
        "expected a smaller dim, ffn or vocab_size, or fewer layers"
    )


def fresh(
    run: str | Path,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer,
    info: dict,
    options: RunOptions = DEFAULTS,
) -> Checkpoint:
    """The checkpoint of step 0 of a pretraining run: a model of the configuration's seed, or that of `options.base`.

    info: what the header says beside the settings. Raises NanoEulerError for more tokens than the model has, and for a
    profile on the CPU.
    """
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most vocab_size ({model_config.vocab_size})"
        )
    model = GPT(model_config, seed=config.seed)
    if options.base is not None:
        model.params.flat[...] = options.base.model.params.flat
        info = info | {"base": str(options.base.path)}
    return first_checkpoint(run, model, tokenizer, config, info, options)
