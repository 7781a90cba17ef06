"""Make the students' version of a chapter with nbgrader: no solutions, locked checks that give points.

    python -m tools.assignment 06    # -> _build/assignments/release/06/06_attention.ipynb

The folder _build/assignments is a whole nbgrader course: put submissions into submitted/NAME/06/ there and run
`nbgrader autograde 06`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make(
    chapter: str, notebooks: Path = ROOT / "notebooks", course: Path = ROOT / "_build" / "assignments"
) -> Path:
    """Generate the assignment and return the students' notebook."""
    found = sorted(notebooks.glob(f"{chapter}_*.ipynb"))
    if len(found) != 1:
        sys.exit(f"chapter {chapter!r} names {len(found)} notebooks in {notebooks}, expected one (CH=06)")
    source = course / "source" / chapter / found[0].name
    source.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(found[0], source)
    shutil.copy(ROOT / "nbgrader_config.py", course)
    nbgrader = [sys.executable, "-m", "nbgrader", "generate_assignment", chapter, "--create", "--force"]
    # nbgrader calls alembic by its name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = subprocess.run(
        nbgrader, cwd=course, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    if run.returncode:
        sys.exit(run.stdout + run.stderr)
    return course / "release" / chapter / found[0].name


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("which chapter? make assignment CH=06")
    print(make(sys.argv[1]))
