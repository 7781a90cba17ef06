"""Exchange models with other programs: export a run to Hugging Face or GGUF, and import weights as a run. Chapter 34.

`layout` converts the order of weights and `tokenizers` converts vocabularies. `llama`, `gpt2_folder`, `gguf` and
`llama2c` read and write the files. `release` writes everything that a publisher of a model needs into one folder.
To support another architecture, add a line to READERS. `nanoeuler export`, `import` and `release` use this package.
"""

import platform
from datetime import UTC, datetime
from pathlib import Path

from nanoeuler_lib import __version__
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import expect_new, to_json, write_text, writing
from nanoeuler_lib.formats import gguf, gpt2_folder, llama, llama2c, tokenizers
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer, read_json
from nanoeuler_lib.training import run_folder
from nanoeuler_lib.training.checkpoint import Checkpoint, load

WRITERS = {  # (architecture of a run, format) -> a function of (checkpoint, path, dtype)
    ("llama", "hf"): llama.export, ("llama", "gguf"): gguf.export, ("gpt2", "hf"): gpt2_folder.export,
}  # fmt: skip
# model_type in config.json -> a function of (folder, values of config.json), which returns the model
READERS = {"llama": llama.read, "mistral": llama.read, "gpt2": gpt2_folder.read}


def export(run: str | Path, to: str, out: str | Path, dtype: str = "float32") -> list[str]:
    """Write a run or a checkpoint in the format of other programs, with prediction head 0 only.

    run: folder of a run or a checkpoint; to: "hf" (Hugging Face folder) or "gguf" (llama.cpp); out: the new folder or
    file; dtype: of the weights, "float32" or "bfloat16", to which they are rounded (ties to even). Returns texts that
    list what the format leaves out. Raises NanoEulerError if `out` exists, the dtype is another, or the format cannot
    hold the run.
    """
    expect_new(out, parents=True)
    if dtype not in llama.DTYPES:
        raise NanoEulerError(f"dtype must be one of {', '.join(llama.DTYPES)}, got {short(dtype)}")
    checkpoint = load(run)
    return write(checkpoint, *forms_of(checkpoint, [to]), Path(out), dtype)


def forms_of(checkpoint: Checkpoint, asked: list[str]) -> list[str]:
    """Return `asked`, or all formats that can hold the model. Raises NanoEulerError for one that cannot be written."""
    own = getattr(checkpoint.model.config, "architecture", "llama")
    there = [to for architecture, to in WRITERS if architecture == own]
    for to in set(asked).difference(there):
        raise NanoEulerError(f"{checkpoint.path}: --to must be {' or '.join(there)} for a GPT-2, got {to}")
    if "gguf" in (forms := asked or there):
        gguf.package()  # raises before anything is written
    return forms


def write(checkpoint: Checkpoint, to: str, out: Path, dtype: str = "float32") -> list[str]:
    """Write a checkpoint in a format of `forms_of`; return texts on what it leaves out. Raises what `export` raises."""
    config, left = checkpoint.model.config, []
    WRITERS[getattr(config, "architecture", "llama"), to](checkpoint, out, dtype)
    if config.predict > 1:
        weights = (config.predict - 1) * config.dim * config.vocab_size
        left.append(f"prediction heads 1 to {config.predict - 1}, {weights:,} weights: a Llama has one head")
    if (checkpoint.path / "optimizer.safetensors").exists():
        left.append("the optimiser's state, without which no run goes on")
    if dtype == "bfloat16":
        left.append("half of each weight's bits: bfloat16 keeps 8 significant ones")
    if to == "gguf" and checkpoint.tokenizer.end is None:
        left.append("an end of texts: the vocabulary has no token for it, and llama.cpp then takes number 11")
    return left


def import_run(path: str | Path, run: str | Path, tokenizer: str | Path | None = None) -> Checkpoint:
    """Import weights of other programs as a new run: a Hugging Face folder, or a checkpoint file of llama2.c.

    path: the folder with config.json and safetensors, or the file; run: folder of the new run; tokenizer: a
    tokenizer.json, a tokenizer.bin of llama2.c or a tokenizer of this library, by default the one next to the weights.
    Everything is read before anything is written. Raises NanoEulerError if a file is missing, damaged or of a kind that
    this library does not support.
    """
    path, run = Path(path), Path(run)
    run_folder.expect_new(run)
    try:
        beside = path / "tokenizer.json" if path.is_dir() else path.with_name("tokenizer.bin")
        model, vocabulary = _read(path, Path(tokenizer or beside))
    except OSError as error:
        raise NanoEulerError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from None
    info = {"source": str(path), "imported": True}
    if (settings := path / "tokenizer_config.json").is_file() and isinstance(found := read_json(settings), dict):
        names = [name for name in llama.TEMPLATES if llama.jinja(name) == found.get("chat_template")]
        info |= {"template": names[0]} if names else {}  # only if this library exported the folder
    checkpoint = Checkpoint(run, model, vocabulary, 0, None, None, info)
    description = {
        "version": __version__, "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}", "model": model.config.to_dict(), "train": {},
        "data": info,
    }  # fmt: skip
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
    with run_folder.sole_writer(run):
        write_text(run / "run.json", to_json(description, indent=1) + "\n")
        write_text(run / "log.jsonl", "")
        run_folder.save(run, checkpoint, 0)
    return checkpoint


def _read(path: Path, tokenizer: Path) -> tuple[GPT, Tokenizer]:
    """Return the model and the vocabulary; the small files are read first, so that their errors come early."""
    needed = path / "config.json" if path.is_dir() else path
    if not needed.is_file():  # also false for a pipe, on which reading would block
        raise NanoEulerError(f"{needed}: no such file, expected a Hugging Face folder or a file of llama2.c")
    values = read_json(needed) if path.is_dir() else {}
    kind = values.get("model_type") if isinstance(values, dict) else None
    if path.is_dir() and str(kind) not in READERS:
        raise NanoEulerError(f"{path}: model_type must be {' or '.join(READERS)}, got {short(kind)}")
    vocabulary = _vocabulary(path, tokenizer, values)
    model = READERS[kind](path, values) if path.is_dir() else llama2c.read(path)
    if vocabulary.vocab_size > (size := model.config.vocab_size):
        most = f"must have at most the model's {size} tokens"
        raise NanoEulerError(f"{tokenizer}: tokenizer {most}, got {vocabulary.vocab_size}")
    return model, vocabulary


def _vocabulary(path, tokenizer, values):
    own = tokenizer == path / "tokenizer.json"
    if own and not tokenizer.is_file() and (path / "vocab.json").is_file():  # the files that GPT-2 was published with
        return Tokenizer.from_gpt2(path / "vocab.json", path / "merges.txt")
    if not tokenizer.is_file():
        raise NanoEulerError(f"{tokenizer}: no such file: name a tokenizer.json or tokenizer.bin with --tokenizer")
    with open(tokenizer, "rb") as opened:
        as_json = opened.read(1) == b"{"
    ends = (_first(values.get(name)) for name in ("bos_token_id", "eos_token_id"))
    return tokenizers.read(tokenizer, *ends) if as_json else llama2c.read_tokenizer(tokenizer)


def _first(ids):
    """Return an id from config.json, the first one of a list, or None if it is not an integer."""
    ids = ids[0] if isinstance(ids, list) and ids else ids
    return ids if type(ids) is int else None
