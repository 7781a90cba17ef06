"""Run one process of `test_many.py`, under mpirun or by itself; rank 0 prints JSON. Arguments: names of `computed`."""

import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np

from nanoeuler_lib import engine
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.data_parallel import group as group_module
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import init

MODEL = ModelConfig(dim=32, heads=1, kv_heads=1, layers=3, context=7, vocab_size=40, predict=2, ffn=48)
CONFIG = TrainConfig(steps=9, batch=1, accumulate=4, warmup=0, rate=1e-2, clip=0.5)
STEPS, TOO_LARGE = 3, 2**40


def batch(number, shards=4):
    """Return tokens [shards, T] and targets; the shards have different numbers of valid targets."""
    rng = np.random.default_rng(number)
    shape = shards, MODEL.context
    tokens, targets = rng.integers(0, 40, shape), rng.integers(0, 40, (*shape, 2))
    for row in range(shards):
        targets[row, : 2 * row % 8] = -1
    return tokens, targets


def taken(group, precision, checked=False, poison=None, shards=4, optimizer="adamw"):
    """Return the results of some steps: losses, norms, the hash, what the bits depend on, and SHA-256 of the states."""
    config, options = replace(CONFIG, accumulate=shards, optimizer=optimizer), dict(where="cpu", checked=checked)
    model = data_parallel.GPT(MODEL, init(MODEL, 0, 0.2), group, optimizer, precision=precision, **options)
    optimizer = data_parallel.AdamW(MODEL, config, "cpu", group)
    optimizer.loss_scale = TOO_LARGE, 0  # in float16, the first gradients overflow
    take = data_parallel.Step(model, optimizer, config, shards)
    rows = [take(*batch(number, shards)) for number in range(STEPS)]
    states = model.params.host().flat, optimizer.m.host().flat, optimizer.v.host().flat
    found = {"losses": [losses.tolist() for losses, _ in rows], "norms": [norm for _, norm in rows]}
    found["hash"], found["info"], found["bits"] = take.hash(), take.info, take.bits()
    found["validation"] = data_parallel.shared_out(
        model, lambda m: sum(float(m.losses(*batch(n)).sum()) for n in range(5))
    )
    found["sha256"] = hashlib.sha256(b"".join(x.tobytes() for x in states)).hexdigest()
    if poison is not None:
        if group.rank == poison:
            model.weights["heads"][0, 0] = 0x7FC0  # NaN
        _, norm = take(*batch(9))
        moved = model.params.host().flat.tobytes() != states[0].tobytes()
        found["poisoned"] = {"norm": str(norm), "whose": take.bad_rank, "step": optimizer.step, "moved": moved}
        model.wait_for_weights()
        if group.rank == poison:
            model.read[0][0] += 1  # an outdated copy
        try:
            take.hash()
        except NanoEulerError as error:
            found["poisoned"]["told"] = str(error)
    return found


def reference(optimizer):
    """Return the same steps by the engine for one GPU, which adds micro-batches one after the other."""
    model, config = (
        engine.GPT(MODEL, init(MODEL, 0, 0.2), where="cpu", checked=False),
        replace(CONFIG, optimizer=optimizer),
    )
    take = engine.Step(model, engine.AdamW(MODEL, config, "cpu"), config, 4, micro=1)
    rows = [take(*batch(number)) for number in range(STEPS)]
    return {"losses": [losses.tolist() for losses, _ in rows], "norms": [norm for _, norm in rows]}


def computed(group, name):
    precision, _, how = name.partition(", ")
    optimizer = "muon" if how == "muon" else "adamw"
    if precision == "reference":
        return reference(optimizer)
    if name == "NaN":
        return taken(group, "bfloat16", poison=1)["poisoned"]
    return taken(group, precision, how == "checked", shards=8 if how == "eight" else 4, optimizer=optimizer)


def main(*names):
    group = data_parallel.Group.world() if data_parallel.started_by_launcher() else data_parallel.Group()
    case = names[0]
    if case in ("stop", "kill", "sleep"):
        group_module.LATE = group_module.STUCK = 2.0
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a run; the launcher sends it to the others
        group.say_when_lost(lambda: "; words")
        group.barrier()
        if group.rank == 1:
            end = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
            time.sleep(60) if case == "sleep" else os.kill(os.getpid(), end[case])
        group.barrier()  # never returns
    found = {name: computed(group, name) for name in names}
    if group.rank == 0:
        print(json.dumps(found), flush=True)
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
