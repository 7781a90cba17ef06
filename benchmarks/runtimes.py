"""Compare the outputs of one run in other programs with NumPy's outputs: `make runtimes` prints a table.

    python -m benchmarks.runtimes [RUN]          # without RUN: context 512, three query heads per key head
    python -m benchmarks.runtimes --engine RUN   # only the engine, on a GPU: data/results/runtimes_engine.json

NumPy is the reference. The JavaScript of the book's page runs in node. transformers 4, transformers 5 and llama.cpp run
in separate environments, because one environment cannot contain both versions of transformers. The environments are
made once, in _build/runtimes. Each program gets the same request: a folder or file of weights, 10,000 strings, a row of
ids, and prompts. It writes its answer to files: the ids of every string, the logits at every position of the row, and
greedy texts. If a program is not installed, its row of the table says so, and no result is stored.
"""

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np

import konigsberg
from nanoeuler_lib import cuda, engine, formats
from nanoeuler_lib.model import GPT
from nanoeuler_lib.ops import reference
from nanoeuler_lib.text.data import SEPARATOR
from nanoeuler_lib.text.tokenizer import END_OF_TEXT, Tokenizer
from nanoeuler_lib.training.checkpoint import PRETRAINED, load
from tools.notebooks.results import ROOT, save

FOLDER, HERE = ROOT / "_build" / "runtimes", Path(__file__).parent / "other_programs"
MODEL = "--dim 96 --heads 3 --kv-heads 1 --layers 4 --context 512 --predict 2"
TRAIN = "--batch 8 --steps 700 --warmup 50 --rate 5e-3 --sample-every 0 --valid-every 700 --save-every 700"
STRINGS, PROMPTS, TOKENS = 10_000, 8, 200


class Runtime(NamedTuple):
    """A program of the comparison: name in the table, format of its weights, script, and packages to install."""

    name: str
    form: str
    script: str
    packages: tuple[str, ...] = ()


RUNTIMES = (
    Runtime("the page's JavaScript", "arrays", "ask_page.js"),
    Runtime("transformers 4", "hf", "ask_transformers.py", ("transformers==4.57.6", "torch==2.9.1")),
    Runtime("transformers 5", "hf", "ask_transformers.py", ("transformers==5.24.0", "torch==2.13.0")),
    Runtime("llama.cpp", "gguf", "ask_llama_cpp.py", ("llama-cpp-python",)),
)


# ---- The request


def trained() -> Path:
    """Return the run to compare; train it if it does not exist yet."""
    run = FOLDER / "run"
    if run.exists():
        return run
    FOLDER.mkdir(parents=True, exist_ok=True)
    stories = (story.text for story in konigsberg.stories(8000, seed=34))
    (FOLDER / "stories.txt").write_text(SEPARATOR.join(stories) + "\n")
    words = f"--data {FOLDER / 'stories.txt'} --valid-fraction 0.01 --run {run} --quiet {MODEL} {TRAIN}"
    tokenizer = PRETRAINED / "konigsberg-small" / "tokenizer.json"
    command = [sys.executable, "-m", "nanoeuler_lib.command.cli", "train", "--tokenizer", str(tokenizer)]
    subprocess.run([*command, *words.split()], check=True)
    return run


def strings(count: int = STRINGS, seed: int = 34) -> list[str]:
    """Return hostile strings: characters of all Unicode tables, spaces, digits, special tokens, joined characters."""
    rng = np.random.default_rng(seed)
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    pieces = (
        " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "'s", "'S", "don't", "1234567", "\u00bd", "\u0664\u0662",
        "\u200d", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301", "\ufeff", "\x00", END_OF_TEXT, "<|user|>",
        "<s>", "\u2581", "K\u00f6nigsberg", '"', "...",
    )  # fmt: skip
    common, found = [chr(c) for c in range(32, 127)], []
    for _ in range(count):
        kinds = rng.integers(0, 4, int(rng.integers(1, 24)))
        tables = (assigned, common, common, pieces)
        found.append("".join(tables[k][int(rng.integers(len(tables[k])))] for k in kinds))
    return found


def request(model: GPT, tokenizer: Tokenizer) -> dict:
    """Return a row of ids as long as the context, prompts, and the number of tokens to generate."""
    end, stories = tokenizer.special_tokens[END_OF_TEXT], list(konigsberg.stories(40, seed=36))
    row = [i for story in stories for i in (end, *tokenizer.encode(story.text).tolist())][: model.config.context]
    prompts = [[end, *tokenizer.encode(story.text).tolist()[:12]] for story in stories[:PROMPTS]]
    return {"row": row, "prompts": prompts, "tokens": TOKENS}


