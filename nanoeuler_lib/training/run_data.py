"""Identify a run's kind of data and its files from the checkpoint's header."""

import os
from collections.abc import Collection, Mapping, Sequence

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.text.chat_template import TEMPLATES
from nanoeuler_lib.text.shards import Shards
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import Dataset, SFTDataset, ShardDataset, TextDataset, split_text
from nanoeuler_lib.training.preferences import PairsDataset
from nanoeuler_lib.training.rewards import RewardDataset

# kind of run -> another name that its header has, and its dataset; a run of no kind learns from text or shards
KINDS = {
    "questions": ("rewards", RewardDataset),
    "pairs": ("beta", PairsDataset),
    "examples": ("template", SFTDataset),
}


def kind_of(info: Mapping) -> str | None:
    """The kind of a run by its header's info, one of `KINDS`; None: pretraining."""
    return next((kind for kind, (mark, _) in KINDS.items() if info.keys() & {kind, mark}), None)


def dataset_of(part, valid, state: Checkpoint, verifiers: Mapping | None = None) -> Dataset:
    """The dataset that a run goes on with.

    part, valid: texts; shards (`valid` a list of them, or None); or examples, pairs or problems. state: of the run,
    which has the model, the settings and the tokenizer; verifiers: of `RunOptions`. Raises NanoEulerError for data of
    another kind than the run's, and as the datasets do.
    """
    if isinstance(part, str) or (isinstance(part, Sequence) and part and isinstance(part[0], str)):
        return TextDataset(*split_text(part, valid, state.train, state.info.get("split")), state)
    if isinstance(part, Shards):
        return ShardDataset(part, valid, state)
    if state.info.get("template") not in TEMPLATES:
        raise NanoEulerError(f"{state.path}: was not begun by fine-tuning, expected a run of nanoeuler sft")
    _, kind = KINDS[kind_of(state.info)]
    return kind(part, valid, state, *([verifiers or {}] if kind is RewardDataset else []))


def files_of(info: Mapping, given: Mapping[str, Sequence | None], built_in: Collection[str] = ()) -> dict[str, str]:
    """Paths of the files that a run learns from, by the names under which the header has them.

    given: by the command's options "data" and "valid", the paths of the files now, as many as the run began with;
    without them those in the header. built_in: sources of examples, pairs and questions that need no file. Raises
    NanoEulerError for another number of paths, and where a file is not where it was.
    """
    kind, files = kind_of(info), {}
    before = {kind: info[kind][0]} if kind else {"text": info.get("source"), "valid": None}
    before |= info.get("files", {})
    for option, first in [("data", kind)] if kind else [("data", "text"), ("valid", "valid")]:
        names = [name for name in before if name == first or name.startswith(f"{first}_")]
        paths = given.get(option) or [None] * len(names)
        if len(paths) != len(names):
            raise NanoEulerError(f"--{option} names {len(paths)}, expected {len(names)}, as the run began")
        for name, path in zip(names, paths, strict=True):
            old = before[name]
            if path is not None:
                files[name] = path if kind and path in built_in else os.path.abspath(path)
            elif (kind and old in built_in) or (name, old) == ("valid", None) or (old and os.path.exists(old)):
                files[name] = old
            else:
                raise NanoEulerError(
                    f"{old or 'no name'}: no such file; it is the {name} that the run began with. If it moved, say "
                    f"where it is now: --{option} FILE"
                )
    return files
