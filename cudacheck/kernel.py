"""Compile CUDA C++ for the CPU and launch it: `compile(text)[name](grid, block, args, shared_mem=...)`.

Count, type and layout of the arguments are checked against the kernel's signature, as the text declares it, before a
launch. A launcher for GPUs can derive from `Module` and `Kernel` to make the same checks.
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
# bytes of shared memory that a block may have on an H100 or B200; 163 KB on an A100, 99 KB on other GPUs
SHARED_LIMIT = 227 * 1024
SECONDS = 10.0  # that a checked launch may take


def compile(
    text: str,
    include: Sequence[Path] = (),
    name: str = "kernel.cu",
    checked: bool = True,
    defines: dict[str, Any] | None = None,
    instantiate: Sequence[str] = (),
) -> "Module":
    """Compile a CUDA C++ text for the CPU.

    include: folders whose .cuh files the text may include; name: of the text, in messages; checked: look at every
    access (about ten times slower, and 16 bytes of notes for each byte touched); defines: macros, {"TILE": 32};
    instantiate: the templates to compile, ("matmul<16>",). Raises KernelError with the compiler's first error,
    CudaCheckError for a text without a kernel.
    """
    return Module(text, include, name, checked, defines, instantiate)


class Module:
    """A compiled text: `module["name"]` is a kernel, `list(module)` their names. Arguments: those of `compile`."""

    where = "cpu"
    arrays: Any = np  # the module whose arrays the kernels take

    def __init__(self, text, include=(), name="kernel.cu", checked=True, defines=None, instantiate=()):
        defines = {} if defines is None else defines
        _check_text(text)
        _check_defines(defines)
        if isinstance(instantiate, str) or not all(isinstance(one, str) for one in instantiate):
            raise CudaCheckError(f"instantiate is a tuple of names, as ('k<4>',), got {instantiate!r}")
        self.source, self.include, self.name, self.checked = text, include, name, checked
        self.defines, self.instantiate = defines, tuple(instantiate)
        self.signatures = {s.name: s for s in signatures(text, self.instantiate, defines, self.where)}
        if taken := self.signatures.keys() & defines.keys():
            raise CudaCheckError(f"defines: {min(taken)} is the name of a kernel: give the macro another")
        macros = [f"{macro}={str(v).lower() if isinstance(v, bool) else v}" for macro, v in defines.items()]
        self._build(prepare(name, text, include, self.where), macros)

    def _build(self, text: Text, macros: list[str]) -> None:
        exports = "\n".join(f"NANOEULER_EXPORT_KERNEL({i}, {name})" for i, name in enumerate(self.signatures))
        self.library = Library(build(text, exports, self.checked, macros), text, self.checked)

    def on_cpu(self, text: str) -> "Module":
        """Another text with this one's options, compiled for the CPU and checked."""
        return type(self)(text, self.include, self.name, True, self.defines, self.instantiate)

    def __getitem__(self, name: str) -> "Kernel":
        if name not in self.signatures:
            raise CudaCheckError(f"{self.name} has no kernel {name!r}, only {', '.join(self.signatures)}")
        return Kernel(self, self.signatures[name])

    def __iter__(self):
        return iter(self.signatures)


