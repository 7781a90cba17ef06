"""Functions that write and read checkpoints: folders of safetensors and JSON files, written atomically.

    step-002000/
        checkpoint.json         header: settings, step, data, and the SHA-256 of every other file
        model.safetensors       parameters by name: float32; in an exported checkpoint float16, or int8 with scales
        tokenizer.json
        optimizer.safetensors   moments (for Muon's matrices the momentum); absent if the checkpoint cannot be resumed

A folder is written under a temporary name and renamed when it is complete, so a half-written folder is never mistaken
for a checkpoint. Nothing is pickled, so reading a checkpoint cannot run code.
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
BEST = "best"  # folder of the checkpoint with the lowest validation loss, next to the latest ones; has no optimizer
HEAD_BYTES = 1_000_000  # maximum size of checkpoint.json
PRETRAINED = Path(__file__).parent.parent / "pretrained"


@dataclass
class Checkpoint:
    """Hold the contents of a checkpoint folder. `optimizer` and `train` are None if they were not saved."""

    path: Path
    model: GPT
    tokenizer: Tokenizer
    step: int
    train: TrainConfig | None
    optimizer: AdamW | None
    info: dict  # source and fingerprint of the data, latest validation result and more

    def copy(self, training: bool = True) -> "Checkpoint":
        """Return a copy in host memory, which a run does not change; training: with the optimiser, to resume from."""
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
    """Write a checkpoint folder; an existing one of the same name is replaced once the new one is complete.

    eight_bits: as int8 with scales (`int8.quantized`). Raises NanoEulerError if writing fails; the old one stays.
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
        others = "earlier ones are intact" if earlier else "there is no earlier one"
        raise NanoEulerError(f"{path}: cannot write the checkpoint ({reason}); {others}") from None


def _write_files(partial, model, tokenizer, step, train, optimizer, info, eight_bits):
    tensors = dict(model.params.host())
    save_file(int8.quantized(tensors) if eight_bits else tensors, partial / "model.safetensors")
    tokenizer.save(partial / "tokenizer.json")
    if optimizer is not None:
        moments = {f"{kind}.{name}": x for kind in ("m", "v") for name, x in getattr(optimizer, kind).host().items()}
        save_file(moments, partial / "optimizer.safetensors")
    # safetensors makes its files readable only for their owner, whatever the umask; give them the usual mode
    for file in partial.glob("*.safetensors"):
        with suppress(OSError):  # some file systems have no modes
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
    """Move a complete folder to its path. At any moment a complete one is at the path or hidden next to it."""
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        os.replace(path, replaced)
    os.replace(partial, path)
    shutil.rmtree(replaced, ignore_errors=True)
    sync(path.parent)


def renew(path: Path, info: dict) -> None:
    """Replace the info in the header of an existing checkpoint; everything else stays."""
    files.write_text(path / "checkpoint.json", to_json(seal(_read_head(path) | {"info": info}), indent=1) + "\n")


def load(path: str | Path, training: bool = False) -> Checkpoint:
    """Read a checkpoint, with float32 parameters, from its folder, or the latest one from a run folder.

    training: read the optimiser too. Raises NanoEulerError if a file is missing, truncated, edited or does not fit.
    """
    path = find(path)
    head = _read_head(path)
    for name, digest in head["sha256"].items():
        if name != "optimizer.safetensors" or (path / name).is_file():  # the optimiser's file is needed only to resume
            files.expect_digest(path / name, digest, "checkpoint.json")
    config = _settings(ModelConfig, head["model"], path)
    shapes = parameter_shapes(config)
    tensors = _read_parameters(path / "model.safetensors", shapes)
    tokenizer = other_tokenizers.load(path / "tokenizer.json")
    if tokenizer.vocab_size > config.vocab_size:
        raise NanoEulerError(
            f"{path}: tokenizer must have at most the model's {config.vocab_size} tokens, got {tokenizer.vocab_size}"
        )
    settings = _settings(TrainConfig, head["train"], path) if head["train"] else None
    params, optimizer = _filled(config, tensors), None
    if training:
        if settings is None or not (path / "optimizer.safetensors").is_file():
            raise NanoEulerError(
                f"{path}: has no optimizer.safetensors, so it cannot be resumed: begin a new run with its model "
                "(nanoeuler train --from)"
            )
        moments = {f"{kind}.{name}": shape for kind in "mv" for name, shape in shapes.items()}
        tensors = _read_tensors(path / "optimizer.safetensors", moments)
        optimizer = optimizer_of(config, settings)
        optimizer.step = head["step"]
        optimizer.loss_scale = head["info"].get("loss_scale", ())
        for kind in "mv":
            setattr(optimizer, kind, _filled(config, tensors, f"{kind}."))
    return Checkpoint(path, GPT(config, params), tokenizer, head["step"], settings, optimizer, head["info"])


