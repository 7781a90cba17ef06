"""What a reader's GPU runs: `gpus`, its tables, and the chapters about the GPU under other compute capabilities."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from chapters import ROOT

from nanoeuler_book import gpus
from nanoeuler_lib import cuda
from nanoeuler_lib.config import ModelConfig, preset
from nanoeuler_lib.cuda import launch, magic, overlap
from nanoeuler_lib.engine import flash, memory, step
from tools.notebooks.run_cells import GPU_CHAPTERS, run

# compute capability, shared KB: precisions, attention, copies, launches; by NVIDIA's lists of features
EXPECTED = {
    (75, 64): ("float32, float16; by default float16; tf32 and bfloat16 need 8.0", "mma.sync", "ordinary", "in order"),
    (80, 163): ("float32, tf32, bfloat16, float16; by default bfloat16", "mma.sync", "asynchronous", "in order"),
    (86, 99): ("float32, tf32, bfloat16, float16; by default bfloat16", "mma.sync", "asynchronous", "in order"),
    (89, 99): ("float32, tf32, bfloat16, float16; by default bfloat16", "mma.sync", "asynchronous", "in order"),
    (90, 227): ("float32, tf32, bfloat16, float16; by default bfloat16", "wgmma", "asynchronous", "overlap"),
    (120, 99): ("float32, tf32, bfloat16, float16; by default bfloat16", "mma.sync", "asynchronous", "overlap"),
}


@pytest.mark.parametrize(("capability", "shared"), EXPECTED)
def test_a_gpu_is_described_by_its_capability(capability, shared):
    precision, attention, copies, launches = EXPECTED[capability, shared]
    lines = gpus.describe("A GPU", capability, 12 << 30, flash.Card(capability, shared << 10)).split("\n")
    assert lines[0] == f"A GPU: compute capability {capability / 10}, 12.0 GiB"
    assert lines[1] == f"precision: {precision}"
    assert lines[2].endswith(f"; attention: {attention}")
    assert lines[3] == f"copies to shared memory: {copies}; launches: {launches}"


def test_an_h100_can_be_used_without_wgmma_and_an_old_driver_keeps_the_order():
    lines = gpus.describe("H100", 90, 80 << 30, flash.Card(80, 227 << 10), overlap.DRIVER - 10).split("\n")
    assert lines[0] == "H100: compute capability 9.0, used as 8.0, 80.0 GiB" and lines[2].endswith("mma.sync")
    assert lines[3].endswith("in order")


@pytest.mark.skipif(cuda.device() == "gpu", reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys):
    gpus.show()
    assert capsys.readouterr().out == "No GPU: kernels run in the checker on the CPU; times come from stored results\n"


def test_copies_are_asynchronous_where_the_header_makes_them_so():
    """The header decides, not Python, when the kernel is compiled."""
    text = (ROOT / "cudacheck/include/nanoeuler.cuh").read_text("utf-8")
    (least,) = re.findall(r"#if NE_ARCH >= (\d+)0\n#define NE_ASYNC_OR_PLAIN", text)
    assert [gpus.copying(flash.Card(int(least) - k, 48 << 10)) for k in (0, 1)] == ["asynchronous", "ordinary"]


def test_a_cell_that_needs_a_newer_gpu_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(launch, "capability", lambda: 75)
    assert gpus.has(75) and not gpus.has(80) and not gpus.measures(80)
    line = "needs compute capability 8.0 or newer; this GPU has 7.5, so the stored result is shown\n"
    assert capsys.readouterr().out == 2 * line


@pytest.mark.compiler
def test_a_kernel_with_mma_runs_in_the_checker_on_an_old_gpu(monkeypatch, capsys):
    names = {}
    shell = magic._Magic(SimpleNamespace(push=names.update))
    text = '#include <nanoeuler.cuh>\nextern "C" __global__ void k(float* d) {{ {} d[0] = 1; }}'
    product = "mma<__nv_bfloat16>(d, nullptr, nullptr);"
    for capability, body, words in ((75, "", 0), (75, product.replace("__nv_bfloat16", "__half"), 0), (80, product, 0)):
        monkeypatch.setattr(launch, "capability", lambda capability=capability: capability)
        shell("", text.format(body))
        assert len(capsys.readouterr().out.split()) == words and names["k"].module.where == cuda.device()
    monkeypatch.setattr(launch, "capability", lambda: 75)
    shell("", text.format(product))
    assert "this GPU has 7.5, so this kernel runs in the checker" in capsys.readouterr().out
    assert names["k"].module.where == "cpu"


# ---- Tables


@pytest.mark.parametrize("name", ["base", "large"])
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("size", [4, *gpus.MEMORIES])
def test_as_many_rows_as_the_engine_takes_at_a_time(name, precision, size, monkeypatch):
    """The oracle is `engine.Step`'s choice, after the weights, a copy and both moments have been allocated."""
    config, room = preset(name), int(gpus.FREE * size * 2**30)
    taken = memory.bytes_needed(config, 1, config.context, precision)["states"] - 4 * memory.layout(config)[2]
    monkeypatch.setattr(step, "free_bytes", lambda where: room - taken)
    program = SimpleNamespace(where="gpu")
    owner = SimpleNamespace(config=config, program=program, block_bytes=0, precision=precision, keep_x=False)
    try:
        wanted = step.fitting(owner, gpus.BATCH)
    except memory.OutOfMemory:
        wanted = 0
    assert gpus.rows_at_a_time(config, precision, room) == wanted


