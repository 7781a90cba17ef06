"""llama2.c's binaries: checkpoints of version 0, 1 and 2 (eight bits), and tokenizer.bin.

All are little-endian. Seven numbers of 32 bits say the shape; then come the tensors, kind by kind, of all layers each.
Pairs of RoPE are neighbours in them. Source: karpathy/llama2.c, export.py, run.c and runq.c.
"""

import struct
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.formats.layout import dequantise, expect_memory, llama_shapes, llama_views, to_halves
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.text.other_tokenizers import PieceTokenizer

MAGIC, HEAD = 0x616B3432, 256  # "ak42"; bytes before the tensors, from version 1 on
NORMS = "input_layernorm", "post_attention_layernorm"
ATTENTION = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"
MLP = "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}  # run.c takes these ids for granted, and those of the bytes behind them
FIRST = len(SPECIAL)


def read(file: Path) -> GPT:
    """The model of a checkpoint file. Raises NanoEulerError for numbers that no model has, and another file size."""
    with open(file, "rb") as opened:
        head, size = opened.read(HEAD), file.stat().st_size
    magic, version = struct.unpack("<Ii", head[:8]) if len(head) == HEAD else (0, 0)
    version = version if magic == MAGIC else 0
    if len(head) < 28 or version not in (0, 1, 2):
        raise NanoEulerError(f"{file}: has version {version} and {size} bytes, expected llama2.c's 0, 1 or 2")
    start = HEAD if version else 28
    dim, ffn, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", head, 8 if version else 0)
    tied = bool(head[36]) if version else vocab > 0  # version 0 marks a head of its own by the vocabulary's sign
    group = struct.unpack_from("<i", head, 37)[0] if version == 2 else 0
    if ffn < 1 or group < 0 or (version == 2) != (group > 0):
        raise NanoEulerError(f"{file}: hidden_dim is {ffn} and group_size {group}, expected positive numbers")
    try:
        config = ModelConfig(dim, heads, kv_heads, layers, context, vocab if version else abs(vocab), 1, ffn)
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {error}") from None
    shapes = llama_shapes(config)
    order = [name for name in _order(layers, version) if not (tied and name == "lm_head.weight")]
    sizes = [_bytes(shapes.get(name, (context * config.head_dim // 2,)), group) for name in order]
    if (expected := start + sum(sizes)) != size:
        raise NanoEulerError(f"{file}: has {size} bytes, expected {expected} for a model of this shape: {config}")
    expect_memory(config, file)
    params = Parameters(config)
    views = llama_views(params, config)
    with open(file, "rb") as opened:
        opened.seek(start)
        for name, count in zip(order, sizes, strict=True):
            data = opened.read(count)
            if name in views:
                views[name][...] = _tensor(f"{file}: {name}", data, shapes[name], group, config)
    if tied:
        views["lm_head.weight"][...] = params["embed"]
    return GPT(config, params)


def _order(layers, version):
    """The names of the tensors in the order of a file; `cos` and `sin` are tables, which the model computes itself."""
    of = lambda *parts: [f"model.layers.{i}.{part}.weight" for part in parts for i in range(layers)]
    embed, norm, head = ["model.embed_tokens.weight"], ["model.norm.weight"], ["lm_head.weight"]
    if version:
        return of(*NORMS) + norm + embed + of(*ATTENTION, *MLP) + head
    return embed + of(NORMS[0], *ATTENTION, NORMS[1], *MLP) + norm + ["cos", "sin"] + head


def _bytes(shape, group):
    """How many bytes a tensor has: float32, or int8 and a scale for each group; norms and tables are never rounded."""
    count = int(np.prod(shape, dtype=object))
    return 4 * count if len(shape) == 1 or not group else count + 4 * (count // group)


def _tensor(where, data, shape, group, config):
    """A tensor as float32 [out, in], in this library's order of RoPE's pairs."""
    if len(shape) == 1 or not group:
        tensor = np.frombuffer(data, "<f4").reshape(shape)
    else:
        if (count := int(np.prod(shape))) % group:
            raise NanoEulerError(f"{where} has {count} numbers, expected a multiple of group_size ({group})")
        scales = np.frombuffer(data, "<f4", offset=count)
        if not (scales >= 0).all():
            raise NanoEulerError(f"{where} has a negative scale or NaN, expected scales behind each tensor")
        with np.errstate(over="ignore"):  # infinity is told below
            tensor = dequantise(np.frombuffer(data, np.int8, count).reshape(-1, group), scales[:, None], shape)
    if not np.isfinite(tensor).all():
        raise NanoEulerError(f"{where} holds NaN or infinity, expected finite numbers")
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(where.split(".")[-2])
    return to_halves(tensor, heads) if heads else tensor


def read_tokenizer(file: Path) -> PieceTokenizer:
    """The vocabulary of a tokenizer.bin: pieces with scores. Of two neighbours that are a piece the best score merges.

    Raises NanoEulerError unless it begins as run.c expects: unknown, begin, end, and the 256 bytes.
    """
    data, at = file.read_bytes(), 4  # behind the length of the longest
    pieces, scores = [], []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at) if at + 8 <= len(data) else (0, -1)
        if not 0 <= length <= len(data) - at - 8 or not np.isfinite(score):
            raise NanoEulerError(f"{file}: token {len(pieces)} is cut off or damaged, expected a tokenizer.bin")
        pieces.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    first = FIRST + 256
    for byte in range(256):  # the second way until August 2023
        if pieces[FIRST + byte : FIRST + byte + 1] not in ([f"<0x{byte:02X}>".encode()], [chr(byte).encode()]):
            raise NanoEulerError(f"{file}: token {FIRST + byte} is not <0x{byte:02X}>, expected a tokenizer.bin")
        pieces[FIRST + byte] = bytes([byte])
    pieces[:FIRST] = [name.encode() for name in SPECIAL]
    id_of = {piece: id for id, piece in enumerate(pieces[first:], first)}
    rank = {score: number for number, score in enumerate(sorted(set(scores), reverse=True))}
    rows = [
        (id_of[piece[:cut]], id_of[piece[cut:]], id, rank[scores[id]])
        for piece, id in id_of.items()
        for cut in range(1, len(piece))
        if piece[:cut] in id_of and piece[cut:] in id_of
    ]
    return PieceTokenizer(pieces, rows, SPECIAL, range(FIRST, first), "space", SPECIAL["<s>"], SPECIAL["</s>"])
