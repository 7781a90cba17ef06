# ruff: noqa: E501 -- a kernel's text stays on its line
"""Test that each kernel's text, the chapters' included, compiles for its GPU architectures. No GPU is needed.

The compiler is the nvidia-cuda-nvrtc wheel. The static shared memory is read from the compiled code, and must fit the
smallest limit of these architectures.
"""

import ast
import ctypes as C
import functools
import importlib.util
import itertools
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from test_cuda_matrix import FOLDER, ONE_AT_A_TIME

from benchmarks import gpu_flash_step
from cudacheck.compiler import INCLUDE
from cudacheck.source import signatures
from nanoeuler_lib.config import preset
from nanoeuler_lib.cuda import KERNELS
from nanoeuler_lib.engine import flash, flash_backward, program

ARCHITECTURES = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120"]
ROOT = Path(__file__).resolve().parents[2]
STATIC_SHARED = 48 * 1024  # bytes, on every architecture
MATMUL16 = (
    *(f"matmul16_plain<{number}, float>" for number in ("__nv_bfloat16", "__half")),
    *(f"{kernel}<{number}, {number}, {sizes}>"
      for kernel, sizes in (("matmul16", "128, 64, 3"), ("matmul16_wgmma", "64, 3"))
      for number in ("__nv_bfloat16", "__half", "float")),
)  # fmt: skip
# name: text, templates to compile, the first architecture with the required instructions
TEXTS = {file.name: (file.read_text("utf-8"), (), 75) for file in sorted(KERNELS.glob("*.cu"))}
# Templates: each kernel, type and form, in small tiles, which compile fastest; wgmma's twin except on 9.0a.
TEXTS["matmul16.cu"] = (TEXTS["matmul16.cu"][0], MATMUL16, 80)
TEXTS["draw.cu"] = (TEXTS["draw.cu"][0], ("order<4>", "order<16>"), 75)
for rung in (1, 3, 5):  # of chapter 27's ladder: loads by hand, ldmatrix, and copies in the background
    TEXTS[f"ladder, rung {rung}"] = (f"#define RUNG {rung}\n" + (ROOT / "nanoeuler_book/ladder.cu").read_text(), (), 80)
for file, of in ONE_AT_A_TIME.items():
    TEXTS[file] = ((FOLDER / f"{file}.cu").read_text("utf-8"), of, 75 if file == "loads" else 80)
# FlashAttention's templates: one per number type, and Hopper's, which on other architectures is its twin.
ATTENTION = TEXTS.pop("attention_forward.cu")[0]
ON, T4 = flash.Card(80, 99 << 10), flash.Card(75, 64 << 10)
for name, first, chosen in (
    ("float32", 75, flash.tile("float", 64, 512, T4)),
    ("float32 on tensor cores", 80, flash.tile("float", 64, 512, ON)),
    ("bfloat16", 80, flash.tile("__nv_bfloat16", 64, 512, ON)),
    ("float16", 75, flash.tile("__half", 128, 512, ON)),
    ("tf32", 80, flash.tile("float", 64, 512, ON, tf32=True)),
    ("Hopper", 80, flash.tile("__nv_bfloat16", 64, 512, flash.Card(90, 227 * 1024))),
):
    TEXTS[f"attention, {name}"] = (ATTENTION, [chosen.kernel], first)
# Backward: number type, width, KB of shared memory, whether RoPE is undone, whether dq is added up.
BACKWARD = TEXTS.pop("attention_backward.cu")[0]
for number, how, width, shared, turn, atomic in (
    ("float", "PLAIN", 32, 64, True, False),
    ("float", "SPLIT", 64, 99, True, False),
    ("float", "CORES", 32, 99, False, True),
    ("__nv_bfloat16", "CORES", 64, 99, True, False),
    ("__half", "CORES", 128, 64, True, False),
):
    tiles = flash_backward.tiles(4 if number == "float" else 2, width, 4096, shared << 10, how)
    names = flash_backward._names(number, how, width, *tiles, turn, atomic)
    first = 75 if how == "PLAIN" or number == "__half" else 80
    TEXTS[f"attention backward, {number}, {how}"] = (BACKWARD, names, first)
HOPPERS = [name for C in flash_backward.HOPPER for name in flash_backward._hopper_names("__nv_bfloat16", C, True)]
TEXTS["attention backward, Hopper"] = (BACKWARD, HOPPERS, 80)


def decoding(number, config):
    products = (name for rows in program.TOGETHER for name in program.products(number, config, rows))
    return (*products, f"attend<{number}>")


