"""Write and read a Llama as a Hugging Face folder: config.json, safetensors, the tokenizer, the chat template."""

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from nanoeuler_lib import files
from nanoeuler_lib.config import ModelConfig
from nanoeuler_lib.cuda.blas import from_bfloat16, to_bfloat16
from nanoeuler_lib.errors import NanoEulerError, short
from nanoeuler_lib.formats import tokenizers
from nanoeuler_lib.formats.layout import expect_memory, is_tied, llama_shapes, llama_views
from nanoeuler_lib.model import GPT, Parameters
from nanoeuler_lib.text.chat_template import ASSISTANT, TEMPLATES, USER
from nanoeuler_lib.text.tokenizer import read_json
from nanoeuler_lib.training.checkpoint import Checkpoint

KINDS = {int: "an integer", (int, float): "a number", bool: "true or false", dict: "an object", str: "text"}
WINDOWS = {"mistral": 4096}  # default of sliding_window by model_type, where it is not "none"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}  # of exported weights: safetensors' name, bytes

# ---- Out


def export(checkpoint: Checkpoint, out: Path, dtype: str) -> None:
    """Write a checkpoint as the Hugging Face folder of a Llama. Raises what `write_folder` raises."""
    model, config = checkpoint.model, checkpoint.model.config
    tied = is_tied(model.params, config)
    tensors = {name: np.ascontiguousarray(view) for name, view in llama_views(model.params, config).items()}
    if tied:
        del tensors["lm_head.weight"]  # transformers stores tied matrices once, and would drop a second one on reading
    write_folder(checkpoint, out, tensors, _config_json(config, tied), dtype)


