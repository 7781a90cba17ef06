"""GPT-2 in folders as transformers writes them: the same tensors to the bit, logits and gradients, ids and refusals."""

import json
import os
from pathlib import Path

import numpy as np
import oracles
import pytest
from safetensors.numpy import load_file, save_file

from nanoeuler_lib import formats
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import GPT2Config
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.formats import gpt2_folder
from nanoeuler_lib.model import GPT
from nanoeuler_lib.model.gpt2 import SIZES
from nanoeuler_lib.model.gradcheck import check_batch
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `oracle`)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `oracle`)")

DATA = Path(os.environ.get("NANOEULER_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="NANOEULER_DATA is not set")
TEXT = "Käthe had 12 Groschen;  she'd paid\t3...\n\n  Murr\u00a0ate them all!\U0001f408 " * 9
TINY = dict(dim=15, heads=3, layers=2, context=9, vocab_size=300)
NUMBERS = dict(dim="n_embd", heads="n_head", layers="n_layer", context="n_positions", vocab_size="vocab_size")


def theirs_of(shape, seed=0, kind=None, **more):
    """A transformers model of this shape, every number random, biases and gains as well."""
    named = {NUMBERS[name]: value for name, value in shape.items()}
    last = shape["vocab_size"] - 1
    config = transformers.GPT2Config(**named, bos_token_id=last, eos_token_id=last, attn_implementation="eager", **more)
    torch.manual_seed(seed)
    model = (kind or transformers.GPT2LMHeadModel)(config).eval()
    for p in model.parameters():
        p.data.normal_(0, 0.1).add_(1 if p.ndim == 1 else 0)
    return model


def read(folder):
    return gpt2_folder.read(folder, json.loads((folder / "config.json").read_text()))


def in_our_names(model, of):
    """Our name of each tensor -> NumPy's array of it, or of its gradient."""
    tensors = {name.removeprefix("transformer."): p.detach().numpy() for name, p in model.named_parameters()}
    return {ours: tensors[theirs] for ours, theirs in gpt2_folder.tensor_names(of).items()}


def twin(theirs):
    """Our model with their numbers."""
    config = gpt2_folder.gpt2_config(theirs.config.to_dict(), Path("config.json"))
    model = GPT(config, dtype=np.float64)
    for name, tensor in in_our_names(theirs, config).items():
        model.params[name][...] = tensor
    return model


@pytest.mark.parametrize("size, kind", [(size, "GPT2LMHeadModel") for size in SIZES] + [("gpt2", "GPT2Model")])
def test_the_published_sizes_come_in_to_the_bit(size, kind, tmp_path):
    """Widths, heads and context of each size, cut to one layer and a small vocabulary; with and without a prefix."""
    shape = SIZES[size] | dict(layers=1, vocab_size=300)
    theirs = theirs_of(shape, kind=getattr(transformers, kind))
    theirs.save_pretrained(tmp_path)
    ours = read(tmp_path)
    assert ours.config == GPT2Config(**shape)
    for name, tensor in in_our_names(theirs, ours.config).items():
        assert np.array_equal(ours.params[name], tensor), name
    if kind == "GPT2LMHeadModel":
        tokens = check_batch(ours.config, 1, 33, 0)[0]
        with torch.no_grad():
            expected = theirs(torch.tensor(tokens)).logits.numpy()
        oracles.close(ours.logits(tokens), expected, 1e-5, "logits")
        oracles.close(ours.decoder().feed(tokens[0]), expected[0, -1], 1e-5, "decoder")


@pytest.mark.parametrize("shape, more, batch, time", [
    (TINY, {}, 3, 9), (TINY, {}, 1, 1), (TINY | dict(heads=1, layers=1), dict(n_inner=7), 2, 5),
    (TINY | dict(dim=64, heads=2, layers=3, context=200), {}, 1, 7),
])  # fmt: skip
def test_logits_and_every_gradient_in_float64(shape, more, batch, time):
    theirs = theirs_of(shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=3e-4, **more).double()
    ours = twin(theirs)
    tokens, targets = check_batch(ours.config, batch, time, 1)
    targets[0, 0] = 5  # one at least
    logits = theirs(torch.tensor(tokens)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten(), ignore_index=-1)
    loss.backward()
    found, grads = ours.loss_and_gradients(tokens, targets)
    oracles.close(ours.logits(tokens), logits.detach().numpy(), 1e-10, "logits")
    oracles.close(found, float(loss.detach()), 1e-10, "loss")
    for p in theirs.parameters():
        p.data = p.grad
    for name, expected in in_our_names(theirs, ours.config).items():
        oracles.close(grads[name], expected, 1e-10, name)


def test_shards_buffers_and_halves(tmp_path):
    theirs = theirs_of(TINY)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size=9000)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    expected = read(tmp_path / "shards").params.flat
    theirs.save_pretrained(tmp_path / "one")
    tensors = load_file(tmp_path / "one/model.safetensors")
    buffers = {f"transformer.h.{i}.attn.bias": np.tril(np.ones((1, 1, 9, 9), np.float32)) for i in range(2)}
    buffers["transformer.h.0.attn.masked_bias"] = np.float32([-1e4])
    head = {"lm_head.weight": tensors["transformer.wte.weight"]}
    save_file(tensors | buffers | head, tmp_path / "one/model.safetensors")
    assert np.array_equal(read(tmp_path / "one").params.flat, expected)
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    rounded = torch.tensor(expected).to(torch.bfloat16).float().numpy()
    assert np.array_equal(read(tmp_path / "half").params.flat, rounded)


TENSORS = {  # a tensor, what becomes of it (None: taken out), and the line
    "transformer.ln_f.bias": (None, "lacks the tensor 'ln_f.bias': 1 tensors"),
    "transformer.h.1.mlp.c_fc.weight": (np.ones((60, 15)), "c_fc.weight must be [15, 60], got [60, 15]"),
    "lm_head.weight": (np.ones((300, 15)), "lm_head.weight must equal wte.weight"),
    "extra": (np.zeros(2), "has an unknown tensor 'extra'"),
}
CONFIGS = [  # a change of config.json, and the line
    ({"activation_function": "relu"}, "activation_function must be gelu_new, got 'relu'"),
    ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx must be False, got True"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings must be True, got False"),
    ({"n_head": 4}, "dim must be a multiple of heads (4), got 15"),
    ({"n_positions": 2**19}, "wpe.weight must be [524288, 15], got [9, 15]"),
]


