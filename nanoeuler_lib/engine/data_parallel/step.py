"""A training step on many cards, the same bits on 1, 2, 4 or 8 of them.

A step's batch is S shards. Each card computes the gradients of its shards one after another and adds them by a binary
tree; while its last shard's backward pass still runs, slices of what is complete go to their owners, who add the cards'
sums by the upper part of the tree. Then the norm, AdamW by the owners, and what products read goes to all. Chapter 33.
"""

import math
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from nanoeuler_lib import __version__, cuda
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.cuda.blas import Product, on_card
from nanoeuler_lib.engine import program, step
from nanoeuler_lib.engine.data_parallel.cut import PARTS, buckets, expect_shards, tree
from nanoeuler_lib.engine.data_parallel.gpt import GPT, AdamW, Owned
from nanoeuler_lib.engine.memory import ALIGN, Parameters, bytes_needed, download, free_bytes, layout
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import backward, forward

BLOCKS, THREADS = 32, 512  # of the squares of a share of a bucket: at most so many blocks


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
    ):
        self._begin(owner, optimizer, config, rows, config.batch)
        self.group, self.cut = owner.group, buckets(owner.config)
        expect_shards(config, self.group.size)
        self.local = config.accumulate // self.group.size
        where, rank, size = owner.program.where, self.group.rank, self.group.size
        self._expect_room()
        owner.plan(self.micro, owner.config.context)  # the largest: others find room in its memory
        xp, K = cuda.array_module(where), owner.config.predict
        self.levels = [Parameters(owner.config, where) for _ in range(self.local.bit_length())]
        mine = max(self.levels[0].flat[b.of(rank, size)].size for b in self.cut)
        self.inbox = xp.empty((size - 1) * mine, np.float32)
        # the same grid for every number of cards
        longest = max(b.units for b in self.cut) * ALIGN // PARTS
        self.blocks = min(BLOCKS, -(-longest // (4 * THREADS)))
        self.sums = xp.zeros((PARTS, len(self.cut), self.blocks), np.float32)
        self.losses = xp.zeros((config.accumulate, K), np.float32)
        self.hashes = xp.zeros((len(self.cut), 8 * self.blocks), np.uint64)
        self.stream = None
        if where == "gpu":
            self.stream = xp.cuda.Stream(non_blocking=True)

    @property
    def memory_line(self) -> str:
        """The line that says what memory a step takes on this card."""
        m, need = self.model, self._needs()
        shares = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in need.items())
        shards = f"{self.config.accumulate} shards of {self.micro} rows, {self.local} a card"
        return f"cards: {self.group.size}, {m.precision}, {shards}; on each {shares}"

    def _needs(self):
        m, size = self.model, self.group.size
        count = sum(b.stop - b.start for b in self.cut)
        read = sum(x.nbytes for x in m.read)
        owned = 4 * count // size * (2 if m.half == np.float32 else 3)
        inbox = 4 * (size - 1) * max(b.stop - b.start for b in self.cut) // size
        states = read + owned + 4 * count * self.local.bit_length() + inbox
        sizes = m.config, self.micro, m.config.context, m.precision, m.keep_x
        return {"states": states, "buffers": bytes_needed(*sizes)["buffers"]}

    def _expect_room(self):
        need, free, m, o = self._needs(), free_bytes(self.model.program.where), self.model, self.optimizer
        there = sum(x.nbytes for x in (*m.read, *m.params.slices, *o.m.slices, *o.v.slices))
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
        products = [entry.launch for piece, *_ in lists for entry in piece if isinstance(entry.launch, Product)]
        found = {"library": __version__, "multiprocessors": on.processors, "capability": on.capability}
        if m.program.where == "gpu":
            lt = on_card(self.losses.device.id)
            found |= {"card": lt.card, "cublaslt": lt.version}
        return found | {"products": dict(sorted({str(one): one.algorithm for one in products}.items()))}

    # ---- the lists of launches -------------------------------------------------------------------------------

    def _shard_lists(self, plan, i):
        """The launches of local shard i in pieces: (launches, buckets that they wait for, buckets that they complete).

        A shard's gradient is put on a stack; it is added to those below it as often as i's number ends in ones, so that
        the stack holds whole subtrees. Of the last shard each piece completes buckets of the card's sum. The last piece
        begins with the embedding's gradient.
        """
        m, key = self.model, ("shard", i, self.key)
        if key in plan.lists:
            return plan.lists[key]
        top, adds = i.bit_count(), (i ^ (i + 1)).bit_length() - 1
        grads, numbers = self.levels[top], range(len(self.cut))
        forward(m.weights, plan, plan.tokens)
        backward(m.weights, grads, plan, plan.tokens, plan.targets, plan.scale, False)
        plan.op.sum_losses(self.losses[self.group.rank * self.local + i], plan.losses, False)
        whole = plan.program.take()
        at = [entry.composite for entry in whole].index("embed_back")
        # the last three arrive together
        first = [whole.before(x) if i == 0 else 0 for x in m.read[:-3]] + [0, 0, 0]
        done = [len(whole)] * len(numbers)
        if i == self.local - 1:
            done = [whole.behind(grads.flat[b.start : b.stop]) for b in self.cut]
            assert done == sorted(done) and done[-2] <= at < done[-1], "not complete in their order"
            done[-1] = len(whole)
        pieces = []
        for begin, end in pairwise(sorted({0, *first, *done, at, len(whole)})):
            complete = [k for k in numbers if done[k] == end]
            for k in complete:
                self._add(plan.program, slice(self.cut[k].start, self.cut[k].stop), top, adds)
            piece = program.Launches([*whole[begin:end], *plan.program.take()], whole.where)
            pieces += [(piece, [k for k in numbers if first[k] == begin], complete)]
        plan.lists[key] = pieces
        return pieces

    def _add(self, p, part, top, adds):
        """Part of the stack's upmost gradient to that below it, and so on, `adds` times."""
        for level in range(top, top - adds, -1):
            to, upper = self.levels[level - 1].flat[part], self.levels[level].flat[part]
            file, grid = p._file("many.cu"), p._blocks(to.size // 4)
            p._launch("tree", file, "add_shard", grid, program.THREADS, (to, upper, to.size), 3 * to.nbytes)

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
            p._launch("sum_slices", file, f"sum_slices<{size}>", (self.blocks, each), THREADS, arguments, moved)

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
                grads, part = self.levels[0].flat[b.of(rank, size)], m.read[k][b.inside(rank, size)]
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
        flat = self.levels[0].flat
        length = flat[b.of(rank, size)].size
        inbox = [self.inbox[k * length : (k + 1) * length] for k in range(size - 1)]
        with self._beside():
            self.group.exchange(
                [(other, flat[b.of(other, size)]) for other in others], list(zip(others, inbox, strict=True))
            )
            if length:
                program.run(self._sum_list(plan, number))

    def _to_all(self, arrays):
        """Each rank's part of arrays, given as [(array, parts by rank)], to all others."""
        rank, others = self.group.rank, [r for r in range(self.group.size) if r != self.group.rank]
        self.group.exchange(
            [(other, x[parts[rank]]) for x, parts in arrays for other in others],
            [(other, x[parts[other]]) for x, parts in arrays for other in others],
        )

    def _start_gradient(self, tokens, targets):
        first, m = self.group.rank * self.local, self.model
        parts = [slice((first + i) * self.micro, (first + i + 1) * self.micro) for i in range(self.local)]
        valid = self.group.all_gather([step.valid_targets(targets[part]) for part in parts])
        self.valid = tree(np.concatenate(valid))
        plan = m.plan(self.micro, tokens.shape[1], settled=False)
        for i, part in enumerate(parts):
            plan.put(tokens[part], targets[part], self._scale())
            *most, last = self._shard_lists(plan, i)
            for piece in most:
                self._run_piece(plan, i, *piece)
            plan.sort(tokens[part])  # while the GPU works
            self._run_piece(plan, i, *last)

    def _run_piece(self, plan, i, piece, waits, complete):
        for number in waits:
            self.model.wait_for_weights(number)
        self.run(piece)
        if i == self.local - 1:
            for number in complete:
                self._send(plan, number)

    def gradient(self, tokens, targets):
        """As `engine.Step.gradient`, of which each rank keeps its own slices. Every rank has to call it."""
        self._start_gradient(tokens, targets)
        with self._beside():
            self._to_all([(self.losses, self._parts(self.config.accumulate))])
        self._wait()
        return self._losses()

    def _losses(self):
        """Sums by the tree of shards over counts by the same tree: mean nats by head [K]."""
        return tree(download(self.losses)) / np.maximum(self.valid, 1)

    def _parts(self, count):
        """Of `count` rows in the order of ranks, those of each rank."""
        each = count // self.group.size
        return [slice(each * rank, each * (rank + 1)) for rank in range(self.group.size)]

    def _wait(self):
        """What is launched from here on, and this process, wait for what was launched beside."""
        if self.stream is not None:
            import cupy

            event = self.stream.record()
            cupy.cuda.get_current_stream().wait_event(event)
            return event

    def _move(self):
        size, m = self.group.size, self.model
        with self._beside():
            self._to_all([(self.sums, self._parts(PARTS)), (self.losses, self._parts(self.config.accumulate))])
            program.run(self._update_list(m._plan))
        moved = self._wait()
        with self._beside():  # in the order in which the next forward pass reads; it begins meanwhile
            *filled, last, gains, embedding = range(len(self.cut))
            for numbers in ([embedding, gains, last], *([k] for k in reversed(filled))):
                parts = lambda k: [self.cut[k].inside(rank, size) for rank in range(size)]
                self._to_all([(m.read[k], parts(k)) for k in numbers])
                if self.stream is not None:
                    m.arriving |= dict.fromkeys(numbers, self.stream.record())
        if moved is not None:
            moved.synchronize()  # the watch ends this process if a peer is gone
        norm = float(download(self.factor)[1])
        if math.isfinite(norm):
            self.optimizer.step += 1
        else:
            self.bad_rank = self._find_bad_rank()
        return norm

    def _find_bad_rank(self):
        """Of which rank's rows losses or gradients are no finite numbers: words for the message."""
        rank, each = self.group.rank, self.local
        bad = bool(not np.isfinite(download(self.losses)[rank * each : (rank + 1) * each]).all())
        for b in self.cut:  # what others own is this rank's sum alone
            for other in range(self.group.size):
                if other != rank and not bad:
                    bad = not np.isfinite(download(self.levels[0].flat[b.of(other, self.group.size)])).all()
        ranks = [str(r) for r, bad in enumerate(self.group.all_gather(bool(bad))) if bad]
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
        m.wait_for_weights()
        starts = [b.of(rank, size).start for b in self.cut]
        weights = self._hash_of(m.params.slices, starts)
        copies = self.group.all_gather((weights, self._hash_of(m.read, [b.start for b in self.cut])))
        first = copies[0][1]
        if odd := [r for r, (_, read) in enumerate(copies) if read != first]:
            ranks = ", ".join(map(str, odd))
            raise NanoEulerError(f"rank {ranks}: weights are not those of rank 0, expected the same on all cards")
        return f"{sum(weights for weights, _ in copies) % 2**64:016x}"

    def _hash_of(self, arrays, starts):
        p = self.model.program
        self.hashes[...] = 0
        for x, start, parts in zip(arrays, starts, self.hashes, strict=True):
            if x.size:
                words = x.view(np.uint32)
                arguments = words, parts, start, words.size
                p._launch("hash", p._file("many.cu"), "hash_numbers", parts.size, 256, arguments, x.nbytes)
        program.run(p.take())
        return sum(map(int, download(self.hashes).reshape(-1))) % 2**64
