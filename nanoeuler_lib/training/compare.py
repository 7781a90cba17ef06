"""The page that compares several runs: learning curves, results, the settings that differ, and samples."""

import base64
import io
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib import ticker

from nanoeuler_lib.errors import NanoEulerError
from nanoeuler_lib.files import escaped, expect_new, html_page, one_line, write_text
from nanoeuler_lib.training import checkpoint, report
from nanoeuler_lib.training.monitor import MEASURES, WINDOW

# values in run.json that are results, follow from other values, or are listed one by one
RESULTS = {*MEASURES, *"valid_sets fingerprint valid_fingerprint files reach unit split rewards".split()}
STYLE = """\
img { width: 100%; max-width: 677px }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin-bottom: 1rem }
th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8888; text-align: left; vertical-align: top }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 0 1.5rem }
h3 { margin: 1rem 0 0; overflow-wrap: anywhere }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 }"""


@dataclass(frozen=True)
class Run:
    """Hold the contents of a run's log and of its run.json. steps: the entries of the log that are steps."""

    name: str
    log: list[dict]
    head: dict
    steps: list[dict]

    @property
    def unit(self) -> str:
        """Unit of the validation loss."""
        return report.validations(self.log)[1]

    @property
    def settings(self) -> dict[str, object]:
        """Settings by name: those of the model, of training and of the data, the version and the machine."""
        data = checkpoint.public(self.head["data"])
        parts = {"version": self.head.get("version"), "machine": self.head.get("machine")}, self.head["model"]
        parts = *parts, self.head["train"], data, data.get("rewards", {})
        return {name.replace("_", " "): x for part in parts for name, x in part.items() if name not in RESULTS}

    @property
    def results(self) -> dict[str, str | int | float]:
        """Results by name, with units."""
        tokens, seconds, speed, beside = report.totals(self.log, self.steps)
        last = fmean([entry["loss"] for entry in self.steps][-WINDOW:])
        found = {"steps": report.progress(self.head, self.steps), "tokens": round(tokens)}
        found[f"training loss ({report.loss_unit(self.unit)}; mean of the last {WINDOW} steps)"] = round(last, 4)
        if valid := report.validations(self.log)[0]:
            step, best = min(valid, key=lambda pair: pair[1])
            found[f"validation loss at the end ({self.unit})"] = round(valid[-1][1], 4)
            found |= {f"lowest validation loss ({self.unit})": round(best, 4), "step of the lowest": step}
        found["tokens per second (median)"] = round(speed)
        return found | {"time of steps (s)": round(seconds, 1), "time of validation and samples (s)": round(beside, 1)}


def compare(runs: list[str | Path], out: str | Path) -> list[Run]:
    """Write an HTML page that compares runs, finished or not, of any kinds and lengths, and return the runs.

    runs: at least two folders; out: the new file, which contains everything that it shows. Raises NanoEulerError if
    `out` exists, a run occurs twice, or a folder is not a run with at least one step.
    """
    expect_new(out)
    if len(runs) < 2:
        raise NanoEulerError(f"compare takes at least two runs, got {len(runs)}")
    places = [Path(run).resolve() for run in runs]
    if again := next((run for i, run in enumerate(runs) if places[i] in places[:i]), None):
        raise NanoEulerError(f"{again}: each run must be given once, got it twice")
    names = [place.name for place in places]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    found = [Run(one_line(name, 60), *report.read(Path(run))) for name, run in zip(names, runs, strict=True)]
    write_text(out, _page(found))
    return found


def rows_of(tables: list[dict[str, object]], differing: bool = False) -> dict[str, list]:
    """Return the values in several tables by name, None where a table lacks the name; differing: only such rows."""
    rows = {name: [table.get(name) for table in tables] for table in tables for name in table}
    return {name: row for name, row in rows.items() if not differing or any(value != row[0] for value in row)}


