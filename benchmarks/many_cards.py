"""Compare training on several GPUs with separate runs on one GPU each, and with PyTorch's DDP.

    python -m benchmarks.many_cards                       # on 2, 4, ... GPUs; stores data/results/many_cards.json
    python -m benchmarks.many_cards --only ddp --gpus 2   # only some of PARTS
    python -m benchmarks.many_cards --quick               # few rounds, printed but not stored

Needs several GPUs, Open MPI and PyTorch. Each row is stored as soon as it is complete. Rows of earlier commits that
were not measured again stay in the file, with their own commit, date and GPU. The config contains NCCL's settings
(`benchmarks/collectives.py`). Rows:

    speed     a step of `base` on N GPUs together, against N simultaneous runs on one GPU each, of which the slowest
              counts; rounds are paired, so that effects on all GPUs (heat, clocks) cancel
    ddp       the same with PyTorch, in separate processes. `compiled` says how: "whole" (the whole loss is one graph,
              and DDP's all-reduces follow the backward pass) or "by bucket" (PyTorch cuts the graph at the borders of
              DDP's buckets, so that all-reduces overlap with the backward pass); rows without it are older: "by block"
    tree      one GPU that adds shards by the tree, against the same shards accumulated
    memory    bytes of optimiser states per GPU
    bits      the command itself, 200 steps on 1, 2, ... GPUs, and a run that is killed and resumed on a different
              number of GPUs; SHA-256 of weights and moments
"""

import argparse
import functools
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
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.collectives import nccl_settings
from benchmarks.gpu_step import batch
from konigsberg import corpus
from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.training import checkpoint
from tools.notebooks.results import FOLDER, ROOT, commit, save

