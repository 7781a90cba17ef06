"""An answer key to the question what a model knows: whoever decodes or edits its stream gets a score by one function.

    key = answers.make(*load_pretrained())
    answers.score(key, depth=1, edit=lambda x: x.twin)                      # a patch
    answers.score(key, depth=1, edit=lambda x: x.stream + move(x.becomes))  # a probe's direction, an autoencoder's, ...
    answers.score(key, depth=1, basis=mine)                                 # a rotation's subspace [D, k]
    answers.score(key, depth=4, read=mine)                                  # streams [M, D] to posteriors [M, n]

A key holds pairs of twins in two parts, of different stories: one to learn from, one that is scored. `save` writes it
as JSON and .npz, which any program reads; `load` reads it back. The methods of chapter 18 are its first rows.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoeuler_book.interpretability.edits import (
    STREAM,
    along,
    causal_subspace,
    forward,
    patch_effects,
    patched,
    random_moves,
    share_inside,
)
from nanoeuler_book.interpretability.probes import ridge
from nanoeuler_book.interpretability.twins import FACT, PERSON, Batch, batch_of, bits, names_of, pairs
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import from_json, new_folder, sha256, to_json, write_text
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer

FORMAT = "nanoeuler-answers-1"
RANK = 6  # eight names in two groups of a pronoun differ in three directions each
PLACES = 8  # of each row, where the posterior is given
MOST = 500  # pairs; their activations are held in memory
WEAK, STRONG = 1e-6, 1e2  # penalties of a probe (`probes.ridge`)


class Seen(NamedTuple):
    """What an edit is given: the streams at the names, [B, D], those of the twins, and who is who: [B], of `names`."""

    stream: np.ndarray
    twin: np.ndarray
    was: np.ndarray
    becomes: np.ndarray


class Part(NamedTuple):
    """Pairs that are learnt from or scored. L+1 depths, 0 the embedding.

    batch: continuations drawn by the person's law; fact: the same pairs, by the fact's law; stream, twin: [L+1, B, D]
    at the names; was, becomes: [B], indices of the key's names; unedited, best: bits a place of the model on the story
    and on the twin, by the person's law and the fact's, [2, B]; places: [M, D] streams of the twins' rows at some
    places, [L+1, M, D]; posterior: [M, n] there, or [M, 0].
    """

    batch: Batch
    fact: Batch
    stream: np.ndarray
    twin: np.ndarray
    was: np.ndarray
    becomes: np.ndarray
    unedited: np.ndarray
    best: np.ndarray
    places: np.ndarray
    posterior: np.ndarray

    def seen(self, depth: int) -> Seen:
        """What an edit is given at a depth: copies, which it may change."""
        return Seen(*(x.copy() for x in (self.stream[depth], self.twin[depth], self.was, self.becomes)))


class Key(NamedTuple):
    """The model, the people's names, both parts, and the causal subspace of each depth below the last.

    subspace: [L, D, k]; effects: nats that each direction saves, [L, k].
    """

    model: GPT
    names: tuple[str, ...]
    learn: Part
    held: Part
    subspace: np.ndarray
    effects: np.ndarray


def make(
    model: GPT,
    tokenizer: Tokenizer,
    count: int = 100,
    seed: int = 18,
    told: int = 1,
    posterior: Callable[[str], np.ndarray] | None = None,
) -> Key:
    """Make the key of a model of Königsberg.

    count: pairs in each part; told: steps of their beginnings, 1 or 2; posterior: of a story's text, what a reader
    of i tokens may believe, [T+1, n] (such as `posteriors.belief`). Raises NanoEulerError for a model of another kind
    or a context in which not all stories fit.
    """
    if not 2 <= count <= MOST:
        raise NanoEulerError(f"there are to be {count} pairs, expected 2 to {MOST}")
    if type(model.config) is not ModelConfig or model.config.context < 128:
        raise NanoEulerError(
            f"the model is a {type(model).__name__} of context {model.config.context}, expected a GPT with one of at "
            "least 128 tokens, in which every story fits"
        )
    names = tuple(name for group in names_of(tokenizer).values() for name in group)
    learnt = pairs(count, seed, told, tokenizer)
    known, scored = {pair.story for pair in learnt}, []
    while len(scored) < count:
        seed += 1
        scored += [pair for pair in pairs(count, seed, told, tokenizer) if pair.story not in known]
    parts = [_part(model, tokenizer, some[:count], names, seed, posterior) for some in (learnt, scored)]
    found = [
        causal_subspace(*patch_effects(model, parts[0].batch, depth), RANK) for depth in range(model.config.layers)
    ]
    return Key(model, names, *parts, *map(np.array, zip(*found, strict=True)))


def _part(model, tokenizer, some, names, seed, posterior):
    batches, sites, scores = [batch_of(some, law, tokenizer, seed) for law in (PERSON, FACT)], [], []
    for batch in batches:
        kept = [{}, {}]
        both = zip((batch.story, batch.twin), kept, strict=True)
        scores.append([bits(forward(model, tokens, kept=to), batch) for tokens, to in both])
        sites.append([np.stack([to[STREAM, i] for i in range(model.config.layers + 1)]) for to in kept])
    (batch, _), (story, twin) = batches, sites[0]  # [L+1, B, T, D]
    rng, row = np.random.default_rng(seed), np.repeat(batch.rows, PLACES)
    place = (rng.random(len(row)) * (batch.end[row] + 1)).astype(int)
    beliefs = np.zeros((len(row), 0))
    if posterior is not None:
        texts = [tokenizer.decode(ids[1 : end + 1]) for ids, end in zip(batch.twin, batch.end, strict=True)]
        each = [posterior(text) for text in texts]
        beliefs = np.array([each[i][at] for i, at in zip(row, place, strict=True)])
    streams = [stream[:, batch.rows, batch.place] for stream in (story, twin)]
    people = [np.array([names.index(getattr(pair, who)) for pair in some]) for who in ("was", "becomes")]
    unedited, best = np.array(scores).swapaxes(0, 1)
    return Part(*batches, *streams, *people, unedited, best, twin[:, row, place], beliefs)


# ---- The score


def score(
    key: Key,
    depth: int,
    edit: Callable[[Seen], np.ndarray] | None = None,
    basis: np.ndarray | None = None,
    read: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, float]:
    """Score a method at a depth of the stream, on the pairs that nobody learnt from.

    edit: of `Seen`, the streams [B, D] to be put at the names. "bits": KL(law || edited model) a place, by the person's
    law, beside "unedited" and "best", the model on the twin; "closed": how much of the gap between these two the edit
    closes; "by_fact": KL by the fact's law.
    basis: [D, k], whose columns span what a method takes for used. "inside": how much of the causal subspace lies in
    it, the mean squared cosine; "by_chance": that of a random one. (A method that reads [D] alone is a basis, too.)
    read: of streams [M, D], posteriors [M, n]; "posterior": KL(posterior || read), in bits; "prior": that of the mean
    posterior of the part to learn from.
    Raises NanoEulerError for a depth that is none, and for results of another shape or not finite.
    """
    part, depths = key.held, len(key.held.stream)
    last = depths - 1 if basis is None else depths - 2
    if not 0 <= depth <= last:
        raise NanoEulerError(f"depth is {depth}, expected 0 to {last}")
    found = {}
    if edit is not None:
        values = _expected("edit", edit(part.seen(depth)), part.stream[depth].shape)
        for law, batch in (("bits", part.batch), ("by_fact", part.fact)):
            site = {(STREAM, depth): patched(batch.place, values)}
            found[law] = bits(forward(key.model, batch.story, site), batch).mean()
        found |= {"unedited": part.unedited[0].mean(), "best": part.best[0].mean()}
        found["closed"] = (found["unedited"] - found["bits"]) / (found["unedited"] - found["best"])
    if basis is not None:
        wanted = key.subspace[depth]
        basis = np.asarray(basis, float)
        if basis.ndim != 2:
            raise NanoEulerError(f"basis is {list(basis.shape)}, expected [{len(wanted)}, k]")
        own = np.linalg.qr(_expected("basis", basis, (len(wanted), basis.shape[1])))[0]
        found |= {"inside": share_inside(wanted.T, own).mean(), "by_chance": own.shape[1] / len(own)}
    if read is not None:
        if not part.posterior.shape[1]:
            raise NanoEulerError("the key has no posteriors, expected one that was made with them")
        told = _expected("read", read(part.places[depth]), part.posterior.shape)
        for name, q in (("posterior", told), ("prior", key.learn.posterior.mean(axis=0))):
            ratio = np.log2(np.maximum(part.posterior, 1e-300)) - np.log2(np.maximum(q, 1e-300))
            found[name] = (part.posterior * ratio).sum(axis=1).mean()
    return {name: float(value) for name, value in found.items()}


def _expected(what, value, shape):
    value = np.asarray(value)
    if value.shape != shape or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise NanoEulerError(f"{what} gave {value.dtype} {list(value.shape)}, expected finite numbers {list(shape)}")
    return value


# ---- The chapter's own methods


def probe_of(key: Key, depth: int, penalty: float) -> np.ndarray:
    """What a ridge probe for the name reads along, [D, n]: fitted to the part to learn from, stories and twins.

    A strong penalty leaves the differences of the names' means, each coordinate by its variance; a weak one turns them
    away from where the stream varies.
    """
    part = key.learn
    both, who = np.concatenate([part.stream, part.twin], axis=1)[depth], np.append(part.was, part.becomes)
    probe = ridge(both.astype(float), np.eye(len(key.names))[who], penalty)
    return probe.weights[0][:-1] / probe.scale[:, None]


def methods(key: Key, depth: int, seed: int = 0) -> dict[str, Callable[[Seen], np.ndarray]]:
    """The chapter's edits at a depth: the patch, its part in the causal subspace and outside, and along directions."""
    basis, rng = key.subspace[depth], np.random.default_rng(seed)

    def probe(penalty):
        W = probe_of(key, depth, penalty).T
        return lambda x: along(x.stream, x.twin, W[x.becomes] - W[x.was])

    inside = lambda x: x.stream + (x.twin - x.stream) @ basis @ basis.T
    return {
        "patch": lambda x: x.twin,
        "causal subspace": inside,
        "all but it": lambda x: x.twin + x.stream - inside(x),
        "probe, weak penalty": probe(WEAK),
        "probe, strong penalty": probe(STRONG),
        "random, as far": lambda x: random_moves(x.stream, x.twin, rng),
    }


