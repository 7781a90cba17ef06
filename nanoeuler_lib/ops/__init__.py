"""Two levels of operations, and the switch between their versions.

`ops/reference.py` holds pure pairs (`attention_forward`, `attention_backward`), the mathematics. The model calls
composites (`attention`, `attention_back`), which write into the buffers of a plan; `ops/cpu.py` has fast ones,
`ops/plain.py` makes plain ones from the pure pairs. A plan gives them its scratch space (`bind`) and offers them as
`plan.op`: `plan.op.attention` is `cpu.attention`, unless a `use` says otherwise.

    with ops.use(attention_backward=mine):      # a reader's function inside the real model
        model.loss_and_gradients(tokens, targets)
    with ops.use("plain"):                      # everything by the reference
        ...

In the book's notebooks a reader's function that fails inside the model is reported in one sentence. Its layer goes on
with the book's version, and what was being computed is computed again from its beginning: see `on_failure`, `again`.

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
GPT2_LAYERS = {  # those that `model.gpt2` has beside them
    ("positions", "positions_back"): ("positions_forward", "positions_backward"),
    ("add_layernorm", "add_layernorm_back"): ("layernorm_forward", "layernorm_backward"),
    ("affine", "affine_back"): ("affine_forward", "affine_backward"),
    ("gelu", "gelu_back"): ("gelu_forward", "gelu_backward"),
}
COMPOSITES = tuple(name for composites in LAYERS for name in composites)
ALL_LAYERS = LAYERS | GPT2_LAYERS
FUNCTIONS = {name: getattr(reference, name) for names in ALL_LAYERS.values() for name in names}


def _composites(version: str, own: dict) -> SimpleNamespace:
    """The composites of `version`; those that need one of the reader's `own` functions are made from pure functions."""
    by_hand = plain.Plain(FUNCTIONS | own)
    chosen = {}
    for composites, needs in ALL_LAYERS.items():
        mine = {name: own[name] for name in needs if name in own}
        source = by_hand if version == "plain" or mine else cpu
        for name in composites:
            composite = getattr(source, name)
            chosen[name] = _guarded(composite, mine) if mine and on_failure else composite
    return SimpleNamespace(**chosen)


@dataclass(frozen=True)
class _InUse:
    """What one `use` has put in place: the version, the reader's functions, and the composites made of both."""

    version: str
    own: dict
    composites: SimpleNamespace


# Called with the functions, {name: function}, that failed inside the model, and their error; None: the error is raised.
on_failure: Callable[[dict, Exception], None] | None = None
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


class _Failed(Exception):
    """Functions in `use`, {name: function}, have failed inside the model, with an error."""


def _guarded(composite: Callable, mine: dict) -> Callable:
    @functools.wraps(composite)
    def call(*arguments, **scratch):
        try:
            composite(*arguments, **scratch)
        except Exception as error:
            if _under_way:
                raise _Failed(mine, error) from error
            raise

    return call


_under_way: list[Callable] = []  # calls that would be made again; the outermost is the one that is


def again(state: Callable | None = None) -> Callable:
    """A decorator: if a function in `use` fails, report it to `on_failure` and make the whole call again without it.

    state: of the same arguments, the arrays that the call changes, which are put back first; None if it only fills.
    """

    def decorator(whole):
        @functools.wraps(whole)
        def call(*arguments, **named):
            if not functions() or not on_failure or _under_way:
                return whole(*arguments, **named)
            arrays = state(*arguments, **named) if state else ()
            before = [array.copy() for array in arrays]
            while True:
                _under_way.append(whole)
                try:
                    return whole(*arguments, **named)
                except _Failed as failure:
                    on_failure(*failure.args)
                    _drop(failure.args[0])
                    for array, value in zip(arrays, before, strict=True):
                        array[...] = value
                finally:
                    _under_way.pop()

        return call

    return decorator


def _drop(failed: dict) -> None:
    """Take functions that have failed out of every `use` that is open."""
    for i, level in enumerate(_stack):
        own = {name: f for name, f in level.own.items() if failed.get(name) is not f}
        _stack[i] = _InUse(level.version, own, _composites(level.version, own))


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
            raise NanoEulerError(f"no function {name!r} to replace, expected one of {', '.join(sorted(FUNCTIONS))}")
        if not callable(function):
            raise NanoEulerError(f"{name} is {function!r}, expected a function")
    _stack.append(_InUse(version, all_own, _composites(version, all_own)))
    try:
        yield
    finally:
        _stack.pop()
