"""What a run skips, and why: tests marked `gpu`, `compiler` or `slow`, cells tagged `gpu`.

`make test` leaves to `make test-all` what LEFT_OUT lists, and names it at its end. What is marked `slow` takes minutes:
`make test-all ARGS=--slow`, before a release.
"""

import functools
import importlib.util
import os
import secrets
import signal
from collections import Counter

import pytest

pytest_plugins = ["tools.notebooks.compare"]

# Under nohup a hang-up is ignored, by the processes that tests start as well; the tests of a closed terminal need it.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is buffered is written at the end, where it can fail as well: processes that tests start buffer, as a user's do.
os.environ.pop("PYTHONUNBUFFERED", None)

# The same examples in every run, so that none fails by chance; `--hypothesis-profile=explore` draws others each time.
# A busy machine is slow to make them, the first ones above all, for which tables of characters are built.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("explore", **patient)
    settings.register_profile("any machine", **patient, derandomize=True)
    settings.load_profile("any machine")

# What `make test` leaves to `make test-all`: what it is, and words of the names of tests that run nevertheless.
LEFT_OUT = {
    "tests/book/test_numbering.py": ("numbers of figures in a built book", ("jupyterlab",)),
    "tests/chapters/test_gap_runs.py": (
        "chapters run with right, wrong and raising answers",
        ("checks_say",),
    ),
    "tests/command/test_hostile.py": ("spoilt files", ("bombs", "memory", "pickle", "devices")),
    "tests/corpus/test_corpus_gutenberg.py": ("books of Gutenberg", ("stars",)),
    "tests/cuda/test_cuda_bandwidth.py": ("the benchmark of kernels, tiny", ()),
    "tests/cuda/test_cuda_functions.py": ("every function of CUDA that kernels may call", ()),
    "tests/cuda/test_cuda_half.py": ("numbers of 16 bits, all functions", ()),
    "tests/cuda/test_cuda_names.py": ("names that NVRTC knows", ()),
    "tests/cuda/test_cuda_runtime.py": (
        "the runtime of kernels, but for its findings",
        ("language", "planted"),
    ),
    "tests/cuda/test_cuda_text.py": (
        "the reader of kernels' texts",
        ("test_what_is_right", "half_a_character"),
    ),
    "tests/cuda/test_learner.py": ("mistakes that learners make in kernels", ("race", "guard")),
    "tests/cuda/test_matmul16.py": (
        "products on tensor cores",
        ("refuses", "is_no", "matmul16_plain-64-64-1-__nv_bfloat16-float-True-(3, 65, 8)"),
    ),
    "tests/cuda/test_nvrtc.py": ("kernels compiled for every card", ("engine.cu, float-sm_90]",)),
    "tests/engine/test_engine.py": (
        "the engine, but for one shape",
        (
            "gradients_are_the_references[float32-37]",
            "gradients_are_the_references[bfloat16-37]",
            "test_steps_are_those_of_the_cpu[2]",
            "test_decoding_gives_the_models_logits[float32]",
            "test_the_lists_of_launches_are_those_written_down",
            "test_lists_that_run_again_give_the_same_bits",
            "test_an_interrupted_run_ends_with_the_same_bits",
            "test_generate_and_check_on_a_device",
            "test_nothing_moves_where_the_norm_is_not_finite",
            "refused",
        ),
    ),
    "tests/engine/test_many.py": ("processes that train together", ("tree", "owner", "cannot_do")),
    "tests/engine/test_engine_muon.py": ("Muon on the engine", ("composite_is_the_reference",)),
    "tests/engine/test_flash.py": (
        "attention on the engine",
        ("refused", "takes_float32_alone", "1-37-3-1-64-bfloat16-sm86"),
    ),
    "tests/engine/test_flash_backward.py": (
        "its backward pass",
        ("refused", "fit", "[bfloat16-64-1-1-1-1-]"),
    ),
    "tests/engine/test_gpu_benchmarks.py": ("a card's benchmarks, tiny", ("search", "a_recipe")),
    "tests/engine/test_gpu_flash_step.py": ("a card's benchmarks, tiny", ()),
    "tests/engine/test_unfused.py": ("readers' kernels in the engine", ("gain[0]", "names_and_types")),
    "tests/ground/test_older_files.py": (
        "notebooks of version 0.1",
        ("shipped", "form", "field", "by_its_old_name"),
    ),
    "tests/school/test_assign.py": ("papers of every chapter", ("06", "08")),
    "tests/school/test_assignment.py": ("assignments released, filled in and graded", ()),
    "tests/school/test_breaks.py": (
        "the drills' bugs, each planted and found",
        (
            "fragment",
            "list_of_bugs",
            "seed",
            "batch-for-ever",
            "targets-unshifted",
            "refusals",
            "sound_package",
        ),
    ),
    "tests/training/test_kill.py": ("kills", ("full_disk", "rights", "lock_file", "one_folder")),
    "tests/workshop": ("mutants, other processors", ("nbval_compares", "unit_of")),
}


