"""Pretraining: from a run folder and a text to a trained model.

    run/
        run.json            configurations, data, machine: written once
        log.jsonl           a line for each step, validation and sample
        checkpoints/step-000500/ ...

A run is a function of its configuration. The batch of step s is drawn from a generator seeded with (seed, s), so
going on from a checkpoint needs no random state: it continues with the same batches as if it had never stopped.
"""

import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from nanoeuler_lib import __version__, checkpoint, data
from nanoeuler_lib.config import ModelConfig, TrainConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.generate import generate
from nanoeuler_lib.model import GPT, Parameters, backward, forward, head_weights, loss_scale
from nanoeuler_lib.optim import AdamW, clip_factor, learning_rate
from nanoeuler_lib.plan import Plan
from nanoeuler_lib.tokenizer import END_OF_TEXT, Tokenizer

MICRO_TOKENS = 512  # a worker runs this many positions at a time, so that a layer's buffers stay in its cache
KEEP = 2  # checkpoints kept; older ones are removed


class Step:
    """One optimisation step on a batch, computed by several threads.

    Each worker has its own plan and gradient and takes every n-th micro-batch; gradients are then added in the order
    of the workers, so results are the same bits for the same number of workers. BLAS and NumPy release Python's
    lock while they compute, and each worker uses one BLAS thread (call inside `one_blas_thread()`).
    """

    def __init__(
        self, model: GPT, optimizer: AdamW, config: TrainConfig, rows: int, workers: int | None = None
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        time = model.config.context
        limit = max(1, MICRO_TOKENS // time)
        self.micro = max(m for m in range(1, min(limit, rows) + 1) if rows % m == 0)
        self.workers = min(workers or os.cpu_count() or 1, rows // self.micro)
        self.weights = head_weights(model.config, config.later_heads)
        self.plans = [Plan(model.config, self.micro, time, model.dtype) for _ in range(self.workers)]
        self.grads = [Parameters(model.config, model.dtype) for _ in range(self.workers)]
        # A step that overflows shows in its loss or norm, which are looked at; NumPy's warnings would only add noise.
        self.pool = ThreadPoolExecutor(self.workers, initializer=lambda: np.seterr(all="ignore"))
        self.names = list(model.params)

    def gradient(self, tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Fill `grads` (one part each worker) for tokens [B, T], targets [B, T, K]. Returns mean nats by head [K]."""
        scale = loss_scale(targets, self.weights)
        starts = range(0, len(tokens), self.micro)

        def work(worker):
            plan, grads, total = self.plans[worker], self.grads[worker], 0.0
            for count, start in enumerate(starts[worker :: self.workers]):
                part = slice(start, start + self.micro)
                forward(self.model.params, plan, tokens[part])
                backward(
                    self.model.params, grads, plan, tokens[part], targets[part], scale, accumulate=count > 0
                )
                total = total + plan.losses.sum(axis=0, dtype=np.float64)
            return total

        sums = sum(self.pool.map(work, range(self.workers)))
        return sums / np.maximum((targets >= 0).reshape(-1, targets.shape[-1]).sum(axis=0), 1)

    def apply(self) -> float:
        """Add the workers' gradients, clip, move the parameters. Returns the gradient's norm before clipping."""

        def add(worker):
            squares = 0.0
            for name in self.names[worker :: self.workers]:
                total = self.grads[0][name]
                for other in self.grads[1:]:
                    total += other[name]
                squares += float(np.vdot(total, total))
            return squares

        norm = math.sqrt(sum(self.pool.map(add, range(self.workers))))
        if not math.isfinite(norm):
            return norm  # the caller stops the run; the parameters are still those of the last good step
        factor = clip_factor(norm, self.config.clip)
        self.optimizer.step += 1

        def move(worker):
            self.optimizer.update(
                self.model.params, self.grads[0], self.names[worker :: self.workers], factor
            )

        list(self.pool.map(move, range(self.workers)))
        return norm

    def __call__(self, tokens: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
        """A whole step: mean nats by head [K], and the gradient's norm. Not applied if either is not finite."""
        losses = self.gradient(tokens, targets)
        return losses, self.apply() if np.isfinite(losses).all() else math.nan


def one_blas_thread():
    """Context manager: every BLAS call inside uses one thread."""
    return threadpool_limits(1, user_api="blas")


def bits_per_byte(model: GPT, tokens: data.Tokens, rows: int = 8) -> float:
    """Bits that head 0 needs for each byte of a text, every token scored once (`data.validation_rows`)."""
    inputs, targets = data.validation_rows(tokens, model.config.context)
    plans = range(0, len(inputs), rows)
    nats = sum(
        float(model.losses(inputs[i : i + rows], targets[i : i + rows]).sum(dtype=np.float64)) for i in plans
    )
    scored = tokens.lengths[np.where(targets >= 0, targets, 0)] * (targets >= 0)
    return nats / math.log(2) / int(scored.sum())


def train(
    run: str | Path,
    text: str,
    model_config: ModelConfig,
    config: TrainConfig,
    tokenizer: Tokenizer | None = None,
    source: str = "text",
    valid_text: str | None = None,
    quiet: bool = False,
) -> GPT:
    """Train a model on a text and leave a run folder.

    run: a folder that does not hold a run yet; tokenizer: by default one of `model_config.vocab_size` tokens is
    trained on the training part; source: what to call the text in run.json; valid_text: by default the last
    `config.valid_fraction` of the text. Returns the trained model.
    Raises NanoEulerError when the folder holds a run, the text is too short, or the loss is not finite.
    """
    run = Path(run)
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise NanoEulerError(
            f"{run}: exists and is not an empty folder, expected a new one (or --resume {run})"
        )
    part, valid = (
        (text, valid_text) if valid_text is not None else data.split_text(text, config.valid_fraction)
    )
    if tokenizer is None:
        special = (END_OF_TEXT,) if data.SEPARATOR in part else ()
        tokenizer = Tokenizer.train(part, model_config.vocab_size, special_tokens=special)
    if tokenizer.vocab_size > model_config.vocab_size:
        raise NanoEulerError(
            f"tokenizer has {tokenizer.vocab_size} tokens, expected at most vocab_size ({model_config.vocab_size})"
        )
    model = GPT(model_config, seed=config.seed)
    found = checkpoint.Checkpoint(
        run, model, tokenizer, 0, config, AdamW(model_config, config), {"source": source}
    )
    tokens, valid_tokens = _tokens(part, valid, found)
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NanoEulerError(
            f"{run}: cannot be made ({error.strerror}), expected a folder to write to"
        ) from None
    head = {
        "version": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}",
        "model": model_config.to_dict(),
        "train": config.to_dict(),
        "data": {"source": source, "train_tokens": len(tokens.ids), "valid_tokens": len(valid_tokens.ids)},
    }
    (run / "run.json").write_text(json.dumps(head, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return _train(run, found, tokens, valid_tokens, quiet)


def resume(run: str | Path, text: str, valid_text: str | None = None, quiet: bool = False) -> GPT:
    """Go on with a run from its latest checkpoint; ends with the same weights as a run that never stopped.

    text, valid_text: as given to `train`. Raises NanoEulerError when the text is another one.
    """
    run = Path(run)
    found = checkpoint.load(run, training=True)
    part, valid = (
        (text, valid_text) if valid_text is not None else data.split_text(text, found.train.valid_fraction)
    )
    tokens, valid_tokens = _tokens(part, valid, found)
    if (now := _fingerprint(tokens)) != (then := found.info["fingerprint"]):
        raise NanoEulerError(
            f"{run}: text has fingerprint {now}, expected {then}: not the text the run began with"
        )
    _trim_log(run / "log.jsonl", found.step)
    return _train(run, found, tokens, valid_tokens, quiet)


def _tokens(part, valid, found):
    context, predict = found.model.config.context, found.model.config.predict
    tokens, valid_tokens = data.tokenize(part, found.tokenizer), data.tokenize(valid, found.tokenizer)
    for name, have, need in (("training", tokens, context + predict), ("validation", valid_tokens, 2)):
        if len(have.ids) < need:
            source = found.info["source"]
            raise NanoEulerError(
                f"{source}: {name} part has {len(have.ids)} tokens, expected at least {need}"
            )
    return tokens, valid_tokens


def _fingerprint(tokens):
    return f"{len(tokens.ids)}-{int(np.bitwise_xor.reduce(tokens.ids * (np.arange(len(tokens.ids)) | 1))):x}"


def _train(run, found, tokens, valid, quiet):
    model, optimizer, config = found.model, found.optimizer, found.train
    info = found.info | {"fingerprint": _fingerprint(tokens)}
    rows, context = config.batch * config.accumulate, model.config.context
    take_step = Step(model, optimizer, config, rows)
    saved = found.step

    def save(step):
        nonlocal saved
        path = run / "checkpoints" / f"step-{step:06d}"
        checkpoint.save(path, model, found.tokenizer, step, config, optimizer, info)
        for old in checkpoint.folders(run)[:-KEEP]:
            checkpoint.remove(old)
        saved = step

    def intact():
        return f"the checkpoint of step {saved} is intact" if saved else "no checkpoint was written yet"

    bar = tqdm(
        total=config.steps * rows * context, initial=found.step * rows * context, unit="tok", unit_scale=True,
        disable=quiet or None,  # None: shown on a terminal only
    )  # fmt: skip

    def say(text):
        if not quiet:
            bar.write(text)

    with (
        one_blas_thread(),
        np.errstate(all="ignore"),  # as in the workers
        _stop_between_steps() as stop,
        bar,
        take_step.pool,
        open(run / "log.jsonl", "a", encoding="utf-8") as log,
    ):

        def note(**entry):
            log.write(json.dumps(entry, ensure_ascii=False, allow_nan=False) + "\n")
            log.flush()

        def validate(step):
            bits = info["valid_bits_per_byte"] = bits_per_byte(model, valid)
            if not math.isfinite(bits):
                raise NanoEulerError(f"step {step}: validation gives {bits} bits per byte; {intact()}")
            note(step=step, valid_bits_per_byte=bits)
            say(f"step {step}: validation {bits:.4f} bits per byte")

        if found.step == 0:
            validate(0)
        for step in range(found.step, config.steps):
            began = time.perf_counter()
            rng = np.random.default_rng([config.seed, step])
            losses, norm = take_step(*data.batch(tokens, rng, rows, context, model.config.predict))
            if not math.isfinite(norm):
                raise NanoEulerError(
                    f"step {step + 1}: loss is {losses[0]:.4g} and the gradient's norm {norm}, expected finite "
                    f"numbers: lower the rate ({config.rate:g}) or the clip ({config.clip:g}); {intact()}"
                )
            seconds, done = time.perf_counter() - began, step + 1
            note(
                step=done, loss=round(float(losses[0]), 6), later=[round(float(x), 6) for x in losses[1:]],
                rate=learning_rate(step, config), norm=round(norm, 6), seconds=round(seconds, 6),
                tokens_per_second=round(rows * context / seconds),
            )  # fmt: skip
            bar.update(rows * context)
            bar.set_postfix(step=done, loss=f"{losses[0]:.3f}", refresh=False)
            if done % config.valid_every == 0 or done == config.steps:
                validate(done)
            if config.sample_every and done % config.sample_every == 0:
                sample = generate(model, found.tokenizer, "", 100, seed=config.seed + done)
                note(step=done, sample=sample)
                say(f"step {done}: {sample!r}")
            if done % config.save_every == 0 or done == config.steps or stop:
                save(done)
            if stop and done < config.steps:
                bar.write(f"stopped; the checkpoint of step {saved} is saved: --resume {run} goes on")
                raise KeyboardInterrupt
    return model


@contextmanager
def _stop_between_steps():
    """Ctrl-C and SIGTERM fill the list given, which the loop looks at after a whole step; a second one interrupts."""
    stop = []

    def remember(number, frame):
        if stop:
            raise KeyboardInterrupt
        stop.append(number)

    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield stop
        return
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_log(run: str | Path) -> list[dict]:
    """The entries of a run's log, in order. Raises NanoEulerError when there is none or a line is not JSON."""
    return list(_entries(Path(run) / "log.jsonl"))


def _entries(file) -> Iterator[dict]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except OSError as error:
        raise NanoEulerError(f"{file}: cannot be read ({error.strerror}), expected a run's log") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            if number < len(lines):  # the last line may be cut off by a crash
                raise NanoEulerError(f"{file}: line {number} is not JSON: edited") from None
            return
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            raise NanoEulerError(f"{file}: line {number} is not an entry with a step: edited")
        yield entry


def _trim_log(file, step):
    """Drop what was logged after the checkpoint that a run goes on from."""
    kept = [entry for entry in _entries(file) if entry["step"] <= step] if file.exists() else []
    partial = file.with_suffix(".partial")
    partial.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in kept), "utf-8")
    os.replace(partial, file)
