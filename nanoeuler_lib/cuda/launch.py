"""The one call for both sides: `module(source)[name](grid, block, args, shared_mem=...)`.

Count, type and layout of the arguments are checked when a launch is bound, from the kernel's signature as it stands in
the text, and so alike on GPU and CPU. CuPy by itself would pass a Python float as an 8-byte double where the kernel
expects a float, without a word.
"""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler_lib.cuda.checker.compiler import INCLUDE, KERNELS, build, headers
from nanoeuler_lib.cuda.checker.complaints import first_error
from nanoeuler_lib.cuda.checker.cpu import CpuLaunch, Library
from nanoeuler_lib.cuda.checker.profile import profile
from nanoeuler_lib.cuda.overlap import OverlappingLaunch, overlaps
from nanoeuler_lib.cuda.source import Parameter, Signature, Text, prepare, signatures
from nanoeuler_lib.cuda.source.layout import numpy_dtype
from nanoeuler_lib.errors import NanoEulerError

Launch = Callable[[], None]
# bytes of shared memory that a block may have on an H100 or B200; 163 on an A100, 99 on others
SHARED_LIMIT = 227 * 1024
SECONDS = 10.0  # that a checked launch may take


@functools.cache
def device() -> str:
    """Where kernels run: "gpu" if CuPy finds a device, else "cpu"; the environment's NANOEULER_DEVICE overrides it.

    Raises NanoEulerError for another value of that variable, or "gpu" where there is none.
    """
    wanted = os.environ.get("NANOEULER_DEVICE", "")
    if wanted not in ("", "gpu", "cpu"):
        raise NanoEulerError(f"NANOEULER_DEVICE is {wanted!r}, expected gpu or cpu")
    if wanted == "cpu":
        return "cpu"
    try:
        import cupy

        usable = cupy.cuda.is_available()  # importing CuPy succeeds without a driver
    except ImportError:
        usable = False
    if wanted == "gpu" and not usable:
        raise NanoEulerError("NANOEULER_DEVICE is gpu, but CuPy finds no CUDA device")
    return "gpu" if usable else "cpu"


@functools.cache
def hopper() -> bool:
    """Whether kernels are compiled for sm_90a, whose wgmma plain 9.0 lacks: on a GPU of compute capability 9.0.

    NANOEULER_ARCH=80 in the environment makes it False there, too: a kernel's twin of `hopper.cuh` runs instead. Raises
    NanoEulerError for another value of that variable.
    """
    wanted = os.environ.get("NANOEULER_ARCH", "")
    if wanted not in ("", "80", "90"):
        raise NanoEulerError(f"NANOEULER_ARCH is {wanted!r}, expected 80 or 90")
    if device() == "cpu" or wanted == "80":
        return False
    import cupy

    return cupy.cuda.Device().compute_capability == "90"


def describe(launch: Launch) -> str:
    """A bound launch in words: its kernel, grid, block and bytes of dynamic shared memory."""
    if isinstance(launch, CpuLaunch):
        name, grid, block, shared = launch.signature.name, launch.grid, launch.block, launch.shared_mem
    elif isinstance(launch, OverlappingLaunch):
        name, grid, block, shared = launch.name, launch.grid, launch.block, launch.shared_mem
    else:
        name, (grid, block), shared = launch.name, launch.args[:2], launch.keywords["shared_mem"]
    return f"{name}, grid {_in_words(grid)}, block {_in_words(block)}, {shared} bytes"


def _in_words(size: tuple[int, int, int]) -> str:
    return " x ".join(map(str, size)).removesuffix(" x 1").removesuffix(" x 1")


def array_module(where: str | None = None):
    """NumPy or CuPy, whose arrays the kernels of that device take (default: `device()`)."""
    if (where or device()) == "cpu":
        return np
    import cupy

    return cupy


def module(
    source: str | Path,
    *,
    where: str | None = None,
    checked: bool = True,
    defines: dict[str, Any] | None = None,
    instantiate: Sequence[str] = (),
) -> "Module":
    """Compile a CUDA C++ text.

    source: the text, or the path of a .cu file; where: "gpu" or "cpu" (default `device()`); checked: on the CPU, look
    at every access (about ten times slower, and 16 bytes of notes for each byte touched); unchecked, a race or a wrong
    index gives wrong numbers without a message, and only a fault or Ctrl-C ends a launch early; defines: macros,
    {"TILE": 32}; instantiate: the templates to compile, ("matmul<16>",). Raises KernelError with the compiler's first
    error, NanoEulerError for a text without a kernel.
    """
    name = source.name if isinstance(source, Path) else "kernel.cu"
    text = source.read_text("utf-8") if isinstance(source, Path) else source
    _check_text(text)
    _check_defines(defines or {})
    if isinstance(instantiate, str) or not all(isinstance(name, str) for name in instantiate):
        raise NanoEulerError(f"instantiate is a tuple of names, as ('k<4>',), got {instantiate!r}")
    return Module(name, text, where or device(), checked, defines or {}, tuple(instantiate))


