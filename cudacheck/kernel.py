"""Compile CUDA C++ for the CPU and launch it: `compile(text)[name](grid, block, args, shared_mem=...)`.

Before a launch, the number, types and layout of the arguments are checked against the kernel's signature in the text. A
GPU launcher such as `nanoeuler_lib.cuda` can derive its classes from `Module` and `Kernel` to make the same checks.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cudacheck.compiler import build
from cudacheck.cpu import CpuLaunch, Library
from cudacheck.errors import CudaCheckError
from cudacheck.profile import Profile, profile
from cudacheck.source import Parameter, Signature, Text, prepare, signatures
from cudacheck.source.layout import numpy_dtype

Launch = Callable[[], None]
# most shared memory of a block on an H100 or B200, in bytes; 163 KB on an A100, 99 KB on other GPUs
SHARED_LIMIT = 227 * 1024
SECONDS = 10.0  # time limit of a checked launch


def compile(
    text: str,
    include: Sequence[Path] = (),
    name: str = "kernel.cu",
    checked: bool = True,
    defines: dict[str, Any] | None = None,
    instantiate: Sequence[str] = (),
) -> "Module":
    """Compile a CUDA C++ text for the CPU.

    include: folders whose .cuh files the text may include; name: the text's name in messages; checked: check every
    access (about ten times slower, and 16 bytes of memory per byte accessed); defines: macros, {"TILE": 32};
    instantiate: the templates to compile, ("matmul<16>",). Returns a Module, whose items are the kernels. Raises
    KernelError with the compiler's first error, and CudaCheckError if the text has no kernel.
    """
    return Module(text, include, name, checked, defines, instantiate)


class Module:
    """A compiled text: `module["name"]` is a kernel, `list(module)` gives the names. For arguments, see `compile`."""

    where = "cpu"
    arrays: Any = np  # the array module, NumPy or CuPy, whose arrays the kernels take

    def __init__(self, text, include=(), name="kernel.cu", checked=True, defines=None, instantiate=()):
        defines = {} if defines is None else defines
        _check_text(text)
        _check_defines(defines)
        if isinstance(instantiate, str) or not all(isinstance(one, str) for one in instantiate):
            raise CudaCheckError(f"instantiate must be a tuple of names such as ('k<4>',), got {instantiate!r}")
        self.source, self.include, self.name, self.checked = text, include, name, checked
        self.defines, self.instantiate = defines, tuple(instantiate)
        self.signatures = {s.name: s for s in signatures(text, self.instantiate, defines, self.where)}
        if taken := self.signatures.keys() & defines.keys():
            raise CudaCheckError(f"defines: {min(taken)} is the name of a kernel: rename the macro")
        macros = [f"{macro}={str(v).lower() if isinstance(v, bool) else v}" for macro, v in defines.items()]
        self._build(prepare(name, text, include, self.where), macros)

    def _build(self, text: Text, macros: list[str]) -> None:
        exports = "\n".join(f"NANOEULER_EXPORT_KERNEL({i}, {name})" for i, name in enumerate(self.signatures))
        self.library = Library(build(text, exports, self.checked, macros), text, self.checked)

    def on_cpu(self, text: str) -> "Module":
        """Compile another text for the CPU with the checker, and with this module's options."""
        return type(self)(text, self.include, self.name, True, self.defines, self.instantiate)

    def __getitem__(self, name: str) -> "Kernel":
        if name not in self.signatures:
            raise CudaCheckError(f"a kernel of {self.name} must be one of {', '.join(self.signatures)}, got {name!r}")
        return Kernel(self, self.signatures[name])

    def __iter__(self):
        return iter(self.signatures)