def load_model(source: str | Path = "konigsberg-small") -> tuple[GPT, Tokenizer]:
    """Load a model and its tokenizer; `nanoeuler_lib.load` is this function.

    source: "konigsberg-small", "konigsberg-chat" or "english-small"; a checkpoint folder; or a run folder (its latest
    checkpoint). "./NAME" is a folder of such a name. Raises NanoEulerError if there is none, or as `load` does.
    """
    if str(source) in shipped():
        return load_pretrained(str(source))
    if not os.path.exists(source):
        expected = f"a checkpoint, a run folder, or one of {', '.join(shipped())}"
        raise NanoEulerError(f"{short(str(source))}: no such folder, expected {expected}")
    checkpoint = load(source)
    return checkpoint.model, checkpoint.tokenizer


def load_pretrained(name: str = "konigsberg-small") -> tuple[GPT, Tokenizer]:
    """Load a model of the package and its tokenizer. Raises NanoEulerError on an unknown name."""
    checkpoint = load(pretrained(name))
    return checkpoint.model, checkpoint.tokenizer


def pretrained(name: str) -> Path:
    """Return the checkpoint folder of a model in the package. Raises NanoEulerError on an unknown name."""
    if name not in (known := shipped()):
        raise NanoEulerError(f"model must be one in the package ({', '.join(known) or 'none'}), got {short(name)}")
    return PRETRAINED / name


def shipped() -> list[str]:
    """Return the names of the models in the package."""
    return sorted(file.parent.name for file in PRETRAINED.glob("*/checkpoint.json"))


def find(path: str | Path) -> Path:
    """Return the checkpoint folder `path`, or a run folder's latest one. Raises NanoEulerError if there is none."""
    path, expected = Path(path), "expected a checkpoint or a run folder"
    try:
        os.stat(path / "checkpoint.json")
    except PermissionError as error:  # Path.is_file() raises it too, but not since Python 3.14
        raise NanoEulerError(f"{path}: cannot be read ({error.strerror}), {expected}") from None
    except (OSError, ValueError):  # the code below reports what is wrong
        pass
    if (path / "checkpoint.json").is_file():
        return path
    if (steps := folders(path)) and not (steps[-1] / "checkpoint.json").is_file():
        earlier = f"to use {steps[-2].name}" if steps[1:] else "to begin the run again"
        raise NanoEulerError(
            f"{steps[-1]}: the latest checkpoint must have a file checkpoint.json, got none: put the file back, or "
            f"remove this folder {earlier}"
        )
    # a killed process may have moved the old checkpoint aside and not yet put the new one in its place: see `sweep`
    steps = steps or sorted(path.glob("checkpoints/.step-*.replaced"))
    steps = steps or list(path.glob(f"checkpoints/{BEST}"))
    if steps:
        return steps[-1]
    if (path / "lock").is_file():
        raise NanoEulerError(
            f"{path}: has no checkpoint, because the run was stopped before its first one: begin it again"
        )
    what = "has no checkpoint" if path.exists() else "no such folder"
    if inside := folders(path.parent) if path.name == "checkpoints" else []:
        what, expected = "has several checkpoints", f"expected the run {path.parent}, or one of them: {inside[-1]}"
    raise NanoEulerError(f"{path}: {what}, {expected}")


def folders(run: str | Path) -> list[Path]:
    """Return the checkpoint folders of a run, named step-NUMBER, in the order of their steps."""
    return sorted((f for f in (Path(run) / "checkpoints").glob("step-*") if step_of(f) >= 0), key=step_of)


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint folder, -1 if the name is not step-NUMBER."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else -1


