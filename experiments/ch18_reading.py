"""Chapter 18: the information that probes gain about facts that are latent, explicit or half spelled, and controls.

A part is one fact with the model of one seed, in a separate process with one thread:

    python -c "import experiments.ch18_reading as e; e.one(0, 'culprit')"

writes _build/ch18/reading-culprit-0.json; `collect()` joins all existing files. The models are those of `ch18_models`;
the part `place` trains its own models, on rumours. `python -m experiments.ch18` runs all parts.
"""

import json
import time
from dataclasses import replace
from random import Random

import numpy as np

import konigsberg
from experiments.ch18_models import FOLDER, SEEDS, model_of
from konigsberg import rumours
from nanoeuler_book.interpretability.activations import row_of
from nanoeuler_book.interpretability.posteriors import FACTS, belief, role
from nanoeuler_book.interpretability.probes import Reading, bits, last_tokens, score, sites, softmax
from nanoeuler_book.significance import differences, half_width
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step

STORIES = 3000  # a part's, of which 6 in 10 train probes, 1 in 10 says when to stop, 3 in 10 are scored
CONTEXT = preset("small").context  # a story in ten thousand is longer
FAR = 10  # words since a stated fact was named last
INSIDE = 3  # tokens inside a step at which a story is read
KINDS = {  # kinds of position: after or inside the steps that say something of a fact; 0 is the opening
    "culprit": ["behind 0", "behind 1", "behind 2", "behind 3", "in 1", "in 2"],
    "holder": ["behind 0", "behind 1", "behind 2", "behind 3", "in 1", "in 2"],
    "witness": ["behind 2", "behind 3", "in 2"],
    "way back": ["behind 3", "in 3"],
}
PROBES = ["ridge", "linear", "hidden"]
TOLD = {"owner": role("errand", "b"), "hidden in": role("belief", "place")}
NAMES = {"thing": role("errand", "thing"), "first name": role("errand", "a")}
RUMOURS = ModelConfig(
    dim=64,
    heads=4,
    kv_heads=2,
    layers=2,
    context=rumours.LONGEST + 1,
    vocab_size=len(rumours.WORDS),
    predict=1,
)
RUMOURS_TRAIN = TrainConfig(steps=12_000, batch=16, rate=3e-3, warmup=100)
RUMOURS_TEXTS = 100_000
PARTS = ["culprit", "holder", "witness", "way back", "told", "names", "place"]


# ---- The models


def rumour_model(seed: int, config: TrainConfig = RUMOURS_TRAIN) -> GPT:
    """A small model of rumours. A row is an end of text and a rumour; its target after the rumour is an end again."""
    model, rows = GPT(RUMOURS, seed=seed), rumours.corpus(RUMOURS_TEXTS, 10 + seed)
    tokens, targets = rows, np.roll(rows, -1, axis=1)  # the last word of a row is followed by an end
    targets[(tokens == 0) & (np.arange(tokens.shape[1]) > 0)] = -1  # only fills the row
    config = replace(config, seed=seed)
    with Step(model, AdamW(model.config, config), config, config.batch, workers=1) as take_step:
        for i in range(config.steps):
            some = np.random.default_rng([seed, i]).integers(len(rows), size=config.batch)
            take_step(tokens[some], targets[some][..., None])
    return model


# ---- The places where probes read


def steps_of(found, kinds: list[str], random: Random) -> dict[int, str]:
    """After steps, and at some tokens inside of steps, where the last one seen belongs to the step."""
    places = {}
    for kind in kinds:
        where, step = kind.split()
        inside = np.flatnonzero(found.steps == int(step))
        if where == "behind":
            places[int(inside[-1]) + 1] = kind
        else:
            places |= dict.fromkeys(random.sample(inside[1:].tolist(), min(INSIDE, len(inside) - 1)), kind)
    return places


def far_from(found, text: str, tokenizer, random: Random) -> dict[int, str]:
    """Some places more than FAR words after a stated fact was named, and the first where it is named again."""
    value, ends = found.values[found.state], np.cumsum([0, *tokenizer.token_lengths[found.ids]])
    data, name, far, named = text.encode(), value.split()[-1], [], []
    for i in np.flatnonzero(found.beliefs.max(axis=1) > 1 - 1e-9).tolist():
        before, behind = (part.decode(errors="ignore") for part in (data[: ends[i]], data[ends[i] :]))
        if not any(name in word for word in before.split()[-FAR:]):
            (named if behind.startswith(f" {value}") else far).append(i)
    places = dict.fromkeys(random.sample(far, min(INSIDE, len(far))), f"more than {FAR} words")
    return places | dict.fromkeys(named[:1], "about to be named")


