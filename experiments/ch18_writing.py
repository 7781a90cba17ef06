"""Chapter 18: what edits at the name write, and what they erase; and at which depth the package's model can be read.

    python -m experiments.ch18_writing

An edit that only deletes the old name already brings the model nearer to the distribution after the twin, because
KL(source || model) is large for a model that is certain of a wrong name. So each edit is scored by two more numbers:
the probabilities that the edited model gives to the new and to the old name where the continuation says the new name.
All rows are of the package's model: seeds 0 to 4 are five sets of pairs, not five models.

The probes by depth are fitted to the stories that `ch18_reading` gives to seed 0; `ch18.json` has only the mean and the
standard deviation of its five models.
"""

from collections.abc import Callable, Iterator

import numpy as np

from experiments.ch18_reading import STORIES, TOLD, readings_of
from nanoeuler_book.interpretability import answers, probes
from nanoeuler_book.interpretability.edits import STREAM, causal_subspace, forward, patch_effects, patched
from nanoeuler_book.interpretability.twins import PERSON, batch_of, bits, named, names_of, pairs
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training.checkpoint import load_pretrained
from tools.notebooks.results import save

DEPTH = 1  # the deepest depth at which the patch at the name works in the package's model
COUNT = 100  # pairs to learn from, and as many to score
NATURAL = 6  # directions in which twins differ by themselves: four names per pronoun, two pronouns


def part_of(model: GPT, some: list, names: tuple, tokenizer: Tokenizer, seed: int) -> answers.Part:
    """A part of a key with the person's distribution only, and streams at all depths."""
    batch, kept = batch_of(some, PERSON, tokenizer, seed), [{}, {}]
    both = zip((batch.story, batch.twin), kept, strict=True)
    unedited, best = (np.array([bits(forward(model, tokens, kept=to), batch)]) for tokens, to in both)
    depths = range(model.config.layers + 1)
    stream, twin = (np.stack([to[STREAM, i][batch.rows, batch.place] for i in depths]) for to in kept)
    was, becomes = (np.array([names.index(getattr(pair, who)) for pair in some]) for who in ("was", "becomes"))
    return answers.Part(batch, batch, stream, twin, was, becomes, unedited, best, twin, twin)


def key_of(model: GPT, tokenizer: Tokenizer, seed: int) -> answers.Key:
    """A key of one set of pairs, with the causal subspace of DEPTH only."""
    names = tuple(name for group in names_of(tokenizer).values() for name in group)
    drawn = {pair.story: pair for pair in pairs(3 * COUNT, 181_000 + seed, 1, tokenizer)}  # each story once
    some = [*drawn.values()][: 2 * COUNT]
    learn, held = (part_of(model, part, names, tokenizer, seed) for part in (some[:COUNT], some[COUNT:]))
    found = causal_subspace(*patch_effects(model, learn.batch, DEPTH), answers.RANK)
    subspace, effects = (np.repeat(x[None], model.config.layers, axis=0) for x in found)
    return answers.Key(model, names, learn, held, subspace, effects)


def third_names(key: answers.Key, tokenizer: Tokenizer) -> np.ndarray:
    """The stream at DEPTH of a third name of the same pronoun, read in the story's prompt: [B, D]."""
    part, batch, kept = key.held, key.held.batch, {}
    groups = [[key.names.index(name) for name in some] for some in names_of(tokenizer).values()]
    group = {i: some for some in groups for i in some}
    third = [next(i for i in group[a] if i not in (a, b)) for a, b in zip(part.was, part.becomes, strict=True)]
    tokens = batch.story.copy()
    tokens[batch.rows, batch.place] = [tokenizer.encode(f" {key.names[i]}")[0] for i in third]
    forward(key.model, tokens, kept=kept)
    return kept[STREAM, DEPTH][batch.rows, batch.place]


def edits(key: answers.Key, third: np.ndarray, seed: int) -> Iterator[tuple[str, Callable]]:
    """Every edit of the chapter, and the controls that write no new name."""
    inside = key.subspace[DEPTH] @ key.subspace[DEPTH].T
    means, mean = answers.means_of(key, DEPTH)
    yield "none", lambda x: x.stream
    yield from answers.methods(key, DEPTH, seed).items()
    yield "mean of all names", lambda x: np.broadcast_to(mean, x.stream.shape)
    yield "a third name", lambda x: third
    yield "new mean added", lambda x: x.stream + means[x.becomes] - mean
    yield "means exchanged", lambda x: x.stream + means[x.becomes] - means[x.was]
    for name in ("weak", "strong"):
        probe = answers.methods(key, DEPTH)[f"probe, {name} penalty"]

        def as_far(x, probe=probe):
            move, size = (np.linalg.norm(y - x.stream, axis=1, keepdims=True) for y in (probe(x), x.twin))
            return x.stream + (probe(x) - x.stream) * size / move

        yield f"probe, {name} penalty, as far", as_far
    differences = (key.learn.twin - key.learn.stream)[DEPTH].astype(float)
    axes = np.linalg.svd(differences, full_matrices=False)[2][:NATURAL]
    natural = axes.T @ axes
    yield "subspace, natural part", lambda x: x.stream + (x.twin - x.stream) @ inside @ natural
    yield "subspace, dormant part", lambda x: x.stream + (x.twin - x.stream) @ (inside - inside @ natural)


def writing(model: GPT, tokenizer: Tokenizer, seed: int) -> Iterator[dict]:
    """A row per edit."""
    key = key_of(model, tokenizer, seed)
    part, batch = key.held, key.held.batch
    unedited, best = part.unedited.mean(), part.best.mean()
    for method, edit in edits(key, third_names(key, tokenizer), seed):
        values = edit(part.seen(DEPTH)).astype(np.float32)
        log_p = forward(model, batch.story, {(STREAM, DEPTH): patched(batch.place, values)})
        after = bits(log_p, batch).mean()
        closed = (unedited - after) / (unedited - best)
        length = np.linalg.norm(values - part.stream[DEPTH], axis=1).mean()
        numbers = {"bits": after, "closed": closed, "length": length, **named(log_p, batch)}
        yield {"what": "edit", "method": method, "seed": seed, "depth": DEPTH, **numbers}


def depths(model: GPT, tokenizer: Tokenizer) -> dict:
    """What a linear probe of the package's model gains over the prior about the owner to be named, by depth."""
    position, readings = "about to be named", readings_of(0, "told", "owner", TOLD["owner"], tokenizer, STORIES)
    some = probes.sites(model, readings).of(position)
    won = [probes.score(some, x, "linear", 0).won for x in some.x]
    return {"what": "depths", "fact": "owner", "position": position, "won": won}


def main() -> None:
    model, tokenizer = load_pretrained()
    with one_blas_thread():
        rows = [row for seed in range(5) for row in writing(model, tokenizer, seed)]
        rows.append(depths(model, tokenizer))
    rows = [{name: plain(value) for name, value in row.items()} for row in rows]
    save("ch18_writing", {"pairs": COUNT, "depth": DEPTH, "natural": NATURAL, "stories": STORIES}, rows)


def plain(value: object) -> object:
    """A value as JSON has it, numbers to five digits."""
    if isinstance(value, list):
        return [plain(x) for x in value]
    return round(float(value), 5) if isinstance(value, float | np.floating) else value


if __name__ == "__main__":
    main()
