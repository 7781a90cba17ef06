"""The exception that every function of `konigsberg` raises for bad input."""


class KonigsbergError(ValueError):
    """Raised for bad input; the message is one line with the required value and the given value."""

    def _render_traceback_(self) -> list[str]:
        """Make IPython and Jupyter show only the message."""
        return str(self).split("\n")
