"""The loss and the dataset of GRPO: a model samples answers, and answers that a verifier grades well become likely.

`advantages`, `kl_terms` and `surrogate` are the mathematics, on arrays. `RewardDataset` samples the answers of a step
and computes the derivative of the loss for each of their tokens. Everything else is as in every run (`loop`). Sampling
uses random numbers seeded by (seed, step), so a resumed run needs no random state. Chapter 22.
"""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from pathlib import Path
from typing import Protocol

import numpy as np

from nanoeuler_lib._moved import name_of
from nanoeuler_lib.config import ModelConfig, RewardConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.files import one_line
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.machine import cores
from nanoeuler_lib.model import GPT, RowLoss
from nanoeuler_lib.model.batch_decoder import Sampled, sample_rows
from nanoeuler_lib.text.chat_template import encode_turn, markers
from nanoeuler_lib.text.sft_data import Encoded, row_length, rows
from nanoeuler_lib.text.tokenizer import Tokenizer
from nanoeuler_lib.training.checkpoint import Checkpoint
from nanoeuler_lib.training.datasets import Dataset, fingerprint
from nanoeuler_lib.training.monitor import EQUAL_REWARDS
from nanoeuler_lib.training.run_folder import read_tensors, write_tensors


class Problem(Protocol):
    """Describe a question whose answer a verifier can grade."""

    prompt: str


Verifier = Callable[[Problem, str], float]

# ---- From rewards to the derivative for each token


def advantages(rewards: np.ndarray, own: bool = False, std: bool = False) -> np.ndarray:
    """Compute how much better each answer is than its group: [P, G] from rewards [P, G].

    By default, an answer's reward is compared with the mean over the other answers (RLOO;
    Ahmadian et al. 2024, eq. 9). own: compare with the mean over all G answers, which gives
    (G - 1) / G of that; std: also divide by the group's standard deviation, as GRPO does
    (Shao et al. 2024, 4.1). If all rewards of a group are equal, its advantages are 0.
    Chapter 22.
    """
    G = rewards.shape[1]
    apart = rewards - rewards.mean(axis=1, keepdims=True)
    apart = np.where(np.ptp(rewards, axis=1, keepdims=True) > 0, apart, 0.0)  # a mean of equal numbers rounds
    if not own:
        apart = apart * G / (G - 1)
    if std:
        spread = rewards.std(axis=1, keepdims=True)
        apart = apart / np.where(spread > 0, spread, 1.0)
    return apart


def kl_terms(logps: np.ndarray, reference: np.ndarray, estimator: str) -> tuple[np.ndarray, np.ndarray]:
    """Estimate KL(policy || reference) at each token; also return the derivative.

    logps, reference: log-probabilities of sampled tokens under policy p and reference q,
    any shape. The derivative is by the token's log-probability. Schulman's estimators
    (2020): "k1": log p - log q; "k2": half its square; "k3": q/p - 1 - log q/p. For tokens
    sampled from p, the values of k1 and k3 are unbiased. Their derivatives are not: the
    derivative of k1 is 0 on average, and the derivative of k3 is that of
    KL(reference || policy). The derivative of k2 is correct for a single token, but leaves
    out the token's effect on later tokens. Raises NanoEulerError for another estimator.
    Chapter 22.
    """
    apart = logps - reference
    if estimator == "k1":
        return apart, np.ones_like(apart)
    if estimator == "k2":
        return apart**2 / 2, apart
    if estimator == "k3":
        return np.expm1(-apart) + apart, -np.expm1(-apart)
    raise NanoEulerError(f"estimator must be k1, k2 or k3, got {short(estimator)}")


