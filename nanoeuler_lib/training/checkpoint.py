"""Checkpoints: a folder with safetensors and JSON, written whole or not at all.

    step-002000/
        checkpoint.json         what it is: configurations, step, data, and the SHA-256 of every other file
        model.safetensors       the parameters by name: float32; float16, or int8 with scales, where they are exported
        tokenizer.json
        optimizer.safetensors   moments (of Muon's matrices the momentum); absent where training is not meant to go on

A folder is written under another name and renamed when complete, so a half-written one is never taken for a
checkpoint. No pickle anywhere: opening a file cannot run code.
"""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from nanoeuler_lib import files
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import fits, from_json, is_count, one_line, seal, sha256, sync, to_json
from nanoeuler_lib.model import GPT, Parameters, int8, parameter_shapes
from nanoeuler_lib.model.optim import AdamW, optimizer_of
from nanoeuler_lib.text import other_tokenizers
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training.monitor import MEASURES

FORMAT = "nanoeuler-checkpoint-1"
BEST = "best"  # the folder of a run's best checkpoint by validation, beside those of its last steps; has no optimizer
HEAD_BYTES = 1_000_000  # a longer checkpoint.json is none
PRETRAINED = Path(__file__).parent.parent / "pretrained"


@dataclass
class Checkpoint:
    """What a checkpoint folder holds. `optimizer` and `train` are None where they were not saved."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    step: int
    train: TrainConfig | None
    optimizer: AdamW | None
    info: dict  # data fingerprint, validation result and the like

    def copy(self, training: bool = True) -> "Checkpoint":
        """The same in this machine's memory; it stays what it is while a run goes on to change this one.

        training: with the optimiser's state, without which no run goes on.
        """
        config = self.model.config

        def copied(params):
            host = params.host()
            if host is params:
                host = Parameters(config, params.flat.dtype)
                host.flat[...] = params.flat
            return host

        optimizer = optimizer_of(config, self.train) if training else None
        if training:
            optimizer.step = self.optimizer.step
            optimizer.m, optimizer.v = copied(self.optimizer.m), copied(self.optimizer.v)
        model = GPT(config, copied(self.model.params))
        return replace(self, model=model, optimizer=optimizer, info=dict(self.info))


def save(
    path: Path,
    model: GPT,
    tokenizer: Tokenizer,
    step: int,
    train: TrainConfig | None = None,
    optimizer: AdamW | None = None,
    info: dict | None = None,
    eight_bits: bool = False,
) -> None:
    """Write a checkpoint folder. An existing one of the same name is replaced only when the new one is complete.

    eight_bits: parameters as `int8.quantized` has them. Raises NanoEulerError when the disk is full or the folder
    cannot be written; what was there stays.
    """
    path = Path(path)
    partial, replaced = (path.with_name(f".{path.name}.{what}") for what in ("partial", "replaced"))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_files(partial, model, tokenizer, step, train, optimizer, info, eight_bits)
        _swap(partial, path, replaced)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        shutil.rmtree(partial, ignore_errors=True)
        if replaced.exists() and not path.exists():
            os.replace(replaced, path)
        reason = getattr(error, "strerror", None) or error
        earlier = path.exists() or any(path.parent.glob("step-*"))
        others = "earlier ones are intact" if earlier else "there is none before it"
        raise NanoEulerError(f"{path}: cannot write the checkpoint ({reason}); {others}") from None


def _write_files(partial, model, tokenizer, step, train, optimizer, info, eight_bits):
    """All files of a checkpoint, the head last, and see that they are on the disk."""
    tensors = dict(model.params.host())
    save_file(int8.quantized(tensors) if eight_bits else tensors, partial / "model.safetensors")
    tokenizer.save(partial / "tokenizer.json")
    if optimizer is not None:
        moments = {f"{kind}.{name}": x for kind in ("m", "v") for name, x in getattr(optimizer, kind).host().items()}
        save_file(moments, partial / "optimizer.safetensors")
    # safetensors lets no one else read them, whatever the umask
    for file in partial.glob("*.safetensors"):
        with suppress(OSError):  # some file systems know no modes
            shutil.copymode(partial / "tokenizer.json", file)
    head = {
        "format": FORMAT,
        "model": model.config.to_dict(),
        "train": train.to_dict() if train else None,
        "step": step,
        "info": info or {},
        "sha256": {file.name: sha256(file) for file in sorted(partial.iterdir())},
    }
    text = to_json(seal(head), indent=1)
    _expect_readable(from_json(text), partial.name)
    (partial / "checkpoint.json").write_bytes(f"{text}\n".encode())
    for file in partial.iterdir():
        sync(file)


def _swap(partial, path, replaced):
    """Put a complete folder at its path. At any moment the old or the new one is whole, there or hidden beside it."""
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        os.replace(path, replaced)
    os.replace(partial, path)
    shutil.rmtree(replaced, ignore_errors=True)
    sync(path.parent)


def renew(path: Path, info: dict) -> None:
    """Replace the info of a checkpoint that is written, and nothing else of it."""
    files.write_text(path / "checkpoint.json", to_json(seal(_read_head(path) | {"info": info}), indent=1) + "\n")


def load(path: str | Path, training: bool = False) -> Checkpoint:
    """Read a checkpoint: the folder itself, or a run folder, whose latest one is taken.

    training: also read what is needed to go on training. Parameters come back as float32.
    Raises NanoEulerError when something is missing, truncated, edited or does not fit together.
    """
    path = find(path)
    head = _read_head(path)
    for name, digest in head["sha256"].items():
        if name != "optimizer.safetensors" or (path / name).is_file():  # only a run that goes on needs that one
            files.expect_digest(path / name, digest, "checkpoint.json")
    config = _settings(ModelConfig, head["model"], path)
    shapes = parameter_shapes(config)
    tensors = _read_parameters(path / "model.safetensors", shapes)
    tokenizer = other_tokenizers.load(path / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise NanoEulerError(
            f"{path}: tokenizer has {tokenizer.vocab_size} tokens, expected at most the model's {config.vocab_size}"
        )
    settings = _settings(TrainConfig, head["train"], path) if head["train"] else None
    params, optimizer = _filled(config, tensors), None
    if training:
        if settings is None or not (path / "optimizer.safetensors").is_file():
            raise NanoEulerError(
                f"{path}: holds no optimizer state, expected a checkpoint with optimizer.safetensors to go on from; "
                "nanoeuler train --from begins a new run with its model"
            )
        moments = {f"{kind}.{name}": shape for kind in "mv" for name, shape in shapes.items()}
        tensors = _read_tensors(path / "optimizer.safetensors", moments)
        optimizer = optimizer_of(config, settings)
        optimizer.step = head["step"]
        for kind in "mv":
            setattr(optimizer, kind, _filled(config, tensors, f"{kind}."))
    return Checkpoint(path, GPT(config, params), tokenizer, head["step"], settings, optimizer, head["info"])


def load_model(source: str | Path = "konigsberg-small") -> tuple[GPT, Tokenizer]:
    """Load a model and its tokenizer; `nanoeuler_lib.load` is this function.

    source: the name of a model that comes with the package ("konigsberg-small", "konigsberg-chat", "english-small"), a
    checkpoint, or a run folder, whose latest checkpoint is taken. A folder that has the name of such a model is written
    "./NAME". Raises NanoEulerError for a name or folder that does not exist, and as `load` does.
    """
    if str(source) in shipped():
        return load_pretrained(str(source))
    if not os.path.exists(source):
        expected = f"a checkpoint, a run folder, or one of {', '.join(shipped())}"
        raise NanoEulerError(f"{short(str(source))}: no such folder, expected {expected}")
    checkpoint = load(source)
    return checkpoint.model, checkpoint.tokenizer


def load_pretrained(name: str = "konigsberg-small") -> tuple[GPT, Tokenizer]:
    """A model and its tokenizer that come with the package.

    Raises NanoEulerError on an unknown name.
    """
    checkpoint = load(pretrained(name))
    return checkpoint.model, checkpoint.tokenizer


def pretrained(name: str) -> Path:
    """The checkpoint folder of a model that comes with the package. Raises NanoEulerError on an unknown name."""
    if name not in (known := shipped()):
        raise NanoEulerError(f"no pretrained model {short(name)}, the package has {', '.join(known) or 'none'}")
    return PRETRAINED / name


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(file.parent.name for file in PRETRAINED.glob("*/checkpoint.json"))


def find(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: `path` itself, or the one with the highest step if it is a run."""
    path, expected = Path(path), "expected a checkpoint or a run folder"
    try:
        os.stat(path / "checkpoint.json")
    except PermissionError as error:  # Path.is_file() raises it too, but not since Python 3.14
        raise NanoEulerError(f"{path}: cannot be looked at ({error.strerror}), {expected}") from None
    except (OSError, ValueError):  # what is wrong is said below
        pass
    if (path / "checkpoint.json").is_file():
        return path
    if (steps := folders(path)) and not (steps[-1] / "checkpoint.json").is_file():
        earlier = f"to use {steps[-2].name}" if steps[1:] else "to begin the run again"
        raise NanoEulerError(
            f"{steps[-1]}: the latest checkpoint must have a file checkpoint.json, got none: put the file back, or "
            f"remove this folder {earlier}"
        )
    # its successor never came: see `sweep`
    steps = steps or sorted(path.glob("checkpoints/.step-*.replaced"))
    steps = steps or list(path.glob(f"checkpoints/{BEST}"))
    if steps:
        return steps[-1]
    if (path / "lock").is_file():
        raise NanoEulerError(f"{path}: holds no checkpoint: the run was stopped before its first, begin it again")
    what = "holds no checkpoint" if path.exists() else "no such folder"
    if inside := folders(path.parent) if path.name == "checkpoints" else []:
        what, expected = "holds checkpoints", f"expected its run {path.parent}, or one of them: {inside[-1]}"
    raise NanoEulerError(f"{path}: {what}, {expected}")


