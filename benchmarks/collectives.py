"""Measure NCCL between the GPUs of one host, and how much it slows matrix products; needs at least two GPUs.

    python -m benchmarks.collectives               # 2 GPUs, and 4 if present; stores data/results/collectives.json
    python -m benchmarks.collectives --gpus 2      # only this number of GPUs
    python -m benchmarks.collectives --out FOLDER  # writes the JSON there

There is one process per GPU. Every call is launched from Python, as in training. A round is a barrier, followed by
several calls between two CUDA events; its time is divided by the number of calls. The time in a row is the median over
rounds of the slowest GPU's time. `bytes` is the size of the whole vector that each GPU holds before or after the call.
The config contains the environment variables in NCCL_SETTINGS, because they can change NCCL's algorithm. Rows:

    move      an operation of OPERATIONS on this many bytes: milliseconds per call, and host time to launch it
    overlap   products on one stream and an operation on another, separately and together, in alternation, with at most
              this many blocks for NCCL (null: NCCL chooses); `lost`: time added to a round's products by the operation
    order     which pieces of NCCL's sum are bitwise equal to a sum in a given order ("2013": GPU 2 + GPU 0, then 1,
              then 3; "tree": 0 + 1, 2 + 3, then both), or to "none" of them; whether all GPUs have the same bits
"""

import argparse
import hashlib
import itertools
import multiprocessing
import os
import statistics
import time
from pathlib import Path

import numpy as np

from tools.notebooks.results import FOLDER, save

GRADIENT = 4 * 116_417_280  # bytes of the gradient of `base`, in float32
SIZES = [*(4**k for k in range(5, 15)), GRADIENT]  # 1 KiB to 256 MiB
OPERATIONS = "shift", "all-reduce", "reduce-scatter", "all-gather", "to owners"
BLOCKS = None, 8
ROUNDS, WARM, PRODUCTS, WIDTH = 9, 3, 20, 8192
PIECES, PIECE = 4096, 4096  # pieces of the sum whose order we look for, and numbers per piece
PATIENCE = 60  # seconds that a communicator's work may take
# NVLink SHARP (the switch adds; 0: off), the algorithm (such as Ring or Tree), and the protocol.
NCCL_SETTINGS = "NCCL_NVLS_ENABLE", "NCCL_ALGO", "NCCL_PROTO"


def nccl_settings() -> dict[str, str | None]:
    """Return the environment's NCCL_SETTINGS; None for a variable that is not set, so that NCCL's default holds."""
    return {name: os.environ.get(name) for name in NCCL_SETTINGS}


def operation(name: str, comm, rank: int, cards: int, x: int, y: int, size: int, stream: int):
    """Return a function that launches the operation on `size` bytes of float32 at address x, with the result at y."""
    from cupy.cuda import nccl

    kind, n, part = nccl.NCCL_FLOAT32, size // 4, size // 4 // cards

    def group(sends):  # (receiver, offset in x, sender, offset in y, count)
        nccl.groupStart()
        for to, source, origin, target, count in sends:
            comm.send(x + 4 * source, count, kind, to, stream)
            comm.recv(y + 4 * target, count, kind, origin, stream)
        nccl.groupEnd()

    others = [(peer, peer * part, peer, peer * part, part) for peer in range(cards) if peer != rank]
    return {
        "shift": lambda: group([((rank + 1) % cards, 0, (rank - 1) % cards, 0, n)]),
        "all-reduce": lambda: comm.allReduce(x, y, n, kind, nccl.NCCL_SUM, stream),
        "reduce-scatter": lambda: comm.reduceScatter(x, y, part, kind, nccl.NCCL_SUM, stream),
        "all-gather": lambda: comm.allGather(x, y, part, kind, stream),
        "to owners": lambda: group(others),
    }[name]


