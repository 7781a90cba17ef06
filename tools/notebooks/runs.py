"""Record the complete runs of notebooks in data/runs.json: date, duration and machine of each notebook's run.

`notebook.py` writes it after a run without errors. A second run of the same code does not change the record; delete an
entry to record it again.
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from tools.notebooks.results import ROOT, machine


def file(root: Path = ROOT) -> Path:
    return root / "data" / "runs.json"


def recorded(root: Path = ROOT) -> dict[str, dict]:
    """Return the records of notebooks, by notebook name."""
    return json.loads(file(root).read_text("utf-8")) if file(root).exists() else {}


def digest(path: Path) -> str:
    """Return a hash of a notebook's code, which does not depend on text, outputs and metadata.

    The cell that finds the library is left out, because it is the same in all notebooks.
    """
    cells = json.loads(path.read_text("utf-8"))["cells"]
    own = [cell for cell in cells if "library" not in cell["metadata"].get("tags", ())]
    code = ["".join(cell["source"]) for cell in own if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def record(path: Path, seconds: float, processor_seconds: float, root: Path = ROOT) -> None:
    """Record that a notebook's code has run, unless the same code already has a record.

    seconds: wall-clock time. processor_seconds: the sum over all cores, which other programs do not affect.
    """
    all_runs, code = recorded(root), digest(path)
    if all_runs.get(path.stem, {}).get("code") == code:
        return
    import matplotlib  # imported here, because it takes half a second and building the book does not need it

    all_runs[path.stem] = {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
        "machine": machine() | {"matplotlib": matplotlib.__version__},
        "code": code,
    }
    text = json.dumps(dict(sorted(all_runs.items())), indent=1, ensure_ascii=False) + "\n"
    file(root).parent.mkdir(exist_ok=True)
    file(root).write_text(text, "utf-8")