if importlib.util.find_spec("nbval"):
    from nbval import kernel

    class ManagerOfSockets(kernel.KernelManager):
        """Reaches its kernel through socket files. A TCP port is chosen before the kernel starts and may be taken by
        then: of 200 kernels on two cores, forty starting at a time, five died of it and one never answered; of 200 of
        these, none."""

        def __init__(self, **kwargs):
            name = f"/tmp/nbval-{secrets.token_hex(8)}"  # short everywhere: a socket's path has some hundred bytes
            super().__init__(transport="ipc", ip=name, **kwargs)

        def start_kernel(self, **kwargs):
            """A history in memory, as nbclient's kernels have: kernels that share its file wait for each other's lock,
            and one that waits too long says so on stderr, in whatever cell is running."""
            super().start_kernel(extra_arguments=["--HistoryManager.hist_file=:memory:"], **kwargs)

    kernel.KernelManager = ManagerOfSockets


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all", action="store_true", help="run what `make test` leaves to `make test-all` as well"
    )
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_report_header() -> list[str]:
    data = os.environ.get("NANOEULER_DATA")
    torch = importlib.util.find_spec("torch")
    return [
        f"test data: {data or 'NANOEULER_DATA is not set; what needs it is skipped'}",
        f"oracles: {'PyTorch is installed' if torch else 'no PyTorch; what needs it is skipped (make oracle)'}",
        f"GPU: {gpu_missing() or 'usable'}",
        f"kernels on the CPU: {compiler_missing() or 'a C++ compiler is there'}",
    ]


@functools.cache
def gpu_missing() -> str:
    """Why no GPU is usable; empty when one is."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    return (
        "" if cupy.cuda.is_available() else "CuPy finds no CUDA device"
    )  # CuPy imports without a driver, too


@functools.cache
def compiler_missing() -> str:
    """Why no kernel can run on the CPU; empty when a C++ compiler is there."""
    from nanoeuler_lib.cuda.checker.compiler import find_compiler
    from nanoeuler_lib.errors import NanoEulerError

    try:
        find_compiler()
    except NanoEulerError as error:
        return str(error)
    return ""


def left_out(item: pytest.Item) -> str:
    """The file or folder of LEFT_OUT that a test belongs to; empty for a test of `make test`."""
    for path, (_, kept) in LEFT_OUT.items():
        if item.nodeid.startswith(path):
            return "" if any(name in item.nodeid for name in kept) else path
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--all") or config.getoption("--slow")):
        named = [
            str(arg).partition("::")[0] for arg in config.invocation_params.args
        ]  # what is asked for runs
        left = Counter()
        for item in list(items):
            if (path := left_out(item)) and not any(path in name for name in named):
                items.remove(item)
                left[path] += 1
        config.stash[LEFT] = dict(left)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left"] = dict(left)
    elif "tests" in config.invocation_params.args:
        for path, (_, kept) in LEFT_OUT.items():
            names = [item.nodeid for item in items if item.nodeid.startswith(path)]
            dead = [word for word in kept if not any(word in name for name in names)]
            if names and dead:  # none: its tests need a package that is not there
                raise pytest.UsageError(f"LEFT_OUT in conftest.py: no test of {path} has {dead} in its name")
    for item in items:
        cell = getattr(item, "cell", None)  # nbval's items
        if cell is not None and "gpu" in cell.metadata.get("tags", ()):
            item.add_marker(pytest.mark.gpu)
        if cell is not None and "%load_ext nanoeuler_lib.cuda" in str(item.parent.nb):
            item.add_marker(pytest.mark.compiler)
        if item.get_closest_marker("compiler") and compiler_missing():
            item.add_marker(pytest.mark.skip(reason=compiler_missing()))
        if item.get_closest_marker("gpu") and gpu_missing():
            item.add_marker(pytest.mark.skip(reason=gpu_missing()))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: make test-all ARGS=--slow"))


LEFT = pytest.StashKey[dict]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """With pytest-xdist the processes collect: each says what it has left out, all the same."""
    if left := getattr(node, "workeroutput", {}).get("left"):  # one that crashed says nothing
        node.config.stash[LEFT] = left


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, {}):
        terminalreporter.section("only make test-all runs")
        for path, count in left.items():
            terminalreporter.line(f"{count:5} tests of {path}: {LEFT_OUT[path][0]}")
