"""Time a training step of `small` against PyTorch eager, torch.compile and llm.c, on two cores, in alternating rounds.

    python -m benchmarks.cpu_step [--rounds N] [--llmc COMMAND]
    python -m benchmarks.cpu_step --profile        # time of our own step by composite

The PyTorch model (`benchmarks/torch_peer.py`) has the same weights and reads the same batches; the losses of the first
steps must agree, so that both do the same work. PyTorch's matrix library, MKL, uses AVX-512 only on Intel processors.
On an AMD processor with AVX-512, both PyTorch versions therefore also run with MKL allowed to use it (by a preloaded
library with one function). llm.c's CPU trainer has a different model (GPT-2): COMMAND is run once, and its output
("step 3: train loss 5.1 (took 304.1 ms)") is shown. Writes data/results/cpu_step.json.
"""

from benchmarks.contest import quiet_environment

quiet_environment()

import argparse  # noqa: E402
import functools  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import resource  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from pathlib import Path  # noqa: E402
from types import SimpleNamespace  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402

from benchmarks.contest import Contender, keep_to_cores, median_ratio, serve, take_turns, verdict  # noqa: E402
from nanoeuler_lib import ops  # noqa: E402
from nanoeuler_lib.config import TrainConfig, preset  # noqa: E402
from nanoeuler_lib.machine import one_blas_thread  # noqa: E402
from nanoeuler_lib.model import GPT  # noqa: E402
from nanoeuler_lib.model.optim import AdamW, learning_rate  # noqa: E402
from nanoeuler_lib.model.step import Step  # noqa: E402
from tools.notebooks.results import cpu_name, save  # noqa: E402

MODEL = preset("small")
SETTINGS = TrainConfig(steps=2000, rate=3e-3, warmup=100)
ROWS = {16: 1.7, 32: 2.0}  # sequences in a batch: the goal, our tokens/s by eager's
CORES = 2
STEPS = 4  # steps of a turn; the first finds the caches full of others' data, and is not timed
US, EAGER = "NanoEuler", "PyTorch eager"


def batch(rows: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens [rows, T] and their targets [rows, T, K], the same for all contenders."""
    rng, T, K = np.random.default_rng(step), MODEL.context, MODEL.predict
    text = rng.integers(0, MODEL.vocab_size, (rows, T + K))
    targets = np.stack([text[:, 1 + k : 1 + k + T] for k in range(K)], axis=-1)
    return text[:, :T].copy(), targets


def our_step(rows: int, workers: int):
    """A function that takes step number 0, 1, ... and returns the loss before it."""
    model = GPT(MODEL)
    take = Step(model, AdamW(MODEL, SETTINGS), SETTINGS, rows, workers)

    def step(number):
        losses, _ = take(*batch(rows, number))
        return float(losses @ take.weights)

    return step


def their_step(rows: int, compiled: bool):
    import torch

    from benchmarks.torch_peer import Trainer

    torch.set_num_threads(CORES)
    trainer = Trainer(MODEL, GPT(MODEL).params, SETTINGS, compiled)
    return lambda number: trainer.step(*batch(rows, number), learning_rate(number, SETTINGS))


def serve_steps(who: str, rows: int) -> None:
    with one_blas_thread() if who == US else nullcontext():
        step = our_step(rows, CORES) if who == US else their_step(rows, compiled=who == "torch.compile")
        numbers = iter(range(10**9))

        def turn():
            losses, seconds = [], []
            for _ in range(STEPS):
                number = next(numbers)
                began = time.perf_counter()
                losses.append(step(number))
                seconds.append(time.perf_counter() - began)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
            return {"losses": losses, "seconds": statistics.mean(seconds[1:]), "peak_mb": round(peak)}

        serve(turn)


def hidden_avx512(folder: str) -> dict[str, str]:
    """What makes MKL use AVX-512 on AMD, for the environment; empty, and said why, where that cannot be."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "AuthenticAMD" not in info or "avx512f" not in info:
        print("MKL's AVX-512 path: not hidden on this processor (it is on AMD's with AVX-512), nothing to force")
        return {}
    source, library = Path(folder) / "intel.c", Path(folder) / "intel.so"
    source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"MKL's AVX-512 path: hidden here, and cannot be forced without a C compiler ({error})")
        return {}
    return {"LD_PRELOAD": str(library)}


