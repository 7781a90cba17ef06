"""Profile a kernel's memory accesses by running one of its blocks on the CPU. Chapter 23.

The 32 lanes of a warp make one request together. Global memory serves a request in sectors of 32 bytes; the ideal is
the smallest number of sectors that can hold the requested bytes. Shared memory has 32 banks, and each bank serves one
4-byte word at a time. A request therefore takes as many turns (NVIDIA: wavefronts) as words in its busiest bank.
"""

import functools
from collections import Counter
from dataclasses import dataclass

import numpy as np

from cudacheck.errors import CudaCheckError
from cudacheck.flops import block_work

SECTOR, BANKS, WORD = 32, 32, 4  # bytes, banks, bytes
CAPACITY = 8_000_000  # most records (accesses and basic blocks) of the traced block, 32 bytes each
READ, WRITE, ATOMIC, ASYNC, ENTERED, FLOPS = 0, 1, 3, 5, 8, 9  # kinds of record, as in thread.h and runtime.h


@dataclass(frozen=True)
class Row:
    """The requests that one line makes to one array. cost, ideal: sectors or shared-memory turns, mean per request."""

    line: int
    code: str
    array: str
    space: str
    operation: str
    requests: int
    cost: float
    ideal: float
    bytes: int


@dataclass(frozen=True)
class Work:
    """The work of one line: bytes read, bytes written, and the operations and functions that flops.py counts."""

    line: int
    code: str
    global_read: int
    global_written: int
    shared: int
    flops: int
    functions: int


