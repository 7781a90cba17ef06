"""Measure tokens per second with the key/value cache against PyTorch eager, in alternating rounds on two cores.

    python -m benchmarks.decode [--rounds N]

Both decode 128 tokens greedily, starting from one token, with the same weights; PyTorch has its own cache
(`benchmarks/torch_peer.py`). The tokens must be the same. Each library runs with one thread and with two, and its
better result counts. Writes data/results/decode.json.
"""

from benchmarks.contest import quiet_environment

quiet_environment()

import argparse  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from importlib.util import find_spec  # noqa: E402

import numpy as np  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from benchmarks.contest import Contender, keep_to_cores, median_ratio, serve, take_turns, verdict  # noqa: E402
from nanoeuler_lib.config import ModelConfig, preset  # noqa: E402
from nanoeuler_lib.model import GPT  # noqa: E402
from nanoeuler_lib.model.decoder import Decoder  # noqa: E402
from tools.notebooks.results import cpu_name, save  # noqa: E402

# The larger one is the shape of llama2.c's 15M model (there the embedding also serves as the head).
SHAPES = {
    "small": (preset("small"), 2.5),
    "15M": (ModelConfig(288, 6, 6, 6, context=256, vocab_size=32000, predict=1, ffn=768), 2.0),
}
CORES, TOKENS = 2, 128
US, EAGER = "NanoEuler", "PyTorch eager"


def serve_tokens(who: str, shape: str, threads: int) -> None:
    config, _ = SHAPES[shape]
    model = GPT(config)
    if who == US:

        def start():
            decoder = Decoder(model)
            return lambda token: int(decoder.feed(np.array([token])).argmax())

    else:
        import torch

        from benchmarks.torch_peer import CachedDecoder

        torch.set_num_threads(threads)

        def start():
            decoder = CachedDecoder(config, model.params)
            return lambda token: int(decoder.feed(token).argmax())

    def turn():
        following, tokens = start(), [1]
        began = time.perf_counter()
        for _ in range(TOKENS):
            tokens.append(following(tokens[-1]))
        return {"seconds": time.perf_counter() - began, "tokens": tokens[1:]}

    with threadpool_limits(threads, user_api="blas"):
        serve(turn)


def compare(shape: str, rounds: int) -> list[dict]:
    """Run both, with one thread and with two; print and return a row for each."""
    config, goal = SHAPES[shape]
    names = [US, EAGER] if find_spec("torch") else [US]
    contenders = {
        (name, threads): Contender("benchmarks.decode", name, shape, str(threads))
        for threads in (1, CORES)
        for name in names
    }
    for key, contender in contenders.items():
        if contender.ready() is None:
            sys.exit(f"{key} did not start")
    first = take_turns(contenders, 1)
    for key, turns in first.items():  # ties of rounding may part them late; the first tokens cannot differ
        expected = first[US, 1][0]["tokens"][:16]
        assert turns[0]["tokens"][:16] == expected, f"{key}: other tokens, not the same work"
    turns = take_turns(contenders, rounds)
    for contender in contenders.values():
        contender.close()
    seconds = {key: [turn["seconds"] for turn in turns[key]] for key in turns}
    best = {name: min((statistics.median(seconds[name, t]), t) for t in (1, CORES))[1] for name in names}
    print(f"\n{shape}: {GPT(config).size:,} parameters, {TOKENS} tokens a turn, {rounds} rounds")
    result = []
    for (name, threads), values in seconds.items():
        rate = TOKENS / statistics.median(values)
        ratio = median_ratio(values, seconds[US, best[US]])
        who = f"{name}, {threads} thread{'s' if threads > 1 else ''}{' *' if best[name] == threads else ''}"
        print(f"  {who:28s} {rate:9.0f} tokens/s, time by ours {ratio:.2f}")
        result.append(
            {
                "shape": shape, "contender": name, "threads": threads, "best": best[name] == threads,
                "tokens_per_second": round(rate, 1), "time_by_ours": round(ratio, 3),
                "fastest_tokens_per_second": round(TOKENS / min(values), 1),
                "blas": contenders[name, threads].about["blas"],
            }
        )  # fmt: skip
    if EAGER in best:
        ratio = median_ratio(seconds[EAGER, best[EAGER]], seconds[US, best[US]])
        judged = {name: seconds[name, best[name]] for name in names}
        print(f"  {verdict(judged, ratio, goal)}")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve_tokens(args.serve[0], args.serve[1], int(args.serve[2]))
    cores, load = keep_to_cores(CORES), os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{cpu_name()}, kept to {cores} cores; load {load:.1f} at the start")
    shapes = {name: config.to_dict() for name, (config, _) in SHAPES.items()}
    config = {
        "shapes": shapes,
        "tokens": TOKENS,
        "cores": cores,
        "rounds": args.rounds,
        "load": round(load, 2),
    }
    result = []
    for shape in SHAPES:
        result += compare(shape, args.rounds)
        save("decode", config, result)  # what there is, in case the rest is stopped
    for blas in sorted({blas for row in result for blas in row["blas"]}):
        print(f"BLAS: {blas}")


if __name__ == "__main__":
    main()
