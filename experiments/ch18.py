"""Chapter 18: measure what models of Königsberg know, and which part of it they use.

    python -m experiments.ch18 --processes 2        # every part that is missing; then collects all of them
    python -m experiments.ch18 --only model         # only this part, for all seeds; collects nothing

The result of a part for one seed is a file `_build/ch18/PART-SEED.json`; existing files are not computed again. The
model of seed 0 comes with the package. The models of the other seeds are trained here, each in its own run folder, with
the same settings, text and tokenizer.

edits: the effect of changes at the name, or at other positions, on the model's predictions. lengths: the effect of
moves of equal length, along the probes' directions and random ones. circuit: the head that carries the name. The parts
of `ch18_reading`: what probes read. Each seed has its own stories.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from experiments import ch18_reading
from experiments.ch18_models import FOLDER, SEEDS, STEPS, make_model, model_of
from konigsberg.stories import tell
from nanoeuler_book.interpretability import answers
from nanoeuler_book.interpretability.edits import (
    HEADS,
    STREAM,
    along,
    carriers,
    forward,
    instead,
    patched,
    random_moves,
    share_inside,
)
from nanoeuler_book.interpretability.twins import FACT, PERSON, Batch, Twins, batch_of, bits, pairs
from nanoeuler_book.town import TokenReader
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import write_text
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.text.tokenizer import Tokenizer
from tools.notebooks.results import save

# ---- Edits


def closed(after: np.ndarray, before: np.ndarray, best: np.ndarray) -> float:
    """How much of the gap between the story and its twin is closed."""
    return float((before.mean() - after.mean()) / (before.mean() - best.mean()))


def spans(batch: Batch) -> dict[str, np.ndarray]:
    """Where a row may be edited: [B, T] each."""
    places = np.arange(batch.story.shape[1])
    place, cut = batch.place[:, None], batch.cut[:, None]
    return {
        "the name": places == place,
        "between": (places > place) & (places < cut),
        "the last token": places == cut,
        "behind": batch.behind & (places > cut),
    }


def edits(seed: int, count: int = 100) -> list[dict]:
    """Every method at every depth; which places matter; how near a probe's direction is to the causal subspace."""
    model, tokenizer = model_of(seed)
    key = answers.make(model, tokenizer, count, seed=1800 + 10 * seed)
    part, batch, depths = key.held, key.held.batch, range(model.config.layers)
    rng, found = np.random.default_rng(seed), []
    said = {}
    for name, values in (("unedited", part.unedited), ("best", part.best)):
        said |= {name: values[0].mean(), f"{name}_by_fact": values[1].mean()}
    found.append({"what": "model", **said, "names": len(key.names), "pairs": count})
    found += [{"what": "method", **row} for row in answers.rows(key)]
    found += [{"what": "method", **as_strong_as_the_patch(key, depth, rng)} for depth in depths]

    kept = [{}, {}]
    for tokens, sites in zip((batch.story, batch.twin), kept, strict=True):
        forward(model, tokens, kept=sites)
    for depth in (*depths, model.config.layers):
        for where, mask in spans(batch).items():
            twin = kept[1][STREAM, depth]
            edit = {(STREAM, depth): lambda x, m=mask, twin=twin: np.where(m[..., None], twin, x)}
            after = bits(forward(model, batch.story, edit), batch)
            share = closed(after, part.unedited[0], part.best[0])
            found.append({"what": "places", "where": where, "depth": depth, "closed": share})

    for depth in depths:
        found += angles(key, depth, rng)
    used = deepest(key)
    for rank in range(1, answers.RANK + 1):
        basis = key.subspace[used][:, :rank]
        score = answers.score(key, used, lambda x, P=basis: x.stream + (x.twin - x.stream) @ P @ P.T)
        found.append({"what": "rank", "depth": used, "rank": rank, "closed": score["closed"]})
    return found + nearer(model, tokenizer, seed, used, count)


def deepest(key: answers.Key) -> int:
    """The deepest depth at which the patch at the name closes more than half of the gap."""
    depths = range(key.model.config.layers)
    return max(d for d in depths if answers.score(key, d, lambda x: x.twin)["closed"] > 0.5)


def lengths(seed: int, count: int = 100, draws: int = 4) -> list[dict]:
    """What moves of one length do, at the deepest depth where the patch works: both probes' and random ones.

    A length is a share of each row's patch: the weak probe's own, the strong one's own, and 1. Of random moves the
    mean of some draws is noted.
    """
    model, tokenizer = model_of(seed)
    key = answers.make(model, tokenizer, count, seed=1800 + 10 * seed)
    used = deepest(key)
    seen, methods, rng = key.held.seen(used), answers.methods(key, used), np.random.default_rng(seed)
    size = np.linalg.norm(seen.twin - seen.stream, axis=1, keepdims=True)
    moves = {name: methods[f"probe, {name} penalty"](seen) - seen.stream for name in ("weak", "strong")}
    own = {name: float((np.linalg.norm(move, axis=1, keepdims=True) / size).mean()) for name, move in moves.items()}

    def share(move, length):
        unit = move / np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-30)
        return answers.score(key, used, lambda x: x.stream + length * size * unit)["closed"]

    found = []
    for of, length in (*own.items(), ("patch", 1.0)):
        about = {"what": "length", "depth": used, "of": of, "length": length}
        found += [{**about, "move": name, "closed": share(move, length)} for name, move in moves.items()]
        random = [share(rng.normal(size=seen.stream.shape), length) for _ in range(draws)]
        found.append({**about, "move": "random", "closed": np.mean(random)})
    return found


