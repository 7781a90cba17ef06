"""Test export and import of Hugging Face folders and GGUF files against the packages transformers and gguf."""

import json
import os
import shutil
import struct
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from oracles import contents, error_of, random_parameters, run_text
from safetensors.numpy import load_file, save_file

import konigsberg
from nanoeuler_lib import formats
from nanoeuler_lib.command import cli
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.files import sha256
from nanoeuler_lib.formats import layout, llama, release, release_check
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.text.chat_template import ASSISTANT, TEMPLATES, USER, encode_turn
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training import checkpoint

ODD = ModelConfig(dim=48, heads=6, kv_heads=2, layers=3, context=160, vocab_size=328, predict=3, ffn=40,
                  rope_theta=5e4, norm_eps=1e-3)  # fmt: skip
TOKENIZER = Tokenizer(Tokenizer.train(konigsberg.corpus(30_000, 5), 318).merges, [END_OF_TEXT, USER, ASSISTANT])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make runs of odd shape, H/G = 3, with ids without a token at the vocabulary's end, and their exports in `hf`."""
    found = {}
    for kind in ("untied", "tied"):
        params = random_parameters(ODD, std=0.15, dtype=np.float32)
        for matrix in (params["embed"].T, params["heads"][:, : ODD.vocab_size]):
            matrix[:, 318:] *= 4  # markers and ids without a token: likely unless they are suppressed
        if kind == "tied":
            params["heads"][:, : ODD.vocab_size] = params["embed"].T
        found[kind] = tmp_path_factory.mktemp(kind) / "run"
        info = {"template": "alpaca"}
        checkpoint.save(found[kind] / "checkpoints/step-000007", GPT(ODD, params), TOKENIZER, 7, info=info)
        formats.export(found[kind], "hf", found[kind].parent / "hf")
    return found


@pytest.fixture(params=["untied", "tied"])
def run(request, runs):
    return runs[request.param]


@pytest.fixture
def hf(runs, tmp_path):
    """Return a copy of the untied run's export, which a test may damage."""
    return Path(shutil.copytree(runs["untied"].parent / "hf", tmp_path / "hf"))


def oracle():
    return [pytest.importorskip(name, reason=f"no {name}: make oracle") for name in ("transformers", "torch")]


def test_logits_are_those_of_transformers(run):
    transformers, torch = oracle()
    theirs, model = transformers.AutoModelForCausalLM.from_pretrained(run.parent / "hf"), checkpoint.load(run).model
    ids = np.random.default_rng(1).integers(0, ODD.vocab_size, (2, ODD.context))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    assert np.abs(model.logits(ids) - expected).max() < 1e-4 * np.abs(expected).max()

    def tables(time, width, theta):  # RoPE in float32, as transformers computes it for any type
        angle = torch.arange(time)[:, None].float() * (1 / theta ** (torch.arange(0, width, 2).float() / width))
        return angle.cos().double().numpy(), angle.sin().double().numpy()

    norm = lambda self, x: torch.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)  # theirs is float32
    params = random_parameters(ODD, std=0.15)
    params.flat[...] = model.params.flat
    with torch.no_grad(), patch.object(type(theirs.model.norm), "forward", norm):
        expected = theirs.double()(torch.tensor(ids)).logits.numpy()
    with patch.object(reference, "rope_tables", tables):
        apart = np.abs(GPT(ODD, params).logits(ids) - expected).max()
    assert apart < 1e-10 * np.abs(expected).max()


