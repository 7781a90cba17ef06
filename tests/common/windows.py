"""Import packages and run lines of the command as Windows would, on Linux: `python windows.py PACKAGES LINES`.

Simulated: modules, signals and functions of POSIX are missing; open files can be neither renamed nor deleted, nor can
the folders that they are in. Not simulated: paths, line ends, processes, locks of mapped files.
"""

import asyncio  # noqa: F401 - Linux's, which needs os.sysconf; unittest.mock imports it
import importlib
import os
import pkgutil
import shlex
import shutil
import signal
import sys
import tempfile

SIGNALS = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"}
FUNCTIONS = (
    "fork forkpty geteuid getuid getgid getpgid killpg setsid sched_getaffinity sysconf mkfifo chown fchmod".split()
)


def only_closed(function):
    """Wrap a function that renames or deletes its first argument, so that it refuses open files."""

    def guarded(path, *rest, **options):
        handles = (f"/proc/self/fd/{handle}" for handle in os.listdir("/proc/self/fd"))
        used = [os.readlink(handle) + "/" for handle in handles if os.path.lexists(handle)]
        if any(file.startswith(f"{os.path.realpath(path)}/") for file in used):
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return function(path, *rest, **options)

    return guarded


if __name__ == "__main__":
    sys.modules.update(
        dict.fromkeys("fcntl grp pty pwd readline resource syslog termios tty".split())
    )  # None: an import raises ImportError
    for name in {name for name in dir(signal) if name.startswith("SIG") and name.isalpha()} - SIGNALS:
        delattr(signal, name)
    for name in FUNCTIONS:
        delattr(os, name)
    for name in ("rename", "replace", "remove", "unlink", "rmdir"):
        setattr(os, name, only_closed(getattr(os, name)))
    shutil._use_fd_functions, tempfile.TemporaryFile = False, tempfile.NamedTemporaryFile
    for package in sys.argv[1].split():
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    from nanoeuler_lib.command import cli

    for line in sys.argv[2].splitlines():
        assert not cli.main(shlex.split(line)), line
