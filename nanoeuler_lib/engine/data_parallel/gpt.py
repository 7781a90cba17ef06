"""A model and its optimiser's state on several GPUs. Each has all weights that kernels read; the rest is sharded."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nanoeuler_lib import cuda, model
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.cuda.blas import to_bfloat16
from nanoeuler_lib.engine import gpt, memory
from nanoeuler_lib.engine.data_parallel.cut import Bucket, buckets
from nanoeuler_lib.engine.data_parallel.group import Group
from nanoeuler_lib.engine.memory import download, layout, upload
from nanoeuler_lib.model import optim, parameter_shapes


class Owned:
    """Hold a rank's part of an array with a number per parameter: a flat float32 slice of each bucket in `cut`."""

    def __init__(self, config: ModelConfig, group: Group, cut: list[Bucket], slices: list):
        self.config, self.group, self.cut, self.slices = config, group, cut, slices

    @classmethod
    def zeros(cls, config: ModelConfig, group: Group, cut: list[Bucket], where: str) -> "Owned":
        """Return an array of zeros in device memory."""
        xp, parts = cuda.array_module(where), [b.of(group.rank, group.size) for b in cut]
        return cls(config, group, cut, [xp.zeros(part.stop - part.start, np.float32) for part in parts])

    def fill(self, flat: np.ndarray) -> None:
        """Copy this rank's part of the whole flat array."""
        for bucket, mine in zip(self.cut, self.slices, strict=True):
            upload(mine, flat[bucket.of(self.group.rank, self.group.size)])

    def host(self) -> model.Parameters:
        """Return all numbers as NumPy arrays on rank 0, and zeros on the other ranks. Every rank has to call it."""
        rank, size, cut = self.group.rank, self.group.size, self.cut
        mine = [download(x) for x in self.slices]
        if rank:
            self.group.exchange([(0, x) for x in mine], [])
            return model.Parameters(self.config)
        whole = memory.Parameters(self.config, "cpu")
        self.group.exchange([], [(other, whole.flat[b.of(other, size)]) for other in range(1, size) for b in cut])
        for bucket, x in zip(cut, mine, strict=True):
            whole.flat[bucket.of(0, size)] = x
        return whole.host()


class AdamW:
    """Hold the first and second moments, sharded by owner, with the interface of `engine.AdamW`."""

    def __init__(self, shape: ModelConfig, config: TrainConfig, where: str, group: Group):
        self.config, self.step, self.loss_scale = config, 0, ()
        with memory.room_for("AdamW's state", 8 * layout(shape)[2] // group.size, where, memory.SMALLER):
            self.m, self.v = (Owned.zeros(shape, group, buckets(shape, config.optimizer), where) for _ in range(2))

    @classmethod
    def of(cls, host: optim.AdamW, shape: ModelConfig, where: str, group: Group) -> "AdamW":
        """Return a copy of an optimiser's state, of which this rank keeps its part."""
        state = cls(shape, host.config, where, group)
        state.m.fill(flat_of(shape, host.m)), state.v.fill(flat_of(shape, host.v))
        state.step, state.loss_scale = host.step, getattr(host, "loss_scale", ())
        return state


class GPT(gpt.GPT):
    """Run `engine.GPT` on each of several GPUs.

    Every rank has full copies: matrices in 16 bits (or float32), embedding and gains in float32. With 16 bits, the
    float32 matrices that the optimiser updates are stored only on their owners; `params.host()` collects them.
    optimizer: "adamw" or "muon", which decides the owners.
    """

    def __init__(self, config: ModelConfig, params: Mapping, group: Group, optimizer: str = "adamw", **options: Any):
        self.group, self.optimizer, self.cut = group, optimizer, buckets(config, optimizer)
        super().__init__(config, params, **options)

    def _bytes_of_weights(self):
        count = layout(self.config)[2]
        return count * self.half.itemsize + 4 * count // self.group.size

    def _take_memory(self):
        config, xp = self.config, cuda.array_module(self.program.where)
        starts, *_ = layout(config)
        rank, size, cut = self.group.rank, self.group.size, self.cut
        types = [np.dtype(np.float32) if b.full else self.half for b in cut]
        self.read = [xp.zeros(b.stop - b.start, kind) for b, kind in zip(cut, types, strict=True)]
        self.weights, owned = {}, []
        for name, shape in parameter_shapes(config).items():
            place = next(k for k, b in enumerate(cut) if b.start <= starts[name] < b.stop)
            begin = starts[name] - cut[place].start
            self.weights[name] = self.read[place][begin : begin + int(np.prod(shape))].reshape(shape)
        for bucket, whole in zip(cut, self.read, strict=True):
            mine = whole[bucket.inside(rank, size)]
            owned += [mine if mine.dtype == np.float32 else xp.zeros(mine.size, np.float32)]
        self.params, self.copy = Owned(config, self.group, cut, owned), None
        self.arriving = {}  # by bucket: an event that completes when all of it has arrived

    def wait_for_weights(self, number: int | None = None) -> None:
        """Make later launches wait until the weights of a bucket have arrived; None: of all buckets."""
        for k in [*self.arriving] if number is None else [number]:
            if k in self.arriving:
                import cupy

                cupy.cuda.get_current_stream().wait_event(self.arriving.pop(k))

    def plan(self, batch: int, time: int, settled: bool = True) -> memory.Plan:
        """Return the plan as `engine.GPT.plan` does; settled: make later launches wait for all weights."""
        if settled:
            self.wait_for_weights()
        return super().plan(batch, time)

    def fill(self, host: Mapping) -> None:
        """Set the parameters to the numbers of NumPy arrays with the same names."""
        flat = flat_of(self.config, host)
        for bucket, whole in zip(self.cut, self.read, strict=True):
            numbers = flat[bucket.start : bucket.stop]
            upload(whole, to_bfloat16(numbers) if whole.dtype == np.uint16 else numbers)
        self.params.fill(flat)

    def decoder(self, ahead: int = 0):
        """Return a decoder on rank 0. The other ranks must call `params.host()` at the same time, to send weights."""
        options = dict(precision=self.precision, where=self.program.where, checked=self.program.checked)
        return gpt.GPT(self.config, self.params.host(), **options).decoder(ahead)


def shared_out(owner: GPT, work: Callable[[Any], Any]) -> Any:
    """Return `work(owner)`, with its calls of `owner.losses` distributed over the ranks.

    work may use only the sums of these losses. It is called twice: first each rank computes the sums of some calls,
    then work runs again with all sums known. So it adds them in its own order, with bitwise identical results on any
    number of GPUs. Every rank has to call it.
    """
    work(asked := _Asked(owner))
    sums = np.sum(owner.group.all_gather(asked.sums), axis=0)  # each call's sum is 0 on all ranks but one
    return work(_Asked(owner, sums))


class _Asked:
    """Stand in for a model: record the sums of its losses, or return the sums that are known."""

    def __init__(self, owner, known=None):
        self.owner, self.config, self.known, self.sums = owner, owner.config, known, []

    def losses(self, tokens, targets):
        number, nats, group = len(self.sums), 0.0, self.owner.group
        if self.known is not None:
            nats = float(self.known[number])
        elif number % group.size == group.rank:
            nats = float(self.owner.losses(tokens, targets).sum(dtype=np.float64))
        self.sums.append(nats)
        return np.array(nats)


def flat_of(config: ModelConfig, host: Mapping) -> np.ndarray:
    """Copy NumPy arrays by name into the engine's flat layout."""
    return memory.Parameters(config, "cpu").fill(host).flat
