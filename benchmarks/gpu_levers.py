"""What each prepared change of the engine gains on this card, and whether it is right: every section in one call.

    python -m benchmarks.gpu_levers                      # all of SECTIONS; stores data/results/gpu_levers.json
    python -m benchmarks.gpu_levers --only step token    # some of them
    python -m benchmarks.gpu_levers --quick              # few rounds, no peers
    python -m benchmarks.gpu_levers --out FOLDER         # the JSON goes there, anew after each section

products   SwiGLU, its gradient and RoPE at the end of own products: errors against float64 beside those of cuBLASLt's
           product and the kernel behind it, and the milliseconds of both ways, with 64 texts of 512
step       a step of `base`, 64 texts, for each lever of `program.LEVER`, for all, and beside torch.compile, in turns;
           before that the gradient against that of precision float32, and two runs that must agree to the bit
token      one token from position 300 on: chosen on the host, and drawn on the card; beside PyTorch in a graph
speculate  sampled text with proposals and without, drawn on the card and on the host, from a model that some seconds of
           training have taught the bytes of a text
attention  forward and backward beside flash and cuDNN at T = 512: what the other goals are measured by

A time is the median over rounds, in which all contestants have their turn; a gain the median of the rounds' differences
to the engine as it is, in milliseconds, with the least and the largest. Each section runs in a process of its own, and
so does each own product: one that hangs or breaks the card's context takes nothing else with it, and a step is measured
with those that were right.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import gpu_decode, gpu_step
from nanoeuler_lib import cuda, engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig, preset
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.engine import program
from nanoeuler_lib.engine.memory import Parameters
from nanoeuler_lib.speaking.generate import sample, speculate
from tools.notebooks.results import FOLDER, save

SECTIONS = {"products": 75, "step": 290, "token": 150, "speculate": 100, "attention": 100}  # seconds at most
PRODUCTS, IN_A_STEP = ("swiglu", "swiglu_back", "rope"), ("latest", "logits", "powers")
US, ALL = "as it is", "all"
ALLOWED = 1.2  # times the error of the engine as it is
ROUNDS, STEPS, LAUNCHES = 9, 4, 10
START, TOKENS = 300, 64
TEACH, PROMPTS = 400, 8  # steps that teach bytes, and prompts that are continued
KNOWN = 1.371  # tokens a round with one proposal, sampled, of the model of 116 million trained on 200 million tokens
SETTINGS = {"greedy": dict(temperature=0.0), "sampled": dict(temperature=0.8, top_p=0.95)}


def paired(taken: dict[str, list[float]], us: str = US) -> dict[str, dict]:
    """Of each contestant's rounds in seconds: median milliseconds, their spread, and what it gains over `us`."""
    found = {}
    for name, times in taken.items():
        gains = [1e3 * (a - b) for a, b in zip(taken[us], times, strict=True)]
        found[name] = {
            "milliseconds": round(1e3 * statistics.median(times), 4),
            "spread": [round(1e3 * f(times), 4) for f in (min, max)],
            "gain": [round(f(gains), 4) for f in (statistics.median, min, max)],
        }
    return found


