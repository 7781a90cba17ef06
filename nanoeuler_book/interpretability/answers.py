"""A benchmark for interpretability methods that decode or edit a model's residual stream, with known answers.

    key = answers.make(*load_pretrained())
    answers.score(key, depth=1, edit=lambda x: x.twin)                      # a patch
    answers.score(key, depth=1, edit=lambda x: x.stream + move(x.becomes))  # a probe's direction, an autoencoder's, ...
    answers.score(key, depth=1, basis=mine)                                 # a rotation's subspace [D, k]
    answers.score(key, depth=4, read=mine)                                  # streams [M, D] to posteriors [M, n]

A key contains pairs of twins (`twins`) in two parts from different stories, one for training and one for scoring.
`save` writes a key as JSON and .npz, `load` reads it back, and `rows` scores the methods of chapter 18.
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
from nanoeuler_book.interpretability.twins import FACT, PERSON, Batch, batch_of, bits, named, names_of, pairs
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import from_json, new_folder, sha256, to_json, write_text
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer

FORMAT = "nanoeuler-answers-1"
RANK = 6  # of the subspace: four names per pronoun differ in three directions, for two pronouns
PLACES = 8  # positions per row at which the posterior is given
MOST = 500  # pairs at most, because their activations are held in memory
WEAK, STRONG = 1e-6, 1e2  # penalties of a probe (`probes.ridge`)


class Seen(NamedTuple):
    """Input of an edit: the residual streams of story and twin at the name [B, D], and both names as indices [B]."""

    stream: np.ndarray
    twin: np.ndarray
    was: np.ndarray
    becomes: np.ndarray


class Part(NamedTuple):
    """Pairs of twins for training or scoring, with the residual stream at depths 0 (the embedding) to L.

    batch: the pairs with continuations drawn from the person's distribution; fact: the same pairs with continuations
    drawn from the fact's distribution; stream, twin: the streams at the names, [L+1, B, D]; was, becomes: [B], indices
    of the key's names; unedited, best: KL(source || model) in bits per position, on the story (unedited) and on the
    twin (best), for both distributions, [2, B]; places: streams of the twins' rows at M random positions, [L+1, M, D];
    posterior: the posteriors at these positions, [M, n], or [M, 0] without posteriors.
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
        """Return the input of an edit at a depth, as copies that the edit may change."""
        return Seen(*(x.copy() for x in (self.stream[depth], self.twin[depth], self.was, self.becomes)))


class Key(NamedTuple):
    """A benchmark: the model, the people's names, both parts, and the causal subspace of each depth but the last.

    subspace: [L, D, k]; effects: reduction in loss by each direction, in nats, [L, k].
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
    """Make the benchmark of a model trained on Königsberg.

    count: pairs in each part; told: number of steps in the prompts, 1 or 2; posterior: function from a story's text to
    the posteriors after 0 to T tokens, [T+1, n] (such as `posteriors.belief`). Raises NanoEulerError for a model other
    than a GPT, a context below 128 tokens or a `count` outside 2 to 500, and as `twins.pairs` does.
    """
    if not 2 <= count <= MOST:
        raise NanoEulerError(f"the number of pairs must be 2 to {MOST}, got {count}")
    if type(model.config) is not ModelConfig or model.config.context < 128:
        raise NanoEulerError(
            "the model must be a GPT with a context of at least 128 tokens, in which every story fits, "
            f"got a {type(model).__name__} of context {model.config.context}"
        )
    names = tuple(name for group in names_of(tokenizer).values() for name in group)
    learnt = pairs(count, seed, told, tokenizer)
    known, scored = {pair.story for pair in learnt}, []
    while len(scored) < count:
        seed += 1
        scored += [pair for pair in pairs(count, seed, told, tokenizer) if pair.story not in known]
    parts = [_part(model, tokenizer, some[:count], names, seed, posterior) for some in (learnt, scored)]
    found = [causal_subspace(*patch_effects(model, parts[0].batch, i), RANK) for i in range(model.config.layers)]
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
    """Score a method at a depth of the stream on the held-out pairs; return {name of score: value}.

    edit: function from `Seen` to new streams [B, D] for the names. "bits" is KL(source || edited model) per
    position for the person's distribution, "unedited" and "best" are the KL of the model on the story and on the twin,
    "closed" is the fraction of the gap between these two that the edit closes, and "by_fact" is the KL for the fact's
    distribution. Because "closed" also rewards an edit that only erases the old name, "new" and "old" are the mean
    probabilities of both names where the person's continuation says the new name (`twins.named`).
    basis: [D, k]; its columns span the subspace that the model uses according to the method. "inside" is the mean
    squared cosine between the basis and the causal subspace, and "by_chance" is its expected value for a random
    subspace. A single direction is a basis [D, 1].
    read: function from streams [M, D] to posteriors [M, n]. "posterior" is KL(posterior || read) in bits, and "prior"
    is the KL of the training part's mean posterior instead of the method's.
    Raises NanoEulerError for an invalid depth, and for results that have the wrong shape or are not finite.
    """
    part, depths = key.held, len(key.held.stream)
    last = depths - 1 if basis is None else depths - 2
    if not 0 <= depth <= last:
        raise NanoEulerError(f"depth must be 0 to {last}, got {depth}")
    found = {}
    if edit is not None:
        values = _expected("edit", edit(part.seen(depth)), part.stream[depth].shape)
        for law, batch in (("bits", part.batch), ("by_fact", part.fact)):
            log_p = forward(key.model, batch.story, {(STREAM, depth): patched(batch.place, values)})
            found = {**named(log_p, batch), law: bits(log_p, batch).mean(), **found}
        found |= {"unedited": part.unedited[0].mean(), "best": part.best[0].mean()}
        found["closed"] = (found["unedited"] - found["bits"]) / (found["unedited"] - found["best"])
    if basis is not None:
        wanted = key.subspace[depth]
        basis = np.asarray(basis, float)
        if basis.ndim != 2:
            raise NanoEulerError(f"basis must be [{len(wanted)}, k], got {list(basis.shape)}")
        own = np.linalg.qr(_expected("basis", basis, (len(wanted), basis.shape[1])))[0]
        found |= {"inside": share_inside(wanted.T, own).mean(), "by_chance": own.shape[1] / len(own)}
    if read is not None:
        if not part.posterior.shape[1]:
            raise NanoEulerError("the key must have posteriors for read, got none: call make with posterior=...")
        told = _expected("read", read(part.places[depth]), part.posterior.shape)
        for name, q in (("posterior", told), ("prior", key.learn.posterior.mean(axis=0))):
            ratio = np.log2(np.maximum(part.posterior, 1e-300)) - np.log2(np.maximum(q, 1e-300))
            found[name] = (part.posterior * ratio).sum(axis=1).mean()
    return {name: float(value) for name, value in found.items()}


def _expected(what, value, shape):
    value = np.asarray(value)
    if value.shape != shape or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise NanoEulerError(f"{what} must give finite numbers {list(shape)}, got {value.dtype} {list(value.shape)}")
    return value


# ---- The chapter's own methods


def probe_of(key: Key, depth: int, penalty: float) -> np.ndarray:
    """Return the directions of a ridge probe for the name, [D, n], fitted to the training part's stories and twins.

    With a strong penalty, they are the names' means, each coordinate divided by its variance. With a weak penalty, they
    turn away from the directions in which the stream varies.
    """
    both, who = _streams(key.learn, depth)
    probe = ridge(both.astype(float), np.eye(len(key.names))[who], penalty)
    return probe.weights[0][:-1] / probe.scale[:, None]


def means_of(key: Key, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean stream of each name in the training part, [n, D], and of all names, [D], also for a new name."""
    both, who = _streams(key.learn, depth)
    mean = both.mean(axis=0)
    return np.array([both[who == i].mean(axis=0) if i in who else mean for i in range(len(key.names))]), mean