def _check_text(text) -> None:
    if not isinstance(text, str):
        raise NanoEulerError(f"a kernel's text is a str, or the Path of a .cu file, got {_kind(text)}")
    if half := re.search("[\ud800-\udfff]", text):
        line = text.count("\n", 0, half.start()) + 1
        raise NanoEulerError(
            f"line {line}: the text holds U+{ord(half[0]):X}, one half of a character (read it as UTF-8)"
        )


def _check_defines(defines) -> None:
    """Macros that a compiler takes from its command line."""
    if not isinstance(defines, dict):
        raise NanoEulerError(f"defines is a dict of macros, as {{'TILE': 32}}, got {_kind(defines)}")
    for name, value in defines.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise NanoEulerError(f"defines: a macro's name is letters, digits and _, as TILE, got {name!r}")
        if not isinstance(value, str | int | float | np.number) or "\n" in str(value):
            raise NanoEulerError(f"defines: {name} is a number, or a str of one line, got {_kind(value)}")


class Module:
    """A compiled text: `module["name"]` is a kernel, `list(module)` their names."""

    def __init__(self, name: str, source: str, where: str, checked: bool, defines: dict, instantiate: tuple[str, ...]):
        self.name, self.source = name, source
        self.where, self.checked, self.defines, self.instantiate = where, checked, defines, instantiate
        self.signatures = {s.name: s for s in signatures(self.source, instantiate, defines, where)}
        if taken := self.signatures.keys() & defines.keys():
            raise NanoEulerError(f"defines: {min(taken)} is the name of a kernel: give the macro another")
        macros = [f"{name}={_in_cpp(value)}" for name, value in defines.items()]
        text = prepare(self.name, self.source, KERNELS, where)  # what one side refuses the other refuses, too
        if where == "gpu":
            self._functions = _compile_for_gpu(self, text, macros)
        else:
            exports = "\n".join(f"NANOEULER_EXPORT_KERNEL({i}, {name})" for i, name in enumerate(self.signatures))
            self.library = Library(build(text, exports, checked, macros), text, checked)

    def __getitem__(self, name: str) -> "Kernel":
        if name not in self.signatures:
            raise NanoEulerError(f"{self.name} has no kernel {name!r}, only {', '.join(self.signatures)}")
        return Kernel(self, self.signatures[name])

    def __iter__(self):
        return iter(self.signatures)


