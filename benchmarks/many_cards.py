"""Training on many cards beside as many that train alone, and beside PyTorch's DDP; needs cards, Open MPI, PyTorch.

    python -m benchmarks.many_cards                    # on 2, 4, ... of this host's cards; data/results/many_cards.json
    python -m benchmarks.many_cards --cards 2 --quick  # on two, few rounds, printed alone
    python -m benchmarks.many_cards --only speed bits  # some of PARTS

speed: a step of `base` on N cards together against N runs of the engine of one card at the same time, of which the
slowest counts;
rounds are paired, so that what all cards share (heat, clocks) falls out. DDP (compiled, static graph) likewise, in the
same process and in turns. tree: one card with shards added by the tree
beside the same shards accumulated. bits: the command itself, 200 steps on 1, 2, ... cards, and killed and resumed on
another number; the SHA-256 of weights and moments. memory: bytes of states by card.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.gpu_step import batch
from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import many
from nanoeuler_lib.engine import step as engine_step
from nanoeuler_lib.engine.memory import download
from nanoeuler_lib.training import checkpoint
from nanoeuler_lib.world import corpus
from tools.notebooks.results import FOLDER, ROOT, save

PARTS = "speed", "tree", "memory", "bits"
SETTINGS = TrainConfig(steps=1000, rate=6e-4, warmup=0)
STEPS, WARM = 5, 3  # steps of a turn; steps before the first one
SIZES = [1 << k for k in range(12, 29, 2)] + [
    4 * 116_417_280
]  # bytes of a message; the last: all gradients of base
ENVIRONMENT = (
    os.environ
    | {  # Open MPI refuses root, and more processes than cores, unless it is told otherwise
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
)


def stepping(config: ModelConfig, group: many.Group, rows: int, shards: int, where: str, precision: str):
    """A function that takes a step on a batch of `shards` times `rows`, and its `many.Step`."""
    settings = TrainConfig(**SETTINGS.to_dict() | {"batch": rows, "accumulate": shards})
    made = many.GPT(config, model.init(config, 0), group, precision=precision, where=where, checked=False)
    take = many.Step(made, many.AdamW(config, settings, where, group), settings, rows * shards)
    return (lambda tokens, targets: float(take(tokens, targets)[0] @ take.weights)), take


class OneCard(engine.Step):
    """`engine.Step` for targets that are all valid: it need not count them, as `many.Step` need not.

    Counting takes this machine 2 x 0.6 ms for 64 rows while the card waits; left in, it would be taken for a gain of
    the other side.
    """

    def _start_gradient(self, tokens, targets):
        scale = lambda targets, weights: weights / (targets.size // len(weights))
        with mock.patch.object(engine_step, "loss_scale", scale):
            super()._start_gradient(tokens, targets)

    def _losses(self, targets):
        return download(self.sums) / (targets.size // len(self.weights))


def one_card(config: ModelConfig, rows: int, shards: int, where: str, precision: str):
    """As `stepping`, by the engine of one card, which adds its shards one after another."""
    made = engine.GPT(config, model.init(config, 0), precision=precision, where=where, checked=False)
    take = OneCard(made, engine.AdamW(config, SETTINGS, where), SETTINGS, rows * shards, micro=rows)
    return (lambda tokens, targets: float(take(tokens, targets)[0] @ take.weights)), take


def ddp(config: ModelConfig, group: many.Group, precision: str, joint: bool):
    """The same in PyTorch, compiled, on this rank's card: alone, or joined by DDP."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.torch_peer import Trainer

    torch.cuda.set_device(group.local)
    trainer = Trainer(config, model.init(config, 0), SETTINGS, not joint, "cuda", precision)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = trainer.model

        def forward(self, tokens, targets, weights):
            return self.inner.loss(tokens, targets, weights)

    if joint:
        if not torch.distributed.is_initialized():
            where = f"file://{group.everyones(tempfile.mktemp())[0]}"
            torch.distributed.init_process_group("nccl", where, rank=group.rank, world_size=group.size)
        wrapped = DistributedDataParallel(
            Loss(), device_ids=[group.local], static_graph=True, gradient_as_bucket_view=True
        )
        trainer.loss = torch.compile(wrapped)
    return lambda tokens, targets: trainer.step(tokens, targets, SETTINGS.rate)