class Profile:
    """The memory accesses of one block, and sums of these accesses by line; printing a profile gives a table."""

    def __init__(self, kernel: str, library, trace: np.ndarray, parameters: list[str], shared: list[str]):
        self.kernel, self.library, self.text, line_of = kernel, library, library.text, library.line_of
        self.computed, trace = trace[trace["kind"] >= ENTERED], trace[trace["kind"] < ENTERED]
        self.trace = trace
        sites, index = np.unique(trace["site"], return_inverse=True)
        self.line = np.array([line_of(int(site)) for site in sites], int)[index]  # of each access
        self.request = _requests(trace)
        self.names = {k: name for k, name in enumerate(parameters)}
        self.names |= {-1 - k: name or "shared" for k, name in enumerate(shared)}
        self.rows = self._rows()

    def _rows(self) -> list[Row]:
        trace, rows = self.trace, []
        cost, ideal = np.where(trace["array"] >= 0, _sectors(trace, self.request), _turns(trace, self.request))
        first = np.unique(self.request, return_index=True)[1]  # one access for each request
        kinds = np.stack([self.line, trace["array"], trace["kind"]], axis=1)
        for line, array, kind in np.unique(kinds[first], axis=0):
            mine = (self.line == line) & (trace["array"] == array) & (trace["kind"] == kind)
            heads = np.intersect1d(np.flatnonzero(mine), first)
            rows.append(
                Row(
                    line=int(line),
                    code=self.text.find(int(line))[2],
                    array=self.names.get(int(array), "shared"),
                    space="global" if array >= 0 else "shared",
                    operation={READ: "read", WRITE: "write", ATOMIC: "atomic", ASYNC: "copy"}[int(kind)],
                    requests=len(heads),
                    cost=float(cost[heads].mean()),
                    ideal=float(ideal[heads].mean()),
                    bytes=int(trace["bytes"][mine].sum()),
                )
            )
        return rows

    @functools.cached_property
    def work(self) -> list[Work]:
        """Return the block's bytes and operations by line. Raises CudaCheckError if there is no disassembler."""
        sums = Counter()
        for what, mine in {
            "global_read": (self.trace["array"] >= 0) & np.isin(self.trace["kind"], (READ, ATOMIC)),
            "global_written": (self.trace["array"] >= 0) & np.isin(self.trace["kind"], (WRITE, ATOMIC)),
            "shared": self.trace["array"] < 0,
        }.items():
            for line in np.unique(self.line[mine]):
                sums[int(line), what] += int(self.trace["bytes"][mine & (self.line == line)].sum())
        blocks = block_work(self.library.path, self.library.line_of)
        entered = self.computed["kind"] == ENTERED
        for site, times in zip(*np.unique(self.computed["site"][entered], return_counts=True)):
            if not self.library.line_of(int(site)):
                continue  # code in a header of the runtime, which is counted where it is called
            for line, (flops, functions) in blocks[int(site)].items():
                sums[line, "flops"] += int(times) * int(flops)
                sums[line, "functions"] += int(times) * int(functions)
        for record in self.computed[~entered]:  # matrix instructions record their own operations
            sums[self.library.line_of(int(record["site"])), "flops"] += int(record["bytes"])
        columns = ("global_read", "global_written", "shared", "flops", "functions")
        return [
            Work(line, self.text.find(line)[2], *(sums[line, column] for column in columns))
            for line in sorted({line for (line, _), n in sums.items() if n})
        ]

    def intensity(self) -> float:
        """Return the block's arithmetic intensity: operations per byte of global memory read or written."""
        moved = sum(w.global_read + w.global_written for w in self.work)
        return sum(w.flops for w in self.work) / moved if moved else float("inf")

    def __str__(self) -> str:
        head = f"{'line':>4}  {'memory':6}  {'what':6}  {'array':12} {'requests':>8} {'each':>6} {'ideal':>6}  unit"
        unit = {"global": "sectors", "shared": "turns"}
        lines = [
            f"{r.line:4}  {r.space:6}  {r.operation:6}  {r.array:12} {r.requests:8} {r.cost:6.1f} {r.ideal:6.1f}"
            f"  {unit[r.space]}"
            for r in self.rows
        ]
        return "\n".join([head, *lines])

    __repr__ = __str__

    def plot(self, ax=None):
        """Draw sectors or turns per request as one bar per line and array, mark each ideal, and return the axes."""
        import matplotlib.pyplot as plt

        ax = ax or plt.subplots(figsize=(7, 0.4 * len(self.rows) + 1))[1]
        places = np.arange(len(self.rows))
        colors = ["C0" if r.space == "global" else "C1" for r in self.rows]
        ax.barh(places, [r.cost for r in self.rows], 0.6, color=colors)
        ideal = [r.ideal for r in self.rows]
        ax.plot(ideal, places, "|", color="C3", markersize=14, markeredgewidth=2, label="ideal")
        ax.set_yticks(places, [f"line {r.line}: {r.operation} {r.array}" for r in self.rows])
        ax.set(xlabel="per request: sectors of 32 bytes (global), turns (shared)", title=self.kernel)
        ax.invert_yaxis()
        ax.legend()
        return ax

    def plot_request(self, line: int, array: str, number: int = 0, ax=None, colorbar: bool = True):
        """Draw the bytes that each lane of a warp accesses in one request; a row is one sector, or all 32 banks.

        number: index of the request among the line's requests, in execution order; colorbar: draw a colour bar next to
        the axes. Bytes that no lane accesses are grey. Returns the axes. Raises CudaCheckError if no request has this
        number.
        """
        import matplotlib.pyplot as plt

        ids = [k for k, name in self.names.items() if name == array]
        mine = (self.line == line) & np.isin(self.trace["array"], ids)
        requests = list(dict.fromkeys(self.request[mine].tolist()))
        if number >= len(requests):
            raise CudaCheckError(
                f"number must be below {len(requests)}, got {number}: "
                f"line {line} makes {len(requests)} requests to {array}"
            )
        access = self.trace[mine & (self.request == requests[number])]
        width = SECTOR if access["array"][0] >= 0 else BANKS * WORD
        used = np.unique(access["offset"] // width)
        picture = np.full((len(used), width), np.nan)
        for a in access:
            row, column = np.searchsorted(used, a["offset"] // width), a["offset"] % width
            picture[row, column : column + a["bytes"]] = a["thread"] % 32
        ax = ax or plt.subplots(figsize=(7, 0.25 * len(used) + 1))[1]
        colors = plt.get_cmap("viridis").with_extremes(bad="#dcd9d0")
        box = (0, width, len(used), 0)
        image = ax.imshow(picture, colors, aspect="auto", vmin=0, vmax=31, interpolation="nearest", extent=box)
        unit = "sector" if width == SECTOR else "row of 32 banks"
        shown = np.unique(np.linspace(0, len(used) - 1, min(len(used), 8)).astype(int))
        ax.set_xticks(np.linspace(0, width, 5))
        ax.set_yticks(shown + 0.5, used[shown])
        ax.set(xlabel=f"byte of the {unit}", ylabel=unit, title=f"line {line}, {array}: lanes of one request")
        if colorbar:
            ax.figure.colorbar(image, ax=ax, label="lane")
        ax.grid(False)
        return ax


def profile(kernel, grid, block, args, shared_mem: int, block_index: int) -> Profile:
    """Launch a kernel with the checker, and profile the block with the number `block_index`.

    Raises CudaCheckError if the block does not access memory or makes more than CAPACITY accesses.
    """
    kernel = kernel.on_cpu()
    launch = kernel.bind(grid, block, args, shared_mem)
    trace, shared = launch.trace(block_index, CAPACITY)
    if not (trace["kind"] < ENTERED).any():
        raise CudaCheckError(f"block {block_index} of {kernel.name} accesses no memory; the grid is {grid}")
    if len(trace) == CAPACITY:
        raise CudaCheckError(
            f"one block of {kernel.name} makes more than {CAPACITY} accesses: profile a smaller launch"
        )
    names = [p.name for p in kernel.signature.parameters if p.pointer] + kernel.module.library.variables
    return Profile(kernel.name, kernel.module.library, trace, names, shared)


def _requests(trace: np.ndarray) -> np.ndarray:
    """Return each access's request number: a warp's n-th execution of an instruction makes one request."""
    site = np.unique(trace["site"], return_inverse=True)[1].astype(np.int64)
    place = trace["thread"].astype(np.int64) * (site.max() + 1) + site
    order = np.argsort(place, kind="stable")
    sorted_place = place[order]
    start = np.r_[True, sorted_place[1:] != sorted_place[:-1]]
    first = np.maximum.accumulate(np.where(start, np.arange(len(place)), 0))
    visit = np.empty(len(place), np.int64)
    visit[order] = np.arange(len(place)) - first  # how often this thread has been at this instruction before
    warp = trace["thread"].astype(np.int64) // 32
    key = (visit * (site.max() + 1) + site) * (warp.max() + 1) + warp
    return np.unique(key, return_inverse=True)[1]


def _sectors(trace: np.ndarray, request: np.ndarray) -> np.ndarray:
    """Return [2, accesses]: the sectors that each access's request touches, and the fewest sectors for its bytes."""
    sectors = _distinct(request, trace["offset"] // SECTOR)
    places = _distinct(request, trace["offset"])
    size = np.zeros(request.max() + 1, np.int64)
    size[request] = trace["bytes"]
    return np.stack([sectors, -(-places * size // SECTOR)])[:, request]


def _turns(trace: np.ndarray, request: np.ndarray) -> np.ndarray:
    """Return [2, accesses]: the turns (wavefronts) of each access's request to shared memory, and the fewest possible.

    A request of more than 4 bytes per lane is served in parts: 16 lanes at a time for 8 bytes, 8 lanes for 16.
    """
    words = np.maximum(1, trace["bytes"] // WORD).astype(np.int64)
    part = trace["thread"] % 32 * words // 32
    parts = request * 4 + part
    access = np.repeat(np.arange(len(trace)), words)
    word = trace["offset"][access] // WORD + np.arange(len(access)) - np.repeat(np.cumsum(words) - words, words)
    pairs = np.unique(np.stack([parts[access], word], axis=1), axis=0)  # two lanes may share a word
    banks = pairs[:, 0] * BANKS + pairs[:, 1] % BANKS
    busy = np.bincount(banks, minlength=(parts.max() + 1) * BANKS).reshape(-1, BANKS).max(axis=1)
    busy = np.pad(busy, (0, -len(busy) % 4)).reshape(-1, 4)
    busy = np.pad(busy, ((0, max(0, request.max() + 1 - len(busy))), (0, 0)))
    return np.stack([busy.sum(axis=1), (busy > 0).sum(axis=1)])[:, request]


def _distinct(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return the number of distinct values in each group."""
    pairs = np.unique(np.stack([group, value], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=group.max() + 1)
