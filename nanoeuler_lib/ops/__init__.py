"""The operations of the model on a CPU, and `use`, which switches between their versions.

There are two levels. `ops/reference.py` holds the mathematics as pairs of pure functions (`attention_forward` and
`attention_backward`). The model calls composites (`attention` and `attention_back`), which write into the buffers of a
plan. `ops/cpu.py` contains fast composites, and `ops/plain.py` builds slow ones from the pure pairs. A plan passes its
scratch space to the composites (`bind`) and provides them as `plan.op`: `plan.op.attention` is `cpu.attention`, unless
`use` has replaced it.

    with ops.use(attention_backward=mine):      # your own function inside the real model
        model.loss_and_gradients(tokens, targets)
    with ops.use("plain"):                      # the whole model runs on the reference functions
        ...

If your function fails inside the model in one of the book's notebooks, the failure is reported in one sentence. The
interrupted call then starts again with the book's version of that function: see `on_failure` and `again`.

To run your own GPU kernels in the model, see `engine.use`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.ops import cpu, plain, reference

# Composites -> the pure functions that they compute. Forward and backward of a layer are switched together, because a
# backward pass can only use what its own forward pass saved.
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
GPT2_LAYERS = {  # the additional layers of `model.gpt2`
    ("positions", "positions_back"): ("positions_forward", "positions_backward"),
    ("add_layernorm", "add_layernorm_back"): ("layernorm_forward", "layernorm_backward"),
    ("affine", "affine_back"): ("affine_forward", "affine_backward"),
    ("gelu", "gelu_back"): ("gelu_forward", "gelu_backward"),
}
COMPOSITES = tuple(name for composites in LAYERS for name in composites)
ALL_LAYERS = LAYERS | GPT2_LAYERS
FUNCTIONS = {name: getattr(reference, name) for names in ALL_LAYERS.values() for name in names}


def _composites(version: str, own: dict) -> SimpleNamespace:
    """Return the composites of `version`, with those that need a function in `own` built from pure functions."""
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
    """The settings of one `use`: the version, the reader's functions, and the composites that follow from both."""

    version: str
    own: dict
    composites: SimpleNamespace


# Called with the functions that failed inside the model, {name: function}, and the error. If None, the error is raised.
on_failure: Callable[[dict, Exception], None] | None = None
_stack = [_InUse("cpu", {}, _composites("cpu", {}))]


def active() -> SimpleNamespace:
    """Return the composites that the model calls now, as attributes of a namespace: `active().attention`."""
    return _stack[-1].composites


def bind(composites: Mapping[str, Callable], scratch: Mapping) -> SimpleNamespace:
    """Return the composites with their scratch arrays filled in, as attributes of a namespace; `plan.op` is the result.

    composites: functions by name; scratch: arrays by name. Each composite receives the arrays that are its keyword-only
    arguments. Some composites of `ops/cpu.py` have such arguments; those of `ops/plain.py` have none.
    """
    bound = {}
    for name, composite in composites.items():
        arrays = {key: scratch[key] for key in _keywords(composite) if key in scratch}
        bound[name] = functools.partial(composite, **arrays) if arrays else composite
    return SimpleNamespace(**bound)


@functools.lru_cache(maxsize=256)
def _keywords(composite: Callable) -> tuple[str, ...]:
    parameters = inspect.signature(composite).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


class _Failed(Exception):
    """Signals that functions of a `use` failed inside the model; its arguments are {name: function} and the error."""


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


_under_way: list[Callable] = []  # the running call that is repeated after a failure; calls inside it are not listed


def again(state: Callable | None = None) -> Callable:
    """Decorate a call so that it is repeated without a reader's function that has failed inside it.

    The failure is reported to `on_failure` first; if that is None, the error is raised and nothing is repeated.
    state: a function of the call's arguments that returns the arrays which the call updates in place. They are restored
    before the repetition. None means that the call only overwrites its results.
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
    for i, level in enumerate(_stack):
        own = {name: f for name, f in level.own.items() if failed.get(name) is not f}
        _stack[i] = _InUse(level.version, own, _composites(level.version, own))


def functions() -> dict:
    """Return the reader's functions that are in use now, by name."""
    return _stack[-1].own


@contextmanager
def use(version: str | None = None, **own):
    """Run the model on a different version of its operations, or with functions of your own, inside a `with` block.

    version: "cpu", "plain", or None, which keeps the current one. own: functions under the names that they have in
    `ops/reference.py`, for example rmsnorm_backward=mine; only their layers become slow. The functions of an outer
    `use` stay active. Only models on the CPU are affected.
    Raises NanoEulerError if the version or a name is unknown, or if a value is not callable.
    """
    outer = _stack[-1]
    version, all_own = version or outer.version, outer.own | own
    if version not in ("cpu", "plain"):
        raise NanoEulerError(f"version must be 'cpu' or 'plain', got {version!r}")
    if "kernels" in own:
        raise NanoEulerError("ops.use takes NumPy functions: use your kernels with engine.use(kernels)")
    for name, function in own.items():
        if name not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            raise NanoEulerError(f"the function to replace must be one of {known}, got {name!r}")
        if not callable(function):
            raise NanoEulerError(f"{name} must be a function, got {function!r}")
    _stack.append(_InUse(version, all_own, _composites(version, all_own)))
    try:
        yield
    finally:
        _stack.pop()