def half_spelled(found) -> dict[int, str]:
    """The places inside the step at which some of a name is spelt, and not all."""
    least, most = 0.01, found.entropy[0] - 0.01
    return {int(i): "half spelled" for i in np.flatnonzero((found.entropy > least) & (found.entropy < most))[:1]}


def readings_of(seed: int, part: str, name: str, fact, tokenizer, stories: int) -> list[Reading]:
    """The stories of a part, with what is to be believed and where probes read."""
    random, found = Random(f"{part} {name} {seed}"), []
    for i in range(stories):
        text = konigsberg.sample(1_800_000_000 + seed * 1_000_000 + i, fact.kind).text
        story = belief(text, tokenizer, fact)
        if part == "told":
            places = far_from(story, text, tokenizer, random)
        elif part == "names":
            places = half_spelled(story)
        else:
            places = steps_of(story, KINDS[part], random)
        if len(story.beliefs) <= CONTEXT:
            found.append(Reading(text, row_of(text, tokenizer), story.beliefs, places))
    return found


def rumour_readings(seed: int, stories: int) -> list[Reading]:
    """Rumours, read after some witnesses, and after the words that the last one's place and the true one follow."""
    found = []
    for rumour in rumours.rumours(stories, 1_800_000 + seed):
        told = (len(rumour.ids) - 9) // 4
        places = {5 + 4 * n: f"behind {n}" for n in (1, 3, 6) if n <= told}
        places |= {3 + 4 * told: "says", 7 + 4 * told: "found in"}
        found.append(Reading(rumour.text, np.append(0, rumour.ids), rumours.posterior(rumour.text), places))
    return found


# ---- The figures


def scored(model: GPT, readings: list[Reading], seed: int, **about) -> list[dict]:
    """Rows of every kind of position, probe and depth: those of the model and of the controls."""
    rows = []
    fresh = sites(GPT(model.config, seed=9000 + seed), readings)
    whole = sites(model, readings)
    for kind in sorted(set(whole.kinds)):
        try:
            given, untrained = whole.of(kind), fresh.of(kind)
        except ValueError as error:  # too few stories get there
            print(error, flush=True)
            continue
        shuffled, tokens = given.shuffled(seed), last_tokens(given, model.params["embed"])
        counts = {part: int((given.parts == part).sum()) for part in ("train", "test")}

        def row(features, probe, layer, sites_, x, kind=kind, counts=counts):
            found = score(sites_, x, probe, seed)
            figures = {name: round(value, 5) for name, value in found._asdict().items()}
            rows.append(
                {
                    **about,
                    "seed": seed,
                    "position": kind,
                    "features": features,
                    "probe": probe,
                    "layer": layer,
                }
                | figures
                | counts
            )

        row("prior", "prior", 0, given, given.x[0])
        for probe in PROBES:
            if probe != "ridge":
                row("last tokens", probe, 0, given, tokens)
            for layer in range(len(given.x)):
                row("model", probe, layer, given, given.x[layer])
                if probe != "ridge":
                    row("untrained", probe, layer, untrained, untrained.x[layer])
                if probe == "linear":
                    row("shuffled", probe, layer, shuffled, given.x[layer])
    return rows


def against_the_law(model: GPT, seed: int, stories: int = 300) -> dict:
    """KL(source || model) in bits, for rumours: where a witness is about to say a place, and where it is found."""
    gaps = {"says": [], "in": []}
    for rumour in rumours.rumours(stories, 1_900_000 + seed):
        laws = rumours.law(rumour.text)
        q = softmax(model.logits(np.append(0, rumour.ids)[None])[0].astype(np.float64))
        kl = bits(laws, q) - bits(laws, laws)
        words = ["", *rumour.text.split()]
        for word in gaps:
            gaps[word] += [kl[i] for i, there in enumerate(words) if there == word]
    return {f"kl of the model behind {word!r}": round(float(np.mean(values)), 5) for word, values in gaps.items()}


