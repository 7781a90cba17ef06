"""Hugging Face's tokenizer.json, out and in: the same vocabulary, with bytes and spaces written as visible characters."""

import json
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.text import pieces
from nanoeuler_lib.text.pieces import BYTE_LEVEL, META, PieceTokenizer
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, byte_characters, read_json

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
_LLAMA3 += r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TO_META = {"type": "Replace", "pattern": {"String": " "}, "content": META}


def _sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


# How a text is cut, by its name in `pieces.CUTS`: normalizer and pre_tokenizer.
CUTS = {
    "gpt2": (None, _BYTES),
    "digits": (None, _sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, _BYTES)),
    "llama3": (
        None,
        _sequence(
            "pretokenizers",
            {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False},
            _BYTES | {"use_regex": False},
        ),
    ),
    "meta": (_sequence("normalizers", {"type": "Prepend", "prepend": META}, _TO_META), None),
    "one space": (
        None,
        {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": False},
    ),
}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FROM_META = {"type": "Replace", "pattern": {"String": META}, "content": " "}


def to_json(tokenizer: Tokenizer) -> dict:
    """The tokenizer.json of a vocabulary, as a dictionary; merges are strings, which older readers want.

    Raises NanoEulerError for two tokens of one text, which it cannot hold.
    """
    cut = getattr(tokenizer, "cut", "gpt2")
    shown = names(tokenizer)
    id_of: dict[str, int] = {}
    for id, name in enumerate(shown):
        if id_of.setdefault(name, id) != id:
            raise NanoEulerError(
                f"tokens {id_of[name]} and {id} are both {short(name)}: tokenizer.json holds each text once"
            )
    normalizer, cutter = CUTS["meta" if cut == "space" else cut]
    if cut in BYTE_LEVEL:
        decoder = _BYTES | {"add_prefix_space": True}
    else:
        decoder = _sequence("decoders", _FROM_META, {"type": "ByteFallback"}, {"type": "Fuse"}, _STRIP)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": id, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
            for name, id in tokenizer.special_tokens.items()
        ],
        "normalizer": normalizer, "pre_tokenizer": cutter, "post_processor": None, "decoder": decoder,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": cut not in BYTE_LEVEL,
            "ignore_merges": getattr(tokenizer, "whole", False), "vocab": id_of,
            "merges": [f"{shown[a]} {shown[b]}" for a, b in merges(tokenizer)],
        },
    }  # fmt: skip


def names(tokenizer: Tokenizer) -> list[str]:
    """Each token as tokenizer.json and GGUF write it: visible characters in the place of bytes and spaces."""
    special = {id: name for name, id in tokenizer.special_tokens.items()}
    if getattr(tokenizer, "cut", "gpt2") in BYTE_LEVEL:
        character = {byte: c for c, byte in byte_characters().items()}
        write = lambda id, data: "".join(map(character.__getitem__, data))
    else:
        single = dict(zip(tokenizer.fallback, range(256)))
        write = lambda id, data: f"<0x{single[id]:02X}>" if id in single else data.decode().replace(" ", META)
    return [special[id] if id in special else write(id, data) for id, data in enumerate(tokenizer.token_bytes)]


def merges(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """The pairs of ids that a vocabulary merges, in their order."""
    if isinstance(tokenizer, PieceTokenizer):
        return [(left, right) for left, right, _, _ in sorted(tokenizer.merges, key=lambda row: row[3])]
    return tokenizer.merges


def read(path: Path, begin: int | None = None, end: int | None = None) -> Tokenizer:
    """The vocabulary of a tokenizer.json, or of a file that this library saved.

    begin, end: the ids before and behind a document (bos and eos). A vocabulary in our own order comes back as a plain
    `Tokenizer`. Raises NanoEulerError, which says what was expected, for every other kind.
    """
    spec = read_json(path)
    if isinstance(spec, dict) and str(spec.get("format", "")).startswith("nanoeuler"):
        return pieces.load(path)
    try:
        return _from_json(spec, begin, end)
    except NanoEulerError as error:
        raise NanoEulerError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NanoEulerError(f"{path}: not readable as tokenizer.json ({short(str(error))})") from None


def _from_json(spec, begin, end):
    model = spec["model"]
    cut = _cut_of(spec)
    if (kind := model.get("type", "BPE")) != "BPE":
        raise NanoEulerError(f"tokenizer is of type {short(kind)}, expected BPE")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") or model.get("dropout"):
        raise NanoEulerError("tokenizer marks parts of words or drops merges, expected neither")
    if cut not in BYTE_LEVEL and not model.get("byte_fallback"):
        raise NanoEulerError("tokenizer has unknown characters, expected byte_fallback")
    special = {token["content"]: token["id"] for token in spec.get("added_tokens", ())}
    id_of = model["vocab"] | special
    texts = {id: name for name, id in id_of.items()}
    if not all(type(id) is int for id in texts) or sorted(texts) != list(range(len(id_of))):
        raise NanoEulerError(f"tokenizer has {len(id_of)} tokens, expected the ids 0 to {len(id_of) - 1} once each")
    shown = [texts[id] for id in range(len(texts))]
    if cut in BYTE_LEVEL:
        byte_of = byte_characters()
        fallback = [id_of[c] for c in sorted(byte_of, key=byte_of.get)]
        data = [name.encode() if name in special else bytes(map(byte_of.__getitem__, name)) for name in shown]
    else:
        fallback = [id_of[f"<0x{byte:02X}>"] for byte in range(256)]
        data = [name.encode() if name in special else name.replace(META, " ").encode() for name in shown]
        for byte, id in enumerate(fallback):
            data[id] = bytes([byte])
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    rows = [(id_of[a], id_of[b], id_of[a + b], rank) for rank, (a, b) in enumerate(pairs)]
    whole = bool(model.get("ignore_merges"))
    found = PieceTokenizer(data, rows, special, fallback, cut, begin, end, whole)
    first = 256 + len(rows)
    ordered = (
        cut == "gpt2" and not whole and begin == end == special.get(END_OF_TEXT)
        and sorted(fallback) == list(range(256)) and [row[2] for row in rows] == list(range(256, first))
        and sorted(special.values()) == list(range(first, len(shown)))
    )  # fmt: skip
    if not ordered:
        return found
    return Tokenizer([row[:2] for row in rows], shown[first:], [piece[0] for piece in data[:256]])


def _cut_of(spec):
    """How a tokenizer.json cuts a text, a name in CUTS; what only shows where pieces stood is left out."""
    found = [spec.get("normalizer"), spec.get("pre_tokenizer")]
    for name, known in CUTS.items():
        if _bare(found) == _bare(known):
            return name
    raise NanoEulerError(
        f"text is cut by {short(json.dumps(found))}, expected the way of GPT-2, SmolLM2, Llama 3 or SentencePiece's BPE"
    )


def _bare(value):
    return json.loads(json.dumps(value), object_hook=_plain)


def _plain(part):
    if part.get("type") == "ByteLevel":
        part.setdefault("use_regex", True)
    return {key: value for key, value in part.items() if key != "trim_offsets"}


def save(tokenizer: Tokenizer, path: Path) -> None:
    """Write tokenizer.json. Raises what `to_json` does."""
    path.write_text(json.dumps(to_json(tokenizer), ensure_ascii=False), "utf-8")
