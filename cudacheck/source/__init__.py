"""Reading a kernel's text: what it declares, what the dialect refuses, and what is put around it before it compiles.

`text.py` prepares a text; `reading.py` finds words, brackets and macros; `dialect.py` refuses; `layout.py` and
`variables.py` know types and names.
"""

from cudacheck.source.text import HEADER_LINES, Parameter, Signature, Text, prepare, signatures

__all__ = ["HEADER_LINES", "Parameter", "Signature", "Text", "prepare", "signatures"]
