"""The cell magic `%%cuda`: it compiles a notebook cell of CUDA C++ and binds its kernels as Python names.

    %load_ext nanoeuler_lib.cuda.magic

    %%cuda -D TILE=16
    extern "C" __global__ void twice(...) { ... }

This compiles the cell for `cuda.device()` and binds `twice`; the next cell calls twice(grid, block, args). Options:

    --fast         without the checker: races, wrong indices and missing barriers give wrong numbers and no message. A
                   crash or Ctrl-C ends the launch; only Ctrl-C ends an endless loop
    --cpu          compile for the CPU even if there is a GPU
    -D NAME=VALUE  define a macro
    -i 'k<4>'      compile a template instance, under the name k_4

A cell that multiplies with `mma` runs in the checker on the CPU if the GPU has compute capability 7.5, where `mma`
exists for __half only.
"""

import argparse
import builtins
import keyword
import re
import shlex

from nanoeuler_lib.cuda import launch
from nanoeuler_lib.errors import NanoEulerError

MMA = re.compile(r"\bmma<(?!__half>)")
TOO_OLD = "needs compute capability {} or newer; this GPU has {}"


def load_ipython_extension(shell) -> None:
    """Register the magic `%%cuda`; IPython calls this for %load_ext."""
    shell.register_magic_function(_Magic(shell), "cell", "cuda")


class _Magic:
    def __init__(self, shell):
        self.shell = shell

    def __call__(self, line: str, cell: str) -> None:
        """Compile a cell of CUDA C++ and bind its kernels.

        %%cuda [--fast] [--cpu] [-D NAME=VALUE] [-i 'kernel<4>']

        --fast: without the checker, so races, wrong indices and missing barriers give wrong numbers and no message;
        --cpu: compile for the CPU even if there is a GPU; -D: define a macro; -i: compile a template instance, under
        the name kernel_4.
        """
        options = _options(line)
        missing = MMA.search(cell) and not options.cpu and launch.capability() < 80
        if missing:
            print(TOO_OLD.format(8.0, launch.capability() / 10) + ", so this kernel runs in the checker on the CPU")
        compiled = launch.module(
            "\n" + cell,  # line 1 of the cell is the magic, so line numbers of a finding match the cell's
            where="cpu" if options.cpu or missing else None,
            checked=not options.fast,
            defines=dict(d.partition("=")[::2] for d in options.define),
            instantiate=options.instantiate,
        )
        kernels = {re.sub(r"\W+", "_", name).strip("_"): compiled[name] for name in compiled}
        for name in kernels:
            if hasattr(builtins, name) or keyword.iskeyword(name):
                raise NanoEulerError(f"`{name}` is a Python name: call the kernel {name}_kernel, for example")
        self.shell.push(kernels)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise NanoEulerError(
            f"%%cuda: {message}; it takes --fast (without the checker), --cpu, -D NAME=VALUE, -i 'kernel<4>'"
        )


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%cuda", add_help=False)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("-D", dest="define", action="append", default=[])
    parser.add_argument("-i", dest="instantiate", action="append", default=[])
    try:
        words = shlex.split(line)
    except ValueError as error:  # an unclosed quotation mark
        parser.error(str(error).lower())
    return parser.parse_args(words)
