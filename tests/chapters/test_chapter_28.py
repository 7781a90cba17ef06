"""Chapter 28: its checks accept what is right and reject wrong answers, each of them named."""

import numpy as np
import pytest
from chapters import accepts, rewritten_tests

NOTEBOOK = "28_flash_backward", "xp", "MISTAKES"
pytestmark = pytest.mark.compiler


# ---- The gaps


WRONG_TILES = {
    "no mask": ("np.where(allowed, scale * (q @ k.T), -np.inf)", "scale * (q @ k.T)"),
    "infinity times the mask": (
        "np.where(allowed, scale * (q @ k.T), -np.inf)  # [R, C] @ [C, K] -> [R, K]\n    p = ",
        "scale * (q @ k.T)\n    p = allowed * ",
    ),
    "no delta": (" - delta[:, None]", ""),
    "dk and dv change places": ("ds.T @ q, p.T @ dy", "p.T @ dy, ds.T @ q"),
    "q is overwritten": ("    scale =", "    q *= 2\n    scale ="),
}
WRONG_QUERY_TILES = {
    "from the first tile": ("start // rows, ", "0, "),
    "free one later": ("-(-last // rows)", "last // rows + 1"),
    "keys after the end": ("min(start + keys, T)", "start + keys"),
    "never free": ("-(-last // rows)", "-(-T // rows)"),
}


RIGHT_KERNELS = {"exp2": (("__expf(scale * dot - lse[query])", "exp2f((scale * dot - lse[query]) * 1.44269504f)"),)}
WRONG_KERNELS = {
    "no barrier after the sums": ("__syncthreads();  // no thread", "// no thread"),
    "infinity times the mask": (
        "seen ? __expf(scale * dot - lse[query]) : 0.0f",
        "__expf(scale * dot - (query < T ? lse[query] : 0.0f)) * (seen ? 1.0f : 0.0f)",
    ),
    "delta of the key": ("delta[query]", "delta[position]"),
    "reads beyond the end": ("position <= query && query < T", "position <= query"),
}
RIGHT_QUERIES = {
    "masked by a huge negative score": (
        (
            "seen ? __expf(scale * dot - lse) * (dp - delta) : 0.0f",
            "__expf((seen ? scale * dot : -1e30f) - lse) * (dp - delta)",
        ),
    )
}
WRONG_QUERIES = {
    "the diagonal left out": ("start + key <= position", "start + key < position"),
    "infinity times the mask": (
        "seen ? __expf(scale * dot - lse) * (dp - delta) : 0.0f",
        "(seen ? 1.0f : 0.0f) * __expf(scale * dot - lse) * (dp - delta)",
    ),
    "scaled twice": ("sum[c] += change", "sum[c] += scale * change"),
    "a lane's own": ("__shfl_sync(0xffffffffu, ds[j / 4], j % 4, 4)", "ds[j / 4]"),
}
test_right_kernels, test_wrong_gaps = rewritten_tests(
    {
        "check_tile": ("tile_back", {}, WRONG_TILES),
        "check_query_tiles": ("query_tiles", {}, WRONG_QUERY_TILES),
        "check_keys": ("keys_kernel", RIGHT_KERNELS, WRONG_KERNELS),
        "check_queries": ("queries_kernel", RIGHT_QUERIES, WRONG_QUERIES),
    }
)


# ---- The exercises; the wrong answers that a solution names are tried where the notebook runs


test_other_launches_hide_as_well = accepts(
    {"check_launch": [lambda: {"A": (3, 1, 70), "B": np.array([3, 3, 5]), "C": [4, 2, 32], "D": None}]}
)
