"""Write the models that run in the book's pages, and add scripts to the pages that load them.

A reader without JavaScript sees an image of class `live-model`, `live-cuts` or `live-training`; the script live/page.js
replaces the image by an interactive demo. This extension adds the scripts to such a page, and writes
`live/konigsberg.js` into the built book. This file has the weights, the vocabulary and, for some stories, the
probability of each next token under the grammar that wrote them. If the package has an English model, its weights are
in `live/english.js` and in parts `live/english-0.js` and so on, of PIECE bytes each, which load one by one after a
reader's click. tools/book/training.py writes the file that `live-training` loads.

    python -m tools.book.live _build/konigsberg.js    # only the models' files
"""

import base64
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from docutils import nodes
from safetensors.numpy import load_file
from sphinx.application import Sphinx
from threadpoolctl import threadpool_limits

import konigsberg
from nanoeuler_book import town
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import GPT, int8
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import PRETRAINED, load_pretrained, read_head

ROOT = Path(__file__).resolve().parents[2]
MODEL, ENGLISH = "konigsberg-small", "english-small"
PIECE = 750_000  # a megabyte in base 64
CLASSES = {"live-model", "live-cuts", "live-training"}
SCRIPT = "live/konigsberg.js"
# The stories whose source is looked up; chapter 14 looks at the first. No model has seen these seeds in training.
STORIES = [("errand", 8), *((kind, seed) for seed in (7001, 7002, 7003) for kind in konigsberg.KINDS)]


# ---- The file that a page loads


def story_for_page(kind: str, seed: int, tokenizer: Tokenizer) -> dict:
    """Return a story's ids and the source's next-token distribution at each position: [id, probability, ...]."""
    ids, rows = town.next_tokens(konigsberg.sample(seed, kind).text, tokenizer)
    likely_first = [sorted(row.items(), key=lambda item: (-item[1], item[0])) for row in rows]
    return {
        "kind": kind,
        "ids": ids,
        "next": [[x for token, p in row for x in (token, float(f"{p:.4g}"))] for row in likely_first],
    }


def places(ids: list[int], model: GPT, tokenizer: Tokenizer) -> dict[str, int]:
    """Return chapter 14's positions in a story: a fact with confidence near 0.9, and the most uncertain free token."""
    text = tokenizer.decode(ids)
    truth = konigsberg.token_truth(text, [len(tokenizer.token_bytes[token]) for token in ids])
    with threadpool_limits(1, user_api="blas"):  # a build has other work for the other cores
        logits = model.logits(np.array([[tokenizer.special_tokens[END_OF_TEXT], *ids]]))[0, :-1].astype(np.float64)
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)
    fact = min(np.flatnonzero(truth.tag == konigsberg.FACT), key=lambda i: abs(p[i].max() - 0.9))
    free = max(np.flatnonzero(truth.tag == konigsberg.FREE), key=lambda i: entropy[i])
    return {"fact": int(fact), "free": int(free)}


def tokenizer_for_page(tokenizer: Tokenizer) -> dict:
    """Return the data from which live/model.js makes a `NanoEuler.Tokenizer`."""
    return {
        "byteOrder": list(tokenizer.byte_order),
        "merges": [list(pair) for pair in tokenizer.merges],
        "specials": list(tokenizer.special_tokens),
    }


def page_data(name: str = MODEL, english: dict | None = None) -> dict:
    """Return the data for `NanoEuler.unpack` in live/model.js, with only the head that predicts the next token.

    english: facts about the English model for a page that has not loaded it yet; None if there is no such model.
    """
    model, tokenizer = load_pretrained(name)
    arrays = dict(model.params) | {"heads": model.params["heads"][:, : model.config.vocab_size]}
    halves = {key: array.astype("<f2") for key, array in arrays.items()}
    if not all(np.array_equal(halves[key], arrays[key]) for key in arrays):
        raise ValueError(f"the weights of {name} are not 16-bit numbers: the page would compute other logits")
    stories = [story_for_page(kind, seed, tokenizer) for kind, seed in STORIES]
    return {
        "config": model.config.to_dict(),
        "tokenizer": tokenizer_for_page(tokenizer),
        "tensors": [(key, array.size) for key, array in halves.items()],
        "stories": stories,
        "places": places(stories[0]["ids"], model, tokenizer),
        "weights": base64.b64encode(b"".join(array.tobytes() for array in halves.values())).decode(),
        "english": english,
    }