def test_one_byte_too_few_halves_the_rows():
    config = preset("base")
    need = sum(memory.bytes_needed(config, 16, config.context, "bfloat16").values()) + memory.RESERVED
    assert [gpus.rows_at_a_time(config, "bfloat16", size) for size in (need, need - 1)] == [16, 8]


def test_the_flops_of_a_step_are_those_of_all_its_products():
    c = ModelConfig(dim=12, heads=6, kv_heads=2, layers=3, context=9, vocab_size=11, predict=2, ffn=10)
    products = c.layers * [(12, (6 + 2 * 2) * 2), (6 * 2, 12), (12, 2 * 10), (10, 12)] + [(12, 2 * 11)]
    forward = sum(2 * 5 * 9 * inner * columns for inner, columns in products)
    forward += c.layers * 5 * 6 * sum(2 * 2 * 2 * (position + 1) for position in range(9))
    assert gpus.step_flops(c, 5) == 3 * forward


def test_rates_are_those_of_nvidias_documents():
    """Teraflops: of the T4, A100, H100 and RTX 4090 as printed there; of the others, AI TOPS, which count sparsity."""
    found = {gpu.name: gpu.rate / 1e12 for gpu in gpus.GPUS}
    printed = {"T4": 65, "A100": 312, "H100": 989.4, "RTX 4090": 165.2}
    in_tops = {"RTX 3060": 101 / 4, "RTX 4070": 466 / 8, "RTX 5070": 988 / 16}
    assert found == pytest.approx(printed | in_tops, rel=1e-2)


def test_chapter_29_prints_what_the_command_prints():
    cells = json.loads((ROOT / "notebooks/29_gpu_engine.ipynb").read_text("utf-8"))["cells"]
    (cell,) = (cell for cell in cells if cell["id"] == "gpu-tables")
    done = subprocess.run([sys.executable, "-m", "nanoeuler_book.gpus"], cwd=ROOT, capture_output=True, text=True)
    assert "".join(cell["outputs"][0]["text"]) == done.stdout, "make execute NB=notebooks/29_gpu_engine.ipynb"


# ---- The chapters

# Without a GPU, a notebook runs as for 8.6, so its own test covers that. Only three choose kernels by more than 8.0.
CASES = [(name, 75) for name in GPU_CHAPTERS] + [(name, 90) for name in GPU_CHAPTERS if name[:2] in ("27", "28", "29")]


@pytest.mark.full
@pytest.mark.compiler
@pytest.mark.parametrize(("name", "capability"), CASES)
def test_a_chapter_runs_to_its_end_whatever_the_capability(name, capability):
    command = [sys.executable, "-m", "tools.notebooks.run_cells", name, "--capability", str(capability)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and f"{name}: ran to its end" in done.stdout, done.stdout
    guarded = name in ("26_tensor_cores", "27_flash_forward", "28_flash_backward") and capability < 80
    assert ("needs compute capability 8.0" in done.stdout) == guarded


def test_a_cell_that_stops_is_named(tmp_path, monkeypatch):
    cells = [("first", "x = 1", []), ("fine", "1 / 0", ["raises-exception"]), ("bad", "x += y", [])]
    made = [dict(cell_type="code", id=i, metadata={"tags": t}, source=[s]) for i, s, t in cells]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks/00_x.ipynb").write_text(json.dumps({"cells": made}))
    monkeypatch.setattr("tools.notebooks.run_cells.ROOT", tmp_path)
    assert run("00_x") == ("cell 2 (bad) stopped: NameError: name 'y' is not defined", [])
