"""Define CudaCheckError, which every check of `cudacheck` raises."""


class CudaCheckError(ValueError):
    """Report bad input or a bug in a kernel; the message gives the actual value and the required value."""

    def _render_traceback_(self) -> list[str]:
        """Make IPython and Jupyter show only the message."""
        return str(self).split("\n")