def speed(group: many.Group, config: ModelConfig, rows: int, rounds: int, where="gpu", peer=True) -> dict:
    """The row of a case: milliseconds of each round, and the efficiency with its interval."""
    N, precision = group.size, "bfloat16" if where == "gpu" else "float32"
    contestants = {
        "alone": (one_card(config, rows, 1, where, precision)[0], 1),
        "joint": (stepping(config, group, rows, N, where, precision)[0], N),
    }
    if peer:
        contestants |= {
            "ddp_alone": (ddp(config, group, precision, False), 1),
            "ddp": (ddp(config, group, precision, True), 1),
        }
    batches = [batch(config, rows * N, number) for number in range(STEPS)]
    mine = slice(group.rank * rows, (group.rank + 1) * rows)
    parts = {1: [(x[mine].copy(), y[mine].copy()) for x, y in batches], N: batches}
    taken = {name: [] for name in contestants}
    for turn in range(-1, rounds):
        for name, (take, width) in contestants.items():
            group.meet()
            began = time.perf_counter()
            for one in parts[width] if turn >= 0 else parts[width][:WARM]:
                take(*one)
            seconds = (time.perf_counter() - began) / STEPS
            if turn >= 0:
                taken[name] += [round(1e3 * max(group.everyones(seconds)), 4)]
    row = {"what": "speed", "cards": N, "rows": rows, "precision": precision, "rounds": rounds}
    row |= {f"{name}_ms": times for name, times in taken.items()}
    for name, alone, joint in (("", "alone", "joint"), ("ddp_", "ddp_alone", "ddp")):
        if joint in taken:
            each = [a / b for a, b in zip(taken[alone], taken[joint], strict=True)]
            row |= {f"{name}efficiency": round(statistics.median(each), 4), f"{name}interval": interval(each)}
    return row


def interval(each: list[float], draws: int = 4000) -> list[float]:
    """95% of the medians of rounds drawn again with replacement."""
    drawn = np.random.default_rng(0).choice(each, (draws, len(each)))
    return [round(float(x), 4) for x in np.quantile(np.median(drawn, axis=1), (0.025, 0.975))]


def tree(config: ModelConfig, rows: int, shards: int, rounds: int, where="gpu") -> dict:
    """One card: shards added by the tree beside the same shards accumulated."""
    precision = "bfloat16" if where == "gpu" else "float32"
    by_tree, _ = stepping(config, many.Group(), rows, shards, where, precision)
    in_turn, _ = one_card(config, rows, shards, where, precision)
    one, taken = batch(config, rows * shards, 0), {"accumulated": [], "tree": []}
    for turn in range(-2, rounds):
        for name, step in (("accumulated", in_turn), ("tree", by_tree)):
            began = time.perf_counter()
            step(*one)
            if turn >= 0:
                taken[name] += [round(1e3 * (time.perf_counter() - began), 4)]
    each = [b / a - 1 for a, b in zip(taken["accumulated"], taken["tree"], strict=True)]
    found = {f"{name}_ms": times for name, times in taken.items()}
    return {"what": "tree", "cards": 1, "shards": shards, "rows": rows, **found} | {
        "slower": round(statistics.median(each), 4),
        "interval": interval(each),
    }


def memory(group: many.Group, config: ModelConfig) -> dict:
    """Bytes of weights, copies, gradients, moments and what arrives, as they lie on each card, beside one card's."""
    _, take = stepping(config, group, 1, group.size, "gpu", "bfloat16")
    m, o = take.model, take.optimizer
    masters = [x for x, whole in zip(m.params.slices, m.read, strict=True) if whole.dtype != np.float32]
    arrays = [*m.read, *masters, *o.m.slices, *o.v.slices, *(x.flat for x in take.levels), take.inbox]
    states = max(group.everyones(sum(x.nbytes for x in arrays)))
    one = engine.bytes_needed(config, 1, config.context, "bfloat16")["states"]
    return {"what": "memory", "cards": group.size, "states_bytes": states, "one_card_bytes": one} | {
        "share": round(states / one, 4)
    }


