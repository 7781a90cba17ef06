"""Launch a compiled kernel on the CPU, through ctypes copies of the structs in runtime.h."""

import ctypes as C
import functools
import itertools
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.array_utils import byte_bounds

from cudacheck.findings import explain
from cudacheck.lines import line_table
from cudacheck.source import Text

OUTPUT_BYTES = 1 << 16
RED_ZONE = 1 << 16  # unused bytes around each array, where any access is out of bounds
_LINE = 0x80000000  # the bit that marks a site as a line number
ACCESS = np.dtype(
    [("offset", "i8"), ("site", "u4"), ("array", "i4"), ("thread", "i4"), ("bytes", "i4"), ("kind", "i4")], align=True
)  # fmt: skip


class _Finding(C.Structure):
    _fields_ = [
        ("kind", C.c_char * 32), ("message", C.c_char * 480), ("block", C.c_uint * 3), ("thread", C.c_uint * 3),
        ("has_thread", C.c_int), ("site", C.c_uint), ("other_site", C.c_uint), ("other_thread", C.c_int),
        ("array", C.c_int), ("name", C.c_char * 64), ("space", C.c_char * 16), ("element", C.c_int),
        ("columns", C.c_int), ("offset", C.c_int64), ("bytes", C.c_uint64), ("update", C.c_int), ("atomics", C.c_int),
        ("trail", C.c_uint * 8),
    ]  # fmt: skip


class _Argument(C.Structure):
    _fields_ = [
        ("start", C.c_uint64), ("bytes", C.c_uint64), ("name", C.c_char_p), ("element", C.c_int64),
        ("read_only", C.c_int),
    ]  # fmt: skip


class _Config(C.Structure):
    _fields_ = [
        ("grid", C.c_uint * 3), ("block", C.c_uint * 3), ("shared_bytes", C.c_uint),
        ("shared_limit", C.c_uint), ("workers", C.c_int),
        ("arguments", C.c_int), ("traced_block", C.c_int), ("argument", C.POINTER(_Argument)),
        ("trace", C.c_void_p), ("trace_capacity", C.c_uint64), ("trace_length", C.c_uint64),
        ("shared_name", C.c_char * 32 * 16),
        ("output", C.c_void_p), ("output_capacity", C.c_int), ("output_length", C.c_int), ("output_cut", C.c_int),
        ("seconds", C.c_double), ("finding", _Finding),
    ]  # fmt: skip


class Library:
    """A compiled text, with its kernels by number and a map from code addresses to lines."""

    def __init__(self, path: Path, text: Text, checked: bool):
        self.path, self.text, self.checked = path, text, checked
        self.functions = C.CDLL(str(path))

    @functools.cached_property
    def _table(self):
        return line_table(self.path, self.text.name)

    def line_of(self, site: int) -> int:
        """Return the line of the text that a site (see runtime.h) belongs to; 0 if there is none."""
        if site & _LINE:
            return site & ~_LINE
        return self._table(site) if site else 0

    @functools.cached_property
    def variables(self) -> list[str]:
        """Return the names of the text's __device__ and __constant__ variables, in the order of their numbers."""
        name = self.functions.nanoeuler_variable_name
        name.restype = C.c_char_p
        return [one.decode() for one in iter(map(name, itertools.count()).__next__, None)]


# A checked launch uses the library's globals and the process's signal handlers.
_one_at_a_time = threading.Lock()


