"""Write a release: a folder for publishing a model, with its weights in each format, a model card, hashes and a check.

    out/
        config.json, model.safetensors, tokenizer.json, ...     for transformers: head 0, float32
        model.gguf                  for llama.cpp
        nanoeuler/                  a checkpoint of this library, all heads, without the optimiser's state
        README.md                   the model card; loss.png and layers.png are its curves
        logits.safetensors          tokens [T] and the logits [T, V] that this library computes for them
        SHA256SUMS, check.py        hashes of all files but README.md, and a script that compares them

The model card takes its facts from the run, its log and the records of the corpora (`report.json` of
`nanoeuler corpus`). The publisher has to add all others: their lines contain BLANK, and `release` returns them. Paths
on this machine are left out. Chapter 34.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from safetensors.numpy import save_file

from nanoeuler_lib import __version__
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import expect_new, from_json, markdown, new_folder, one_line, sha256
from nanoeuler_lib.formats import forms_of, release_check, write
from nanoeuler_lib.text.chat_template import ASSISTANT, USER
from nanoeuler_lib.training import checkpoint as checkpoints
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.monitor import MEASURES, measured
from nanoeuler_lib.training.report import description, draw_layers, draw_loss, totals
from nanoeuler_lib.training.run_folder import read_log

BLANK = release_check.BLANK
PROBE = 16  # number of tokens in logits.safetensors
UNHASHED = {"README.md", "SHA256SUMS"}


def release(run: str | Path, out: str | Path, to: Iterable[str] = (), corpora: Iterable[str | Path] = ()) -> list[str]:
    """Write the release of a run or a checkpoint into a new folder. Returns the lines that must be filled in.

    run: folder of a run or a checkpoint; out: the new folder; to: "hf", "gguf" or both, by default every format that
    can hold the architecture; corpora: folders of `nanoeuler corpus` with the records of the text. They are needed for
    a run on shards, which do not record their texts; otherwise, records next to the run's texts are found. Raises
    NanoEulerError if `out` exists, a format cannot hold the run, a folder has no record, or the disk is full; then no
    folder is left.
    """
    run, out = Path(run), Path(out)
    expect_new(out, parents=True)
    records = [_record(Path(folder)) for folder in corpora]
    found = checkpoints.load(run)
    forms = forms_of(found, list(to))
    home = found.path.parents[1] if found.path.parent.name == "checkpoints" else None
    log, about = (read_log(home), description(home / "run.json")) if home else ([], {"data": {}})
    log = [entry for entry in log if entry["step"] <= found.step]
    texts = [*records, *_texts(found.info, bool(records))]
    with new_folder(out) as folder:
        _weights(found, forms, folder)
        _logits(found, folder / "logits.safetensors")
        curves = any("loss" in entry for entry in log)
        for name, draw in (("loss.png", draw_loss), ("layers.png", draw_layers)) if curves else ():
            (figure := draw(log)).savefig(folder / name)
            plt.close(figure)
        (folder / "check.py").write_text(Path(release_check.__file__).read_text("utf-8"), "utf-8")
        name = (home or found.path).resolve().name
        card = "\n".join(_card(name, found, log, about, texts, forms, curves)) + "\n"
        (folder / "README.md").write_text(card, "utf-8")
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        sums = "".join(f"{sha256(folder / file)}  {file}\n" for file in files if file not in UNHASHED)
        (folder / "SHA256SUMS").write_text(sums, "utf-8")
    return [f"README.md:{n}: {line}" for n, line in enumerate(card.splitlines(), 1) if BLANK in line]


def _weights(found: Checkpoint, forms: list[str], folder: Path) -> None:
    if "hf" in forms:
        write(found, "hf", folder / "hf")
        for file in (folder / "hf").iterdir():
            os.replace(file, folder / file.name)
        (folder / "hf").rmdir()
    if "gguf" in forms:
        write(found, "gguf", folder / "model.gguf")
    own, info = folder / "nanoeuler", checkpoints.public(found.info)
    checkpoints.save(own, found.model, found.tokenizer, found.step, found.train, None, info)


def _logits(found: Checkpoint, file: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, found.tokenizer.vocab_size, PROBE)
    tokens = tokens[: found.model.config.context]
    logits = found.model.logits(tokens[None])[0, :, : found.model.config.vocab_size]
    save_file({"tokens": tokens, "logits": np.ascontiguousarray(logits, np.float32)}, file)
    with suppress(OSError):  # safetensors makes the file readable only by its owner, whatever the umask
        shutil.copymode(file.with_name("nanoeuler") / "checkpoint.json", file)


# ---- The training texts


def _record(folder: Path) -> dict:
    """Return the facts in the report.json of a corpus. Raises NanoEulerError if it is missing or damaged."""
    try:
        report = from_json((folder / "report.json").read_text("utf-8"))
        return {name: report[name] for name in ("corpus", "about", "licence", "source", "parts")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise NanoEulerError(
            f"{folder / 'report.json'}: must be a record that nanoeuler corpus wrote next to a text"
        ) from None


def _texts(info: dict, told: bool) -> Iterator[dict | str]:
    """Yield each training text's record, or its name if none has its hash; told: skip the run's own records."""
    paths = [path for name, path in (info.get("files") or {}).items() if name.startswith("text") and path]
    paths += [info[name][0] for name in ("examples", "pairs", "questions") if name in info]
    if not paths and not told:
        yield markdown(checkpoints.public(info).get("source", "its text"))
    for path in map(Path, paths if not told else ()):
        try:
            record = _record(path.parent)
            if record["parts"][path.name]["sha256"] == sha256(path):
                yield record
                continue
        except (NanoEulerError, OSError, KeyError, TypeError):
            pass
        yield markdown(path.name)
    if "base" in info:
        try:
            yield from _texts(checkpoints.read_head(info["base"])["info"], False)
        except NanoEulerError:
            yield f"the texts of {markdown(checkpoints.public(info)['base'])}, the run whose model this one began with"


# ---- The card


def _card(name, found, log, about, texts, forms, curves) -> Iterator[str]:
    yield from ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    yield from [f"language: {BLANK}", f"license: {BLANK}", "---", "", f"# {markdown(name)}", ""]
    taught = {USER, ASSISTANT} <= found.tokenizer.special_tokens.keys()
    what = "It was taught to answer questions" if taught else "It continues texts; it was not taught to answer"
    yield f"A language model of {found.model.size:,} parameters, trained with NanoEuler {__version__}. {what}."
    yield from ["", f"Published by: {BLANK}", "", "| | |", "|:--|:--|"]
    facts = _facts(found, log, about)
    yield from (f"| {what} | {markdown(value)} |" for what, value in facts)
    yield from ["", "## Files", ""]
    if "hf" in forms:
        yield "* `config.json`, `model.safetensors`, `tokenizer.json` and their like: for transformers, in float32"
    if "gguf" in forms:
        yield "* `model.gguf`: for llama.cpp, in float32"
    yield f"* `nanoeuler/`: for `nanoeuler generate --run nanoeuler`, with all {found.model.config.predict} heads"
    yield "* `SHA256SUMS`, `logits.safetensors`, `check.py`: `python check.py` compares files, and what they compute"
    yield from ["", "## Texts, licences, attribution", ""]
    for text in texts:
        yield from _text(text)
    yield from ["", "The licence of the weights is the publisher's to choose, within what those of the texts allow."]
    yield from ["", "## Curves", "", *_curves(log, curves), "", "## Limits", ""]
    yield from (f"* {line}" for line in _limits(found))
    yield from ["", "## What it must not be used for", ""]
    yield "* Advice, and decisions about people: whether what it says is true was not measured."
    yield "* Texts that pass for a person's, or for a source: nobody checked the names and numbers that it writes."
    if any(isinstance(text, dict) for text in texts):
        yield "* What a licence above excludes."
    yield f"* Further uses that the publisher advises against: {BLANK}"


def _facts(found: Checkpoint, log: list[dict], about: dict) -> Iterator[tuple[str, object]]:
    c, info = found.model.config, found.info
    heads = f"{c.heads} query heads over {c.kv_heads} of keys and values"
    yield "shape", f"{c.layers} layers of width {c.dim}, {heads}, {c.ffn} wide inside"
    yield "reads", f"{c.context} tokens at a time, of {c.vocab_size}"
    yield "checkpoint", f"of step {found.step:,}"
    steps = [entry for entry in log if "loss" in entry]
    if steps and found.train:
        tokens, seconds, _, _ = totals(log, steps)
        text = about["data"].get("train_tokens")
        again = f", {tokens / text:.2g} times the {text:,} of its text" if text else ""
        yield "trained on", f"{tokens:,.0f} tokens{again}, in {seconds:,.0f} s of steps"
        t = found.train
        yield "by", f"{t.optimizer}, rate {t.rate:g}, batches of {t.batch * t.accumulate} rows, seed {t.seed}"
    if "machine" in about:
        yield "begun", f"{about.get('started')}, on {about['machine']}, with NanoEuler {about.get('version')}"
    yield from ((MEASURES[name], f"{info[name]:.4f}, held out") for name in filter(None, [measured(info)]))
    yield from ((f"of {markdown(name)}", f"{bits:.4f}") for name, bits in info.get("valid_sets", {}).items())


def _text(text: dict | str) -> Iterator[str]:
    if isinstance(text, str):
        yield f"* {text}: where it is from, its licence, and whom it asks to name: {BLANK}"
        return
    yield f"* {markdown(text['corpus'])}: {one_line(text['about'])}"
    yield f"    * licence: {one_line(text['licence'])}"
    yield f"    * source: {one_line(text['source'])}"
    for name, part in text["parts"].items():
        sizes = f"{part['documents']:,} documents, {part['bytes']:,} bytes"
        yield f"    * {markdown(name)}: {sizes}, SHA-256 {part['sha256']}"


def _curves(log, curves) -> Iterator[str]:
    if not curves:
        yield f"The log of the run is not here. Its curves: {BLANK}"
        return
    yield from ["![Loss and validation by step](loss.png)", "", "![Gradients and updates by step](layers.png)", ""]
    warnings = [one_line(entry["warning"], 2000) for entry in log if "warning" in entry]
    yield from ["", "The run warned:", "", *(f"* {text}" for text in warnings)] if warnings else []


def _limits(found) -> Iterator[str]:
    name, context = measured(found.info), found.model.config.context
    known = f"{MEASURES[name]} on text that was held out" if name else "nothing that is recorded here"
    yield f"The run measured {known}, and not whether what the model says is true, fair, harmless, or learnt by heart."
    if markers := [f"`{marker}`" for marker in found.tokenizer.special_tokens]:
        yield (
            f"In transformers and llama.cpp, {' and '.join(markers)} in a text that a user types is read as a marker; "
            "NanoEuler reads plain letters."
        )
    yield f"Beyond {context} tokens it forgets: what stands before them has no influence."
    yield "It is one run with one seed: how far another would be from it is not known."
    yield "It has its texts' subjects, their time, and what they thought of people."