def test_folders_that_do_not_fit_are_told_in_one_line(tmp_path):
    theirs_of(TINY).save_pretrained(tmp_path)
    config, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    values, whole = json.loads(config.read_text()), load_file(file)
    for change, message in CONFIGS:
        config.write_text(json.dumps(values | change))
        assert message in oracles.error_of(read, tmp_path)
    config.write_text(json.dumps(values))
    for name, (tensor, message) in TENSORS.items():
        changed = whole | {name: tensor if tensor is None else tensor.astype(np.float32)}
        save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)
        assert message in oracles.error_of(read, tmp_path)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A folder of transformers' with vocab.json and merges.txt, and the run that it became."""
    folder = tmp_path_factory.mktemp("gpt2")
    learnt = Tokenizer.train(TEXT, 290, ())
    order = [*range(255, -1, -1)]  # bytes in an order of their own, as GPT-2's are
    tokenizer = Tokenizer([[x if x > 255 else order[x] for x in pair] for pair in learnt.merges], (END_OF_TEXT,), order)
    theirs = theirs_of(TINY | dict(vocab_size=tokenizer.vocab_size, context=24))
    theirs.save_pretrained(folder)
    shown = formats.tokenizers.names(tokenizer)
    (folder / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(shown)}))
    lines = ["#version: 0.2", *(f"{shown[a]} {shown[b]}" for a, b in tokenizer.merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", "utf-8")
    formats.import_run(folder, folder / "run")
    return theirs, tokenizer, folder


def test_an_imported_run_generates_scores_trains_and_goes_out_again(imported, capsys):
    """By the commands; transformers then opens the folder with the same numbers, ids and logits."""
    theirs, tokenizer, folder = imported
    run, text = str(folder / "run"), folder / "text.txt"
    text.write_text(TEXT, "utf-8")
    assert checkpoint.load(run).tokenizer.__reduce__() == tokenizer.__reduce__()
    for words in (
        ["generate", "Murr", "--run", run, "--temperature", "0", "--tokens", "9", "--json"],
        ["score", str(text), "--run", run, "--json"],
        ["info", "--run", run, "--json"],
    ):
        assert cli.main(words) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    prompt = [tokenizer.special_tokens[END_OF_TEXT], *tokenizer.encode("Murr").tolist()]
    greedy = theirs.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert said[0]["continuation"] == tokenizer.decode([i for i in greedy[0].tolist()[len(prompt) :] if i != prompt[0]])
    options = ["--steps", "20", "--rate", "0.01", "--batch", "4", "--warmup", "3", "--sample-every", "0"]
    begun = ["train", "--from", run, "--data", str(text), "--run", f"{run}2", *options, "--quiet"]
    assert cli.main(begun) == 0 and cli.main(["report", f"{run}2"]) == 0
    assert cli.main(["train", "--resume", f"{run}2", "--steps", "22", "--quiet"]) == 0
    assert cli.main(["score", str(text), "--run", f"{run}2", "--json"]) == 0
    learnt = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert learnt["bits_per_byte"] < 0.7 * said[1]["bits_per_byte"]
    assert cli.main(["generate", "x", "--run", run, "--device", "checked"]) == 2
    assert "no kernels for GPT-2" in capsys.readouterr().err
    formats.export(run, "hf", folder / "out")
    again = transformers.GPT2LMHeadModel.from_pretrained(folder / "out")
    assert again.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())
    ids = transformers.AutoTokenizer.from_pretrained(folder / "out").encode(TEXT)
    assert ids == tokenizer.encode(TEXT).tolist()
    assert formats.import_run(folder / "out", folder / "run3").tokenizer.__reduce__() == tokenizer.__reduce__()
    with pytest.raises(NanoEulerError, match="--to must be hf for a GPT-2, got gguf"):
        formats.export(run, "gguf", folder / "out.gguf")


@needs_data
def test_gpt2s_own_vocabulary_comes_in_by_either_file(tmp_path):
    for name, target in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        (tmp_path / target).write_bytes((DATA / "gpt2" / name).read_bytes())
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "fast")
    ours = formats.tokenizers.read(tmp_path / "fast/tokenizer.json", 50256, 50256)
    by_name = Tokenizer.from_gpt2(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert type(ours) is Tokenizer and ours.__reduce__() == by_name.__reduce__()
    rng = np.random.default_rng(0)
    drawn = ["".join(chr(c) for c in rng.choice([*range(32, 0x2FF), 9, 10, 0x3000], 40)) for _ in range(200)]
    for text in (TEXT, "12345  a1b2 's 'S it's\r\n\u3000 \u00bd\u00b2", *drawn):
        assert ours.encode(text).tolist() == theirs.encode(text), text
