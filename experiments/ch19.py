"""Chapter 19: train sweeps of models over width and length, with a known floor, and fit scaling laws to them.

    python -m experiments.ch19 [SECTION ...] [--out runs/ch19] [--gpus 1] [--processes 4]

Sections, in order: pilot (length and noise), batches, tune (the learning rate), wide, small (eight seeds of a small
grid), rates (wrong ones), transfer, texts (books and web in $NANOEULER_DATA, one epoch), simulate (a thousand sweeps
from the law fitted to `wide`), collect (data/results/ch19.json), shares (adds to that file a thousand sweeps in which
all runs scatter by the same share; needs no other file). Without a section, all are run. Runs are stored in
rows-SECTION.jsonl and are not repeated, so that a stopped sweep continues. --gpus 0: on the CPU, which takes more than
a day.
"""

import argparse
import json
import multiprocessing
import os
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from experiments import ch19_runs
from experiments.ch19_runs import RULES, Run
from nanoeuler_book import scaling
from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.model import parameter_shapes
from tools.notebooks.results import FOLDER, commit, machine, save

STORIES = 560_000
MEGA = 1_000_000
WIDTHS, LENGTHS = (32, 64, 96, 128, 192, 256), tuple(n * MEGA for n in (1.5, 3, 6, 12, 24, 48))
SMALL_WIDTHS, SMALL_LENGTHS, SWEEPS = WIDTHS[:4], LENGTHS[:4], range(100, 108)
SEEDS = range(3)
RATES, BATCHES = tuple(1e-3 * 2**k for k in range(6)), (16, 32, 64)
TUNED, TUNE_WIDTHS = 6 * MEGA, (32, 96, 192, 256)  # tokens and widths of the runs that choose the rate
TRANSFER_RATES = tuple(1e-3 * 2**k for k in range(-1, 6))
TEXT_WIDTHS, TEXT_LENGTHS = (32, 64, 128, 256), LENGTHS[:4]
TEXTS = {
    "books": ("books_core_train.txt.xz", "books_val.txt.xz"),
    "web": ("web_featured_train.txt.xz", "web_val.txt.xz"),
}
TEXT_BYTES, VALID_BYTES = 36 * MEGA, 400_000
SIMULATED, SLOW, DRAWS = 1000, 300, 200  # sweeps; those that the slow fit gets, too; draws of a bootstrap


def rate_line(rows: list[dict]) -> np.polynomial.Polynomial:
    """What `tune` found: log rate as a line in log width.

    Of each width the bottom of a parabola through the best rate and its two neighbours, of the mean over seeds.
    """
    tried, best = {}, {}
    for row in rows:
        tried.setdefault(row["width"], {}).setdefault(row["rate"], []).append(row.get("excess", np.inf))
    for width, by_rate in tried.items():
        rates = np.array(sorted(by_rate))
        losses = np.array([np.mean(by_rate[rate]) for rate in rates])
        i = int(np.clip(losses.argmin(), 1, len(losses) - 2))
        second, first, _ = np.polyfit(np.log(rates[i - 1 : i + 2]), losses[i - 1 : i + 2], 2)
        bottom = -first / (2 * second) if second > 0 else np.log(rates[losses.argmin()])
        best[width] = float(np.clip(bottom, *np.log(rates[[0, -1]])))
    return np.polynomial.Polynomial.fit(np.log(list(best)), list(best.values()), 1).convert()


def tuned(folder: Path, width: int) -> dict:
    """The rate for a width."""
    return dict(rate=float(f"{np.exp(rate_line(rows_of(folder, 'tune'))(np.log(width))):.3g}"))


