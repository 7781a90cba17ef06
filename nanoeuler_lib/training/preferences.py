"""The loss and the dataset of DPO, which trains a chat model on pairs of a preferred and a rejected reply.

A step runs the forward pass, computes the derivative of the loss for each token, and runs the backward pass; the
derivative needs the log-probabilities of both replies of a pair. A reply's log-probability is the sum over its tokens
and its end marker. The reference is the model that the run began with; its log-probabilities are computed once and
stored in the run's folder. Everything else is as in every run (`loop`). Chapter 21; Rafailov et al. 2023, equation 7.
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
    """Compute DPO's loss of each pair, and its derivative by the log-probabilities.

    logps, reference: [n, 2], log-probabilities in nats of the chosen and the rejected reply
    under the model and under the reference; beta: weight of the KL penalty to the
    reference; label_noise: assumed fraction of swapped labels, from 0 to below 1/2. If it
    is above 0, the loss is the mean over both labels, weighted by 1 - label_noise and
    label_noise (conservative DPO, Mitchell 2023). robust: choose the weights so that the
    mean loss over noisy labels equals the loss under correct labels (Chowdhury et al.
    2024). Returns losses [n] and dlogps [n, 2]. Chapter 21.
    """
    sign = np.array([1.0, -1.0])
    margin = beta * ((logps - reference) @ sign)  # [n], log-odds that the chosen reply is better
    right, wrong = 1 - label_noise, label_noise
    if robust:
        right, wrong = right / (1 - 2 * label_noise), -wrong / (1 - 2 * label_noise)
    losses = right * np.logaddexp(0, -margin) + wrong * np.logaddexp(0, margin)
    slope = wrong - (right + wrong) * np.exp(-np.logaddexp(0, margin))  # d losses / d margin
    return losses, beta * slope[:, None] * sign


FIGURES = "accuracy", "margin", "chosen", "rejected"


def weigher(reference: np.ndarray, beta: float, label_noise: float = 0.0, robust: bool = False) -> RowLoss:
    """Return the mean of `dpo_loss` over the pairs of a batch, as a loss of its rows.

    Rows alternate between chosen and rejected replies. reference: [B], log-probability in
    nats of each row's reply under the reference. The figures of the loss are: the loss; the
    fraction of pairs with a margin above 0; the mean margin; and the mean gain in nats of
    the chosen and of the rejected replies over the reference. Chapter 21.
    """
    pairs = len(reference) // 2

    def weigh(part, nats):
        sums = nats.sum(axis=1, dtype=np.float64)  # only the sum over tokens is a log-probability
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
    """Hold pairs of replies and their log-probabilities under the reference.

    Pairs with a reply too long for the context, or equal ones, are left out. Raises NanoEulerError if none is left.
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
                f"only {len(self.valid)} pairs are held out, so the validation loss is noisy: hold out more "
                "(--valid-fraction)"
            )
        self.reference = {}  # "train" and "valid": [n, 2], log-probabilities in nats; set by `prepare`

    def _fitting(self, pairs, name):
        most, found, equal = self.model.context + 1, [], 0
        for pair in pairs:
            both = [encode(example, self.tokenizer) for example in pair]
            if np.array_equal(both[0].ids, both[1].ids):
                equal += 1
            elif max(len(reply.ids) for reply in both) <= most:
                for example, reply in zip(pair, both, strict=True):
                    count_last(reply, self.tokenizer, example)
                self.prompt = self.prompt if found else pair[0][-1][0]  # in the end, the first held-out prompt
                found.append(both)
        if not found:
            raise NanoEulerError(
                f"{self.source}: none of {len(pairs)} {name} pairs has two different replies that fit in "
                f"{self.model.context} tokens, expected at least 1: use a base model with a longer context (--base), "
                "shorter replies, or more pairs"
            )
        if equal:
            self.warnings.append(f"{equal} of {len(pairs)} {name} pairs have two equal replies and are left out")
        if long := len(pairs) - equal - len(found):
            self.warnings.append(
                f"{long} of {len(pairs)} {name} pairs have a reply that does not fit in {self.model.context} tokens, "
                "and are left out"
            )
        return found

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Compute and store the reference's log-probabilities, or read them. Raises NanoEulerError if that fails."""
        file, known = run / "reference.safetensors", state.info.get("reference")
        if known is None:
            for name, part in (("train", self.part), ("valid", self.valid)):
                self.reference[name] = log_probabilities(state.model, part)
            write_tensors(file, self.reference)
            state.info["reference"] = self._digest()
            return
        self.reference = read_tensors(file, "the reference's log-probabilities of the pairs")
        shapes = {"train": (len(self.part), 2), "valid": (len(self.valid), 2)}
        if {name: x.shape for name, x in self.reference.items()} != shapes or self._digest() != known:
            raise NanoEulerError(f"{file}: is not the file that the run began with: it was truncated or edited")

    def _digest(self):
        return fingerprint(np.concatenate([self.reference[name].view(np.int64).ravel() for name in ("train", "valid")]))

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray, RowLoss]:
        """Return inputs [B, T] and targets [B, T, K] of a step, and the loss of these rows (`weigher`)."""
        some = self._drawn(step, rows_ // 2)
        inputs, targets = pair_rows([self.part[i] for i in some], self.model.context, self.model.predict)
        return inputs, targets, weigher(self.reference["train"][some].reshape(-1), *self.loss)

    def _drawn(self, step, count):
        """Return the numbers of a step's pairs, which are adjacent in the order of length, as in `SFTDataset`."""
        start = np.random.default_rng([self.train.seed, step]).integers(len(self.order))
        return np.take(self.order, range(start, start + count), mode="wrap")

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """Return the loss and the other figures over all held-out pairs, for the log."""
        logps, before = log_probabilities(model, self.valid), self.reference["valid"]
        figures, _ = weigher(before.reshape(-1), *self.loss)(slice(None), -logps.reshape(-1, 1))
        loss, *others = figures.tolist()
        return {"valid_loss": loss, "figures": dict(zip(FIGURES, others, strict=True))}

    def seen(self, steps: int) -> float:
        """Return the fraction of the pairs used in the first `steps` steps; `steps` must never decrease."""
        for step in range(self.done, steps):
            count = self.train.batch * self.train.accumulate
            self.drawn[self._drawn(step, count)] = True
        self.done = steps
        return float(self.drawn.mean()) * self.reach


def pair_rows(pairs: Sequence[Sequence[Encoded]], context: int, predict: int) -> tuple[np.ndarray, np.ndarray]:
    """Lay pairs into inputs [2n, T] and targets [2n, T, K]: row 2i has pair i's chosen reply, 2i + 1 the other."""
    replies = [reply for pair in pairs for reply in pair]
    return rows(replies, row_length(replies, context), predict)


def log_probabilities(model: GPT, pairs: Sequence[Sequence[Encoded]]) -> np.ndarray:
    """Compute the log-probabilities in nats of both replies of each pair, end markers included: [n, 2]."""
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
    """Read pairs from a file (`read_pairs`), and split them into pairs to train on and pairs held out.

    The first `count` (0: all) are split by `parted`. Raises NanoEulerError as `read_pairs` and `parted` do.
    """
    return parted(read_pairs(file)[: count or None], file, seed, valid_fraction)
