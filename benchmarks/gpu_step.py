"""Time a training step of the engine against torch.compile, in one process and in alternation; needs a GPU and PyTorch.

    python -m benchmarks.gpu_step                  # every case; stores data/results/gpu_step_0.json, _1 and _2
    python -m benchmarks.gpu_step --quick          # few rounds, printed but not stored
    python -m benchmarks.gpu_step --case 2         # only this one of CASES
    python -m benchmarks.gpu_step --out FOLDER     # writes the JSON there

The peer is the same model in PyTorch (`benchmarks/torch_peer.py`) with fused AdamW, the same weights and batches, and
the same precision of products, residual stream and master weights. Both clip gradients, and both return the loss of
each step to the host. The losses of the first steps must agree, so that both do the same work. In each round, both take
`STEPS` steps, timed by the wall clock from an idle GPU to an idle GPU. The time is the median over rounds, and the
ratio is the median of the rounds' ratios. At 16 texts, where gaps between launches matter, PyTorch's mode that captures
a CUDA graph is timed as well.

Memory is measured in a separate process (`--memory`): what the driver reports in use after three steps, minus what it
reported before the model was created.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.engine import program
from nanoeuler_lib.model import optim
from tools.notebooks.results import FOLDER, ROOT, save

CASES = [("bfloat16", 64), ("tf32", 64), ("bfloat16", 16)]  # precision, texts of a batch
FILES = "gpu_step_0", "gpu_step_1", "gpu_step_2"  # of one case each
SETTINGS = TrainConfig(steps=1000, rate=6e-4, warmup=0)  # so that the first steps show in the losses
STEPS, ROUNDS, AGREE = 5, 7, 3  # steps of a turn; turns; steps whose losses are compared
# By how much of themselves losses may differ.
APART = {"bfloat16": 5e-3, "float16": 2e-3, "tf32": 1e-3, "float32": 1e-5}
US, PEER = "NanoEuler", "torch.compile"
MODES = {
    PEER: None,
    "reduce-overhead": "reduce-overhead",
}
Batch = tuple[np.ndarray, np.ndarray]
Take = Callable[[int, Batch], float]


def batch(config: ModelConfig, rows: int, number: int) -> Batch:
    """Random tokens [rows, T] and their targets [rows, T, K], the same for all."""
    rng, T, K = np.random.default_rng(number), config.context, config.predict
    text = rng.integers(0, config.vocab_size, (rows, T + K))
    return text[:, :T].copy(), np.stack([text[:, 1 + k : 1 + k + T] for k in range(K)], axis=-1)


def ours(config: ModelConfig, precision: str, rows: int, where: str) -> Take:
    """A function that takes step 0, 1, ... on a batch and returns the loss before it."""
    return stepping(engine.GPT(config, precision=precision, where=where), rows)


def stepping(
    made: engine.GPT,
    rows: int,
    micro: int | None = None,
    run: Callable[[program.Launches], None] = program.run,
) -> Take:
    """Such a function for a model of the engine; micro: as for `engine.Step`; run: what runs its launches."""
    take = engine.Step(made, engine.AdamW(made.config, SETTINGS, made.program.where), SETTINGS, rows, micro=micro)
    take.run = run

    def step(number, batch):  # the optimiser counts the steps itself
        losses, _ = take(*batch)
        return float(losses @ take.weights)

    return step


def theirs(config: ModelConfig, precision: str, rows: int, where: str, mode: str | None = None) -> Take:
    """The same in PyTorch, compiled where there is a GPU."""
    from benchmarks.torch_peer import Trainer

    on = "cuda" if where == "gpu" else "cpu"
    trainer = Trainer(config, model.GPT(config).params, SETTINGS, on == "cuda", on, precision, mode)
    return lambda number, batch: trainer.step(*batch, optim.learning_rate(number, SETTINGS))


def agreeing(contestants: dict[str, Take], batches: list[Batch], precision: str, us: str = US) -> list[float]:
    """Our losses of the first steps. AssertionError if another's differ by more than the precision explains."""
    found = {name: [take(n, one) for n, one in enumerate(batches)] for name, take in contestants.items()}
    for name, losses in found.items():
        apart = max(abs(a / b - 1) for a, b in zip(losses, found[us], strict=True))
        assert apart < APART[precision], f"{name}: losses {losses}, ours {found[us]}: not the same work"
    return found[us]


