"""The dataclass RunOptions, which holds the options of every function that begins or resumes a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.device import CPU, Device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class RunOptions:
    """Hold the options of a run; the functions that begin or resume one accept them by position or by name.

    quiet: print no plan, progress or samples. workers: threads, by default one per core; a different number rounds
    differently. on_entry: called with each log entry (`report.Live` draws them). files: paths of the data, stored for
    resuming. device: a `Device` from `device.choose`, by default the CPU; for a resumed run a name, by default that of
    the run. profile: number of steps, from the second on, in which every launch on a GPU is timed; the times are
    printed. base: checkpoint whose parameters a pretraining run begins with; shape and tokenizer must be the same.
    group: the processes that resume a run together. floor: function that returns the bits per byte of the validation
    text's source, or None. verifiers: name -> function (problem, answer) -> reward; the first one must be correct.
    settings: text that a new run stores as settings.toml, which `--config` of the command reads.
    """

    quiet: bool = False
    workers: int | None = None
    on_entry: Callable[[dict], None] | None = None
    files: dict[str, str] | None = None
    device: Device | str | None = None
    profile: int = 0
    base: Checkpoint | None = None
    group: data_parallel.Group | None = None
    floor: Callable[[str], float | None] | None = None
    verifiers: Mapping[str, Callable] | None = None
    settings: str | None = None

    def expect_cpu(self, what: str) -> None:
        """Raise NanoEulerError if a device other than the CPU is given; what: the training that needs the CPU."""
        if self.device not in (None, CPU):
            raise NanoEulerError(f"device must be the CPU for {what}, got {self.device}")


DEFAULTS = RunOptions()
