"""What each process of `test_many.py` does; rank 0 prints JSON. python many_worker.py CASE, under mpirun or alone."""

import hashlib
import inspect
import json
import os
import signal
import sys
import time
import types
from dataclasses import replace

import numpy as np

from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.data_parallel import group as group_module
from nanoeuler_lib.engine.data_parallel import step as step_module
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import init

MODEL = ModelConfig(dim=32, heads=1, kv_heads=1, layers=3, context=7, vocab_size=40, predict=2, ffn=48)
CONFIG = TrainConfig(steps=9, batch=1, accumulate=4, warmup=0, rate=1e-2, clip=0.5)
STEPS = 3
BUGS = {  # what stands in step.py, and what a mistaken hand would write
    "a slice is sent before its last gradient is written": (
        "whole.behind(grads.flat[b.start : b.stop])",
        "whole.behind(grads.flat[b.start : b.stop]) - (b is self.cut[0])",
    ),
    "a wrong owner": (
        "(other, flat[b.of(other, size)])",
        "(other, flat[b.of(other if b.units % 2 else rank, size)])",
    ),
    "a mean of means of the losses": (
        "tree(download(self.losses)) / np.maximum(self.valid, 1)",
        "tree(download(self.losses) / np.array([[7], [5], [3], [1]])) / 4",  # `batch`
    ),
    "a mean of means of the gradients": (
        "plan.put(tokens[part], targets[part], self._scale())",
        "plan.put(tokens[part], targets[part], self.weights / np.maximum((targets[part] >= 0).sum((0, 1)), 1) / 4)",
    ),
    "a stale copy": ("self.cut[k].inside(rank, size)", "self.cut[k].inside(rank, size if k else 8)"),
    "equal data on two ranks": ("first, m = self.group.rank * self.local", "first, m = 0"),
    "shards added in turn": ("i.bit_count(), (i ^ (i + 1)).bit_length() - 1", "min(i, 1), min(i, 1)"),
}


CASES = {  # what each computes, by name
    "plain": ("float32", "reference"),
    "owner": ("a wrong owner",),
    "right": ("float32", "bfloat16, checked"),
    "bugs": ("float32", "bfloat16, checked", *BUGS, "NaN"),
    "alone": ("float32", "bfloat16, checked", "shards added in turn"),
    "eight": ("float32, eight", "bfloat16, eight"),
}


def batch(number, shards=4):
    """Tokens [shards, T] and targets, of which the shards have different numbers of valid ones."""
    rng = np.random.default_rng(number)
    shape = shards, MODEL.context
    tokens, targets = rng.integers(0, 40, shape), rng.integers(0, 40, (*shape, 2))
    for row in range(shards):
        targets[row, : 2 * row % 8] = -1
    return tokens, targets


def planted(bug):
    """step.py with a bug."""
    old, new = BUGS[bug]
    text = inspect.getsource(step_module)
    assert text.count(old) == 1, f"{bug}: {text.count(old)} times in step.py"
    module = types.ModuleType("planted")
    exec(compile(text.replace(old, new), step_module.__file__, "exec"), vars(module))
    return module.Step


def taken(group, precision, step=data_parallel.Step, checked=False, poison=None, shards=4):
    """What comes out of some steps: losses, norms, the hash or what is said in its place, SHA-256 of the states."""
    model = data_parallel.GPT(MODEL, init(MODEL, 0, 0.2), group, precision=precision, where="cpu", checked=checked)
    optimizer, config = data_parallel.AdamW(MODEL, CONFIG, "cpu", group), replace(CONFIG, accumulate=shards)
    take = step(model, optimizer, config, shards)
    rows = [take(*batch(number, shards)) for number in range(STEPS)]
    try:
        told = take.hash()
    except NanoEulerError as error:
        told = str(error)
    states = model.params.host().flat, optimizer.m.host().flat, optimizer.v.host().flat
    found = {"losses": [losses.tolist() for losses, _ in rows], "norms": [norm for _, norm in rows], "hash": told}
    found["validation"] = data_parallel.shared_out(
        model, lambda m: sum(float(m.losses(*batch(n)).sum()) for n in range(5))
    )
    found["sha256"] = hashlib.sha256(b"".join(x.tobytes() for x in states)).hexdigest()
    if poison is not None:
        if group.rank == poison:
            model.weights["heads"][0, 0] = 0x7FC0  # NaN
        _, norm = take(*batch(9))
        found["poisoned"] = {"norm": str(norm), "whose": take.bad_rank, "step": optimizer.step}
        after = model.params.host().flat
        found["poisoned"]["moved"] = (
            hashlib.sha256(after.tobytes()).hexdigest() != hashlib.sha256(states[0].tobytes()).hexdigest()
        )
    return found


def reference():
    """The same steps by the engine of one card, which adds micro-batches in turn."""
    model = engine.GPT(MODEL, init(MODEL, 0, 0.2), precision="float32", where="cpu", checked=False)
    take = engine.Step(model, engine.AdamW(MODEL, CONFIG, "cpu"), CONFIG, 4, micro=1)
    rows = [take(*batch(number)) for number in range(STEPS)]
    return {"losses": [losses.tolist() for losses, _ in rows], "norms": [norm for _, norm in rows]}


def computed(group, name):
    if name == "reference":
        return reference()
    if name == "NaN":
        return taken(group, "bfloat16", poison=1)["poisoned"]
    if name in BUGS:
        return taken(group, "float32", planted(name))
    precision, _, how = name.partition(", ")
    return taken(group, precision, checked=how == "checked", shards=8 if how == "eight" else 4)


def main(case):
    group = data_parallel.Group.world() if data_parallel.started_by_launcher() else data_parallel.Group()
    if case in ("stop", "kill", "sleep"):
        group_module.LATE = group_module.STUCK = 2.0
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a run: the launcher ends the others by it
        group.say_when_lost(lambda: "; words")
        group.barrier()
        if group.rank == 1:
            end = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
            time.sleep(60) if case == "sleep" else os.kill(os.getpid(), end[case])
        group.barrier()  # never over
    found = {name: computed(group, name) for name in CASES[case]}
    if group.rank == 0:
        print(json.dumps(found), flush=True)
    group.close()


if __name__ == "__main__":
    main(sys.argv[1])
