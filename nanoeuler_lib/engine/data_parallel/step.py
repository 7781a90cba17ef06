"""A training step on several GPUs, with bitwise identical results on 1, 2, 4 or 8 of them. Chapter 33.

A step's batch consists of S shards. Each GPU computes the gradients of its shards one after another and adds them in a
binary tree. While the backward pass of its last shard still runs, completed slices of the gradient are sent to their
owners, which add the sums of all GPUs in the upper part of the same tree. Then the gradient's norm is computed, each
owner updates its parameters with AdamW or Muon, and the updated weights are sent to all GPUs.
"""

import math
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from nanoeuler_lib import __version__, cuda
from nanoeuler_lib.config import TrainConfig
from nanoeuler_lib.cuda.blas import Product, on_card
from nanoeuler_lib.engine import program, step
from nanoeuler_lib.engine.data_parallel.cut import PARTS, WholeMatrices, expect_shards, tree
from nanoeuler_lib.engine.data_parallel.gpt import GPT, AdamW, Owned
from nanoeuler_lib.engine.memory import (
    ALIGN,
    Parameters,
    bytes_needed,
    download,
    free_bytes,
    layout,
    muon_bytes,
    muon_groups,
    muon_work,
)
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import backward, forward, optim

BLOCKS, THREADS = 32, 512  # most blocks, and threads per block, that square one share of a bucket


