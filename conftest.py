"""Settings of pytest: which tests are skipped (marks `gpu`, `compiler` and `slow`, cells tagged `gpu`), and nbval.

`make test` leaves out the tests marked `full`, which `make test-all` runs, and prints their number at its end. For a
test marked `full(but=["06"])`, it runs the cases with such a word in their name. Tests marked `slow` take minutes:
`make test-all ARGS=--slow`, before a release.
"""

import functools
import importlib.util
import os
import secrets
import signal

import pytest

pytest_plugins = ["nanoeuler_book.outputs"]

# nohup makes processes ignore SIGHUP, including those that tests start; the tests of a closed terminal need the signal.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Processes that tests start must buffer their output like a user's, because writing the buffer at the end can fail.
os.environ.pop("PYTHONUNBUFFERED", None)

# Use the same examples in every run, so that no run fails by chance; `--hypothesis-profile=explore` uses new ones each
# time. Making examples can be slow on a busy machine, above all the first ones, which need tables of characters.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("explore", **patient)
    settings.register_profile("any machine", **patient, derandomize=True)
    settings.load_profile("any machine")

if importlib.util.find_spec("nbval"):
    from nbval import kernel

    class ManagerOfSockets(kernel.KernelManager):
        """A kernel manager that uses socket files instead of TCP ports.

        A port is chosen before the kernel starts, and may be in use by then. Of 200 kernels on two cores, forty of them
        starting at a time, five died for this reason and one never answered. With socket files, none of 200 did.
        """

        def __init__(self, **kwargs):
            name = f"/tmp/nbval-{secrets.token_hex(8)}"  # short: a socket's path has about a hundred bytes
            super().__init__(transport="ipc", ip=name, **kwargs)

        def start_kernel(self, **kwargs):
            """Start a kernel with its history in memory, as nbclient does.

            Kernels with a common history file wait for its lock, and after a while print a warning on stderr, into the
            output of any cell.
            """
            super().start_kernel(extra_arguments=["--HistoryManager.hist_file=:memory:"], **kwargs)

    kernel.KernelManager = ManagerOfSockets


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests that `make test` leaves to `make test-all`")
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_report_header() -> list[str]:
    data = os.environ.get("NANOEULER_DATA")
    torch = importlib.util.find_spec("torch")
    return [
        f"test data: {data or 'NANOEULER_DATA is not set; tests that need it are skipped'}",
        f"oracles: {'PyTorch is installed' if torch else 'no PyTorch; tests that need it are skipped (make oracle)'}",
        f"GPU: {gpu_missing() or 'usable'}",
        f"kernels on the CPU: {compiler_missing() or 'a C++ compiler was found'}",
    ]


@functools.cache
def gpu_missing() -> str:
    """Return why no GPU is usable, "" if one is."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    return "" if cupy.cuda.is_available() else "CuPy finds no CUDA device"  # CuPy can be imported without a driver


@functools.cache
def compiler_missing() -> str:
    """Return why kernels cannot run on the CPU, "" if a C++ compiler was found."""
    from cudacheck.compiler import find_compiler
    from cudacheck.errors import CudaCheckError

    try:
        find_compiler()
    except CudaCheckError as error:
        return str(error)
    return ""


def left_out(item: pytest.Item) -> bool:
    """Return whether `make test` leaves a test to `make test-all`."""
    mark = item.get_closest_marker("full")
    return mark is not None and not any(word in item.name for word in mark.kwargs.get("but", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.getoption("--all") or config.getoption("--slow")):
        files = {
            str(arg).partition("::")[0] for arg in config.invocation_params.args
        }  # files that were given by name run completely
        left = [item for item in items if left_out(item) and item.nodeid.partition("::")[0] not in files]
        items[:] = [item for item in items if item not in set(left)]
        config.stash[LEFT] = len(left)
        if hasattr(config, "workeroutput"):
            config.workeroutput["left"] = len(left)
    for item in items:
        cell = getattr(item, "cell", None)  # the cell of an item of nbval
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
    """Store how many tests were left out; with pytest-xdist each worker collects all tests and reports this number."""
    if left := getattr(node, "workeroutput", {}).get("left"):  # a worker that crashed reports nothing
        node.config.stash[LEFT] = left


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if left := config.stash.get(LEFT, 0):
        terminalreporter.line(f"{left} tests marked `full` were left out: make test-all runs them")
