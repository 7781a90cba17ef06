"""Test launches that may begin before the launch ahead has ended: the driver's arguments, without a driver."""

import ctypes
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler_lib import cuda
from nanoeuler_lib.cuda import overlap
from nanoeuler_lib.errors import NanoEulerError

GRID, BLOCK, SHARED, STREAM, FUNCTION, ADDRESS = (3, 2, 1), (64, 4, 1), 1024, 77, 123, 4096


class Driver:
    """A driver that records a launch as the real driver would read it from memory."""

    def __init__(self):
        self.status, self.seen = 0, []

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        found, attribute = config._obj, config._obj.attributes[0]
        kinds = ctypes.c_uint64, ctypes.c_int32, ctypes.c_float
        numbers = [kind.from_address(at).value for kind, at in zip(kinds, arguments, strict=True)]
        launch = list(found.grid), list(found.block), found.shared_mem, found.stream, function.value
        self.seen.append((*launch, (found.count, attribute.id, attribute.value), numbers, extra))
        return self.status


def test_the_driver_gets_grid_block_arguments_and_the_attribute(monkeypatch):
    """Check also that a refusal by the driver raises an error."""
    driver, stream = Driver(), SimpleNamespace(ptr=STREAM)
    fake = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(overlap, "_driver", lambda: driver)
    values = [SimpleNamespace(data=SimpleNamespace(ptr=ADDRESS)), np.int32(-5), np.float32(0.5)]
    kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=FUNCTION))
    made = overlap.OverlappingLaunch("halves", kernel, GRID, BLOCK, values, SHARED)
    made()
    made()
    attribute = 1, overlap.PROGRAMMATIC_STREAM_SERIALIZATION, 1
    seen = [3, 2, 1], [64, 4, 1], SHARED, STREAM, FUNCTION, attribute, [ADDRESS, -5, 0.5], None
    assert driver.seen == [seen, seen]
    assert cuda.describe(made) == "halves, grid 3 x 2, block 64 x 4, 1024 bytes"
    driver.status = 701
    with pytest.raises(NanoEulerError, match="halves: the driver refused the launch with error 701"):
        made()


def test_the_structures_are_as_long_as_those_of_cuda_h():
    assert (ctypes.sizeof(overlap._Attribute), ctypes.sizeof(overlap._Config)) == (72, 56)
    assert (overlap._Config.stream.offset, overlap._Attribute.value.offset) == (32, 8)


KERNELS = re.sub("//.*", "", (cuda.KERNELS / "decode.cu").read_text("utf-8")).split("__global__")[1:]


@pytest.mark.parametrize("text", KERNELS, ids=lambda text: re.search(r"(\w+)\(const", text)[1])
def test_decoding_touches_nothing_that_a_launch_writes_before_it_has_waited(text):
    """Check that before the wait, a kernel reads only weights, tables, the position and the cache of earlier tokens."""
    parameters, body = text.split(") {", 1)
    before = body[: body.index("grid_dependency_wait();")]
    assert "launch_dependents();" in before
    for name in ("x", "out", "qkv", "hidden"):
        assert not re.search(rf"(?<!\.)\b{name}\b", before), f"{name} must not be used before the wait"
    assert re.search(r"\b(x|qkv)\b", parameters)  # the kernels of this file must use these names


def test_sums_of_products_that_instances_share_are_written_by_fmaf():
    """Check that templates use fmaf: of a * b + c * d a compiler rounds one product, and which one may differ between
    instances. Then a round of two tokens and two rounds of one differ in a bit. No processor here shows this."""
    text = re.sub("//.*", "", (cuda.KERNELS / "decode.cu").read_text("utf-8"))
    templates = text[: text.index("float turned(")]
    assert "struct Sums" in templates and "load_rows" in templates
    pattern = r"[\w.\])]+ \* [\w.\[\](]+ [+-] [\w.\])]+ \* "
    assert re.search(pattern, "return a.x * b.x + a.y * b.y;")
    assert not re.findall(pattern, templates)
