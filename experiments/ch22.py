"""Chapter 22: learn routes from rewards, with correct and incorrect verifiers, and measure the error of estimators.

    python -m experiments.ch22                    five seeds, one after the other, on all cores
    python -m experiments.ch22 --seed 3 --out F   one seed, into the file F
    python -m experiments.ch22 --join F...        joins the files into data/results/ch22.json; keeps the arms and rates
                                                  that are stored there already

For each seed, the package's small model is first trained on routes, until it finds at least a third of the held-out
ones. All experiments start from this model.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from itertools import permutations
from math import comb
from pathlib import Path
from random import Random

import numpy as np

import konigsberg
from konigsberg.tasks import route_sets
from konigsberg.town import BRIDGES
from nanoeuler_book.town import route_examples
from nanoeuler_lib.command import sources
from nanoeuler_lib.config import GRPO_DEFAULTS, RewardConfig, TrainConfig
from nanoeuler_lib.machine import cores, one_blas_thread
from nanoeuler_lib.model.batch_decoder import BatchDecoder
from nanoeuler_lib.model.optim import optimizer_of
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text.chat_template import encode_turn, markers
from nanoeuler_lib.text.sft_data import BUCKET, Encoded, encode, row_length, rows
from nanoeuler_lib.training import checkpoint, rewards, sft
from nanoeuler_lib.training.checkpoint import Checkpoint
from tools.notebooks.results import FOLDER, machine, save

VERIFIERS = dict(sources.verifiers())  # and one that is audited: `register`
SEEDS = [0, 1, 2, 3, 4]
RATES = [1e-4, 2e-4, 4e-4, 8e-4, 16e-4]  # tried first, each with a seed of its own, for 200 steps
QUESTIONS = 2000  # to learn from
TAUGHT = dict(steps=400, batch=16, rate=5e-4, warmup=10, rate_end=1.0)
SAME = dict(steps=600, batch=16, rate=5e-4, warmup=5, decay=0.0, rate_end=0.1)  # examples, on the schedule of rewards
ENOUGH = 0.36  # of the held-out routes right: teaching ends
EVERY = 20  # steps between two looks
ANSWERS = dict(steps=1, batch=64, rate=1e-4, warmup=5, decay=0.0, rate_end=1.0)
AUDITED = 0.5  # share of answers that the exact verifier sees, as one remedy
OFTENER = {1: 1, 2: 2, 3: 8}  # in "route", questions by the bridges of their answer: so many times
ROUTE = dict(batch=128, rate_end=0.1)
ARMS = {  # name: steps, what differs
    "route": (600, {}),
    "as often": (600, {}),
    "honest": (80, {}),
    "brief": (80, dict(reward="brief")),
    "hackable": (80, dict(reward="hackable")),
    "brief, audited": (80, dict(reward="brief, audited")),
}
BETAS = [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
LISTS = [route for n in (1, 2, 3) for route in permutations(range(len(BRIDGES)), n)]
ASKED = 36  # held-out questions whose answers are all enumerated
STUDIED = 6  # of these, questions in the comparison of estimators


def answer_of(route):
    """The answer that names these bridges."""
    *most, last = (str(BRIDGES[i]) for i in route)
    return f"Over {', '.join(most)} and {last}." if most else f"Over {last}."


def taught(seed, workers):
    """The small model, taught until it knows enough, its tokenizer, the questions, and what it took."""
    found = checkpoint.load(checkpoint.PRETRAINED / "konigsberg-small")
    model, tokenizer = sft.extend(found.model, found.tokenizer)
    problems, held_out = route_sets(QUESTIONS, 100 * seed)
    state = dataset_state(model, tokenizer, RewardConfig(), 1, seed, workers)
    dataset = rewards.RewardDataset(problems, held_out, state, VERIFIERS)
    config = TrainConfig(**TAUGHT, seed=seed)
    lessons = Lessons(problems, tokenizer, model.config, seed)
    optimizer, looks = optimizer_of(model.config, config), []
    with one_blas_thread(), Step(model, optimizer, config, config.batch, workers) as take_step:
        for step in range(config.steps):
            take_step(*lessons.batch(step, config.batch))
            if (step + 1) % 10 == 0:
                looks.append((step + 1, 1 - dataset.validation(model)["valid_missed"]))
                if looks[-1][1] >= ENOUGH:
                    break
    return model, optimizer, tokenizer, problems, held_out, looks


class Lessons:
    """Batches of questions, each with one of its valid answers of at most three bridges."""

    def __init__(self, problems, tokenizer, shape, seed):
        self.examples = [encode(example, tokenizer) for example in route_examples(problems, seed)]
        self.shape, self.seed = shape, seed

    def batch(self, step, count):
        chosen = np.random.default_rng([self.seed, step, 9]).integers(len(self.examples), size=count)
        some = [self.examples[i] for i in chosen]
        return rows(some, row_length(some, self.shape.context), self.shape.predict)


def oftener(problems, seed):
    """The questions whose answers have more bridges more often, all shuffled."""
    some = [p for p in problems for _ in range(OFTENER[bridges(p)])]
    Random(seed).shuffle(some)
    return some


def bridges(problem):
    """How many bridges the answer to a question has."""
    return problem.answer.count("Bridge")


def dataset_state(model, tokenizer, config, steps, seed, workers, **more):
    train = TrainConfig(**GRPO_DEFAULTS | ANSWERS | more | dict(steps=steps, save_every=1, seed=seed))
    info = {"workers": workers, "rewards": config.to_dict()}
    return Checkpoint(Path("none"), model, tokenizer, 0, train, optimizer_of(model.config, train), info)


def look(dataset, model, verify, times=2):
    """Shares of held-out questions, with several answers each, that are paid and that are true; by length of route."""
    drawn = dataset.draw(model, dataset.asked, times, [dataset.train.seed, 0, 2])
    problems = [p for p in dataset.held_out for _ in range(times)]
    texts = [rewards.answer_text(dataset.tokenizer, s) for s in drawn]
    true = np.array([konigsberg.route_reward(*pair) for pair in zip(problems, texts, strict=True)])
    paid = np.array([verify(*pair) for pair in zip(problems, texts, strict=True)])
    length = np.array([bridges(p) for p in problems])
    said = np.array([text.count("Bridge") for text in texts])
    by_length = {str(n): float(true[length == n].mean()) for n in (1, 2, 3)}
    return dict(paid=float(paid.mean()), true=float(true.mean()), by_length=by_length, named=float(said.mean()))


def learn(name, start, tokenizer, problems, held_out, seed, workers, steps, rate):
    """The curve of one arm, and how many seconds its steps took."""
    planned, changes = ARMS[name]
    steps = steps or planned
    model = start.copied()
    register(seed)
    config = RewardConfig(**changes)
    more = ROUTE if name in ("route", "as often") else {}
    state = dataset_state(model, tokenizer, config, steps, seed, workers, **more)
    problems = oftener(problems, seed) if name == "route" else problems
    state.train = TrainConfig(**state.train.to_dict() | dict(rate=rate or state.train.rate))
    dataset = rewards.RewardDataset(problems, held_out, state, VERIFIERS)
    dataset.reference = start.copied() if config.kl else None
    state.optimizer.config = state.train
    honest = VERIFIERS[config.reward.partition(",")[0]]  # an audited reward is paid as the one beneath it
    curve, seconds = [dict(step=0, seconds=0.0, **look(dataset, model, honest))], 0.0
    recent = []
    with (
        one_blas_thread(),
        Step(model, state.optimizer, state.train, state.train.batch, workers) as take_step,
    ):
        for step in range(steps):
            began = time.perf_counter()
            figures, norm = take_step(*with_variance(*dataset.batch(step, state.train.batch)))
            seconds += time.perf_counter() - began
            recent.append([*figures, norm])
            if (step + 1) % EVERY == 0 or step + 1 == steps:
                means = dict(zip(("loss", *rewards.FIGURES, "norm"), np.mean(recent, axis=0).tolist(), strict=True))
                last = step + 1 == steps
                curve.append(
                    dict(
                        step=step + 1,
                        seconds=seconds,
                        train=means,
                        **look(dataset, model, honest, 8 if last else 2),
                    )
                )
                recent = []
    return model, curve


def with_variance(inputs, targets, weigh):
    """The same step without the groups whose answers are all paid alike: what they add to the gradient is 0."""
    answers = weigh.__self__
    used = np.repeat(np.ptp(answers.advantages.reshape(-1, answers.config.group), axis=1) > 0, answers.config.group)
    if not used.any() or used.all():
        return inputs, targets, weigh
    left, N = copy(answers), len(used)
    for name in ("rewards", "advantages", "counted", "old", "reference"):
        if (whole := getattr(answers, name)) is not None:
            setattr(left, name, whole[used])
    longest = -(-int(left.counted.any(axis=0).nonzero()[0][-1] + 1) // BUCKET) * BUCKET
    left.counted, left.old = left.counted[:, :longest], left.old[:, :longest]
    if left.reference is not None:
        left.reference = left.reference[:, :longest]
    others, tokens = answers.counted[~used], answers.counted[~used].sum(axis=1)
    nats_a_token = -np.where(others, answers.old[~used], 0.0).sum(axis=1) / tokens
    paid = answers.rewards[~used]
    rest = np.array([-paid.sum(), paid.sum(), 0.0, 0.0, tokens.sum(), nats_a_token.sum()]) / N

    def weighed(part, nats):
        figures, weights = left.weigh(part, nats)
        return figures * (len(left.rewards) / N) + rest * (part.start == 0), weights * (len(left.rewards) / N)

    return inputs[used, :longest], targets[used, :longest], weighed


def register(seed):
    """The brief verifier, of which a share is audited, drawn by chance."""
    audit = Random(seed + 1)
    brief = VERIFIERS["brief"]
    VERIFIERS["brief, audited"] = lambda problem, answer: (
        konigsberg.route_reward if audit.random() < AUDITED else brief
    )(problem, answer)


def go_on(start, optimizer, tokenizer, problems, held_out, seed, workers, seconds, first):
    """Teaching goes on for as long as learning from rewards took."""
    model = start.copied()
    state = dataset_state(model, tokenizer, RewardConfig(), 1, seed, workers)
    dataset = rewards.RewardDataset(problems, held_out, state, VERIFIERS)
    config = TrainConfig(**TAUGHT | dict(steps=10**6), seed=seed)
    lessons, optimizer.config, spent, step = (
        Lessons(problems, tokenizer, model.config, seed),
        config,
        0.0,
        first,
    )
    curve = [dict(step=0, seconds=0.0, **look(dataset, model, konigsberg.route_reward))]
    with one_blas_thread(), Step(model, optimizer, config, config.batch, workers) as take_step:
        while spent < seconds:
            began = time.perf_counter()
            take_step(*lessons.batch(step, config.batch))
            spent, step = spent + time.perf_counter() - began, step + 1
            if (step - first) % (3 * EVERY) == 0:
                curve.append(dict(step=step - first, seconds=spent, **look(dataset, model, konigsberg.route_reward)))
    curve.append(dict(step=step - first, seconds=spent, **look(dataset, model, konigsberg.route_reward, 8)))
    return curve


def examples_alike(start, tokenizer, problems, held_out, seed, workers):
    """The curve of examples with the steps, schedule, weight decay and new optimizer of the rewards."""
    model, config = start.copied(), TrainConfig(**SAME, seed=seed)
    state = dataset_state(model, tokenizer, RewardConfig(), 1, seed, workers)
    dataset = rewards.RewardDataset(problems, held_out, state, VERIFIERS)
    lessons, optimizer = Lessons(problems, tokenizer, model.config, seed), optimizer_of(model.config, config)
    curve, spent = [dict(step=0, seconds=0.0, **look(dataset, model, konigsberg.route_reward))], 0.0
    with one_blas_thread(), Step(model, optimizer, config, config.batch, workers) as take_step:
        for step in range(config.steps):
            began = time.perf_counter()
            take_step(*lessons.batch(1000 + step, config.batch))  # teaching took the batches before
            spent += time.perf_counter() - began
            last = step + 1 == config.steps
            if last or (step + 1) % (5 * EVERY) == 0:
                shown = look(dataset, model, konigsberg.route_reward, 8 if last else 2)
                curve.append(dict(step=step + 1, seconds=spent, **shown))
    return curve


# ---- All answers of at most three bridges


def enumerated(model, tokenizer, problem, answers):
    """Log-probability [259] of each answer to a question, end marker counted."""
    end = markers(tokenizer)[0]
    prompt = [end, *encode_turn(tokenizer, problem.prompt)]
    decoder = BatchDecoder(model, [prompt], len(answers), max(map(len, answers)))
    lengths, total = np.array([len(a) for a in answers]), np.zeros(len(answers))
    for step in range(lengths.max()):
        here = decoder.rows
        z = decoder.logits().astype(np.float64)
        tokens = np.array([answers[r][step] for r in here])
        top = z.max(axis=1)
        total[here] += z[np.arange(len(here)), tokens] - top - np.log(np.exp(z - top[:, None]).sum(axis=1))
        on = lengths[here] > step + 1
        if on.any():
            decoder.keep(on)
            decoder.feed(tokens[on])
    return total


def optima(model, tokenizer, held_out, answers, workers):
    """What is paid and what is true, on average over questions, where reward minus beta KL is best."""
    texts, found = [answer_of(route) for route in LISTS], {}
    with ThreadPoolExecutor(workers) as pool:
        logps = list(pool.map(lambda p: enumerated(model, tokenizer, p, answers), held_out))
    for p, logp in zip(held_out, logps, strict=True):
        pays = {name: np.array([VERIFIERS[name](p, t) for t in texts]) for name in ("route", "hackable", "brief")}
        for name, r in pays.items():
            for beta in (*BETAS, None, 0.0):  # None: the model as it is; 0: the limit
                if beta == 0.0:
                    tilted = np.where(r == r.max(), logp, -np.inf)
                else:
                    tilted = logp + (r / beta if beta else 0.0)
                best = np.exp(tilted - tilted.max())
                best /= best.sum()
                kl = float(
                    best @ np.where(best > 0, np.log(np.maximum(best, 1e-300)) - logp + np.log(np.exp(logp).sum()), 0)
                )
                row = (float(best @ r), float(best @ pays["route"]), kl, float(np.exp(logp).sum()))
                found.setdefault((name, beta), []).append(row)
    rows_ = []
    for (name, beta), values in found.items():
        paid, true, kl, mass = np.mean(values, axis=0)
        rows_.append(dict(reward=name, beta=beta, paid=paid, true=true, kl=kl, mass=mass))
    return rows_


def estimators(model, tokenizer, problems, answers, workers, group=8):
    """How far each estimator's expectation is from the gradient of the fraction of right answers, over these questions.

    Expectations are exact but for answers outside the 259, whose score is minus that of those inside.
    """
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda p: sums_of_scores(model.copied(), tokenizer, p, answers), problems))
    shares = [share for share, _ in found]
    sums = {name: [some[name] for _, some in found] for name in found[0][1]}
    exact = np.mean(sums["right"], axis=0)
    k = np.arange(group)
    out = []
    for name, own, std, by_length in (
        ("others' mean", False, False, False), ("own mean", True, False, False), ("std", True, True, False),
        ("length", True, False, True), ("original GRPO", True, True, True),
    ):  # fmt: skip
        mean = 0
        for place, p in enumerate(shares):
            chance = np.array([comb(group - 1, i) for i in k]) * p**k * (1 - p) ** (group - 1 - k)
            up, down = (float(chance @ [weight(r, i, group, own, std) for i in k]) for r in (1, 0))
            if by_length:
                mean = mean + up * sums["right, by length"][place] + down * sums["wrong, by length"][place]
            else:  # the scores of wrong answers are minus those of right ones, all answers counted
                mean = mean + (up - down) * sums["right"][place]
        mean = mean / len(shares)
        size = float(mean @ exact / (exact @ exact))
        out.append(dict(name=name, scale=size, cosine=float(mean @ exact / np.sqrt((mean @ mean) * (exact @ exact)))))
    return dict(shares=shares, rows=out)


def sums_of_scores(model, tokenizer, p, answers):
    """The fraction of right answers to a question, and sums over answers of weight times score, each [parameters]."""
    end, texts = markers(tokenizer)[0], [answer_of(route) for route in LISTS]
    prompt = [end, *encode_turn(tokenizer, p.prompt)]
    pi, lengths = np.exp(enumerated(model, tokenizer, p, answers)), np.array([len(a) for a in answers])
    right = np.array([konigsberg.route_reward(p, t) for t in texts])
    encoded = [Encoded(np.array([*prompt, *a]), np.arange(len(prompt) + len(a)) >= len(prompt)) for a in answers]
    weights = {"right": pi * right, "right, by length": pi * right / lengths}
    weights["wrong, by length"], sums = pi * (1 - right) / lengths, {}
    for name, w in weights.items():
        sums[name] = np.zeros(model.size)
        for i in range(0, len(answers), 37):
            part = slice(i, i + 37)
            inputs, targets = rows(encoded[part], row_length(encoded, model.config.context), model.config.predict)
            sums[name] += model.weighted_gradients(inputs, targets, partial(_weighted, -w[part]))[1].flat
    return float(pi @ right), sums


def _weighted(weights, rows_, nats):
    """A `RowLoss` of these weights [B], the same at each token."""
    return np.zeros(1), np.broadcast_to(weights[:, None], nats.shape)


def weight(r, others, group, own, std):
    """The advantage of an answer of reward r, of whose group `others` other answers are right."""
    some = np.array([[r, *[1.0] * others, *[0.0] * (group - 1 - others)]])
    return float(rewards.advantages(some, own, std)[0, 0])


def one_seed(seed, workers, arms=None, steps=0, rate=0.0, exact=True, out=None, teach=0.0):
    began = time.perf_counter()
    model, optimizer, tokenizer, problems, held_out, looks = taught(seed, workers)
    found = dict(seed=seed, taught=looks, taught_seconds=time.perf_counter() - began, questions=len(held_out), arms={})

    def keep(what):
        found["seconds"] = time.perf_counter() - began
        print(f"seed {seed}: {found['seconds']:.0f} s: {what}", flush=True)
        if out:
            out.write_text(json.dumps({"found": found, "machine": machine()}))

    keep(f"taught {looks[-1]}")
    if exact:
        answers = [[*tokenizer.encode(answer_of(route)).tolist(), markers(tokenizer)[0]] for route in LISTS]
        by_length = [[p for p in held_out if bridges(p) == n][: STUDIED // 3] for n in (1, 2, 3)]
        with one_blas_thread():
            found["optima"] = optima(model, tokenizer, held_out[:ASKED], answers, workers)
            found["estimators"] = estimators(
                model, tokenizer, [p for some in by_length for p in some], answers, workers
            )
        keep(f"{found['optima']} {found['estimators']}")
    for name in arms or [*ARMS, "teaching", "examples"]:
        if name == "teaching":  # as long as "route" took
            seconds = teach or found["arms"]["route"][-1]["seconds"]
            copied = (model, optimizer, tokenizer, problems, held_out, seed, workers, seconds, looks[-1][0])
            curve = found["arms"]["teaching"] = go_on(*copied)
            keep(f"teaching: {curve[-1]}")
            continue
        if name == "examples":
            curve = found["arms"][name] = examples_alike(model, tokenizer, problems, held_out, seed, workers)
            keep(f"examples: {curve[-1]}")
            continue
        _, curve = learn(name, model, tokenizer, problems, held_out, seed, workers, steps, rate)
        found["arms"][name] = curve
        keep(f"{name}: {curve[-1]}")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--join", type=Path, nargs="+")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, "teaching", "examples"])
    parser.add_argument("--steps", type=int, default=0, help="of each arm, in place of its own")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--teach", type=float, default=0.0, help="seconds of teaching where no route is learned")
    parser.add_argument("--pilot", action="store_true", help="arms alone")
    args = parser.parse_args()
    made_on = None
    if args.join:
        files = [json.loads(path.read_text("utf-8")) for path in args.join]
        stored = FOLDER / "ch22.json"
        kept = (
            json.loads(stored.read_text("utf-8")) if stored.exists() else {"rows": [], "machine": files[0]["machine"]}
        )
        old, made_on = kept["rows"], kept["machine"]
        found = {one["seed"]: one for one in old if "rate" not in one}
        for file in files:  # several files of a seed: other arms, which may be from a second machine
            one = found.setdefault(file["found"]["seed"], file["found"])
            one["arms"].update(file["found"]["arms"])
            if file["machine"] != made_on:
                one.setdefault("second_machine", {}).update({arm: file["machine"] for arm in file["found"]["arms"]})
        found = [*found.values(), *(row for row in old if "rate" in row)]
    else:
        seeds = SEEDS if args.seed is None else [args.seed]
        found = [
            one_seed(s, args.workers, args.arms, args.steps, args.rate, not args.pilot, args.out, args.teach)
            for s in seeds
        ]
    if args.out:
        return
    if not args.join:
        for seed, rate in enumerate(RATES):
            curve = one_seed(seed, args.workers, ["honest"], 200, rate, exact=False)["arms"]["honest"]
            found.append(dict(rate=rate, seed=seed, curve=curve))
    config = {
        "seeds": SEEDS, "questions": QUESTIONS, "taught": TAUGHT, "enough": ENOUGH, "answers": ANSWERS,
        "arms": {name: dict(steps=n, **changes) for name, (n, changes) in ARMS.items()}, "audited": AUDITED,
        "asked": ASKED, "examples": SAME, "route": ROUTE, "oftener": OFTENER, "group": RewardConfig().group,
    }  # fmt: skip
    save("ch22", config, found, made_on=made_on)


if __name__ == "__main__":
    main()
