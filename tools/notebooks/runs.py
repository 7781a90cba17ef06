"""The record of notebook runs, data/runs.json: when each notebook's code ran whole, how long, and on what.

`notebook.py` writes it after a run that reached the last cell. A second run of the same code leaves the record as
it is, so that nothing changes without a reason; delete an entry to have it taken anew.
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from tools.notebooks.results import ROOT, machine


def file(root: Path = ROOT) -> Path:
    return root / "data" / "runs.json"


def recorded(root: Path = ROOT) -> dict[str, dict]:
    """The record of each notebook that has one, by the notebook's name."""
    return json.loads(file(root).read_text("utf-8")) if file(root).exists() else {}


def digest(path: Path) -> str:
    """A name for the notebook's code: it changes when a code cell does, not with text, outputs or metadata.

    The cell that finds the library, the same in all of them, is left out.
    """
    cells = json.loads(path.read_text("utf-8"))["cells"]
    own = [cell for cell in cells if "library" not in cell["metadata"].get("tags", ())]
    code = ["".join(cell["source"]) for cell in own if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def record(path: Path, seconds: float, processor_seconds: float, root: Path = ROOT) -> None:
    """Note that the notebook's code has run; nothing if the same code has a record already.

    seconds: by the clock on the wall; processor_seconds: of all cores together, which other work on the machine
    does not lengthen.
    """
    all_runs, code = recorded(root), digest(path)
    if all_runs.get(path.stem, {}).get("code") == code:
        return
    import matplotlib  # half a second, which the book's build does not need

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