# ---- NumPy


def own_answer(model: GPT, tokenizer: Tokenizer, asked: dict, texts: list[str]) -> dict:
    """Return NumPy's answer: strings (ids of each), logits [T, V] of the row, greedy (ids of each text), margins.

    A margin is the difference of the two largest logits, for each generated token.
    """
    greedy, margins = [], []
    for prompt in asked["prompts"]:
        decoder, ids, margin = model.decoder(), list(prompt), []
        logits = decoder.feed(np.array(prompt))
        for _ in range(asked["tokens"]):
            second, first = np.sort(logits)[-2:]
            margin.append(float(first - second))
            ids.append(int(logits.argmax()))
            logits = decoder.feed(np.array(ids[-1:]))
        greedy.append(ids[len(prompt) :])
        margins.append(margin)
    return {
        "strings": [tokenizer.encode(text).tolist() for text in texts],
        "logits": model.logits(np.array([asked["row"]]))[0],
        "greedy": greedy,
        "margins": margins,
    }


def with_angles_in_float32(model: GPT, row: list[int]) -> np.ndarray:
    """Return how much float32 angles change the logits [T, V]: in float64, with float32 angles minus without."""
    config, found = model.config, []
    twin = GPT(config, type(model.params)(config, np.float64))
    twin.params.flat[...] = model.params.flat
    step = np.float32(config.rope_theta) ** (-np.arange(0, config.head_dim, 2, dtype=np.float32) / config.head_dim)
    angle = np.outer(np.arange(len(row), dtype=np.float32), step.astype(np.float32)).astype(np.float64)
    exact = reference.rope_tables
    for tables in (lambda time, width, theta: (np.cos(angle), np.sin(angle)), exact):
        twin._plan, reference.rope_tables = None, tables
        try:
            found.append(twin.logits(np.array([row]))[0])
        finally:
            reference.rope_tables = exact
    return found[0] - found[1]


def engine_answer(model: GPT, asked: dict) -> dict:
    """Return the engine's answer: the logits of its decoder, and greedy texts. The engine has no tokenizer."""
    made, greedy = engine.GPT(model.config, model.params), []
    for prompt in asked["prompts"]:
        decoder, ids = made.decoder(), list(prompt)
        logits = decoder.feed(np.array(prompt))
        for _ in range(asked["tokens"]):
            ids.append(int(logits.argmax()))
            logits = decoder.feed(np.array(ids[-1:]))
        greedy.append(ids[len(prompt) :])
    return {
        "version": f"on a {cuda.device()}",
        "logits": made.decoder().feed_all(np.array(asked["row"])),
        "greedy": greedy,
    }


# ---- The other programs


def prepared(runtime: Runtime, run: Path) -> Path:
    """Export the run in the format that a program reads, and return the path."""
    out = FOLDER / {"hf": "hf", "gguf": "model.gguf", "arrays": "arrays"}[runtime.form]
    if runtime.form == "gguf":
        out.unlink(missing_ok=True)
    else:
        shutil.rmtree(out, ignore_errors=True)
    if runtime.form != "arrays":
        formats.export(run, runtime.form, out)
        return out
    out.mkdir()
    checkpoint = load(run)
    config, V = checkpoint.model.config, checkpoint.model.config.vocab_size
    tensors = {n: w[:, :V] if n == "heads" else w for n, w in checkpoint.model.params.items()}
    spec = {
        "byteOrder": [one[0] for one in checkpoint.tokenizer.token_bytes[:256]],
        "merges": [list(pair) for pair in checkpoint.tokenizer.merges],
        "specials": list(checkpoint.tokenizer.special_tokens),
    }
    sizes = [[name, w.size] for name, w in tensors.items()]
    words = {"config": config.to_dict(), "tokenizer": spec, "shapes": sizes}
    (out / "model.json").write_text(json.dumps(words))
    (out / "weights.bin").write_bytes(b"".join(np.ascontiguousarray(w).tobytes() for w in tensors.values()))
    return out