def _page(runs):
    figure, image = draw(runs), io.BytesIO()
    figure.savefig(image, format="png")
    plt.close(figure)
    source = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
    settings = rows_of([run.settings for run in runs], differing=True)
    parts = [
        *(f"<p>{escaped(note)}</p>" for note in _notes(runs)),
        f'<img src="{source}" alt="Training and validation loss of each run">',
        f"<p>Pale: the training loss of each step. Strong: the mean of the {WINDOW} steps around it.</p>",
        "<h2>Results</h2>",
        _table(runs, rows_of([run.results for run in runs])) + "\n<h2>Settings that differ</h2>",
        _table(runs, settings) if settings else "<p>None.</p>",
        *_samples(runs),
    ]
    return html_page(", ".join(run.name for run in runs), STYLE, "\n".join(parts))


def _notes(runs):
    if len({run.unit for run in runs}) > 1:
        yield "The runs are of different kinds, whose losses have different units. So each unit has its own panels."
    for unit in dict.fromkeys(run.unit for run in runs):
        measured = [run for run in runs if run.unit == unit and report.validations(run.log)[0]]
        if len({run.head["data"].get("valid_fingerprint") for run in measured}) > 1:
            yield (
                f"The validation data of the runs in {unit} are different tokens, because the text or the tokenizer "
                "differs. Compare the validation losses only if the text is the same."
            )


def _table(runs, rows):
    """Return a table in HTML with a column for each run. rows: the runs' values by name."""

    def shown(value):
        if value is None:
            return "–"
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return f"{value:,}" if type(value) in (int, float) else escaped(one_line(text, 200))

    lines = ["".join(f"<th>{escaped(name)}</th>" for name in ("", *(run.name for run in runs)))]
    lines += [f"<th>{escaped(name)}</th>" + "".join(f"<td>{shown(x)}</td>" for x in rows[name]) for name in rows]
    return '<div class="wide"><table>' + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def _samples(runs):
    last = [(report.series(run.log, "sample") or [("none", "")])[-1] for run in runs]
    if any(text for _, text in last):
        yield '<h2>Last samples</h2>\n<div class="samples">'
        for run, (step, text) in zip(runs, last, strict=True):
            yield f"<div><h3>{escaped(run.name)}, step {step}</h3><pre>{escaped(text.strip())}</pre></div>"
        yield "</div>"


def draw(runs: list[Run]) -> plt.Figure:
    """Draw the training and the validation loss of each run and return the figure; each unit has two panels.

    The axis shows steps if all runs have equally long steps, or if a log lacks the seconds; otherwise, tokens.
    """
    units = list(dict.fromkeys(run.unit for run in runs))
    figure, panels = report.panels(2 * len(units), 0.25 * len(runs))
    lengths = {tuple(run.settings.get(name) for name in ("context", "batch", "accumulate", "template")) for run in runs}
    in_tokens = len(lengths) > 1 and all("seconds" in entry for run in runs for entry in run.steps)
    for number, run in enumerate(runs):
        upper, lower = panels[2 * units.index(run.unit) :][:2]
        style = {"color": f"C{number % 6}", "linestyle": ("-", "--", ":", "-.")[number // 6 % 4]}  # six colours
        steps, losses = zip(*((entry["step"], entry["loss"]) for entry in run.steps), strict=True)
        x = list(accumulate(map(report.tokens_of, run.steps))) if in_tokens else steps
        upper.plot(x, losses, alpha=0.4, linewidth=0.7, **style)
        upper.plot(x, report.smoothed(losses), label=" " + run.name.replace("$", r"\$"), **style)
        at = {0: 0} | dict(zip(steps, x, strict=True))
        valid = [(at[step], loss) for step, loss in report.validations(run.log)[0] if step in at]
        lower.plot([x for x, _ in valid], [loss for _, loss in valid], marker=".", **style)
    for unit, upper, lower in zip(units, panels[::2], panels[1::2], strict=True):
        upper.set_ylabel(f"training loss, {report.loss_unit(unit)}")
        lower.set_ylabel(f"validation, {unit}")
        for axes in (upper, lower):
            axes.set_xlabel("tokens" if in_tokens else "step")
            axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        if min((min(line.get_ydata(), default=1) for line in lower.lines), default=0) > 0:
            report.log_scale(lower)
    figure.legend(loc="outside upper left")
    return figure
