"""Chapter 25: time the versions of a matrix product against cuBLAS, pure multiply-adds and a copy; find hidden races.

    python -m experiments.ch25              # on a GPU: 4096 x 4096 times 4096 x 4096
    python -m experiments.ch25 --small      # small matrices, few launches: a test that it runs on a CPU

Kernels and measurements are in the chapter: its cells tagged `experiment` are run here, including those of CUDA C++.
Without a GPU, the rows are for a CPU, compared with NumPy's product.
"""

import argparse

from nanoeuler_lib import cuda
from tools.notebooks.cells import run_tagged
from tools.notebooks.results import save

CHAPTER = "25_matrix_multiplication"
FULL = {"measure_ceilings": {}, "measure": {}, "measure_luck": {}, "measure_early": {}}
SMALL = {
    "measure_ceilings": dict(blocks=4, rounds=3, size=1 << 20),
    "measure": dict(side=256, launches=1, rounds=2),
    "measure_luck": dict(launches=2),
    "measure_early": dict(K=64, launches=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="small matrices and few launches")
    small = parser.parse_args().small
    names, sizes = run_tagged(CHAPTER, "experiment"), SMALL if small else FULL
    peak, copy = names["measure_ceilings"](**sizes["measure_ceilings"])
    rows = names["measure"](**sizes["measure"])
    for row in rows:
        print(row, flush=True)
    luck, early = (names[name](**sizes[name]) for name in ("measure_luck", "measure_early"))
    print(luck, early)
    config = {"device": cuda.device(), "small": small, "peak": round(peak), "copy": round(copy)}
    save("ch25", config | {"luck": luck, "early": early}, rows)


if __name__ == "__main__":
    main()
