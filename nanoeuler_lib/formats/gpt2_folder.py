"""Write and read a GPT-2 as a Hugging Face folder, whose matrices are [in, out] as ours are (class Conv1D)."""

import re
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import GPT2Config
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.formats import llama
from nanoeuler_lib.formats.layout import expect_memory
from nanoeuler_lib.model import GPT2, Parameters, parameter_shapes
from nanoeuler_lib.model.gpt2 import SIZES
from nanoeuler_lib.training.checkpoint import Checkpoint

TENSORS = {
    "embed": "wte", "positions": "wpe", "norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2",
    "up": "mlp.c_fc", "down": "mlp.c_proj", "norm_final": "ln_f",
}  # fmt: skip
NUMBERS = {
    "dim": "n_embd", "heads": "n_head", "layers": "n_layer", "context": "n_positions", "vocab_size": "vocab_size",
    "ffn": "n_inner", "norm_eps": "layer_norm_epsilon",
}  # fmt: skip
# Values that this model supports, the default first. Dropout is not checked, because it affects only training.
WANTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}  # fmt: skip
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # causal masks, which older versions stored


def tensor_names(config: GPT2Config) -> dict[str, str]:
    """Return the name in transformers of each of our tensors, without the prefix "transformer." of most files."""
    names = {}
    for ours in parameter_shapes(config):
        part = ours.rsplit(".", 1)[-1]
        block = ours.replace("layers.", "h.")[: -len(part)]  # "h.3.", or nothing
        kind = "bias" if part.endswith("_bias") else "weight"
        names[ours] = f"{block}{TENSORS[part.removesuffix('_bias')]}.{kind}"
    return names


def export(checkpoint: Checkpoint, out: Path, dtype: str) -> None:
    """Write a checkpoint of a GPT-2 as a Hugging Face folder. Raises what `llama.write_folder` raises."""
    config, params = checkpoint.model.config, checkpoint.model.params
    tensors = {f"transformer.{theirs}": params[ours] for ours, theirs in tensor_names(config).items()}
    values = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    values |= {theirs: getattr(config, ours) for ours, theirs in NUMBERS.items()}
    values |= {name: wanted[0] for name, wanted in WANTED.items() if wanted[0] is not None}
    llama.write_folder(checkpoint, out, tensors, values, dtype)


def read(folder: Path, values: dict) -> GPT2:
    """Read the model of a Hugging Face folder that any version of transformers wrote.

    folder: its path; values: the content of its config.json. Raises NanoEulerError, before memory is allocated, if this
    library's GPT-2 cannot compute what config.json describes, or if the files contradict each other.
    """
    config, found = gpt2_config(values, folder / "config.json"), {}
    for name, where in llama.headers(folder).items():
        if not MASKS.fullmatch(name := name.removeprefix("transformer.")):
            found[name] = where
    head, names, shapes = found.pop("lm_head.weight", None), tensor_names(config), parameter_shapes(config)
    llama.expect_tensors(folder, found, {theirs: shapes[ours] for ours, theirs in names.items()})
    expect_memory(config, folder)
    params = Parameters(config)
    for ours, theirs in names.items():
        params[ours][...] = llama.read_tensor(theirs, *found[theirs])
    if head and not np.array_equal(llama.read_tensor("lm_head.weight", *head), params["embed"]):
        raise NanoEulerError(f"{folder}: lm_head.weight must equal wte.weight, because the head is tied to it")
    return GPT2(config, params)


def gpt2_config(values: dict, file: Path) -> GPT2Config:
    """Convert the values of a config.json to a `GPT2Config`. Raises NanoEulerError for a feature that ours lacks."""
    for name, wanted in WANTED.items():
        if (value := values.get(name, wanted[0])) not in wanted:
            raise NanoEulerError(f"{file}: {name} must be {wanted[0]}, got {short(value)}: nothing else is supported")
    default = SIZES["gpt2"] | {"norm_eps": 1e-5}
    numbers = {ours: values.get(theirs, default.get(ours, 0)) for ours, theirs in NUMBERS.items()}
    try:
        return GPT2Config(**numbers | {"ffn": numbers["ffn"] or 0})
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {error}") from None