def one(seed: int, part: str, stories: int = STORIES) -> list[dict]:
    """Compute a part for the model of a seed, and write it."""
    start = time.time()
    with one_blas_thread():
        if part == "place":
            model = rumour_model(seed)
            about = {"fact": "place"} | against_the_law(model, seed)
            rows = scored(model, rumour_readings(seed, stories), seed, **about)
        else:
            model, tokenizer = model_of(seed)
            facts = {"told": TOLD, "names": NAMES}.get(part) or {part: FACTS[part]}
            rows = []
            for name, fact in facts.items():
                readings = readings_of(seed, part, name, fact, tokenizer, stories)
                rows += scored(model, readings, seed, fact=name)
    FOLDER.mkdir(parents=True, exist_ok=True)
    result = {
        "part": part,
        "seed": seed,
        "stories": stories,
        "seconds": round(time.time() - start),
        "rows": rows,
    }
    (FOLDER / f"reading-{part.replace(' ', '-')}-{seed}.json").write_text(json.dumps(result, indent=1))
    return rows


# ---- All parts together


def collect(folder=FOLDER) -> dict:
    """What all parts that are there say: means and 95% intervals over seeds by depth, and what Holm's rule calls more.

    A row is a fact, a kind of position and a probe. won: bits over the prior, mean over seeds, [L+1] by depth, layer 0
    being the embedding; each: the same for each seed, [seeds, L+1]; half: half the interval's width; bound, kl; the
    controls untrained and shuffled by depth, last_tokens.
    verdicts: for each control, by depth, "higher", "lower" or "none seen", of the difference paired by seed, corrected
    over all rows and depths of a probe. With fewer than two seeds there are neither intervals nor verdicts.
    """
    parts = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("reading-*.json"))]
    by, laws = {}, {}
    for row in (row for part in parts for row in part["rows"]):
        at = row["fact"], row["position"], row["features"], row["probe"]
        by.setdefault(at, {}).setdefault(row["seed"], {})[row["layer"]] = row
        laws |= {(row["seed"], name): value for name, value in row.items() if name.startswith("kl of the model")}

    def table(fact, position, features, probe, name="won") -> np.ndarray:
        """[seeds, depths]"""
        seeds = by[fact, position, features, probe]
        return np.array([[layers[i][name] for i in sorted(layers)] for _, layers in sorted(seeds.items())])

    rows, gaps = [], {}
    for fact, position, features, probe in by:
        if features != "model":
            continue
        won = table(fact, position, "model", probe)
        seeds, depths = won.shape
        row = {
            "fact": fact,
            "position": position,
            "probe": probe,
            "seeds": seeds,
            "won": _rounded(won.mean(axis=0)),
            "each": [_rounded(values) for values in won],
        }
        for name in ("bound", "kl"):
            row[name] = _rounded(table(fact, position, "model", probe, name).mean(axis=0))
        row["bound"] = row["bound"][0]
        against = {"prior": np.zeros_like(won), "embedding": won[:, :1]}
        for name in ("untrained", "shuffled", "last tokens"):
            if (fact, position, name, probe) in by:
                against[name] = table(fact, position, name, probe)
                row[name.replace(" ", "_")] = _rounded(against[name].mean(axis=0))
        if seeds > 1:
            row["half"] = _rounded(half_width(won))
            for name, control in against.items():
                for depth in range(name == "embedding", depths):
                    difference = won[:, depth] - np.broadcast_to(control, won.shape)[:, depth]
                    gaps.setdefault((probe, name), {})[f"{fact}, {position}, {depth}"] = difference
        rows.append(row)
    for (probe, name), differing in gaps.items():
        print(f"\n{probe} probe, bits over the control {name!r}")
        for title, verdict in differences(differing).items():
            fact, position, depth = title.rsplit(", ", 2)
            row = next(r for r in rows if (r["fact"], r["position"], r["probe"]) == (fact, position, probe))
            row.setdefault("verdicts", {}).setdefault(name, {})[depth] = verdict
    names = sorted({name for _, name in laws})
    return {
        "stories": sorted({part["stories"] for part in parts}),
        "seconds": {f"{part['part']} {part['seed']}": part["seconds"] for part in parts},
        "missing": [
            f"{part} {seed}"
            for part in PARTS
            for seed in SEEDS
            if not (folder / f"reading-{part.replace(' ', '-')}-{seed}.json").is_file()
        ],
        "rumours": {
            name: _rounded([value for (_, other), value in sorted(laws.items()) if other == name]) for name in names
        },
        "rows": rows,
    }


def _rounded(values) -> list[float]:
    return np.round(values, 4).tolist()
