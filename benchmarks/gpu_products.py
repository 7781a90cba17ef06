"""Find the fastest cuBLASLt algorithm for each matrix product of a training step of `base` on this GPU.

    python -m benchmarks.gpu_products              # adds this GPU to nanoeuler_lib/cuda/products.json
    python -m benchmarks.gpu_products --out FILE   # writes the table there

cuBLASLt orders its algorithms by an estimate. The engine takes the first one, unless this table has another for this
GPU and this version of cuBLASLt. So two runs on the same kind of GPU use the same algorithms and give the same bits.
Each product is timed on the step's own arrays. An algorithm other than the first is listed if it takes GAIN less time.
"""

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.gpu_step import CASES, SETTINGS, batch
from nanoeuler_lib import engine
from nanoeuler_lib.config import preset
from nanoeuler_lib.cuda import blas

GAIN = 0.02
ROUNDS, TIMES = 7, 5  # rounds over all algorithms of a product, and launches per round


def milliseconds(launch, times: int = TIMES) -> float:
    """Return the milliseconds of a launch: the mean of a number of launches by the GPU's clock."""
    import cupy

    first, last = cupy.cuda.Event(), cupy.cuda.Event()
    first.record()
    for _ in range(times):
        launch()
    last.record()
    last.synchronize()
    return cupy.cuda.get_elapsed_time(first, last) / times


def fastest(algorithms) -> tuple[int, list[float]]:
    """Return the index of the algorithm to use, and the median milliseconds of all; the algorithms alternate."""
    rounds = [[milliseconds(launch) for launch in algorithms] for _ in range(ROUNDS + 1)][1:]
    median = [statistics.median(times) for times in zip(*rounds, strict=True)]
    best = min(range(len(median)), key=median.__getitem__)
    return (best if median[best] < (1 - GAIN) * median[0] else 0), median


def products(precision: str, rows: int) -> dict[str, list]:
    """Return {text: [product, count]} for the products of a step, on the step's own arrays."""
    config = preset("base")
    model = engine.GPT(config, precision=precision, where="gpu")
    step = engine.Step(model, engine.AdamW(config, SETTINGS, "gpu"), SETTINGS, rows)
    step(*batch(config, rows, 0))
    found = {}
    for lists in model.plan(step.micro, config.context).lists.values():
        for launches in lists if isinstance(lists, tuple) else (lists,):
            for entry in launches:
                if isinstance(entry.launch, blas.Product):
                    found.setdefault(str(entry.launch).replace("+=", "="), [entry.launch, 0])[1] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=blas.CHOSEN, help="file for the table; default: the library's table"
    )
    options = parser.parse_args()
    import cupy

    library, chosen = blas.on_card(cupy.cuda.Device().id), {}
    print(f"{library.card}, cuBLASLt {library.version}")
    for precision, rows in CASES:
        saved = 0.0
        for name, (product, count) in products(precision, rows).items():
            index, median = fastest(library.algorithms(product))
            saved += count * (median[0] - median[index])
            if index:
                chosen[name] = index
            print(f"{count:3} x {name:60} first {median[0]:.4f} ms, best {median[index]:.4f} ({index})")
        print(f"{precision} {rows}: a step takes {saved:.2f} ms less", flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
    table = json.loads(blas.CHOSEN.read_text("utf-8"))
    table[library.card] = {"cublaslt": library.version, "fastest": dict(sorted(chosen.items()))}
    options.out.write_text(json.dumps(table, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