def folders(run: str | Path) -> list[Path]:
    """The checkpoint folders of a run, by step; what else is named step-... is none of them."""
    return sorted((f for f in (Path(run) / "checkpoints").glob("step-*") if step_of(f) >= 0), key=step_of)


def step_of(folder: Path) -> int:
    """The step of a run's checkpoint folder, from its name; -1 for another name."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def remove(path: Path) -> None:
    """Delete a checkpoint folder; renamed first, so that a half-deleted one is never taken for a checkpoint."""
    doomed = path.with_name(f".{path.name}.removed")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Finish what a killed process left half-done in a folder of checkpoints; nobody may be writing there."""
    for left in folder.glob("step-*/.*.partial"):
        left.unlink()
    for left in (*folder.glob(".step-*"), *folder.glob(f".{BEST}.*")):
        name, _, what = left.name[1:].rpartition(".")
        if what == "replaced" and not (folder / name).exists():
            os.replace(left, folder / name)  # its successor never came
        elif what in ("partial", "replaced", "removed"):
            shutil.rmtree(left, ignore_errors=True)


def export(checkpoint: Checkpoint, path: Path, eight_bits: bool = False) -> None:
    """Write only what generating needs, parameters in float16, or in int8: a small file to share."""
    model = checkpoint.model
    if not eight_bits:
        params = Parameters(model.config, np.float16)
        params.flat[...] = model.params.flat
        model = GPT(model.config, params)
    info = public(checkpoint.info)
    save(path, model, checkpoint.tokenizer, checkpoint.step, info=info, eight_bits=eight_bits)


