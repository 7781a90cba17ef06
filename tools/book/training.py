"""Write `live/stories.js`, the stories on which a model in a page trains; a page loads it on a reader's click.

A reader without JavaScript sees an image of class `live-training`. The file has the stories as ids of nine bits, first
the held-out stories, then the training stories. It also has the held-out stories' bits per byte under the source that
wrote them and under a trigram model of the training stories, and the loss curves of stored runs: a correct run and a
run with each mistake that a reader can choose.

    python -m tools.book.training _build/stories.js    # only this file
"""

import base64
import json
import math
import sys
from pathlib import Path

import numpy as np
from sphinx.application import Sphinx

import konigsberg
from nanoeuler_book.ngram import Ngrams
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.model.parameters import parameter_shapes
from nanoeuler_lib.text import data
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.book.live import MODEL, ROOT, tokenizer_for_page, write_if_new

SCRIPT = "live/stories.js"
CONFIG = ModelConfig(dim=48, heads=4, kv_heads=2, layers=2, context=128, vocab_size=512, predict=1)
TRAIN_BYTES, TRAIN_SEED = 2_100_000, 47001
HELD_BYTES, HELD_SEED = 10_000, 47002
RUNS = ROOT / "data/results/live_training.json"  # of experiments/live_training.py
STRENGTH = 0.3  # the trigram's, the best of 0.1, 0.3, 1, 2 and 4 on the held-out stories themselves


def pack(ids: np.ndarray, bits: int = 9) -> bytes:
    """Pack ids below 2^bits into bytes without gaps, the lowest bit first."""
    return np.packbits((ids[:, None] >> np.arange(bits)) & 1, bitorder="little").tobytes()


def trigram_bits(train: data.Tokens, held: data.Tokens) -> float:
    """Return the bits per byte of held-out stories under a trigram model that has counted the training stories."""
    inputs, targets = data.validation_rows(held, CONFIG.context)
    p = Ngrams(train.ids, CONFIG.vocab_size, 3, STRENGTH).probability(inputs, targets)
    return float(-np.log2(p[targets >= 0]).sum() / held.bytes)


def curves() -> dict[str, list[list[float]]]:
    """Return a loss curve per mistake ("" for none): tokens and held-out bits per byte, means over the runs' seeds."""
    rows = json.loads(RUNS.read_text("utf-8"))["rows"]
    named = {row["broken"]: [other["curve"] for other in rows if other["broken"] == row["broken"]] for row in rows}
    return {broken: np.mean(runs, axis=0).round(3).tolist() for broken, runs in named.items()}


def page_data(train_bytes: int = TRAIN_BYTES, held_bytes: int = HELD_BYTES) -> dict:
    """Return the data for `NanoEuler.Training` in live/training.js."""
    tokenizer: Tokenizer = load_pretrained(MODEL)[1]
    texts = konigsberg.corpus(train_bytes, TRAIN_SEED), konigsberg.corpus(held_bytes, HELD_SEED)
    train, held = (data.tokenize(text, tokenizer) for text in texts)
    ids = np.concatenate([held.ids[:-1], train.ids]).astype(np.int64)
    return {
        "config": CONFIG.to_dict(),
        "tensors": [(name, math.prod(shape)) for name, shape in parameter_shapes(CONFIG).items()],
        "tokenizer": tokenizer_for_page(tokenizer),
        "held": len(held.starts),
        "count": len(train.starts),
        "floor": round(konigsberg.floor(texts[1]), 4),
        "trigram": round(trigram_bits(train, held), 4),
        "curves": curves(),
        "length": len(ids),
        "ids": base64.b64encode(pack(ids)).decode(),
    }


def write_stories(path: Path) -> bool:
    """Write the file of stories unless it is up to date; return whether the file was written."""
    return write_if_new(path, "stories", "stories of Königsberg", Path(__file__), page_data)


def write_stories_of_build(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        write_stories(Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_stories_of_build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_stories(Path(sys.argv[1]))
