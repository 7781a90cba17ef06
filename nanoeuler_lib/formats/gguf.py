"""A Llama as a GGUF file, as llama.cpp and the programs around it read it; written with the package `gguf`."""

import os
from importlib import import_module
from pathlib import Path

import numpy as np

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import writing
from nanoeuler_lib.formats import tokenizers
from nanoeuler_lib.formats.layout import is_tied, llama_views, to_pairs
from nanoeuler_lib.formats.llama import chat_template
from nanoeuler_lib.training.checkpoint import Checkpoint

PRE = {"gpt2": "gpt-2", "digits": "smollm", "llama3": "llama-bpe"}  # how llama.cpp calls the cuts of `text.pieces`
TENSORS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def export(checkpoint: Checkpoint, out: Path) -> None:
    """Write a checkpoint as one GGUF file in float32, whole or not at all.

    Raises NanoEulerError where the package is missing, for a vocabulary that is not byte-level, and where the file
    cannot be written.
    """
    try:
        gguf = import_module("gguf")
    except ImportError:
        raise NanoEulerError("the package gguf is missing, expected it: pip install 'nanoeuler[gguf]'") from None
    cut = getattr(checkpoint.tokenizer, "cut", "gpt2")
    if cut not in PRE:
        raise NanoEulerError("this run's vocabulary is SentencePiece's, expected a byte-level one for GGUF: --to hf writes it")
    tokenizers.to_json(checkpoint.tokenizer)  # refuses what neither file can hold
    partial = out.with_name(f".{out.name}.partial")
    try:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            writer = gguf.GGUFWriter(partial, "llama")
            _describe(writer, checkpoint)
            _vocabulary(writer, gguf.TokenType, checkpoint, PRE[cut])
            for name, tensor in tensors(checkpoint.model).items():
                writer.add_tensor(name, tensor)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def tensors(model) -> dict[str, np.ndarray]:
    """GGUF's name and the tensor [out, in] of each; rows of q and k in pairs, those of k by its own G heads."""
    config, found = model.config, {}
    for name, view in llama_views(model.params, config).items():
        *layer, part = name.removesuffix(".weight").removeprefix("model.layers.").split(".", 1)
        part = part if layer and layer[0].isdigit() else name.removesuffix(".weight")
        tensor = np.ascontiguousarray(view, np.float32)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            tensor = to_pairs(tensor, config.heads if "q_proj" in part else config.kv_heads)
        where = f"blk.{layer[0]}." if layer and layer[0].isdigit() else ""
        found[f"{where}{TENSORS[part]}.weight"] = tensor
    if is_tied(model.params, config):
        del found["output.weight"]
    return found


def _describe(writer, checkpoint):
    config = checkpoint.model.config
    writer.add_name(checkpoint.path.name)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.dim)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(0)  # all in float32


def _vocabulary(writer, kinds, checkpoint, pre):
    tokenizer, size = checkpoint.tokenizer, checkpoint.model.config.vocab_size
    names = tokenizers.names(tokenizer)
    special = set(tokenizer.special_tokens.values())
    types = [kinds.CONTROL if id in special else kinds.NORMAL for id in range(len(names))]
    padding = range(len(names), size)  # numbers of no token
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names + [f"[PAD{id}]" for id in padding])
    writer.add_token_types(types + [kinds.UNUSED for _ in padding])
    writer.add_token_merges([f"{names[a]} {names[b]}" for a, b in tokenizers.merges(tokenizer)])
    if tokenizer.begin is not None:
        writer.add_bos_token_id(tokenizer.begin)
    if tokenizer.end is not None:
        writer.add_eos_token_id(tokenizer.end)
    writer.add_add_bos_token(False)
    if template := chat_template(checkpoint):
        writer.add_chat_template(template)
