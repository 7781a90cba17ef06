"""Learning from rewards: a model draws answers, a verifier grades them, and good ones become likelier.

`advantages`, `surrogate` and `KL` are the mathematics, on arrays; `RewardDataset` draws the answers of a step and says
what weight each of their tokens has in the loss. Steps, log, checkpoints and resume are those of every run (`loop`):
answers are drawn with numbers seeded by (seed, step), so a run that goes on needs no random state. Chapter 22.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from nanoeuler_lib._moved import name_of
from nanoeuler_lib.config import ModelConfig, RewardConfig
from nanoeuler_lib.errors import NanoEulerError, short
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
    """A question whose answer a verifier can grade."""

    prompt: str


Verifier = Callable[[Problem, str], float]

# ---- From rewards to the weight of a token


def advantages(rewards: np.ndarray, own: bool = False, std: bool = False) -> np.ndarray:
    """How much better each answer is than its group: [P, G] from rewards [P, G].

    own: compare with the mean of all G, the answer's own reward included: (G - 1) / G of what the others' mean gives
    (RLOO; Ahmadian et al. 2024, eq. 9); std: divide by the group's standard deviation, as GRPO does
    (Shao et al. 2024, 4.1). A group whose rewards are equal has advantages 0.
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
    """An estimate of KL(policy || reference) at each token, and its derivative by the token's log-probability.

    logps, reference: log-probabilities of drawn tokens, any shape. Schulman's estimators (2020): "k1", log p - log q;
    "k2", half its square; "k3", q/p - 1 - log q/p. As values of tokens drawn from p, k1 and k3 are right on average.
    As terms of a loss they are not: the derivative of k1 is 0 on average, and that of k3 is the derivative of
    KL(reference || policy). That of k2 is right for one token, and leaves out what the token makes of later ones.
    """
    apart = logps - reference
    if estimator == "k1":
        return apart, np.ones_like(apart)
    if estimator == "k2":
        return apart**2 / 2, apart
    if estimator == "k3":
        return np.expm1(-apart) + apart, -np.expm1(-apart)
    raise NanoEulerError(f"estimator is {short(estimator)}, expected k1, k2 or k3")


