"""Measure what pretraining `base` on a GPU achieves, in addition to the runs themselves (chapter 32); needs a GPU.

    python -m benchmarks.gpu_pretrain rates  --data SHARDS --valid SHARDS ...   # AdamW at five learning rates
    python -m benchmarks.gpu_pretrain parity --data SHARDS --valid SHARDS ... --rate X   # the same steps in PyTorch
    python -m benchmarks.gpu_pretrain known  --data SHARDS --valid SHARDS ... --run RUN  # memorised text; he or she
    python -m benchmarks.gpu_pretrain says   --run RUN                          # samples for fixed prompts
    python -m benchmarks.gpu_pretrain replies --run RUN --examples FILE         # replies to held-out instructions
    python -m benchmarks.gpu_pretrain squeezed --valid FILE.txt ...             # compressors; needs no GPU
    python -m benchmarks.gpu_pretrain collect --from FOLDER                     # data/results/ch32.json from all

Each section adds its rows to rows-SECTION.jsonl in the folder `--out`, by default the current one; `collect` joins the
rows and the logs of the runs.

rates, parity: STEPS steps of ROWS texts from the same initial weights on the same batches, in bfloat16, with the
schedule of a complete run of this length; then bits per byte of whole validation sets. parity: NanoEuler scores
PyTorch's weights, so that only the training differs. known: for WINDOWS windows of each set, how many of 50 tokens the
model continues exactly after the first 50 (greedily), and its bits per token there. replies: greedy and sampled replies
to a random sample of the held-out examples; `evaluate.fault` reports errors in their form.
"""

import argparse
import bz2
import json
import lzma
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np

from nanoeuler_book import evaluate
from nanoeuler_lib import engine
from nanoeuler_lib.config import SFT_DATA_SEED, TrainConfig, preset
from nanoeuler_lib.engine.device import choose
from nanoeuler_lib.generation.chat import Chat
from nanoeuler_lib.generation.generate import generate
from nanoeuler_lib.model import optim
from nanoeuler_lib.text import sft_data, shards
from nanoeuler_lib.text.tokenizer import END_OF_TEXT
from nanoeuler_lib.training import checkpoint, datasets, sft, train
from tools.notebooks.results import FOLDER, save

RATES = [3e-4, 6e-4, 1.2e-3, 2.4e-3, 4.8e-3]
STEPS, ROWS, EVERY = 1000, 16, 20  # steps; texts per batch; steps per stored mean of the loss
WINDOWS, HALF = 2000, 50
PROMPTS = ["Alessandro eat a", "It was a dark and", "The city of Königsberg", "The cat", ""]
PEOPLE = """doctor nurse teacher engineer secretary professor farmer soldier cook king servant student lawyer judge
    writer dancer""".split()


def dataset_of(options, config):
    """Return the dataset of the options, and the state with which a run on it begins."""
    parts = shards.Shards(options.data), [shards.Shards(one) for one in options.valid]
    found = train.fresh(Path("."), preset(options.preset), config, parts[0].tokenizer, {"workers": 1})
    return datasets.ShardDataset(*parts, found), found


def curve(losses: list[float]) -> list[float]:
    """Return the means of EVERY losses each."""
    return [round(float(np.mean(losses[i : i + EVERY])), 4) for i in range(0, len(losses), EVERY)]


def where_of(options):
    return "cpu" if options.device == "checked" else "gpu"