def _streams(part, depth):
    """Return the streams at all names of a part, [2B, D], and which name each of them is, [2B]."""
    return np.concatenate([part.stream, part.twin], axis=1)[depth], np.append(part.was, part.becomes)


def methods(key: Key, depth: int, seed: int = 0) -> dict[str, Callable[[Seen], np.ndarray]]:
    """Return chapter 18's edits at a depth, by name.

    The edits are the patch, its parts inside and outside the causal subspace, two probes' directions, and two controls
    that write no name: random directions, and the old name erased.
    """
    means, mean = means_of(key, depth)
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
        "old name erased": lambda x: x.stream + mean - means[x.was],
        "random, as far": lambda x: random_moves(x.stream, x.twin, rng),
    }


def rows(key: Key) -> list[dict]:
    """Return the scores of chapter 18's methods at every depth that has a causal subspace."""
    return [
        {"method": name, "depth": depth} | score(key, depth, edit)
        for depth in range(len(key.subspace))
        for name, edit in methods(key, depth).items()
    ]


# ---- On the disk


def save(key: Key, folder: Path, tokenizer: Tokenizer, about: dict | None = None) -> None:
    """Write a key into a new folder: answers.json (names, texts and `about`) and answers.npz (the arrays).

    Raises NanoEulerError if the folder exists or cannot be written, and leaves no partial folder.
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
    """Read a key, and check that it is complete and belongs to this model. Raises NanoEulerError otherwise."""
    try:
        head = from_json((folder / "answers.json").read_text("utf-8"))
        names, found = tuple(head["names"]), [head["format"], head["model"], head["arrays"]]
        expected = FORMAT, _digest(model), sha256(folder / "answers.npz")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NanoEulerError(f"{folder}: cannot read answers.json and answers.npz ({type(error).__name__})") from None
    labels = "format", "model", "SHA-256 of answers.npz"
    for what, value, wanted in zip(labels, found, expected, strict=True):
        if value != wanted:
            raise NanoEulerError(f"{folder}: {what} must be {wanted}, got {short(value)}")
    with np.load(folder / "answers.npz", allow_pickle=False) as file:
        arrays = dict(file)
    parts = [_shaped(name, Part, arrays) for name in ("learn", "held")]
    return Key(model, names, *parts, arrays["subspace"], arrays["effects"])


def _flat(name, value):
    """Return the arrays of a named tuple and of the tuples in it, by name: {"learn.batch.story": array, ...}."""
    if not isinstance(value, tuple):
        return {name: value}
    return {k: v for part, each in value._asdict().items() for k, v in _flat(f"{name}.{part}", each).items()}


def _shaped(name, kind, arrays):
    """Rebuild a named tuple from the arrays of `_flat`."""
    if not hasattr(kind, "_fields"):
        return arrays[name]
    return kind(*(_shaped(f"{name}.{part}", of, arrays) for part, of in kind.__annotations__.items()))


def _digest(model):
    return hashlib.sha256(model.params.flat.tobytes()).hexdigest()