class Step(step.Step):
    """Run optimisation steps on several GPUs, with the interface of `engine.Step`.

    Every rank calls it with the whole batch [S B, T]: S = `config.accumulate` shards of B = `config.batch` rows, of
    which this rank computes its own (see `expect_shards`). Raises NanoEulerError if a shard does not fit into a GPU's
    memory. A smaller shard is not an alternative, because products of fewer rows round differently.
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
        self.group, self.cut = owner.group, owner.cut
        expect_shards(config, self.group.size)
        if owner.optimizer != config.optimizer:
            raise NanoEulerError(
                f"the model's optimizer must be {config.optimizer}, as in the settings, got {owner.optimizer}"
            )
        self.local = config.accumulate // self.group.size
        where, rank, size = owner.program.where, self.group.rank, self.group.size
        # Muon multiplies matrices of the same piece together. Pieces must not depend on the number of GPUs, because
        # cuBLASLt chooses its algorithm, and thereby the order of the sums, by the number of matrices
        own = range(rank * PARTS // size, (rank + 1) * PARTS // size)
        pieces = [(k, b.share(i, i + 1)) for k, b in enumerate(self.cut) if isinstance(b, WholeMatrices) for i in own]
        self.pieces = [(k, piece) for k, piece in pieces if piece.start < piece.stop]
        self.matrices = [muon_groups(owner.config, piece) for _, piece in self.pieces]
        self._expect_room()
        self.works = muon_work(self.matrices, owner.precision, where)
        owner.plan(self.micro, owner.config.context)  # the largest plan first: all others fit into its memory
        xp, K = cuda.array_module(where), owner.config.predict
        self.levels = [Parameters(owner.config, where) for _ in range(self.local.bit_length())]
        mine = max(self.levels[0].flat[b.of(rank, size)].size for b in self.cut)
        self.inbox = xp.empty((size - 1) * mine, np.float32)
        # the grid must not depend on the number of GPUs, because it decides the order of the sums
        longest = max(b.units for b in self.cut) * ALIGN // PARTS
        self.blocks = min(BLOCKS, -(-longest // (4 * THREADS)))
        cuts = [[b.share(i, i).start // ALIGN for i in range(PARTS + 1)] for b in self.cut]
        self.cuts = xp.asarray(cuts, np.int32)
        self.sums = xp.zeros((PARTS, len(self.cut), self.blocks), np.float32)
        self.losses = xp.zeros((config.accumulate, K), np.float32)
        self.hashes = xp.zeros((len(self.cut), 8 * self.blocks), np.uint64)
        self.stream = None
        if where == "gpu":
            self.stream = xp.cuda.Stream(non_blocking=True)

    @property
    def memory_line(self) -> str:
        """A line of text with the memory that a step takes on each GPU, printed when a run starts."""
        m, need = self.model, self._needs()
        shares = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in need.items())
        shards = f"{self.config.accumulate} shards of {self.micro} rows, {self.local} per GPU"
        return f"GPUs: {self.group.size}, {m.precision}, {shards}; on each {shares}"

    def _needs(self):
        m, size = self.model, self.group.size
        count = sum(b.stop - b.start for b in self.cut)
        read = sum(x.nbytes for x in m.read)
        lengths = [[len(range(count)[b.of(rank, size)]) for b in self.cut] for rank in range(size)]
        owned = 4 * max(map(sum, lengths)) * (2 if m.half == np.float32 else 3)
        inbox = 4 * (size - 1) * max(map(max, lengths))
        states = read + owned + 4 * count * self.local.bit_length() + inbox
        sizes = m.config, self.micro, m.config.context, m.precision, m.keep_x
        return {"states": states, "buffers": bytes_needed(*sizes)["buffers"] + muon_bytes(self.matrices, m.precision)}

    def _expect_room(self):
        need, free, m, o = self._needs(), free_bytes(self.model.program.where), self.model, self.optimizer
        there = sum(x.nbytes for x in (*m.read, *m.params.slices, *o.m.slices, *o.v.slices))
        if (least := sum(need.values()) - there) > free:
            raise NanoEulerError(
                f"out of memory: a shard of {self.micro} rows takes {least / 2**30:.1f} GiB, {free / 2**30:.1f} GiB "
                "are free, and a run cannot change the rows of a shard: take a GPU with more memory, or start a new "
                "run with a smaller --batch and a larger --accumulate"
            )

    def bits(self) -> dict:
        """Return the versions, GPU and product algorithms that, besides the settings, decide a run's exact results.

        Every rank has to call it.
        """
        m = self.model
        on, plan = m.program.on, m.plan(self.micro, m.config.context)
        lists = *(piece for piece, *_ in self._shard_lists(plan, 0)), self._update_list(plan)
        launches = [entry.launch for one in lists for entry in one if isinstance(entry.launch, Product)]
        products = {str(one): one.algorithm for one in launches}
        for others in self.group.all_gather(products):  # with Muon, each GPU multiplies other matrices
            products = others | products
        found = {"library": __version__, "multiprocessors": on.processors, "capability": on.capability}
        if m.program.where == "gpu":
            lt = on_card(self.losses.device.id)
            found |= {"card": lt.card, "cublaslt": lt.version}
        return found | {"products": dict(sorted(products.items()))}

    # ---- the lists of launches -------------------------------------------------------------------------------

    def _shard_lists(self, plan, i):
        """Return the launches of local shard i in pieces: (launches, buckets to wait for, buckets that they complete).

        Each shard's gradient is pushed on a stack, then added to the one below once for each trailing 1 of i in binary,
        so the stack always holds sums of whole subtrees. The last piece begins with the embedding's gradient.
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
        # the last three buckets arrive together
        first = [whole.before(x) if i == 0 else 0 for x in m.read[:-3]] + [0, 0, 0]
        done = [len(whole)] * len(numbers)
        if i == self.local - 1:
            done = [whole.behind(grads.flat[b.start : b.stop]) for b in self.cut]
            assert done == sorted(done) and done[-2] <= at < done[-1], "buckets must be completed in their order"
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
        """Record the addition of part of the stack's top gradient to the one below it, repeated `adds` times."""
        for level in range(top, top - adds, -1):
            to, upper = self.levels[level - 1].flat[part], self.levels[level].flat[part]
            file, grid = p._file("many.cu"), p._blocks(to.size // 4)
            p._launch("tree", file, "add_shard", grid, program.THREADS, (to, upper, to.size), 3 * to.nbytes)

    def _sum_list(self, plan, number):
        """Return the launch that sums a bucket's slices on their owner, once all of them have arrived."""
        rank, size = self.group.rank, self.group.size
        own, each = self.levels[0].flat[self.cut[number].of(rank, size)], PARTS // size

        def record():
            p = plan.program
            file = p._file("many.cu", tuple(f"sum_slices<{count}>" for count in (1, 2, 4, PARTS)))
            others = self.inbox[: (size - 1) * own.size] if size > 1 else own
            numbers = own.size, rank, rank * each, number, len(self.cut)
            arguments, moved = (own, others, self.sums, self.cuts[number], *numbers), (size + 1) * own.nbytes
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
            self._unscale(p)
            p.refuse(self.factor, self.losses.reshape(-1))
            for k, b in enumerate(self.cut):
                grads, part = self.levels[0].flat[b.of(rank, size)], m.read[k][b.inside(rank, size)]
                if not grads.size or isinstance(b, WholeMatrices):
                    continue
                copy = None if part.dtype == np.float32 else part
                decayed = grads.size if b.start < gains else 0
                arrays = m.params.slices[k], grads, o.m.slices[k], o.v.slices[k], copy
                p.adamw(*arrays, self.factor, self.numbers, decayed, c)
            for (k, piece), work in zip(self.pieces, self.works, strict=True):
                b, mine = self.cut[k], self.cut[k].of(rank, size)
                own = slice(piece.start - mine.start, piece.stop - mine.start)
                copy = m.read[k][piece.start - b.start : piece.stop - b.start]
                arrays = m.params.slices[k][own], self.levels[0].flat[piece], o.m.slices[k][own]
                copy = None if copy.dtype == np.float32 else copy
                p.muon(*arrays, copy, self.factor, self.numbers, optim.MUON_BETA, c.decay, work)

        return plan.list(("update", self.key), record)

    # ---- a step ----------------------------------------------------------------------------------------------

    @contextmanager
    def _beside(self):
        """Run the `with` block on a second stream, after all earlier launches and overlapping with later ones."""
        if self.stream is None:
            yield
            return
        import cupy

        self.stream.wait_event(cupy.cuda.get_current_stream().record())
        with self.stream:
            yield

    def _send(self, plan, number):
        """Send the slices of a complete bucket to their owners, and sum this rank's own slice."""
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
        """Send this rank's part of each array to all others and receive theirs. arrays: [(array, parts by rank)]."""
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
        """Compute the whole batch's gradient, sharded by owner, on every rank; return mean nats by head [K]."""
        self._start_gradient(tokens, targets)
        with self._beside():
            self._to_all([(self.losses, self._parts(self.config.accumulate))])
        self._wait()
        return self._losses()

    def _losses(self):
        """Return mean nats by head [K]: the losses summed in the tree of shards, divided by the counts of targets."""
        return tree(download(self.losses)) / np.maximum(self.valid, 1)

    def _parts(self, count):
        """Split `count` rows evenly among the ranks and return the slice of each."""
        each = count // self.group.size
        return [slice(each * rank, each * (rank + 1)) for rank in range(self.group.size)]

    def _wait(self):
        """Make later launches on the first stream wait for the second stream; return the event they wait for."""
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
        with self._beside():  # in the order of the next forward pass, which starts in the meantime
            *filled, last, gains, embedding = range(len(self.cut))
            for numbers in ([embedding, gains, last], *([k] for k in reversed(filled))):
                parts = lambda k: [self.cut[k].inside(rank, size) for rank in range(size)]
                self._to_all([(m.read[k], parts(k)) for k in numbers])
                if self.stream is not None:
                    m.arriving |= dict.fromkeys(numbers, self.stream.record())
        if moved is not None:
            moved.synchronize()  # this may wait forever if a rank is lost, but then the watch ends this process
        norm = float(download(self.factor)[1])
        if math.isfinite(norm):
            self.optimizer.step += 1
        else:
            self.bad_rank = self._find_bad_rank()
        return norm

    def _find_bad_rank(self):
        rank, each = self.group.rank, self.local
        bad = bool(not np.isfinite(download(self.losses)[rank * each : (rank + 1) * each]).all())
        for b in self.cut:  # slices of other owners still hold only this rank's sum
            for other in range(self.group.size):
                if other != rank and not bad:
                    bad = not np.isfinite(download(self.levels[0].flat[b.of(other, self.group.size)])).all()
        ranks = [str(r) for r, bad in enumerate(self.group.all_gather(bool(bad))) if bad]
        return f" (rows of rank {', '.join(ranks)})" if ranks and self.group.size > 1 else ""

    def whole_gradient(self):
        """Return the gradient of the last step, before clipping, on rank 0; zeros elsewhere. All ranks must call it."""
        parts = [self.levels[0].flat[b.of(self.group.rank, self.group.size)] for b in self.cut]
        return self._unscaled(Owned(self.model.config, self.group, self.cut, parts))

    def hash(self) -> str:
        """Return a hash of all float32 weights; call it on all ranks. Raises NanoEulerError if their copies differ."""
        m, rank, size = self.model, self.group.rank, self.group.size
        m.wait_for_weights()
        starts = [b.of(rank, size).start for b in self.cut]
        weights = self._hash_of(m.params.slices, starts)
        copies = self.group.all_gather((weights, self._hash_of(m.read, [b.start for b in self.cut])))
        first = copies[0][1]
        if odd := [r for r, (_, read) in enumerate(copies) if read != first]:
            ranks = ", ".join(map(str, odd))
            raise NanoEulerError(f"weights must be the same on all GPUs, but rank {ranks} differs from rank 0")
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
