"""Write a Llama as a GGUF file, the format of llama.cpp, with the package `gguf`."""

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from nanoeuler_lib.cuda.blas import to_bfloat16
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import writing
from nanoeuler_lib.formats import tokenizers
from nanoeuler_lib.formats.layout import is_tied, llama_views, to_pairs
from nanoeuler_lib.formats.llama import chat_template
from nanoeuler_lib.model import GPT
from nanoeuler_lib.training.checkpoint import Checkpoint

PRE = {
    "gpt2": "gpt-2",
    "digits": "smollm",
    "llama3": "llama-bpe",
}  # llama.cpp's names for the cuts of `text.other_tokenizers`
TENSORS = {  # parts of Hugging Face's tensor names -> GGUF's
    "model.layers": "blk", "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
    "self_attn.o_proj": "attn_output", "self_attn.": "attn_", "mlp.": "ffn_", "_proj": "",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def export(checkpoint: Checkpoint, out: Path, dtype: str) -> None:
    """Write a checkpoint as one GGUF file; with dtype "bfloat16" its matrices are bfloat16, its gains always float32.

    Raises NanoEulerError if gguf is missing, the vocabulary is not byte-level, or writing fails; no file is left then.
    """
    gguf = package()
    if (cut := getattr(checkpoint.tokenizer, "cut", "gpt2")) not in PRE:
        raise NanoEulerError("the vocabulary must be byte-level, got SentencePiece's: use --to hf")
    tokenizers.to_json(checkpoint.tokenizer)  # raises for a vocabulary that neither format can hold
    partial = out.with_name(f".{out.name}.partial")
    try:
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            writer = gguf.GGUFWriter(partial, "llama")
            facts = _shape(checkpoint.model.config) | _vocabulary(checkpoint, gguf.TokenType)
            half = dtype == "bfloat16"
            facts["file_type"] = gguf.LlamaFileType.MOSTLY_BF16 if half else gguf.LlamaFileType.ALL_F32
            facts |= {"name": out.stem, "tokenizer_pre": PRE[cut], "chat_template": chat_template(checkpoint)}
            for name, value in facts.items():
                if value is not None:
                    getattr(writer, f"add_{name}")(value)
            for name, tensor in tensors(checkpoint.model).items():
                if half and tensor.ndim == 2:
                    bits = to_bfloat16(tensor).view(np.uint8)
                    writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
                else:
                    writer.add_tensor(name, tensor)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def package() -> ModuleType:
    """Import and return the package gguf. Raises NanoEulerError if it is not installed."""
    try:
        return import_module("gguf")
    except ImportError:
        raise NanoEulerError("gguf is not installed: pip install gguf, or choose --to hf") from None


def tensors(model: GPT) -> dict[str, np.ndarray]:
    """Return the tensors [out, in] of a model by GGUF's names, with rows of q and k in pairs and no tied head."""
    config, found = model.config, {}
    for name, view in llama_views(model.params, config).items():
        for old, new in TENSORS.items():
            name = name.replace(old, new)
        tensor = np.ascontiguousarray(view, np.float32)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            tensor = to_pairs(tensor, config.heads if "attn_q" in name else config.kv_heads)
        found[name] = tensor
    if is_tied(model.params, config):
        del found["output.weight"]
    return found


def _shape(config):
    return {
        "context_length": config.context, "embedding_length": config.dim, "block_count": config.layers,
        "feed_forward_length": config.ffn, "head_count": config.heads, "head_count_kv": config.kv_heads,
        "rope_dimension_count": config.head_dim, "rope_freq_base": config.rope_theta,
        "layer_norm_rms_eps": config.norm_eps, "vocab_size": config.vocab_size,
    }  # fmt: skip


def _vocabulary(checkpoint, kinds):
    tokenizer, size = checkpoint.tokenizer, checkpoint.model.config.vocab_size
    names, special = tokenizers.names(tokenizer), set(tokenizer.special_tokens.values())
    types = [kinds.CONTROL if id in special else kinds.NORMAL for id in range(len(names))]
    padding = range(len(names), size)  # ids without a token
    return {
        "tokenizer_model": "gpt2", "token_list": names + [f"[PAD{id}]" for id in padding],
        "token_types": types + [kinds.UNUSED for _ in padding],
        "token_merges": [f"{names[a]} {names[b]}" for a, b in tokenizers.merges(tokenizer)],
        "bos_token_id": tokenizer.begin, "eos_token_id": tokenizer.end, "add_bos_token": False,
    }  # fmt: skip
