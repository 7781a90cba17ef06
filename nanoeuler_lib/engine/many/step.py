"""A training step on many cards, the same bits on 1, 2, 4 or 8 of them.

A step's batch is S shards. Each card computes the gradients of its shards one after another and adds them by a binary
tree; while its last shard's backward pass still runs, slices of what is complete go to their owners, who add the cards'
sums by the upper part of the tree. Then the norm, AdamW by the owners, and what products read goes to all. Chapter 33.
"""

import math
from contextlib import contextmanager

import numpy as np

from nanoeuler_lib import cuda
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.cuda.blas import Product, on_card
from nanoeuler_lib.engine import program, step
from nanoeuler_lib.engine.many.cut import PARTS, buckets, expect_shards, tree
from nanoeuler_lib.engine.many.gpt import GPT, AdamW, Owned, within
from nanoeuler_lib.engine.memory import Parameters, bytes_needed, download, free_bytes, layout
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import backward, forward, head_weights, loss_scale

BLOCKS, THREADS = 32, 512  # of the squares of a share of a bucket
HASH_BLOCKS = 256


class Step(step.Step):
    """One optimisation step on a batch [S B, T]: the face of `engine.Step`, called on every rank with the whole batch.

    S shards of `config.batch` rows are `config.accumulate` (`expect_shards`); this rank takes its own. Raises
    NanoEulerError where a card has no room for a shard: a run's shard never changes, for other rows round otherwise.
    """

    def __init__(
        self,
        owner: GPT,
        optimizer: AdamW,
        config: TrainConfig,
        rows: int,
        workers: int | None = None,
        micro: int | None = None,
    ):
        self.model, self.optimizer, self.config, self.rows = owner, optimizer, config, rows
        self.group, self.cut = owner.group, buckets(owner.config)
        expect_shards(config, self.group.size)
        self.weights = head_weights(owner.config, config.later_heads)
        self.micro, self.local = config.batch, config.accumulate // self.group.size
        self.run, self.profile, self.key = program.run, None, object()
        where, rank, size = owner.program.where, self.group.rank, self.group.size
        self._expect_room()
        owner.plan(self.micro, owner.config.context)  # the largest: others find room in its memory
        xp, K = cuda.array_module(where), owner.config.predict
        self.levels = [Parameters(owner.config, where) for _ in range(self.local.bit_length())]
        mine = max(b.of(rank, size).stop - b.of(rank, size).start for b in self.cut)
        self.inbox = xp.empty((size - 1) * mine, np.float32)
        self.sums = xp.zeros((PARTS, len(self.cut), BLOCKS), np.float32)
        self.losses = xp.zeros((config.accumulate, K), np.float32)
        self.factor, self.numbers = xp.empty(2, np.float32), xp.empty(3, np.float32)
        self.hashes = xp.zeros((len(self.cut), HASH_BLOCKS), np.uint64)
        self.stream = None
        if where == "gpu":
            self.stream = xp.cuda.Stream(non_blocking=True)

    @property
    def told(self) -> str:
        """The line that says what memory a step takes on this card."""
        m, need = self.model, self._needs()
        shares = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in need.items())
        shards = f"{self.config.accumulate} shards of {self.micro} rows, {self.local} a card"
        return f"{self.group.size} cards: {m.precision}, {shards}; on each {shares}"

    def _needs(self):
        m, size = self.model, self.group.size
        count = self.cut[-1].stop
        read = sum(x.nbytes for x in m.read)
        owned = 4 * count // size * (2 if m.half == np.float32 else 3)
        inbox = 4 * (size - 1) * max(b.stop - b.start for b in self.cut) // size
        states = read + owned + 4 * count * self.local.bit_length() + inbox
        sizes = m.config, self.micro, m.config.context, m.precision, m.keep_x
        return {"states": states, "buffers": bytes_needed(*sizes)["buffers"]}

    def _expect_room(self):
        need, free, m = self._needs(), free_bytes(self.model.program.where), self.model
        there = sum(x.nbytes for x in m.read) + 4 * self.cut[-1].stop // self.group.size * 2
        if (least := sum(need.values()) - there) > free:
            raise NanoEulerError(
                f"a shard of {self.micro} rows takes {least / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free, and the "
                "rows of a shard never change in a run: expected a card with more memory, or a new run with a smaller "
                "--batch and more of them, --accumulate"
            )

    def bits(self) -> dict:
        """What the bits of a run depend on beside its settings. Where one of these is another, they are other bits."""
        m = self.model
        on, lists = m.program.on, self._shard_lists(m.plan(self.micro, m.config.context), 0)
        products = [entry.launch for piece in lists for entry in piece if isinstance(entry.launch, Product)]
        found = {"multiprocessors": on.processors, "capability": on.capability}
        if m.program.where == "gpu":
            lt = on_card(self.losses.device.id)
            found |= {"card": lt.card, "cublaslt": lt.version}
        return found | {"products": dict(sorted({str(one): one.algorithm for one in products}.items()))}

    # ---- the lists of launches -------------------------------------------------------------------------------

    def _shard_lists(self, plan, i):
        """The launches of local shard i in pieces; the last piece begins with the embedding's gradient.

        A shard's gradient is put on a stack; it is added to those below it as often as i's number ends in ones, so that
        the stack holds whole subtrees. Of the last shard each piece completes buckets of the card's sum.
        """
        m, key = self.model, ("shard", i, self.key)
        if key in plan.lists:
            return plan.lists[key]
        top, adds = i.bit_count(), (i ^ (i + 1)).bit_length() - 1
        grads = self.levels[top]
        forward(m.weights, plan, plan.tokens)
        backward(m.weights, grads, plan, plan.tokens, plan.targets, plan.scale, False)
        plan.op.sum_losses(self.losses[self.group.rank * self.local + i], plan.losses, False)
        whole = plan.program.take()
        at = [entry.composite for entry in whole].index("embed_back")
        cuts = [(at, []), (len(whole), [slice(0, grads.flat.size)])]
        if i == self.local - 1:
            ready = {b: whole.behind(grads.flat[b.start : b.stop]) for b in self.cut}
            places = [*list(ready.values())[:-1], len(whole)]  # the last: the embedding
            assert places == sorted(places) and places[-2] <= at < ready[self.cut[-1]], (
                "no order of completion"
            )
            cuts = [(place, [slice(b.start, b.stop)]) for place, b in zip(places, self.cut, strict=True)]
        pieces, begin = [], 0
        for end, parts in cuts:
            piece = whole[begin:end]
            for part in parts:
                for level in range(top, top - adds, -1):
                    self._add(plan.program, self.levels[level - 1].flat[part], self.levels[level].flat[part])
            pieces += [program.Launches([*piece, *plan.program.take()], whole.where)]
            begin = end
        plan.lists[key] = pieces
        return pieces

    @staticmethod
    def _add(p, to, other):
        file, grid = p._file("many.cu"), p._blocks(to.size // 4)
        p._launch("tree", file, "add_shard", grid, program.THREADS, (to, other, to.size), 3 * to.nbytes)

    def _sum_list(self, plan, number):
        """What the owner does with a bucket when all slices are there."""
        bucket, (rank, size) = self.cut[number], (self.group.rank, self.group.size)
        own, each = self.levels[0].flat[bucket.of(rank, size)], PARTS // size

        def record():
            p = plan.program
            file = p._file("many.cu", tuple(f"sum_slices<{count}>" for count in (1, 2, 4, PARTS)))
            others = self.inbox[: (size - 1) * own.size] if size > 1 else own
            numbers = own.size, rank, bucket.units, rank * each, number, len(self.cut)
            arguments, moved = (own, others, self.sums, *numbers), (size + 1) * own.nbytes
            p._launch("sum_slices", file, f"sum_slices<{size}>", (BLOCKS, each), THREADS, arguments, moved)

        return plan.list(("sum", number, self.key), record)

    def _update_list(self, plan):
        m, o, c, p = self.model, self.optimizer, self.config, plan.program
        rank, size = self.group.rank, self.group.size
        _, gains, _ = layout(m.config)

        def record():
            parts = self.sums.reshape(-1)
            arguments = parts, self.factor, parts.size, float(c.clip)
            p._launch("norm", p._file("adamw.cu"), "clip_factor", 1, program.SQUARES, arguments)
            p.refuse(self.factor, self.losses.reshape(-1))
            for k, b in enumerate(self.cut):
                grads, part = self.levels[0].flat[b.of(rank, size)], within(b, m.read[k], rank, size)
                if not grads.size:
                    continue
                copy = None if part.dtype == np.float32 else part
                decayed = grads.size if b.start < gains else 0
                arrays = m.params.slices[k], grads, o.m.slices[k], o.v.slices[k], copy
                p.adamw(*arrays, self.factor, self.numbers, decayed, c)

        return plan.list(("update", self.key), record)

    # ---- a step ----------------------------------------------------------------------------------------------

    @contextmanager
    def _beside(self):
        """Launches and messages inside go behind all that was launched so far, and beside what comes."""
        if self.stream is None:
            yield
            return
        import cupy

        self.stream.wait_event(cupy.cuda.get_current_stream().record())
        with self.stream:
            yield

    def _send(self, plan, number):
        """Slices of a complete bucket to their owners, and what the owner does with them."""
        b, rank, size = self.cut[number], self.group.rank, self.group.size
        others = [other for other in range(size) if other != rank]
        flat, mine = self.levels[0].flat, b.of(rank, size)
        length = mine.stop - mine.start
        inbox = [self.inbox[k * length : (k + 1) * length] for k in range(size - 1)]
        with self._beside():
            self.group.exchange(
                [(other, flat[b.of(other, size)]) for other in others], list(zip(others, inbox, strict=True))
            )
            if length:
                program.run(self._sum_list(plan, number))

    def _to_all(self, arrays):
        """Each rank's part of arrays, given as [(array, part of a rank)], to all others."""
        rank, others = self.group.rank, [r for r in range(self.group.size) if r != self.group.rank]
        self.group.exchange(
            [(other, x[part(rank)]) for x, part in arrays for other in others],
            [(other, x[part(other)]) for x, part in arrays for other in others],
        )

    def _start_gradient(self, tokens, targets, send=True):
        scale, first = loss_scale(targets, self.weights), self.group.rank * self.local
        plan = self.model.plan(self.micro, tokens.shape[1])
        for i in range(self.local):
            part = slice((first + i) * self.micro, (first + i + 1) * self.micro)
            plan.put(tokens[part], targets[part], scale)
            pieces, sent = self._shard_lists(plan, i), 0
            for piece in pieces[:-1]:
                self.run(piece)
                if send and i == self.local - 1:
                    self._send(plan, sent)
                    sent += 1
            plan.sort(tokens[part])  # while the GPU works
            self.run(pieces[-1])
        if send:
            for number in range(sent, len(self.cut)):
                self._send(plan, number)

    def _losses(self, targets):
        """Sums and counts by the tree of shards, and what they divide to: mean nats by head [K]."""
        valid = (targets >= 0).reshape(self.config.accumulate, -1, targets.shape[-1]).sum(axis=1)
        return tree(download(self.losses)) / np.maximum(tree(valid), 1)

    def _move(self):
        rank_of = lambda count: lambda rank: slice(*(count * r // self.group.size for r in (rank, rank + 1)))
        size, m = self.group.size, self.model
        with self._beside():
            self._to_all([(self.sums, rank_of(PARTS)), (self.losses, rank_of(self.config.accumulate))])
            program.run(self._update_list(m._plan))
            gathered = [(x, lambda r, b=b: _place(b, r, size)) for b, x in zip(self.cut, m.read, strict=True)]
            self._to_all(gathered)
        if self.stream is not None:
            self.stream.synchronize()  # the watch ends this process if a peer is gone
        norm = float(download(self.factor)[1])
        if math.isfinite(norm):
            self.optimizer.step += 1
        else:
            self.whose = self._whose()
        return norm

    def _whose(self):
        """Of which rank's rows losses or gradients are no finite numbers: words for the message."""
        rank, each = self.group.rank, self.local
        bad = bool(not np.isfinite(download(self.losses)[rank * each : (rank + 1) * each]).all())
        for b in self.cut:  # what others own is this rank's sum alone
            for other in range(self.group.size):
                if other != rank and not bad:
                    bad = not np.isfinite(download(self.levels[0].flat[b.of(other, self.group.size)])).all()
        ranks = [str(r) for r, bad in enumerate(self.group.everyones(bool(bad))) if bad]
        return f" (rows of rank {', '.join(ranks)})" if ranks and self.group.size > 1 else ""

    def whole_gradient(self):
        """The gradient of the last step, before it was clipped, on rank 0. Every rank has to call it."""
        parts = [self.levels[0].flat[b.of(self.group.rank, self.group.size)] for b in self.cut]
        return Owned(self.model.config, self.group, parts).host()

    def hash(self) -> str:
        """A hash of all float32 weights, the same for every number of cards. Every rank has to call it.

        Raises NanoEulerError if what products read is not the same on all ranks.
        """
        m, rank, size = self.model, self.group.rank, self.group.size
        starts = [b.of(rank, size).start for b in self.cut]
        weights = self._hash_of(m.params.slices, starts)
        copies = self.group.everyones((weights, self._hash_of(m.read, [b.start for b in self.cut])))
        first = copies[0][1]
        if odd := [r for r, (_, read) in enumerate(copies) if read != first]:
            ranks = ", ".join(map(str, odd))
            raise NanoEulerError(
                f"rank {ranks}: weights are not those of rank 0, expected the same on all cards"
            )
        return f"{sum(weights for weights, _ in copies) % 2**64:016x}"

    def _hash_of(self, arrays, starts):
        p = self.model.program
        self.hashes[...] = 0
        for x, start, parts in zip(arrays, starts, self.hashes, strict=True):
            if x.size:
                words = x.view(np.uint32)
                arguments = words, parts, start, words.size
                p._launch("hash", p._file("many.cu"), "hash_numbers", HASH_BLOCKS, 256, arguments, x.nbytes)
        program.run(p.take())
        return sum(map(int, download(self.hashes).reshape(-1))) % 2**64


def _place(bucket, rank, size):
    part = bucket.of(rank, size)
    return slice(part.start - bucket.start, part.stop - bucket.start)