# The engine's templates, for heads and rows of `base`.
ENGINE = {
    "engine.cu": program.engine_kernels,
    "decode.cu": decoding,
    "muon.cu": lambda number, _: program.muon_kernels(number),
}
for file, table in ENGINE.items():
    text = TEXTS.pop(file)[0]
    for number, first in (("float", 75), ("__nv_bfloat16", 80), ("__half", 75)):
        defines = f"#define COPY {number}\n" if file == "engine.cu" and number != "float" else ""
        TEXTS[f"{file}, {number}"] = (defines + text, table(number, preset("base")), first)
SUMS = tuple(f"sum_slices<{count}>" for count in (1, 2, 4, 8))
TEXTS["many.cu"] = (TEXTS["many.cu"][0], SUMS, 75)
# Attention with T x T matrices, with which FlashAttention is compared.
for number, first in (("float", 75), ("__nv_bfloat16", 80)):
    names = gpu_flash_step._kernels(number, preset("base").context)
    TEXTS[f"gpu_flash_step, {number}"] = (gpu_flash_step.SOURCE, names, first)
# The cells of the chapters that run on a GPU.
for chapter in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
    for number, source in enumerate(
        "".join(cell["source"]) for cell in json.loads(chapter.read_text("utf-8"))["cells"]
    ):
        magic, _, text = source.partition("\n")
        if magic == "%%cuda":
            TEXTS[f"{chapter.stem}, cell {number}"] = (text, (), 80 if "mma<" in text else 75)


def architectures(name):
    """Return all that have the instructions; of a chapter's cell, and of float16, the oldest and the newest."""
    found = [a for a in ARCHITECTURES if int(a[3:]) >= TEXTS[name][2]]
    return found[:: len(found) - 1] if re.search("cell|half|float16", name) else found


CASES = [(name, a) for name in TEXTS for a in architectures(name)]
CASES += [(name, "sm_90a") for name in ("matmul16.cu", "attention, Hopper", "attention backward, Hopper")]


def in_wheels(pattern):
    """Return the first such file in the nvidia wheels, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob(pattern))]
    return next((file for file in files if "alt" not in file.name), None)


@functools.cache
def nvrtc():
    """Return the library of the wheel, or None without the wheel."""
    file = in_wheels("**/libnvrtc.so.*")
    return file and C.CDLL(str(file))


def cubin(source, architecture, templates=(), kind="CUBIN"):
    """Return compiled code, a CUBIN or PTX; raise the compiler's log as an AssertionError."""
    library, made, size = nvrtc(), C.c_void_p(), C.c_size_t()
    library.nvrtcCreateProgram(C.byref(made), source.encode(), b"kernel.cu", 0, None, None)
    for name in templates:
        library.nvrtcAddNameExpression(made, name.encode())
    options = [f"--gpu-architecture={architecture}", "-std=c++17", f"-I{INCLUDE}", f"-I{KERNELS}"]
    if numbers := in_wheels("**/cuda_bf16.h"):  # CuPy also has these headers
        options.append(f"-I{numbers.parent}")
    failed = library.nvrtcCompileProgram(made, len(options), (C.c_char_p * len(options))(*map(str.encode, options)))
    if failed:
        library.nvrtcGetProgramLogSize(made, C.byref(size))
        log = C.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(made, log)
        raise AssertionError(log.value.decode())
    getattr(library, f"nvrtcGet{kind}Size")(made, C.byref(size))
    code = C.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(made, code)
    library.nvrtcDestroyProgram(C.byref(made))
    return code.raw


