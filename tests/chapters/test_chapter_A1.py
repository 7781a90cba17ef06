"""The appendix on the runtime: its checks accept what is right and reject wrong answers, each of them named; what it
says that the checker does not see passes without a finding.
"""

import json
import platform
import re
from collections import defaultdict, deque
from itertools import pairwise

import numpy as np
import pytest
from chapters import ROOT, gap_tests, slips

from cudacheck import compiler
from nanoeuler_lib import cuda

NOTEBOOK = "A1_cpu_runtime", "DONE", "WARP", "Access", "here", "meet"


# ---- The gaps


def run_block(
    kernel,
    threads,
    *args,
    order=lambda t: t,
    whole=False,
    rounds=None,
    same_line=True,
    nobody_left=True,
    first_round=False,
    two=False,
):
    """A block as fibers, with one thing wrong, if asked."""
    fibers = [kernel(t, threads, *args) for t in range(threads)]
    if whole:  # a loop over threads
        return [t for t in range(threads) for _ in (*fibers[t], None)]
    running, ran, lap = sorted(range(threads), key=order), [], 0
    while running and rounds != 0:
        rounds = rounds and rounds - 1
        ran += running
        running = [t for t in running if next(fibers[t], "returned") != "returned"]
        lines = {fibers[t].gi_frame.f_lineno for t in running if not two or t < 2}
        lap += 1
        if first_round and lap > 1:
            continue
        if (same_line and len(lines) > 1) or (nobody_left and running and len(running) < threads):
            raise RuntimeError("divergent barrier")
    return ran


WRONG_SCHEDULERS = {
    "a loop over threads": dict(whole=True),
    "the last thread first": dict(order=lambda t: -t),
    "even threads before odd ones": dict(order=lambda t: (t % 2, t)),
    "nobody goes on after the first barrier": dict(rounds=1),
    "who waits at the last barrier never returns": dict(rounds=3),
    "two barriers taken for one": dict(same_line=False),
    "a thread that has left is not missed": dict(nobody_left=False),
    "divergence in the first round only": dict(first_round=True),
    "lines of threads 0 and 1 only": dict(two=True),
}


def run_block_by_counting(kernel, threads, *args):
    """Another right answer: who waits is counted by line after each round."""
    ran, fibers = [], dict(enumerate(kernel(t, threads, *args) for t in range(threads)))
    while fibers:
        waits = {}
        for t, fiber in fibers.items():
            ran.append(t)
            if next(fiber, "end") is None:
                waits.setdefault(fiber.gi_frame.f_lineno, {})[t] = fiber
        if waits and len(next(iter(waits.values()))) != threads:
            raise RuntimeError("they part")
        fibers = next(iter(waits.values()), {})
    return ran


def run_block_by_a_queue(kernel, threads, *args):
    """Another: one queue, looked at whenever thread 0 or whoever is first comes round again."""
    queue = deque((t, kernel(t, threads, *args)) for t in range(threads))
    ran = []
    while queue:
        lines = []
        for _ in range(len(queue)):
            t, fiber = queue.popleft()
            ran.append(t)
            try:
                fiber.send(None)
            except StopIteration:
                lines.append(None)
            else:
                lines.append(fiber.gi_frame.f_lineno)
                queue.append((t, fiber))
        if any(a != b for a, b in pairwise(lines)):
            raise RuntimeError(f"lines {lines}")
    return ran


def meet(alive, waiting, everybody=None, early=False, same=True, only=None, each=False, ends=False):
    """One warp at a warp function, with one thing wrong, if asked."""
    expected = everybody or alive
    if not waiting or (waiting.keys() != expected and not early):
        return {}
    functions = {function for function, _ in waiting.values()}
    if ends:
        functions = {waiting[lane][0] for lane in (min(waiting), max(waiting))}
    if same and len(functions) > 1:
        raise RuntimeError("different functions")
    arguments = {lane: argument for lane, (_, argument) in waiting.items()}
    if len(functions) > 1:
        return arguments
    function = functions.pop()
    if each:
        return {lane: function({lane: argument})[lane] for lane, argument in arguments.items()}
    results = function(arguments)
    return {max(results): results[max(results)]} if only else results


