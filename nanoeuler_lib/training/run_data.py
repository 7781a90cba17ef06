"""Functions that find out, from a checkpoint's header, the kind of data of a run and its files."""

import os
from collections.abc import Collection, Mapping, Sequence

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.chat_template import TEMPLATES
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import Dataset, SFTDataset, ShardDataset, TextDataset, split_text
from nanoeuler_lib.training.preferences import PairsDataset
from nanoeuler_lib.training.rewards import RewardDataset

# kind of data -> a further name in the header that marks it, and its dataset. Runs of no kind use text or shards.
KINDS = {
    "questions": ("rewards", RewardDataset),
    "pairs": ("beta", PairsDataset),
    "examples": ("template", SFTDataset),
}


def kind_of(info: Mapping) -> str | None:
    """Return the kind of data of a run (a key of `KINDS`) from its header's info; None for pretraining."""
    return next((kind for kind, (mark, _) in KINDS.items() if info.keys() & {kind, mark}), None)


def dataset_of(part, valid, state: Checkpoint, verifiers: Mapping | None = None) -> Dataset:
    """Return the dataset of a run that is resumed.

    part, valid: texts, shards (a list for `valid`), examples, pairs or problems. Raises NanoEulerError if they do not
    fit.
    """
    if isinstance(part, str) or (isinstance(part, Sequence) and part and isinstance(part[0], str)):
        return TextDataset(*split_text(part, valid, state.train, state.info.get("split")), state)
    if isinstance(part, Shards):
        return ShardDataset(part, valid, state)
    if state.info.get("template") not in TEMPLATES:
        raise NanoEulerError(f"{state.path}: must be a fine-tuning run (nanoeuler sft, dpo or grpo), got another kind")
    _, kind = KINDS[kind_of(state.info)]
    return kind(part, valid, state, *([verifiers or {}] if kind is RewardDataset else []))


def files_of(info: Mapping, given: Mapping[str, Sequence | None], built_in: Collection[str] = ()) -> dict[str, str]:
    """Return the paths of a run's data files, by their names in the header.

    given: new paths for "data" and "valid", as many as at the beginning; None: those in the header. built_in: sources
    that need no file. Raises NanoEulerError if the number of paths is wrong or a file no longer exists.
    """
    kind, files = kind_of(info), {}
    before = {kind: info[kind][0]} if kind else {"text": info.get("source"), "valid": None}
    before |= info.get("files", {})
    for option, first in [("data", kind)] if kind else [("data", "text"), ("valid", "valid")]:
        names = [name for name in before if name == first or name.startswith(f"{first}_")]
        paths = given.get(option) or [None] * len(names)
        if len(paths) != len(names):
            raise NanoEulerError(f"--{option} must name {len(names)} files, as when the run began, got {len(paths)}")
        for name, path in zip(names, paths, strict=True):
            old = before[name]
            if path is not None:
                files[name] = path if kind and path in built_in else os.path.abspath(path)
            elif (kind and old in built_in) or (name, old) == ("valid", None) or (old and os.path.exists(old)):
                files[name] = old
            else:
                raise NanoEulerError(
                    f"{old or 'no name'}: no such file, but the run began with it ({name}): if it moved, give its new "
                    f"path with --{option} FILE"
                )
    return files
