"""Are the notebooks' outputs, figures too, byte for byte those of another commit?

    make execute                                   # run the notebooks again, in place
    python -m tools.notebooks.outputs 6122c10      # exit status 1, and the cells, where an output is another one

For changes that must not show: of the cells that have an output on either side, by their ids.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outputs(text: str) -> dict[str, str]:
    """The outputs of each code cell that has one, as JSON, by the cell's id."""
    cells = json.loads(text)["cells"]
    return {cell["id"]: json.dumps(cell["outputs"], sort_keys=True) for cell in cells if cell.get("outputs")}


def main() -> int:
    (commit,) = sys.argv[1:]
    git = lambda *words: subprocess.check_output(["git", *words], cwd=ROOT, text=True)
    there = set(git("ls-tree", "--name-only", commit, "notebooks/").split())
    here = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    same = differ = 0
    for path in sorted(there | here):
        before = outputs(git("show", f"{commit}:{path}")) if path in there else {}
        now = outputs((ROOT / path).read_text("utf-8")) if path in here else {}
        for cell in sorted(before.keys() | now.keys()):
            if before.get(cell) == now.get(cell):
                same += 1
            else:
                differ += 1
                print(f"{path}, cell {cell}: another output")
    print(f"{same} outputs are those of {commit}, {differ} are not")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
