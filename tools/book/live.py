"""The models that run in the book's own pages: what a page loads, and which pages do.

An image of class `live-model` or `live-cuts` is what a reader without JavaScript sees; the script live/page.js puts an
instrument in its place. This extension gives such a page the scripts, and writes `live/konigsberg.js` into the built
book: the weights, the vocabulary and, for some stories, the probability of each next token under the grammar that wrote
them.

    python -m tools.book.live _build/live.js    # that file alone
"""

import base64
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from threadpoolctl import threadpool_limits

from nanoeuler_lib import world
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import PRETRAINED, load_pretrained
from nanoeuler_lib.world.grammar import Branch, Mark, Reader, Slot, Tale
from nanoeuler_lib.world.grammar import Path as Derivation
from nanoeuler_lib.world.stories import PHRASES, tell

ROOT = Path(__file__).resolve().parents[2]
MODEL = "konigsberg-small"
CLASSES = {"live-model", "live-cuts"}
SCRIPT = "live/konigsberg.js"
# The stories whose source is looked up; chapter 14 looks at the first. No model has seen these seeds in training.
STORIES = [("errand", 8), *((kind, seed) for seed in (7001, 7002, 7003) for kind in world.KINDS)]


# ---- The true source, token by token


class Text(NamedTuple):
    """A text that a step may give, as far as it has been followed."""

    told: bytes
    rest: tuple[bytes | Slot | Mark, ...]
    share: float
    drawn: dict


class TokenReader(Reader):
    """Reads a story as `Reader` does, and says at each of its tokens what the source might have said there.

    The source chooses texts and not tokens, so the probability of a token is that of all texts whose tokens begin as
    ours and go on with it. Which tokens a word becomes is known when the word is complete: each text is followed to the
    end of the word in which the next token lies. A step of a story begins and ends where a word does.

    `next[i]` is {token: probability} before token i of the story.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        super().__init__(text.encode())
        self.tokenizer = tokenizer
        self.ids = [int(token) for token in tokenizer.encode(text)]
        self.starts = list(accumulate((len(tokenizer.token_bytes[token]) for token in self.ids), initial=0))
        self.next: list[dict[int, float]] = []

    def choose(self, roots: list[Branch], branches: Callable[..., list[Branch]]) -> Derivation:
        start, first = self.at, len(self.next)
        path = super().choose(roots, branches)
        step = self.text[start : path.at]
        texts = [Text(b"", root.parts, root.share, {}) for root in roots]
        for number in range(first, self.starts.index(path.at)):
            known = step[: self.starts[number] - start]
            texts = followed(texts, known, branches)
            word = max(0, known.rfind(b" "))
            before = self.ids[self.starts.index(start + word) : number]
            found = defaultdict(float)
            for text in texts:
                ids = self._encode(text.told[word : word_end(text.told, known)])
                if ids[: len(before)] == before:
                    found[ids[len(before)]] += text.share
            total = sum(found.values())
            self.next.append({token: share / total for token, share in found.items()})
        return path

    @cache  # noqa: B019  the reader lives for one story
    def _encode(self, word: bytes) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(word.decode())]


def word_end(told: bytes, known: bytes) -> int | None:
    """Where the first word behind `known` ends in `told`; None if a later part may lengthen it."""
    end = told.find(b" ", len(known) + 1)
    return None if end < 0 else end


def followed(texts: list[Text], known: bytes, branches: Callable[..., list[Branch]]) -> list[Text]:
    """Those of the texts that begin with `known`, each as far as the end of the word that goes on there."""
    stack, found = list(texts), []
    while stack:
        text = stack.pop()
        told, rest, share, drawn = text
        common = min(len(told), len(known))
        if told[:common] != known[:common]:
            continue
        if not rest or word_end(told, known) is not None:
            found.append(text)
        elif isinstance(rest[0], Slot):
            for way in branches(rest[0], drawn):
                now = drawn | {rest[0].name: way.draws} if way.draws else drawn
                stack.append(Text(told, way.parts + rest[1:], share * way.share, now))
        else:
            part = rest[0].text if isinstance(rest[0], Mark) else rest[0]
            stack.append(Text(told + part, rest[1:], share, drawn))
    return found


def next_tokens(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[dict[int, float]]]:
    """The ids [T] of a story, and what the source says at each and behind the last: T+1 times {token: probability}.

    Raises NanoEulerError if the text is no story of Königsberg.
    """
    reader = TokenReader(text, tokenizer)
    tell(Tale(reader, PHRASES))
    return reader.ids, [*reader.next, {tokenizer.special_tokens[END_OF_TEXT]: 1.0}]


# ---- The file that a page loads


def story_for_page(kind: str, seed: int, tokenizer: Tokenizer) -> dict:
    """A story's ids, and before each and behind the last what the source says: [id, probability, ...], likely first."""
    ids, rows = next_tokens(world.sample(seed, kind).text, tokenizer)
    likely_first = [sorted(row.items(), key=lambda item: (-item[1], item[0])) for row in rows]
    return {
        "kind": kind,
        "ids": ids,
        "next": [[x for token, p in row for x in (token, float(f"{p:.4g}"))] for row in likely_first],
    }


