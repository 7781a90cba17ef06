"""What a run skips, and why: tests marked `gpu`, `compiler` or `slow`, cells tagged `gpu`.

`make test` leaves the tests marked `full` to `make test-all`, and counts them at its end. Of a test marked
`full(but=["06"])` it runs the cases with such a word in their name. What is marked `slow` takes minutes:
`make test-all ARGS=--slow`, before a release.
"""

import functools
import importlib.util
import os
import secrets
import signal

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
    parser.addoption("--all", action="store_true", help="run what `make test` leaves to `make test-all` as well")
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
    return "" if cupy.cuda.is_available() else "CuPy finds no CUDA device"  # CuPy imports without a driver, too


@functools.cache
def compiler_missing() -> str:
    """Why no kernel can run on the CPU; empty when a C++ compiler is there."""
    from cudacheck.compiler import find_compiler
    from cudacheck.errors import CudaCheckError

    try:
        find_compiler()
    except CudaCheckError as error:
        return str(error)
    return ""


def left_out(item: pytest.Item) -> bool:
    """Whether `make test` leaves a test to `make test-all`."""
    mark = item.get_closest_marker("full")
    return mark is not None and not any(word in item.name for word in mark.kwargs.get("but", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--all") or config.getoption("--slow")):
        files = {str(arg).partition("::")[0] for arg in config.invocation_params.args}  # run, if asked for by name
        left = [item for item in items if left_out(item) and item.nodeid.partition("::")[0] not in files]
        items[:] = [item for item in items if item not in set(left)]
        config.stash[LEFT] = len(left)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left"] = len(left)
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


LEFT = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """With pytest-xdist the processes collect: each says how many it has left out, all the same."""
    if left := getattr(node, "workeroutput", {}).get("left"):  # one that crashed says nothing
        node.config.stash[LEFT] = left


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, 0):
        terminalreporter.line(f"{left} tests marked full were left out: make test-all runs them")
