"""Define RunOptions, the options of every function that begins or resumes a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nanoeuler_lib.engine import data_parallel
from nanoeuler_lib.engine.device import CPU, Device
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.training.checkpoint import Checkpoint


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; the functions that begin or resume one take them by position or by name.

    quiet: print no plan, progress or samples. workers: threads, by default one per core; another number rounds
    differently. on_entry: called with each entry of the log (`report.Live` draws them). files: where the data was read
    from, kept for whoever resumes the run. device: where a new run trains (`device.choose`), by default on the CPU; for
    a run that is resumed the name of a device, by default that of the run. profile: on a GPU, time every launch of so
    many steps, from the second on, and print where the time goes. base: a checkpoint whose parameters a pretraining run
    begins with; shape and tokenizer must be the same. group: the processes that resume a run together; a new run takes
    those of its device. floor: function from the validation text to the bits per byte of its source, or to None if they
    are unknown. verifiers: name -> function of a problem and an answer, which returns a reward; the first one tells the
    truth.
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

    def expect_cpu(self, what: str) -> None:
        """Raises NanoEulerError where a run that learns only on the CPU is given another device."""
        if self.device not in (None, CPU):
            raise NanoEulerError(f"device must be the CPU for {what}, got {self.device}")


DEFAULTS = RunOptions()
