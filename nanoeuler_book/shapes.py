"""Diagrams drawn by code: boxes, grids of cells, arrows, brackets and timelines.

A diagram is 4.7 inches wide. At 72 pixels per inch it fits a phone 390 pixels wide, where a label of 8 points is 8
pixels high. Like all figures it has an opaque background (`nanoeuler.mplstyle`), so it is legible on light and dark
pages.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

INK, LINE, PAPER = "#262626", "#4a4f57", "#fdfcf8"


def canvas(wide: float, high: float, width: float = 4.7):
    """Return the axes of an empty diagram of wide x high units, with y downward; `.figure` is the figure.

    width: in inches. Raises NanoEulerError if the width is not above 0 and at most 4.9.
    """
    import matplotlib.pyplot as plt

    if not 0 < width <= 4.9:
        raise NanoEulerError(f"width must be above 0 and at most 4.9 inches, got {width}: phones cut off what is wider")
    ax = plt.figure(figsize=(width, width * high / wide), layout="none").add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, wide), ylim=(high, 0))
    ax.axis("off")
    return ax


def tint(owner: int | str | None) -> tuple:
    """Return the RGB fill colour of an owner, light enough for a contrast of 4.5 with text.

    owner: an index into the style's colours, a colour's name, or None for the background.
    """
    from matplotlib.colors import to_rgb

    if owner is None:
        return to_rgb(PAPER)
    color = to_rgb(owner if isinstance(owner, str) else f"C{owner}")
    return tuple(0.3 * np.array(color) + 0.7 * np.array(to_rgb(PAPER)))


def write(ax, x: float, y: float, text, size: float = 9, **style):
    """Write text centred at x, y; style: further arguments of `ax.text`.

    Raises NanoEulerError for a size below 8 points.
    """
    if size < 8:
        raise NanoEulerError(f"size of {text!r} must be at least 8 points, got {size}: on a phone a point is a pixel")
    return ax.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "color": INK} | style)


def box(ax, x: float, y: float, wide: float, high: float, label="", owner=None, size: float = 9, **style):
    """Draw a labelled box in its owner's colour (`tint`); x, y: its upper left corner; style: of the patch, ls="--"."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), wide, high, **{"fc": tint(owner), "ec": LINE, "lw": 1} | style))
    write(ax, x + wide / 2, y + high / 2, label, size)


def cells(ax, x: float, y: float, labels, owners=None, side=1, size: float = 8):
    """Draw a grid of labelled cells, each in its owner's colour (`tint`); x, y: the upper left corner.

    labels: [rows, columns], "" for none; owners: the same shape, or None; side: a cell's side in units, or (width,
    height). Raises NanoEulerError if the shapes differ.
    """
    labels = np.array(labels, object)
    owners = np.full(labels.shape, None) if owners is None else np.array(owners, object)
    if labels.ndim != 2 or owners.shape != labels.shape:
        raise NanoEulerError(
            f"labels and owners must have the same shape [rows, columns], got {labels.shape} and {owners.shape}"
        )
    wide, high = side if isinstance(side, tuple) else (side, side)
    edges = x + wide * np.arange(labels.shape[1] + 1), y + high * np.arange(len(labels) + 1)
    fill = np.array([[tint(owner) for owner in row] for row in owners])
    ax.pcolormesh(*edges, fill, edgecolors=LINE, linewidth=0.5)
    for (row, column), label in np.ndenumerate(labels):
        if str(label):
            write(ax, x + wide * (column + 0.5), y + high * (row + 0.5), label, size)


def arrow(ax, start: tuple, end: tuple, label="", bend: float = 0, size: float = 8, **style):
    """Draw an arrow from start to end, both (x, y), and a label at its middle; bend: its curvature (rad of arc3)."""
    line = {"arrowstyle": "-|>", "color": LINE, "shrinkA": 1, "shrinkB": 1}
    ax.annotate("", end, start, arrowprops=line | {"connectionstyle": f"arc3,rad={bend}"} | style)
    (x0, y0), (x1, y1) = start, end
    at = (x0 + x1 - bend * (y1 - y0)) / 2, (y0 + y1 + bend * (x1 - x0)) / 2
    if label:
        write(ax, *at, label, size, bbox={"fc": PAPER, "lw": 0, "pad": 1})


def bracket(ax, start: tuple, end: tuple, label="", depth: float = 0.3, size: float = 8):
    """Draw a labelled bracket along x or y; depth: how far it extends down or right (negative: up or left)."""
    (x0, y0), (x1, y1) = start, end
    below = y0 == y1
    dx, dy = (0, depth) if below else (depth, 0)
    ax.plot([x0, x0 + dx, x1 + dx, x1], [y0, y0 + dy, y1 + dy, y1], color=LINE, linewidth=1)
    side = {"va": "top" if depth > 0 else "bottom"} if below else {"ha": "left" if depth > 0 else "right"}
    write(ax, (x0 + x1) / 2 + 1.4 * dx, (y0 + y1) / 2 + 1.4 * dy, label, size, **side)


def timeline(ax, x: float, y: float, lanes: Mapping[str, Sequence[tuple]], barriers=None, tick=1, high=1):
    """Draw a timeline: one lane of events per name, time to the right, and barriers across all lanes.

    x, y: time 0 at the top of the first lane, with names to its left. lanes: name -> (start, end, label, owner), ...;
    barriers: time -> label, shown above; tick: units per unit of time; high: units per lane.
    """
    for k, (name, events) in enumerate(lanes.items()):
        write(ax, x - 0.15 * high, y + (k + 0.5) * high, name, ha="right")
        for begin, end, label, owner in events:
            box(ax, x + tick * begin, y + (k + 0.12) * high, tick * (end - begin), 0.76 * high, label, owner, 8)
    end = x + tick * max(event[1] for events in lanes.values() for event in events)
    bottom = y + len(lanes) * high
    for time, label in (barriers or {}).items():
        ax.plot([x + tick * time] * 2, [y - 0.1 * high, bottom], color="C1", lw=2.5, ls=(0, (2, 1)))
        write(ax, x + tick * time, y - 0.2 * high, label, 8, va="bottom", color="#a03c10")
    arrow(ax, (x, bottom + 0.15 * high), (end, bottom + 0.15 * high))
    write(ax, end, bottom + 0.25 * high, "time", 8, ha="right", va="top")
