"""Set the style of the book's figures, and draw the figures that several chapters share."""

import re
from collections.abc import Sequence
from importlib.resources import files

import numpy as np

HEAT = ("#fdfcf8", "#f6c9a6", "#e8814f")  # from paper to orange; black text is legible on every shade
MARK = "#1a5fa8"


def use_style() -> None:
    """Apply the book's style to all later matplotlib figures (`nanoeuler.mplstyle` gives the reasons for it)."""
    import matplotlib.pyplot as plt

    plt.style.use(files("nanoeuler_lib") / "nanoeuler.mplstyle")


def surprise_text(
    ax, text: str, lengths: Sequence[int], values: np.ndarray, underlined: np.ndarray, columns: int = 44
) -> None:
    """Draw a text; each token's background darkens with the token's value and is darkest at 6 bits.

    lengths: number of bytes of each token; values: [tokens], in bits; extra entries (such as for an end of text) are
    ignored, and values that round to 1 or more are printed above their token; underlined: [tokens] booleans; columns:
    characters per line. Chapter 02.
    """
    from matplotlib.colors import LinearSegmentedColormap

    heat = LinearSegmentedColormap.from_list("heat", HEAT)
    at = _wrap(text, columns)
    character = np.repeat(np.arange(len(text)), [len(c.encode()) for c in text])  # of each byte
    end = 0
    for length, value, line in zip(lengths, values, underlined):
        start, end = end, end + int(length)
        (above, left), (row, right) = at[character[start]], at[character[end - 1]]
        left = 0 if above < row else left  # its leading space is at the end of the line above
        ax.barh(row, right + 1 - left, 0.97, left, align="edge", color=heat(min(value / 6, 1.0)))
        if value >= 0.95:
            number = dict(fontsize=8, ha="right", va="top", color="#262626")
            ax.text(right + 0.95, row + 0.03, f"{value:.0f}", **number)
        if line:
            left += above == row and text[character[start]] == " "
            ax.hlines(row + 0.93, left, right + 1, color=MARK, linewidth=2)
    style = dict(family="monospace", fontsize=11, ha="center", va="center", clip_on=True)
    for letter, (row, column) in zip(text, at):
        ax.text(column + 0.5, row + 0.6, letter, **style)
    ax.set(xlim=(0, columns), ylim=(at[-1][0] + 1, 0), xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)


def _wrap(text: str, columns: int) -> list[tuple[int, int]]:
    """Return the row and column of each character, with lines broken before words and after spaces."""
    row, column, at = 0, 0, []
    for word in re.findall(r"\s?\S+", text):
        at.append((row, column))
        if word[0] == "\n" or column + len(word) > columns:
            row, column = row + 1, -1
        at += [(row, column + i) for i in range(1, len(word))]
        column += len(word)
    return at


def ladder(rows: Sequence[dict], floor: float):
    """Draw the book's comparison of models: bits per byte above the floor, and the accuracy on facts below.

    rows: from the weakest model up, each with name, bits_per_byte (greater than `floor`, because the axis is
    logarithmic), fact_accuracy, fact_accuracy_beyond_10_words (both 0 to 1) and, for the book's own models, "goal":
    True; data/results/ladder.json holds such rows. floor: bits per byte of the source. Returns the figure.
    """
    import matplotlib.pyplot as plt

    fig, (above, below) = plt.subplots(2, 1, figsize=(4.7, 1.5 + 0.5 * len(rows)), sharey=True)
    at, excess = np.arange(len(rows)), np.array([row["bits_per_byte"] for row in rows]) - floor
    goal = [bool(row.get("goal")) for row in rows]
    above.scatter(excess, at, 45, c=["C1" if mark else "C0" for mark in goal])
    for x, y in zip(excess, at):
        above.annotate(f"{x:.2g}", (x, y), (8, 0), textcoords="offset points", va="center")
    above.set(xscale="log", xlim=(excess.min() / 1.5, 3 * excess.max()))
    above.set_xlabel(f"bits per byte above the floor of {floor:.2f}")
    above.xaxis.set_major_formatter("{x:g}")
    above.set_yticks(at, [f"{row['name']} ★" if mark else row["name"] for row, mark in zip(rows, goal)])
    for key, label, style in (("fact_accuracy", "all", "o"), ("fact_accuracy_beyond_10_words", "> 10 words away", "D")):
        shown = dict(fillstyle="none", markersize=8) if style == "o" else dict(markersize=4)
        below.plot([100 * row[key] for row in rows], at, style, label=label, **shown)
    below.set(xlabel="facts right, %", xlim=(-5, 105))
    below.legend(loc="upper right")
    below.invert_yaxis()
    return fig
