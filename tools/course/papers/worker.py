"""Run a student's function in the student's folder: `python -I worker.py FUNCTION CALLS.npz RESULTS.npz`.

The program reads arrays, calls the function of answers.py and writes the returned arrays; it drops printed output.
Before the student's code starts, the program limits processor time, memory and the size of files, and allows no imports
except NumPy and Python's standard library.
"""

import contextlib
import io
import sys
from importlib.abc import MetaPathFinder

CPU_SECONDS = 20
MEMORY = 2**31  # bytes of address space, of which NumPy takes a fifth
FILE = 2**27


class NothingElse(MetaPathFinder):
    """Refuse to import modules other than NumPy, the standard library, answers.py and given.py."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("numpy", "answers", "given"):
            raise ImportError(f"{name} cannot be imported here, only NumPy and Python's standard library")


def limit() -> None:
    import resource

    for what, most in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, FILE)):
        with contextlib.suppress(ValueError, OSError):  # macOS cannot limit the address space
            resource.setrlimit(what, (most, most))


def arrays_of(result) -> list:
    """Return a function's result as a list of arrays. Raises TypeError for parts that are not numbers."""
    import numpy as np

    parts = [np.asarray(part) for part in (result if isinstance(result, tuple) else (result,))]
    for part in parts:
        if part.dtype.kind not in "fiubc":
            raise TypeError(f"it must return arrays of numbers, got {type(result).__name__}")
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
    except BaseException as error:  # including SystemExit
        arrays["error"] = np.array(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    np.savez(results, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