def remove(path: Path) -> None:
    """Delete a checkpoint folder; it is renamed first, so that a half-deleted one is not mistaken for a checkpoint."""
    doomed = path.with_name(f".{path.name}.removed")
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Remove or complete what a killed process left in a folder of checkpoints. No process may be writing there."""
    for left in folder.glob("step-*/.*.partial"):
        left.unlink()
    for left in (*folder.glob(".step-*"), *folder.glob(f".{BEST}.*")):
        name, _, what = left.name[1:].rpartition(".")
        if what == "replaced" and not (folder / name).exists():
            os.replace(left, folder / name)  # the process was killed before it put the new one in its place
        elif what in ("partial", "replaced", "removed"):
            shutil.rmtree(left, ignore_errors=True)


def export(checkpoint: Checkpoint, path: Path, eight_bits: bool = False) -> None:
    """Write a small checkpoint to share: without the optimiser, and with parameters in float16 or int8."""
    model = checkpoint.model
    if not eight_bits:
        params = Parameters(model.config, np.float16)
        params.flat[...] = model.params.flat
        model = GPT(model.config, params)
    info = public(checkpoint.info)
    save(path, model, checkpoint.tokenizer, checkpoint.step, info=info, eight_bits=eight_bits)


def public(info: dict) -> dict:
    """Return the info of a checkpoint for publication: paths of files and runs are reduced to their names."""

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
    """Read the header of the checkpoint at `path` (see `find`). Raises NanoEulerError if it is missing or damaged."""
    return _read_head(find(path))


def _read_head(path):
    file = path / "checkpoint.json"
    head = files.read_head(file, FORMAT, HEAD, HEAD_BYTES)
    allowed = {"model.safetensors", "tokenizer.json", "optimizer.safetensors"}
    names = set(head["sha256"])
    if not {"model.safetensors", "tokenizer.json"} <= names <= allowed:
        raise NanoEulerError(f"{file}: files must be among {sorted(allowed)}, got {short(sorted(names))}")
    _expect_readable(head, file)
    return head


def _expect_readable(head, file):
    """Raise NanoEulerError if a value of the info has the wrong kind; called before writing and after reading."""
    for name in head["info"].keys() & INFO.keys():
        if not fits(value := head["info"][name], INFO[name][1]):
            raise NanoEulerError(f"{file}: info.{name} must be {INFO[name][0]}, got {short(value)}")


HEAD = {"model": dict, "train": (dict, None), "step": is_count, "info": dict, "sha256": {str: str}}
TEXT, NUMBER = ("text", str), ("a number", (int, float, None))
SOURCE = "a source, a number and a seed", [str, is_count, is_count]  # of the examples, pairs or questions of a run
# Names in `info` that the library reads back: the kind in words, for messages, and in terms of `files.fits`.
INFO = dict.fromkeys("source template base fingerprint valid_fingerprint reference".split(), TEXT)
INFO |= dict.fromkeys((*MEASURES, "floor_bits_per_byte", "beta", "label_noise"), NUMBER)
INFO |= dict.fromkeys(("examples", "pairs", "questions"), SOURCE)
INFO |= {
    "split": ("2", 2), "turns": ("first, windows or last", ("first", "windows", "last")), "rewards": ("settings", dict),
    "valid_sets": ("a number by name", {str: (int, float)}), "files": ("paths by name", {str: (str, None)}),
    "robust": ("true or false", bool), "shards": ("an integer", int), "bits": ("values by name", dict),
    "due": ("an integer and three booleans", [int, bool, bool, bool]),
    "loss_scale": ("a power of two and a number of steps", [lambda x: is_count(x) and x.bit_count() == 1, is_count]),
}  # fmt: skip


def _settings(kind, values, path):
    try:
        return kind.from_dict(values)
    except NanoEulerError as error:
        raise NanoEulerError(f"{path / 'checkpoint.json'}: {error}") from None


def _read_parameters(file, shapes):
    """Read a model's tensors as floats, whether the file stores floats or int8 with scales."""
    try:
        with safe_open(file, framework="numpy") as opened:
            eight_bits = any(name.endswith(int8.SCALE) for name in opened.keys())
    except (OSError, SafetensorError):
        eight_bits = False  # `_read_tensors` reports what is wrong
    if not eight_bits:
        return _read_tensors(file, shapes)
    scales = int8.scale_shapes(shapes)
    tensors = _read_tensors(file, shapes | scales, (np.int8, np.float16, np.float32))
    for name, tensor in tensors.items():
        if (tensor.dtype == np.int8) != (f"{name}{int8.SCALE}" in scales):
            expected = "float16 or float32" if tensor.dtype == np.int8 else "int8, because it has scales"
            raise NanoEulerError(f"{file}: {name} must be {expected}, got {tensor.dtype}")
    return int8.restored(tensors)


def _read_tensors(file, shapes, dtypes=(np.float16, np.float32)):
    try:
        with safe_open(file, framework="numpy") as opened:
            stored = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
        if set(stored) != set(shapes):
            odd = sorted(set(stored) ^ set(shapes))[:4]
            raise NanoEulerError(f"{file}: missing or unknown tensors {short(odd)}")
        for name, shape in shapes.items():
            if stored[name] != shape:
                raise NanoEulerError(f"{file}: {name} must have shape {list(shape)}, got {list(stored[name])}")
        tensors = load_file(file)
    except NanoEulerError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        # a damaged header can cause any of these
        raise NanoEulerError(f"{file}: not readable as safetensors ({one_line(str(error), 200)})") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            raise NanoEulerError(f"{file}: {name} must be float16 or float32, got {tensor.dtype}")
        if not np.isfinite(tensor).all():
            raise NanoEulerError(f"{file}: {name} must hold finite numbers, got NaN or infinity")
    return tensors


def _filled(config, tensors, prefix=""):
    params = Parameters(config)
    for name, view in params.items():
        view[...] = tensors[prefix + name]
    return params
