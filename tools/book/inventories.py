"""Write intersphinx inventories, so that the book can link to pages of Python and NumPy without a network.

python tools/book/inventories.py    # after adding a name below
"""

import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "book" / "_inventories"

# project: (version, [(role, page, names)]); in a page, $ is replaced by the name
LINKS = {
    "numpy": (
        "2.4",
        [
            (
                "py:function",
                "reference/generated/$.html#$",
                "numpy.allclose numpy.concatenate numpy.einsum numpy.exp numpy.expm1 numpy.linspace numpy.log "
                "numpy.matmul numpy.mean numpy.shares_memory numpy.split numpy.std numpy.take_along_axis "
                "numpy.where numpy.lib.stride_tricks.sliding_window_view",
            ),
            ("py:class", "reference/generated/$.html#$", "numpy.memmap numpy.ndarray"),
            ("py:method", "reference/generated/$.html#$", "numpy.ufunc.at numpy.ufunc.reduce"),
            ("py:function", "reference/random/generator.html#$", "numpy.random.default_rng"),
        ],
    ),
    "python": (
        "3.13",
        [
            ("py:function", "library/functions.html#$", "enumerate len map max min ord sorted zip"),
            ("py:class", "library/stdtypes.html#$", "bytes dict list str"),
            ("py:method", "library/stdtypes.html#$", "bytes.decode str.encode"),
            ("py:function", "library/math.html#$", "math.exp math.fsum math.log math.log2 math.sqrt"),
            ("py:function", "library/re.html#$", "re.findall re.split"),
            ("py:class", "library/collections.html#$", "collections.Counter collections.defaultdict"),
            ("py:module", "library/heapq.html#module-$", "heapq"),
            ("py:class", "library/concurrent.futures.html#$", "concurrent.futures.ThreadPoolExecutor"),
        ],
    ),
}


def inventory(project: str, version: str, links: list[tuple[str, str, str]]) -> bytes:
    """Return the inventory of a project in version 2 of Sphinx's format."""
    header = (
        "# Sphinx inventory version 2\n"
        f"# Project: {project}\n"
        f"# Version: {version}\n"
        "# The remainder of this file is compressed using zlib.\n"
    )
    rows = [f"{name} {role} 1 {page.replace('$', name)} -\n" for role, page, names in links for name in names.split()]
    return header.encode() + zlib.compress("".join(rows).encode(), 9)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for project, (version, links) in LINKS.items():
        (FOLDER / f"{project}.inv").write_bytes(inventory(project, version, links))