def rows(key: Key) -> list[dict]:
    """The scores of the chapter's methods at every depth that has a causal subspace."""
    return [
        {"method": name, "depth": depth} | score(key, depth, edit)
        for depth in range(len(key.subspace))
        for name, edit in methods(key, depth).items()
    ]


# ---- On the disk


def save(key: Key, folder: Path, tokenizer: Tokenizer, about: dict | None = None) -> None:
    """Write answers.json (names, texts, what is said about the key) and answers.npz (the rest) into a new folder.

    Raises NanoEulerError where that cannot be done; nothing is then left of the folder.
    """
    arrays = {}
    for name in ("learn", "held", "subspace", "effects"):
        arrays |= _flat(name, getattr(key, name))
    texts = {
        name: [
            [tokenizer.decode(row[1 : end + 1]) for row in rows]
            for *rows, end in zip(b.story, b.twin, b.end, strict=True)
        ]
        for name, b in (("learn", key.learn.batch), ("held", key.held.batch))
    }
    with new_folder(folder) as partial:
        np.savez_compressed(partial / "answers.npz", **arrays)
        head = {"format": FORMAT, "model": _digest(key.model), "arrays": sha256(partial / "answers.npz")}
        head |= {"names": key.names, **(about or {}), "texts": texts}
        write_text(partial / "answers.json", to_json(head, indent=1) + "\n")


