"""Test llama2.c's files: this module writes them as its export.py does, and computes as its run.c does."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import error_of, random_parameters

import konigsberg
from nanoeuler_lib import formats
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.formats import layout, llama2c
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.training import checkpoint

D, F, L, H, G, V, T = 24, 20, 2, 6, 2, 300, 40
ORDER = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
KV = G * D // H
SHAPES = {"wq": (D, D), "wk": (KV, D), "wv": (KV, D), "wo": (D, D), "w1": (F, D), "w2": (D, F), "w3": (F, D)}


def weights(tied, seed=0):
    """Return random float32 tensors [out, in] by run.c's names; tensors of all layers are stacked."""
    rng = np.random.default_rng(seed)
    drawn = lambda *shape: (0.3 * rng.standard_normal(shape)).astype(np.float32)
    w = {name: drawn(L, *shape) for name, shape in SHAPES.items()}
    w |= {"embed": drawn(V, D), "rms_att": 1 + drawn(L, D), "rms_ffn": 1 + drawn(L, D), "rms_final": 1 + drawn(D)}
    return w | {"cls": w["embed"] if tied else drawn(V, D)}


def rounded(w, group):
    """Return the bytes of a matrix in version 2 and the numbers that they represent, by plain loops."""
    codes, scales = [], []
    for start in range(0, w.size, group):
        part = w.reshape(-1)[start : start + group]
        scales.append(max(abs(part)) / np.float32(127))
        codes += [round(float(value / scales[-1])) for value in part]
    meant = np.repeat(np.array(scales, np.float32), group) * np.array(codes, np.float32)
    return np.array(codes, np.int8).tobytes() + np.array(scales, np.float32).tobytes(), meant.reshape(w.shape)