def work(rank: int, cards: int, identity: bytes, blocks: int | None, pipe) -> None:
    """Measure in the process of one GPU, and send {what: rounds or counts} through the pipe."""
    import cupy
    from cupy.cuda import nccl

    cupy.cuda.Device(rank).use()
    comm = nccl.NcclCommunicator(cards, identity, rank)
    moving, computing = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    x, y, one = (cupy.zeros(n, np.float32) for n in (GRADIENT // 4, GRADIENT // 4, 1))
    cupy.cuda.Device().synchronize()
    found = {}

    def launch(name, size):
        return operation(name, comm, rank, cards, x.data.ptr, y.data.ptr, size, moving.ptr)

    def meet():
        comm.allReduce(one.data.ptr, one.data.ptr, 1, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, moving.ptr)
        moving.synchronize()

    def rounds(jobs, count=ROUNDS, warm=0):
        """Return milliseconds [rounds] of each (stream, function) from a common start, and of the host for all jobs."""
        taken = []
        for turn in range(warm + count):
            meet()
            marks = [[cupy.cuda.Event() for _ in range(2)] for _ in jobs]
            for (stream, _), (begin, _) in zip(jobs, marks, strict=True):
                begin.record(stream)
            began = time.perf_counter()
            for (stream, job), (_, end) in zip(jobs, marks, strict=True):
                with stream:
                    job()
                end.record(stream)
            host = 1e3 * (time.perf_counter() - began)
            cupy.cuda.Device().synchronize()
            if turn >= warm:
                taken.append([*(cupy.cuda.get_elapsed_time(*pair) for pair in marks), host])
        return [list(column) for column in zip(*taken, strict=True)]

    for name in OPERATIONS if blocks is None else ():
        for size in SIZES:
            one_call, calls = launch(name, size), max(5, min(50, 2**27 // size))
            job = moving, lambda call=one_call, n=calls: [call() for _ in range(n)]
            times, host = rounds([job], warm=WARM)
            found["move", name, size] = [[t / calls for t in times], [t / calls for t in host]]

    rng = cupy.random.RandomState(rank)
    a, b, c = (rng.standard_normal((WIDTH, WIDTH), np.float32).astype(np.float16) for _ in range(3))
    products = computing, lambda: [cupy.matmul(a, b, out=c) for _ in range(PRODUCTS)]
    for name in ("all-reduce", "to owners"):
        move = moving, launch(name, GRADIENT)
        kinds = []  # per round: the products, then the move, each separately; then the move and the products together
        for _ in range(WARM + ROUNDS):
            alone, moved, both = (rounds(jobs, 1) for jobs in ([products], [move], [move, products]))
            kinds.append([alone[0][0], moved[0][0], both[0][0], both[1][0]])
        found["overlap", name] = [list(column) for column in zip(*kinds[WARM:], strict=True)]

    n = PIECES * PIECE
    parts = [cupy.random.RandomState(card).standard_normal(n, np.float32) for card in range(cards)]
    x[:n] = parts[rank]
    cupy.cuda.Device().synchronize()
    launch("all-reduce", 4 * n)()
    moving.synchronize()
    left = cupy.ones(PIECES, bool)
    for order in [o for o in itertools.permutations(range(cards)) if o[0] < o[1]]:
        take(found, left, "".join(map(str, order)), chain(parts, order), y[:n])
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    take(found, left, "tree", parts[0], y[:n])
    found["order", "none"] = int(left.sum())
    found["sha"] = hashlib.sha256(y[:n].tobytes()).hexdigest()
    pipe.send(found)
    pipe.recv()  # wait until all processes have sent
    comm.destroy()


def chain(parts: list, order: tuple[int, ...]):
    """Return the sum of the parts in this order, one after the other."""
    total = parts[order[0]].copy()
    for card in order[1:]:
        total += parts[card]
    return total


def take(found: dict, left, name: str, total, y) -> None:
    """Count the remaining pieces that are bitwise equal to this total, and remove them from `left`."""
    same = left & (total == y).reshape(PIECES, PIECE).all(axis=1)
    found["order", name] = int(same.sum())
    left &= ~same


def together(cards: int, blocks: int | None) -> list[dict]:
    """Return the results of each GPU's process. Raises TimeoutError if one does not answer; all processes end."""
    from cupy.cuda import nccl

    limits = "NCCL_MAX_CTAS", "NCCL_MAX_P2P_NCHANNELS"
    for name in limits:
        os.environ.pop(name, None)
        if blocks is not None:
            os.environ[name] = str(blocks)
    spawn, identity = multiprocessing.get_context("spawn"), nccl.get_unique_id()
    pipes = [spawn.Pipe() for _ in range(cards)]
    processes = [
        spawn.Process(target=work, args=(rank, cards, identity, blocks, theirs))
        for rank, (_, theirs) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        found, deadline = [], time.monotonic() + PATIENCE
        for rank, (ours, theirs) in enumerate(pipes):
            theirs.close()  # so that poll returns when the process ends
            if not ours.poll(max(0, deadline - time.monotonic())):
                raise TimeoutError(f"GPU {rank} of {cards} must answer within {PATIENCE} seconds, got no answer")
            found.append(ours.recv())
        for (ours, _), process in zip(pipes, processes, strict=True):
            ours.send("all processes have sent")
            process.join(10)
        return found
    finally:
        for process in processes:
            process.kill()


def slowest(found: list[dict], key: tuple) -> list[list[float]]:
    """Return for each kind of time [rounds] the slowest GPU's time in each round."""
    return [np.max(kinds, axis=0).tolist() for kinds in zip(*(card[key] for card in found), strict=True)]


def rows_of(cards: int, blocks: int | None, found: list[dict]) -> list[dict]:
    """Return the rows of one communicator."""
    rows, middle = [], lambda times: round(statistics.median(times), 5)
    for name in OPERATIONS if blocks is None else ():
        for size in SIZES:
            times, host = slowest(found, ("move", name, size))
            row = {"row": "move", "cards": cards, "what": name, "bytes": size, "ms": middle(times)}
            rows.append(row | {"host_ms": middle(host), "rounds": [round(t, 5) for t in times]})
    for name in ("all-reduce", "to owners"):
        products, alone, beside, longer = slowest(found, ("overlap", name))
        row = {"row": "overlap", "cards": cards, "blocks": blocks, "what": name, "bytes": GRADIENT}
        row |= {"alone": middle(alone), "beside": middle(beside)}
        row |= {"products": middle(products), "products_beside": middle(longer)}
        lost = [round(b - p, 4) for b, p in zip(longer, products, strict=True)]
        rows.append(row | {"lost": middle(lost), "rounds": lost})
    pieces = {key[1]: count for key, count in found[0].items() if key[0] == "order"}
    same = len({card["sha"] for card in found}) == 1
    row = {"row": "order", "cards": cards, "blocks": blocks, "pieces": pieces}
    rows.append(row | {"cards_agree": same, "sha256": found[0]["sha"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--gpus", dest="cards", type=int, nargs="+", help="numbers of GPUs (default: 2, and 4 if present)"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the JSON (default: data/results)")
    options = parser.parse_args()
    import cupy
    from cupy.cuda import nccl

    here = cupy.cuda.runtime.getDeviceCount()
    counts = options.cards or [n for n in (2, 4) if n <= here]
    if not counts or max(counts) > here or min(counts) < 2:
        parser.error(f"--gpus must be from 2 to {here}, the number of GPUs here, got {counts or 'none'}")
    config = {"nccl": nccl.get_version(), "cupy": cupy.__version__, "rounds": ROUNDS}
    config |= {"products": PRODUCTS, "width": WIDTH} | nccl_settings()
    rows = []
    for cards in counts:
        for blocks in BLOCKS:
            new = rows_of(cards, blocks, together(cards, blocks))
            for row in new:
                shown = [f"{k} {v}" for k, v in row.items() if k not in ("row", "rounds", "sha256")]
                print(*shown, flush=True)
            rows += new
            save("collectives", config, rows, options.out)  # after each communicator, in case a time limit ends the run


if __name__ == "__main__":
    main()