def in_turns(contestants: dict[str, Take], batches: list[Batch], rounds: int) -> dict[str, list[float]]:
    """Seconds of a step, by contestant and round, from an idle GPU to an idle GPU; a turn has a step for each batch."""
    taken = {name: [] for name in contestants}
    for turn in range(rounds):
        for name, take in contestants.items():
            began = time.perf_counter()
            for number, one in enumerate(batches, start=AGREE + turn * len(batches)):
                take(number, one)  # ends with the loss on the host: the GPU has done all before
            taken[name].append((time.perf_counter() - began) / len(batches))
    return taken


def measure(config: ModelConfig, precision: str, rows: int, rounds: int, where: str = "gpu") -> dict:
    """The row of a case: seconds of a step by contestant, and each one's time over ours."""
    contestants = {US: ours(config, precision, rows, where)}
    peers = MODES if where == "gpu" and rows <= 16 else {PEER: None}
    contestants |= {name: theirs(config, precision, rows, where, mode) for name, mode in peers.items()}
    batches = [batch(config, rows, number) for number in range(AGREE + STEPS)]
    losses = agreeing(contestants, batches[:AGREE], precision)
    return row_of(config, precision, rows, losses, in_turns(contestants, batches[AGREE:], rounds))


def row_of(config: ModelConfig, precision: str, rows: int, losses: list[float], taken: dict[str, list[float]]) -> dict:
    """The row of a case from the seconds of a step, by contestant and round."""
    median = {name: statistics.median(times) for name, times in taken.items()}
    return {
        "precision": precision,
        "rows": rows,
        "context": config.context,
        "first_losses": [round(loss, 5) for loss in losses],
        "milliseconds": {name: round(1e3 * seconds, 3) for name, seconds in median.items()},
        "spread": {name: [round(1e3 * f(times), 3) for f in (min, max)] for name, times in taken.items()},
        "rounds": {name: [round(1e3 * time, 4) for time in times] for name, times in taken.items()},
        "tokens_per_second": {name: round(rows * config.context / seconds) for name, seconds in median.items()},
        "speedup": {
            name: round(statistics.median(a / b for a, b in zip(times, taken[US], strict=True)), 3)
            for name, times in taken.items()
            if name != US
        },
    }


def peak_gib(module: str, *words: str) -> float:
    """GiB that the driver gave a process of its own for three steps: what a benchmark prints for `--memory` words."""
    command = [sys.executable, "-m", module, "--memory", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def remembered(made: Callable[[], Take], rows: int) -> float:
    """GiB that the driver gave this process for three steps of what `made` makes: what `--memory` prints."""
    import cupy

    cupy.zeros(1).sum()  # the context is there
    before = cupy.cuda.runtime.memGetInfo()[0]
    take = made()
    for number in range(3):
        take(number, batch(preset("base"), rows, number))
    return (before - cupy.cuda.runtime.memGetInfo()[0]) / 2**30


def parser_of(doc: str, cases: int, memory: int) -> argparse.ArgumentParser:
    """The options of a benchmark of steps: of so many cases, and with so many words after `--memory`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    parser.add_argument("--case", type=int, choices=range(cases), help="one of CASES, in a file of its own")
    parser.add_argument("--memory", nargs=memory, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = parser_of(__doc__, len(CASES), memory=3).parse_args()
    if options.memory:
        who, precision, rows = options.memory[0], options.memory[1], int(options.memory[2])
        maker = ours if who == US else theirs
        return print(remembered(lambda: maker(preset("base"), precision, rows, "gpu"), rows))
    import cupy
    import torch

    card, rounds = torch.cuda.get_device_name(), 2 if options.quick else ROUNDS
    print(f"{card}, PyTorch {torch.__version__}; a step of base: milliseconds, GiB, and the others' time over ours")
    for case in range(len(CASES)) if options.case is None else [options.case]:
        precision, texts = CASES[case]
        row = measure(preset("base"), precision, texts, rounds)
        torch.cuda.empty_cache()
        cupy.get_default_memory_pool().free_all_blocks()
        row["gib"] = {who: round(peak_gib("benchmarks.gpu_step", who, precision, str(texts)), 2) for who in (US, PEER)}
        cells = [f"{name} {time:.2f}" for name, time in row["milliseconds"].items()]
        cells += [f"{name} {gib:.1f} GiB" for name, gib in row["gib"].items()]
        cells += [f"{name} x{ratio:.2f}" for name, ratio in row["speedup"].items()]
        print(f"{precision:9} {texts:3} x {row['context']}  " + "  ".join(cells), flush=True)
        if not options.quick:
            config = {"gpu": card, "torch": torch.__version__, "steps": STEPS, "rounds": rounds}
            save(FILES[case], config, [row], options.out)


if __name__ == "__main__":
    main()
