"""Where a model runs: the one place that chooses between the classes of the CPU and those of the GPU.

device = choose("auto")             # a GPU if there is one
model = device.place(model)         # the same face, `model.GPT` or `engine.GPT`
with step_of(model)(model, optimizer, config, rows) as take_step: ...
"""

import os
from dataclasses import dataclass, field, replace

from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine import data_parallel, flash, memory, program
from nanoeuler_lib.engine.step import LESS
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.model import optim, step

NAMES = "auto", "cpu", "gpu", "checked"
OTHERS_SAY = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32"}


@dataclass(frozen=True)
class Device:
    """name: "cpu"; "gpu"; or "checked", the GPU's engine on the CPU with every access checked, slow. precision: of
    `engine`, None on the CPU. group: the processes that train together, each on a device of this name."""

    name: str
    precision: str | None = None
    group: data_parallel.Group | None = field(default=None, compare=False)

    def __str__(self):
        return self.name if self.precision is None else f"{self.name}, {self.precision}"

    @property
    def info(self) -> dict[str, str]:
        """What a checkpoint says of it; of the CPU nothing."""
        return {} if self.name == "cpu" else {"device": self.name, "precision": self.precision}

    def expect_room(self, shape: ModelConfig, train: TrainConfig) -> None:
        """Raises OutOfMemory where training has no room for one row at a time. Before anything lies there."""
        if (
            self.name == "cpu" or self.group is not None
        ):  # many cards: `data_parallel.Step` tells, for it cuts the states
            return
        need = memory.bytes_needed(shape, 1, shape.context, self.precision, optimizer=train.optimizer)
        need["buffers"] += memory.RESERVED if self.name == "gpu" else 0
        free, parts = memory.free_bytes(_where(self.name)), " and ".join(map(memory.gib, need.values()))
        if sum(need.values()) > free:
            raise memory.OutOfMemory(
                f"out of memory: weights, gradient and moments, and one row of {shape.context} tokens take {parts}, "
                f"{memory.gib(free)} are free: {LESS}"
            )

    def place(self, source: model.GPT) -> model.GPT:
        """The model there; itself if it is. Raises NanoEulerError for a shape that the GPU's kernels do not take."""
        if self.name == "cpu":
            return source if step_of(source) is step.Step else model.GPT(source.config, source.params.host())
        options = dict(precision=self.precision, where=_where(self.name))
        if self.group is not None:
            return data_parallel.GPT(source.config, source.params.host(), self.group, **options)
        return engine.GPT(source.config, source.params.host(), **options)

    def optimizer(self, source: optim.AdamW, shape: ModelConfig):
        """The optimiser's state there."""
        if self.group is not None:
            return data_parallel.AdamW.of(source, shape, _where(self.name), self.group)
        return source if self.name == "cpu" else engine.AdamW.of(source, shape, _where(self.name))


CPU = Device("cpu")


def step_of(placed: model.GPT) -> type:
    """The class of steps for a model: `step.Step`, `engine.Step` or `data_parallel.Step`."""
    if isinstance(placed, data_parallel.GPT):
        return data_parallel.Step
    return engine.Step if isinstance(placed, engine.GPT) else step.Step


def choose(
    name: str = "auto",
    precision: str | None = None,
    shape: ModelConfig | None = None,
    group: data_parallel.Group | None = None,
) -> Device:
    """The device that a name means: auto, cpu, gpu (or cuda, gpu:1 for the second card), checked.

    auto: the GPU if there is one that takes the model's shape, else the CPU. precision: by default bfloat16 on tensor
    cores of compute capability 8.0 or later, else float32. group: each of its processes takes a card of its own. Raises
    NanoEulerError for another name or precision, for a GPU that is not there, and for a group on the CPU.
    """
    name, _, number = name.replace("cuda", "gpu", 1).partition(":")
    if name not in NAMES or (number and (name != "gpu" or not number.isdigit())):
        asked = short(f"{name}:{number}" if number else name)
        raise NanoEulerError(f"device is {asked}, expected one of {', '.join(NAMES)}, gpu:1{did_you_mean(name, NAMES)}")
    precision = OTHERS_SAY.get(precision, precision)
    if precision is not None and precision not in program.NUMBER:
        known = tuple(program.NUMBER)
        raise NanoEulerError(
            f"precision is {short(precision)}, expected one of {', '.join(known)}{did_you_mean(precision, known)}"
        )
    if group is not None and not number and _cards():
        number = str(group.local)
    place = name if name in ("cpu", "checked") else _gpu(number, must=name == "gpu")
    if place != "cpu":
        on = flash.card(_where(place))
        device = Device(place, precision or ("bfloat16" if on.capability >= 80 else "float32"), group)
        try:
            if shape is not None:
                program.check_config(shape, device.precision, on)
            return device
        except NanoEulerError:
            if name != "auto":
                raise
    if precision not in (None, "float32"):
        raise NanoEulerError(f"precision is {precision}, expected float32 on the CPU, or --device gpu")
    if group is not None:
        raise NanoEulerError("--device must be gpu or checked with --gpus, got cpu")
    return CPU


def chosen_before(
    info: dict,
    name: str | None = None,
    shape: ModelConfig | None = None,
    group: data_parallel.Group | None = None,
) -> Device:
    """The device of a run that goes on: the one it had, or the one that `name` asks for, in the run's precision."""
    before = info.get("device", "cpu")
    if name is None and before == "gpu" and not _cards():
        raise NanoEulerError("the run began on a GPU, and CuPy finds none here: --device cpu goes on without")
    device = choose(name or before, None, shape, group)
    if device.name == "cpu" or "precision" not in info:
        return device
    return replace(device, precision=choose(device.name, info["precision"], shape, group).precision)


def _where(name):
    """Of `cuda.module`: where the kernels of a device run."""
    return "gpu" if name == "gpu" else "cpu"


def _cards() -> int:
    """How many GPUs CuPy finds; NANOEULER_DEVICE=cpu hides them."""
    if os.environ.get("NANOEULER_DEVICE") == "cpu":
        return 0
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # not installed, no driver, or a driver that is too old: all say that there is none
        return 0


def _gpu(number: str, must: bool) -> str:
    """ "gpu" with that card selected, or "cpu" where none need be."""
    cards = _cards()
    if not cards and must:
        raise NanoEulerError("device is gpu, and CuPy finds no CUDA device: expected a card, or --device cpu")
    if number and int(number) >= cards:
        raise NanoEulerError(f"device is gpu:{number}, expected a number below {cards}, the cards there are")
    if cards and number:
        import cupy

        cupy.cuda.Device(int(number)).use()
    return "gpu" if cards else "cpu"