def english_data(folder: Path) -> tuple[dict, bytes]:
    """Return the data for `NanoEuler.unpackBytes` in live/model.js, and the integer weights, to be split into parts."""
    model, tokenizer = load_pretrained(folder.name)
    stored = load_file(folder / "model.safetensors")
    tensors, floats, weights = [], [], []
    heads, kind = model.config.predict, stored["heads"].dtype
    if (heads, kind) != (1, np.int8):
        raise NanoEulerError(f"{folder}: must have 1 head of int8, which the page can read, got {heads} of {kind}")
    for name, array in model.params.items():
        tensors.append((name, *([0, *array.shape][-2:])))
        floats.append(stored.get(f"{name}{int8.SCALE}", stored[name]).astype("<f4").tobytes())
        weights.append(stored[name].tobytes() if array.ndim == 2 else b"")
    data = {
        "config": model.config.to_dict(),
        "tokenizer": tokenizer_for_page(tokenizer),
        "tensors": tensors,
        "floats": base64.b64encode(b"".join(floats)).decode(),
        "parts": [],
    }
    return data, b"".join(weights)


def write_english(folder: Path) -> dict | None:
    """Write the English model's files into `folder`, unless they are up to date.

    Returns the number of parts, the total bytes, and the source and licence of the training text. If the package has no
    English model, old files are deleted, and the result is None.
    """
    if not (PRETRAINED / ENGLISH / "checkpoint.json").is_file():
        for file in folder.glob("english*.js"):
            file.unlink()
        return None
    data, weights = english_data(PRETRAINED / ENGLISH)
    pieces = [base64.b64encode(weights[at : at + PIECE]).decode() for at in range(0, len(weights), PIECE)]
    if write_if_new(folder / "english.js", "english", ENGLISH, Path(__file__), lambda: data):
        for old in folder.glob("english-*.js"):
            old.unlink()
        for number, piece in enumerate(pieces):
            (folder / f"english-{number}.js").write_text(f'NanoEuler.english.parts[{number}] = "{piece}";\n')
    files = [folder / "english.js", *(folder / f"english-{number}.js" for number in range(len(pieces)))]
    info = read_head(PRETRAINED / ENGLISH)["info"]
    size = sum(file.stat().st_size for file in files)
    return {"parts": len(pieces), "bytes": size, "source": info["source"], "licence": info["licence"]}


def digest(maker: Path) -> str:
    """Return a hash of all sources of a file. maker: the module that makes the file."""
    made_from = [
        *sorted((PRETRAINED / MODEL).iterdir()),
        *sorted((PRETRAINED / ENGLISH).glob("*")),
        ROOT / "data/results/live_training.json",
        *sorted(Path(konigsberg.__file__).parent.glob("*.*")),
        *{Path(__file__), maker},
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(made_from))).hexdigest()


def write_if_new(path: Path, name: str, what: str, maker: Path, make: Callable[[], dict]) -> bool:
    """Write a file with `NanoEuler.name = ...` unless it is up to date; return whether the file was written."""
    head = f"// {what}, by tools/book/{maker.name}. {digest(maker)}\n"
    if path.exists() and path.open().readline() == head:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}NanoEuler.{name} = {json.dumps(make(), separators=(',', ':'))};\n")
    return True


def write_script(path: Path) -> bool:
    """Write the files of both models unless they are up to date; return whether the first model's file was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    english = write_english(path.parent)
    made = lambda: page_data(english=english)
    return write_if_new(path, "data", f"{MODEL} and its true source", Path(__file__), made)


# ---- In the build


def add_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Add the style and scripts of the demos to pages that have a demo; the scripts load the weights when needed."""
    if doctree and any(CLASSES & set(image["classes"]) for image in doctree.findall(nodes.image)):
        app.add_css_file("live/page.css")
        for script in ("live/model.js", "live/page.js"):
            app.add_js_file(script, loading_method="defer")


def write_weights(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        write_script(Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", write_weights)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_script(Path(sys.argv[1]))
