"""Functions that write run.json, which describes the settings, data and machine of a run."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from nanoeuler_lib import __version__
from nanoeuler_lib.config import CHANGEABLE, TrainConfig
from nanoeuler_lib.files import from_json, to_json, write_text
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import Dataset


def write(run: Path, state: Checkpoint, dataset: Dataset) -> None:
    """Write run.json for a new run. Raises NanoEulerError if it cannot be written."""
    _write(run, _description(state, dataset))


def update(run: Path, state: Checkpoint, dataset: Dataset) -> None:
    """Rewrite run.json if it differs from the checkpoint; version, start time and first machine are kept."""
    old, new = _read(run), _description(state, dataset)
    data = old.get("data")
    bits = data.get("bits") if isinstance(data, dict) else None
    if (old.get("train"), old.get("model"), bits) != (new["train"], new["model"], new["data"].get("bits")):
        beginning = {name: old[name] for name in ("version", "started", "machine") if isinstance(old.get(name), str)}
        _write(run, new | beginning)


def changed_settings(run: Path, before: TrainConfig, now: TrainConfig) -> list[str]:
    """Describe the settings that changed, each as "NAME OLD -> NEW".

    Old values come from run.json, which is rewritten after the log has the change, so a kill between loses nothing.
    """
    old = _read(run).get("train")
    old, now = before.to_dict() | (old if isinstance(old, dict) else {}), now.to_dict()
    return [f"{name} {old[name]} -> {now[name]}" for name in CHANGEABLE if old[name] != now[name]]


def _description(state, dataset):
    return {
        "version": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}",
        "model": state.model.config.to_dict(),
        "train": state.train.to_dict(),
        "data": {**dataset.sizes, "reach": dataset.reach, "unit": dataset.unit, **state.info},
    }


def _write(run, description):
    write_text(run / "run.json", to_json(description, indent=1) + "\n")


def _read(run):
    """Read run.json; return {} if it is missing or damaged."""
    try:
        description = from_json((run / "run.json").read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return description if isinstance(description, dict) else {}