def test_weights_in_bfloat16_are_the_nearest_ones(run, tmp_path):
    """Compare with PyTorch's rounding, in transformers, in an import and in GGUF; logits are those of rounded ones."""
    transformers, torch = oracle()
    gguf, params = pytest.importorskip("gguf"), checkpoint.load(run).model.params
    left = formats.export(run, "hf", tmp_path / "hf", "bfloat16")
    assert "half of each weight's bits: bfloat16 keeps 8 significant ones" in left
    values = json.loads((tmp_path / "hf/config.json").read_text())
    assert values["dtype"] == values["torch_dtype"] == "bfloat16"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    formats.import_run(tmp_path / "hf", tmp_path / "back")
    model = checkpoint.load(tmp_path / "back").model
    short = torch.tensor(params["layers.0.out"].T.copy()).to(torch.bfloat16)
    assert torch.equal(theirs.model.layers[0].self_attn.o_proj.weight, short)
    assert np.array_equal(model.params["layers.0.out"].T, short.float().numpy())
    ids = np.random.default_rng(1).integers(0, ODD.vocab_size, (2, 9))
    with torch.no_grad():
        expected = theirs.float()(torch.tensor(ids)).logits.numpy()
    assert np.abs(model.logits(ids) - expected).max() < 1e-4 * np.abs(expected).max()
    formats.export(run, "gguf", tmp_path / "a.gguf", "bfloat16")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    kinds = {t.name: (t.tensor_type.name, t.data) for t in reader.tensors}
    assert kinds["output_norm.weight"][0] == "F32" and kinds["blk.0.attn_output.weight"][0] == "BF16"
    bits = kinds["blk.0.attn_output.weight"][1].view(np.uint16)
    assert np.array_equal(bits, short.view(torch.uint16).numpy())
    assert reader.get_field("general.file_type").contents() == gguf.LlamaFileType.MOSTLY_BF16
    assert "dtype must be one of float32, bfloat16, got 'int8'" in error_of(formats.export, run, "hf", "x", "int8")


def test_a_round_trip_changes_no_bit(run, tmp_path):
    before = checkpoint.load(run)
    formats.import_run(run.parent / "hf", tmp_path / "back")
    after = checkpoint.load(tmp_path / "back")
    for name, tensor in before.model.params.items():
        assert np.array_equal(after.model.params[name], tensor[..., : ODD.vocab_size] if name == "heads" else tensor)
    assert after.model.config == ModelConfig(**ODD.to_dict() | {"predict": 1})
    assert after.tokenizer.__reduce__() == before.tokenizer.__reduce__() and after.info["template"] == "alpaca"
    formats.export(tmp_path / "back", "hf", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(run.parent / "hf")
    tied = np.array_equal(before.model.params["heads"][:, : ODD.vocab_size].T, before.model.params["embed"])
    assert json.loads((run.parent / "hf/config.json").read_text())["tie_word_embeddings"] == tied
    assert ("lm_head.weight" in load_file(run.parent / "hf/model.safetensors")) != tied


@pytest.mark.parametrize("bos, eos", [(5, 7), (9, [7, 8]), ([5], 5), (None, [7])])
def test_the_ids_around_a_document_come_in_and_go_out(hf, bos, eos, tmp_path):
    """Read ids as numbers or as lists, of which the first counts; Llama 3 has a list."""
    values = json.loads((hf / "config.json").read_text()) | {"bos_token_id": bos, "eos_token_id": eos}
    (hf / "config.json").write_text(json.dumps(values))
    tokenizer = formats.import_run(hf, tmp_path / "run").tokenizer
    formats.export(tmp_path / "run", "hf", tmp_path / "out")
    told = json.loads((tmp_path / "out/config.json").read_text())
    first = [ids[0] if isinstance(ids, list) else ids for ids in (bos, eos)]
    assert [tokenizer.begin, tokenizer.end] == [told["bos_token_id"], told["eos_token_id"]] == first


def test_greedy_text_and_chat_are_those_of_transformers(runs):
    transformers, torch = oracle()
    found, folder = checkpoint.load(runs["untied"]), runs["untied"].parent / "hf"
    theirs, spoken = (kind.from_pretrained(folder) for kind in (
        transformers.AutoModelForCausalLM, transformers.AutoTokenizer))  # fmt: skip
    end = TOKENIZER.special_tokens[END_OF_TEXT]
    assert theirs.generation_config.eos_token_id == [end] and theirs.generation_config.bos_token_id == end
    settings = json.loads((folder / "tokenizer_config.json").read_text())  # its LlamaTokenizer can lose spaces
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast" and not settings["clean_up_tokenization_spaces"]
    text = konigsberg.corpus(600, 9)[:60]
    ids = [end, *spoken(text)["input_ids"]]
    unsaid = range(TOKENIZER.vocab_size, ODD.vocab_size)
    made = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=30, suppress_tokens=list(unsaid))[0]
    best = np.sort(found.model.logits(made[None].numpy())[0, len(ids) - 1 : -1, : TOKENIZER.vocab_size])[:, -2:]
    assert (best[:, 1] - best[:, 0]).min() > 1e-4  # else a different machine may choose a different token
    assert spoken.decode(made[len(ids) :]) == generate(found.model, found.tokenizer, text, 30, temperature=0)
    said = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=30)[0, len(ids) :]
    assert said.max() < TOKENIZER.special_tokens[USER]  # neither markers nor ids without a token
    said = ("system", "Be\nbrief."), ("user", "Wer?"), ("assistant", "Käthe."), ("user", " Why {{x}}?\n")
    messages = [{"role": role, "content": content} for role, content in said]
    for template in TEMPLATES:
        spoken.chat_template = llama.jinja(template)
        got = spoken.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompt, reply = TEMPLATES[template], TOKENIZER.encode("Käthe.").tolist()
        first = encode_turn(TOKENIZER, prompt("Be\nbrief.\n\nWer?"))
        assert got == [end, *first, *reply, end, *encode_turn(TOKENIZER, prompt(" Why {{x}}?\n"))]


