"""The stories that a model in the page trains on: `live/stories.js`, which a page loads when its reader asks for it.

An image of class `live-training` is what a reader without JavaScript sees. The file holds the stories as ids of nine
bits, first those that measure, then those to learn from, and three numbers of the first: their bytes, and the bits per
byte of the source that wrote them and of a trigram that has counted all the others.

    python -m tools.book.training _build/stories.js    # that file alone
"""

import base64
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
from tools.book.live import MODEL, tokenizer_for_page, write_if_new

SCRIPT = "live/stories.js"
CONFIG = ModelConfig(dim=48, heads=4, kv_heads=2, layers=2, context=128, vocab_size=512, predict=1)
TRAIN_BYTES, TRAIN_SEED = 2_100_000, 47001
HELD_BYTES, HELD_SEED = 10_000, 47002
STRENGTH = 0.3  # the trigram's, the best of 0.1, 0.3, 1, 2 and 4 on the held-out stories themselves


def pack(ids: np.ndarray, bits: int = 9) -> bytes:
    """Ids below 2^bits, one behind the other, the lowest bit first."""
    return np.packbits((ids[:, None] >> np.arange(bits)) & 1, bitorder="little").tobytes()


def trigram_bits(train: data.Tokens, held: data.Tokens) -> float:
    """Bits per byte of held-out stories under a trigram of the others, each predicted from its beginning."""
    inputs, targets = data.validation_rows(held, CONFIG.context)
    p = Ngrams(train.ids, CONFIG.vocab_size, 3, STRENGTH).probability(inputs, targets)
    return float(-np.log2(p[targets >= 0]).sum() / held.bytes)


def page_data(train_bytes: int = TRAIN_BYTES, held_bytes: int = HELD_BYTES) -> dict:
    """What `NanoEuler.Training` in live/training.js reads."""
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
        "length": len(ids),
        "ids": base64.b64encode(pack(ids)).decode(),
    }


def write_stories(path: Path) -> bool:
    """Write the file unless it is there already; whether it was written."""
    return write_if_new(path, "stories", "stories of Königsberg", Path(__file__), page_data)


def write_stories_of_build(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        write_stories(Path(app.outdir) / "_static" / SCRIPT)


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_stories_of_build)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_stories(Path(sys.argv[1]))
