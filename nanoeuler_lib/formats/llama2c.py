"""llama2.c's binaries: checkpoints of version 0, 1 and 2 (eight bits), and tokenizer.bin.

All are little-endian. Seven numbers of 32 bits say the shape; then come the tensors, kind by kind, of all layers each.
Pairs of RoPE are neighbours in them. Source: karpathy/llama2.c, export.py, run.c and runq.c.
"""

import struct
from pathlib import Path

import numpy as np

from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.formats.layout import dequantise, expect_memory, llama_shapes, llama_views, to_halves
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.text.pieces import PieceTokenizer

MAGIC, HEAD = 0x616B3432, 256  # "ak42"; bytes before the tensors, from version 1 on
NORMS = ("input_layernorm", "post_attention_layernorm")
MATRICES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj")  # fmt: skip
UNKNOWN, BEGIN, END, FIRST_BYTE = 0, 1, 2, 3  # ids that run.c takes for granted


def read(file: Path) -> GPT:
    """The model of a checkpoint file. Raises NanoEulerError for numbers that no model has, and another file size."""
    with open(file, "rb") as opened:
        head, size = opened.read(HEAD), file.stat().st_size
    numbers, version, group = head[:28], 0, 0
    if len(head) == HEAD and struct.unpack("<I", head[:4])[0] == MAGIC:
        version, numbers = struct.unpack("<i", head[4:8])[0], head[8:36]
    if len(numbers) < 28 or version not in (0, 1, 2):
        raise NanoEulerError(f"{file}: version is {version} in {size} bytes, expected llama2.c's 0, 1 or 2")
    dim, ffn, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", numbers)
    tied = vocab > 0 if version == 0 else bool(head[36])
    if ffn < 1 or (version and vocab < 1):
        raise NanoEulerError(f"{file}: hidden_dim is {ffn} and vocab_size {vocab}, expected positive numbers")
    if version == 2 and (group := struct.unpack("<i", head[37:41])[0]) < 1:
        raise NanoEulerError(f"{file}: group_size is {group}, expected a positive number")
    try:
        config = ModelConfig(dim, heads, kv_heads, layers, context, abs(vocab), 1, ffn)
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {error}") from None
    shapes = llama_shapes(config)
    order = [name for name in _order(config, version) if not (tied and name == "lm_head.weight")]
    plan = {name: _bytes(shapes.get(name, (context * config.head_dim // 2,)), group) for name in order}
    start = HEAD if version else 28
    if (expected := start + sum(plan.values())) != size:
        raise NanoEulerError(f"{file}: has {size} bytes, expected {expected} for these numbers: {config.to_dict()}")
    expect_memory(config, file)
    params = Parameters(config)
    views = llama_views(params, config)
    with open(file, "rb") as opened:
        opened.seek(start)
        for name in order:
            data = opened.read(plan[name])
            if name in views:
                views[name][...] = _tensor(file, name, data, shapes[name], group, config)
    if tied:
        views["lm_head.weight"][...] = views["model.embed_tokens.weight"]
    return GPT(config, params)


def _order(config, version):
    """The names of the tensors in the order of a file; `cos` and `sin` are tables, which the model computes itself."""
    layered = {part: [f"model.layers.{i}.{part}.weight" for i in range(config.layers)] for part in (*NORMS, *MATRICES)}
    norms = [name for part in NORMS for name in layered[part]] + ["model.norm.weight"]
    matrices = [name for part in MATRICES for name in layered[part]]
    embed, head = ["model.embed_tokens.weight"], ["lm_head.weight"]
    if version:
        return norms + embed + matrices + head
    parts = (NORMS[0], *MATRICES[:4], NORMS[1], *MATRICES[4:])
    return [*embed, *(name for part in parts for name in layered[part]), "model.norm.weight", "cos", "sin", *head]


def _bytes(shape, group):
    """How many bytes a tensor has: float32, or int8 and a scale for each group; norms and tables are never rounded."""
    count = int(np.prod(shape, dtype=object))
    return 4 * count if len(shape) == 1 or not group else count + 4 * (count // group)


def _tensor(file, name, data, shape, group, config):
    """A tensor as float32 [out, in], in this library's order of RoPE's pairs."""
    if len(shape) == 1 or not group:
        tensor = np.frombuffer(data, "<f4").reshape(shape)
    else:
        count = int(np.prod(shape))
        if count % group:
            raise NanoEulerError(f"{file}: {name} has {count} numbers, expected a multiple of group_size ({group})")
        scales = np.frombuffer(data, "<f4", offset=count)
        if not (scales >= 0).all():
            raise NanoEulerError(f"{file}: a scale of {name} is negative or NaN, expected them behind each tensor")
        tensor = dequantise(np.frombuffer(data, np.int8, count).reshape(-1, group), scales[:, None], shape)
    if not np.isfinite(tensor).all():
        raise NanoEulerError(f"{file}: {name} holds NaN or infinity, expected finite numbers")
    part = name.split(".")[-2]
    heads = {"q_proj": config.heads, "k_proj": config.kv_heads}
    return to_halves(tensor, heads[part]) if part in heads else tensor


def read_tokenizer(file: Path) -> PieceTokenizer:
    """The vocabulary of a tokenizer.bin: pieces with scores. Of two neighbours that are a piece the best score merges.

    Raises NanoEulerError unless it begins as run.c expects: unknown, begin, end, and the 256 bytes.
    """
    data, at = file.read_bytes(), 4
    pieces, scores = [], []
    while at < len(data):
        score, length = struct.unpack_from("<fi", data, at) if at + 8 <= len(data) else (0, -1)
        if length < 0 or at + 8 + length > len(data) or not np.isfinite(score):
            raise NanoEulerError(f"{file}: token {len(pieces)} is cut off or of a negative length, expected a tokenizer.bin")
        pieces.append(data[at + 8 : at + 8 + length])
        scores.append(score)
        at += 8 + length
    written = [f"<0x{byte:02X}>".encode() for byte in range(256)]
    if pieces[FIRST_BYTE : FIRST_BYTE + 256] != written:
        raise NanoEulerError(f"{file}: token 3 is {short(bytes(*pieces[3:4]))}, expected the 256 bytes there, <0x00> first")
    pieces[FIRST_BYTE : FIRST_BYTE + 256] = [bytes([byte]) for byte in range(256)]
    special = {"<unk>": UNKNOWN, "<s>": BEGIN, "</s>": END}
    pieces[:FIRST_BYTE] = [name.encode() for name in special]
    id_of: dict[bytes, int] = {}
    for id, piece in enumerate(pieces[FIRST_BYTE + 256 :], FIRST_BYTE + 256):
        id_of.setdefault(piece, id)  # run.c takes any of several equal ones
    rank = {score: number for number, score in enumerate(sorted(set(scores), reverse=True))}
    rows = [
        (id_of[piece[:cut]], id_of[piece[cut:]], id, rank[scores[id]])
        for piece, id in id_of.items()
        for cut in range(1, len(piece))
        if piece[:cut] in id_of and piece[cut:] in id_of
    ]
    return PieceTokenizer(pieces, rows, special, range(FIRST_BYTE, FIRST_BYTE + 256), "space", BEGIN, END)
