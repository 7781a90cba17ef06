"""Chapter 21: measure how far DPO is from its optimum, for a question whose answers can be listed.

    python -m experiments.ch21 --processes 15

The question is where somebody's walk ended. A reply names this shore and the shore where the walk began, so there are
4 x 4 replies, the set S. The reference model learns to give the true reply half of the time, and otherwise any of the
16. The reward r is a table on S, with one point for each correct shore. So the optimum on S is known, and the distance
to it is a sum over S.
"""

import argparse
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
from threadpoolctl import threadpool_limits

from konigsberg.grammar import Tale, Writer
from konigsberg.stories import PHRASES, tell
from konigsberg.tasks import REASONS
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.machine import one_blas_thread
from nanoeuler_lib.model.optim import AdamW
from nanoeuler_lib.model.step import Step
from nanoeuler_lib.text.sft_data import encode, row_length, rows
from nanoeuler_lib.training.checkpoint import load_pretrained
from nanoeuler_lib.training.preferences import weigher
from nanoeuler_lib.training.sft import extend
from tools.notebooks.results import save

SEEDS = [0, 1, 2, 3, 4]
KIND, LONGEST = "walk", 78  # tokens of a prompt, so that a row has 96
BETA, POINT = 0.5, 1.0
TAUGHT, TRAINED, SCORED, HELD_OUT = (
    1600,
    256,
    24,
    24,
)  # prompts: of the reference, of pairs, of those, of neither
SFT = TrainConfig(steps=400, batch=16, rate=1e-3, warmup=20, decay=0.1)
DPO = TrainConfig(steps=450, batch=8, rate=1e-4, warmup=20, decay=0.0)  # a batch is so many pairs
PART = replace(DPO, steps=225)
LEAST = 0.95  # of the reference's mass on S
WITHIN = 0.1  # of the reference's distance: the goal


def question(seed):
    """A prompt, its replies [16], and for each how many of the two shores that it names are right [16]."""
    tale = Tale(Writer(Random(seed)), PHRASES)
    _, questions = tell(tale, KIND)
    asked, reply, _ = REASONS[KIND]
    body = bytes(tale.source.text).decode().rpartition("\n")[0]
    names = [name.lower() for name in re.findall(r"{(\w+)}", reply)]
    replies, right = [], []
    for words in product(*(tale.facts[name].domain for name in names)):
        replies.append(tale.tell(reply, **dict(zip(names, words, strict=True))))
        right.append(sum(word is tale.facts[name].value for name, word in zip(names, words, strict=True)))
    return f"{body} {next(q.text for q in questions if q.kind == asked)}", replies, np.array(right)


def questions(tokenizer, count, seed):
    """Different short prompts, each with its replies as tokens."""
    found, random = {}, Random(seed)
    while len(found) < count:
        prompt, replies, right = question(random.getrandbits(32))
        if prompt not in found and len(tokenizer.encode(prompt)) <= LONGEST:
            found[prompt] = [encode([(prompt, reply)], tokenizer) for reply in replies], right
    return list(found.values())


def batch_of(replies, model):
    return rows(replies, row_length(replies, model.config.context), model.config.predict)


def table(model, some):
    """Nats of all replies to some prompts: [n, 16]."""
    found = []
    for replies, _ in some:
        inputs, targets = rows(replies, row_length(replies, model.config.context), 1)
        found.append(-model.losses(inputs, targets[..., 0]).sum(axis=1, dtype=np.float64))
    return np.array(found)


def reference(seed, taught, base, workers):
    """The model of the package, taught to give the true reply with rate one half, else any."""
    model, rng = base.copied(), np.random.default_rng([21, seed])
    optimizer, config = AdamW(model.config, SFT), replace(SFT, seed=seed)
    with one_blas_thread(), Step(model, optimizer, config, SFT.batch, workers) as take_step:
        for _ in range(SFT.steps):
            chosen = []
            for i in rng.integers(len(taught), size=SFT.batch):
                replies, right = taught[i]
                chosen.append(replies[right.argmax() if rng.random() < 0.5 else rng.integers(len(replies))])
            take_step(*batch_of(chosen, model))
    return model


def optimum(logps, right):
    """log pi*(y | S), for reward r = POINT for each shore that is right: [n, 16]."""
    tilted = logps + POINT * right / BETA
    return tilted - np.logaddexp.reduce(tilted, axis=-1, keepdims=True)


def distances(model, some, before, inside):
    """The distance to the optimum on the replies `inside`, and where the mass is. before, inside: [n, 16]."""
    logps, right = table(model, some), np.array([right for _, right in some])
    star = optimum(np.where(inside, before, -np.inf), right)
    own = np.where(inside, logps, -np.inf)
    own = own - np.logaddexp.reduce(own, axis=-1, keepdims=True)
    kl = np.sum(np.exp(own) * (own - star), axis=1, where=inside)
    mass = np.exp(logps)
    return {
        "kl": float(kl.mean()),
        "inside": float((mass * inside).sum(axis=1).mean()),
        "rest": float((mass * ~inside).sum(axis=1).mean()),
        "outside": float(1 - mass.sum(axis=1).mean()),
        "true": float(mass[right == 2].mean()),
    }


