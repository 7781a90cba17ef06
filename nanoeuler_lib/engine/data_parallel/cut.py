"""The order in which gradients are summed (a binary tree of shards), and the distribution of parameters over GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine.memory import ALIGN, layout
from nanoeuler_lib.errors import NanoEulerError

PARTS = 8  # pieces of a bucket, as in many.cu, and so the largest number of GPUs
# Sixteenths of the layers in each bucket. The last buckets are small because they are complete only when the backward
# pass ends, so no computation overlaps their transfer.
SIXTEENTHS = 5, 5, 4, 2


def tree(parts: Sequence):
    """Return the sum of 2^k numbers or NumPy arrays, added in a binary tree.

    Neighbours are added first, then their sums. A floating-point sum depends on
    the order; this order is the same whoever computes which subtree.
    """
    parts = list(parts)
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@dataclass(frozen=True)
class Bucket:
    """Describe a range of the flat parameters whose gradients are sent together.

    full: whether the GPUs read these parameters as float32 in every precision, as
    they do for the embedding and the gains.
    """

    start: int
    stop: int
    full: bool = False

    @property
    def units(self) -> int:
        """The bucket's length in units of ALIGN numbers."""
        return (self.stop - self.start) // ALIGN

    def share(self, first: int, last: int) -> slice:
        """Return the slice of the flat array with the pieces first to last - 1, out of PARTS."""
        at = (self.start + ALIGN * (self.units * k // PARTS) for k in (first, last))
        return slice(*at)

    def of(self, rank: int, size: int) -> slice:
        """Return the slice of the flat array that GPU `rank` of `size` owns."""
        return self.share(rank * PARTS // size, (rank + 1) * PARTS // size)

    def inside(self, rank: int, size: int) -> slice:
        """Return the same slice as `of`, counted from the beginning of the bucket."""
        part = self.of(rank, size)
        return slice(part.start - self.start, part.stop - self.start)


@dataclass(frozen=True)
class WholeMatrices(Bucket):
    """Describe a bucket whose pieces are whole tensors, because Muon orthogonalises whole matrices.

    starts: where its tensors begin. A piece begins at the tensor's start that is nearest to its start in a `Bucket`. So
    the owners hold about equally many numbers, to which the cost of an update is nearly proportional.
    """

    starts: tuple[int, ...] = ()

    def share(self, first: int, last: int) -> slice:
        """Return the slice of the flat array with the pieces first to last - 1, out of PARTS."""
        even, ends = super().share(first, last), (*self.starts, self.stop)
        return slice(*(min(ends, key=lambda end: abs(end - at)) for at in (even.start, even.stop)))


def buckets(config: ModelConfig, optimizer: str = "adamw") -> list[Bucket]:
    """Return the buckets in the order in which the backward pass completes them, the same for any number of GPUs.

    First the heads with the last layers, and so on down to the first layers, then the gains and the embedding. With
    Muon, the heads have a bucket of their own, and the layers are in `WholeMatrices`.
    """
    starts, gains, end = layout(config)
    first_of = [starts[f"layers.{i}.qkv"] for i in range(config.layers)]
    cuts, done = [gains], 0
    if optimizer == "muon":
        cuts += [starts["heads"]]
    for sixteenths in SIXTEENTHS:
        done += sixteenths
        cuts += [first_of[config.layers - -(-config.layers * done // 16)]]
    filled = [Bucket(start, stop) for stop, start in pairwise(cuts) if start < stop]
    if optimizer == "muon":
        inside = lambda b: tuple(start for start in starts.values() if b.start <= start < b.stop)
        filled[1:] = [WholeMatrices(b.start, b.stop, False, inside(b)) for b in filled[1:]]
    return [*filled, Bucket(gains, end, True), Bucket(0, first_of[0], True)]


def expect_shards(config: TrainConfig, size: int) -> None:
    """Raise NanoEulerError unless `size` GPUs can divide a step's batch into subtrees of equally many shards.

    Shards: `config.accumulate`, a power of two and a multiple of size (1, 2, 4 or 8).
    """
    count = config.accumulate
    if size not in (1, 2, 4, PARTS):
        raise NanoEulerError(f"--gpus must be 1, 2, 4 or {PARTS}, got {size}")
    if count & (count - 1) or count % size:
        raise NanoEulerError(
            f"--accumulate must be a power of two and a multiple of {size}, the number of GPUs, got {count}: it is the "
            f"number of shards of {config.batch} rows in a step, and each GPU takes equally many"
        )
