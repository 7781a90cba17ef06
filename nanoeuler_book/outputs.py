"""A pytest plugin for nbval that compares a cell's output with the stored output.

A number with a decimal point, an exponent or a percent sign may differ by one unit of its last digit, because a value
at a rounding boundary may be rounded the other way on a different processor. Everything else, including integers, must
be equal. The summary at the end lists the numbers that differed.
"""

import re
from collections.abc import Callable
from decimal import Decimal

import pytest

# The blanks before a number belong to the match, because in a right-aligned table 9.99 and 10.00 have the same width. A
# number cannot begin inside a word or a version (a1.5, 2.4.6), and a full stop after an integer is not a decimal point.
NUMBER = re.compile(
    r"(?P<blanks> *)(?<![\w.])(?P<value>[+-]?\d+(?:,\d{3})*(?P<point>\.\d+)?(?P<exponent>[eE][+-]?\d+)?)"
    r"(?P<percent> ?%)?(?!\d|\.\d)"
)


class Output(str):
    """The text of an output. Two texts are equal if only numbers differ, each by at most one unit of its last digit."""

    __hash__ = str.__hash__
    seen: Callable[[list[str]], object] = staticmethod(list)  # called with the allowed differences of equal texts

    def __eq__(self, other):
        found = differences(self, other)
        if found:
            self.seen([f"{stored} -> {computed}" for stored, computed in found])
        return found is not None

    def __ne__(self, other):
        return not self == other


def differences(stored: str, computed: str) -> list[tuple[str, str]] | None:
    """Return the pairs of numbers that differ by an allowed amount; None if the texts differ in anything else."""
    if str.__eq__(stored, computed):
        return []
    then, now = list(NUMBER.finditer(stored)), list(NUMBER.finditer(computed))
    if _rest(stored, then) != _rest(computed, now) or len(then) != len(now):
        return None
    pairs = [(a, b) for a, b in zip(then, now, strict=True) if a[0] != b[0]]
    return [(a[0].strip(), b[0].strip()) for a, b in pairs] if all(_near(a, b) for a, b in pairs) else None


def _rest(text, numbers):
    """Return the pieces of text between the numbers."""
    ends = [0, *(number.end() for number in numbers)]
    starts = [*(number.start() for number in numbers), len(text)]
    return [text[end:start] for end, start in zip(ends, starts, strict=True)]


def _near(a, b):
    aligned = len(a[0]) == len(b[0]) or a["blanks"] == b["blanks"]
    if not aligned or a["percent"] != b["percent"]:
        return False
    inexact = [number for number in (a, b) if number["point"] or number["exponent"] or number["percent"]]
    if not inexact:
        return False
    (x, unit_x), (y, unit_y) = (_value_and_unit(number) for number in (a, b))
    return abs(x - y) <= min(unit_x, unit_y)


def _value_and_unit(number):
    value = Decimal(number["value"].replace(",", ""))
    return value, Decimal(1).scaleb(value.as_tuple().exponent)


# ---- The plugin


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("nbval"):
        from nbval.plugin import IPyNbCell

        clean = IPyNbCell.sanitize
        IPyNbCell.sanitize = lambda cell, text: _output(clean(cell, text), cell)  # nbval compares what this returns
        compare = IPyNbCell.compare_outputs
        IPyNbCell.compare_outputs = lambda cell, test, ref, skip_compare=None: (
            compare(cell, test, ref, skip_compare) or _tell(cell, test, ref)
        )


def _tell(cell, test, ref):
    """Add unexpected text on stderr, which nbval does not show, to a failure; return False."""
    stored, found = ([out["text"] for out in outs if out.get("name") == "stderr"] for outs in (ref, test))
    if found and not stored:
        cell.comparison_traceback.append("on stderr: " + "".join(found))
    return False


def _output(text, cell):
    if not isinstance(text, str):
        return text
    output = Output(text)
    output.seen = lambda found: cell.user_properties.append(("shifted", found))
    return output


def pytest_terminal_summary(terminalreporter) -> None:
    reports = terminalreporter.stats.get("passed", [])
    found = [(r.nodeid, text) for r in reports for name, text in r.user_properties if name == "shifted"]
    if found:
        numbers = sum(len(text) for _, text in found)
        terminalreporter.section("numbers that differ from the stored ones by one unit of their last digit")
        for node, text in sorted(found):
            terminalreporter.write_line(f"{node}: {', '.join(text[:4])}{', ...' if len(text) > 4 else ''}")
        terminalreporter.write_line(f"{numbers} numbers in {len(found)} cells; these differences are allowed")