def compare(rows: int, rounds: int, forced: dict[str, str]) -> list[dict]:
    """Run all contenders on batches of so many sequences; print and return a row for each."""
    module = "benchmarks.cpu_step"
    started = {US: Contender(module, US, str(rows))}
    if find_spec("torch"):
        for name in (EAGER, "torch.compile"):
            started[name] = Contender(module, name, str(rows))
            if forced:
                started[name + ", AVX-512"] = Contender(module, name, str(rows), **forced)
    else:
        print("PyTorch is not installed (make oracle): no peers")
    for name in [name for name, contender in started.items() if contender.ready() is None]:
        print(f"{name}: did not start, left out")
        del started[name]
    first = take_turns(started, 1)  # not timed: compilation, first touch of memory
    for name in [name for name, turns in first.items() if turns[0] is None]:
        print(f"{name}: ended in its first step, left out")
        del started[name]
    losses = {name: first[name][0]["losses"] for name in started}
    for name in started:
        np.testing.assert_allclose(losses[name], losses[US], rtol=2e-5, err_msg=f"{name}: not the same work")
    turns = take_turns(started, rounds)
    for contender in started.values():
        contender.close()
    seconds = {name: [turn["seconds"] for turn in turns[name]] for name in turns}
    tokens = rows * MODEL.context
    print(f"\n{rows} x {MODEL.context} tokens, {rounds} rounds; first losses "
          + ", ".join(f"{name} {values[0]:.6f}" for name, values in losses.items()))  # fmt: skip
    print(f"  {'':24s} {'ms':>8s} {'fastest':>8s} {'Ktok/s':>8s} {'peak MB':>8s} {'time by ours':>13s}")
    result = []
    for name, values in seconds.items():
        median, ratio = statistics.median(values), median_ratio(values, seconds[US])
        peak = turns[name][-1]["peak_mb"]
        columns = f"{median * 1e3:8.1f} {min(values) * 1e3:8.1f} {tokens / median / 1e3:8.1f} {peak:8d}"
        print(f"  {name:24s} {columns} {ratio:13.2f}")
        result.append(
            {
                "contender": name, "rows": rows, "tokens": tokens, "ms": round(median * 1e3, 2),
                "fastest_ms": round(min(values) * 1e3, 2), "tokens_per_second": round(tokens / median),
                "time_by_ours": round(ratio, 3), "peak_mb": peak, "first_losses": losses[name],
                "blas": started[name].about["blas"],
            }
        )  # fmt: skip
    if EAGER in seconds:
        ratio = median_ratio(seconds[EAGER], seconds[US])
        print(f"  {verdict(seconds, ratio, ROWS[rows])}")
    return result


def llmc(command: str) -> dict:
    """Median of the steps that llm.c's trainer prints. Its model and batch are its own: no ratio."""
    printed = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
    times = [float(ms) for ms in re.findall(r"step \d+: train loss [\d.]+ \(took ([\d.]+) ms\)", printed)]
    if len(times) < 2:
        sys.exit(f"{command}: printed {len(times)} steps, expected some lines 'step 3: train loss 5.1 (took 304.1 ms)'")
    median = statistics.median(times[1:])
    print(f"\nllm.c: {median:.1f} ms a step, median of {len(times) - 1} (its own model)")
    return {"contender": "llm.c", "ms": median, "steps": len(times)}


def profile(rows: int, repeats: int = 20) -> list[dict]:
    """Time of each composite in a step of one worker: the medians over repeats, in processor time."""
    spent, calls = Counter(), Counter()

    def timed(name, function):
        @functools.wraps(function)
        def call(*arguments, **scratch):
            began = time.thread_time()
            function(*arguments, **scratch)
            spent[name] += time.thread_time() - began
            calls[name] += 1

        return call

    composites = SimpleNamespace(**{name: timed(name, f) for name, f in vars(ops.active()).items()})
    with one_blas_thread(), patch.object(ops, "active", lambda: composites):
        step, seen, whole = our_step(rows, 1), [], []
        for number in range(repeats + 2):
            spent.clear(), calls.clear()
            began = time.process_time()
            step(number)
            whole.append(time.process_time() - began)
            seen.append(dict(spent))
    medians = {name: statistics.median(times[name] for times in seen[2:]) * 1e3 for name in spent}
    total = statistics.median(whole[2:]) * 1e3
    medians["everything else"] = total - sum(medians.values())
    print(f"{rows} x {MODEL.context} tokens, one worker: {total:.1f} ms of processor time")
    for name, ms in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"  {name:18s} {calls[name]:5d} calls {ms:8.2f} ms {ms / total:6.1%}")
    return [{"composite": name, "calls": calls[name], "ms": round(ms, 3)} for name, ms in medians.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--llmc", metavar="COMMAND", help="runs llm.c's train_gpt2 on the CPU")
    parser.add_argument("--profile", action="store_true", help="print where our step's time goes, and nothing else")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve_steps(args.serve[0], int(args.serve[1]))
    if args.profile:
        profile(16)
        return
    cores = keep_to_cores(CORES)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{cpu_name()}, kept to {cores} cores; load {load:.1f} at the start")
    config = {"model": MODEL.to_dict(), "train": SETTINGS.to_dict(), "cores": cores, "rounds": args.rounds}
    config |= {"load": round(load, 2), "profile": profile(16)}
    result = []
    with tempfile.TemporaryDirectory() as folder:
        forced = hidden_avx512(folder)
        for rows in ROWS:
            result += compare(rows, args.rounds, forced)
            save("cpu_step", config, result)  # what there is, in case the rest is stopped
    for blas in sorted({blas for row in result for blas in row["blas"]}):
        print(f"BLAS: {blas}")
    if args.llmc:
        save("cpu_step", config, [*result, llmc(args.llmc)])


if __name__ == "__main__":
    main()
