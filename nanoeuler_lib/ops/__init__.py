"""Two levels of operations, and the switch between their versions.

`ops/reference.py` holds pure pairs (`attention_forward`, `attention_backward`), the mathematics. The model calls
composites (`attention`, `attention_back`), which write into the buffers of a plan; `ops/cpu.py` has fast ones,
`ops/plain.py` makes plain ones from the pure pairs.

    with ops.use(attention_backward=mine):      # a reader's function inside the real model
        model.loss_and_gradients(tokens, targets)
    with ops.use("plain"):                      # everything by the reference
        ...
    with ops.use(kernels=cuda.module(text)):    # a reader's kernels inside the GPU's engine
        ...
"""

from contextlib import contextmanager
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
FUNCTIONS = {name: getattr(reference, name) for names in LAYERS.values() for name in names}


def _composites(version: str, own: dict) -> SimpleNamespace:
    """The composites of `version`; those that need one of the reader's `own` functions are made from pure functions."""
    by_hand = plain.Plain(FUNCTIONS | own)
    chosen = {}
    for composites, needs in LAYERS.items():
        source = by_hand if version == "plain" or own.keys() & set(needs) else cpu
        chosen |= {name: getattr(source, name) for name in composites}
    return SimpleNamespace(**chosen)


_active = [("cpu", {}, _composites("cpu", {}), None)]


def active() -> SimpleNamespace:
    """The composites now in use, by name: what the model calls."""
    return _active[-1][2]


def functions() -> dict:
    """The reader's functions now in use, by name."""
    return _active[-1][1]


def kernels():
    """The reader's kernels now in use, a `cuda.Module`, or None."""
    return _active[-1][3]


@contextmanager
def use(version: str | None = None, kernels=None, **own):
    """Inside the `with` block the model runs on `version` ("cpu" or "plain") and on the given functions or kernels.

    version: None keeps the one in use, as functions of an outer `use` are kept; own: functions by the names of
    `ops/reference.py`, e.g. rmsnorm_backward=mine; the rest of the model stays fast. kernels: a `cuda.Module`, for
    models on the GPU's engine: each kernel with name and types of one of the chapters' takes its place, in float32,
    after it was tried on three odd shapes (`ops/unfused.py`).
    Raises NanoEulerError on an unknown version or name, a value that cannot be called, and a kernel that is wrong.
    """
    outer_version, outer_own, _, outer_kernels = _active[-1]
    version, all_own = version or outer_version, outer_own | own
    if version not in ("cpu", "plain"):
        raise NanoEulerError(f"version is {version!r}, expected 'cpu' or 'plain'")
    for name, function in own.items():
        if name not in FUNCTIONS:
            raise NanoEulerError(
                f"no function {name!r} to replace, expected one of {', '.join(sorted(FUNCTIONS))}"
            )
        if not callable(function):
            raise NanoEulerError(f"{name} is {function!r}, expected a function")
    if kernels is not None:
        from nanoeuler_lib.engine.trial import errors_of  # the engine needs this module
        from nanoeuler_lib.ops import unfused

        unfused.check_names(kernels)
        unfused.tried(kernels, errors_of)
    _active.append((version, all_own, _composites(version, all_own), kernels or outer_kernels))
    try:
        yield
    finally:
        _active.pop()
