"""Programs that build and check the book. Run them from the root of the repository: python -m tools.notebooks.mirror

There is a folder for each purpose: `notebooks`; `book` (imports `notebooks`); `course` and `release` (import both).
"""
