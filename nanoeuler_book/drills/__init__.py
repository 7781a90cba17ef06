"""Debugging drills: `breaks` plants a bug in a copy of the package, `diagnose` is the book's tools as a checklist.

Nothing else imports this folder, except the command.
"""
