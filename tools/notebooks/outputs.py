"""Compare the outputs of the notebooks, including figures, byte by byte with the outputs at a different commit.

    make execute                                   # run the notebooks again, in place
    python -m tools.notebooks.outputs 6122c10      # list the cells whose output differs; exit status 1 if there are any

Use it after changes that must not affect any output. Cells are matched by their ids.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def outputs(text: str) -> dict[str, str]:
    """Return the outputs of code cells as JSON, by cell id. text: the content of the notebook file."""
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
                print(f"{path}, cell {cell}: the output differs")
    print(f"{same} outputs equal those of {commit}, {differ} differ")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
