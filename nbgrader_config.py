"""Turn a chapter into an assignment: `make assignment CH=06`.

The chapter's own notebook is the source. Cells tagged `solution` go; the stubs stay, with nbgrader's marks on them; and
the checks become strict, so that a stub left alone earns nothing (in the book it prints "not written yet").
"""

from nbconvert.preprocessors import Preprocessor
from nbgrader import preprocessors as steps

SOFT, STRICT = 'return "not written yet"', 'raise NotImplementedError("not written yet")'


class StudentVersion(Preprocessor):
    def preprocess(self, notebook, resources):
        notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade") and cell.cell_type == "code":
                cell.source = cell.source.replace(SOFT, STRICT)
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