def load(folder: Path, model: GPT) -> Key:
    """Read a key, and see that it is whole and this model's. Raises NanoEulerError where it is not."""
    try:
        head = from_json((folder / "answers.json").read_text("utf-8"))
        names, found = tuple(head["names"]), [head["format"], head["model"], head["arrays"]]
        expected = FORMAT, _digest(model), sha256(folder / "answers.npz")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NanoEulerError(f"{folder}: holds no answers that can be read ({type(error).__name__})") from None
    named = "format", "model", "SHA-256 of answers.npz"
    for what, value, wanted in zip(named, found, expected, strict=True):
        if value != wanted:
            raise NanoEulerError(f"{folder}: {what} is {short(value)}, expected {wanted}")
    with np.load(folder / "answers.npz", allow_pickle=False) as file:
        arrays = dict(file)
    parts = [_shaped(name, Part, arrays) for name in ("learn", "held")]
    return Key(model, names, *parts, arrays["subspace"], arrays["effects"])


def _flat(name, value):
    """The arrays of a named tuple, of such tuples in it, too, by name: {"learn.batch.story": array, ...}."""
    if not isinstance(value, tuple):
        return {name: value}
    return {k: v for part, each in value._asdict().items() for k, v in _flat(f"{name}.{part}", each).items()}


def _shaped(name, kind, arrays):
    """What `_flat` took apart."""
    if not hasattr(kind, "_fields"):
        return arrays[name]
    return kind(*(_shaped(f"{name}.{part}", of, arrays) for part, of in kind.__annotations__.items()))


def _digest(model):
    return hashlib.sha256(model.params.flat.tobytes()).hexdigest()
