"""Import the packages and use the command as Windows would let them, on Linux: `python windows.py PACKAGES LINES`.

Simulated: modules, signals and functions of POSIX are missing; open files can be neither renamed nor deleted, nor can
the folders that they are in. Not simulated: paths, line ends, processes, locks of mapped files.
"""

import importlib
import os
import pkgutil
import shlex
import shutil
import signal
import sys
import tempfile

MISSING = {"fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
SIGNALS = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"}
FUNCTIONS = (
    "fork forkpty geteuid getuid getgid getpgid killpg setsid sched_getaffinity sysconf mkfifo chown fchmod".split()
)


class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def only_closed(function):
    """Wrap a function that renames or deletes its first argument, so that it refuses open files."""

    def guarded(path, *rest, **options):
        real, used = os.path.realpath(path), []
        for handle in os.listdir("/proc/self/fd"):
            try:
                used.append(os.readlink(f"/proc/self/fd/{handle}"))
            except OSError:  # that of listdir
                pass
        if any(file == real or file.startswith(f"{real}/") for file in used):
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        return function(path, *rest, **options)

    return guarded


def become_windows() -> None:
    sys.meta_path.insert(0, Refuse)
    for name in MISSING:
        sys.modules.pop(name, None)
    for name in [name for name in dir(signal) if name.startswith("SIG") and name.isalpha()]:
        if name not in SIGNALS | {"SIG"}:
            delattr(signal, name)
    for name in FUNCTIONS:
        delattr(os, name)
    for name in ("rename", "replace", "remove", "unlink", "rmdir"):
        setattr(os, name, only_closed(getattr(os, name)))
    shutil._use_fd_functions, tempfile.TemporaryFile = False, tempfile.NamedTemporaryFile
    original = os.open

    def open_file(path, *rest, **options):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied")
        return original(path, *rest, **options)

    os.open = open_file


if __name__ == "__main__":
    packages, lines = (argument.splitlines() for argument in sys.argv[1:])
    become_windows()
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    from nanoeuler_lib.command import cli

    for line in lines:
        assert not cli.main(shlex.split(line)), line