def surrogate(
    logps: np.ndarray, old: np.ndarray, advantage: np.ndarray, counted: np.ndarray, config: RewardConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the clipped objective of each answer, its derivative by each log-probability, and what is clipped.

    logps, old: [B, T], log-probabilities of the tokens now and when sampled; advantage: [B]; counted: booleans [B, T],
    true for tokens of an answer. A token's objective is the smaller of ratio times advantage and clipped ratio times
    advantage (Schulman et al. 2017, eq. 7). Returns objectives [B], derivatives [B, T], and whether clipped [B, T].
    """
    ratio = np.exp(np.where(counted, logps - old, 0.0))
    gain = ratio * advantage[:, None]
    edge = config.clip_ratio or np.inf
    held = np.clip(ratio, 1 - edge, 1 + edge) * advantage[:, None]
    clipped = (held < gain) & counted
    slope = np.where(counted & ~clipped, gain, 0.0)
    terms = np.where(counted, np.minimum(gain, held), 0.0)
    return terms.sum(axis=1), slope, clipped


# ---- The answers of a step


OF_UPDATES = "the steps per set of answers (--updates)"
# figures of `Answers.weigh` after the loss; the last one is the fraction of groups whose rewards are all equal
FIGURES = "reward", "kl", "clipped", "answer_tokens", "nats", EQUAL_REWARDS


class Answers:
    """Hold `config.group` answers to each of some questions, with their rewards, and compute their loss.

    questions: token ids of each; drawn: answers; rewards: [B]; shape: of the model; reference: model of the KL penalty.
    Attributes: inputs [B, T], targets [B, T, K]; advantages [B]; counted [B, T], whether a position predicts a token of
    the answer; old, reference [B, T], its log-probability when it was sampled, and under the reference (or None).
    """

    def __init__(
        self,
        questions: Sequence[Sequence[int]],
        drawn: Sequence[Sampled],
        rewards: np.ndarray,
        shape: ModelConfig,
        config: RewardConfig,
        reference: GPT | None = None,
    ):
        self.config, self.drawn, self.rewards = config, drawn, rewards
        self.equal = np.repeat(np.ptp(rewards.reshape(-1, config.group), axis=1) == 0, config.group)
        asked = [questions[row // config.group] for row in range(len(drawn))]
        encoded = [
            Encoded(np.array([*q, *s.ids]), np.arange(len(q) + len(s.ids)) >= len(q))
            for q, s in zip(asked, drawn, strict=True)
        ]
        self.inputs, self.targets = rows(encoded, row_length(encoded, shape.context), shape.predict)
        self.targets[..., 1:] = -1
        self.counted = self.targets[..., 0] >= 0
        self.old = np.zeros(self.counted.shape)
        self.old[self.counted] = np.concatenate([s.logps for s in drawn])
        self.reference, graded = None, rewards
        if reference is not None:
            parts = (slice(i, i + 16) for i in range(0, len(drawn), 16))
            nats = [reference.losses(self.inputs[part], self.targets[part, :, 0]) for part in parts]
            self.reference = -np.concatenate(nats).astype(np.float64)
            if config.kl_by == "reward":
                graded = rewards - config.kl * np.where(self.counted, self.old - self.reference, 0.0).sum(axis=1)
        self.advantages = advantages(graded.reshape(-1, config.group)).reshape(-1)

    def weigh(self, part: slice, nats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute the loss of some rows from the nats of their tokens [b, T], and its derivative (`model.RowLoss`).

        Each row's loss is divided by the number of all rows, so any split into parts has the same sum. For new answers,
        it is minus the mean reward, plus beta times the KL penalty. Returns it, `FIGURES`, and derivatives [b, T].
        """
        c, N = self.config, len(self.rewards)
        logps, counted, advantage = -nats.astype(np.float64), self.counted[part], self.advantages[part]
        value, slope, clipped = surrogate(logps, self.old[part], advantage, counted, c)
        at_first, _, _ = surrogate(self.old[part], self.old[part], advantage, counted, c)
        loss = at_first - value - self.rewards[part]
        distance = np.zeros(len(loss))
        if self.reference is not None:
            reference = np.where(counted, self.reference[part], logps)
            terms, derivative = kl_terms(logps, reference, "k1" if c.kl_by == "reward" else c.kl_by)
            distance = np.where(counted, logps - reference, 0.0).sum(axis=1)
            if c.kl_by == "reward":
                loss = loss + c.kl * np.where(counted, self.old[part] - reference, 0.0).sum(axis=1)
            else:
                loss = loss + c.kl * np.where(counted, terms, 0.0).sum(axis=1)
                slope = slope - c.kl * np.where(counted, derivative, 0.0)
        tokens = counted.sum(axis=1)
        told = loss, self.rewards[part], distance, clipped.sum(axis=1) / np.maximum(tokens, 1), tokens
        told = *told, np.where(counted, -logps, 0.0).sum(axis=1) / np.maximum(tokens, 1), self.equal[part]
        return np.array([x.sum() for x in told]) / N, slope / N


def answer_text(tokenizer: Tokenizer, drawn: Sampled) -> str:
    """Return the text of an answer; "..." is added if it is unfinished, or has a marker or an id without text."""
    ids = drawn.ids[:-1] if drawn.ended else drawn.ids
    plain = set(tokenizer.special_tokens.values()).isdisjoint(ids.tolist()) and (ids < tokenizer.vocab_size).all()
    text = b"".join(tokenizer.token_bytes[i] for i in ids if i < tokenizer.vocab_size).decode(errors="replace")
    return text if drawn.ended and plain else f"{text}..."


def checked(verifier: Verifier, name: str) -> Verifier:
    """Return a verifier that raises NanoEulerError if `verifier` raises or returns anything but a finite number.

    name: of the verifier, for the message.
    """

    def grade(problem: Problem, answer: str) -> float:
        about = f"for the answer {short(answer)}"
        try:
            reward = verifier(problem, answer)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {one_line(str(error), 200)}"
            raise NanoEulerError(f"reward {name} failed {about} in {at.filename}:{at.lineno}: {told}") from error
        if not (isinstance(reward, Real | np.bool_) and math.isfinite(reward)):
            raise NanoEulerError(f"reward {name} must return a finite number, got {short(reward)} {about}")
        return float(reward)

    return grade


class RewardDataset(Dataset):
    """Hold questions to answer for a reward; the answers are sampled during training.

    A step's answers are sampled from the current model, `state.model`. `config.updates` steps use the same answers, so
    a run can only be saved after such a set of steps (`span`). verifiers: of `RunOptions`; the header names the one
    that gives the reward. Raises NanoEulerError if that name is unknown, if the answers of a step do not divide into
    groups or the steps into updates, or if a question and its answer do not fit the context.
    """

    sampled, unit, measure, figures = False, "questions", "valid_missed", FIGURES

    def __init__(
        self,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        state: Checkpoint,
        verifiers: Mapping[str, Verifier],
    ):
        self.state, self.train, self.tokenizer = state, state.train, state.tokenizer
        self.config = c = RewardConfig.from_dict(state.info["rewards"])
        if c.reward not in verifiers:
            names = ", ".join(verifiers) or "the names in verifiers, which is empty"
            raise NanoEulerError(f"reward must be one of {names}, got {short(c.reward)}")
        graded = {name: checked(verifier, name) for name, verifier in verifiers.items()}
        self.verify, self.truth = graded[c.reward], next(iter(graded.values()))
        self.verify(problems[0], "...")  # raises for a flawed verifier before anything is written
        self.end, self.span = markers(self.tokenizer)[0], c.updates
        self.problems, self.held_out = list(problems), list(held_out)
        self.questions, self.asked = (
            [[self.end, *encode_turn(self.tokenizer, p.prompt)] for p in part]
            for part in (self.problems, self.held_out)
        )
        longest, context = max(map(len, [*self.questions, *self.asked])), state.model.config.context
        if longest + c.answer_tokens > context:
            raise NanoEulerError(
                f"--answer-tokens must be at most {context - longest}, got {c.answer_tokens}: a question takes "
                f"{longest} of the context of {context}"
            )
        rows = self.train.batch * self.train.accumulate
        for name, whole, part, what in (
            ("--batch times --accumulate", rows, c.group, "the answers per question (--group)"),
            ("--steps", self.train.steps, self.span, OF_UPDATES),
            ("--save-every", self.train.save_every, self.span, OF_UPDATES),
            ("keep_every", self.train.keep_every, self.span, OF_UPDATES),
        ):
            if whole % part:
                raise NanoEulerError(f"{name} must be a multiple of {part}, {what}, got {whole}")
        self.row_tokens = float(np.mean([len(q) for q in self.questions])) + c.answer_tokens
        self.tokens = round(self.train.steps * rows * self.row_tokens)  # new answers in each step: none repeats
        self.sizes = {"train_questions": len(self.problems), "valid_questions": len(self.held_out)}
        self.reach, self.warnings = 1.0, []
        self.fingerprint, self.valid_fingerprint = (
            fingerprint(np.concatenate([*part, []])) for part in (self.questions, self.asked)
        )
        self.asked_before, self.done = np.zeros(len(self.problems), bool), 0
        self.answers, self.drawn_at, self.reference = None, None, None

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Store the initial model for the KL penalty, or read it. Raises NanoEulerError if that fails."""
        if not self.config.kl:
            return
        file, known = run / "reference.safetensors", state.info.get("reference")
        self.reference = state.model.copied()
        if known is None:
            write_tensors(file, self.reference.params)
            state.info["reference"] = fingerprint(self.reference.params.flat.view(np.int32))
            return
        found, params = read_tensors(file, "the model that the run began with"), self.reference.params
        fits = {n: x.shape for n, x in found.items()} == {n: x.shape for n, x in params.items()}
        if fits:
            for name, tensor in found.items():
                params[name][...] = tensor
        if not fits or fingerprint(self.reference.params.flat.view(np.int32)) != known:
            raise NanoEulerError(f"{file}: is not the model that the run began with: it was truncated or edited")

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray, RowLoss]:
        """Return inputs [B, T] and targets [B, T, K] of a step (0, 1, ...), and the loss of these rows.

        The first of every `config.updates` steps samples and grades the answers; the others reuse them.
        """
        first = step - step % self.span
        if self.drawn_at != first:
            chosen = self._chosen(first)
            questions = [self.questions[i] for i in chosen]
            drawn = self.draw(self.state.model, questions, self.config.group, [self.train.seed, first, 1])
            problems = [self.problems[i] for i in np.repeat(chosen, self.config.group)]
            paid = np.array(
                [self.verify(p, answer_text(self.tokenizer, s)) for p, s in zip(problems, drawn, strict=True)]
            )
            self.answers = Answers(questions, drawn, paid, self.state.model.config, self.config, self.reference)
            self.drawn_at = first
        return self.answers.inputs, self.answers.targets, self.answers.weigh

    def _chosen(self, step):
        count = self.train.batch * self.train.accumulate // self.config.group
        return np.random.default_rng([self.train.seed, step]).integers(len(self.problems), size=count)

    def draw(self, model: GPT, questions: Sequence[Sequence[int]], group: int, seed: Sequence[int]) -> list[Sampled]:
        """Sample `group` answers to each question with this seed, in several threads. Returns them by question."""
        shape = self.config.answer_tokens, group
        numbers = [np.random.default_rng([*seed, place]).random(shape) for place in range(len(questions))]
        workers = min(self.state.info.get("workers") or cores(), len(questions))

        def some(part):
            draws = np.concatenate([numbers[place] for place in part], axis=1)
            return sample_rows(model, [questions[place] for place in part], group, self.end, draws)

        with ThreadPoolExecutor(workers) as pool:
            return [row for found in pool.map(some, np.array_split(range(len(questions)), workers)) for row in found]

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """Return 1 minus the mean reward of an answer to each held-out question, for the log.

        With a flawed verifier, "truth missed" is the same by the correct one. The random numbers are always the same.
        """
        drawn = self.draw(model, self.asked, 1, [self.train.seed, 0, 2])
        pairs = [(p, answer_text(self.tokenizer, s)) for p, s in zip(self.held_out, drawn, strict=True)]
        paid, true = (np.mean([f(*pair) for pair in pairs]) for f in (self.verify, self.truth))
        sets = {} if self.verify is self.truth else {"valid_sets": {"truth missed": float(1 - true)}}
        return {self.measure: float(1 - paid)} | sets

    def seen(self, steps: int) -> float:
        """Return the fraction of the questions asked in the first `steps` steps; `steps` must never decrease."""
        for step in range(self.done, steps):
            self.asked_before[self._chosen(step - step % self.span)] = True
        self.done = steps
        return float(self.asked_before.mean())

    def sample(self, model: GPT, seed: int) -> str:
        """Return the first held-out question, followed by the model's greedy answer."""
        prompt = self.held_out[0].prompt
        return prompt + "".join(Chat(model, self.tokenizer).reply(prompt, 60, seed, temperature=0.0))


def __getattr__(name: str) -> object:
    return name_of(f"training.rewards.{name}")
