"""NanoEuler: a GPT-2-class language model by hand, and the book that derives it."""

__version__ = "0.1.0"
