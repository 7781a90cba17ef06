"""Chapter A4: time the notebook's trainers on books, and compare the tokenizer's speed and compression with its peers.

    NANOEULER_DATA=... make results CH=A4

Needs the corpora of `benchmarks/tokenizer.py` and its peers (`make oracle`, and rustbpe). Other work on the machine
increases the peers' wall-clock times; the config records the load before and after.
"""

import ast
import importlib.metadata
import lzma
import os
import statistics
from collections import Counter
from functools import partial
from pathlib import Path
from time import process_time

import nbformat

import konigsberg
from benchmarks import tokenizer as peers
from nanoeuler_lib.text.tokenizer import Tokenizer, count_words, find_merges, split_words
from tools.notebooks.results import ROOT, save

LADDER_VOCABULARY, LADDER_SECONDS = 1024, 30  # a trainer gets no larger text once it would take so long
LADDER_BYTES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 77_000_000)
VOCABULARIES = [512, 1024, 2048, 4096, 8192, 16384]
ROUNDS = 3


def notebook_functions() -> dict:
    """Return the imports, functions and classes of the chapter's cells."""
    names: dict = {}
    notebook = nbformat.read(ROOT / "notebooks" / "A4_fast_tokenizer.ipynb", as_version=4)
    for cell in notebook.cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
                exec(compile(ast.Module([node], []), "A4_fast_tokenizer", "exec"), names)
    return names


def ladder(text: str) -> list[dict]:
    """Time each trainer of the chapter on prefixes of the text: processor seconds, medians of at most three runs."""
    names = notebook_functions()
    merge_word = names["merge_word"]
    trainers = {
        "plain": (split_words, names["train_bpe"]),
        "distinct words": (
            names["count_plainly"],
            partial(names["train_distinct"], count=names["pair_counts"]),
        ),
        "index": (names["count_plainly"], partial(names["train_indexed"], merge_word=merge_word)),
        "lazy heap": (names["count_plainly"], partial(names["train_heap"], merge_word=merge_word)),
        "library": (count_words, find_merges),
    }
    rows, number = [], LADDER_VOCABULARY - 257
    for size in LADDER_BYTES:
        part, merges = text.encode()[:size].decode(errors="ignore"), []
        for name, (prepare, train) in list(trainers.items()):
            costs: list[tuple[float, float]] = []
            while len(costs) < 3 and sum(map(sum, costs)) < LADDER_SECONDS / 3:
                start = process_time()
                counted = prepare(part)
                middle = process_time()
                merges.append(train(counted, number))
                costs.append((middle - start, process_time() - middle))
            words, merging = map(statistics.median, zip(*costs, strict=True))
            rows.append({"what": "ladder", "who": name, "bytes": size, "words": words, "merging": merging})
            print(rows[-1], flush=True)
            if (words + merging) * 3 > LADDER_SECONDS:
                del trainers[name]
        assert all(found == merges[0] for found in merges), f"other merges at {size} bytes"
    return rows


def words(text: str) -> list[dict]:
    """Count words, pieces, distinct words and distinct pieces in prefixes of the text, and the words by rank."""
    rows = []
    for size in LADDER_BYTES:
        part = text[:size]
        counted, pieces = count_words(part), Counter(part.split(" "))
        rows.append(
            {
                "what": "distinct",
                "bytes": len(part.encode()),
                "words": counted.total(),
                "distinct_words": len(counted),
                "pieces": pieces.total(),
                "distinct_pieces": len(pieces),
            }
        )
    counts = sorted(counted.values(), reverse=True)
    ranks = sorted({round(10 ** (i / 8)) for i in range(60)})
    return rows + [{"what": "zipf", "rank": r, "count": counts[r - 1]} for r in ranks if r <= len(counts)]


def compression(name: str, text: str, held_out: str) -> list[dict]:
    """Return the bytes per token of held-out text; a smaller vocabulary is the first part of a larger one."""
    merges = Tokenizer.train(text, max(VOCABULARIES)).merges
    rows = []
    for size in VOCABULARIES:
        tokenizer = Tokenizer(merges[: size - 257])
        parts = [tokenizer.encode(document) for document in held_out.split(konigsberg.SEPARATOR)]
        tokens, used = sum(map(len, parts)), {int(id) for part in parts for id in part}
        total = sum(len(document.encode()) for document in held_out.split(konigsberg.SEPARATOR))
        rows.append(
            {
                "what": "compression",
                "text": name,
                "asked": size,
                "vocabulary": tokenizer.vocab_size,
                "bytes_per_token": total / tokens,
                "used": len(used),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    data = Path(os.environ["NANOEULER_DATA"])
    with lzma.open(data / peers.CORPORA[0]) as corpus:
        books = corpus.read(77 * peers.MB).decode(errors="ignore")
    rows = ladder(books) + words(books)
    with lzma.open(data / "books/books_val.txt.xz", "rt", encoding="utf-8") as file:
        rows += compression("books", books, file.read())
    rows += compression("stories", konigsberg.corpus(5_000_000, seed=0), konigsberg.corpus(1_000_000, seed=1))
    for row in peers.reference(data) + peers.fuzz(data) + peers.exact(data):
        rows.append({"what": "equal", "to": row.pop("what"), **row})
    loads = [round(os.getloadavg()[0], 1)]
    rows += [{"what": "train", **row} for row in peers.train(data, ROUNDS)]
    rows += [{"what": "encode", **row} for row in peers.encode(data, ROUNDS)]
    loads.append(round(os.getloadavg()[0], 1))
    config = {
        "vocabulary": peers.VOCAB_SIZE,
        "ladder_vocabulary": LADDER_VOCABULARY,
        "rounds": ROUNDS,
        "load": loads,
        "versions": {name: importlib.metadata.version(name) for name in ("tokenizers", "tiktoken", "rustbpe")},
    }
    save("chA4", config, rows)


if __name__ == "__main__":
    main()