def write_folder(checkpoint: Checkpoint, out: Path, tensors: dict[str, np.ndarray], values: dict, dtype: str) -> None:
    """Write a Hugging Face folder that transformers 4 and 5 can open.

    tensors: content of model.safetensors, as float32; values: content of config.json; dtype: "float32" or "bfloat16",
    of the tensors in the file; everything else comes from the checkpoint. Raises NanoEulerError if tokenizer.json
    cannot hold the vocabulary, or if writing fails; then no folder is left.
    """
    config, tokenizer, template = checkpoint.model.config, checkpoint.tokenizer, chat_template(checkpoint)
    unsaid = [tokenizer.special_tokens[name] for name in (USER, ASSISTANT) if template]
    unsaid += range(tokenizer.vocab_size, config.vocab_size)  # ids without a token, from rounding up to a multiple of 8
    shown = {id: name for name, id in tokenizer.special_tokens.items()}
    edges = {"bos_token": shown.get(tokenizer.begin), "eos_token": shown.get(tokenizer.end)}
    ids = {"bos_token_id": tokenizer.begin, "eos_token_id": tokenizer.end}
    ends = {"eos_token_id": None if tokenizer.end is None else [tokenizer.end]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= edges | {"add_bos_token": False, "model_max_length": config.context}
    documents = {
        # the names of transformers 4 and of 5
        "config.json": values | ids | {"torch_dtype": dtype, "dtype": dtype},
        "generation_config.json": ids | ends | ({"suppress_tokens": unsaid} if unsaid else {}),
        "tokenizer.json": tokenizers.to_json(tokenizer),
        "tokenizer_config.json": settings | ({"chat_template": template} if template else {}),
    }
    with files.new_folder(out) as folder:
        for name, value in documents.items():
            (folder / name).write_text(files.to_json(value, indent=1), "utf-8")
        _save(folder / WEIGHTS, tensors, dtype)


def _save(file, tensors, dtype):
    """Write tensors as safetensors; the package's own function for NumPy has no bfloat16."""
    kind, size = DTYPES[dtype]
    header, end = {"__metadata__": {"format": "pt"}}, 0
    tensors = dict(sorted(tensors.items()))
    for name, tensor in tensors.items():
        start, end = end, end + size * tensor.size
        header[name] = {"dtype": kind, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with open(file, "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            out.write((to_bfloat16(tensor) if dtype == "bfloat16" else tensor.astype("<f4")).tobytes())


def _config_json(config, tied):
    theta = config.rope_theta
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": config.dim, "intermediate_size": config.ffn, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
        "vocab_size": config.vocab_size, "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": tied,
        "rope_theta": theta, "rope_scaling": None,  # the names of transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},  # and of 5
    }  # fmt: skip


def chat_template(checkpoint: Checkpoint) -> str | None:
    """Return the chat template of a fine-tuned run in Jinja, or None for any other run.

    It gives the same ids as `text.chat_template`, with one difference: in other programs, a user who types the name of
    a marker writes the marker itself.
    """
    if not {USER, ASSISTANT} <= checkpoint.tokenizer.special_tokens.keys():
        return None
    return jinja(checkpoint.info.get("template", "plain"))


def jinja(template: str) -> str:
    """Return a template of `text.chat_template` in Jinja. template: its name in TEMPLATES."""
    line = lambda text: text.replace("\n", "{{ '\\n' }}")
    before, behind = map(line, TEMPLATES[template]("\0").split("\0"))
    system = "loop.index0 == 1 and messages[0]['role'] == 'system' and messages[0]['content']"
    return (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        + f"{USER}{before}{{% if {system} %}}{{{{ messages[0]['content'] + '\\n\\n' }}}}{{% endif %}}"
        + f"{{{{ message['content'] }}}}{behind}{{% elif message['role'] == 'assistant' %}}"
        + f"{ASSISTANT}{{{{ message['content'] }}}}{{{{ eos_token }}}}"
        + "{% elif not loop.first or message['role'] != 'system' %}"
        + "{{ raise_exception('roles are user and assistant in turn, perhaps behind one of system') }}"
        + f"{{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
    )


# ---- In


def read(folder: Path, values: dict) -> GPT:
    """Read the model of a Hugging Face folder: a Llama, or a Mistral without a sliding window.

    folder: its path; values: the content of its config.json. A tied head becomes a second, equal matrix. The model has
    one prediction head. Raises NanoEulerError, before memory is allocated, if this library's model cannot compute what
    config.json describes, or if the files contradict each other.
    """
    config, tied = llama_config(values, folder / "config.json")
    shapes, found = llama_shapes(config), headers(folder)
    found = {name: where for name, where in found.items() if not name.endswith("rotary_emb.inv_freq")}
    if tied and "model.embed_tokens.weight" in found:
        found.setdefault("lm_head.weight", found["model.embed_tokens.weight"])
    expect_tensors(folder, found, shapes)
    expect_memory(config, folder)
    params = Parameters(config)
    for name, view in llama_views(params, config).items():
        view[...] = read_tensor(name, *found[name])
    if tied and not is_tied(params, config):
        raise NanoEulerError(f"{folder}: lm_head must equal the embedding, because config.json ties them")
    return GPT(config, params)


def expect_tensors(folder: Path, found: dict[str, tuple], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise NanoEulerError unless `found`, from `headers`, is exactly the tensors with these names and shapes."""
    if odd := sorted(found.keys() ^ shapes.keys()):
        what = "lacks the" if odd[0] in shapes else "has an unknown"
        raise NanoEulerError(f"{folder}: {what} tensor {odd[0][:80]!r}: {len(odd)} tensors do not match config.json")
    for name, (file, _, shape, _) in found.items():
        if shape != shapes[name]:
            raise NanoEulerError(f"{file}: {name} must be {list(shapes[name])}, got {list(shape)}")


def llama_config(values: dict, file: Path) -> tuple[ModelConfig, bool]:
    """Convert the values of a config.json to our configuration, and return whether the head is tied to the embedding.

    The names of transformers 4 and 5 are both understood. Raises NanoEulerError for a feature that this library's model
    does not have: biases, RoPE scaling, a head width other than D/H, a sliding window, other activations, quantised
    weights.
    """

    def get(name, default=None, kind=int):
        value = default if values.get(name) is None else values[name]
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            raise NanoEulerError(f"{file}: {name} must be {KINDS[kind]}, got {short(value)}")
        return value

    number = (int, float)
    rope, context = get("rope_parameters", {}, dict), get("max_position_embeddings")
    scaling = get("rope_scaling", {}, dict) or rope
    theta = rope.get("rope_theta", get("rope_theta", 10000.0, number))
    numbers = dict(dim=get("hidden_size"), heads=get("num_attention_heads"), layers=get("num_hidden_layers"))
    numbers |= dict(context=context, vocab_size=get("vocab_size"), predict=1, ffn=get("intermediate_size"))
    numbers |= dict(rope_theta=theta, norm_eps=get("rms_norm_eps", 1e-6, number))
    try:
        config = ModelConfig(**numbers, kv_heads=get("num_key_value_heads", numbers["heads"]))
    except NanoEulerError as error:
        raise NanoEulerError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from None
    wanted = {
        "hidden_act": (get("hidden_act", "silu", str), "silu"),
        "attention_bias": (get("attention_bias", False, bool), False),
        "mlp_bias": (get("mlp_bias", False, bool), False),
        "rope_scaling": (scaling.get("rope_type", scaling.get("type", "default")), "default"),
        "partial_rotary_factor": (rope.get("partial_rotary_factor", 1), 1),
        "rope_theta": (get("rope_theta", theta, number), theta),
        "head_dim": (get("head_dim", config.head_dim), config.head_dim),
        "quantization_config": (values.get("quantization_config"), None),
    }
    for name, (value, expected) in wanted.items():
        if value != expected:
            raise NanoEulerError(f"{file}: {name} must be {expected}, got {short(value)}: nothing else is supported")
    window = values.get("sliding_window", WINDOWS.get(values["model_type"]))
    if window is not None and not (isinstance(window, int) and window >= context):
        expected = f"must be none, or at least {context}, the number of positions"
        raise NanoEulerError(f"{file}: sliding_window {expected}, got {short(window)}")
    return config, get("tie_word_embeddings", False, bool)


def headers(folder: Path) -> dict[str, tuple]:
    """Return where each tensor of a folder is: name -> (file, dtype, shape, offset in bytes).

    The folder has one file of safetensors, or several with an index. Raises NanoEulerError if a file is missing or
    damaged, or contradicts the index.
    """
    held, found = None, {}
    if (index := folder / INDEX).is_file():
        content = read_json(index)
        held = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(held, dict) or not all(Path(str(name)).name == name for name in held.values()):
            raise NanoEulerError(f"{index}: weight_map must name a file next to it for each tensor, got {short(held)}")
    for file in (folder / name for name in sorted({WEIGHTS} if held is None else set(held.values()))):
        if not file.is_file():
            raise NanoEulerError(f"{file}: no such file, expected the weights as safetensors")
        for name, where in _header(file).items():
            if held is not None and held.get(name) != file.name:
                raise NanoEulerError(f"{file}: has {short(name)}, which must be in the file that {INDEX} names")
            found[name] = (file, *where)
    if lost := (held or {}).keys() - found.keys():
        raise NanoEulerError(f"{folder}: lacks {short(min(lost))}, which {INDEX} lists")
    return found


def _header(file):
    """Return name -> (dtype, shape, offset) for a safetensors file, after its library has checked the header."""
    try:
        with safe_open(file, framework="numpy"), open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except (OSError, SafetensorError, ValueError) as error:
        raise NanoEulerError(f"{file}: must be readable as safetensors ({files.one_line(str(error), 200)})") from None
    header.pop("__metadata__", None)
    start = 8 + length
    return {n: (t["dtype"], tuple(t["shape"]), start + t["data_offsets"][0]) for n, t in header.items()}


def read_tensor(name: str, file: Path, kind: str, shape: tuple[int, ...], offset: int) -> np.ndarray:
    """Read one tensor as float32. name: for messages; the other arguments: values of `headers`.

    Raises NanoEulerError for any dtype other than float32, float16 and bfloat16, and if a number is not finite.
    """
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    if kind not in kinds:
        raise NanoEulerError(f"{file}: {name} must be one of {', '.join(kinds)}, got {kind}")
    tensor = np.fromfile(file, kinds[kind], int(np.prod(shape)), offset=offset).reshape(shape)
    if kind == "BF16":
        tensor = from_bfloat16(tensor)
    if not np.isfinite(tensor).all():
        raise NanoEulerError(f"{file}: {name} must hold finite numbers, got NaN or infinity")
    return tensor
