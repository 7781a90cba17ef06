"""A run's report: a page with figures, its log as CSV, and a loss curve that a notebook redraws while a run trains."""

import csv
import io
import json
import math
import re
import time
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median

import matplotlib.pyplot as plt
from matplotlib import ticker

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import expect_new, expect_writable, from_json, markdown, one_line, printable, write_text
from nanoeuler_lib.training.monitor import MEASURES, WINDOW, measured, percent
from nanoeuler_lib.training.run_folder import read_log


def report(run: str | Path, out: str | Path | None = None) -> Path:
    """Write report.md, loss.png and layers.png about a run, finished or not, and return the path of the page.

    out: by default RUN/report. An imported run has no steps, so its page has no figures. Raises NanoEulerError if the
    run has no log or no step, a file is damaged, or `out` cannot be written.
    """
    run = Path(run)
    out = Path(out) if out is not None else run / "report"
    expect_writable(out / "report.md", parents=True)
    log, head, steps = read(run, imported=True)
    floor = head["data"].get("floor_bits_per_byte")
    floor = floor if isinstance(floor, (int, float)) else None
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures = (("loss.png", draw_loss(log, floor)), ("layers.png", draw_layers(log))) if steps else ()
        for name, figure in figures:
            figure.savefig(out / name)
            plt.close(figure)
    except OSError as error:
        raise NanoEulerError(f"{out}: cannot be written to ({error.strerror})") from None
    write_text(out / "report.md", _page(run, head, log, steps, floor))
    return out / "report.md"


def read(run: Path, imported: bool = False) -> tuple[list[dict], dict, list[dict]]:
    """Read a run: its log, the content of run.json, and the log entries that are steps.

    imported: also accept an imported run, which has no steps. Raises NanoEulerError if the run has no log or no step,
    or a file is damaged.
    """
    log, head = read_log(run), description(run / "run.json")
    steps = [entry for entry in log if "loss" in entry]
    if not steps and not (imported and head["data"].get("imported")):
        raise NanoEulerError(f"{run}: its log must have at least one step, got none")
    return log, head, steps


def write_csv(run: str | Path, file: str | Path) -> int:
    """Write the numbers of a run's log as CSV, one row per logged step, and return the number of rows.

    Each column's name has its unit. The file must not exist. Raises NanoEulerError as `report` does.
    """
    expect_new(file)
    log, _, _ = read(Path(run))
    rows, columns, unit = {}, {"step": None}, validations(log)[1]
    for entry in sorted(log, key=lambda entry: "loss" not in entry):  # the columns of the steps first
        numbers = dict(_numbers(entry, unit))
        columns |= numbers
        if numbers:
            rows.setdefault(entry["step"], {"step": entry["step"]}).update(numbers)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    write_text(file, text.getvalue())
    return len(rows)


def _numbers(entry, unit):
    """Yield the name, with its unit, and the value of each number of a log entry; unit: of the validation loss."""
    of_loss, part = loss_unit(unit), "" if "loss" in entry else "validation "
    names = {
        "loss": f"loss ({of_loss})", "rate": "learning rate", "norm": "gradient norm",
        "seconds": None if part else "time (s)", "tokens_per_second": "tokens per second",
        measured(entry): f"validation loss ({unit})", "valid_share": "validation data used (fraction)",
        "seen": "training data used (fraction)",
    }  # fmt: skip
    yield from ((names[name], value) for name, value in entry.items() if names.get(name))
    yield from ((f"loss of head {k} ({of_loss})", x) for k, x in enumerate(entry.get("later", ()), 1))
    yield from ((part + name, value) for name, value in entry.get("figures", {}).items())
    yield from ((f"validation loss, {name} ({unit})", bits) for name, bits in entry.get("valid_sets", {}).items())
    for name, (norm, ratio) in entry.get("groups", {}).items():
        yield from ((f"{name}: gradient norm", norm), (f"{name}: update size / weight size", ratio))


