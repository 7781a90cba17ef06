"""Define CudaCheckError, which every check of `cudacheck` raises."""


class CudaCheckError(ValueError):
    """Bad input: the message gives the value found and the value expected."""

    def _render_traceback_(self) -> list[str]:
        """Let IPython and Jupyter show the message alone."""
        return str(self).split("\n")