def as_strong_as_the_patch(key: answers.Key, depth: int, rng: np.random.Generator) -> dict:
    """A random move that changes the logits as much as the patch does: mean square after the prompt."""
    batch, seen = key.held.batch, key.held.seen(depth)
    before = forward(key.model, batch.story)[batch.behind]

    def effect(values):
        edit = {(STREAM, depth): patched(batch.place, values)}
        return float(((forward(key.model, batch.story, edit)[batch.behind] - before) ** 2).mean())

    random = random_moves(seen.stream, seen.twin, rng)
    moved, scale = scaled_moves(effect, seen.stream, random, effect(seen.twin), steps=6)
    score = answers.score(key, depth, lambda x: moved)
    return {"method": "random, as strong", "depth": depth, "scale": scale} | score


def scaled_moves(
    effect: Callable[[np.ndarray], float], stream: np.ndarray, random: np.ndarray, wanted: float, steps: int = 10
) -> tuple[np.ndarray, float]:
    """Scale random moves until they change the logits as much as `wanted`; return the streams [B, D] and the scale.

    effect: function of streams that returns the size of the change, which must increase with the scale. The scale is
    found by bisection between 0 and 32 in `steps` steps. If the scale 32 has less effect than `wanted`, the function
    returns 32.
    """
    low, high = 0.0, 32.0
    for _ in range(steps):
        middle = np.sqrt(max(low, 1 / 32) * high)
        low, high = (middle, high) if effect(stream + middle * (random - stream)) < wanted else (low, middle)
    return stream + high * (random - stream), high


