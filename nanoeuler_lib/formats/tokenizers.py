"""Write and read Hugging Face's tokenizer.json, which writes bytes and spaces as visible characters."""

import json
from pathlib import Path

from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.text import other_tokenizers
from nanoeuler_lib.text.other_tokenizers import BYTE_LEVEL, META, PieceTokenizer
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer, byte_characters, read_json

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
_LLAMA3 += r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _in_turn(of, *parts):
    return {"type": "Sequence", of: list(parts)}


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
_SPLIT = {"type": "Split", "pattern": {"Regex": _LLAMA3}, "behavior": "Isolated", "invert": False}
_TO_META = {"type": "Replace", "pattern": {"String": " "}, "content": META}
_FROM_META = {"type": "Replace", "pattern": {"String": META}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FROM_BYTES = {"type": "ByteFallback"}, {"type": "Fuse"}
# (normalizer, pre_tokenizer) of each way to cut a text, by its name in `text.other_tokenizers`.
CUTS = {
    "gpt2": (None, _BYTES),
    "digits": (None, _in_turn("pretokenizers", _DIGITS, _BYTES)),
    "llama3": (None, _in_turn("pretokenizers", _SPLIT, _BYTES | {"use_regex": False})),
    "meta": (_in_turn("normalizers", {"type": "Prepend", "prepend": META}, _TO_META), None),
    "one space": (None, {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": False}),
}


def to_json(tokenizer: Tokenizer) -> dict:
    """Return tokenizer.json's content (merges as strings, for old readers). Raises NanoEulerError for equal tokens."""
    shown, cut = names(tokenizer), getattr(tokenizer, "cut", "gpt2")
    id_of = {name: id for id, name in enumerate(shown)}
    for id, name in enumerate(shown):
        if id_of[name] != id:
            raise NanoEulerError(f"tokens must have different texts, got {short(name)} for {id} and {id_of[name]}")
    normalizer, cutter = CUTS["meta" if cut == "space" else cut]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": cut not in BYTE_LEVEL,
        "ignore_merges": getattr(tokenizer, "whole", False), "vocab": id_of,
        "merges": [f"{shown[a]} {shown[b]}" for a, b in merges(tokenizer)],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": normalizer, "pre_tokenizer": cutter,
        "added_tokens": [{"id": id, "content": name} | plain for name, id in tokenizer.special_tokens.items()],
        "post_processor": None, "model": model,
        "decoder": _BYTES if cut in BYTE_LEVEL else _in_turn("decoders", _FROM_META, *_FROM_BYTES, _STRIP),
    }  # fmt: skip


def names(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each token in tokenizer.json and GGUF, with visible characters for bytes and spaces."""
    if getattr(tokenizer, "cut", "gpt2") in BYTE_LEVEL:
        character = {byte: c for c, byte in byte_characters().items()}
        shown = ["".join(map(character.__getitem__, data)) for data in tokenizer.token_bytes]
    else:
        shown = [data.decode("utf-8", "replace").replace(" ", META) for data in tokenizer.token_bytes]
        for byte, id in enumerate(tokenizer.fallback):
            shown[id] = f"<0x{byte:02X}>"
    for name, id in tokenizer.special_tokens.items():
        shown[id] = name
    return shown


def merges(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return the pairs of ids that a vocabulary merges, in order."""
    if isinstance(tokenizer, PieceTokenizer):
        return [row[:2] for row in sorted(tokenizer.merges, key=lambda row: row[3])]
    return tokenizer.merges


def read(path: Path, begin: int | None = None, end: int | None = None) -> Tokenizer:
    """Read the vocabulary of a tokenizer.json, or of a file that this library saved.

    begin, end: the ids before and after a document (bos and eos). A vocabulary whose ids are in our own order becomes a
    `Tokenizer`, any other a `PieceTokenizer`. Raises NanoEulerError if the file is damaged or not supported.
    """
    spec = read_json(path)
    if isinstance(spec, dict) and str(spec.get("format")).startswith("nanoeuler"):
        return other_tokenizers.load(path)
    try:
        return _from_json(spec, begin, end)
    except NanoEulerError as error:
        raise NanoEulerError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NanoEulerError(f"{path}: must be readable as tokenizer.json ({short(str(error))})") from None


def _from_json(spec, begin, end):
    model, cut = spec["model"], _cut_of(spec)
    if model.get("type", "BPE") != "BPE" or model.get("continuing_subword_prefix") or model.get("dropout"):
        raise NanoEulerError(f"tokenizer must be plain BPE, got type {short(model.get('type'))}")
    if cut not in BYTE_LEVEL and not model.get("byte_fallback"):
        raise NanoEulerError("tokenizer must have byte_fallback: without it, some characters cannot be encoded")
    special = {token["content"]: token["id"] for token in spec.get("added_tokens", ())}
    id_of = model["vocab"] | special
    shown = sorted(id_of, key=id_of.get)
    if [id_of[name] for name in shown] != list(range(len(shown))):
        raise NanoEulerError(f"the {len(shown)} tokens must have the ids 0 to {len(shown) - 1}, got other ids")
    if cut in BYTE_LEVEL:
        byte_of = byte_characters()
        fallback = [id_of[c] for c in sorted(byte_of, key=byte_of.get)]
        data = [name.encode() if name in special else bytes(map(byte_of.__getitem__, name)) for name in shown]
    else:
        fallback = [id_of[f"<0x{byte:02X}>"] for byte in range(256)]
        data = [name.encode() if name in special else name.replace(META, " ").encode() for name in shown]
        for byte, id in enumerate(fallback):
            data[id] = bytes([byte])
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    rows = [(id_of[a], id_of[b], id_of[a + b], rank) for rank, (a, b) in enumerate(pairs)]
    whole, first = bool(model.get("ignore_merges")), 256 + len(rows)
    ours = cut == "gpt2" and not whole and begin == end == special.get(END_OF_TEXT)
    ours = ours and sorted(fallback) == list(range(256)) and sorted(special.values()) == [*range(first, len(shown))]
    if ours and [row[2] for row in rows] == list(range(256, first)):
        return Tokenizer([row[:2] for row in rows], shown[first:], [piece[0] for piece in data[:256]])
    return PieceTokenizer(data, rows, special, fallback, cut, begin, end, whole)


def _cut_of(spec):
    """Return the name in CUTS of the way in which a tokenizer.json cuts a text; "trim_offsets" is ignored."""
    found = [spec.get("normalizer"), spec.get("pre_tokenizer")]
    for name, known in CUTS.items():
        if _bare(found) == _bare(known):
            return name
    shown = short(json.dumps(found))
    raise NanoEulerError(f"text must be split as by GPT-2, SmolLM2, Llama 3 or SentencePiece's BPE, got {shown}")


def _bare(value):
    return json.loads(json.dumps(value), object_hook=lambda part: {"use_regex": True, **part, "trim_offsets": True})
