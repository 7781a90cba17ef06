"""Parse a kernel's text: find its kernels, refuse unsupported code, and prepare the text for a C++ compiler.

`text.py` finds signatures and prepares a text; `reading.py` finds words, brackets and macros; `dialect.py` refuses
unsupported code; `layout.py` computes the layout of types; `variables.py` registers variables with the checker.
"""

from cudacheck.source.text import HEADER_LINES, Parameter, Signature, Text, prepare, signatures

__all__ = ["HEADER_LINES", "Parameter", "Signature", "Text", "prepare", "signatures"]