def random_subspace(dim: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an orthonormal basis [D, k] of a uniformly random subspace; its mean `share_inside` is k / D."""
    return np.linalg.qr(rng.normal(size=(dim, k)))[0]


def angles(key: answers.Key, depth: int, rng: np.random.Generator) -> list[dict]:
    """How much of probes' directions lies in the causal subspace, and what a move along them does."""
    part, basis, dim = key.held, key.subspace[depth], key.model.config.dim
    chance = [share_inside(rng.normal(size=dim), random_subspace(dim, answers.RANK, rng)) for _ in range(1000)]
    varied = key.learn.stream[depth] - key.learn.stream[depth].mean(axis=0)
    drawn = rng.normal(size=(1000, len(varied))) @ varied  # with the covariance of the stream
    control = {"by_chance": np.mean(chance), "chance_97.5": np.quantile(chance, 0.975)}
    found = [{"what": "angle", "depth": depth, "of": "the stream's variance"} | control]
    found[0]["inside"] = share_inside(drawn, basis).mean()
    for penalty in (1e-6, 1e-4, 1e-2, 1.0, 1e2):
        W = answers.probe_of(key, depth, penalty)
        direction = W.T[part.becomes] - W.T[part.was]
        read = (part.twin[depth] - np.append(key.learn.stream, key.learn.twin, axis=1)[depth].mean(axis=0)) @ W
        score = answers.score(key, depth, lambda x, d=direction: along(x.stream, x.twin, d))
        found.append(
            {
                "what": "angle",
                "depth": depth,
                "of": "probe",
                "penalty": penalty,
                "inside": share_inside(direction, basis).mean(),
                "closed": score["closed"],
                "accuracy": (read.argmax(axis=1) == part.becomes).mean(),
            }
            | control
        )
    return found


def nearer(model: GPT, tokenizer: Tokenizer, seed: int, depth: int, count: int) -> list[dict]:
    """KL of both distributions to one and the same reading, at the places where what was drawn is possible by both."""
    some = pairs(count, 1805 + 10 * seed, 1, tokenizer)
    batch, kept = batch_of(some, PERSON, tokenizer, seed), {}
    twin = forward(model, batch.twin, kept=kept)
    values = kept[STREAM, depth][batch.rows, batch.place]
    runs = {
        "unedited": forward(model, batch.story),
        "patch": forward(model, batch.story, {(STREAM, depth): patched(batch.place, values)}),
        "twin": twin,
    }
    rows = {name: {PERSON: [], FACT: []} for name in runs}
    for i, pair in enumerate(some):
        told = tokenizer.decode(batch.twin[i, 1 : batch.end[i] + 1]).removeprefix(pair.twin)
        by_fact = possible(pair, told, tokenizer)
        by_person = pair.law(PERSON, told, tokenizer)
        for j, laws in enumerate(zip(by_person, by_fact)):
            for name, log_p in runs.items():
                for law, p in zip((PERSON, FACT), laws, strict=True):
                    q = log_p[i, pair.cut + j] / np.log(2)
                    rows[name][law].append(sum(x * (np.log2(x) - q[token]) for token, x in p.items()))
    return [
        {"what": "nearer", "run": name, "depth": depth, "places": len(by[PERSON])}
        | {law: np.mean(by[law]) for law in by}
        for name, by in rows.items()
    ]


def possible(pair: Twins, told: str, tokenizer: Tokenizer) -> list[dict[int, float]]:
    """The fact's distribution at each token of a continuation, as far as its steps are possible under it."""
    reader = TokenReader(pair.story + told, tokenizer)
    with suppress(NanoEulerError):
        tell(pair.tale(FACT, reader))
    return reader.next[pair.cut :]


# ---- The circuit


def circuit(seed: int, count: int = 64) -> list[dict]:
    """The head that carries the name: found on some pairs; looked at, ablated and put back on others."""
    model, tokenizer = model_of(seed)
    learn, held = (batch_of(pairs(count, at + 10 * seed, 1, tokenizer), PERSON, tokenizer, seed) for at in (2800, 2805))
    first = carriers(model, learn)[0]
    layer, head = map(int, np.unravel_index(first.argmax(), first.shape))
    carries, without = carriers(model, held)
    story, twin, learnt = {}, {}, {}
    before = bits(forward(model, held.story, kept=story), held)
    best = bits(forward(model, held.twin, kept=twin), held)
    forward(model, learn.twin, kept=learnt)

    names = held.twin[held.rows, held.place]
    naming = np.zeros(held.twin.shape, bool)  # where the source may say the name
    at = held.law.token == names[held.law.row]
    naming[held.law.row[at], held.law.place[at]] = True
    found = []
    for i, j in np.ndindex(carries.shape):
        looks = np.take_along_axis(twin["weights", i][:, j], held.place[:, None, None], axis=-1)[..., 0]
        found.append(
            {
                "what": "head",
                "layer": i,
                "head": j,
                "found": (i, j) == (layer, head),
                "carries": carries[i, j],
                "without": without[i, j],
                "looks_where_named": looks[naming].mean(),
                "looks_elsewhere": looks[held.behind & ~naming].mean(),
            }
        )

    site = (HEADS, layer)
    for where, mask in spans(held).items():
        after = bits(forward(model, held.story, {site: instead([head], twin[site], mask)}), held)
        found.append({"what": "carries", "where": where, "closed": closed(after, before, best)})
    mean = learnt[site].swapaxes(1, 2)[learn.behind].mean(axis=0)[None, :, None]  # [1, H, 1, C]
    others = [j for j in range(model.config.heads) if j != head]
    everyone = range(model.config.heads)
    tried = {"this head": [head], "the others": others, "the whole layer": everyone}
    tried |= {f"all but head {j}": [i for i in everyone if i != j] for j in others}
    for name, heads in tried.items():
        for how, values in (("mean", mean), ("resampled", story[site])):
            after = bits(forward(model, held.twin, {site: instead(heads, values)}), held)
            lost = 1 - closed(after, before, best)
            found.append({"what": "ablated", "heads": name, "how": how, "lost": lost})
    return [{**row, "of_layer": layer, "of_head": head} for row in found]


# ---- All of it

READING = {f"reading-{part.replace(' ', '-')}": part for part in ch18_reading.PARTS}
PARTS = {"model": make_model, "edits": edits, "lengths": lengths, "circuit": circuit}


def one(seed: int, part: str) -> Path:
    """Make a part of a seed, unless its file is there; return the file."""
    file = FOLDER / f"{part}-{seed}.json"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        if part in READING:  # it writes the file itself
            ch18_reading.one(seed, READING[part])
        else:
            with one_blas_thread():
                rows = [{name: plain(value) for name, value in row.items()} for row in PARTS[part](seed)]
            write_text(file, json.dumps({"part": part, "seed": seed, "rows": rows}) + "\n")
    return file


def plain(value: object) -> object:
    """A value as JSON has it, numbers to six digits."""
    if isinstance(value, np.generic):
        value = value.item()
    return round(value, 6) if isinstance(value, float) else value


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--only", choices=[*PARTS, *READING], help="one part; nothing is collected")
    given = options.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        # the models first: all others need them
        for parts in [[given.only]] if given.only else (["model"], [*PARTS, *READING][1:]):
            jobs = [(seed, part) for part in parts for seed in given.seeds]
            for file in pool.starmap(one, jobs, chunksize=1):
                print(file, flush=True)
    if not given.only:
        collect(given.seeds)


def collect(seeds: list[int]) -> None:
    """Store the rows of the models and the edits seed by seed, those of the probes as `ch18_reading` sums them up."""
    reading = ch18_reading.collect(FOLDER)
    rows = [{"part": "reading", **row} for row in reading.pop("rows")]
    for part in PARTS:
        for seed in seeds:
            told = json.loads((FOLDER / f"{part}-{seed}.json").read_text("utf-8"))["rows"]
            rows += [{"part": part, "seed": seed, **row} for row in told]
    save("ch18", {"seeds": seeds, "steps": STEPS, "rank": answers.RANK, "reading": reading}, rows)


if __name__ == "__main__":
    main()