def bits(
    cards: list[int], folder: Path, steps: int, shape: list[str], rows: int, shards: int, device: str
) -> dict:
    """The command on each number of cards, and begun on the most, killed, and resumed on the next: their SHA-256."""
    text, tokenizer = folder / "text.txt", checkpoint.PRETRAINED / "konigsberg-small" / "tokenizer.json"
    text.write_text(corpus(1_000_000, 1), "utf-8")
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "train", "--quiet"]
    settings = (
        f"--batch {rows} --accumulate {shards} --steps {steps} --save-every {steps // 2} --sample-every 0"
    )
    settings += f" --valid-fraction 0.02 --valid-every {steps} --device {device}"
    how = ["--data", text, "--tokenizer", tokenizer, *shape, *settings.split()]
    found, seconds = {}, {}

    def call(*words, wait=True):
        process = subprocess.Popen([*map(str, [*command, *words])], cwd=ROOT)
        return process.wait() if wait else process

    for count in cards:
        began = time.perf_counter()
        assert call(*how, "--run", folder / f"on{count}", "--cards", count) == 0
        seconds[str(count)] = round(time.perf_counter() - began, 1)
        found[str(count)] = digest(folder / f"on{count}")
    if len(cards) > 1:
        run, most, then = folder / "killed", cards[-1], cards[-2]
        process = call(*how, "--run", run, "--cards", most, wait=False)
        while len(checkpoint.folders(run)) < 2 and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        while call("--resume", run, "--cards", then) == 2 and time.perf_counter() - began < 300:
            time.sleep(1)  # the others of the killed run are still ending
        found[f"{most}, killed, then {then}"] = digest(run)
    return {
        "what": "bits",
        "steps": steps,
        "shards": shards,
        "rows": rows,
        "sha256": found,
        "seconds": seconds,
    }


def digest(run: Path) -> str:
    """One SHA-256 of weights and moments: of those of the two files that hold them."""
    names = checkpoint.read_head(run)["sha256"]
    both = names["model.safetensors"] + names["optimizer.safetensors"]
    return hashlib.sha256(both.encode()).hexdigest()


def worker(options) -> None:
    """What each rank does; rank 0 prints a row as JSON a line."""
    import cupy

    group = many.Group.world()
    cupy.cuda.Device(group.local).use()
    config, rounds = preset("base"), 5 if options.quick else 12
    work = {
        "speed": lambda: [speed(group, config, rows, rounds, peer=not options.no_peer) for rows in (64, 16)],
        "memory": lambda: [memory(group, config)],
    }
    for part in options.only:
        rows = work[part]() if part in work else []
        cupy.get_default_memory_pool().free_all_blocks()
        if group.rank == 0:
            for row in rows:
                print("ROW " + json.dumps(row), flush=True)
    group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cards", type=int, nargs="+", help="numbers of cards (default: 2, 4, ... as there are)"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--no-peer", action="store_true", help="without DDP")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    import cupy

    there = cupy.cuda.runtime.getDeviceCount()
    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    counts, rows = options.cards or [n for n in (2, 4, 8) if n <= there], []
    words = ["--quick"] * options.quick + ["--no-peer"] * options.no_peer
    for count in counts:
        if parts := [part for part in options.only if part in ("speed", "memory")]:
            command = [shutil.which("mpirun"), "-n", str(count), "--bind-to", "none", sys.executable, "-m"]
            command += ["benchmarks.many_cards", "--worker", *words, "--only", *parts]
            done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
            found = [json.loads(x[4:]) for x in done.stdout.splitlines() if x.startswith("ROW ")]
            rows += found
            for row in found:
                print(json.dumps({k: v for k, v in row.items() if not k.endswith("_ms")}), flush=True)
    if "tree" in options.only:
        rows += [tree(preset("base"), 64, 4, 5 if options.quick else 12)]
        print(json.dumps(rows[-1]), flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
    if "bits" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            steps, shape = (20 if options.quick else 200), ["--preset", "base"]
            rows += [bits([1, *counts], Path(folder), steps, shape, 64, 4, "gpu")]
        print(json.dumps(rows[-1]), flush=True)
    if not options.quick:
        save("many_cards", {"gpu": card, "steps": STEPS, "model": "base"}, rows, options.out)


if __name__ == "__main__":
    main()