class CpuLaunch:
    """A prepared launch: call it to run the kernel, as often as you like, but in one thread at a time.

    Raises KernelError if the checker finds a bug.
    """

    def __init__(
        self, library: Library, number: int, signature, grid, block, values, shared_mem: int, shared_limit: int,
        seconds: float,
    ):  # fmt: skip
        self.library, self.signature, self.name = library, signature, signature.name
        self.grid, self.block, self.shared_mem = grid, block, shared_mem
        self.run = getattr(library.functions, f"run_kernel_{number}")
        self.arrays = [(p.name, v) for p, v in zip(signature.parameters, values) if p.pointer]
        self.written = [not p.const for p in signature.parameters if p.pointer]
        boxes = [
            C.c_void_p(v.ctypes.data) if p.pointer else (C.c_char * v.nbytes).from_buffer_copy(v.tobytes())
            for p, v in zip(signature.parameters, values)
        ]
        self.pointers = [box for p, box in zip(signature.parameters, boxes) if p.pointer]
        self.arguments = (C.c_void_p * len(boxes))(*map(C.addressof, boxes))
        self.boxes = boxes  # keeps the arguments' memory alive
        self.output = C.create_string_buffer(OUTPUT_BYTES)
        self.config = _Config((C.c_uint * 3)(*grid), (C.c_uint * 3)(*block), shared_mem, shared_limit)
        self.config.workers = 1 if library.checked else cores()
        self.config.traced_block = -1
        self.config.output, self.config.output_capacity = C.addressof(self.output), OUTPUT_BYTES
        self.config.seconds = seconds
        self.reference = C.byref(self.config)

    def __call__(self) -> None:
        if self.library.checked:
            with _one_at_a_time, _Guarded(self):
                something_to_tell = self.run(self.arguments, self.reference)
        else:
            something_to_tell = self.run(self.arguments, self.reference)
        if something_to_tell:
            self._tell()

    def _tell(self) -> None:
        """Print the kernel's output, and raise a KernelError if the checker found a bug."""
        config = self.config
        if config.output_length:
            print(self.output.raw[: config.output_length].decode(errors="replace"), end="")
        if config.output_cut:
            print(f"\n[printf: a launch prints at most {OUTPUT_BYTES // 1024} KB of text; the rest is cut off]")
        if config.finding.kind == b"interrupted":
            raise KeyboardInterrupt
        if config.finding.kind:
            library = self.library
            raise explain(config.finding, self.name, library.text, library.line_of, self.arrays, self.block)

    def trace(self, block_index: int, capacity: int) -> tuple[np.ndarray, list[str]]:
        """Run the kernel; return all accesses of one block in order, with dtype ACCESS, and the shared arrays' names.

        capacity: the largest number of records. Offsets in a view count from a multiple of 256 bytes in its base array.
        """
        record = np.zeros(capacity, ACCESS)
        self.config.traced_block, self.config.trace_capacity = block_index, capacity
        self.config.trace = record.ctypes.data
        try:
            self()
        finally:
            self.config.traced_block, self.config.trace_capacity = -1, 0
        names = [name.value.decode() for name in self.config.shared_name]
        trace = record[: self.config.trace_length]
        for number, (_, array) in enumerate(self.arrays):
            trace["offset"][trace["array"] == number] += _offset_in_owner(array)
        return trace, names


@dataclass
class _Region:
    """The memory of one array, or of several overlapping arrays, and a copy of this memory between red zones."""

    start: int
    end: int
    offset: int  # from the start of the array that owns the memory, modulo 256
    written: bool
    buffer: np.ndarray | None = None
    address: int = 0  # where the copy starts

    def copy_in(self) -> None:
        self.buffer = np.empty(self.end - self.start + 2 * RED_ZONE + 512, np.uint8)
        self.address = -(-self.buffer.ctypes.data // 256) * 256 + RED_ZONE + self.offset
        C.memmove(self.address, self.start, self.end - self.start)

    def copy_out(self) -> None:
        if self.written:
            C.memmove(self.start, self.address, self.end - self.start)


class _Guarded:
    """Copy a checked launch's arrays between red zones, so that the end of one array is not the start of another."""

    def __init__(self, launch: CpuLaunch):
        self.launch = launch
        self.bounds = [byte_bounds(a) if a.size else (a.ctypes.data,) * 2 for _, a in launch.arrays]
        self.regions: list[_Region] = []
        for i in sorted(range(len(self.bounds)), key=self.bounds.__getitem__):
            start, end = self.bounds[i]
            last = self.regions[-1] if self.regions else None
            if last and start < last.end:
                last.end, last.written = max(last.end, end), last.written or launch.written[i]
            else:
                offset = _offset_in_owner(launch.arrays[i][1])
                self.regions.append(_Region(start, end, offset, launch.written[i]))

    def __enter__(self):
        launch = self.launch
        for region in self.regions:
            region.copy_in()
        self.arguments = (_Argument * max(1, len(self.bounds)))()
        for i, ((name, array), (start, end)) in enumerate(zip(launch.arrays, self.bounds)):
            region = next(r for r in self.regions if r.start <= start and end <= r.end)
            address = region.address + start - region.start
            launch.pointers[i].value = address
            read_only = not launch.written[i] and not self._overlaps_written(i)
            self.arguments[i] = _Argument(address, end - start, name.encode(), array.itemsize, read_only)
        launch.config.argument, launch.config.arguments = self.arguments, len(self.bounds)

    def _overlaps_written(self, i: int) -> bool:
        """Return whether array i overlaps an argument that is not const, which the kernel may write."""
        start, end = self.bounds[i]
        written = (bounds for bounds, written in zip(self.bounds, self.launch.written) if written)
        return any(low < end and start < high for low, high in written)

    def __exit__(self, *_):
        for region in self.regions:
            region.copy_out()


def _offset_in_owner(array: np.ndarray) -> int:
    """Return where a view starts in the array that owns its memory, modulo 256, the alignment of arrays on a GPU."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return (array.ctypes.data - owner.ctypes.data) % 256


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
