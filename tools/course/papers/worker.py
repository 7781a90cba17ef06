"""The process in which a student's function runs: `python -I worker.py FUNCTION CALLS.npz RESULTS.npz`, in its folder.

It reads arrays, calls the function of answers.py, and writes arrays: what it prints counts for nothing. Limits stand
before the first line of the student's code: time of the processor, memory, size of a file; and nothing is imported but
NumPy and what comes with Python.
"""

import contextlib
import io
import sys
from importlib.abc import MetaPathFinder

CPU_SECONDS = 20
MEMORY = 2**31  # bytes of address space: NumPy alone takes a fifth
FILE = 2**27


class NothingElse(MetaPathFinder):
    """Refuses every module but NumPy, Python's own, and the two of the folder."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "answers", "given"):
            raise ImportError(f"{name} is not there: NumPy and Python's own modules are")


def limit() -> None:
    import resource

    for what, most in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, FILE)):
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit of the address space
            resource.setrlimit(what, (most, most))


def arrays_of(result) -> list:
    """A function's result as arrays; TypeError for what is none."""
    import numpy as np

    parts = [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]
    for part in parts:
        if part.dtype.kind not in "fiubc":
            raise TypeError(f"it returns {type(result).__name__} with a part that is no array of numbers")
    return parts


def main(function: str, calls: str, results: str) -> None:
    import numpy as np

    with np.load(calls, allow_pickle=False) as file:
        given = {key: file[key] for key in file.files}
    count = 1 + max(int(key.partition("/")[0]) for key in given)
    limit()
    sys.meta_path.insert(0, NothingElse())
    sys.path.insert(0, ".")
    arrays = {}
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            np.errstate(all="ignore"),
        ):
            import answers

            for call in range(count):
                inputs = [given[f"{call}/{i}"] for i in range(sum(key.startswith(f"{call}/") for key in given))]
                result = getattr(answers, function)(*inputs)
                if result is None:
                    raise NotImplementedError("it returns None: not written yet")
                arrays |= {f"{call}/{i}": part for i, part in enumerate(arrays_of(result))}
    except BaseException as error:  # SystemExit, too
        arrays["error"] = np.array(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    np.savez(results, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