class Kernel:
    """One kernel of a module: call the kernel to launch it once, or use `bind` to launch it many times."""

    launch = CpuLaunch

    def __init__(self, module: Module, signature: Signature):
        self.module, self.signature, self.name = module, signature, signature.name

    def __call__(
        self, grid=None, block=None, args=None, shared_mem=0, *more, seconds=SECONDS, shared_limit=SHARED_LIMIT
    ) -> None:
        """Launch the kernel once; on the CPU, wait until it has finished. `bind` explains arguments and errors."""
        if more or not isinstance(args, tuple | list):
            raise CudaCheckError(
                f"{self.name}(grid, block, args): args is one tuple of the kernel's arguments, got {_kind(args)}"
            )
        self.bind(grid, block, args, shared_mem, seconds=seconds, shared_limit=shared_limit)()

    def bind(
        self,
        grid,
        block,
        args: Sequence,
        shared_mem: int = 0,
        *,
        seconds: float = SECONDS,
        shared_limit: int = SHARED_LIMIT,
    ) -> Launch:
        """Check the arguments and return a function without arguments that launches the kernel.

        grid, block: one to three integers; args: a tuple with a contiguous array for each pointer, a number for each
        number, a tuple or list for a vector type such as float4, and for a struct a dict of its members or a structured
        NumPy scalar with these fields; shared_mem: bytes of `extern __shared__`; seconds: time limit of a checked
        launch; shared_limit: the largest number of bytes of shared memory per block on the GPU, for __shared__ arrays
        and shared_mem together: 48, 64, 99, 163 or 227 times 1024. Raises CudaCheckError for arguments that the kernel
        cannot take. The launch raises KernelError on a bug.
        """
        grid, block, values = self.check(grid, block, args, shared_mem, seconds, shared_limit)
        number = list(self.module.signatures).index(self.name)
        return self.launch(
            self.module.library, number, self.signature, grid, block, values, shared_mem, shared_limit, seconds
        )

    def check(self, grid, block, args, shared_mem, seconds, shared_limit) -> tuple[tuple, tuple, list]:
        """Check a launch (see `bind`); return grid and block as three numbers each, and the converted arguments."""
        grid, block = _shape("grid", grid), _shape("block", block)
        self._check_shape(grid, block, shared_mem, shared_limit)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not seconds > 0:
            raise CudaCheckError(f"{self.name}: seconds must be a number greater than 0, got {_kind(seconds)}")
        parameters = self.signature.parameters
        if len(args) != len(parameters):
            names = ", ".join(p.name for p in parameters)
            raise CudaCheckError(f"{self.name} takes {len(parameters)} arguments ({names}), got {len(args)}")
        values = [
            _array(self.name, k, p, a, self.module.arrays) if p.pointer else _value(self.name, k, p, a)
            for k, (p, a) in enumerate(zip(parameters, args))
        ]
        return grid, block, values

    def _check_shape(self, grid, block, shared_mem: int, shared_limit: int) -> None:
        threads = block[0] * block[1] * block[2]
        if threads > 1024 or block[2] > 64:
            raise CudaCheckError(
                f"{self.name}: a block must have at most 1024 threads, 64 along z, got {block}: {threads}"
            )
        if threads > self.signature.max_threads:
            raise CudaCheckError(
                f"{self.name}: a block must have at most {self.signature.max_threads} threads, as in "
                f"__launch_bounds__, got {threads}"
            )
        if grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
            raise CudaCheckError(
                f"{self.name}: a grid must have below 2^31 blocks along x, at most 65535 along y and z, got {grid}"
            )
        for name, value in (("shared_mem", shared_mem), ("shared_limit", shared_limit)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise CudaCheckError(f"{self.name}: {name} must be an integer number of bytes, got {_kind(value)}")
        if not 0 <= shared_limit <= SHARED_LIMIT:
            raise CudaCheckError(f"{self.name}: shared_limit must be 0 to {SHARED_LIMIT} bytes, got {shared_limit}")
        if not 0 <= shared_mem <= shared_limit:
            raise CudaCheckError(f"{self.name}: shared_mem must be 0 to {shared_limit} bytes, got {shared_mem}")

    def on_cpu(self, old: str = "", new: str = "") -> "Kernel":
        """Return the kernel compiled for the CPU with the checker, with `old` replaced by `new` in its text.

        Raises CudaCheckError if the text does not contain `old`.
        """
        module = self.module
        if module.where == "cpu" and module.checked and old == new:
            return self
        if old not in module.source:
            raise CudaCheckError(f"{module.name} must contain {old!r}, but does not")
        return module.on_cpu(module.source.replace(old, new) if old else module.source)[self.name]

    def profile(self, grid, block, args: Sequence, shared_mem: int = 0, *, block_index: int = 0) -> Profile:
        """Launch the kernel on the CPU with the checker, and count one block's memory accesses line by line.

        args: the arguments for `bind`, with NumPy arrays; block_index: the number of the block.
        """
        return profile(self, grid, block, args, shared_mem, block_index)


def _check_text(text) -> None:
    if not isinstance(text, str):
        raise CudaCheckError(f"a kernel's text must be a str, or the Path of a .cu file, got {_kind(text)}")
    if half := re.search("[\ud800-\udfff]", text):
        line = text.count("\n", 0, half.start()) + 1
        raise CudaCheckError(
            f"line {line}: the text must not contain surrogates, got U+{ord(half[0]):X}: read the file as UTF-8"
        )


def _check_defines(defines) -> None:
    """Raise CudaCheckError unless `defines` maps names to values of macros."""
    if not isinstance(defines, dict):
        raise CudaCheckError(f"defines must be a dict of macros such as {{'TILE': 32}}, got {_kind(defines)}")
    for name, value in defines.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CudaCheckError(f"defines: a macro's name must be letters, digits and _, such as TILE, got {name!r}")
        if not isinstance(value, str | int | float | np.number) or "\n" in str(value):
            raise CudaCheckError(f"defines: {name} must be a number or a str of one line, got {_kind(value)}")


def _shape(what: str, value) -> tuple[int, int, int]:
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,)
    whole = all(isinstance(v, int | np.integer) and v >= 1 for v in values)
    if not 1 <= len(values) <= 3 or not whole:
        got = value if isinstance(value, tuple | list) else _kind(value)
        raise CudaCheckError(f"{what} must be one to three integers of at least 1, such as 4 or (4, 2), got {got}")
    return (*map(int, values), *(1,) * (3 - len(values)))