def runs_of(section: str, folder: Path) -> list[Run]:
    """The runs of a section, the longest first."""
    if section == "pilot":
        runs = [Run(128, n, 4e-3, seed=seed, rate_end=0.1) for n in LENGTHS for seed in range(2)]
    elif section == "batches":
        runs = [Run(w, TUNED, rate, batch, rate_end=0.1) for w in TUNE_WIDTHS for rate in RATES for batch in BATCHES]
    elif section == "tune":
        runs = [Run(w, TUNED, rate, seed=seed) for w in TUNE_WIDTHS for rate in RATES for seed in range(2)]
    elif section == "wide":
        runs = [Run(w, n, seed=seed, **tuned(folder, w)) for w in WIDTHS for n in LENGTHS for seed in SEEDS]
    elif section == "small":
        runs = [
            Run(w, n, seed=seed, **tuned(folder, w)) for w in SMALL_WIDTHS for n in SMALL_LENGTHS for seed in SWEEPS
        ]
    elif section == "rates":  # those of the narrowest and of the widest, for all
        runs = [
            Run(w, n, seed=0, **tuned(folder, of))
            for of in (WIDTHS[0], WIDTHS[-1])
            for w in WIDTHS
            for n in LENGTHS[:5]
        ]
    elif section == "transfer":
        runs = [
            Run(w, TUNED // 2, rate, seed=seed, rule=rule)
            for w in (32, 64, 128, 256) for rate in TRANSFER_RATES for seed in range(2) for rule in RULES
        ]  # fmt: skip
    else:
        runs = [
            Run(w, n, text=text, seed=seed, **tuned(folder, w))
            for text in TEXTS for w in TEXT_WIDTHS for n in TEXT_LENGTHS for seed in range(2)
        ]  # fmt: skip
    return sorted(
        {replace(run, tokens=int(run.tokens)): None for run in runs},
        key=lambda run: (run.seed if section == "small" else 0, -run.tokens * run.width),
    )


COMPUTED = "simulate", "collect", "shares"
TRAINED = "pilot", "batches", "tune", "wide", "small", "rates", "transfer", "texts"


def rows_of(folder: Path, section: str) -> list[dict]:
    path = folder / f"rows-{section}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def sweep(section: str, folder: Path, gpus: int, processes: int, seconds: float) -> bool:
    """Make the runs of a section that are missing, for so many seconds at most; returns whether all are there."""
    there = {Run(**{name: row[name] for name in Run.__dataclass_fields__}) for row in rows_of(folder, section)}
    missing = [run for run in runs_of(section, folder) if run not in there]
    if section == "texts" and missing:
        held = Path(os.environ.get("NANOEULER_DATA", ""))
        for name, (train, valid) in TEXTS.items():
            if not (folder / f"{name}.npy").exists() and not (held / name / train).exists():
                print(f"{held / name / train} is missing: texts are left out; NANOEULER_DATA names their folder")
                return True
            ch19_runs.read_text(folder, name, held / name / train, held / name / valid, TEXT_BYTES, VALID_BYTES)
    else:
        ch19_runs.draw_stories(folder, STORIES, processes)
    began, context = time.perf_counter(), multiprocessing.get_context("spawn")
    done, along = 0, LENGTHS if section == "pilot" else ()
    with (
        context.Pool(processes, ch19_runs.begin_process, (gpus, context.Value("i", 0))) as pool,
        open(folder / f"rows-{section}.jsonl", "a", encoding="utf-8") as file,
    ):
        for row in pool.imap_unordered(ch19_runs.work, [(run, folder, along) for run in missing]):
            file.write(json.dumps(row) + "\n")
            file.flush()
            done += 1
            if time.perf_counter() - began > seconds:
                pool.terminate()
                break
    print(f"{section}: {done} of {len(missing)} runs in {time.perf_counter() - began:.0f} s", flush=True)
    return done == len(missing)


# ---- What fits say


def runs_at(rows: list[dict], floor: float, share: float) -> scaling.Runs:
    """Rows as runs of a fit, which knows that seeds scatter by a share of the excess, and no floor."""
    loss = floor + np.array([row["excess"] for row in rows])
    return scaling.reweighted(scaling.Runs(*sizes(rows), loss, loss), share)


def sizes(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Parameters of rows, and the tokens that they read."""
    return np.array([parameters(row)["parameters"] for row in rows]), np.array([tokens(row) for row in rows])


def parameters(row: dict) -> dict[str, int]:
    shape = Run(row["width"], 0, 1.0).shape
    sizes = {name: int(np.prod(size)) for name, size in parameter_shapes(shape).items()}
    return {
        "parameters": sum(sizes.values()),
        "inside": sum(n for name, n in sizes.items() if name.startswith("layers")),
    }


def tokens(row: dict) -> float:
    read = Run(**{name: row[name] for name in Run.__dataclass_fields__})
    return float(row["steps"] * row["batch"] * read.row_tokens)


def relative_noise(rows: list[dict]) -> float:
    """The standard deviation of log excess among seeds of the same run, pooled."""
    several = [g for g in by_run(rows).values() if len(g) > 1]
    return float(np.sqrt(sum(np.var(g, ddof=1) * (len(g) - 1) for g in several) / sum(len(g) - 1 for g in several)))


def by_run(rows: list[dict]) -> dict[tuple[int, int], list[float]]:
    """The log excess of the seeds of each width and length."""
    groups = {}
    for row in rows:
        groups.setdefault((row["width"], row["tokens"]), []).append(np.log(row["excess"]))
    return groups


METHODS = "Huber, bootstrap", "variable projection, profile", "variable projection, bootstrap"


def estimates(
    runs: scaling.Runs, rng: np.random.Generator, slow: bool = True, draws: int = DRAWS
) -> dict[str, tuple[float, float, float]]:
    """E and its 95% interval by each of METHODS. slow: by the first, too."""
    found = scaling.fit(runs)
    drawn = scaling.bootstrap(runs, draws, rng)[:, 0].clip(0)
    estimated = {
        METHODS[1]: (max(0.0, found.law().floor), *found.interval()),
        METHODS[2]: (max(0.0, found.law().floor), *map(float, np.percentile(drawn, [2.5, 97.5]))),
    }
    if not slow:
        return estimated
    published = scaling.huber(runs)
    n, floors = len(runs.loss), []
    while len(floors) < draws // 4:  # each is a walk of its own
        drawn = rng.integers(n, size=n)
        if len(set(drawn.tolist())) >= 6:
            floors.append(scaling.huber(runs.take(drawn), starts=[published]).floor)
    return estimated | {METHODS[0]: (published.floor, *map(float, np.percentile(floors, [2.5, 97.5])))}


def simulated(task: tuple[scaling.PowerLaw, scaling.Runs, float, int]) -> dict | None:
    """One sweep from a law with lognormal noise, and what each method says of E; None where no law falls as it does.

    design: runs whose spread is that of the log excess; share: what the fit takes for it, of all.
    """
    law, design, share, seed = task
    rng = np.random.default_rng([19, seed])
    x = (law(design.parameters, design.tokens) - law.floor) * np.exp(design.spread * rng.normal(size=len(design.loss)))
    try:
        return estimates(scaling.reweighted(design._replace(loss=law.floor + x), share), rng, seed < SLOW)
    except NanoEulerError:
        return None


def table(found: list[dict | None], truth: float) -> list[dict]:
    """Of each method: mean error of E, median width, coverage and mean interval score, of sweeps that have a fit."""
    rows = []
    for name in METHODS:
        there = [one[name] for one in found if one is not None and name in one]
        if not there:
            continue
        value, low, high = np.array(there).T
        inside = (low <= truth) & (truth <= high)
        scores = [scaling.interval_score(a, b, truth) for a, b in zip(low, high, strict=True)]
        row = dict(
            method=name,
            sweeps=len(there),
            refused=found.count(None),
            bias=value.mean() - truth,
            spread=value.std(ddof=1),
        )
        row |= dict(width=np.median(high - low), coverage=inside.mean(), score=np.mean(scores))
        rows.append({key: x if key in ("method", "sweeps", "refused") else float(x) for key, x in row.items()})
    return rows


def simulate(folder: Path, processes: int) -> None:
    """A thousand sweeps of either grid from the law that `wide` fits; each run scatters as its own seeds do."""
    rows, floor = rows_of(folder, "wide"), ch19_runs.source_in(folder).floor
    share = relative_noise(rows)
    law = scaling.fit(runs_at(rows, floor, share)).law()._replace(floor=floor)
    scatter = {run: np.std(logs, ddof=1) for run, logs in by_run(rows + rows_of(folder, "small")).items()}
    found = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, widths, lengths in (("small", SMALL_WIDTHS, SMALL_LENGTHS), ("wide", WIDTHS, LENGTHS)):
            grid = [Run(w, int(n), 1.0) for w in widths for n in lengths]
            rows = [asdict(run) | dict(steps=run.settings.steps) for run in grid]
            spread = np.array([scatter[run.width, run.tokens] for run in grid])
            design = scaling.Runs(*sizes(rows), np.ones(len(grid)), spread)
            sweeps = pool.map(simulated, [(law, design, share, seed) for seed in range(SIMULATED)], chunksize=5)
            found[name] = table(sweeps, floor)
    stored = dict(law=law._asdict(), noise=share, tables=found)
    (folder / "simulated.json").write_text(json.dumps(stored))


def one_share(task: tuple[scaling.PowerLaw, scaling.Runs, float, int]) -> tuple[float, float, float]:
    """The profile interval of a simulated sweep whose runs scatter as the fit assumes, and its reduced chi-square."""
    law, design, share, seed = task
    noise = np.random.default_rng([19, seed]).normal(size=len(design.loss))
    x = (law(design.parameters, design.tokens) - law.floor) * np.exp(share * noise)
    found = scaling.fit(scaling.reweighted(design._replace(loss=law.floor + x), share))
    return *found.interval(), float(found.rss.min()) / found.freedom


def shares(processes: int) -> None:
    """Simulate `simulate`'s sweeps with one share of noise for all runs, and add the results to the stored file.

    The rows, and the machine, date and commit that made them, stay as they are.
    """
    path = FOLDER / "ch19.json"
    stored = json.loads(path.read_text("utf-8"))
    config, rows = stored["config"], stored["rows"]
    law, share = scaling.PowerLaw(**config["law"]), config["noise"]
    config["one_share"] = {}
    for name, seed in (("small", SWEEPS[0]), ("wide", 0)):
        grid = [row for row in rows if row["section"] == name and row["seed"] == seed]
        design = scaling.Runs(*sizes(grid), np.ones(len(grid)), np.ones(len(grid)))
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            found = pool.map(one_share, [(law, design, share, seed) for seed in range(SIMULATED)], chunksize=20)
        low, high, left = np.array(found).T
        config["one_share"][name] = dict(
            sweeps=SIMULATED,
            width=float(np.median(high - low)),
            coverage=float(((low <= law.floor) & (law.floor <= high)).mean()),
            left=[float(x) for x in np.percentile(left, [2.5, 50, 97.5])],
        )
    config["elsewhere"]["one_share"] = dict(date=datetime.now(UTC).date().isoformat(), commit=commit(), **machine())
    path.write_text(json.dumps(stored, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def collect(folder: Path) -> None:
    """All rows, with how much was read; of `wide` the parts, as lists in the order of `config["parts"]`.

    A section that was made on another machine, or from another commit, than the others has a machine-SECTION.json,
    which goes into `config["elsewhere"]`.
    """
    source, rows = ch19_runs.source_in(folder), []
    for section in TRAINED:
        for row in rows_of(folder, section):
            parts = row.pop("parts", {})
            if section == "wide":
                row["parts"] = [parts[name] for name in source.parts]
            rows.append(dict(section=section) | row | parameters(row) | dict(read=tokens(row)))
    config = dict(
        layers=ch19_runs.LAYERS, head=ch19_runs.HEAD, context=ch19_runs.CONTEXT, floor=source.floor, parts=source.parts,
        bytes=source.bytes, test_stories=len(source.tokens), warmup=ch19_runs.WARMUP,
        rate=dict(zip(("constant", "power"), rate_line(rows_of(folder, "tune")).coef.tolist(), strict=True)),
        elsewhere={
            section: json.loads(path.read_text("utf-8"))
            for section in TRAINED if (path := folder / f"machine-{section}.json").exists()
        },
    )  # fmt: skip
    made_on = folder / "machine.json"  # of the runs, where it is not this one
    save(
        "ch19",
        config | json.loads((folder / "simulated.json").read_text("utf-8")),
        rows,
        made_on=json.loads(made_on.read_text("utf-8")) if made_on.exists() else None,
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("sections", nargs="*", choices=[[], *TRAINED, *COMPUTED])
    arguments.add_argument("--out", type=Path, default=Path("runs/ch19"))
    arguments.add_argument("--gpus", type=int, default=0)
    arguments.add_argument("--processes", type=int, default=os.cpu_count())
    arguments.add_argument("--seconds", type=float, default=np.inf)
    args = arguments.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for section in args.sections or (*TRAINED, *COMPUTED):
        if section == "simulate":
            simulate(args.out, args.processes)
        elif section == "collect":
            collect(args.out)
        elif section == "shares":
            shares(args.processes)
        elif not sweep(section, args.out, args.gpus, args.processes, args.seconds - (time.perf_counter() - began)):
            break


if __name__ == "__main__":
    main()
