"""The one exception that users are meant to read."""


class NanoEulerError(ValueError):
    """Bad input, told in one line: the value found and the value expected; the command exits with code 2."""