WRONG_MEETINGS = {
    "does not wait": dict(early=True),
    "waits for lanes that have returned": dict(everybody={0, 1, 2, 3}),
    "takes any function": dict(same=False),
    "a result for the last lane alone": dict(only=True),
    "the function run lane by lane": dict(each=True),
    "the first and the last lane's functions only": dict(ends=True),
}


def meet_by_asking(alive, waiting):
    """Another right answer: lane by lane."""
    for lane in alive:
        if lane not in waiting:
            return {}
    given, common = {}, None
    for lane, (function, argument) in waiting.items():
        if common is not None and function is not common:
            raise RuntimeError("not the same")
        common, given[lane] = function, argument
    return common(given) if given else {}


def meet_by_lists(alive, waiting):
    """Another: by two lists."""
    if len(waiting) < len(alive) or not alive:
        return {}
    functions, arguments = zip(*waiting.values(), strict=True)
    if any(a is not b for a, b in pairwise(functions)):
        raise RuntimeError("several functions")
    return dict(functions[0](dict(zip(waiting, arguments, strict=True))))


def races(
    trace,
    ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch or (same and a.warp_epoch != b.warp_epoch),
    readers=None,
    reads_read=False,
    place=lambda a: a.place,
    forget=True,
    writes_seen=True,
    reversed_pair=False,
):
    """The first race of a trace by notes of each place, with one thing wrong, if asked."""
    last_write, read = {}, defaultdict(list)
    for now in trace:
        at = place(now)
        earlier = [last_write[at]] if at in last_write and writes_seen else []
        earlier += read[at] if now.writes or reads_read else []
        for then in earlier:
            if not ordered(then, now, then.thread // 4 == now.thread // 4):
                return [now, then] if reversed_pair else [then, now]
        if now.writes:
            last_write[at] = now
            read[at] = [] if forget else read[at]
        elif readers != 0:
            read[at] = [*read[at], now][-readers if readers else 0 :]
    return []


WRONG_DETECTORS = {
    "one reader kept": dict(readers=1),
    "two readers kept": dict(readers=2),
    "no reader kept": dict(readers=0),
    "two reads race": dict(reads_read=True),
    "places mixed up": dict(place=lambda a: 0),
    "a read never meets a write": dict(writes_seen=False),
    "warp barriers ignored": dict(ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch),
    "warp barriers order the block": dict(
        ordered=lambda a, b, same: a.thread == b.thread or a.epoch != b.epoch or a.warp_epoch != b.warp_epoch
    ),
    "a warp needs no order": dict(ordered=lambda a, b, same: same or a.epoch != b.epoch),
    "barriers of the block ignored": dict(
        ordered=lambda a, b, same: a.thread == b.thread or (same and a.warp_epoch != b.warp_epoch)
    ),
    "a thread races with itself": dict(
        ordered=lambda a, b, same: a.epoch != b.epoch or (same and a.warp_epoch != b.warp_epoch)
    ),
    "time orders": dict(ordered=lambda a, b, same: True),
    "the later access first": dict(reversed_pair=True),
}


def races_by_pairs(trace):
    """Another right answer, and the oracle of what follows: each access is compared with all before it."""
    for j, b in enumerate(trace):
        for a in trace[:j]:
            apart = a.thread != b.thread and a.epoch == b.epoch
            apart &= a.thread // 4 != b.thread // 4 or a.warp_epoch == b.warp_epoch
            if apart and a.place == b.place and (a.writes or b.writes):
                return [a, b]
    return []


test_right_gaps, test_wrong_gaps = gap_tests(
    {
        "check_run_block": (
            [run_block, run_block_by_counting, run_block_by_a_queue],
            slips(run_block, WRONG_SCHEDULERS),
        ),
        "check_meet": ([meet, meet_by_asking, meet_by_lists], slips(meet, WRONG_MEETINGS)),
        "check_races": (
            [races, races_by_pairs, lambda trace: races(trace, forget=False)],
            slips(races, WRONG_DETECTORS),
        ),
    }
)


def test_the_detector_may_keep_every_reader_for_ever(chapter):
    """What the page says of forgetting reads at a write: it changes nothing."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        trace = chapter.random_trace(rng)
        assert bool(races(trace)) == bool(races(trace, forget=False))


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


def clock_race_by_sets(threads, events):
    """Another right answer: each thread carries the set of the events that it has heard of."""
    heard, before = [set() for _ in range(threads)], {}
    for j, (what, who, *rest) in enumerate(events):
        met = who if what == "meet" else {who}
        known = set.union(*(heard[t] for t in met))
        for t in met:
            heard[t] = known | {j}
        for i in before.get(rest[0], []) if rest else ():
            if i not in known and events[i][1] != who and "write" in (what, events[i][0]):
                return [i, j]
        if rest:
            before.setdefault(rest[0], []).append(j)
    return []


def clock_race_by_lists(threads, events):
    """Another: vectors as lists, and the last access of each thread to each place."""
    clock = [[int(t == u) for u in range(threads)] for t in range(threads)]
    last = {}
    for j, event in enumerate(events):
        if event[0] == "meet":
            joined = [max(counts) for counts in zip(*(clock[t] for t in event[1]), strict=True)]
            for t in event[1]:
                clock[t] = [n + (u == t) for u, n in enumerate(joined)]
            continue
        what, t, place = event
        for (u, other, at), (i, stretch) in sorted(last.items(), key=lambda kept: kept[1]):
            if at == place and u != t and "write" in (what, other) and stretch > clock[t][u]:
                return [i, j]
        last[t, what, place] = j, clock[t][t]
    return []


RIGHT_RUNS = {
    "a fourth access": [(0, 3, False, 0, 0), (5, 3, False, 0, 0), (5, 3, True, 0, 0), (5, 3, True, 0, 0)],
    "of another warp": [(6, 1, True, 0, 2), (0, 1, False, 1, 0), (4, 1, False, 1, 3), (4, 1, True, 1, 3)],
    "the last reader is ordered by its warp": [(0, 0, False, 2, 5), (4, 0, False, 2, 1), (5, 0, True, 2, 2)],
}
WRONG_RUNS = {
    "five accesses": [*RIGHT_RUNS["a fourth access"], (5, 3, True, 0, 0)],
    "thread 8": [(0, 0, False, 0, 0), (8, 0, False, 0, 0), (8, 0, True, 0, 0)],
    "a number for whether": [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 1, 0, 0)],
    "no access": [],
}
test_other_right_answers, test_wrong_answers = gap_tests(
    {
        "check_clock_race": ([clock_race_by_sets, clock_race_by_lists], {}),
        "check_run": (
            [lambda run=run: run for run in RIGHT_RUNS.values()],
            {mistake: lambda run=run: run for mistake, run in WRONG_RUNS.items()},
        ),
    }
)


# ---- What the checker cannot see, and where it is stricter: each point of the two lists by kernels

HEAD = """#include <nanoeuler.cuh>
__device__ unsigned done, other;
__device__ float eight[8];
__device__ float first_of(float4 v) { return v.x; }
__device__ int deep(int n) { return n < 1 ? 0 : 1 + deep(n - 1); }
"""
# A point of the list; kernels (x has 64 zeros, n as many), each with its grid and block.
UNSEEN = {
    "1": [
        ("wraps", "if (threadIdx.x < (unsigned)n[0] - 1) x[threadIdx.x] = 1;", 1, 2),
        ("too_large", "n[1] = (int)(x[0] + 1e20f);", 1, 1),
        ("tail", "if (threadIdx.x < 60) x[threadIdx.x] = 1;", 1, 64),
    ],
    "2": [
        ("sum_without_start", "float s; for (int i = n[0]; i < 2; i++) s += 1; x[0] = s;", 1, 1),
        ("of_the_last_launch", "x[0] = eight[0]; eight[0] = 5;", 1, 1),
    ],
    "3": [
        ("path", "if (n[0] == 1) x[-1] = 0;", 1, 1),
        ("of_the_gpu", "\n#ifdef __CUDACC__\nx[-1] = 0;\n#endif\n", 1, 1),
    ],
    "4": [
        ("last_index", "x[blockIdx.x] = 1; __threadfence(); atomicAdd(&done, 1u);"
         "if (blockIdx.x == gridDim.x - 1) x[9] = x[0] + x[1] + x[2];", 4, 1),
        ("place_in_a_list", "x[atomicAdd(n, 1) % 64] = threadIdx.x;", 1, 64),
        ("float_sum", "atomicAdd(x, 0.1f * threadIdx.x);", 1, 64),
    ],
    "5": [
        ("address", "if (blockIdx.x == 0) { x[0] = 1; __threadfence(); atomicAdd(&done, 1u); }"
         "else { atomicAdd(&other, 1u); x[1] = x[0]; }", 2, 1),
        ("scope", "atomicAdd_block(n, 1);", 4, 1),
        ("two_fences", "if (blockIdx.x == 0) { x[threadIdx.x] = 1; if (threadIdx.x < 2) __threadfence();"
         "if (threadIdx.x == 1) atomicAdd(&done, 1u); }"
         "else if (threadIdx.x == 0) { while (atomicAdd(&done, 0u) == 0) {} n[0] = (int)x[40]; }", 2, 64),
        ("no_atomic_behind", "if (blockIdx.x == 0) { x[0] = 1; __threadfence(); atomicAdd(&done, 1u); x[1] = 2;"
         "__threadfence(); } else { while (atomicAdd(&done, 0u) == 0) {} n[0] = (int)x[1]; }", 2, 1),
        ("lost_update", "volatile int* m = n; __threadfence(); m[0] += 1;", 4, 1),
    ],
    "6": [
        ("next_array", "__shared__ float a[64]; __shared__ float b[64]; a[threadIdx.x] = b[threadIdx.x] = 1;"
         "__syncthreads(); float* p = a; x[threadIdx.x] = p[64];", 1, 64),
        ("two_names", "extern __shared__ float a[]; float* b = a; a[threadIdx.x] = 1; b[threadIdx.x] = 2;"
         "x[threadIdx.x] = a[threadIdx.x];", 1, 64),
        ("next_row", "__shared__ float a[4][4]; a[threadIdx.x / 4][threadIdx.x % 4] = 1; __syncthreads();"
         "float* row = a[1]; x[threadIdx.x] = row[5];", 1, 16),
        ("far_away", "float* p = eight; x[0] = p[1000];", 1, 1),
    ],
    "7": [
        ("write_behind", "float a[4] = {1, 2, 3, 4}; float* p = a; p[5 + n[0]] = 1; x[0] = a[0];", 1, 1),
        ("write_before", "float a[4] = {1, 2, 3, 4}; float* p = a; p[n[0] - 1] = 1; x[0] = a[0];", 1, 1),
        ("read_behind", "float a[4] = {1, 2, 3, 4}; float* p = a; x[0] = p[5 + n[0]];", 1, 1),
        ("static_table", "static const float t[4] = {1, 2, 3, 4}; const float* p = t; x[0] = p[5];", 1, 1),
    ],
    "8": [("by_value", "float4* v = (float4*)x; x[0] = first_of(v[16]);", 1, 1)],
    "9": [
        ("third_warp", "__shared__ int s, flag; if (threadIdx.x == 0) s = flag = 0; __syncthreads();"
         "if (threadIdx.x % 32 == 0 && threadIdx.x < 96) { n[threadIdx.x / 32] = s; __threadfence_block();"
         "if (threadIdx.x != 64) atomicAdd(&flag, 1); }"
         "if (threadIdx.x == 96) { while (atomicAdd(&flag, 0) < 2) {} s = 1; }", 1, 128),
    ],
    "10": [
        ("source", "__shared__ __align__(16) float s[4]; copy_async<16>(s, x); copy_async_commit(); x[0] = 3;"
         "copy_async_wait<0>(); __syncthreads(); x[4] = s[0];", 1, 1),
        ("target", "__shared__ __align__(16) float s[4]; copy_async<16>(s, x); copy_async_commit(); s[0] = 3;"
         "copy_async_wait<0>(); __syncthreads(); x[4] = s[0];", 1, 1),
        ("cached", "x[threadIdx.x] = 1; __syncthreads(); x[32 + threadIdx.x] = __ldg(&x[31 - threadIdx.x]);", 1, 32),
    ],
    "11": [("deep_recursion", "n[0] = deep(100);", 1, 1)],
    "12": [
        ("two_lines", "float v = 1;\nif (threadIdx.x < 16) v += __shfl_xor_sync(~0u, v, 1);\n"
         "else v -= __shfl_xor_sync(~0u, v, 1);\nx[threadIdx.x] = v;", 1, 32),
    ],
}  # fmt: skip
STRICT = {
    "returned": ("if (threadIdx.x == 1) return; __syncthreads(); x[threadIdx.x] = 1;", 1, 2),
    "same_value": ("x[0] = 1;", 1, 2),
    "plain_read": ("atomicAdd(n, 1); n[threadIdx.x + 1] = n[0];", 1, 2),
    "volatile_alone": ("__shared__ volatile int s; if (threadIdx.x == 0) s = 1; n[threadIdx.x] = s;", 1, 2),
    "lane_apart": ("if (threadIdx.x < 16) x[threadIdx.x] = __shfl_down_sync(0xffff, x[threadIdx.x], 8);", 1, 32),
    "hash": ("n[1] = (n[0] + 2147483647) * 31;", 1, 1),
    "padding": ("__shared__ float s[4]; x[0] = 0 * s[3]; __syncthreads();", 1, 1),
    "waits_for_later": ("if (blockIdx.x == 0) while (atomicAdd(n, 0) == 0) {} else atomicAdd(n, 1);", 2, 1),
    "lanes_not_met": (
        "__shared__ int s[2], flag; if (threadIdx.x == 0) flag = 0; __syncthreads();"
        "if (threadIdx.x < 2) s[threadIdx.x] = 1; if (threadIdx.x == 0) { __threadfence_block(); atomicAdd(&flag, 1); }"
        "if (threadIdx.x == 32) { while (atomicAdd(&flag, 0) == 0) {} n[0] = s[1]; }", 1, 64),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    bodies = {name: body for point in UNSEEN.values() for name, body, *_ in point}
    bodies |= {name: body for name, (body, *_) in STRICT.items()}
    head = 'extern "C" __global__ void {}(float* x, int* n)'
    text = HEAD + "\n".join(f"{head.format(name)} {{ {body} }}" for name, body in bodies.items())
    return cuda.module(text, where="cpu")


def launch(kernel, grid, block):
    shared = (1024,) if kernel.name == "two_names" else ()
    kernel(grid, block, (np.zeros(64, np.float32), np.zeros(64, np.int32)), *shared, seconds=0.5)


@pytest.mark.compiler
@pytest.mark.parametrize("point", UNSEEN)
def test_what_the_checker_cannot_see(kernels, point):
    if point == "8" and "g++" not in " ".join(map(str, compiler.find_compiler())):
        pytest.skip("only g++ does not tell it")
    for name, _, grid, block in UNSEEN[point]:
        if name == "write_behind" and platform.machine() in ("aarch64", "arm64"):
            continue  # there g++ keeps its guard where this writes, and it is told
        launch(kernels[name], grid, block)


@pytest.mark.compiler
@pytest.mark.parametrize("name", STRICT)
def test_where_the_checker_is_strict(kernels, name):
    with pytest.raises(cuda.KernelError):
        launch(kernels[name], *STRICT[name][1:])


def test_every_point_of_the_list_has_its_kernels():
    cells = json.loads((ROOT / "notebooks" / f"{NOTEBOOK[0]}.ipynb").read_text("utf-8"))["cells"]
    listed = next(t for t in map("".join, (c["source"] for c in cells)) if "### What the checker cannot see" in t)
    assert set(re.findall(r"^(\d+)\. \*\*", listed, re.M)) == set(UNSEEN)


# ---- What the mutants of `make mutants CH=A1` are compared on
