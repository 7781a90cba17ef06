"""Who adds what, in which order: the tree of shards, and the cut of the parameters among the cards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.engine.memory import ALIGN, layout
from nanoeuler_lib.errors import NanoEulerError

PARTS = 8  # shares of a bucket, as in many.cu: so many cards at most
# Layers of each bucket, in sixteenths: the last ones end the backward pass, and what is sent then hides behind nothing.
SIXTEENTHS = 5, 5, 4, 2


def tree(parts: Sequence):
    """The sum of 2^k parts by a binary tree: neighbours first, then their sums. NumPy's arrays, or numbers.

    Floating-point sums depend on their order; this one does not depend on who computes which half.
    """
    parts = list(parts)
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@dataclass(frozen=True)
class Bucket:
    """A range of the flat parameters whose gradients are sent together.

    full: whether it is read as float32 in every precision, as the embedding and the gains are.
    """

    start: int
    stop: int
    full: bool = False

    @property
    def units(self) -> int:
        """Its length in units of ALIGN numbers."""
        return (self.stop - self.start) // ALIGN

    def share(self, first: int, last: int) -> slice:
        """From share `first` to before `last`, of PARTS: a slice of the flat array."""
        at = (self.start + ALIGN * (self.units * k // PARTS) for k in (first, last))
        return slice(*at)

    def of(self, rank: int, size: int) -> slice:
        """What one of `size` cards owns of the bucket."""
        return self.share(rank * PARTS // size, (rank + 1) * PARTS // size)

    def inside(self, rank: int, size: int) -> slice:
        """The same, counted from the bucket's beginning."""
        part = self.of(rank, size)
        return slice(part.start - self.start, part.stop - self.start)


def buckets(config: ModelConfig) -> list[Bucket]:
    """The buckets in the order in which the backward pass completes them, the same for every number of cards.

    Heads and last layers, ..., first layers, then gains and the embedding. Together they are the flat array.
    """
    starts, gains, end = layout(config)
    first_of = [starts[f"layers.{i}.qkv"] for i in range(config.layers)]
    cuts, done = [gains], 0
    for sixteenths in SIXTEENTHS:
        done += sixteenths
        cuts += [first_of[config.layers - -(-config.layers * done // 16)]]
    filled = [Bucket(start, stop) for stop, start in pairwise(cuts) if start < stop]
    return [*filled, Bucket(gains, end, True), Bucket(0, first_of[0], True)]


def expect_shards(config: TrainConfig, size: int) -> None:
    """Raises NanoEulerError where a step's batch is no tree of shards whose subtrees so many cards can take."""
    count = config.accumulate
    if size not in (1, 2, 4, PARTS):
        raise NanoEulerError(f"cards are {size}, expected 1, 2, 4 or {PARTS}")
    if count & (count - 1) or count % size:
        raise NanoEulerError(
            f"accumulate is {count}, expected a power of two that {size} divides: a step's batch is so many shards of "
            f"{config.batch} rows, and each card takes as many of them"
        )
    if config.optimizer != "adamw":
        raise NanoEulerError(
            f"optimizer must be adamw with --gpus, got {config.optimizer}: it updates whole matrices, and each GPU "
            "holds only parts of them"
        )
