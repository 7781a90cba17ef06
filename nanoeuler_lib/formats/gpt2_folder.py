"""A GPT-2 as a Hugging Face folder, in and out. Its matrices lie there as here, [in, out], in a class called Conv1D."""

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
# What this model computes, the default first. Dropout, which only training there knows, is not asked for.
WANTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,), "tie_word_embeddings": (True,),
    "quantization_config": (None,),
}  # fmt: skip
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # of attention, which older versions kept as buffers


def tensor_names(config: GPT2Config) -> dict[str, str]:
    """transformers' name of each of our tensors, without the "transformer." that stands before it in most files."""
    names = {}
    for ours in parameter_shapes(config):
        part = ours.rsplit(".", 1)[-1]
        block = ours.replace("layers.", "h.")[: -len(part)]  # "h.3.", or nothing
        kind = "bias" if part.endswith("_bias") else "weight"
        names[ours] = f"{block}{TENSORS[part.removesuffix('_bias')]}.{kind}"
    return names


def export(checkpoint: Checkpoint, out: Path) -> None:
    """Write a checkpoint of a GPT-2 as a Hugging Face folder, whole or not at all. Raises what `llama.export` does."""
    config, params = checkpoint.model.config, checkpoint.model.params
    tensors = {f"transformer.{theirs}": params[ours] for ours, theirs in tensor_names(config).items()}
    values = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    values |= {theirs: getattr(config, ours) for ours, theirs in NUMBERS.items()}
    values |= {name: wanted[0] for name, wanted in WANTED.items() if wanted[0] is not None}
    llama.write_folder(checkpoint, out, tensors, values | {"torch_dtype": "float32", "dtype": "float32"})


def read(folder: Path, values: dict) -> GPT2:
    """The model of a folder whose config.json has these values, as `transformers` of any version writes it.

    Raises NanoEulerError, before memory is taken, for what this library's GPT-2 does not compute, and for files that do
    not fit together.
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
        raise NanoEulerError(f"{folder}: lm_head.weight is not wte.weight, expected a head tied to the embedding")
    return GPT2(config, params)


def gpt2_config(values: dict, file: Path) -> GPT2Config:
    """The configuration that a config.json means. Raises NanoEulerError for what this library's GPT-2 has not."""
    for name, wanted in WANTED.items():
        if (value := values.get(name, wanted[0])) not in wanted:
            raise NanoEulerError(f"{file}: {name} is {short(value)}, expected {wanted[0]}: this model has no other")
    default = SIZES["gpt2"] | {"norm_eps": 1e-5}
    numbers = {ours: values.get(theirs, default.get(ours, 0)) for ours, theirs in NUMBERS.items()}
    try:
        return GPT2Config(**numbers | {"ffn": numbers["ffn"] or 0})
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {error}") from None