def sections(elf):
    """Return offset and size of each section of a 64-bit ELF file, by name."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    width, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * width) for i in range(count)]
    start = headers[names][4]
    return {elf[start + h[0] : elf.index(b"\0", start + h[0])].decode(): h[4:] for h in headers}


@pytest.mark.full(but=["engine.cu, float-sm_90"])
@pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")
@pytest.mark.parametrize("name, architecture", CASES)
def test_compiles_and_fits(name, architecture):
    text, templates, _ = TEXTS[name]
    if ("#include <cuda_" in text or "#include <attention" in text) and not in_wheels("**/cuda_bf16.h"):
        pytest.skip("the nvidia-cuda-runtime wheel, which has the 16-bit numbers, is not installed: make oracle")
    code = sections(cubin(text, architecture, templates))
    kernels = [section for section in code if section.startswith(".text.")]
    wanted = signatures(text, templates)
    assert len(kernels) == len(wanted)
    assert {f".text.{s.name}" for s in wanted if not s.mangled} <= set(kernels)
    assert all(size <= STATIC_SHARED for name, (_, size) in code.items() if name.startswith(".nv.shared."))


# What a training step in float16 and a decoder run on compute capability 7.5: all tiles of attention, for all widths.
FORWARD = {flash.tile("__half", C, T, T4).kernel for C in flash.WIDTHS for T in (64, 4096)}
BACK = {
    name
    for C, T in itertools.product(flash.WIDTHS, (1, 4096))
    for name in flash_backward._names("__half", "CORES", C, *flash_backward.tiles(2, C, T, T4.shared), True, False)
}
ON_T4 = {"attention, float16": (ATTENTION, FORWARD), "attention backward, float16": (BACKWARD, BACK)}
ON_T4 |= {name: TEXTS[name][:2] for name in TEXTS if name.endswith(", __half")}
NEWER = re.compile(r"cp\.async|m16n8k16|\.bf16|\.tf32|wgmma|griddepcontrol|mbarrier")


@pytest.mark.full(but=["attention-float16"])
@pytest.mark.skipif(not in_wheels("**/cuda_bf16.h"), reason="the nvidia wheels are not installed: make oracle")
@pytest.mark.parametrize("name", ON_T4, ids=lambda name: name.replace(", ", "-"))
def test_no_instruction_is_newer_than_compute_capability_7_5(name):
    code = cubin(ON_T4[name][0], "compute_75", ON_T4[name][1], "PTX").decode()
    assert ".target sm_75" in code and not NEWER.findall(code)
    assert ("mma.sync.aligned.m16n8k8" in code) == name.startswith("attention")


@pytest.mark.full
@pytest.mark.skipif(not in_wheels("**/cuda_bf16.h"), reason="the nvidia wheels are not installed: make oracle")
def test_a_newer_gpu_can_run_the_instructions_of_7_5():
    """Compile with the macro that NANOEULER_ARCH=75 sets, for a GPU that has newer instructions."""
    for name in ("attention, float16", "attention backward, float16"):
        text, templates = ON_T4[name]
        code = cubin(f"#define NANOEULER_ARCH 75\n{text}", "compute_90", templates, "PTX").decode()
        assert ".target sm_90" in code and "m16n8k8" in code and not NEWER.findall(code)


@pytest.mark.full
@pytest.mark.skipif(not in_wheels("**/cuda_bf16.h"), reason="the nvidia wheels are not installed: make oracle")
def test_what_came_with_hopper_compiles_for_it():
    text = TEXTS["matmul16.cu"][0].replace("#ifdef __CUDA_ARCH_FEAT_SM90_ALL", "#ifdef __CUDACC__")
    with pytest.raises(AssertionError, match="copy_tile is for the GPU"):  # plain 9.0 has only the twin
        cubin(text, "sm_90", MATMUL16[-1:])
    cluster = """#include <hopper.cuh>
    extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* x) { x[blockIdx.x] = cluster_rank(); cluster_sync(); }"""
    cubin(cluster, "sm_90a")


@pytest.mark.full
@pytest.mark.skipif(nvrtc() is None, reason="the nvidia-cuda-nvrtc wheel is not installed: make oracle")
@pytest.mark.parametrize(
    "version, kernel", [("3 tiled", "matmul_tiled"), ("4 strip", "matmul_strip"), ("5 patch", "matmul_patch")]
)
def test_the_requests_that_chapter_25_counts_are_those_of_the_machine_code(version, kernel):
    """Count reads of shared memory (LDS: 984, size in bits 73 to 75) and multiply-adds (FFMA: 223) for 9.0."""
    cells = json.loads((ROOT / "notebooks" / "25_matrix_multiplication.ipynb").read_text("utf-8"))["cells"]
    lines = "".join("".join(cell["source"]) + "\n" for cell in cells).splitlines()
    (told,) = [ast.literal_eval(line.partition(" = ")[2]) for line in lines if line.startswith("COMPILED = ")]
    (text,) = [text for name, (text, *_) in TEXTS.items() if name[:2] == "25" and f"{kernel}(" in text]
    code = cubin(text, "sm_90")
    start, size = sections(code)[f".text.{kernel}"]
    words = np.frombuffer(code[start : start + size], "<u8").reshape(-1, 2)
    opcode, bits = words[:, 0] & np.uint64(0xFFF), words[:, 1] >> np.uint64(9) & np.uint64(7)
    counted = [(opcode == 0x984) & (bits == 6), (opcode == 0x984) & (bits == 4), opcode == 0x223]
    assert tuple(int(c.sum()) for c in counted) == told[version]
