"""Two levels of operations, and the switch between their versions.

`ops/reference.py` holds pure pairs (`attention_forward`, `attention_backward`), the mathematics. The model calls
composites (`attention`, `attention_back`), which write into the buffers of a plan; `ops/cpu.py` has fast ones,
`ops/plain.py` makes plain ones from the pure pairs. A plan gives them its scratch space (`bind`) and offers them as
`plan.op`: `plan.op.attention` is `cpu.attention`, unless a `use` says otherwise.

    with ops.use(attention_backward=mine):      # a reader's function inside the real model
        model.loss_and_gradients(tokens, targets)
    with ops.use("plain"):                      # everything by the reference
        ...

A reader's kernels go into the engine of a GPU: `engine.use`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import cpu, plain, reference

# Which pure functions stand behind which composites. The two halves of a layer are switched together, because a
# backward pass only understands what its own forward pass saved.
LAYERS = {
    ("embed", "embed_back"): ("embed_forward", "embed_backward"),
    ("linear", "linear_back"): ("linear_forward", "linear_backward"),
    ("add_rmsnorm", "add_rmsnorm_back"): ("rmsnorm_forward", "rmsnorm_backward"),
    ("qkv_rope", "qkv_rope_back"): ("linear_forward", "linear_backward", "rope_forward", "rope_backward"),
    ("attention", "attention_back"): ("attention_forward", "attention_backward"),
    ("swiglu", "swiglu_back"): ("swiglu_forward", "swiglu_backward"),
    ("heads_loss",): ("linear_forward", "linear_backward", "cross_entropy_forward", "cross_entropy_backward"),
    ("adamw",): ("adamw_step",),
    ("muon",): ("muon_step",),
}
COMPOSITES = tuple(name for composites in LAYERS for name in composites)
FUNCTIONS = {name: getattr(reference, name) for names in LAYERS.values() for name in names}


def _composites(version: str, own: dict) -> SimpleNamespace:
    """The composites of `version`; those that need one of the reader's `own` functions are made from pure functions."""
    by_hand = plain.Plain(FUNCTIONS | own)
    chosen = {}
    for composites, needs in LAYERS.items():
        source = by_hand if version == "plain" or own.keys() & set(needs) else cpu
        chosen |= {name: getattr(source, name) for name in composites}
    return SimpleNamespace(**chosen)


@dataclass(frozen=True)
class _InUse:
    """What one `use` has put in place: the version, the reader's functions, and the composites made of both."""

    version: str
    own: dict
    composites: SimpleNamespace


_stack = [_InUse("cpu", {}, _composites("cpu", {}))]


def active() -> SimpleNamespace:
    """The composites now in use, by name: what the model calls."""
    return _stack[-1].composites


def bind(composites: Mapping[str, Callable], scratch: Mapping) -> SimpleNamespace:
    """The composites, those that need scratch space together with it: what `plan.op` is.

    scratch: arrays by name. A composite gets those that it takes by keyword alone: `ops/cpu.py` some, `ops/plain.py`
    none.
    """
    bound = {}
    for name, composite in composites.items():
        arrays = {key: scratch[key] for key in _keywords(composite) if key in scratch}
        bound[name] = functools.partial(composite, **arrays) if arrays else composite
    return SimpleNamespace(**bound)


@functools.lru_cache(maxsize=256)
def _keywords(composite: Callable) -> tuple[str, ...]:
    """The arguments that it takes by keyword alone."""
    parameters = inspect.signature(composite).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def functions() -> dict:
    """The reader's functions now in use, by name."""
    return _stack[-1].own


@contextmanager
def use(version: str | None = None, **own):
    """Inside the `with` block the model on the CPU runs on `version` ("cpu" or "plain") and on the given functions.

    version: None keeps the one in use, as functions of an outer `use` are kept; own: functions by the names of
    `ops/reference.py`, e.g. rmsnorm_backward=mine; the rest of the model stays fast.
    Raises NanoEulerError on an unknown version or name, and a value that cannot be called.
    """
    outer = _stack[-1]
    version, all_own = version or outer.version, outer.own | own
    if version not in ("cpu", "plain"):
        raise NanoEulerError(f"version is {version!r}, expected 'cpu' or 'plain'")
    if "kernels" in own:
        raise NanoEulerError("ops.use takes NumPy functions; kernels go into the engine: engine.use(kernels)")
    for name, function in own.items():
        if name not in FUNCTIONS:
            raise NanoEulerError(
                f"no function {name!r} to replace, expected one of {', '.join(sorted(FUNCTIONS))}"
            )
        if not callable(function):
            raise NanoEulerError(f"{name} is {function!r}, expected a function")
    _stack.append(_InUse(version, all_own, _composites(version, all_own)))
    try:
        yield
    finally:
        _stack.pop()
