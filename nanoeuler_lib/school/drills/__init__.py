"""Debugging drills: `breaks` plants a bug in a copy of the package, `diagnose` is the book's tools as a checklist.

Nothing else in the library imports this folder.
"""
