"""Pretraining: from a text, or from shards on the disk, to a run folder (`run_folder`) with a trained model in it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from nanoeuler_lib import world
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine.device import CPU, Device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.machine import cores, memory
from nanoeuler_lib.model import GPT, parameter_shapes
from nanoeuler_lib.model.optim import optimizer_of
from nanoeuler_lib.text import data
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.training.datasets import SPLIT, ShardDataset, TextDataset, split_text
from nanoeuler_lib.training.loop import expect_launches, start_run
from nanoeuler_lib.training.run_folder import expect_new


def train(
    run: str | Path,
    text: str | Sequence[str],
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer | None = None,
    source: str = "text",
    valid_text: str | None = None,
    quiet: bool = False,
    workers: int | None = None,
    on_entry: Callable[[dict], None] | None = None,
    files: dict[str, str] | None = None,
    device: Device = CPU,
    profile: int = 0,
    base: checkpoint.Checkpoint | None = None,
) -> GPT:
    """Train a model on a text, or several, and leave a run folder.

    run: a folder that does not hold a run yet; tokenizer: by default one of `model_config.vocab_size` tokens is
    trained on the training part; source: what to call the text in run.json; valid_text: by default the last
    `config.valid_fraction` of each text; workers: threads, by default one for each core (another number gives other
    rounding); on_entry: called with each entry of the log (`report.Live` draws them); files: where the texts were read
    from, kept for whoever resumes the run; device: where it runs (`device.choose`); profile: on a GPU, time every
    launch of so many steps, from the second on, and say where the time goes; base: a model to begin with, of this shape
    and `tokenizer`. With `config.valid_fraction` 0 and no valid_text nothing is validated.
    Returns the trained model. Raises NanoEulerError when the folder holds a run, the text is too short, the model does
    not find room in memory, or the loss is not finite.
    """
    run = Path(run)
    _expect_new(run, device)
    expect_memory(model_config)
    kept = _kept(files, valid_text, config)
    part, valid = split_text(text, valid_text, config, kept.get("split"))
    if tokenizer is None:
        special = (END_OF_TEXT,) if data.SEPARATOR in part else ()
        tokenizer = Tokenizer.train(part, model_config.vocab_size, special_tokens=special)
    info = {"source": source, "workers": workers or cores(), "floor_bits_per_byte": _floor(valid)}
    info |= kept
    state = fresh(run, model_config, config, tokenizer, info, device, profile, base)
    return start_run(run, state, TextDataset(part, valid, state), quiet, on_entry, profile, device.group)


def pretrain(
    run: str | Path,
    shards: Shards,
    valid: Sequence[Shards] | None,
    model_config: ModelConfig,
    config: TrainConfig,
    quiet: bool = False,
    workers: int | None = None,
    on_entry: Callable[[dict], None] | None = None,
    files: dict[str, str] | None = None,
    device: Device = CPU,
    profile: int = 0,
    base: checkpoint.Checkpoint | None = None,
) -> GPT:
    """Train a model on shards and leave a run folder: `train` for text that lies on the disk.

    valid: as for `ShardDataset`; the rest as for `train`. Raises NanoEulerError as both do.
    """
    _expect_new(Path(run), device)
    expect_memory(model_config)
    info = {"source": str(shards.path), "workers": workers or cores()} | _kept(files, valid, config)
    state = fresh(run, model_config, config, shards.tokenizer, info, device, profile, base)
    dataset = ShardDataset(shards, valid, state)
    return start_run(Path(run), state, dataset, quiet, on_entry, profile, device.group)


def _kept(files, valid, config):
    """What a run keeps of its data: the names of files, and by which rule a part of them is held out."""
    split = {"split": SPLIT} if valid is None and config.valid_fraction else {}
    return ({"files": files} if files else {}) | split


def _expect_new(run, device):
    """As `expect_new`, before any process of a group writes there."""
    expect_new(run)
    if device.group is not None:
        device.group.meet()


def expect_memory(config: ModelConfig) -> None:
    """Raises NanoEulerError for a model whose parameters, gradients and first moments find no room in memory.

    That is what every optimiser needs, 12 bytes a parameter. Some systems promise memory that they do not have, and
    kill without a word whoever uses it.
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
    run: Path,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer,
    info: dict,
    device: Device = CPU,
    profile: int = 0,
    base: checkpoint.Checkpoint | None = None,
) -> checkpoint.Checkpoint:
    """What a run begins with: a model of the configuration's seed, an optimiser at rest; info: what to keep beside.

    base: whose parameters are taken instead. Raises NanoEulerError for more tokens than the model has, and for
    a profile on the CPU.
    """
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most vocab_size ({model_config.vocab_size})"
        )
    expect_launches(profile, device)
    model, optimizer = GPT(model_config, seed=config.seed), optimizer_of(model_config, config)
    if base is not None:
        model.params.flat[...] = base.model.params.flat
        info = info | {"base": str(base.path)}
    return checkpoint.Checkpoint(Path(run), model, tokenizer, 0, config, optimizer, info | device.info)


def _floor(valid):
    """Bits per byte that the source of the text needs: known for stories from Königsberg, None for other text."""
    try:
        return round(world.floor(valid), 6) if data.SEPARATOR in valid else None
    except ValueError:
        return None