def description(file: Path) -> dict:
    """Read run.json: version, machine, model, train and data. Raises NanoEulerError if it cannot be read."""
    try:
        head = from_json(file.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise NanoEulerError(f"{file}: not readable as JSON ({error}), expected the description of a run") from None
    if not isinstance(head, dict) or not all(isinstance(head.get(key), dict) for key in ("model", "train", "data")):
        raise NanoEulerError(f"{file}: must have model, train and data: the file was edited")
    return head


def _page(run, head, log, steps, floor):
    if not steps:
        facts = {"imported from": head["data"].get("source"), "machine": head.get("machine")}
        rows = (f"| {name} | {markdown(value)} |" for name, value in facts.items())
        return "\n".join([f"# {markdown(run.resolve().name)}", "", "| | |", "|:--|:--|", *rows, "", *_settings(head)])
    parts = [
        [f"# {markdown(run.resolve().name)}", ""],
        _facts_table(head, log, steps, floor),
        ["![Loss and validation by step](loss.png)", ""],
        ["![Gradient norms and update sizes](layers.png)", ""],
        _warnings(log),
        _validation_table(log, floor),
        _samples(log),
        _settings(head),
    ]
    return "\n".join(line for part in parts for line in part)


def _facts_table(head, log, steps, floor):
    facts = [*_run_facts(head, log, steps), *_validation_facts(log, floor)]
    return ["| | |", "|:--|:--|", *(f"| {name} | {markdown(value)} |" for name, value in facts), ""]


def totals(log: list[dict], steps: list[dict]) -> tuple[float, float, float, float]:
    """Return tokens and seconds of a log's steps, their median tokens per second, and the seconds outside of them."""
    seconds, beside = (sum(entry.get("seconds", 0) for entry in log if ("loss" in entry) == of) for of in (True, False))
    return sum(map(tokens_of, steps)), seconds, median(entry["tokens_per_second"] for entry in steps), beside


def tokens_of(entry: dict) -> float:
    """Return the tokens of a logged step; 0 if the entry has no seconds."""
    return entry.get("seconds", 0) * entry["tokens_per_second"]


def progress(head: dict, steps: list[dict]) -> str:
    """Describe how many of its planned steps a run has taken, such as "3 of 5, unfinished"."""
    planned, done = head["train"].get("steps"), steps[-1]["step"]
    return f"{done} of {planned}" + ("" if done == planned else ", unfinished")


def _run_facts(head, log, steps):
    tokens, seconds, speed, beside = totals(log, steps)
    data = head["data"]
    sizes = [f"{data[key]} {key.removeprefix('train_')}" for key in data if key.startswith("train_")]
    yield "steps", progress(head, steps)
    yield "data", f"{data.get('source')}, {' and '.join(sizes)} to train on"
    seen = series(log, "seen")
    if seen and isinstance(data.get("reach"), int | float):
        yield (
            "rows",
            f"cover {percent(data['reach'])} of the training {data.get('unit')}; "
            f"{percent(seen[-1][1])} were used by step {seen[-1][0]}",
        )
    for step, change in series(log, "changed"):
        yield f"from step {step} on", change
    yield "machine", head.get("machine")
    yield ("throughput", f"{speed:,.0f} tokens per second (median); {tokens:,.0f} tokens in {seconds:,.0f} s of steps")
    if beside:
        yield "validation and samples", f"{beside:,.0f} s, {beside / (beside + seconds):.1%} of the time"
    yield "gradient norm", f"median {median(entry['norm'] for entry in steps):.3g}"


def _validation_facts(log, floor):
    valid, unit = validations(log)
    sets = series(log, "valid_sets")
    if not valid:
        return
    last = valid[-1][1]
    step, best = min(valid, key=lambda pair: pair[1])
    yield "validation loss", f"{last:.4f} {unit} at the end, {best:.4f} at best (step {step})"
    for name, bits in sets[-1][1].items() if sets else ():
        yield f"of {one_line(name, 60)}", f"{bits:.4f} bits per byte at the end"
    if floor is not None:
        yield "floor", f"{floor:.4f} bits per byte for the source itself; the model is {last - floor:.4f} above it"


def _warnings(log):
    warnings = [f"- {one_line(text, 2000)}" for _, text in series(log, "warning")]
    return ["## Warnings", "", *(warnings or ["None."]), ""]


def _validation_table(log, floor):
    valid, unit = validations(log)
    sets, figures = series(log, "valid_sets"), dict(series(log, "figures"))
    if not valid:
        return []
    names = list(sets[-1][1]) if sets else []
    sets, shares = dict(sets), dict(series(log, "valid_share"))
    beside = list(figures.get(valid[-1][0], {}))
    columns = ["step", unit] + ["above the floor"] * (floor is not None)
    columns += [markdown(name) for name in names]
    columns += ["of the text"] if shares else []
    columns += map(markdown, beside)
    lines = ["## Validation", "", f"| {' | '.join(columns)} |", "|" + "--:|" * len(columns)]
    for step, bits in valid:
        row = [f"{bits:.4f}"] + ([f"{bits - floor:.4f}"] if floor is not None else [])
        by_name = sets.get(step, {})
        row += [f"{by_name[name]:.4f}" if name in by_name else "" for name in names]
        row += [f"{shares.get(step, 1):.0%}"] if shares else []
        row += [f"{figures.get(step, {}).get(name, math.nan):.4g}" for name in beside]
        lines += [f"| {step} | {' | '.join(row)} |"]
    return [*lines, ""]


def _samples(log):
    samples = series(log, "sample")
    lines = ["## Samples", ""] if samples else []
    for step, text in samples:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        lines += [f"Step {step}:", "", f"{fence}text", printable(text.strip("\n")), fence, ""]
    return lines


def _settings(head):
    settings = json.dumps({key: head[key] for key in ("model", "train")}, indent=1)
    return ["## Settings", "", "```json", settings, "```", ""]


def validations(log: list[dict]) -> tuple[list[tuple[int, float]], str]:
    """Return the steps and values of the validation loss, and its unit."""
    name = next(filter(None, map(measured, log)), "valid_bits_per_byte")
    return series(log, name), MEASURES[name]


def loss_unit(unit: str) -> str:
    """Return the unit of the training loss of a run whose validation loss has this unit."""
    return "nats per token" if unit == "bits per byte" else unit


def smoothed(losses: list[float]) -> list[float]:
    """Return the mean of the `WINDOW` losses around each loss."""
    half = WINDOW // 2
    return [fmean(losses[max(0, i - half) : i + half + 1]) for i in range(len(losses))]


def series(log: list[dict], name: str) -> list[tuple]:
    """Return (step, value) for each log entry that has a value of this name."""
    return [(entry["step"], entry[name]) for entry in log if name in entry]


def draw_loss(log: list[dict], floor: float | None = None):
    """Draw the training and validation loss by step and return the figure; floor: bits per byte, drawn as a line."""
    figure, (upper, lower) = panels(2)
    steps = [entry for entry in log if "loss" in entry]
    x, y = [entry["step"] for entry in steps], [entry["loss"] for entry in steps]
    upper.plot(x, y, color="0.6", linewidth=0.6, label="each step")
    upper.plot(x, smoothed(y), label=f"mean of {WINDOW} steps")
    valid, unit = validations(log)
    upper.set(xlabel="step", ylabel=f"training loss, {loss_unit(unit)}")
    upper.legend()
    if valid:
        lower.plot(*zip(*valid), marker=".", label="validation")
        sets = series(log, "valid_sets")
        for name in sets[-1][1] if sets else ():
            points = [(step, bits[name]) for step, bits in sets if name in bits]
            lower.plot(*zip(*points), marker=".", linewidth=1, linestyle=":", label=one_line(name, 40))
        step, bits = valid[-1]
        lower.annotate(f"{bits:.3f}", (step, bits), (-2, 6), textcoords="offset points", ha="right", fontsize="small")
    if floor is not None:
        lower.axhline(floor, color="0.5", linestyle="--", label="floor: the source itself")
    lower.set(xlabel="step", ylabel=f"validation, {unit}")
    if valid and min(bits for _, bits in valid) > 0:
        log_scale(lower)
    if valid or floor is not None:
        lower.legend()
    return figure


def draw_layers(log: list[dict]):
    """Draw each layer group's gradient norm and update-to-weight ratio by step, and return the figure."""
    figure, (upper, lower) = panels(2)
    watched = [entry for entry in log if "groups" in entry]
    names = list(watched[0]["groups"]) if watched else []
    markers = "os^vD*<>PX"
    for number, name in enumerate(names):
        x = [entry["step"] for entry in watched if name in entry["groups"]]
        for axes, part in ((upper, 0), (lower, 1)):
            y = [entry["groups"][name][part] or math.nan for entry in watched if name in entry["groups"]]
            axes.plot(x, y, marker=markers[number % len(markers)], markersize=3, linewidth=1, label=name)
    for axes, label in ((upper, "gradient norm"), (lower, "update size / weight size")):
        axes.set(xlabel="step", ylabel=label)
        if names:
            log_scale(axes)
    if names:
        lower.legend(fontsize=8, ncols=3)
    return figure


def log_scale(axes: plt.Axes) -> None:
    """Make an axis logarithmic, with enough labels to read off values even if they span a small range."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high > 1000 * low:
        return  # powers of ten
    if high < 6 * low:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(6))
    else:
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def panels(count: int, above: float = 0.0) -> tuple[plt.Figure, list[plt.Axes]]:
    """Return a figure with so many panels, one below the other; above: inches that are left free above them."""
    plt.style.use(files("nanoeuler_lib") / "nanoeuler.mplstyle")
    return plt.subplots(count, 1, figsize=(4.7, 2.7 * count + above))


class Live:
    """Redraw a notebook's loss curve at most every `seconds`: `train(..., on_entry=Live(floor))` (bits per byte)."""

    def __init__(self, floor: float | None = None, seconds: float = 2.0):
        self.floor, self.seconds = floor, seconds
        self.log: list[dict] = []
        self.handle, self.drawn = None, -math.inf

    def __call__(self, entry: dict) -> None:
        self.log.append(entry)
        if "loss" in entry and time.monotonic() - self.drawn > self.seconds:
            self.draw()

    def draw(self) -> None:
        """Draw what has been logged so far, in place of the previous figure. Call it at the end of a run."""
        from IPython.display import display

        figure = draw_loss(self.log, self.floor)
        if self.handle is None:
            self.handle = display(figure, display_id=True)
        else:
            self.handle.update(figure)
        plt.close(figure)
        self.drawn = time.monotonic()
