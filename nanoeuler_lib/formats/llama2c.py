"""Read the binary files of llama2.c: checkpoints of version 0, 1 and 2 (eight bits), and tokenizer.bin.

All numbers are little-endian. Seven 32-bit integers give the shape of the model. Then come the tensors, grouped by
kind, each kind for all layers. The coordinates of a RoPE pair are neighbours. Source: karpathy/llama2.c, export.py,
run.c and runq.c.
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
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}  # run.c assumes these ids, followed by those of the 256 bytes
FIRST = len(SPECIAL)


def read(file: Path) -> GPT:
    """Read the model of a checkpoint file. Raises NanoEulerError if the header is invalid or the file size is wrong."""
    with open(file, "rb") as opened:
        head, size = opened.read(HEAD), file.stat().st_size
    magic, version = struct.unpack("<Ii", head[:8]) if len(head) == HEAD else (0, 0)
    version = version if magic == MAGIC else 0
    if len(head) < 28 or version not in (0, 1, 2):
        raise NanoEulerError(f"{file}: must be llama2.c's version 0, 1 or 2, got version {version} and {size} bytes")
    start = HEAD if version else 28
    dim, ffn, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", head, 8 if version else 0)
    tied = bool(head[36]) if version else vocab > 0  # in version 0, a negative vocab means an untied head
    group = struct.unpack_from("<i", head, 37)[0] if version == 2 else 0
    if ffn < 1 or group < 0 or (version == 2) != (group > 0):
        raise NanoEulerError(f"{file}: hidden_dim and group_size must be positive, got {ffn} and {group}")
    try:
        config = ModelConfig(dim, heads, kv_heads, layers, context, vocab if version else abs(vocab), 1, ffn)
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {error}") from None
    shapes = llama_shapes(config)
    order = [name for name in _order(layers, version) if not (tied and name == "lm_head.weight")]
    sizes = [_bytes(shapes.get(name, (context * config.head_dim // 2,)), group) for name in order]
    if (expected := start + sum(sizes)) != size:
        raise NanoEulerError(f"{file}: must have {expected} bytes for a model of this shape, got {size}: {config}")
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
    """Return the names of the tensors in the order of a file; `cos` and `sin` are tables that we do not need."""
    of = lambda *parts: [f"model.layers.{i}.{part}.weight" for part in parts for i in range(layers)]
    embed, norm, head = ["model.embed_tokens.weight"], ["model.norm.weight"], ["lm_head.weight"]
    if version:
        return of(*NORMS) + norm + embed + of(*ATTENTION, *MLP) + head
    return embed + of(NORMS[0], *ATTENTION, NORMS[1], *MLP) + norm + ["cos", "sin"] + head


def _bytes(shape, group):
    """Return the size of a tensor in bytes: int8 with a scale per group, but float32 for norms, tables and group 0."""
    count = int(np.prod(shape, dtype=object))
    return 4 * count if len(shape) == 1 or not group else count + 4 * (count // group)


def _tensor(where, data, shape, group, config):
    """Return a tensor as float32 [out, in], with the rows of q and k in this library's order."""
    if len(shape) == 1 or not group:
        tensor = np.frombuffer(data, "<f4").reshape(shape)
    else:
        if (count := int(np.prod(shape))) % group:
            raise NanoEulerError(f"{where} must have a multiple of group_size ({group}) numbers, got {count}")
        scales = np.frombuffer(data, "<f4", offset=count)
        if not (scales >= 0).all():
            raise NanoEulerError(f"{where} must have scales of 0 or more, got a negative number or NaN")
        with np.errstate(over="ignore"):  # infinity raises an error below
            tensor = dequantise(np.frombuffer(data, np.int8, count).reshape(-1, group), scales[:, None], shape)
    if not np.isfinite(tensor).all():
        raise NanoEulerError(f"{where} must hold finite numbers, got NaN or infinity")
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(where.split(".")[-2])
    return to_halves(tensor, heads) if heads else tensor


def read_tokenizer(file: Path) -> PieceTokenizer:
    """Read the vocabulary of a tokenizer.bin: pieces with scores, where the pair with the best score is merged first.

    Raises NanoEulerError unless it begins as run.c expects: unknown, begin, end, and the 256 bytes.
    """
    data, at = file.read_bytes(), 4  # skip the length of the longest piece
    pieces, scores = [], []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at) if at + 8 <= len(data) else (0, -1)
        if not 0 <= length <= len(data) - at - 8 or not np.isfinite(score):
            raise NanoEulerError(f"{file}: must be a tokenizer.bin, but token {len(pieces)} is cut off or damaged")
        pieces.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    first = FIRST + 256
    for byte in range(256):  # files until August 2023 have the character itself
        if pieces[FIRST + byte : FIRST + byte + 1] not in ([f"<0x{byte:02X}>".encode()], [chr(byte).encode()]):
            raise NanoEulerError(f"{file}: must be a tokenizer.bin, but token {FIRST + byte} is not <0x{byte:02X}>")
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
