"""Test CUDA C++ on the CPU: the language, refused launches, the cache of compiled kernels, and the profiler."""

import copy
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cudacheck import compiler
from cudacheck.errors import CudaCheckError
from cudacheck.source import signatures
from nanoeuler_lib import cuda
from nanoeuler_lib.errors import NanoEulerError

pytestmark = pytest.mark.compiler

rng = np.random.default_rng(0)


def floats(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# ----------------------------------------------------------------------------------------------------------------
# the language

FEATURES = Path(__file__).parent / "kernels" / "features.cu"
x1000 = floats(1000)
lanes = np.arange(32)


def three_axes():
    return np.arange(8) + 100 * np.arange(6)[:, None] + 10000 * np.arange(6)[:, None, None]


def down(by, width):
    return np.where(lanes % width + by < width, lanes + by, lanes)


POINTS, TILES = floats(32, 4), floats(5, 128)
# kernel: grid, block, arguments, values of the arguments afterwards (by number), bytes of shared memory
CASES = {
    "three_axes": ((2, 3, 2), (4, 2, 3), (zeros(6, 6, 8, dtype=np.int32), 8, 6), {0: three_axes()}),
    "scan": (1, 64, (np.arange(64, dtype=np.int32),), {0: np.arange(64).reshape(2, 32).cumsum(1).ravel()}),
    "shuffles": (
        1, 32, (zeros(32, dtype=np.int32),),
        {0: lanes // 16 * 16 + 3 + 100 * down(4, 16) + 10000 * (lanes ^ 5)},
    ),
    "votes": (
        1, 32, (zeros(32, dtype=np.uint32),),
        {0: 0x49249249 ^ np.where(lanes < 16, 0xAAAA, 0xCCCC0000) ^ (0x49249249).bit_count() ^ 512},
    ),
    "warp_reduce": (1, 32, (np.arange(32, dtype=np.int32),), {0: np.full(32, 496 * 1000 + 31)}),
    "atomics": (
        8, 64, (np.ones(512, np.float32), zeros(1), zeros(1, dtype=np.int32), zeros(1, dtype=np.int32)),
        {1: 512, 2: 511, 3: 7},
    ),
    "polynomial<float, 4>": (1, 32, (POINTS, zeros(32)), {1: POINTS @ np.float32([1, 2, 3, 4])}),
    "shared_kinds": (
        1, 64, (x1000, zeros(64)), {1: x1000[:64][::-1] + np.arange(64) % 8 + (x1000[:64] > 0).sum()}, 256,
    ),
    "last_block_sums": (10, 32, (x1000, zeros(10), zeros(1)), {2: x1000.reshape(10, 100).sum(1).sum()}),
    "spin_lock": (2, 64, (zeros(1, dtype=np.int32), zeros(1, dtype=np.int32)), {0: 0, 1: 128}),
    "prints": (1, 8, (zeros(8, dtype=np.int32),), {0: 1}),
    "pipeline": (1, 32, (TILES, zeros(5, 128), 5), {1: TILES[:, ::-1]}),
    "shared_declarations": (
        1, 32, (POINTS[:, 0].copy(),), {0: POINTS[::-1, 0] + 1 + 3 + 2 + lanes[::-1] + 24 + lanes % 8},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "fast"])
def features(request):
    return cuda.module(FEATURES, where="cpu", checked=request.param, instantiate=("polynomial<float, 4>",))


@pytest.mark.parametrize("name", CASES)
def test_language(features, name, capsys):
    grid, block, args, wanted, *shared = CASES[name]
    args = copy.deepcopy(args)
    features[name](grid, block, args, *shared)
    for number, value in wanted.items():
        got, value = args[number].astype(np.float64), np.broadcast_to(value, args[number].shape)
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6)
    assert capsys.readouterr().out == ("thread 3 of block 0\n" if name == "prints" else "")


@pytest.mark.full
def test_a_struct_of_floats_needs_no_more_alignment_than_a_float():
    if not Path(compiler.find_compiler()[0]).name.startswith("g++"):
        pytest.skip("Clang does not tell the alignment of what it copies")
    text = """struct Quad { float a, b, c, d; };
extern "C" __global__ void k(const float* x, float* y) {
  Quad q = *reinterpret_cast<const Quad*>(x + 1 + 4 * threadIdx.x);
  *reinterpret_cast<Quad*>(y + 3 + 4 * threadIdx.x) = q;
}
"""
    x, y = floats(33), zeros(35)
    cuda.module(text, where="cpu")["k"](1, 8, (x, y))
    assert (y[3:] == x[1:]).all()


# ----------------------------------------------------------------------------------------------------------------
# findings


@pytest.mark.full
def test_the_thread_that_a_finding_names_does_not_hang_on_how_many_basic_blocks_the_threads_run():
    """Vary the length of a loop, because each compiler makes a different number of basic blocks from one text.

    All threads make the mistake, and the last thread to arrive at a barrier continues first.
    """
    text = """extern "C" __global__ void beyond(float* x, int n) {
  __shared__ float s[64];
  s[threadIdx.x] = 0;
  for (int i = 0; i < n; i++) s[threadIdx.x] += i;
  __syncthreads();
  for (int i = 0; i < n; i++) s[threadIdx.x] += i;
  x[64 + threadIdx.x] = s[threadIdx.x];
}
"""
    kernel, named = cuda.module(text, where="cpu")["beyond"], []
    for n in range(2000, 6000, 200):
        with pytest.raises(cuda.KernelError, match="out of bounds") as caught:
            kernel(1, 64, (zeros(64), n))
        named.append(caught.value.finding.thread)
    assert set(named) == {(63, 0, 0)}, named


@pytest.mark.full
def test_the_end_of_an_array_is_not_the_start_of_another():
    """Check that an index up to 64 KB beyond an array falls between the arrays, whatever is stored next to them."""
    text = 'extern "C" __global__ void k(const float* a, const float* b, float* c, int i) { c[0] = a[0] + b[i]; }'
    kernel = cuda.module(text, where="cpu")["k"]
    for beyond in (0, 15, 100, 700, 1000, 1100, 1300, 2000, 5000, 16000):
        with pytest.raises(cuda.KernelError, match=rf"out of bounds: read: b\[{1024 + beyond}\]"):
            kernel(1, 1, (*(zeros(1024) for _ in range(3)), 1024 + beyond))


# ----------------------------------------------------------------------------------------------------------------
# the launch

SCALE = """extern "C" __global__ void __launch_bounds__(256) scale(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = by * x[i];
}
"""


@pytest.fixture(scope="module")
def scale():
    return cuda.module(SCALE, where="cpu")["scale"]


X, Y = zeros(8), zeros(8)
SHAPE, BYTES = "must be one to three integers of at least 1", "must be 0 to 232448 bytes, got"
REFUSED = [
    (dict(args=(X, Y, 2.0)), "takes 4 arguments (x, y, by, n), got 3"),
    (dict(args=(zeros(8, dtype=np.float64), Y, 2.0, 8)), 'array of float32, got float64: pass x.astype("float32")'),
    (dict(args=([1.0], Y, 2.0, 8)), "numpy array, got list: pass numpy.asarray(..., numpy.float32)"),
    (dict(args=(zeros(8, 2)[:, 0], Y, 2.0, 8)), "strided view: pass numpy.ascontiguousarray"),
    (dict(args=(X, np.broadcast_to(np.float32(0), 1), 2.0, 8)), "read-only"),
    (dict(args=(X, Y, 2.0, 8.0)), "`n` is an int, got float 8.0: pass int(8.0)"),
    (dict(args=(X, Y, 2.0, 1 << 31)), "holds -2147483648 to 2147483647, got 2147483648"),
    (dict(args=(X, Y, np.float64(2), 8)), "`by` is a float, got numpy.float64 2.0: pass float(2.0)"),
    (dict(block=257), "at most 256 threads, as in __launch_bounds__, got 257"),
    (dict(block=(32, 33)), "at most 1024 threads"),
    (dict(block=(1, 1, 65)), "64 along z"),
    (dict(block=None), f"block {SHAPE}, such as 4 or (4, 2), got NoneType"),
    *((dict(grid=grid), f"grid {SHAPE}") for grid in (0, "1", (1,) * 4, (1.5,))),
    (dict(grid=(1, 65536)), "at most 65535 along y and z"),
    (dict(grid=2**31), "below 2^31 blocks along x"),
    (dict(shared_mem=300_000), f"{BYTES} 300000"),
    (dict(shared_mem=-1), f"{BYTES} -1"),
]


@pytest.mark.full
@pytest.mark.parametrize("change, message", REFUSED)
def test_a_wrong_launch_is_refused_at_the_door(scale, change, message):
    with pytest.raises(NanoEulerError, match=re.escape(message)):
        scale(**dict(grid=1, block=8, args=(X, Y, 2.0, 8)) | change)


@pytest.mark.full
@pytest.mark.parametrize("launch", [(), (1, 8, zeros(8)), (1, 8, zeros(8), zeros(8), 2.0, 8), ((zeros(8),),)])
def test_a_launch_without_its_grid_or_its_tuple_says_what_a_launch_is(scale, launch):
    words = r"scale\(grid, block, args\): args is one tuple of the kernel's arguments, got "
    with pytest.raises(NanoEulerError, match=words):
        scale(*launch)


@pytest.mark.full
def test_a_bound_launch_sees_what_the_arrays_hold_now(scale):
    x, y = floats(100), zeros(100)
    launch = scale.bind(1, 128, (x, y, 2, np.int32(100)))  # 2 becomes a float
    for _ in range(2):
        x += 1
        launch()
        assert (y == 2 * x).all()


@pytest.mark.full
@pytest.mark.parametrize("checked", [True, False])
def test_empty_arrays_one_in_place_and_overlapping_ones(checked):
    kernel = cuda.module(SCALE, where="cpu", checked=checked)["scale"]
    x = floats(100)
    before = x.copy()
    kernel(1, 32, (zeros(0), zeros(0), 1.0, 0))
    kernel(1, 64, (x[:50], x[50:], 2.0, 50))
    assert (x == np.concatenate([before[:50], 2 * before[:50]])).all()
    kernel(1, 128, (x, x, 2.0, 100))
    assert (x == np.concatenate([2 * before[:50], 4 * before[:50]])).all()


@pytest.mark.full
def test_two_threads_launch_at_once(scale):
    x, results = floats(1000), [zeros(1000) for _ in range(4)]
    threads = [threading.Thread(target=scale, args=(4, 256, (x, y, float(k), 1000))) for k, y in enumerate(results)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, y in enumerate(results):
        assert (y == k * x).all()


ALIASES = """
#define N_THREADS 64
#define T float
using Count = unsigned int;
extern "C" __global__ void __launch_bounds__(N_THREADS, 2) k(
    const T *__restrict__ x, T y[], Count n, float4 const* z) {}
template <typename U, int W> __global__ void t(volatile U* u, bool b) {}
"""


@pytest.mark.full
def test_signatures():
    k, t = signatures(ALIASES, ["t<long long, 3>"])
    assert [(p.name, p.dtype, p.pointer, p.const, p.width) for p in (*k.parameters, *t.parameters)] == [
        ("x", "float32", True, True, 1), ("y", "float32", True, False, 1), ("n", "uint32", False, False, 1),
        ("z", "float32", True, True, 4), ("u", "int64", True, False, 1), ("b", "bool", False, False, 1),
    ]  # fmt: skip
    assert (k.max_threads, t.max_threads, k.mangled, t.mangled) == (64, 1024, False, True)


@pytest.mark.full
def test_a_finding_in_a_header_names_the_header():
    body = "if (threadIdx.x < 64) x[threadIdx.x] = block_sum(x[threadIdx.x]);"
    text = '#include <reduce.cuh>\nextern "C" __global__ void k(float* x) { ' + body + " }"
    with pytest.raises(cuda.KernelError) as caught:
        cuda.module(text, where="cpu")["k"](1, 128, (zeros(128),))
    header = (cuda.KERNELS / "reduce.cuh").read_text("utf-8").split("\n")
    finding = caught.value.finding
    assert finding.kind == "divergent barrier" and finding.file == "reduce.cuh"
    assert "__syncthreads()" in header[finding.line - 1]
    assert f"reduce.cuh, line {finding.line}: __syncthreads();" in finding.text


class FakeKernel:
    """A stand-in for CuPy's kernel that records its launch."""

    max_dynamic_shared_size_bytes = 48 * 1024
    shared_size_bytes = 1024  # size of the __shared__ arrays

    def __call__(self, *launch, shared_mem):
        self.launch = (*launch, shared_mem)


@pytest.mark.full
def test_the_gpu_side_checks_and_converts_alike(monkeypatch):
    """Check without a GPU what CuPy would get, and that the arguments are checked as on the CPU."""
    made, kernel = {}, FakeKernel()

    def raw_module(**options):
        made.update(options)
        return SimpleNamespace(get_function=lambda name: kernel)

    compilers = SimpleNamespace(compiler=SimpleNamespace(CompileException=RuntimeError))
    cupy = SimpleNamespace(__name__="cupy", ndarray=np.ndarray, RawModule=raw_module, cuda=compilers)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr("nanoeuler_lib.cuda.launch.hopper", lambda: False)  # hopper() would query CuPy
    text = SCALE + "template <int N> __global__ void power(float* x) { x[0] = N; }"
    module = cuda.module(text, where="gpu", defines={"TILE": 16}, instantiate=("power<4>",))
    assert made["code"] == text and made["name_expressions"] == ["power<4>"]
    assert "-DTILE=16" in made["options"] and "-std=c++17" in made["options"]
    x, y = floats(8), zeros(8)
    module["scale"].bind(1, 8, (x, y, 2, 8), 60_000)()
    assert kernel.launch == ((1, 1, 1), (8, 1, 1), (x, y, 2, 8), 60_000)
    assert [type(a) for a in kernel.launch[2][2:]] == [np.float32, np.int32]  # a bare 2 would be passed as an int
    module["scale"].bind(1, 8, (x, y, 2, 8), 50_000)
    assert kernel.max_dynamic_shared_size_bytes == 60_000, "the launch bound before still needs it"
    with pytest.raises(NanoEulerError, match=r"at most 65536 bytes per block on this GPU, got 1024 of .* and 65000"):
        module["scale"].bind(1, 8, (x, y, 2, 8), 65_000, shared_limit=64 * 1024)
    assert {r.array for r in module["scale"].profile(1, 8, (x, y, 2.0, 8)).rows} == {"x", "y"}
    assert (y == 2 * x).all()
    cupy.RawModule = lambda **_: (_ for _ in ()).throw(RuntimeError("nvrtc: out of memory"))
    with pytest.raises(NanoEulerError, match=r"does not compile with NVRTC:\nnvrtc: out of memory"):
        cuda.module(SCALE, where="gpu")


@pytest.mark.full
def test_the_checked_twin_of_a_kernel():
    text = "template <int N> __global__ void power(float* x) { x[threadIdx.x] = N * BY; }"
    fast = cuda.module(text, where="cpu", checked=False, defines={"BY": 3}, instantiate=("power<4>",))["power<4>"]
    x, twin = zeros(8), fast.on_cpu("N * BY", "N + BY")
    with pytest.raises(cuda.KernelError, match=r"out of bounds: write: x\[8\]"):
        twin(1, 9, (x,))
    assert (x == 7).all() and twin.on_cpu() is twin
    with pytest.raises(NanoEulerError, match=r"kernel\.cu must contain 'N - BY'"):
        fast.on_cpu("N - BY", "N + BY")


@pytest.mark.full
def test_a_variable_without_a_value_holds_one_that_is_seen():
    loop = "float sum; for (int k = 0; k < n; k++) sum += 1; *y = sum;"
    is_clang, version = compiler._version(compiler.find_compiler())
    if is_clang or version < 12:
        pytest.skip("Clang tells of it, and this g++ fills nothing")
    y = zeros(1)
    cuda.module('extern "C" __global__ void k(float* y, int n) { ' + loop + " }", where="cpu")["k"](1, 1, (y, 5))
    assert not abs(y[0]) < 1e30


# ----------------------------------------------------------------------------------------------------------------
# compilers and the cache

RUN = f"""
import numpy as np
from nanoeuler_lib import cuda
x = np.arange(8, dtype=np.float32)
cuda.module({SCALE!r}, where="cpu")["scale"](1, 8, (x, x, 2.0, 8))
assert (x == 2 * np.arange(8)).all()
"""


def process(cache, **environment):
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1"} | environment
    folder = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", RUN], env=environment, stderr=subprocess.PIPE, text=True, cwd=folder)


@pytest.mark.full
def test_processes_share_the_cache(tmp_path):
    running = [process(tmp_path) for _ in range(3)]
    for each in running:
        _, errors = each.communicate()
        assert each.returncode == 0, errors
    made = sorted(file.suffix for file in (tmp_path / "nanoeuler").iterdir())
    assert made == [".o", ".so"]  # one of each, and no partly written file
    stamps = [file.stat().st_mtime_ns for file in sorted((tmp_path / "nanoeuler").iterdir())]
    again = process(tmp_path)
    assert again.wait() == 0
    assert stamps == [file.stat().st_mtime_ns for file in sorted((tmp_path / "nanoeuler").iterdir())]


@pytest.mark.full
def test_the_cache_forgets_what_nobody_uses(tmp_path, monkeypatch):
    day, now = 86_400, time.time()
    for name, days, size in [
        ("kernel-old.so", 31, 1), ("kernel-used.so", 29, 600), ("kernel-new.so", 0, 600), ("runtime-older.o", 29.5, 1),
        ("notes.txt", 99, 1),
    ]:  # fmt: skip
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (now - days * day,) * 2)
    (tmp_path / "tmpabc").mkdir()  # left by a killed process
    os.utime(tmp_path / "tmpabc", (now - 31 * day,) * 2)
    used = compiler._keep(tmp_path / "kernel-used.so", tmp_path / "kernel-used.so")
    os.utime(used, (now - 29 * day,) * 2)
    assert compiler._cached(used) and not compiler._cached(tmp_path / "kernel-none.so")
    compiler._prune(tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {"kernel-used.so", "kernel-new.so", "runtime-older.o", "notes.txt"}
    os.utime(tmp_path / "kernel-used.so", (now - 2 * day,) * 2)
    monkeypatch.setattr(compiler, "CACHE_BYTES", 1000)
    compiler._prune(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"kernel-new.so", "notes.txt"}


@pytest.mark.full
def test_a_kernel_whose_library_was_pruned_is_made_again_and_use_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    library = cuda.module(SCALE, where="cpu").library
    os.utime(library.path, (0, 0))
    cuda.module(SCALE, where="cpu")
    assert library.path.stat().st_mtime > time.time() - 60
    os.utime(library.path, (0, 0))
    cuda.module(SCALE.replace("scale", "other"), where="cpu")  # compiling another text prunes the cache
    assert not library.path.exists()
    x = floats(8)
    cuda.module(SCALE, where="cpu")["scale"](1, 8, (x, x, 2.0, 8))
    assert library.path.exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "environment, message",
    [
        ({"PATH": ""}, "install g++ or clang, or `pip install ziglang`"),
        ({"NANOEULER_CXX": "no-such-compiler"}, "NANOEULER_CXX must be a command that exists, got 'no-such-compiler'"),
        ({"NANOEULER_CXX": "false"}, "with false"),
    ],
)
def test_a_compiler_that_is_none(monkeypatch, environment, message):
    monkeypatch.delenv("NANOEULER_CXX", raising=False)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    compiler.find_compiler.cache_clear()
    with pytest.raises(NanoEulerError, match=re.escape(message)):
        cuda.module(SCALE.replace("scale", "other"), where="cpu")
    monkeypatch.undo()
    compiler.find_compiler.cache_clear()


@pytest.mark.full
def test_device_is_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("NANOEULER_DEVICE", "tpu")
    cuda.device.cache_clear()
    with pytest.raises(NanoEulerError, match=r"must be gpu or cpu, got .tpu."):
        cuda.device()
    monkeypatch.setenv("NANOEULER_DEVICE", "cpu")
    assert cuda.device() == "cpu" and cuda.array_module() is np
    cuda.device.cache_clear()
    monkeypatch.setenv("NANOEULER_ARCH", "hopper")
    cuda.hopper.cache_clear()
    with pytest.raises(NanoEulerError, match="NANOEULER_ARCH must be 75, 80 or 90, got 'hopper'"):
        cuda.hopper()


ON_CPU = pytest.mark.skipif(cuda.device() == "gpu", reason="counts calls of the CPU's clock")


@ON_CPU
def test_the_median_leaves_out_the_first_launch_and_a_slow_one():
    waits = iter([0.5, 0.002, 0.3, 0.002])  # the first launch compiles, and the third is disturbed
    assert 0.002 <= cuda.median_seconds(lambda: time.sleep(next(waits)), launches=3) < 0.1
    assert next(waits, None) is None  # one launch that is not counted, and three that are


@ON_CPU
def test_a_copy_moves_as_many_bytes_as_it_says(monkeypatch):
    moved = []

    def copyto(target, source):
        moved.append((target.nbytes, source.nbytes, target is not source))

    monkeypatch.setattr(np, "copyto", copyto)
    cuda.copy_seconds(1 << 20, launches=2)
    assert moved == [(1 << 19, 1 << 19, True)] * 3


# ----------------------------------------------------------------------------------------------------------------
# the profiler


@pytest.mark.full
def test_profile_plots(tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    kernel = cuda.module(cuda.KERNELS / "transpose.cu", where="cpu")["transpose_plain"]
    profile = kernel.profile(1, (32, 8), (floats(8, 32), zeros(32, 8), 8, 32))
    line = profile.rows[0].line
    assert len(profile.plot().patches) == len(profile.rows) == 2
    assert profile.plot_request(line, "y").images[0].get_array().shape == (32, 32)  # 32 sectors of 32 bytes
    assert profile.plot_request(line, "x").images[0].get_array().shape == (4, 32)
    ax = profile.plot_request(line, "y", colorbar=False)
    assert ax.images[0].get_array().mask[0].tolist() == 4 * [False] + 28 * [True]  # one number of the sector
    with pytest.raises(CudaCheckError, match="number must be below 8, got 8: line"):
        profile.plot_request(line, "x", 8)
    assert f"{line:4}  global  write   y" in str(profile)


# ----------------------------------------------------------------------------------------------------------------
# the cell magic


@pytest.mark.full
def test_cell_magic(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "nanoeuler_lib.cuda.magic")
    shell.run_cell_magic("cuda", "--cpu -D FACTOR=3", SCALE.replace("by *", "FACTOR * by *"))
    shell.push(dict(x=floats(8), y=zeros(8)))
    assert shell.run_cell("scale(1, 8, (x, y, 2.0, 8))").success
    np.testing.assert_allclose(shell.user_ns["y"], 6 * shell.user_ns["x"], rtol=1e-6)
    template = "template <int N> __global__ void power(float* x) { x[0] = N; }"
    shell.run_cell_magic("cuda", "--cpu --fast -i 'power<4>'", template)
    assert not shell.user_ns["power_4"].module.checked and shell.user_ns["scale"].module.checked
    capsys.readouterr()
    assert not shell.run_cell("%%cuda --cpu\n" + SCALE.replace("x[i];", "x[i]")).success
    shown = capsys.readouterr()
    assert shown.out.startswith("kernel.cu, line 4: a ; is missing"), shown.out  # line 1 is the magic
    assert "Traceback" not in shown.out + shown.err
    assert not shell.run_cell("%%cuda --cpu\n" + SCALE.replace("i < n", "i <= n")).error_before_exec
    assert not shell.run_cell("scale(1, 16, (x, y, 2.0, 8))").success
    shown = capsys.readouterr()
    assert shown.out.startswith("out of bounds: read: x[8]") and "line 4: if (i <= n) y[i]" in shown.out
    assert "Traceback" not in shown.out + shown.err
    assert not shell.run_cell("scale(1, 8, (x, y, 2.0))").success  # the same for refused arguments
    assert capsys.readouterr().out == "scale takes 4 arguments (x, y, by, n), got 3\n"
    with pytest.raises(NanoEulerError, match="it takes --fast"):
        shell.run_cell_magic("cuda", "--quick", SCALE)
    with pytest.raises(NanoEulerError, match="`sum` is a Python name: call the kernel sum_kernel, for example"):
        shell.run_cell_magic("cuda", "--cpu", SCALE.replace("scale(", "sum("))
    assert "sum" not in shell.user_ns
