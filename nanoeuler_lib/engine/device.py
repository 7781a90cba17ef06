"""Choice of the device that a model runs on, and of the matching classes for the CPU, one GPU or several GPUs.

device = choose("auto")             # a GPU if there is one
model = device.place(model)         # `model.GPT` or `engine.GPT`, which have the same methods
with step_of(model)(model, optimizer, config, rows) as take_step: ...
"""

import os
from dataclasses import dataclass, field, replace

from nanoeuler_lib import engine, model
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.cuda import launch
from nanoeuler_lib.engine import data_parallel, flash, memory, program
from nanoeuler_lib.engine.step import LESS
from nanoeuler_lib.errors import NanoEulerError, did_you_mean, short
from nanoeuler_lib.model import optim, step

NAMES = "auto", "cpu", "gpu", "checked"
OTHERS_SAY = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32"}


@dataclass(frozen=True)
class Device:
    """Hold a choice of device: its name, the precision and the process group.

    name: "cpu"; "gpu"; or "checked", the GPU engine run on the CPU with every memory access checked, which is slow.
    precision: "float32", "tf32", "bfloat16" or "float16" (see `engine`), None on the CPU. group: the processes that
    train together, each on a device of this name; None for a single process.
    """

    name: str
    precision: str | None = None
    group: data_parallel.Group | None = field(default=None, compare=False)

    def __str__(self):
        return self.name if self.precision is None else f"{self.name}, {self.precision}"

    @property
    def info(self) -> dict[str, str]:
        """Return what a checkpoint stores about the device: its name and precision; an empty dict for the CPU."""
        return {} if self.name == "cpu" else {"device": self.name, "precision": self.precision}

    def expect_room(self, shape: ModelConfig, train: TrainConfig) -> None:
        """Raise OutOfMemory if training with one row at a time does not fit into memory; call before allocating."""
        if (
            self.name == "cpu" or self.group is not None
        ):  # several GPUs: `data_parallel.Step` checks, because it shards the states
            return
        need = memory.bytes_needed(shape, 1, shape.context, self.precision, optimizer=train.optimizer)
        need["buffers"] += memory.RESERVED if self.name == "gpu" else 0
        free, parts = memory.free_bytes(_where(self.name)), " and ".join(map(memory.gib, need.values()))
        if sum(need.values()) > free:
            raise memory.OutOfMemory(
                f"out of memory: weights, gradient and moments, and one row of {shape.context} tokens take {parts}, "
                f"but {memory.gib(free)} are free: {LESS}"
            )

    def place(self, source: model.GPT, optimizer: str = "adamw") -> model.GPT:
        """Return the model on this device, or itself if it is there. Raises NanoEulerError for an unsupported shape.

        optimizer: "adamw" or "muon". On several GPUs, it decides which GPU owns which parameters.
        """
        if self.name == "cpu":
            return source if step_of(source) is step.Step else model.GPT(source.config, source.params.host())
        options = dict(precision=self.precision, where=_where(self.name))
        if self.group is not None:
            return data_parallel.GPT(source.config, source.params.host(), self.group, optimizer, **options)
        return engine.GPT(source.config, source.params.host(), **options)

    def optimizer(self, source: optim.AdamW, shape: ModelConfig):
        """Return the optimiser's state on this device. shape: the model's configuration."""
        if self.group is not None:
            return data_parallel.AdamW.of(source, shape, _where(self.name), self.group)
        return source if self.name == "cpu" else engine.AdamW.of(source, shape, _where(self.name))


CPU = Device("cpu")


def step_of(placed: model.GPT) -> type:
    """Return the step class that fits a model: `step.Step`, `engine.Step` or `data_parallel.Step`."""
    if isinstance(placed, data_parallel.GPT):
        return data_parallel.Step
    return engine.Step if isinstance(placed, engine.GPT) else step.Step


def default_precision(on: flash.Card) -> str:
    """Return the precision that a GPU takes by default: bfloat16 from compute capability 8.0 on, on 7.5 float16.

    Both have tensor cores for 16 bits, and half the bytes of float32. By its data sheet, a T4 multiplies float16 eight
    times as fast as float32 (65 and 8.1 TFLOP/s). Where there is a choice, bfloat16 needs no loss scale.
    """
    return next((one for one in ("bfloat16", "float16") if on.capability >= program.NEEDS[one]), "float32")


