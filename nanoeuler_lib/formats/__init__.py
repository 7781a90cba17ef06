"""Other people's programs: a run as a Hugging Face folder or a GGUF file, and their weights as a run. Chapter 34.

`layout` is what differs, `tokenizers` the vocabulary; `llama`, `gpt2_folder`, `gguf` and `llama2c` are the files;
`release` is what one publishes, all of it together.
Another architecture comes in by a line of READERS.
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

WRITERS = {  # architecture of a run, and what is to come of it -> (checkpoint, path)
    ("llama", "hf"): llama.export, ("llama", "gguf"): gguf.export, ("gpt2", "hf"): gpt2_folder.export,
}  # fmt: skip
# model_type -> (folder, values of config.json) -> model
READERS = {"llama": llama.read, "mistral": llama.read, "gpt2": gpt2_folder.read}


def export(run: str | Path, to: str, out: str | Path) -> list[str]:
    """Write a run or a checkpoint for other programs: head 0 and all below it. Returns what is left behind, as texts.

    to: hf or gguf. Raises NanoEulerError where `out` exists, and where the format cannot hold the run.
    """
    expect_new(out, parents=True)
    checkpoint = load(run)
    return write(checkpoint, *forms_of(checkpoint, [to]), Path(out))


def forms_of(checkpoint: Checkpoint, asked: list[str]) -> list[str]:
    """The formats that were asked for; of none, all that hold the architecture. Raises NanoEulerError for another."""
    own = getattr(checkpoint.model.config, "architecture", "llama")
    there = [to for architecture, to in WRITERS if architecture == own]
    for to in set(asked).difference(there):
        raise NanoEulerError(f"{checkpoint.path}: is a GPT-2, and --to is {to}, expected {' or '.join(there)}")
    if "gguf" in (forms := asked or there):
        gguf.package()  # told before anything is written
    return forms


def write(checkpoint: Checkpoint, to: str, out: Path) -> list[str]:
    """Write a checkpoint in one of its formats. Returns and raises what `export` does."""
    config, left = checkpoint.model.config, []
    WRITERS[getattr(config, "architecture", "llama"), to](checkpoint, out)
    if config.predict > 1:
        weights = (config.predict - 1) * config.dim * config.vocab_size
        left.append(f"prediction heads 1 to {config.predict - 1}, {weights:,} weights: a Llama has one head")
    if (checkpoint.path / "optimizer.safetensors").exists():
        left.append("the optimiser's state, without which no run goes on")
    if to == "gguf" and checkpoint.tokenizer.end is None:
        left.append("an end of texts: the vocabulary has no token for it, and llama.cpp then takes number 11")
    return left


def import_run(path: str | Path, run: str | Path, tokenizer: str | Path | None = None) -> Checkpoint:
    """Make a run of other people's weights: a folder with config.json and safetensors, or a file of llama2.c.

    tokenizer: tokenizer.json, llama2.c's tokenizer.bin or one of this library's; by default the one beside the weights.
    Nothing is written before all is read. Raises NanoEulerError for all that is missing, damaged or of another kind.
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
        info |= {"template": names[0]} if names else {}  # of a run that this library exported
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
    """The model and the vocabulary. What is small is read first."""
    needed = path / "config.json" if path.is_dir() else path
    if not needed.is_file():  # nor is a pipe one, for which reading would wait
        raise NanoEulerError(f"{needed}: no such file, expected a Hugging Face folder or a file of llama2.c")
    values = read_json(needed) if path.is_dir() else {}
    kind = values.get("model_type") if isinstance(values, dict) else None
    if path.is_dir() and str(kind) not in READERS:
        raise NanoEulerError(f"{path}: model_type is {short(kind)}, expected {' or '.join(READERS)}")
    vocabulary = _vocabulary(path, tokenizer, values)
    model = READERS[kind](path, values) if path.is_dir() else llama2c.read(path)
    if vocabulary.vocab_size > (size := model.config.vocab_size):
        most = f"expected at most the model's {size}"
        raise NanoEulerError(f"{tokenizer}: tokenizer has {vocabulary.vocab_size} tokens, {most}")
    return model, vocabulary


def _vocabulary(path, tokenizer, values):
    own = tokenizer == path / "tokenizer.json"
    if own and not tokenizer.is_file() and (path / "vocab.json").is_file():  # as GPT-2 was published
        return Tokenizer.from_gpt2(path / "vocab.json", path / "merges.txt")
    if not tokenizer.is_file():
        raise NanoEulerError(f"{tokenizer}: no such file, expected --tokenizer FILE: tokenizer.json or tokenizer.bin")
    with open(tokenizer, "rb") as opened:
        as_json = opened.read(1) == b"{"
    ends = (_first(values.get(name)) for name in ("bos_token_id", "eos_token_id"))
    return tokenizers.read(tokenizer, *ends) if as_json else llama2c.read_tokenizer(tokenizer)


def _first(ids):
    """An id that config.json gives, the first of a list."""
    ids = ids[0] if isinstance(ids, list) and ids else ids
    return ids if type(ids) is int else None