def test_gguf(run, tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install -e .[gguf]")
    formats.export(run, "gguf", tmp_path / "a.gguf")
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    theirs = load_file(run.parent / "hf/model.safetensors")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(tensors) == len(theirs) and all(tensor.dtype == np.float32 for tensor in tensors.values())
    C = ODD.head_dim
    pairs = np.arange(C).reshape(2, C // 2).T.reshape(-1)  # 0, 4, 1, 5, ...: interleaved, by the definition
    for i in range(ODD.layers):
        block = f"model.layers.{i}."
        for part, heads in (("q", 6), ("k", 2)):
            rows = [head * C + row for head in range(heads) for row in pairs]
            expected = theirs[f"{block}self_attn.{part}_proj.weight"][rows]
            assert np.array_equal(tensors[f"blk.{i}.attn_{part}.weight"], expected)
        same = {"attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
                "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
                "ffn_norm": "post_attention_layernorm"}  # fmt: skip
        for name, other in same.items():
            assert np.array_equal(tensors[f"blk.{i}.{name}.weight"], theirs[f"{block}{other}.weight"])
    fields = {field.name.partition(".")[2]: field.contents() for field in reader.fields.values()}
    end = TOKENIZER.special_tokens[END_OF_TEXT]
    wanted = {
        "attention.head_count": 6, "attention.head_count_kv": 2, "block_count": 3, "context_length": 160,
        "embedding_length": 48, "feed_forward_length": 40, "rope.freq_base": 5e4, "rope.dimension_count": C,
        "attention.layer_norm_rms_epsilon": np.float32(1e-3), "ggml.model": "gpt2", "ggml.pre": "gpt-2",
        "ggml.add_bos_token": False, "ggml.bos_token_id": end, "ggml.eos_token_id": end, "vocab_size": 328,
        "chat_template": llama.jinja("alpaca"),
    }  # fmt: skip
    assert {name: fields[name] for name in wanted} == wanted
    kinds = fields["ggml.token_type"]
    assert kinds == [1] * end + [3] * 3 + [5] * 8 and fields["ggml.tokens"][-1] == "[PAD327]"
    theirs = json.loads((run.parent / "hf/tokenizer.json").read_text("utf-8"))["model"]
    assert fields["ggml.merges"] == theirs["merges"] and fields["ggml.tokens"][:320] == list(theirs["vocab"])
    checkpoint.save(tmp_path / "endless/checkpoints/step-000000", GPT(ODD), Tokenizer([], ()), 0)
    assert "an end of texts" in formats.export(tmp_path / "endless", "gguf", tmp_path / "b.gguf")[1]
    fields = gguf.GGUFReader(tmp_path / "b.gguf").fields
    absent = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id", "tokenizer.chat_template"}
    assert not absent & set(fields)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.gguf", "b.gguf", "endless"]


MODELS = {  # H, G, D, F, L, V, context, theta, eps, tied; published number of weights
    "TinyLlama 1.1B": (32, 4, 2048, 5632, 22, 32000, 2048, 1e4, 1e-5, False, 1_100_048_384),
    "Llama 2 7B": (32, 32, 4096, 11008, 32, 32000, 4096, 1e4, 1e-5, False, 6_738_415_616),
    "Llama 3 8B": (32, 8, 4096, 14336, 32, 128256, 8192, 5e5, 1e-5, False, 8_030_261_248),
    "SmolLM2 135M": (9, 3, 576, 1536, 30, 49152, 8192, 1e5, 1e-5, True, 134_515_008),
    "Mistral 7B v0.2": (32, 8, 4096, 14336, 32, 32000, 32768, 1e6, 1e-5, False, 7_241_732_096),
}


@pytest.mark.parametrize("name", MODELS)
def test_named_models_open(name, tmp_path):
    """Open what transformers writes: the full shape's numbers, then two layers of narrow heads, bfloat16 in shards."""
    transformers, torch = oracle()
    H, G, D, F, L, V, context, theta, eps, tied, weights = MODELS[name]
    kind = "Mistral" if "Mistral" in name else "Llama"

    def made(dim, ffn, layers, vocab):
        rest = {"sliding_window": None} if kind == "Mistral" else {}
        if int(transformers.__version__.split(".")[0]) > 4:
            rest |= {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
        return getattr(transformers, f"{kind}Config")(
            hidden_size=dim, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=H,
            num_key_value_heads=G, vocab_size=vocab, max_position_embeddings=context, rms_norm_eps=eps,
            tie_word_embeddings=tied, bos_token_id=1, eos_token_id=[2, 0], rope_theta=theta, **rest,
        )  # fmt: skip

    made(D, F, L, V).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    config, is_tied = llama.llama_config(values, tmp_path / "config.json")
    shapes = layout.llama_shapes(config)
    assert sum(map(np.prod, shapes.values())) - tied * D * V == weights and is_tied == tied
    assert (config.rope_theta, config.norm_eps, config.context) == (theta, eps, context)
    small = made(H * 6, 50, 2, 331)
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForCausalLM")(small).to(torch.bfloat16)
    torch.nn.init.normal_(model.model.norm.weight)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20kB")
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 2
    Tokenizer.train(run_text(), 331).save(tmp_path / "bpe.json")
    found = formats.import_run(tmp_path / "hf", tmp_path / "run", tmp_path / "bpe.json").model
    ids = np.random.default_rng(2).integers(0, 331, (1, 300))
    with torch.no_grad():
        expected = model.float()(torch.tensor(ids)).logits.numpy()
    assert np.abs(found.logits(ids) - expected).max() < 1e-4 * np.abs(expected).max()


def refused(path, tmp_path, told, capsys):
    """Check that the command ends with this error in one line, and has written nothing."""
    before = contents(tmp_path)
    assert cli.main(["import", str(path), "--run", str(tmp_path / "new")]) == 2
    out, err = capsys.readouterr()
    assert told in err and err.count("\n") == 1 and not out and len(err) < 500, err
    assert contents(tmp_path) == before and not (tmp_path / "new").exists()


CONFIGS = {  # changed values of config.json, and the error
    "rope_scaling": ({"rope_type": "llama3", "factor": 8.0}, "rope_scaling must be default, got 'llama3'"),
    "rope_parameters": ({"rope_type": "yarn", "rope_theta": 5e4}, "rope_scaling must be default, got 'yarn'"),
    "head_dim": (16, "head_dim must be 8, got 16"),
    "attention_bias": (True, "attention_bias must be False, got True"),
    "mlp_bias": (True, "mlp_bias must be False, got True"),
    "sliding_window": (99, "sliding_window must be none, or at least 160, the number of positions, got 99"),
    "hidden_act": ("gelu", "hidden_act must be silu, got 'gelu'"),
    "rope_theta": (1e4, "rope_theta must be 50000.0, got 10000.0"),
    "quantization_config": ({"bits": 4}, "quantization_config must be None, got {'bits': 4}"),
    "model_type": (["llama"], "model_type must be llama or mistral or gpt2, got ['llama']"),
    "hidden_size": (-48, "dim must be an integer from 1 to 1048576, got -48"),
    "num_attention_heads": (0, "heads must be an integer from 1 to 4096, got 0"),
    "num_hidden_layers": ("3", "num_hidden_layers must be an integer, got '3'"),
    "vocab_size": (None, "vocab_size must be an integer, got None"),
    "intermediate_size": (64, "must be [48, 64], got [48, 40]"),
    "num_key_value_heads": (3, "must be [24, 48], got [16, 48]"),
    "tie_word_embeddings": ("yes", "tie_word_embeddings must be true or false, got 'yes'"),
}


def test_what_the_model_has_not_is_refused(hf, tmp_path, capsys):
    values = json.loads((hf / "config.json").read_text("utf-8"))
    for name, (value, told) in CONFIGS.items():
        (hf / "config.json").write_text(json.dumps(values | {name: value}), "utf-8")
        refused(hf, tmp_path, told, capsys)


NORM = "model.layers.1.input_layernorm.weight"
TENSORS = [  # changed tensors (None: removed), and the error
    ({NORM: np.full(48, np.nan, np.float32)}, f"{NORM} must hold finite numbers, got NaN"),
    ({NORM: np.ones(48, np.int64)}, f"{NORM} must be one of F32, F16, BF16, got I64"),
    ({NORM: None}, f"lacks the tensor '{NORM}': 1 tensors"),
    ({"model.x": np.ones(3)}, "has an unknown tensor 'model.x'"),
    ({"lm_head.weight": None}, "lacks the tensor 'lm_head.weight'"),
]
BYTES = [  # changes of the whole file
    lambda whole: whole[:-4], lambda whole: struct.pack("<Q", 3 << 30) + whole[8:], lambda whole: b"",
    lambda whole: whole[:8] + b"[" + whole[9:],
]  # fmt: skip


def test_damaged_tensors_are_refused(runs, hf, tmp_path, capsys):
    file = hf / "model.safetensors"
    whole, tensors = file.read_bytes(), load_file(file)
    for changed, told in TENSORS:
        save_file({name: t for name, t in (tensors | changed).items() if t is not None}, file)
        refused(hf, tmp_path, told, capsys)
    for change in BYTES:
        file.write_bytes(change(whole))
        refused(hf, tmp_path, "must be readable as safetensors", capsys)
    shutil.copytree(runs["tied"].parent / "hf", hf, dirs_exist_ok=True)
    save_file(load_file(file) | {"lm_head.weight": np.ones((328, 48), np.float32)}, file)
    refused(hf, tmp_path, "lm_head must equal the embedding", capsys)


def test_an_index_that_does_not_fit_its_files_is_refused(hf, tmp_path, capsys):
    tensors, index = load_file(hf / "model.safetensors"), hf / "model.safetensors.index.json"
    held = {name: f"{number % 2}.safetensors" for number, name in enumerate(tensors)}
    for file in set(held.values()):
        save_file({name: tensors[name] for name in tensors if held[name] == file}, hf / file)
    (hf / "model.safetensors").unlink()
    index.write_text(json.dumps({"weight_map": held}))
    formats.import_run(hf, tmp_path / "sound")
    for changed, told in (
        ({"weight_map": held | {NORM: "../../x"}}, "must name a file next to it"),
        ({"weight_map": held | {"more": "2.safetensors"}}, "2.safetensors: no such file"),
        ({"weight_map": held | {NORM: f"{1 - int(held[NORM][0])}.safetensors"}}, "which must be in the file that"),
        ({"weight_map": held | {"more": held[NORM]}}, "lacks 'more'"), ([], "for each tensor, got None"),
    ):  # fmt: skip
        index.write_text(json.dumps(changed))
        refused(hf, tmp_path, told, capsys)


VOCABULARIES = [  # changes of tokenizer.json and of its model's vocabulary, and the error
    ({"model": {"type": "WordPiece"}}, {}, "must be plain BPE, got type 'WordPiece'"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, {}, "must be split as by GPT-2"),
    ({"normalizer": {"type": "NFC"}}, {}, "must be split as by GPT-2"),
    ({}, {"€": 320}, "must be readable as tokenizer.json"),
    ({}, {"aa": 500}, "the 321 tokens must have the ids 0 to 320"),
    ({}, {"a" * n: 318 + n for n in range(2, 20)}, "must have at most the model's 328 tokens"),
    ({"model": {"merges": ["a nowhere"]}}, {}, "must be readable as tokenizer.json"),
    ({"model": 3}, {}, "must be readable as tokenizer.json"),
]


def test_other_tokenizers_are_refused(hf, tmp_path, capsys):
    file = hf / "tokenizer.json"
    spec = json.loads(file.read_text("utf-8"))
    for changed, tokens, told in VOCABULARIES:
        whole = spec["model"] | {"vocab": spec["model"]["vocab"] | tokens}
        model = changed.get("model", {})
        model = whole | model if isinstance(model, dict) else model
        file.write_text(json.dumps(spec | changed | {"model": model}))
        refused(hf, tmp_path, told, capsys)
    file.write_bytes(b"{" * 100_000)
    refused(hf, tmp_path, "not JSON", capsys)
    file.unlink()
    refused(hf, tmp_path, "with --tokenizer", capsys)
    os.mkfifo(file)  # reading must not wait for a pipe
    refused(hf, tmp_path, "with --tokenizer", capsys)
    for path in (file, tmp_path / "none"):
        refused(path, tmp_path, "no such file, expected a Hugging Face", capsys)


def test_the_commands(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = runs["untied"]
    heads = f"prediction heads 1 to 2, {2 * 48 * 328:,} weights: a Llama has one head"
    assert cli.main(["export", str(run), "--to", "hf", "--out", "hf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": "hf", "to": "hf", "left": [heads]}
    assert cli.main(["export", str(run), "--to", "hf", "--out", "hf"]) == 2
    assert capsys.readouterr().err == "nanoeuler: hf: already exists: choose a new name\n"
    with patch.object(formats.run_folder, "save", side_effect=KeyboardInterrupt):  # interrupted, then started again
        assert cli.main(["import", "hf", "--run", "back"]) == 130 and Path("back/log.jsonl").exists()
    assert cli.main(["import", "hf", "--run", "back"]) == 0 and "nanoeuler generate" in capsys.readouterr().out
    assert cli.main(["import", "hf", "--run", "back"]) == 2 and "choose a new name" in capsys.readouterr().err
    Path("a.txt").write_text("Käthe had the amber.")
    for command in ("generate Once --tokens 5 --run back", "score a.txt --run back", "report back", "info --run back",
                    "chat --run back --tokens 3"):  # fmt: skip
        with patch("builtins.input", side_effect=["Who?", EOFError]):
            assert cli.main(command.split()) == 0, command
    out = capsys.readouterr().out
    assert "bits per byte" in out and "imported: True" in out
    assert "| imported from | hf |" in Path("back/report/report.md").read_text()
    with patch.dict(sys.modules, {"gguf": None}):
        assert cli.main(["export", str(run), "--to", "gguf", "--out", "a.gguf"]) == 2
    assert "pip install gguf, or choose --to hf" in capsys.readouterr().err and not Path("a.gguf").exists()
    with patch.object(layout, "memory", return_value=10**5):
        assert "must fit into this machine's 0.0 GB" in error_of(formats.import_run, "hf", "new")
    monkeypatch.setattr(llama, "_save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "hf2: cannot be written (No space" in error_of(formats.export, run, "hf", "hf2")
    twice = Tokenizer([(97, 98), (256, 97)], ["aba"])
    model = GPT(ModelConfig(dim=8, heads=2, kv_heads=1, layers=1, context=8, vocab_size=259, predict=1))
    checkpoint.save("twice/checkpoints/step-000000", model, twice, 0)
    assert "tokens must have different texts, got 'aba'" in error_of(formats.export, "twice", "hf", "hf2")
    assert not [path for path in tmp_path.iterdir() if "hf2" in path.name]


def test_logits_tell_another_reading_of_a_release(runs, tmp_path, monkeypatch, capsys):
    """Run the release's own check on a changed config.json whose new digest is listed."""
    oracle()
    shutil.copytree(runs["untied"] / "checkpoints/step-000007", tmp_path / "run")
    release.release(tmp_path / "run", out := tmp_path / "out", ["hf"])
    monkeypatch.setattr(release_check, "HERE", out)
    assert release_check.main() == 0 and "logits: transformers" in capsys.readouterr().out
    values, old = json.loads((out / "config.json").read_text()), sha256(out / "config.json")
    (out / "config.json").write_text(json.dumps(values | {"rms_norm_eps": 0.5}))
    sums = (out / "SHA256SUMS").read_text()
    (out / "SHA256SUMS").write_text(sums.replace(old, sha256(out / "config.json")))
    assert release_check.main() == 1
    said, err = capsys.readouterr()
    assert "apart" in err and "config.json: as published" in said