def later(model, some):
    """Mean nats of each head on the true replies."""
    inputs, targets = batch_of([replies[right.argmax()] for replies, right in some], model)
    return (model.losses(inputs, targets).sum(axis=(0, 1)) / (targets >= 0).sum(axis=(0, 1))).tolist()


def part_of(some):
    """A half of the replies to each prompt: those that begin the walk at the right shore or at the one next to it."""
    inside = []
    for _, right in some:
        shore = int(right.argmax()) % 4
        inside.append(np.isin(np.arange(16) % 4, (shore, (shore + 1) % 4)))
    return np.array(inside)


def learn(seed, config, source, trained, held_out, before, inside, workers):
    """DPO from the reference on pairs drawn from it, labels from its reward. Returns a row for each look."""
    model, rng = source.copied(), np.random.default_rng([22, seed])
    looks = {0, *np.linspace(0, config.steps, 7).astype(int)[1:]}
    found, figures = [], []
    share = np.exp(before[0]) * inside[0]
    share /= share.sum(axis=1, keepdims=True)

    def look(step):
        row = {"seed": seed, "step": int(step)}
        for name, some, i in (("trained", trained[:SCORED], 0), ("held_out", held_out, 1)):
            row[name] = distances(model, some, before[i][: len(some)], inside[i][: len(some)])
        row |= {
            "figures": np.mean(figures, axis=0).tolist() if figures else None,
            "heads": later(model, held_out),
        }
        figures.clear()
        found.append(row)

    with (
        one_blas_thread(),
        Step(model, AdamW(model.config, config), config, 2 * config.batch, workers, 2) as take_step,
    ):
        look(0)
        for step in range(config.steps):
            replies, reference_nats = [], []
            for i in rng.choice(len(trained), config.batch, replace=False):
                one, other = rng.choice(16, 2, replace=False, p=share[i])
                gap = POINT * (trained[i][1][one] - trained[i][1][other])
                if rng.random() >= 1 / (1 + np.exp(-gap)):
                    one, other = other, one
                replies += [trained[i][0][one], trained[i][0][other]]
                reference_nats += [before[0][i, one], before[0][i, other]]
            told, _ = take_step(*batch_of(replies, model), weigher(np.array(reference_nats), BETA))
            figures.append(told)
            if step + 1 in looks:
                look(step + 1)
    return found


def prepared(job):
    """The reference of a seed, and its nats of the replies to all prompts."""
    seed, base, taught, trained, held_out, workers = job
    with threadpool_limits(workers, "blas"):
        model = reference(seed, taught, base, workers)
        return model, (table(model, trained), table(model, held_out))


def run(job):
    name, seed, config, source, trained, held_out, before, workers = job
    some = trained, held_out
    inside = [part_of(one) if name == "part" else np.ones((len(one), 16), bool) for one in some]
    return [{"run": name} | row for row in learn(seed, config, source, trained, held_out, before, inside, workers)]


def main(processes, seeds, sft_steps, dpo_steps):
    global SFT, DPO, PART
    SFT, DPO, PART = (
        replace(SFT, steps=sft_steps),
        replace(DPO, steps=dpo_steps),
        replace(PART, steps=dpo_steps // 2),
    )
    base, tokenizer = extend(*load_pretrained())
    prompts = questions(tokenizer, TAUGHT + TRAINED + HELD_OUT, 21)
    taught, trained, held_out = prompts[:TAUGHT], prompts[TAUGHT:-HELD_OUT], prompts[-HELD_OUT:]
    with ProcessPoolExecutor(processes) as pool:
        each = max(1, processes // len(seeds))
        ready = list(pool.map(prepared, [(seed, base, taught, trained, held_out, each) for seed in seeds]))
        kept = [float(np.exp(before[1]).sum(axis=1).mean()) for _, before in ready]
        print("mass of the references on S:", kept, flush=True)
        if min(kept) < LEAST:
            raise SystemExit(
                f"a reference has {min(kept):.3f} of its mass on S, expected {LEAST}: the rest would mean nothing"
            )
        jobs = [
            (name, seed, config, model, trained, held_out, before, workers)
            for name, config, workers in (("whole", DPO, max(1, each - 1)), ("part", PART, 1))
            for seed, (model, before) in zip(seeds, ready, strict=True)
        ]
        found = [row for part in pool.map(run, jobs) for row in part]
    config = {
        "seeds": seeds, "beta": BETA, "point": POINT, "sft": SFT.to_dict(), "dpo": DPO.to_dict(),
        "part_steps": PART.steps, "prompts": {"taught": TAUGHT, "trained": TRAINED, "held_out": HELD_OUT},
        "mass": kept,
    }  # fmt: skip
    for row in found:
        print(row["run"], row["seed"], row["step"], row["trained"], row["held_out"], flush=True)
    save("ch21", config, found)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--sft-steps", type=int, default=SFT.steps)
    options.add_argument("--dpo-steps", type=int, default=DPO.steps)
    given = options.parse_args()
    main(given.processes, given.seeds, given.sft_steps, given.dpo_steps)
