"""NanoEulerError, the exception for bad input, and helpers that format values in its messages."""

import difflib
import reprlib
from collections.abc import Iterable


class NanoEulerError(ValueError):
    """Report bad input in one line: "NAME must be WHAT, got VALUE". The command prints it and exits with code 2."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and Jupyter show: the message without a traceback."""
        return str(self).split("\n")


class _Short(reprlib.Repr):
    def repr_int(self, x, level):  # Python refuses to write integers of thousands of digits
        return "an integer past 2^60" if abs(x) >= 2**60 else repr(x)


_SHORT = _Short()


def short(value: object) -> str:
    """Return a value as short text for a message, with strings cut to about 30 characters and lists to 6 entries."""
    return _SHORT.repr(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ", did you mean small?" if a known word is similar to this one, else ""."""
    bare = {name.lstrip("-"): name for name in known}  # without --, which would make all options similar
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1, 0.7)
    return f", did you mean {bare[near[0]]}?" if near else ""
