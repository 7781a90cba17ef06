"""Time the decoding of single tokens on a GPU against PyTorch, compiled and captured in a CUDA graph, in alternation.

    python -m benchmarks.gpu_decode                 # stores data/results/gpu_decode.json
    python -m benchmarks.gpu_decode --quick         # few rounds, printed but not stored
    python -m benchmarks.gpu_decode --out FOLDER    # writes the JSON there

The model is `base` with fresh weights and one text. Both programs run in one process and read the same tokens up to
position 300. Then they decode `TOKENS` more tokens in alternation: each token is uploaded, and its logits are copied to
the host, where the next token is chosen. The time per token is the median over rounds. `floor` is the time to read the
weights once at the bandwidth of a copy on this GPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, preset
from tools.notebooks.results import FOLDER, save

PRECISIONS = "bfloat16", "float32"
START, TOKENS, ROUNDS = 300, 64, 9
APART = {"bfloat16": 0.15, "float32": 1e-4}  # largest relative distance of logits from float32 logits
US, PEER = "NanoEuler", "PyTorch"
Feed = Callable[[int], np.ndarray]


class Contestant:
    """A decoder that can return to an earlier position; later tokens overwrite what follows it."""

    def __init__(self, decoder, feed: Feed):
        self.decoder, self.feed = decoder, feed

    def back_to(self, length: int) -> None:
        self.decoder.length = length


def contestants(config: ModelConfig, precision: str, where: str) -> dict[str, Contestant]:
    from benchmarks.torch_peer import StaticDecoder

    params = model.init(config, 0, 0.05)
    ours = engine.GPT(config, params, precision=precision, where=where).decoder()
    theirs = StaticDecoder(config, params, "cuda" if where == "gpu" else "cpu", precision)
    return {
        US: Contestant(ours, lambda token: ours.feed(np.array([token]))),
        PEER: Contestant(theirs, theirs.feed),
    }


def agreeing(both: dict[str, Contestant], exact: Feed, tokens: np.ndarray, precision: str) -> dict[str, float]:
    """Feed the tokens to both; return how far their logits are from the logits of `exact`.

    AssertionError if the distance is too large. In bfloat16, PyTorch's residual stream is bfloat16 and ours is float32,
    so each program is compared with float32 logits, and not with the other program.
    """
    worst = dict.fromkeys(both, 0.0)
    for token in tokens:
        wanted = exact(int(token))
        for name, one in both.items():
            error = float(np.linalg.norm(one.feed(int(token)) - wanted) / np.linalg.norm(wanted))
            worst[name] = max(worst[name], error)
    for name, error in worst.items():
        assert error < APART[precision], (
            f"{name}: logits must be within {APART[precision]:g} of float32 logits, got {error:.1e}"
        )
    return worst


def measure(config: ModelConfig, precision: str, start: int, rounds: int, where: str = "gpu") -> dict:
    """Return the row of a precision: milliseconds per token, and the peer's time over ours."""
    both = contestants(config, precision, where)
    exact = engine.GPT(config, model.init(config, 0, 0.05), where=where).decoder()
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, start)
    apart = agreeing(both, lambda token: exact.feed(np.array([token])), tokens, precision)
    taken = {name: [] for name in both}
    for _ in range(rounds):
        for name, one in both.items():
            one.back_to(start)
            token, began = 1, time.perf_counter()
            for _ in range(TOKENS):
                token = int(one.feed(token).argmax())
            taken[name].append((time.perf_counter() - began) / TOKENS)
    median = {name: statistics.median(times) for name, times in taken.items()}
    ratios = [theirs / ours for theirs, ours in zip(taken[PEER], taken[US], strict=True)]
    return {
        "precision": precision,
        "position": start,
        "milliseconds": {name: round(1e3 * seconds, 4) for name, seconds in median.items()},
        "spread": {name: [round(1e3 * f(times), 4) for f in (min, max)] for name, times in taken.items()},
        "speedup": round(statistics.median(ratios), 3),
        "apart": {name: float(f"{error:.2g}") for name, error in apart.items()},
    }


def floor(config: ModelConfig, precision: str) -> float:
    """Return the milliseconds to read the weights of a token, at the bandwidth of a copy (bytes read plus written)."""
    import cupy

    c = config
    layer = c.dim * c.qkv_dim + c.heads * c.head_dim * c.dim + 3 * c.dim * c.ffn
    size = (c.layers * layer + c.dim * c.vocab_size) * (2 if precision == "bfloat16" else 4)
    source = cupy.zeros(1 << 30, np.uint8)  # too large for any cache
    target, times = cupy.empty_like(source), []
    for _ in range(5):
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record()
        cupy.copyto(target, source)
        last.record()
        last.synchronize()
        times.append(cupy.cuda.get_elapsed_time(first, last))
    return statistics.median(times) * size / (2 * source.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is stored")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes, by default data/results")
    options = parser.parse_args()
    import torch

    gpu, rounds, rows = torch.cuda.get_device_name(), 3 if options.quick else ROUNDS, []
    print(f"{gpu}, PyTorch {torch.__version__}; base, one text: milliseconds per token from position {START} on")
    for precision in PRECISIONS:
        row = measure(preset("base"), precision, START, rounds)
        row["floor"] = round(floor(preset("base"), precision), 4)
        cells = [f"{name} {ms:.3f}" for name, ms in row["milliseconds"].items()]
        print(
            f"{precision:9} " + "  ".join(cells),
            f" x{row['speedup']:.2f}, floor {row['floor']:.3f}",
            flush=True,
        )
        rows.append(row)
    if not options.quick:
        config = {"gpu": gpu, "torch": torch.__version__, "tokens": TOKENS, "rounds": rounds}
        save("gpu_decode", config, rows, options.out)


if __name__ == "__main__":
    main()
