"""Turn a chapter into an assignment: `make assignment CH=06`.

The chapter's own notebook is the source. Cells tagged `solution` go; the stubs stay, with nbgrader's marks on them; and
a check ends in the points that it gives, which nbgrader counts: `judge` never raises, and a cell that does not raise
would earn all of them.
"""

import re

from nbconvert.preprocessors import Preprocessor
from nbgrader import preprocessors as steps

JUDGED = re.compile(r"^(own_\w+) = judge\(", re.M)


class StudentVersion(Preprocessor):
    def preprocess(self, notebook, resources):
        notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
                right = " and ".join(f"{name} is not None" for name in JUDGED.findall(cell.source))
                cell.source += f"\n{cell.metadata.nbgrader.points} * ({right})"
        return notebook, resources


c = get_config()  # noqa: F821  (nbgrader provides it)
c.CourseDirectory.course_id = "nanoeuler"
c.StudentVersion.enabled = True
c.GenerateAssignment.preprocessors = [
    StudentVersion,
    steps.LockCells,
    steps.ComputeChecksums,
    steps.SaveCells,
    steps.CheckCellMetadata,
    steps.ClearOutput,
    steps.ClearHiddenTests,
    steps.ComputeChecksums,
    steps.CheckCellMetadata,
]