class Kernel:
    """One kernel: call it to launch it, `bind` it to launch it often."""

    def __init__(self, owner: Module, signature: Signature):
        self.module, self.signature, self.name = owner, signature, signature.name

    def __call__(
        self,
        grid=None,
        block=None,
        args=None,
        shared_mem=0,
        *more,
        seconds=SECONDS,
        shared_limit=SHARED_LIMIT,
    ) -> None:
        """Launch once, and on the CPU wait for the end; see `bind`."""
        if more or not isinstance(args, tuple | list):
            raise NanoEulerError(
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
        overlap: bool = False,
    ) -> Launch:
        """Check the arguments and return a function without any that launches.

        grid, block: one to three numbers; args: an array for each pointer (contiguous, of the pointer's type), a number
        for each number, a tuple or list for a float4 and its kin, for a struct a dict of its members or a structured
        scalar of NumPy with fields of these names; shared_mem: bytes of `extern __shared__`; seconds: what a checked
        launch may take; shared_limit: the bytes that a block may have on the card that is meant, __shared__ arrays and
        shared_mem together: 48, 64, 99, 163 or 227 times 1024. (For over 48 KB together the GPU wants to be
        asked.) overlap: the launch may begin while the one before it on the stream runs, where the GPU can: the kernel
        calls `grid_dependency_wait()` (nanoeuler.cuh) before it touches what others write, and writes nothing before.
        Raises NanoEulerError for what the kernel cannot take. The launch raises KernelError on a bug.
        """
        grid, block = _shape("grid", grid), _shape("block", block)
        self._check_shape(grid, block, shared_mem, shared_limit)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not seconds > 0:
            raise NanoEulerError(f"{self.name}: seconds is a number greater than 0, got {_kind(seconds)}")
        parameters = self.signature.parameters
        if len(args) != len(parameters):
            names = ", ".join(p.name for p in parameters)
            raise NanoEulerError(f"{self.name} takes {len(parameters)} arguments ({names}), got {len(args)}")
        xp = array_module(self.module.where)
        values = [
            _array(self.name, k, p, a, xp) if p.pointer else _value(self.name, k, p, a)
            for k, (p, a) in enumerate(zip(parameters, args))
        ]
        if self.module.where == "cpu":
            number = list(self.module.signatures).index(self.name)
            return CpuLaunch(
                self.module.library,
                number,
                self.signature,
                grid,
                block,
                values,
                shared_mem,
                shared_limit,
                seconds,
            )
        function = self.module._functions[self.name]
        static = function.shared_size_bytes
        if static + shared_mem > shared_limit:
            raise NanoEulerError(
                f"{self.name}: the __shared__ arrays take {static} bytes and shared_mem {shared_mem} more: a block has "
                f"{shared_limit} on this card"
            )
        if static + shared_mem > 48 * 1024:
            most = function.max_dynamic_shared_size_bytes  # of a launch bound before
            function.max_dynamic_shared_size_bytes = max(shared_mem, most)
        if overlap and overlaps():
            return OverlappingLaunch(self.name, function, grid, block, values, shared_mem)
        launch = functools.partial(function, grid, block, tuple(values), shared_mem=shared_mem)
        launch.name = self.name
        return launch

    def _check_shape(self, grid, block, shared_mem: int, shared_limit: int) -> None:
        threads = block[0] * block[1] * block[2]
        if threads > 1024 or block[2] > 64:
            raise NanoEulerError(f"{self.name}: a block has at most 1024 threads (64 along z), got {block}: {threads}")
        if threads > self.signature.max_threads:
            raise NanoEulerError(
                f"{self.name}: __launch_bounds__ allows {self.signature.max_threads} threads a block, got {threads}"
            )
        if grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
            raise NanoEulerError(f"{self.name}: a grid has at most 65535 blocks along y and z, got {grid}")
        for name, value in (("shared_mem", shared_mem), ("shared_limit", shared_limit)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise NanoEulerError(f"{self.name}: {name} is a whole number of bytes, got {_kind(value)}")
        if not 0 <= shared_limit <= SHARED_LIMIT:
            raise NanoEulerError(f"{self.name}: shared_limit is 0 to {SHARED_LIMIT} bytes, got {shared_limit}")
        if not 0 <= shared_mem <= shared_limit:
            raise NanoEulerError(f"{self.name}: shared_mem is 0 to {shared_limit} bytes, got {shared_mem}")

    def on_cpu(self, old: str = "", new: str = "") -> "Kernel":
        """The same kernel compiled for the CPU and the checker, with a piece of its text replaced, if asked.

        Raises NanoEulerError if the text does not hold `old`.
        """
        m = self.module
        if m.where == "cpu" and m.checked and old == new:
            return self
        if old not in m.source:
            raise NanoEulerError(f"{m.name} does not hold {old!r}")
        source = m.source.replace(old, new) if old else m.source
        return Module(m.name, source, "cpu", True, m.defines, m.instantiate)[self.name]

    def profile(self, grid, block, args: Sequence, shared_mem: int = 0, *, block_index: int = 0):
        """Launch `on_cpu()` and count what one block asks of memory, line by line: a `profile.Profile`.

        args: NumPy arrays; the block has the number block_index.
        """
        return profile(self, grid, block, args, shared_mem, block_index)


def _in_cpp(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shape(what: str, value) -> tuple[int, int, int]:
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value,)
    whole = all(isinstance(v, int | np.integer) and v >= 1 for v in values)
    if not 1 <= len(values) <= 3 or not whole:
        got = value if isinstance(value, tuple | list) else _kind(value)
        raise NanoEulerError(f"{what} is one to three whole numbers from 1 on, as 4 or (4, 2), got {got}")
    return (*map(int, values), *(1,) * (3 - len(values)))


def _array(kernel: str, k: int, p: Parameter, value, xp):
    where = f"{kernel}: argument {k} `{p.name}` is {_article(p.type)} {p.type}*"
    dtype = numpy_dtype(p.dtype)
    if not isinstance(value, xp.ndarray):
        other = f": pass {xp.__name__}.asarray(..., {xp.__name__}.{dtype})" if isinstance(value, list | tuple) else ""
        other = f": pass {p.name}.get()" if xp is np and hasattr(value, "get") else other
        raise NanoEulerError(f"{where}, which takes a {xp.__name__} array, got {_kind(value)}{other}")
    bits16 = p.dtype == "bfloat16" and value.dtype == np.uint16  # its bytes, where NumPy lacks the type
    if value.dtype != dtype and not bits16:
        raise NanoEulerError(
            f'{where}, which takes an array of {dtype}, got {value.dtype}: pass {p.name}.astype("{dtype}")'
        )
    if not value.flags.c_contiguous:
        raise NanoEulerError(
            f"{where}, which sees plain memory, got a strided view: pass {xp.__name__}.ascontiguousarray(...)"
        )
    if value.size % p.width:
        raise NanoEulerError(f"{where}: {p.width} numbers each, got an array of {value.size}")
    if xp is np and not p.const and not value.flags.writeable:
        raise NanoEulerError(f"{where} that is written to, got a read-only array")
    return value


def _value(kernel: str, k: int, p: Parameter, value) -> np.generic | np.ndarray:
    """What is passed by value: a number, or the bytes of a vector or struct as an array of one element."""
    where = f"{kernel}: argument {k} `{p.name}` is {_article(p.type)} {p.type}"
    if p.width > 1:
        return _numbers(where, numpy_dtype(p.dtype), (p.width,), value).view(
            f"V{p.width * numpy_dtype(p.dtype).itemsize}"
        )
    if not p.fields:
        return _number(where, numpy_dtype(p.dtype), value)
    names = [field.name for field in p.fields]
    given = {name: value[()][name] for name in value.dtype.names} if _is_structured(value) else value
    if not isinstance(given, dict) or set(given) != set(names):
        got = ", ".join(map(str, given)) if isinstance(given, dict) else _kind(value)
        raise NanoEulerError(f"{where}: pass a dict or a structured scalar with {', '.join(names)}, got {got}")
    packed = np.zeros(p.bytes, np.uint8)
    for field in p.fields:
        dtype, there = (
            numpy_dtype(field.dtype),
            f"{where}, whose `{field.name}` is {_article(field.type)} {field.type}",
        )
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
        raise NanoEulerError(f"{where}: {size} numbers, got {got}")
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    return np.array([_number(where, dtype, number) for number in array.ravel().tolist()], dtype).reshape(shape)


def _number(where: str, dtype: np.dtype, value) -> np.generic:
    if isinstance(value, np.generic) and value.dtype == dtype:
        return value
    if isinstance(value, bool | np.bool_) and dtype.kind != "b":
        raise NanoEulerError(f"{where}, got {value!r}")
    if type(value) is int and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise NanoEulerError(f"{where}, which holds {limits.min} to {limits.max}, got {value}")
        return dtype.type(value)
    if (type(value) in (int, float) and dtype.kind not in "iub") or type(value) is bool:
        return dtype.type(value)
    advice = ""
    if isinstance(value, float | np.number):
        python = "int" if dtype.kind in "iu" else "float"
        advice = f": pass {python}({value.item() if isinstance(value, np.number) else value})"
    raise NanoEulerError(f"{where}, got {_kind(value)}{advice}")


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _kind(value) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name} {value.item() if isinstance(value, np.generic) else value!r}" if np.isscalar(value) else name


def _compile_for_gpu(owner: Module, text: Text, macros: list[str]) -> dict:
    """CuPy's functions by name. The headers' digest stands in the options because CuPy caches by text and options."""
    import cupy

    options = ("-std=c++17", f"-I{INCLUDE}", f"-I{KERNELS}", f"-DNANOEULER_HEADERS=0x{headers()[:8]}")
    if hopper():
        options += ("-arch=sm_90a",)
    mangled = [s.name for s in owner.signatures.values() if s.mangled]
    options += tuple(f"-D{m}" for m in macros)
    try:
        raw = cupy.RawModule(code=owner.source, options=options, name_expressions=mangled or None)
        return {name: raw.get_function(name) for name in owner.signatures}
    except cupy.cuda.compiler.CompileException as error:
        unread = NanoEulerError(f"{owner.name} does not compile with NVRTC:\n{str(error)[:2000]}")
        raise (first_error(text, str(error)) or unread) from None