def _array(kernel: str, k: int, p: Parameter, value, xp):
    where = f"{kernel}: argument {k} `{p.name}` is {_article(p.type)} {p.type}*"
    dtype = numpy_dtype(p.dtype)
    if not isinstance(value, xp.ndarray):
        other = f": pass {xp.__name__}.asarray(..., {xp.__name__}.{dtype})" if isinstance(value, list | tuple) else ""
        other = f": pass {p.name}.get()" if xp is np and hasattr(value, "get") else other
        raise CudaCheckError(f"{where}, which takes a {xp.__name__} array, got {_kind(value)}{other}")
    bits16 = p.dtype == "bfloat16" and value.dtype == np.uint16  # its bits, because NumPy lacks the type
    if value.dtype != dtype and not bits16:
        raise CudaCheckError(
            f'{where}, which takes an array of {dtype}, got {value.dtype}: pass {p.name}.astype("{dtype}")'
        )
    if not value.flags.c_contiguous:
        raise CudaCheckError(
            f"{where}, which needs a contiguous array, got a strided view: pass {xp.__name__}.ascontiguousarray(...)"
        )
    if value.size % p.width:
        raise CudaCheckError(f"{where}: the array's size must be a multiple of {p.width}, got {value.size}")
    if xp is np and not p.const and not value.flags.writeable:
        raise CudaCheckError(f"{where} without const, so the array must be writeable, got a read-only one")
    return value


def _value(kernel: str, k: int, p: Parameter, value) -> np.generic | np.ndarray:
    """Convert an argument that is passed by value to a number, or a vector or struct to an array of one element."""
    where = f"{kernel}: argument {k} `{p.name}` is {_article(p.type)} {p.type}"
    if p.width > 1:
        numbers = _numbers(where, numpy_dtype(p.dtype), (p.width,), value)
        return numbers.view(f"V{numbers.nbytes}")
    if not p.fields:
        return _number(where, numpy_dtype(p.dtype), value)
    names = [field.name for field in p.fields]
    given = {name: value[()][name] for name in value.dtype.names} if _is_structured(value) else value
    if not isinstance(given, dict) or set(given) != set(names):
        got = ", ".join(map(str, given)) if isinstance(given, dict) else _kind(value)
        raise CudaCheckError(f"{where}: pass a dict or a structured scalar with {', '.join(names)}, got {got}")
    packed = np.zeros(p.bytes, np.uint8)
    for field in p.fields:
        dtype, there = numpy_dtype(field.dtype), f"{where}, whose `{field.name}` is {_article(field.type)} {field.type}"
        if field.shape:
            number = _numbers(there, dtype, field.shape, given[field.name])
        else:
            number = np.asarray(_number(there, dtype, given[field.name]))
        packed[field.offset : field.offset + number.nbytes] = np.frombuffer(number.tobytes(), np.uint8)
    return packed.view(f"V{p.bytes}")


def _is_structured(value) -> bool:
    return isinstance(value, np.void | np.ndarray) and value.dtype.names is not None and value.ndim == 0


def _numbers(where: str, dtype: np.dtype, shape: tuple[int, ...], value) -> np.ndarray:
    """Convert nested tuples, lists or an array to an array of a given type, number by number with `_number`."""
    array = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else np.empty(0)
    if array.shape != shape:
        size = " x ".join(map(str, shape))
        got = f"{type(value).__name__} of shape {array.shape}" if array.shape != (0,) else _kind(value)
        raise CudaCheckError(f"{where}, which must be {size} numbers, got {got}")
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    return np.array([_number(where, dtype, number) for number in array.ravel().tolist()], dtype).reshape(shape)


def _number(where: str, dtype: np.dtype, value) -> np.generic:
    if isinstance(value, np.generic) and value.dtype == dtype:
        return value
    if isinstance(value, bool | np.bool_) and dtype.kind != "b":
        raise CudaCheckError(f"{where}, got {value!r}")
    if type(value) is int and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise CudaCheckError(f"{where}, which holds {limits.min} to {limits.max}, got {value}")
        return dtype.type(value)
    if (type(value) in (int, float) and dtype.kind not in "iub") or type(value) is bool:
        return dtype.type(value)
    advice = ""
    if isinstance(value, float | np.number):
        python = "int" if dtype.kind in "iu" else "float"
        advice = f": pass {python}({value.item() if isinstance(value, np.number) else value})"
    raise CudaCheckError(f"{where}, got {_kind(value)}{advice}")


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _kind(value) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name} {value.item() if isinstance(value, np.generic) else value!r}" if np.isscalar(value) else name
