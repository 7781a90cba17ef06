"""The one exception that users are meant to read."""


class NanoEulerError(ValueError):
    """Bad input, told in one line: the value found and the value expected; the command exits with code 2."""

    def _render_traceback_(self) -> list[str]:
        """What IPython and Jupyter show: the text by itself."""
        return str(self).split("\n")
