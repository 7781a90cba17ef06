"""What a run skips, and why: tests marked `gpu` or `slow`, notebook cells tagged `gpu`."""

import functools
import importlib.util
import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_report_header() -> list[str]:
    data = os.environ.get("NANOEULER_DATA")
    torch = importlib.util.find_spec("torch")
    return [
        f"test data: {data or 'NANOEULER_DATA is not set; what needs it is skipped'}",
        f"oracles: {'PyTorch is installed' if torch else 'no PyTorch; what needs it is skipped (make oracle)'}",
        f"GPU: {gpu_missing() or 'usable'}",
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        cell = getattr(item, "cell", None)  # nbval's items
        if cell is not None and "gpu" in cell.metadata.get("tags", ()):
            item.add_marker(pytest.mark.gpu)
        if item.get_closest_marker("gpu") and gpu_missing():
            item.add_marker(pytest.mark.skip(reason=gpu_missing()))
        if item.get_closest_marker("slow") and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: make test ARGS=--slow"))
