"""Text that is written to a file whole or not at all, and text that can be shown."""

import os
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text under another name and rename it. Raises NanoEulerError if that fails; what was there stays."""
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8", newline="\n")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise NanoEulerError(f"{path}: cannot be written ({error.strerror})") from None


def printable(text: str) -> str:
    """The text with U+FFFD for control characters, which models at their beginning write; line breaks and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
