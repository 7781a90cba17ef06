"""The one exception of the town."""


class KonigsbergError(ValueError):
    """Bad input, told in one line: the value found and the value expected."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the text by itself."""
        return str(self).split("\n")
