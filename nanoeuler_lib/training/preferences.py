"""Preferences: a model that answers learns from pairs of replies which of two is preferred, by DPO.

A step is forward, weights, backward: the weight of each token of a reply needs the log-probabilities of both replies.
They are sums over a reply and its end marker. Those of the reference, the model that the run began with, are computed
once and kept in the run's folder. Everything else, steps, log, checkpoints and resume, is that of every run (`loop`).
Chapter 21; Rafailov et al. 2023, equation 7.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import one_line
from nanoeuler_lib.model import GPT, RowLoss
from nanoeuler_lib.text.sft_data import Encoded, Pair, count_last, encode, read_pairs, row_length, rows
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import MEASURABLE, Dataset, fingerprint, parted
from nanoeuler_lib.training.run_folder import read_tensors, write_tensors

# ---- The loss of a pair


def dpo_loss(
    logps: np.ndarray, reference: np.ndarray, beta: float, label_noise: float = 0.0, robust: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """DPO's loss of pairs, and its derivative with respect to their log-probabilities.

    logps, reference: [n, 2], nats of the chosen and of the rejected reply under the model and under the reference;
    beta: how dear it is to move away from the reference; label_noise: the share of labels taken to be wrong, 0 to below
    1/2. With it each pair is judged by both labels, weighted 1 - label_noise and label_noise (conservative DPO,
    Mitchell 2023); robust: by weights that make the mean over wrong labels the loss of the right ones (Chowdhury et
    al. 2024). Returns losses [n] and dlogps [n, 2].
    """
    sign = np.array([1.0, -1.0])
    margin = beta * ((logps - reference) @ sign)  # [n], log-odds that the chosen reply is the better one
    right, wrong = 1 - label_noise, label_noise
    if robust:
        right, wrong = right / (1 - 2 * label_noise), -wrong / (1 - 2 * label_noise)
    losses = right * np.logaddexp(0, -margin) + wrong * np.logaddexp(0, margin)
    slope = wrong - (right + wrong) * np.exp(-np.logaddexp(0, margin))  # d losses / d margin
    return losses, beta * slope[:, None] * sign


FIGURES = "accuracy", "margin", "chosen", "rejected"


def weigher(reference: np.ndarray, beta: float, label_noise: float = 0.0, robust: bool = False) -> RowLoss:
    """The mean of `dpo_loss` over the pairs of a batch, as a loss of its rows: chosen and rejected by turns.

    reference: [B], nats of each row's reply under the reference. The figures are the loss; the share of pairs whose
    margin is above 0; the mean margin; and by how many nats the chosen and the rejected replies have become likelier.
    """
    pairs = len(reference) // 2

    def weigh(part, nats):
        sums = nats.sum(axis=1, dtype=np.float64)  # a mean over tokens is no log-probability
        logps = -sums.reshape(-1, 2)
        before = reference[part].reshape(-1, 2)
        losses, dlogps = dpo_loss(logps, before, beta, label_noise, robust)
        gains = logps - before
        margins = beta * (gains[:, 0] - gains[:, 1])
        figures = np.stack([losses, margins > 0, margins, *gains.T]).sum(axis=1) / pairs
        return figures, np.broadcast_to(-dlogps.reshape(-1, 1) / pairs, nats.shape)

    return weigh


# ---- Pairs


class PairsDataset(Dataset):
    """Pairs of replies to learn from and to be measured on, and what the reference makes of them.

    pairs: to train on; held_out: to validate on. A pair of which one reply does not fit the context is left out, whole,
    and one whose replies are equal; `warnings` says how many. Raises NanoEulerError when a part has nothing left.
    """

    sampled, unit = False, "pairs"
    together, figures, measure = 2, FIGURES, "valid_loss"

    def __init__(self, pairs: Iterable[Pair], held_out: Iterable[Pair], state: Checkpoint):
        self.model, self.train, self.tokenizer = state.model.config, state.train, state.tokenizer
        self.template, self.loss = (
            state.info["template"],
            [state.info.get(name) for name in ("beta", "label_noise", "robust")],
        )
        self.source, self.warnings, self.prompt = one_line(state.info["source"], 200), [], ""
        pairs, held_out = list(pairs), list(held_out)
        self.part, self.valid = self._fitting(pairs, "training"), self._fitting(held_out, "validation")
        lengths = [max(len(reply.ids) for reply in pair) for pair in self.part]
        self.order = np.argsort(lengths, kind="stable")
        self.tokens = sum(len(reply.ids) for pair in self.part for reply in pair)
        self.row_tokens, self.reach = self.tokens / len(self.part), len(self.part) / len(pairs)
        self.sizes = {"train_pairs": len(self.part), "valid_pairs": len(self.valid)}
        self.drawn, self.done = np.zeros(len(self.part), bool), 0
        self.fingerprint, self.valid_fingerprint = (
            fingerprint(np.concatenate([np.where(e.counted, ~e.ids, e.ids) for pair in part for e in pair]))
            for part in (self.part, self.valid)
        )
        if len(self.valid) < MEASURABLE:
            self.warnings.append(
                f"validation rests on {len(self.valid)} pairs, which say little: hold out more (--valid-fraction)"
            )
        self.reference = {}  # "train" and "valid": [n, 2], nats of the replies; see `prepare`

    def _fitting(self, pairs, name):
        """The pairs as tokens, those that fit and differ. Refuses when there is none."""
        most, found, equal = self.model.context + 1, [], 0
        for pair in pairs:
            both = [encode(example, self.tokenizer) for example in pair]
            if np.array_equal(both[0].ids, both[1].ids):
                equal += 1
            elif max(len(reply.ids) for reply in both) <= most:
                for example, reply in zip(pair, both, strict=True):
                    count_last(reply, self.tokenizer, example)
                self.prompt = self.prompt if found else pair[0][-1][0]  # at last that of the first held-out pair
                found.append(both)
        if not found:
            raise NanoEulerError(
                f"{self.source}: none of {len(pairs)} {name} pairs has two different replies that fit in "
                f"{self.model.context} tokens, expected at least 1: take a base model of a longer context (--base), "
                "shorter replies, or more pairs"
            )
        if equal:
            self.warnings.append(f"{equal} of {len(pairs)} {name} pairs have two equal replies and are left out")
        if long := len(pairs) - equal - len(found):
            self.warnings.append(
                f"{long} of {len(pairs)} {name} pairs do not fit in {self.model.context} tokens and are left out, whole"
            )
        return found

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Have the reference score all replies, and keep that in the run's folder; a run that goes on reads it."""
        file, known = run / "reference.safetensors", state.info.get("reference")
        if known is None:
            for name, part in (("train", self.part), ("valid", self.valid)):
                self.reference[name] = log_probabilities(state.model, part)
            write_tensors(file, self.reference)
            state.info["reference"] = self._digest()
            return
        self.reference = read_tensors(file, "what the reference made of the pairs")
        shapes = {"train": (len(self.part), 2), "valid": (len(self.valid), 2)}
        if {name: x.shape for name, x in self.reference.items()} != shapes or self._digest() != known:
            raise NanoEulerError(f"{file}: is not the one that the run began with: truncated or edited")

    def _digest(self):
        return fingerprint(np.concatenate([self.reference[name].view(np.int64).ravel() for name in ("train", "valid")]))

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray, RowLoss]:
        """Inputs [B, T] and targets [B, T, K], chosen and rejected replies by turns, and the loss of these rows."""
        some = self._drawn(step, rows_ // 2)
        inputs, targets = pair_rows([self.part[i] for i in some], self.model.context, self.model.predict)
        return inputs, targets, weigher(self.reference["train"][some].reshape(-1), *self.loss)

    def _drawn(self, step, count):
        """Which pairs a step takes: neighbours in the order of length, as of fine-tuning's examples."""
        start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
        return np.take(self.order, range(start, start + count), mode="wrap")

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """What the log says of a validation, of all pairs that are held out."""
        logps, before = log_probabilities(model, self.valid), self.reference["valid"]
        figures, _ = weigher(before.reshape(-1), *self.loss)(slice(None), -logps.reshape(-1, 1))
        loss, *others = figures.tolist()
        return {"valid_loss": loss, "figures": dict(zip(FIGURES, others, strict=True))}

    def seen(self, steps: int) -> float:
        """Share of the pairs that the first so many steps have held. Steps may only grow."""
        for step in range(self.done, steps):
            count = self.train.batch * self.train.accumulate
            self.drawn[self._drawn(step, count)] = True
        self.done = steps
        return float(self.drawn.mean()) * self.reach


def pair_rows(pairs: Sequence[Sequence[Encoded]], context: int, predict: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [2n, T] and targets [2n, T, K] of n pairs: row 2i the chosen reply of pair i, row 2i + 1 the rejected."""
    replies = [reply for pair in pairs for reply in pair]
    return rows(replies, row_length(replies, context), predict)


def log_probabilities(model: GPT, pairs: Sequence[Sequence[Encoded]]) -> np.ndarray:
    """Nats of both replies of each pair, end markers counted: [n, 2], all at most 0."""
    found = np.empty((len(pairs), 2))
    by_length = sorted(range(len(pairs)), key=lambda i: max(len(reply.ids) for reply in pairs[i]))
    for start in range(0, len(pairs), 8):
        some = by_length[start : start + 8]
        inputs, targets = pair_rows([pairs[i] for i in some], model.config.context, 1)
        nats = model.losses(inputs, targets[..., 0]).sum(axis=1, dtype=np.float64)
        found[some] = -nats.reshape(-1, 2)
    return found


def pairs_of(
    file: str | Path, count: int = 0, seed: int = 0, valid_fraction: float = 0.1
) -> tuple[list[Pair], list[Pair]]:
    """Pairs of a file to train on and pairs held out.

    The first `count` pairs (0: all) of the file (`read_pairs`) are shuffled, and a share is held out; the same
    arguments give the same pairs.
    """
    return parted(read_pairs(file)[: count or None], file, seed, valid_fraction)