class Kernel:
    """One kernel: call it to launch it, `bind` it to launch it often."""

    launch = CpuLaunch

    def __init__(self, module: Module, signature: Signature):
        self.module, self.signature, self.name = module, signature, signature.name

    def __call__(
        self, grid=None, block=None, args=None, shared_mem=0, *more, seconds=SECONDS, shared_limit=SHARED_LIMIT
    ) -> None:
        """Launch once, and on the CPU wait for the end; see `bind`."""
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
        """Check the arguments and return a function without any that launches.

        grid, block: one to three numbers; args: an array for each pointer (contiguous, of the pointer's type), a number
        for each number, a tuple or list for a float4 and its kin, for a struct a dict of its members or a structured
        scalar of NumPy with fields of these names; shared_mem: bytes of `extern __shared__`; seconds: what a checked
        launch may take; shared_limit: the bytes that a block may have on the GPU that is meant, __shared__ arrays and
        shared_mem together: 48, 64, 99, 163 or 227 times 1024. Raises CudaCheckError for what the kernel cannot take.
        The launch raises KernelError on a bug.
        """
        grid, block, values = self.check(grid, block, args, shared_mem, seconds, shared_limit)
        number = list(self.module.signatures).index(self.name)
        return self.launch(
            self.module.library, number, self.signature, grid, block, values, shared_mem, shared_limit, seconds
        )

    def check(self, grid, block, args, shared_mem, seconds, shared_limit) -> tuple[tuple, tuple, list]:
        """Grid and block as three numbers each, and the arguments as a launch passes them; see `bind`."""
        grid, block = _shape("grid", grid), _shape("block", block)
        self._check_shape(grid, block, shared_mem, shared_limit)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not seconds > 0:
            raise CudaCheckError(f"{self.name}: seconds is a number greater than 0, got {_kind(seconds)}")
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
            raise CudaCheckError(f"{self.name}: a block has at most 1024 threads (64 along z), got {block}: {threads}")
        if threads > self.signature.max_threads:
            raise CudaCheckError(
                f"{self.name}: __launch_bounds__ allows {self.signature.max_threads} threads a block, got {threads}"
            )
        if grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
            raise CudaCheckError(f"{self.name}: a grid has at most 65535 blocks along y and z, got {grid}")
        for name, value in (("shared_mem", shared_mem), ("shared_limit", shared_limit)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise CudaCheckError(f"{self.name}: {name} is a whole number of bytes, got {_kind(value)}")
        if not 0 <= shared_limit <= SHARED_LIMIT:
            raise CudaCheckError(f"{self.name}: shared_limit is 0 to {SHARED_LIMIT} bytes, got {shared_limit}")
        if not 0 <= shared_mem <= shared_limit:
            raise CudaCheckError(f"{self.name}: shared_mem is 0 to {shared_limit} bytes, got {shared_mem}")

    def on_cpu(self, old: str = "", new: str = "") -> "Kernel":
        """The same kernel compiled for the CPU and the checker, with a piece of its text replaced, if asked.

        Raises CudaCheckError if the text does not hold `old`.
        """
        module = self.module
        if module.where == "cpu" and module.checked and old == new:
            return self
        if old not in module.source:
            raise CudaCheckError(f"{module.name} does not hold {old!r}")
        return module.on_cpu(module.source.replace(old, new) if old else module.source)[self.name]

    def profile(self, grid, block, args: Sequence, shared_mem: int = 0, *, block_index: int = 0) -> Profile:
        """Launch `on_cpu()` and count what one block asks of memory, line by line.

        args: NumPy arrays; the block has the number block_index.
        """
        return profile(self, grid, block, args, shared_mem, block_index)


def _check_text(text) -> None:
    if not isinstance(text, str):
        raise CudaCheckError(f"a kernel's text is a str, or the Path of a .cu file, got {_kind(text)}")
    if half := re.search("[\ud800-\udfff]", text):
        line = text.count("\n", 0, half.start()) + 1
        raise CudaCheckError(
            f"line {line}: the text holds U+{ord(half[0]):X}, one half of a character (read it as UTF-8)"
        )


def _check_defines(defines) -> None:
    """Macros that a compiler takes from its command line."""
    if not isinstance(defines, dict):
        raise CudaCheckError(f"defines is a dict of macros, as {{'TILE': 32}}, got {_kind(defines)}")
    for name, value in defines.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CudaCheckError(f"defines: a macro's name is letters, digits and _, as TILE, got {name!r}")
        if not isinstance(value, str | int | float | np.number) or "\n" in str(value):
            raise CudaCheckError(f"defines: {name} is a number, or a str of one line, got {_kind(value)}")


def _shape(what: str, value) -> tuple[int, int, int]:
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,)
    whole = all(isinstance(v, int | np.integer) and v >= 1 for v in values)
    if not 1 <= len(values) <= 3 or not whole:
        got = value if isinstance(value, tuple | list) else _kind(value)
        raise CudaCheckError(f"{what} is one to three whole numbers from 1 on, as 4 or (4, 2), got {got}")
    return (*map(int, values), *(1,) * (3 - len(values)))


def _array(kernel: str, k: int, p: Parameter, value, xp):
    where = f"{kernel}: argument {k} `{p.name}` is {_article(p.type)} {p.type}*"
    dtype = numpy_dtype(p.dtype)
    if not isinstance(value, xp.ndarray):
        other = f": pass {xp.__name__}.asarray(..., {xp.__name__}.{dtype})" if isinstance(value, list | tuple) else ""
        other = f": pass {p.name}.get()" if xp is np and hasattr(value, "get") else other
        raise CudaCheckError(f"{where}, which takes a {xp.__name__} array, got {_kind(value)}{other}")
    bits16 = p.dtype == "bfloat16" and value.dtype == np.uint16  # its bytes, where NumPy lacks the type
    if value.dtype != dtype and not bits16:
        raise CudaCheckError(
            f'{where}, which takes an array of {dtype}, got {value.dtype}: pass {p.name}.astype("{dtype}")'
        )
    if not value.flags.c_contiguous:
        raise CudaCheckError(
            f"{where}, which sees plain memory, got a strided view: pass {xp.__name__}.ascontiguousarray(...)"
        )
    if value.size % p.width:
        raise CudaCheckError(f"{where}: {p.width} numbers each, got an array of {value.size}")
    if xp is np and not p.const and not value.flags.writeable:
        raise CudaCheckError(f"{where} that is written to, got a read-only array")
    return value


def _value(kernel: str, k: int, p: Parameter, value) -> np.generic | np.ndarray:
    """What is passed by value: a number, or the bytes of a vector or struct as an array of one element."""
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
    """An array of this type from nested tuples, lists or an array, each number as `_number` takes it."""
    array = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else np.empty(0)
    if array.shape != shape:
        size = " x ".join(map(str, shape))
        got = f"{type(value).__name__} of shape {array.shape}" if array.shape != (0,) else _kind(value)
        raise CudaCheckError(f"{where}: {size} numbers, got {got}")
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