PARTS = "speed", "memory", "ddp", "tree", "bits"
SETTINGS = TrainConfig(steps=1000, rate=6e-4, warmup=0)
COMPILED = {"whole": False, "by bucket": True}  # how PyTorch compiles under DDP -> whether it cuts the graph at buckets
STEPS, WARM = 5, 3  # steps per round; steps before the first round
ENVIRONMENT = os.environ | {  # by default Open MPI refuses to run as root, or with more processes than cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
Take = Callable[[np.ndarray, np.ndarray], float]
weights_of = functools.cache(functools.partial(model.init, seed=0))


def stepping(config: ModelConfig, group: data_parallel.Group, rows: int, shards: int, where: str, precision: str):
    """Return a function that takes a step on a batch of `shards` times `rows`, and its `data_parallel.Step`."""
    settings = TrainConfig(**SETTINGS.to_dict() | {"batch": rows, "accumulate": shards})
    made = data_parallel.GPT(config, weights_of(config), group, precision=precision, where=where, checked=False)
    take = data_parallel.Step(made, data_parallel.AdamW(config, settings, where, group), settings, rows * shards)
    return (lambda tokens, targets: float(take(tokens, targets)[0] @ take.weights)), take


def one_card(config: ModelConfig, rows: int, shards: int, where: str, precision: str) -> Take:
    """Return such a function for the engine on one GPU, which adds its shards one after another."""
    made = engine.GPT(config, weights_of(config), precision=precision, where=where, checked=False)
    take = engine.Step(made, engine.AdamW(config, SETTINGS, where), SETTINGS, rows * shards, micro=rows)
    return lambda tokens, targets: float(take(tokens, targets)[0] @ take.weights)


def torch_step(
    config: ModelConfig,
    group: data_parallel.Group,
    first: tuple[np.ndarray, np.ndarray],
    device: str,
    precision: str,
    compiled: str | None,
) -> Take:
    """Return such a function for PyTorch on this rank's GPU, after one step on the batch `first`, which compiles it.

    compiled: None for one GPU, with the whole loss as one graph (the peer of chapter 30); with DDP, one of COMPILED.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.torch_peer import Trainer

    by_bucket = COMPILED.get(compiled, False)
    trainer = Trainer(config, weights_of(config), SETTINGS, not by_bucket, device, precision)
    if compiled:

        class Loss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.loss = trainer.model, trainer.loss

            def forward(self, *arguments):
                return self.loss(*arguments)

        if not torch.distributed.is_initialized():
            where = f"file://{group.all_gather(tempfile.mktemp())[0]}"
            backend = "nccl" if device == "cuda" else "gloo"
            torch.distributed.init_process_group(backend, where, rank=group.rank, world_size=group.size)
        trainer.loss = DistributedDataParallel(Loss(), gradient_as_bucket_view=True)
        if by_bucket:
            trainer.loss = torch.compile(trainer.loss)
    with torch._dynamo.config.patch(optimize_ddp=by_bucket):  # read when the first step compiles
        trainer.step(*first, SETTINGS.rate)
    return lambda tokens, targets: trainer.step(tokens, targets, SETTINGS.rate)


def batches_of(group: data_parallel.Group, config: ModelConfig, rows: int) -> list:
    """Return the batches of a round, with `rows` rows for each GPU."""
    return [batch(config, rows * group.size, number) for number in range(STEPS)]


def own_rows(group: data_parallel.Group, rows: int, batches: list) -> list:
    """Return the rows of these batches that belong to this rank's GPU."""
    mine = slice(group.rank * rows, (group.rank + 1) * rows)
    return [(x[mine].copy(), y[mine].copy()) for x, y in batches]


def rounds_of(group: data_parallel.Group, contestants: dict, config: ModelConfig, rows: int, rounds: int) -> dict:
    """Return milliseconds per step in each round, by name. contestants: name -> function, number of GPUs whose rows
    it takes.
    """
    batches = batches_of(group, config, rows)
    parts = {1: own_rows(group, rows, batches), group.size: batches}
    taken = {name: [] for name in contestants}
    for turn in range(-1, rounds):
        for name, (take, width) in contestants.items():
            group.barrier()
            began = time.perf_counter()
            for one in parts[width] if turn >= 0 else parts[width][:WARM]:
                take(*one)
            seconds = (time.perf_counter() - began) / STEPS
            if turn >= 0:
                taken[name] += [round(1e3 * max(group.all_gather(seconds)), 4)]
    return taken


def compared(group: data_parallel.Group, what: str, rows: int, precision: str, taken: dict) -> dict:
    """Return the row of a case: milliseconds in each round, and the efficiency with its confidence interval."""
    each = [a / b for a, b in zip(taken["alone"], taken["joint"], strict=True)]
    row = {"what": what, "cards": group.size, "rows": rows, "precision": precision, "rounds": len(each)}
    row |= {f"{name}_ms": times for name, times in taken.items()}
    return row | {"efficiency": round(statistics.median(each), 4), "interval": interval(each)}


def speed(group: data_parallel.Group, config: ModelConfig, rows: int, rounds: int, where="gpu") -> list[dict]:
    """Compare a step on N GPUs together with simultaneous steps of the engine on one GPU each."""
    N, precision = group.size, "bfloat16" if where == "gpu" else "float32"
    contestants = {
        "alone": (one_card(config, rows, 1, where, precision), 1),
        "joint": (stepping(config, group, rows, N, where, precision)[0], N),
    }
    return [compared(group, "speed", rows, precision, rounds_of(group, contestants, config, rows, rounds))]


def ddp(group: data_parallel.Group, config: ModelConfig, rows: int, rounds: int, device="cuda") -> list[dict]:
    """Compare DDP on N GPUs, compiled in each way of COMPILED, with simultaneous steps of PyTorch on one GPU each."""
    import torch

    precision = "bfloat16" if device == "cuda" else "float32"
    (first, *_) = own_rows(group, rows, batches_of(group, config, rows))
    contestants = {
        name: (torch_step(config, group, first, device, precision, compiled), 1)
        for name, compiled in {"alone": None, **{how: how for how in COMPILED}}.items()
    }
    taken = rounds_of(group, contestants, config, rows, rounds)
    return [
        compared(group, "ddp", rows, precision, {"alone": taken["alone"], "joint": taken[how]})
        | {"compiled": how, "torch": torch.__version__}
        for how in COMPILED
    ]


def interval(each: list[float], draws: int = 4000) -> list[float]:
    """Return the interval that holds 95% of the medians of bootstrap samples of the rounds."""
    drawn = np.random.default_rng(0).choice(each, (draws, len(each)))
    return [round(float(x), 4) for x in np.quantile(np.median(drawn, axis=1), (0.025, 0.975))]


def tree(config: ModelConfig, rows: int, shards: int, rounds: int, where="gpu") -> dict:
    """Compare on one GPU: shards added by the tree, and the same shards accumulated one after another."""
    precision = "bfloat16" if where == "gpu" else "float32"
    by_tree, _ = stepping(config, data_parallel.Group(), rows, shards, where, precision)
    in_turn = one_card(config, rows, shards, where, precision)
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


def memory(group: data_parallel.Group, config: ModelConfig) -> dict:
    """Compare the bytes per GPU of weights, copies, gradients, moments and inbox with the bytes on a single GPU."""
    _, take = stepping(config, group, 1, group.size, "gpu", "bfloat16")
    m, o = take.model, take.optimizer
    masters = [x for x, whole in zip(m.params.slices, m.read, strict=True) if whole.dtype != np.float32]
    arrays = [*m.read, *masters, *o.m.slices, *o.v.slices, *(x.flat for x in take.levels), take.inbox]
    states = max(group.all_gather(sum(x.nbytes for x in arrays)))
    one = engine.bytes_needed(config, 1, config.context, "bfloat16")["states"]
    return {"what": "memory", "cards": group.size, "states_bytes": states, "one_card_bytes": one} | {
        "share": round(states / one, 4)
    }


def bits(cards: list[int], folder: Path, steps: int, shape: list[str], rows: int, shards: int, device: str) -> dict:
    """Run the command on each number of GPUs, and once more killed and resumed on fewer GPUs; return the SHA-256."""
    text, tokenizer = folder / "text.txt", checkpoint.PRETRAINED / "konigsberg-small" / "tokenizer.json"
    text.write_text(corpus(1_000_000, 1), "utf-8")
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "train", "--quiet"]
    settings = f"--batch {rows} --accumulate {shards} --steps {steps} --save-every {steps // 2} --sample-every 0"
    settings += f" --valid-fraction 0.02 --valid-every {steps} --device {device}"
    how = ["--data", text, "--tokenizer", tokenizer, *shape, *settings.split()]
    found, seconds = {}, {}

    def call(*words, wait=True):
        process = subprocess.Popen([*map(str, [*command, *words])], cwd=ROOT)
        return process.wait() if wait else process

    for count in cards:
        began = time.perf_counter()
        assert call(*how, "--run", folder / f"on{count}", "--gpus", count) == 0
        seconds[str(count)] = round(time.perf_counter() - began, 1)
        found[str(count)] = digest(folder / f"on{count}")
    if len(cards) > 1:
        run, most, then = folder / "killed", cards[-1], cards[-2]
        process = call(*how, "--run", run, "--gpus", most, wait=False)
        while len(checkpoint.folders(run)) < 2 and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        while call("--resume", run, "--gpus", then) == 2 and time.perf_counter() - began < 300:
            time.sleep(1)  # some processes of the killed run have not ended yet
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
    """Return one SHA-256 of weights and moments, computed from the SHA-256 of their two files."""
    names = checkpoint.read_head(run)["sha256"]
    both = names["model.safetensors"] + names["optimizer.safetensors"]
    return hashlib.sha256(both.encode()).hexdigest()