def public(info: dict) -> dict:
    """Return what a checkpoint says of its data, with only the names of files and runs: no path is published."""

    def named(value):
        if isinstance(value, dict):
            return {name: named(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [named(part) for part in value]
        if not isinstance(value, str):
            return value
        path = Path(value)
        return path.parents[1].name if path.parent.name == "checkpoints" else path.name

    texts = [path for name, path in (info.get("files") or {}).items() if name.startswith("text")]
    kept = named({name: value for name, value in info.items() if name != "files"})
    return kept | ({"source": " ".join(named(texts))} if texts else {})


def read_head(path: str | Path) -> dict:
    """What a checkpoint says of itself (`find` says which one): model, train, step, info; no tensor is read.

    Raises NanoEulerError when it is missing, truncated or edited.
    """
    return _read_head(find(path))


def _read_head(path):
    file = path / "checkpoint.json"
    head = files.read_head(file, FORMAT, HEAD, HEAD_BYTES)
    allowed = {"model.safetensors", "tokenizer.json", "optimizer.safetensors"}
    names = set(head["sha256"])
    if not {"model.safetensors", "tokenizer.json"} <= names <= allowed:
        raise NanoEulerError(f"{file}: lists files {short(sorted(names))}, expected {sorted(allowed)}")
    _expect_readable(head, file)
    return head


def _expect_readable(head, file):
    """Raise NanoEulerError for info of a kind that is not read again: checked before it is written, and after."""
    for name in head["info"].keys() & INFO.keys():
        if not fits(value := head["info"][name], INFO[name][1]):
            raise NanoEulerError(f"{file}: info.{name} is {short(value)}, expected {INFO[name][0]}")


HEAD = {"model": dict, "train": (dict, None), "step": is_count, "info": dict, "sha256": {str: str}}
TEXT, NUMBER = ("text", str), ("a number", (int, float, None))
SOURCE = "a source, a number and a seed", [str, is_count, is_count]  # of what a run learns from
# What the library writes into `info` and reads again: what is expected, and its kind (`files.fits`).
INFO = dict.fromkeys("source template base fingerprint valid_fingerprint reference".split(), TEXT)
INFO |= dict.fromkeys((*MEASURES, "floor_bits_per_byte", "beta", "label_noise"), NUMBER)
INFO |= dict.fromkeys(("examples", "pairs", "questions"), SOURCE)
INFO |= {
    "split": ("2", 2), "turns": ("first, windows or last", ("first", "windows", "last")), "rewards": ("settings", dict),
    "valid_sets": ("a number for each", {str: (int, float)}), "files": ("names of files", {str: (str, None)}),
    "robust": ("true or false", bool), "shards": ("a whole number", int), "bits": ("facts by name", dict),
    "due": ("a number and three switches", [int, bool, bool, bool]),
}  # fmt: skip


def _settings(kind, values, path):
    try:
        return kind.from_dict(values)
    except NanoEulerError as error:
        raise NanoEulerError(f"{path / 'checkpoint.json'}: {error}") from None


def _read_parameters(file, shapes):
    """A model's tensors as floats, of whatever kind the file has them."""
    try:
        with safe_open(file, framework="numpy") as opened:
            eight_bits = any(name.endswith(int8.SCALE) for name in opened.keys())
    except (OSError, SafetensorError):
        eight_bits = False  # `_read_tensors` says what is wrong
    if not eight_bits:
        return _read_tensors(file, shapes)
    scales = int8.scale_shapes(shapes)
    tensors = _read_tensors(file, shapes | scales, (np.int8, np.float16, np.float32))
    for name, tensor in tensors.items():
        if (tensor.dtype == np.int8) != (f"{name}{int8.SCALE}" in scales):
            expected = "float16 or float32" if tensor.dtype == np.int8 else "int8, as it has scales"
            raise NanoEulerError(f"{file}: {name} is {tensor.dtype}, expected {expected}")
    return int8.restored(tensors)


def _read_tensors(file, shapes, dtypes=(np.float16, np.float32)):
    """The tensors of a safetensors file. Names and shapes are compared with `shapes` before memory is taken."""
    try:
        with safe_open(file, framework="numpy") as opened:
            stored = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
        if set(stored) != set(shapes):
            odd = sorted(set(stored) ^ set(shapes))[:4]
            raise NanoEulerError(f"{file}: missing or unknown tensors {short(odd)}")
        for name, shape in shapes.items():
            if stored[name] != shape:
                raise NanoEulerError(f"{file}: {name} is {list(stored[name])}, expected {list(shape)}")
        tensors = load_file(file)
    except NanoEulerError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        # whatever a strange header gives
        raise NanoEulerError(f"{file}: not readable as safetensors ({one_line(str(error), 200)})") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            raise NanoEulerError(f"{file}: {name} is {tensor.dtype}, expected float16 or float32")
        if not np.isfinite(tensor).all():
            raise NanoEulerError(f"{file}: {name} holds NaN or infinity, expected finite numbers")
    return tensors


def _filled(config, tensors, prefix=""):
    params = Parameters(config)
    for name, view in params.items():
        view[...] = tensors[prefix + name]
    return params
