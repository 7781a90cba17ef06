"""Debugging drills: `breaks` plants a bug in a copy of the package, and `diagnose` checks a package with many tools.

Only the command `nanoeuler` imports this folder.
"""
