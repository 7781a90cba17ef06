"""The one exception that users are meant to read, and how its messages show what was found."""

import difflib
import reprlib
from collections.abc import Iterable


class NanoEulerError(ValueError):
    """Bad input, told in one line: the value found and the value expected; the command exits with code 2."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the text by itself."""
        return str(self).split("\n")


class _Short(reprlib.Repr):
    def repr_int(self, x, level):  # Python writes no integer of thousands of digits
        return "an integer past 2^60" if abs(x) >= 2**60 else repr(x)


_SHORT = _Short()


def short(value: object) -> str:
    """A value as a message shows it: texts cut to some thirty characters, lists to six entries."""
    return _SHORT.repr(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ ", did you mean small?" if one of the known words is nearly this one, else nothing."""
    bare = {name.lstrip("-"): name for name in known}  # what all options begin with makes none like another
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1, 0.7)
    return f", did you mean {bare[near[0]]}?" if near else ""