def write(file, w, version, tied, group=4):
    """Write a checkpoint of a version; return the weights that it represents."""
    shape = struct.pack("<7i", D, F, L, H, G, -V if version == 0 and not tied else V, T)
    if version == 0:
        tables = np.zeros(2 * T * D // H // 2, np.float32)
        names = "embed", "rms_att", *ORDER[:4], "rms_ffn", *ORDER[4:], "rms_final", "tables", "cls"
        parts = [(w | {"tables": tables})[name] for name in names if not (tied and name == "cls")]
        file.write_bytes(shape + b"".join(part.tobytes() for part in parts))
        return w
    head = struct.pack("<Ii", 0x616B3432, version) + shape + struct.pack("<B", tied)
    head = (head + (struct.pack("<i", group) if version == 2 else b"")).ljust(256, b"\0")
    data, meant = [w["rms_att"].tobytes(), w["rms_ffn"].tobytes(), w["rms_final"].tobytes()], dict(w)
    matrices = [("embed", None), *((name, i) for name in ORDER for i in range(L)), *([] if tied else [("cls", None)])]
    for name, i in matrices:
        tensor = w[name] if i is None else w[name][i]
        coded, means = rounded(tensor, group) if version == 2 else (tensor.tobytes(), tensor)
        data.append(coded)
        meant[name] = means if i is None else np.concatenate([meant[name][:i], means[None], meant[name][i + 1 :]])
    file.write_bytes(head + b"".join(data))
    return meant | ({"cls": meant["embed"]} if tied else {})


def logits_of_run_c(w, tokens):
    """Return the logits of run.c's forward pass in float64, by position: pairs 2i, 2i+1, eps 1e-5, theta 1e4."""
    C, keys, values, logits = D // H, [[] for _ in range(L)], [[] for _ in range(L)], []
    norm = lambda x, gain: gain * x / np.sqrt((x * x).mean() + 1e-5)
    for pos, token in enumerate(tokens):
        x = w["embed"][token].astype(float)
        for i in range(L):
            y = norm(x, w["rms_att"][i])
            q, k, v = (w[name][i].astype(float) @ y for name in ("wq", "wk", "wv"))
            for vec in (q, k):
                for j in range(0, len(vec), 2):
                    angle = pos / 10000 ** ((j % C) / C)
                    turned = (vec[j] + 1j * vec[j + 1]) * np.exp(1j * angle)
                    vec[j], vec[j + 1] = turned.real, turned.imag
            keys[i].append(k), values[i].append(v)
            heads = []
            for h in range(H):
                g = h // (H // G) * C
                scores = np.exp([q[h * C : (h + 1) * C] @ k[g : g + C] / np.sqrt(C) for k in keys[i]])
                heads.append(sum(s * v[g : g + C] for s, v in zip(scores / scores.sum(), values[i])))
            x = x + w["wo"][i] @ np.concatenate(heads)
            y = norm(x, w["rms_ffn"][i])
            gate = w["w1"][i].astype(float) @ y
            x = x + w["w2"][i] @ (gate / (1 + np.exp(-gate)) * (w["w3"][i] @ y))
        logits.append(w["cls"] @ norm(x, w["rms_final"]))
    return np.array(logits)


PARTS = [*"the andür.日\n\0▁😀", " the", " and", *"and aaa aaaa he nd ere <s> <unk> <0x41>".split()]


def pieces():
    """Return a vocabulary as SentencePiece makes it, (bytes, score), with pairs of equal scores."""
    written = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    written += [(f"<0x{byte:02X}>".encode(), 0.0) for byte in range(256)]
    merged = " t| a|he| the|in|er|an|nd| and|re|on|ed|aa|aaa".split("|")
    letters = list(" abcdefghijklmnoprstuvwyü.,")
    found = [(piece.encode(), -float(rank // 2)) for rank, piece in enumerate(merged)]
    return (written + found + [(letter.encode(), -99.0) for letter in letters])[:V]


def tokenizer_bin(file, found):
    file.write_bytes(struct.pack("<I", 9) + b"".join(struct.pack("<fI", s, len(p)) + p for p, s in found))
    return file


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_logits_are_those_of_run_c(tmp_path, version, tied):
    meant = write(tmp_path / "model.bin", weights(tied), version, tied)
    vocabulary = tokenizer_bin(tmp_path / "tokenizer.bin", pieces())
    formats.import_run(tmp_path / "model.bin", tmp_path / "run", vocabulary)
    found = checkpoint.load(tmp_path / "run")
    tokens = np.random.default_rng(1).integers(0, V, T)
    expected = logits_of_run_c(meant, tokens)
    assert np.abs(found.model.logits(tokens[None])[0] - expected).max() < 1e-5 * np.abs(expected).max()
    assert layout.is_tied(found.model.params, found.model.config) == tied
    assert generate(found.model, found.tokenizer, "the and", 5, temperature=0)
    formats.export(tmp_path / "run", "hf", tmp_path / "hf")
    back = formats.import_run(tmp_path / "hf", tmp_path / "back")
    assert np.array_equal(back.model.params.flat, found.model.params.flat)
    assert back.tokenizer.encode(" the and").tolist() == found.tokenizer.encode(" the and").tolist()


def encoded_by_run_c(text, found):
    """Encode by run.c's loop: characters, or their bytes; then merge the best pair until none is left."""
    ids_of = {piece: id for id, (piece, _) in reversed(list(enumerate(found)))}
    ids = [ids_of[b" "]] if text else []
    for character in text:
        data = character.encode()
        ids += [ids_of[data]] if data in ids_of else [byte + 3 for byte in data]
    while True:
        best, where = -1e10, None
        for i in range(len(ids) - 1):
            id = ids_of.get(found[ids[i]][0] + found[ids[i + 1]][0])
            if id is not None and found[id][1] > best:
                best, where, new = found[id][1], i, id
        if where is None:
            return ids
        ids[where : where + 2] = [new]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PARTS), max_size=20).map("".join) | st.text(max_size=12))
def test_ids_are_those_of_run_c(tmp_path_factory, text):
    file, found = tmp_path_factory.getbasetemp() / "tokenizer.bin", pieces()
    tokenizer = llama2c.read_tokenizer(tokenizer_bin(file, found))
    ids = tokenizer.encode(text).tolist()
    assert ids == encoded_by_run_c(text, found) and tokenizer.decode(ids) == text


def test_long_texts_merge_in_time_and_old_files_open(tmp_path):
    old = [(chr(i - 3).encode(), 0.0) if 3 <= i < 259 else piece for i, piece in enumerate(pieces())]
    tokenizer = llama2c.read_tokenizer(tokenizer_bin(tmp_path / "old.bin", old))
    text = konigsberg.corpus(50_000, 3)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and tokenizer.token_lengths[ids].sum() == len(text.encode()) + 1
    assert ids[:60].tolist() == encoded_by_run_c(text[:200], pieces())[:60]


SCALE = 256 + 4 * (2 * L + 1) * D + V * D  # place of the embedding's first scale in version 2
NUMBERS = [  # place of a changed 32-bit number, its new value, and the error
    (8, -24, "dim must be an integer"), (16, 2**31 - 1, "layers must be an integer"),
    (12, -20, "hidden_dim and group_size must be positive, got -20"), (28, -300, "vocab_size must be an integer"),
    (37, -4, "must be positive, got 20 and -4"), (37, 7, "for a model of this shape"),
    (4, 3, "got version 3"), (24, 3, "for a model of this shape"),
    (SCALE, -1, "must have scales of 0 or more"), (256, 0x7FC00000, "must hold finite numbers"),
    (SCALE, 0x7F7FFFFF, "must hold finite numbers"),
]  # fmt: skip
PIECES = [  # changes of the vocabulary, and the error
    (lambda found: found[:200], "token 200 is not <0xC5>"),
    (lambda found: found[:3] + found[4:], "token 3 is not"),
    (lambda found: [*found, (b"x", float("nan"))], "token 300 is cut off or damaged"),
    (lambda found: [*found, (b"xy", 0.0)], "tokenizer must have at most the model's 300 tokens, got 301"),
]


def test_damaged_files_are_refused(tmp_path):
    good, file, run = tmp_path / "good.bin", tmp_path / "model.bin", tmp_path / "run"
    write(good, weights(False), 2, False)
    whole, vocabulary = good.read_bytes(), tokenizer_bin(tmp_path / "tokenizer.bin", pieces())
    spoilt = [(whole[:at] + struct.pack("<i", value) + whole[at + 4 :], told) for at, value, told in NUMBERS]
    spoilt += [
        (whole[:-1], "for a model of this shape"),
        (whole[:20], "got version 0"),
        (b"", "got version 0 and 0 bytes"),
    ]
    for content, told in spoilt:
        file.write_bytes(content)
        assert told in error_of(formats.import_run, file, run, vocabulary) and not run.exists()
    for change, told in PIECES:
        tokenizer_bin(vocabulary, change(pieces()))
        assert told in error_of(formats.import_run, good, run, vocabulary) and not run.exists()
    vocabulary.write_bytes(vocabulary.read_bytes()[:-1])
    for named in ((vocabulary,), ()):
        assert "is cut off" in error_of(formats.import_run, good, run, *named)
    vocabulary.unlink()
    assert "with --tokenizer" in error_of(formats.import_run, good, run)
    assert "no such file, expected a Hugging Face" in error_of(formats.import_run, tmp_path / "no", run)


def test_eight_bits_are_off_by_half_a_step_at_most():
    w = random_parameters(ModelConfig(20, 2, 1, 1, 4, 30, 1))["embed"].astype(np.float32) * np.arange(30)[:, None]
    w = w.astype(np.float32)
    errors = []
    for group in (4, 20, w.size):  # several groups per row, one per row, one per tensor
        codes, scales = layout.quantise(w, group)
        assert codes.dtype == np.int8 and codes.shape == (w.size // group, group) and scales.shape == (len(codes), 1)
        assert (np.abs(codes).max(axis=1) == np.where(scales[:, 0] > 0, 127, 0)).all()
        back = layout.dequantise(codes, scales, w.shape)
        off = np.abs(back - w).reshape(-1, group)
        assert (off <= scales / 2 * (1 + 1e-4)).all() and back.dtype == np.float32
        errors.append(off.sum())
    assert errors == sorted(errors) and not back[0].any()