def choose(
    name: str = "auto",
    precision: str | None = None,
    shape: ModelConfig | None = None,
    group: data_parallel.Group | None = None,
) -> Device:
    """Return the device for a name: auto, cpu, gpu (also cuda, or gpu:1 for the second GPU) or checked.

    auto: the GPU if there is one and its kernels support the model's shape, else the CPU. precision: by default
    `default_precision`, and float32 on the CPU. group: each of its processes takes its own GPU.
    Raises NanoEulerError for any other name or precision, for a GPU that does not exist, and for a group on the CPU.
    """
    name, _, number = name.replace("cuda", "gpu", 1).partition(":")
    if name not in NAMES or (number and (name != "gpu" or not number.isdigit())):
        asked = short(f"{name}:{number}" if number else name)
        raise NanoEulerError(
            f"--device must be one of {', '.join(NAMES)}, gpu:1, got {asked}{did_you_mean(name, NAMES)}"
        )
    precision = OTHERS_SAY.get(precision, precision)
    if precision is not None and precision not in program.NUMBER:
        known = tuple(program.NUMBER)
        raise NanoEulerError(
            f"--precision must be one of {', '.join(known)}, got {short(precision)}{did_you_mean(precision, known)}"
        )
    if group is not None and not number and _cards():
        number = str(group.local)
    place = name if name in ("cpu", "checked") else _gpu(number, must=name == "gpu")
    if place != "cpu":
        on = flash.card(_where(place))
        device = Device(place, precision or default_precision(on), group)
        try:
            if shape is not None:
                program.check_config(shape, device.precision, on)
            return device
        except NanoEulerError:
            if name != "auto":
                raise
    if precision not in (None, "float32"):
        raise NanoEulerError(f"--precision must be float32 on the CPU, got {precision}: take --device gpu")
    if group is not None:
        raise NanoEulerError("--device must be gpu or checked with --gpus, got cpu")
    return CPU


def chosen_before(
    info: dict,
    name: str | None = None,
    shape: ModelConfig | None = None,
    group: data_parallel.Group | None = None,
) -> Device:
    """Return the device for a resumed run: `name` if given, else the run's earlier device, in the run's precision.

    info: what the run's checkpoint stores about its device, see `Device.info`; shape, group: as for `choose`. Raises
    NanoEulerError if the run used a GPU and there is none here.
    """
    before = info.get("device", "cpu")
    if name is None and before == "gpu" and not _cards():
        raise NanoEulerError("the run began on a GPU, but CuPy finds none here: to continue without, add --device cpu")
    device = choose(name or before, None, shape, group)
    if device.name == "cpu" or "precision" not in info:
        return device
    return replace(device, precision=choose(device.name, info["precision"], shape, group).precision)


def _where(name):
    """Return the `where` argument of `cuda.module` for a device's kernels."""
    return "gpu" if name == "gpu" else "cpu"


def _cards() -> int:
    """Return the number of GPUs that CuPy finds; NANOEULER_DEVICE=cpu hides them.

    Raises NanoEulerError if there is one and CuPy is too old.
    """
    if os.environ.get("NANOEULER_DEVICE") == "cpu":
        return 0
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception:  # CuPy is not installed, or the driver is missing or too old: there is no usable GPU
        return 0
    if count:
        launch.check_cupy()
    return count


def _gpu(number: str, must: bool) -> str:
    """Select the GPU with this number and return "gpu"; return "cpu" if there is no GPU and none is required."""
    cards = _cards()
    if not cards and must:
        raise NanoEulerError("--device gpu requires a CUDA device, but CuPy finds none: take --device cpu")
    if number and int(number) >= cards:
        raise NanoEulerError(f"--device gpu:{number}: the number must be below {cards}, the number of GPUs here")
    if cards and number:
        import cupy

        cupy.cuda.Device(int(number)).use()
    return "gpu" if cards else "cpu"