def worker(options) -> None:
    """Do the work of one rank; rank 0 prints each row as a line of JSON."""
    group, config = data_parallel.Group.world(), preset("base")
    work = {"speed": speed, "ddp": ddp}
    if "ddp" in options.only:
        import torch

        torch.cuda.set_device(group.local)
    else:
        import cupy

        cupy.cuda.Device(group.local).use()
    for part in options.only:
        cases = [(part, rows) for rows in options.rows] if part in work else [(part, None)]
        for part, rows in cases:
            found = work[part](group, config, rows, options.rounds) if rows else [memory(group, config)]
            for row in found if group.rank == 0 else ():
                print("ROW " + json.dumps(row), flush=True)
    if "ddp" in options.only:
        torch.distributed.destroy_process_group()
    group.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "numbers of GPUs (default: 2, 4 and 8, if present)"
    parser.add_argument("--gpus", dest="cards", type=int, nargs="+", help=text)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 16], help="rows per GPU (default: 64 16)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds per case (default: 12)")
    parser.add_argument("--quick", action="store_true", help="take two rounds and 20 steps, and store nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure (default: all)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the JSON (default: data/results)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = 2 if options.quick else options.rounds
    if options.worker:
        return worker(options)
    import cupy

    there = cupy.cuda.runtime.getDeviceCount()
    card = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    counts, rows, failed = options.cards or [n for n in (2, 4, 8) if n <= there], [], 0
    config = {"gpu": card, "steps": STEPS, "model": "base"} | nccl_settings()

    def found(row):
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if not k.endswith("_ms")}), flush=True)
        if not options.quick:
            store(rows, config, options.out)

    for parts in ([part for part in ("speed", "memory") if part in options.only], ["ddp"]):
        for count in counts if set(parts) & set(options.only) else ():
            command = [shutil.which("mpirun"), "-n", str(count), "--bind-to", "none", sys.executable, "-m"]
            command += ["benchmarks.many_cards", "--worker", "--only", *parts]
            command += ["--rounds", str(options.rounds), "--rows", *map(str, options.rows)]
            with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout:
                    if line.startswith("ROW "):
                        found(json.loads(line[4:]))
            failed = failed or process.returncode
    if "tree" in options.only:
        found(tree(preset("base"), 64, 4, options.rounds))
        cupy.get_default_memory_pool().free_all_blocks()
    if "bits" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            steps, shape = (20 if options.quick else 200), ["--preset", "base"]
            found(bits([1, *counts], Path(folder), steps, shape, 64, 4, "gpu"))
    sys.exit(failed)


def store(rows: list[dict], config: dict, folder: Path) -> None:
    """Write the rows, and keep the stored rows of other cases; rows of earlier commits say where they come from."""
    case = lambda row: tuple(row.get(key) for key in ("what", "cards", "rows", "compiled"))
    before, new = [], {case(row) for row in rows}
    if (file := folder / "many_cards.json").exists():
        stored = json.loads(file.read_text())
        before = [row for row in stored["rows"] if case(row) not in new]
        if stored["commit"] != commit():
            source = {"gpu": stored["config"]["gpu"], "commit": stored["commit"], "date": stored["date"]}
            before = [row if "commit" in row else source | row for row in before]
    save("many_cards", config, before + rows, folder)


if __name__ == "__main__":
    main()
