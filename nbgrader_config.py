"""The course that `make assignment CH=06` fills: how nbgrader makes a release and grades what comes back.

tools/course/assignment.py writes the instructor's notebook, which has no solutions in it already, and copies this file
to it.
"""

from nbgrader import preprocessors as steps

c = get_config()  # noqa: F821  (nbgrader provides it)
c.CourseDirectory.course_id = "nanoeuler"
# ClearSolutions is not among them: it would write its own words over the stubs, contract and all.
c.GenerateAssignment.preprocessors = [
    steps.LockCells,
    steps.ComputeChecksums,
    steps.SaveCells,
    steps.CheckCellMetadata,
    steps.ClearOutput,
    steps.ComputeChecksums,
    steps.CheckCellMetadata,
]
c.OverwriteCells.add_missing_cells = True  # a check that was deleted is put back
# nbgrader's 30 seconds a cell are few on a busy machine; a check stops by itself after 240 at most.
SECONDS = 300
c.Execute.timeout = SECONDS
no_end = f"no end after {SECONDS} seconds"
c.Execute.error_on_timeout = {"ename": "CellTimeoutError", "evalue": no_end, "traceback": [no_end]}
c.Execute.startup_timeout = 180
c.LimitOutput.max_lines = 200
c.ClearMetadataPreprocessor.enabled = False