def settings(rate: float, steps: int) -> TrainConfig:
    return TrainConfig(steps=steps, batch=ROWS, rate=rate, warmup=min(100, steps // 10))


def ours(dataset, found, config, where, precision):
    """Return NanoEuler's losses, over all heads, and its model after the last step."""
    made = engine.GPT(found.model.config, found.model.params, precision=precision, where=where)
    take, losses = engine.Step(made, engine.AdamW(made.config, config, where), config, config.batch), []
    for step in range(config.steps):
        losses.append(float(take(*dataset.batch(step, config.batch))[0] @ take.weights))
    return losses, made


def theirs(dataset, found, config, where, precision):
    """Return PyTorch's losses, and a NanoEuler model with PyTorch's weights after the last step."""
    from benchmarks.torch_peer import Trainer

    shape, losses = found.model.config, []
    trainer = Trainer(shape, found.model.params, config, False, "cuda" if where == "gpu" else "cpu", precision)
    for step in range(config.steps):
        losses.append(trainer.step(*dataset.batch(step, config.batch), optim.learning_rate(step, config)))
    return losses, engine.GPT(shape, trainer.model.params(), precision=precision, where=where)


def trial(options, config: TrainConfig, way) -> dict:
    """Train on the options' shards by `ours` or `theirs`; return losses, bits per byte of each set, and seconds."""
    began = time.perf_counter()
    dataset, found = dataset_of(options, config)
    losses, made = way(dataset, found, config, where_of(options), options.precision)
    row = dict(rate=config.rate, steps=config.steps, rows=config.batch, losses=curve(losses))
    return row | dict(**dataset.validation(made), seconds=round(time.perf_counter() - began, 2))


def rates(options):
    for rate in RATES if options.rate is None else [options.rate]:
        row = dict(what="rate", optimiser="AdamW")
        yield row | trial(options, settings(rate, options.steps), ours)


def parity(options):
    for who, way in (("NanoEuler", ours), ("PyTorch", theirs)):
        yield dict(what="parity", who=who) | trial(options, settings(options.rate, options.steps), way)


def loaded(options):
    found = checkpoint.load(options.run)
    return found, choose(options.device, options.precision, found.model.config).place(found.model)


def known(options):
    found, made = loaded(options)
    for folder in (options.data, *options.valid):
        part, rng = shards.Shards(folder), np.random.default_rng(0)
        starts = np.sort(rng.integers(0, part.tokens - 2 * HALF, options.windows))
        windows = [part.read(int(at), int(at) + 2 * HALF).astype(np.int64) for at in starts]
        counted = np.arange(2 * HALF) >= HALF
        same = sft.greedy_match(made, [sft_data.Encoded(ids, counted) for ids in windows])
        nats = []
        for i in range(0, len(windows), 16):
            inputs, targets = sft_data.rows(
                [sft_data.Encoded(ids, counted) for ids in windows[i : i + 16]], 2 * HALF - 1, 1
            )
            of_each = made.losses(inputs, targets[..., 0]).sum(axis=1, dtype=np.float64)
            nats += of_each.tolist()
        bits = np.array(nats) / np.log(2) / HALF
        for side, name in ((starts < options.border, "before"), (starts >= options.border, "after")):
            if side.any():
                yield dict(what="known", set=part.name, border=options.border, side=name, windows=int(side.sum()),
                           same=int(same[side].sum()), bits_per_token=round(float(bits[side].mean()), 4))  # fmt: skip
    tokenizer, end = found.tokenizer, found.tokenizer.special_tokens[END_OF_TEXT]
    words = [int(tokenizer.encode(word)[0]) for word in (" he", " she")]
    for who in PEOPLE:
        ids = np.array([[end, *tokenizer.encode(f"The {who} was late again, because").tolist()]])
        logits = made.logits(ids)[0, -1].astype(np.float64)
        yield dict(what="he or she", who=who, bits=round(float(logits[words[0]] - logits[words[1]]) / np.log(2), 3))


def says(options):
    found, made = loaded(options)
    for prompt in PROMPTS:
        for temperature in (0.0, 0.8):
            began = time.perf_counter()
            text = generate(made, found.tokenizer, prompt, 150, temperature=temperature, top_p=0.95, seed=1)
            tokens = len(found.tokenizer.encode(text))
            yield dict(what="sample", step=found.step, prompt=prompt, temperature=temperature, text=text,
                       tokens=tokens, seconds=round(time.perf_counter() - began, 3))  # fmt: skip


def replies(options):
    found, made = loaded(options)
    _, held_out, template = sft.examples_of(options.examples, 0, SFT_DATA_SEED, options.valid_fraction)
    room = found.model.config.context
    fitting = [e[0] for e in held_out if len(sft_data.encode(e, found.tokenizer, room + 1).ids) > 1]
    chosen = np.random.default_rng(0).permutation(len(fitting))[: options.count]
    for name, how in (
        ("greedy", dict(temperature=0.0)),
        ("sampled", dict(temperature=0.7, top_p=0.9)),
        ("warm", dict(temperature=1.0, top_p=0.9)),
    ):
        chat, faults, said, tokens = Chat(made, found.tokenizer), Counter(), [], 0
        began = time.perf_counter()
        for number, at in enumerate(chosen):
            prompt, wanted = fitting[at]
            chat.reset()
            reply = "".join(chat.reply(prompt, room, number, **how))
            wrong = evaluate.fault(reply, chat.ended)
            faults[wrong or "none"] += 1
            tokens += len(found.tokenizer.encode(reply))
            said.append(dict(prompt=prompt, reply=reply, wrong=wrong, people=len(wanted)))
        shown = sorted(said, key=lambda one: one["wrong"] is None)[:20]  # `collect` omits the prompts
        yield dict(what="replies", run=Path(options.run).name, template=template, how=name, **how, count=len(chosen),
                   faults=dict(faults), tokens=tokens, seconds=round(time.perf_counter() - began, 2),
                   median_bytes=[float(np.median([len(one["reply"].encode()) for one in said])),
                                 float(np.median([one["people"] for one in said]))], shown=shown)  # fmt: skip


def squeezed(options):
    """Yield the bits per byte of each set's text, compressed as a whole and by itself."""
    texts = {Path(one).stem: Path(one).read_bytes() for one in options.valid}
    for who, shorten in (("zlib", zlib.compress), ("bzip2", bz2.compress), ("xz", lzma.compress)):
        bits = {name: round(8 * len(shorten(text)) / len(text), 4) for name, text in texts.items()}
        yield dict(what="compressor", who=who, bits_per_byte=bits)


def run_row(file: Path) -> dict:
    """Return a row from a run's log R.log.jsonl and R.run.json: 400 means of the loss, the rest unchanged."""
    log = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [entry for entry in log if "loss" in entry]
    part = max(1, len(steps) // 400)
    means = [steps[i : i + part] for i in range(0, len(steps), part)]
    told = json.loads(file.with_name(file.name.replace(".log.jsonl", ".run.json")).read_text())
    told["data"] = {k: v for k, v in told["data"].items() if isinstance(v, int) or "fingerprint" in k}
    return dict(
        what="run", run=file.name.split(".")[0], about=told,
        curve=[[few[-1]["step"], round(float(np.mean([e["loss"] for e in few])), 4)] for few in means],
        later=[round(float(np.mean([e["later"][-1] for e in few])), 4) for few in means],
        step_seconds=round(sum(e["seconds"] for e in steps), 2),
        step_median=float(np.median([e["seconds"] for e in steps])),
        valid=[e for e in log if "valid_bits_per_byte" in e],
        samples=[e for e in log if "sample" in e], warnings=[e for e in log if "warning" in e],
    )  # fmt: skip


def collect(options):
    """Write data/results/ch32.json from a folder: its config.json, the rows of the sections, and the files of each run.

    config.json contains the commands and the machine; run R has R.log.jsonl and R.run.json.
    """
    folder, rows = Path(options.source), []
    for file in sorted(folder.glob("**/rows*.jsonl")):
        rows += [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:  # the prompts are other people's texts
        if "shown" in row:
            row["shown"] = [{"reply": one["reply"], "wrong": one["wrong"]} for one in row["shown"]]
    rows += [run_row(file) for file in sorted(folder.glob("**/*.log.jsonl"))]
    config = json.loads((folder / "config.json").read_text())
    save("ch32", config, rows, FOLDER, config.pop("machine"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sections = dict(rates=rates, parity=parity, known=known, says=says, replies=replies, squeezed=squeezed)
    parser.add_argument("section", choices=[*sections, "collect"])
    parser.add_argument("--data")
    parser.add_argument("--valid", action="append", default=[])
    parser.add_argument("--run")
    parser.add_argument("--examples")
    parser.add_argument("--from", dest="source")
    parser.add_argument("--rate", type=float)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--windows", type=int, default=WINDOWS)
    parser.add_argument("--border", type=int, default=0, help="the token at which the second corpus begins")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--valid-fraction", type=float, default=0.1)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    if options.section == "collect":
        return collect(options)
    for row in sections[options.section](options):
        with open(options.out / f"rows-{options.section}.jsonl", "a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print({k: v for k, v in row.items() if k not in ("losses", "shown", "text")}, flush=True)


if __name__ == "__main__":
    main()