def surrogate(
    logps: np.ndarray, old: np.ndarray, advantage: np.ndarray, counted: np.ndarray, config: RewardConfig
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The clipped objective of each answer, its derivative by each token's log-probability, and what is clipped.

    logps, old: [B, T] now, and when the answers were drawn; advantage: [B]; counted: booleans [B, T], the answers'
    tokens. Returns [B], [B, T] and booleans [B, T]. Schulman et al. 2017, eq. 7: for each token the smaller of ratio
    times advantage and clipped ratio times advantage.
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


OF_UPDATES = "the updates that a set of answers serves"
# of `Answers.weigh`, after the loss; the last is the share of groups whose rewards are all equal
FIGURES = "reward", "kl", "clipped", "answer_tokens", "nats", EQUAL_REWARDS


class Answers:
    """Answers to some prompts, `group` of each, with rewards, and what the loss makes of them.

    inputs [B, T], targets [B, T, K]; rewards, advantages [B]; counted, old, reference [B, T]: which positions predict
    an answer's token, and that token's log-probability when it was drawn and under the reference (None: no reference).
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
        """The loss of these rows from their nats [b, T], and its derivative by each nat (`model.RowLoss`).

        The loss is that of all rows divided by their number, so any split into parts has the same sum. It is written so
        that it equals minus the mean reward (plus beta times the distance) when the answers have just been drawn.
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
    """The text of an answer; "..." follows where it did not end, or holds a marker or an id without a text."""
    ids = drawn.ids[:-1] if drawn.ended else drawn.ids
    plain = set(tokenizer.special_tokens.values()).isdisjoint(ids.tolist()) and (ids < tokenizer.vocab_size).all()
    text = b"".join(tokenizer.token_bytes[i] for i in ids if i < tokenizer.vocab_size).decode(errors="replace")
    return text if drawn.ended and plain else f"{text}..."


class RewardDataset(Dataset):
    """Questions to answer for a reward, and questions that are held out: has the members of `datasets.TextDataset`.

    A step's answers are drawn from the model as it is then, `state.model`; `config.updates` steps share them, so a run
    is saved behind such steps alone (`span`). verifiers: of `RunOptions`; the name of the one that pays is in the run's
    header. Raises NanoEulerError where that name is unknown, answers do not divide into groups, steps not into updates,
    or a question and its answer do not fit the context.
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
            raise NanoEulerError(f"reward is {short(c.reward)}, expected one of {names}")
        self.verify, self.truth = verifiers[c.reward], next(iter(verifiers.values()))
        self.end, self.span = markers(self.tokenizer)[0], c.updates
        self.problems, self.held_out = list(problems), list(held_out)
        self.questions, self.asked = (
            [[self.end, *encode_turn(self.tokenizer, p.prompt)] for p in part]
            for part in (self.problems, self.held_out)
        )
        longest, context = max(map(len, [*self.questions, *self.asked])), state.model.config.context
        if longest + c.answer_tokens > context:
            raise NanoEulerError(
                f"answer_tokens is {c.answer_tokens}, expected at most {context - longest}: a question takes {longest} "
                f"of the context of {context}"
            )
        rows = self.train.batch * self.train.accumulate
        for name, whole, part, what in (
            ("batch times accumulate", rows, c.group, "the group, which answer one question"),
            ("steps", self.train.steps, self.span, OF_UPDATES),
            ("save_every", self.train.save_every, self.span, OF_UPDATES),
            ("keep_every", self.train.keep_every, self.span, OF_UPDATES),
        ):
            if whole % part:
                raise NanoEulerError(f"{name} is {whole}, expected a multiple of {part}: {what}")
        self.row_tokens = float(np.mean([len(q) for q in self.questions])) + c.answer_tokens
        self.tokens = round(self.train.steps * rows * self.row_tokens)  # answers are drawn anew: none comes twice
        self.sizes = {"train_questions": len(self.problems), "valid_questions": len(self.held_out)}
        self.reach, self.warnings = 1.0, []
        self.fingerprint, self.valid_fingerprint = (
            fingerprint(np.concatenate([*part, []])) for part in (self.questions, self.asked)
        )
        self.asked_before, self.done = np.zeros(len(self.problems), bool), 0
        self.answers, self.drawn_at, self.reference = None, None, None

    def prepare(self, run: Path, state: Checkpoint) -> None:
        """Keep the model that a run begins with, if the loss asks how far it has moved; a run that goes on reads it."""
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
            raise NanoEulerError(f"{file}: is not the model that the run began with: truncated or edited")

    def batch(self, step: int, rows_: int) -> tuple[np.ndarray, np.ndarray, RowLoss]:
        """Inputs [B, T] and targets [B, T, K] of step 0, 1, ..., and the loss of these rows."""
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
        """The questions of a step."""
        count = self.train.batch * self.train.accumulate // self.config.group
        return np.random.default_rng([self.train.seed, step]).integers(len(self.problems), size=count)

    def draw(self, model: GPT, questions: Sequence[Sequence[int]], group: int, seed: Sequence[int]) -> list[Sampled]:
        """`group` answers to each question, drawn with numbers from this seed by the run's threads.

        Each thread takes neighbouring questions.
        """
        shape = self.config.answer_tokens, group
        numbers = [np.random.default_rng([*seed, place]).random(shape) for place in range(len(questions))]
        workers = min(self.state.info.get("workers") or cores(), len(questions))

        def some(part):
            draws = np.concatenate([numbers[place] for place in part], axis=1)
            return sample_rows(model, [questions[place] for place in part], group, self.end, draws)

        with ThreadPoolExecutor(workers) as pool:
            return [row for found in pool.map(some, np.array_split(range(len(questions)), workers)) for row in found]

    def validation(self, model: GPT, whole: bool = True) -> dict:
        """For the log: the share of the reward, and of the truth, that an answer to each held-out question misses.

        The numbers that the answers are drawn with are the same each time.
        """
        drawn = self.draw(model, self.asked, 1, [self.train.seed, 0, 2])
        pairs = [(p, answer_text(self.tokenizer, s)) for p, s in zip(self.held_out, drawn, strict=True)]
        paid, true = (np.mean([f(*pair) for pair in pairs]) for f in (self.verify, self.truth))
        sets = {} if self.verify is self.truth else {"valid_sets": {"truth missed": float(1 - true)}}
        return {self.measure: float(1 - paid)} | sets

    def seen(self, steps: int) -> float:
        """Share of the questions that were asked in the first so many steps. Steps may only grow."""
        for step in range(self.done, steps):
            self.asked_before[self._chosen(step - step % self.span)] = True
        self.done = steps
        return float(self.asked_before.mean())

    def sample(self, model: GPT, seed: int) -> str:
        """The likeliest answer to the first question that is held out, behind the question."""
        prompt = self.held_out[0].prompt
        return prompt + "".join(Chat(model, self.tokenizer).reply(prompt, 60, seed, temperature=0.0))


def __getattr__(name: str) -> object:
    return name_of(f"training.rewards.{name}")