def interpreter(runtime: Runtime) -> list[str]:
    """Return the command that runs a program's script; make its environment if it does not exist yet."""
    if not runtime.packages:
        node = shutil.which("node")
        if node is None:
            raise FileNotFoundError("node is not installed")
        return [node]
    home = FOLDER / "environments" / runtime.name.replace(" ", "-")
    if not (home / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        for package in runtime.packages[::-1]:  # PyTorch first, by itself: see `make oracle`
            subprocess.run([home / "bin/python", "-m", "pip", "install", "--quiet", package, "numpy"], check=True)
        (home / "ready").touch()
    return [str(home / "bin/python")]


def answer(runtime: Runtime, run: Path) -> dict:
    """Return a program's answer to the request in FOLDER.

    Raises OSError or CalledProcessError if the program cannot run.
    """
    out = FOLDER / "answers" / runtime.name.replace(" ", "-")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [*interpreter(runtime), str(HERE / runtime.script), str(prepared(runtime, run))]
    subprocess.run([*command, str(FOLDER / "request.json"), str(out)], check=True)
    found = json.loads((out / "answer.json").read_text())
    raw = out / "logits.bin"
    found["logits"] = np.fromfile(raw, np.float32) if raw.exists() else np.load(out / "logits.npy")
    return found


def compared(found: dict, own: dict, texts: list[str], turned: np.ndarray) -> dict:
    """Return a row of the table: strings with equal ids, differences of logits, and where greedy texts differ."""
    logits, size = found["logits"].reshape(own["logits"].shape), float(np.abs(own["logits"]).max())
    apart = np.abs(logits - own["logits"]).max(axis=1)
    most, parted = 2 * float(apart.max()), []
    for theirs, ours, margins in zip(found["greedy"], own["greedy"], own["margins"], strict=True):
        at = next((i for i, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]), None)
        if at is not None:
            parted.append({"token": at, "margin": round(margins[at], 7), "close": margins[at] < most})
    others = [t for t, a, b in zip(texts, found["strings"], own["strings"], strict=True) if a != b]
    return {
        "version": found["version"],
        "strings": len(texts),
        "equal_strings": len(texts) - len(others),
        "others": others[:20],
        "largest_logit": round(size, 3),
        "apart": float(f"{apart.max():.2e}"),
        "apart_with_these_angles": float(f"{np.abs(logits - own['logits'] - turned).max():.2e}"),
        "apart_by_position": {str(t): float(f"{apart[t]:.2e}") for t in (0, 10, 100, len(apart) - 1)},
        "texts": len(found["greedy"]),
        "parted": parted,
    }


def main_engine(run: str) -> None:
    """Store only the engine's row, because a machine with a GPU seldom has the other programs."""
    checkpoint = load(Path(run))
    asked = request(checkpoint.model, checkpoint.tokenizer)
    own = own_answer(checkpoint.model, checkpoint.tokenizer, asked, [])
    found = engine_answer(checkpoint.model, asked) | {"strings": []}
    row = compared(found, own, [], with_angles_in_float32(checkpoint.model, asked["row"]))
    row = {"name": "the engine's kernels"} | row
    print(row)
    save("runtimes_engine", {"device": cuda.device(), "greedy": TOKENS}, [row])


def main(run: str | None = None) -> None:
    path = Path(run) if run else trained()
    checkpoint, texts = load(path), strings()
    asked = request(checkpoint.model, checkpoint.tokenizer)
    (FOLDER / "request.json").write_text(json.dumps(asked))
    (FOLDER / "strings.json").write_text(json.dumps(texts))
    own = own_answer(checkpoint.model, checkpoint.tokenizer, asked, texts)
    turned = with_angles_in_float32(checkpoint.model, asked["row"])
    rows = []
    print("| program | equal ids | largest difference of a logit | greedy texts that differ |\n|:--|--:|--:|:--|")
    for runtime in RUNTIMES:
        try:
            row = {"name": runtime.name} | compared(answer(runtime, path), own, texts, turned)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"| {runtime.name} | did not run: {error} | | |")
            continue
        rows.append(row)
        parted = ", ".join(f"at {p['token']}{'' if p['close'] else ' (not close)'}" for p in row["parted"])
        equal, apart = (
            f"{row['equal_strings']:,} of {row['strings']:,}",
            f"{row['apart']:.0e} of {row['largest_logit']:.0f}",
        )
        name, greedy = f"{runtime.name}, {row['version']}", f"{len(row['parted'])} of {row['texts']} {parted}"
        print(f"| {name} | {equal} | {apart} | {greedy} |", flush=True)
    moved = float(f"{np.abs(turned).max():.2e}")
    print(f"float32 angles change our logits by up to {moved:.0e}")
    train = {} if checkpoint.train is None else checkpoint.train.to_dict()
    config = {
        "model": checkpoint.model.config.to_dict(),
        "train": train,
        "angles_in_float32": moved,
        "greedy": TOKENS,
    }
    if len(rows) < len(RUNTIMES):
        print("not stored: data/results/runtimes.json needs the answers of all programs")
    else:
        save("runtimes", config, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        main_engine(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