def in_turns(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """What each returns, its seconds, round by round."""
    taken = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, take in contestants.items():
            taken[name].append(take())
    return taken


def launched(launches: program.Launches) -> Callable[[], float]:
    """A function that runs a list LAUNCHES times: seconds of one, by the GPU's clock where there is one."""

    def take():
        if launches.where == "cpu":
            began = time.perf_counter()
            program.run(launches)
            return time.perf_counter() - began
        import cupy

        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        program.run(launches)
        first.record()
        for _ in range(LAUNCHES):
            program.run(launches)
        last.record()
        last.synchronize()
        return cupy.cuda.get_elapsed_time(first, last) / LAUNCHES / 1e3

    return take


# ---- products


def products(config: ModelConfig, rows: int, rounds: int, where: str, levers=PRODUCTS) -> list[dict]:
    """The rows of own products: error and milliseconds of both ways, and whether ours is right."""
    made = engine.GPT(config, model.init(config, 0, 0.05), precision="bfloat16", where=where)
    plan, w, xp = made.plan(rows, config.context), made.weights, cuda.array_module(where)
    a = plan.layers[0]
    y = a.y2
    y[...] = xp.asarray(to_bfloat16(np.random.default_rng(0).normal(0, 1, y.shape).astype(np.float32)))

    def double(bits):
        return from_bfloat16(bits).astype(np.float64)

    both, turned = (double(y) @ double(w[f"layers.0.{name}"]) for name in ("gate_up", "qkv"))
    gate, up = both[:, : config.ffn], both[:, config.ffn :]
    C, heads = config.head_dim, config.heads + config.kv_heads
    at = xp.arange(len(y)) % config.context
    cos, sin = (table.astype(np.float64)[at][:, None] for table in (plan.rope.cos, plan.rope.sin))
    q_and_k = turned[:, : heads * C].reshape(-1, heads, C)
    low, high = q_and_k[..., : C // 2].copy(), q_and_k[..., C // 2 :].copy()
    turned[:, : heads * C] = xp.concatenate((low * cos - high * sin, low * sin + high * cos), -1).reshape(
        len(y), -1
    )

    def swiglu():
        plan.op.linear(a.gate_up, y, w["layers.0.gate_up"])
        plan.op.swiglu(a.hidden, None, a.gate_up)

    def rope():
        plan.op.qkv_rope(a.qkv, y, w["layers.0.qkv"], plan.rope, config)

    dy, dw = plan.dx.half, xp.empty((config.ffn, config.dim), np.float32)
    dy[...] = xp.asarray(to_bfloat16(np.random.default_rng(1).normal(0, 1, dy.shape).astype(np.float32)))
    swiglu()
    program.run(plan.program.take())  # what the backward pass finds
    g, u, d = double(a.gate_up[:, : config.ffn]), double(a.gate_up[:, config.ffn :]), double(dy)
    d, s = d @ double(w["layers.0.down"]).T, 1 / (1 + xp.exp(-g))
    dgate_up = xp.concatenate((d * u * (s + g * s * (1 - s)), d * g * s), -1)
    del g, u, d, s

    def swiglu_back():
        plan.op.linear_back(plan.dhidden, dw, plan.dx, a.hidden, w["layers.0.down"], False)
        plan.op.swiglu_back(plan.dgate_up, plan.dhidden, None, a.gate_up)

    ways = {
        "swiglu": (swiglu, ((a.hidden, gate / (1 + xp.exp(-gate)) * up), (a.gate_up, both))),
        "swiglu_back": (swiglu_back, ((plan.dgate_up, dgate_up),)),
        "rope": (rope, ((a.qkv, turned),)),
    }
    found = []
    for lever in levers:
        write, results = ways[lever]
        lists, errors = {}, {}
        for name, pulled in ((US, ()), (lever, (lever,))):
            with program.pulled(*pulled):
                write()
                lists[name] = plan.program.take()
            for array, _ in results:
                array[...] = 0x7FC0  # NaN: what is not written makes the error NaN
            program.run(lists[name])
            errors[name] = [
                float(xp.linalg.norm(double(array) - wanted) / xp.linalg.norm(wanted))
                for array, wanted in results
            ]
        right = all(b <= ALLOWED * a for a, b in zip(errors[US], errors[lever], strict=True))
        times = paired(in_turns({name: launched(one) for name, one in lists.items()}, rounds))
        found.append(
            {
                "section": "products",
                "lever": lever,
                "right": right,
                "rows": rows,
                "errors": errors,
                "times": times,
            }
        )
    return found


# ---- a step


def step(config: ModelConfig, rows: int, rounds: int, where: str, peer: bool, levers=()) -> list[dict]:
    """The row of a step: errors of the gradients and the times of all contestants, which share weights and buffers."""
    batches = [gpu_step.batch(config, rows, number) for number in range(STEPS)]
    params = model.init(config, 0)
    few, settings = gpu_step.batch(config, min(rows, 4), 99), gpu_step.SETTINGS
    reference = engine.GPT(config, params, where=where)
    wanted = reference.loss_and_gradients(*few)[1].flat
    del reference
    made = engine.GPT(config, params, precision="bfloat16", where=where)
    optimizer = engine.AdamW(config, settings, where)
    steps, errors, wrong = {}, {}, []
    grads = Parameters(config, where)  # that all steps fill

    def add(name, *levers):
        with program.pulled(*levers):
            one = engine.Step(made, optimizer, settings, rows)
            one.grads, found = grads, []
            for _ in range(2):
                one.gradient(*few)
                found.append(one.whole_gradient().flat)
        errors[name] = float(np.linalg.norm(found[0] - wanted) / np.linalg.norm(wanted))
        if np.array_equal(*found) and errors[name] <= ALLOWED * errors.get(US, 1):
            steps[name] = one, levers
        else:  # another gradient than that of float32, or two of one batch that differ
            wrong.append(name)

    add(US)
    for lever in levers:
        add(lever, lever)
    add(ALL, *(lever for lever in levers if lever in steps))
    for one, pulled in steps.values():
        with program.pulled(*pulled):
            one(*batches[0])  # the other lists are written
    steps = {name: one for name, (one, _) in steps.items()}

    def taking(take):
        def turn():
            began = time.perf_counter()
            for number, one in enumerate(batches):
                take(number, one)
            return (time.perf_counter() - began) / len(batches)

        return turn

    contestants = {name: taking(lambda _, one, of=of: of(*one)) for name, of in steps.items()}
    if peer:
        contestants[gpu_step.PEER] = taking(gpu_step.theirs(config, "bfloat16", rows, where))
    in_turns(contestants, 1)  # graphs are captured, the peer is compiled
    times = paired(in_turns(contestants, rounds))
    tables = {}
    for name in (US, ALL):
        if name in steps:
            profile = steps[name].watched()
            steps[name](*batches[0])
            tables[name] = profile.table(1)
            steps[name].unwatched()
    row = {"section": "step", "rows": rows, "levers": levers, "wrong": wrong, "errors": errors}
    return [row | {"times": times, "profile": tables}]


# ---- tokens


def drawing(made: engine.GPT, ids: list[int], propose: int, tokens: int, how: dict) -> tuple[float, float]:
    """Seconds of a round drawn on the card, and tokens of a round, behind the first six rounds."""
    rounds = made.decoder(propose).rounds(ids, np.random.default_rng(0), **how)
    [*islice(rounds, 6)]
    began, count, found = time.perf_counter(), 0, 0
    while found < tokens:
        found, count = found + len(next(rounds)), count + 1
    return (time.perf_counter() - began) / count, found / count


def token(config: ModelConfig, start: int, rounds: int, where: str, peer: bool) -> list[dict]:
    """The row of a token: chosen on the host, greedy and sampled, and drawn on the card."""
    params = model.init(config, 0, 0.05)
    made = engine.GPT(config, params, precision="bfloat16", where=where)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, start)
    ours = made.decoder()
    ours.read(ids)
    rng = np.random.default_rng(0)

    def fed(decoder, feed, choose):
        def take():
            decoder.length, one = start, 1
            began = time.perf_counter()
            for _ in range(TOKENS):
                one = choose(feed(one))
            return (time.perf_counter() - began) / TOKENS

        return take

    greedy, drawn = (lambda z: int(z.argmax())), (lambda z: sample(z, rng, **SETTINGS["sampled"]))
    feed = lambda one: ours.feed(np.array([one]))
    contestants = {US: fed(ours, feed, greedy), "sampled on the host": fed(ours, feed, drawn)}
    with program.pulled("fetch"):
        other = made.decoder()
        other.read(ids)
        other.feed(ids[:1])
    contestants["fetch"] = fed(other, lambda one: other.feed(np.array([one])), greedy)

    def on_card(how, *levers):
        def take():
            with program.pulled(*levers):
                return drawing(made, ids.tolist(), 0, TOKENS, how)[0]

        return take

    for name, how in SETTINGS.items():
        contestants[f"{name} on the card"] = on_card(how)
        contestants[f"{name} on the card, fetch"] = on_card(how, "fetch")
    if peer:
        theirs = gpu_decode.contestants(config, "bfloat16", where)[gpu_decode.PEER]
        for one in ids:
            theirs.feed(int(one))
        contestants[gpu_decode.PEER] = fed(theirs.decoder, theirs.feed, greedy)
    in_turns(contestants, 1)
    same = agreeing_texts(made, ids[:8].tolist(), TOKENS)
    row = {"section": "token", "position": start, "times": paired(in_turns(contestants, rounds)), **same}
    launches = [entry.composite for entry in ours._list(1)]
    row["launches"] = {name: launches.count(name) for name in dict.fromkeys(launches)}
    return [row]


def agreeing_texts(made: engine.GPT, ids: list[int], tokens: int) -> dict[str, int]:
    """How many tokens the card and the host draw alike from one seed, up to the first other one."""
    found = {}
    for name, how in SETTINGS.items():
        for propose in range(made.config.predict):
            host = speculate(made, ids, np.random.default_rng(3), propose, **how)
            card = made.decoder(propose).rounds(ids, np.random.default_rng(3), **how)
            texts = []
            for rounds in (host, card):
                text = []
                while len(text) < tokens:
                    text += next(rounds)
                texts.append(text[:tokens])
            same = next((n for n, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), tokens)
            found[f"{name}, {propose} proposed"] = same
    return {"tokens": tokens, "alike": found}


def taught(config: ModelConfig, text: bytes, steps: int, rows: int, where: str) -> engine.GPT:
    """A model that has learnt the bytes of a text for some steps."""
    made = engine.GPT(config, precision="bfloat16", where=where)
    settings = TrainConfig(steps=max(steps, 1), rate=6e-4, warmup=steps // 10)
    take, rng = (
        engine.Step(made, engine.AdamW(config, settings, where), settings, rows),
        np.random.default_rng(0),
    )
    ids, T, K = np.frombuffer(text, np.uint8).astype(np.int64), config.context, config.predict
    for _ in range(steps):
        starts = rng.integers(0, len(ids) - T - K, rows)
        one = np.stack([ids[at : at + T + K] for at in starts])
        take(one[:, :T], np.stack([one[:, 1 + k : 1 + k + T] for k in range(K)], axis=-1))
    return made


def proposing(made: engine.GPT, text: bytes, prompts: int, tokens: int) -> list[dict]:
    """A row for each number of proposals, sampled: on the card and on the host, against plain sampling there."""
    rng, rows, how = np.random.default_rng(1), [], SETTINGS["sampled"]
    starts = [int(at) for at in rng.integers(0, len(text) - 32, prompts)]
    taken = {}
    for at in starts:
        ids = list(text[at : at + 32])
        for propose in range(min(made.config.predict, 3)):
            taken.setdefault(("card", propose), []).append(drawing(made, ids, propose, tokens, how))
            host = speculate(made, ids, np.random.default_rng(0), propose, **how)
            [*islice(host, 6)]
            began, count, found = time.perf_counter(), 0, 0
            while found < tokens // 2:
                found, count = found + len(next(host)), count + 1
            taken.setdefault(("host", propose), []).append(
                ((time.perf_counter() - began) / count, found / count)
            )
    for (where, propose), times in taken.items():
        plain = taken[where, 0]
        ratios = [p / (s / n) for (p, _), (s, n) in zip(plain, times, strict=True)]
        round_ms = 1e3 * statistics.median(s for s, _ in times)
        rows.append({
            "section": "speculate", "drawn": where, "propose": propose, **how, "prompts": prompts,
            "milliseconds_a_round": round(round_ms, 4),
            "tokens_a_round": round(statistics.mean(n for _, n in times), 3),
            "speedup": round(statistics.median(ratios), 3), "spread": [round(f(ratios), 3) for f in (min, max)],
            "speedup_at_known": round(1e3 * statistics.median(s for s, _ in plain) * KNOWN / round_ms, 3),
        })  # fmt: skip
    return rows


def attention(rounds: int) -> list[dict]:
    """Rows of the benchmarks of attention for the shape of `base`, and one longer."""
    import torch

    from benchmarks import gpu_attention, gpu_attention_backward

    rows = []
    for levers in ((), ("powers",)):
        with program.pulled(*levers):
            for B, T in ((64, 512), (8, 4096)):
                row = gpu_attention.measure(torch, ("bfloat16", B, T, 12, 4, 64), rounds)
                rows.append({"lever": " ".join(levers) or US} | row)
    for sizes in ((64, 12, 4, 512, 64), (32, 12, 4, 1024, 64)):
        rows += gpu_attention_backward.measure(sizes, torch.bfloat16, rounds)
    return [{"section": "attention"} | row for row in rows]


def rows_of(section: str, levers: tuple[str, ...], options: argparse.Namespace) -> list[dict]:
    """A section, measured in this process."""
    base, rounds, peer = preset("base"), 3 if options.quick else ROUNDS, not options.quick
    text = options.text.read_bytes() if options.text else own_prose()
    if section == "products":
        return products(base, options.rows, rounds, "gpu", levers)
    if section == "step":
        return step(base, options.rows, rounds, "gpu", peer, levers)
    if section == "token":
        return token(base, START, rounds, "gpu", peer)
    if section == "speculate":
        return proposing(taught(base, text, TEACH, 16, "gpu"), text, PROMPTS, 192)
    return attention(rounds)


def asked(section: str, levers: tuple[str, ...], seconds: float, words: list[str]) -> list[dict]:
    """A section, measured in a process of its own; what went wrong with it, where it did."""
    command = [sys.executable, "-m", "benchmarks.gpu_levers", *words, "--child", section, *levers]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds)
        return json.loads(done.stdout.splitlines()[-1], parse_constant=str)  # NaN as a word
    except (subprocess.TimeoutExpired, json.JSONDecodeError, IndexError) as error:
        why = (
            f"no end within {seconds:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else "see above"
        )
        return [{"section": section, "levers": levers, "failed": why}]


def all_sections(only, most: float, words: list[str], keep: Callable[[list[dict]], None]) -> list[dict]:
    """The rows of sections, each kept as soon as it is there, within `most` seconds."""
    began, rows, sound = time.perf_counter(), [], [] if "products" in only else [*PRODUCTS]
    for section in SECTIONS:
        parts = [(lever,) for lever in PRODUCTS] if section == "products" else [(*sound, *IN_A_STEP)]
        for levers in parts if section in only else ():
            left = most - (time.perf_counter() - began)
            new = asked(section, levers, max(min(SECTIONS[section], left), 1), words)
            sound += [row["lever"] for row in new if section == "products" and row.get("right")]
            rows += new
            print("\n".join(map(told, new)), f"\n{section}: {most - left:.0f} s at its beginning", flush=True)
            keep(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS])
    parser.add_argument("--quick", action="store_true", help="few rounds, no peers")
    parser.add_argument("--rows", type=int, default=64, help="texts of a step")
    parser.add_argument(
        "--text", type=Path, help="what `speculate` learns, by default this project's own code"
    )
    parser.add_argument("--seconds", type=float, default=570, help="within which all must end")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the JSON goes")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return print(json.dumps(rows_of(options.child[0], tuple(options.child[1:]), options)))
    words = ["--quick"] * options.quick + ["--rows", str(options.rows)]
    words += ["--text", str(options.text)] if options.text else []
    config = {"rows": options.rows, "rounds": 3 if options.quick else ROUNDS}
    keep = lambda rows: save("gpu_levers", config, rows, options.out)
    all_sections(options.only, options.seconds, words, keep)


def told(row: dict) -> str:
    """A row as lines: times with what they gain, and the rest as it is."""
    rest = {k: v for k, v in row.items() if k not in ("times", "profile")}
    lines = [str(rest)]
    for name, one in row.get("times", {}).items():
        gain, least, most = one["gain"]
        gained = f"gains {gain:+.4f} ({least:+.4f} to {most:+.4f})"
        lines.append(f"  {name:22} {one['milliseconds']:9.4f} ms {one['spread']}  {gained}")
    return "\n".join([*lines, *row.get("profile", {}).values()])


def own_prose() -> bytes:
    """What is written in this project: enough for a model to learn from within seconds."""
    root = Path(__file__).resolve().parents[1]
    return b"".join(file.read_bytes() for file in sorted(root.glob("nanoeuler_lib/**/*.py")))


if __name__ == "__main__":
    main()