def places(ids: list[int], model: GPT, tokenizer: Tokenizer) -> dict[str, int]:
    """Chapter 14's two places of a story: a fact of which the model is sure to about 0.9, the least sure free token."""
    text = tokenizer.decode(ids)
    truth = world.token_truth(text, [len(tokenizer.token_bytes[token]) for token in ids])
    with threadpool_limits(1, user_api="blas"):  # a build has other work for the other cores
        logits = model.logits(np.array([[tokenizer.special_tokens[END_OF_TEXT], *ids]]))[0, :-1].astype(
            np.float64
        )
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1)
    fact = min(np.flatnonzero(truth.tag == world.FACT), key=lambda i: abs(p[i].max() - 0.9))
    free = max(np.flatnonzero(truth.tag == world.FREE), key=lambda i: entropy[i])
    return {"fact": int(fact), "free": int(free)}


def page_data(name: str = MODEL) -> dict:
    """What `NanoEuler.unpack` in live/model.js reads; of the heads only the first, the others guess further ahead."""
    model, tokenizer = load_pretrained(name)
    arrays = dict(model.params) | {"heads": model.params["heads"][:, : model.config.vocab_size]}
    halves = {key: array.astype("<f2") for key, array in arrays.items()}
    if not all(np.array_equal(halves[key], arrays[key]) for key in arrays):
        raise ValueError(f"the weights of {name} are not 16-bit numbers: the page would compute other logits")
    stories = [story_for_page(kind, seed, tokenizer) for kind, seed in STORIES]
    return {
        "config": model.config.to_dict(),
        "tokenizer": {
            "byteOrder": list(tokenizer.byte_order),
            "merges": [list(pair) for pair in tokenizer.merges],
            "specials": list(tokenizer.special_tokens),
        },
        "tensors": [(key, array.size) for key, array in halves.items()],
        "stories": stories,
        "places": places(stories[0]["ids"], model, tokenizer),
        "weights": base64.b64encode(b"".join(array.tobytes() for array in halves.values())).decode(),
    }


def digest() -> str:
    """Changes with all that the file is made from."""
    made_from = [
        *sorted((PRETRAINED / MODEL).iterdir()),
        *sorted(Path(world.__file__).parent.glob("*.py")),
        Path(__file__),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in made_from)).hexdigest()


def write_script(path: Path) -> bool:
    """Write the file unless it is there already; whether it was written."""
    head = f"// {MODEL} and its true source, by tools/book/live.py. {digest()}\n"
    if path.exists() and path.open().readline() == head:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{head}NanoEuler.data = {json.dumps(page_data(), separators=(',', ':'))};\n")
    return True


# ---- In the build


def add_scripts(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """The page with an instrument gets what it needs, others nothing; the weights come when a reader looks at it."""
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
