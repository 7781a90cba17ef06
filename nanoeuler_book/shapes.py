"""Drawings by code: who owns what, what moves when, where a barrier stands.

A drawing is 4.7 inches wide: at 72 pixels an inch it fits a phone of 390, and a label of 8 points has 8 pixels there.
Like all figures it lies on opaque paper (`nanoeuler.mplstyle`), legible on a light page and on a dark one.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from nanoeuler_lib.errors import NanoEulerError

INK, LINE, PAPER = "#262626", "#4a4f57", "#fdfcf8"


def canvas(wide: float, high: float, width: float = 4.7):
    """An empty drawing of wide x high units, y downward, as axes (`.figure` is the figure); width: in inches."""
    import matplotlib.pyplot as plt

    if not 0 < width <= 4.9:
        raise NanoEulerError(f"width is {width} inches, at most 4.9: a phone would cut off what is wider")
    ax = plt.figure(figsize=(width, width * high / wide), layout="none").add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, wide), ylim=(high, 0))
    ax.axis("off")
    return ax


def tint(owner: int | str | None) -> tuple:
    """The fill of an owner: a number of the style's colours or a colour by name, thinned; None is paper. Text: 4.5."""
    from matplotlib.colors import to_rgb

    if owner is None:
        return to_rgb(PAPER)
    color = to_rgb(owner if isinstance(owner, str) else f"C{owner}")
    return tuple(0.3 * np.array(color) + 0.7 * np.array(to_rgb(PAPER)))


def write(ax, x: float, y: float, text, size: float = 9, **style):
    """Text centred at x, y, of at least 8 points; style: further arguments of `ax.text`."""
    if size < 8:
        raise NanoEulerError(f"size of {text!r} is {size}, at least 8: on a phone a point is a pixel")
    return ax.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "color": INK} | style)


def box(ax, x: float, y: float, wide: float, high: float, label="", owner=None, size: float = 9, **style):
    """A box from its upper left corner, in its owner's tint, with a label; style: of the patch, such as ls="--"."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), wide, high, **{"fc": tint(owner), "ec": LINE, "lw": 1} | style))
    write(ax, x + wide / 2, y + high / 2, label, size)


def cells(ax, x: float, y: float, labels, owners=None, side=1, size: float = 8):
    """A grid of cells from its upper left corner, a label ("": none) in each, each in its owner's tint.

    labels: [rows, columns]; owners: the same shape, or None; side: of a cell, in units, or (wide, high).
    """
    labels = np.array(labels, object)
    owners = np.full(labels.shape, None) if owners is None else np.array(owners, object)
    if labels.ndim != 2 or owners.shape != labels.shape:
        raise NanoEulerError(
            f"labels and owners have shapes {labels.shape} and {owners.shape}, expected [rows, columns] twice"
        )
    wide, high = side if isinstance(side, tuple) else (side, side)
    edges = x + wide * np.arange(labels.shape[1] + 1), y + high * np.arange(len(labels) + 1)
    fill = np.array([[tint(owner) for owner in row] for row in owners])
    ax.pcolormesh(*edges, fill, edgecolors=LINE, linewidth=0.5)
    for (row, column), label in np.ndenumerate(labels):
        if str(label):
            write(ax, x + wide * (column + 0.5), y + high * (row + 0.5), label, size)


def arrow(ax, start: tuple, end: tuple, label="", bend: float = 0, size: float = 8, **style):
    """An arrow from start to end, (x, y) each, bent by this share of its length, a label on its middle."""
    line = {"arrowstyle": "-|>", "color": LINE, "shrinkA": 1, "shrinkB": 1}
    ax.annotate("", end, start, arrowprops=line | {"connectionstyle": f"arc3,rad={bend}"} | style)
    (x0, y0), (x1, y1) = start, end
    at = (x0 + x1 - bend * (y1 - y0)) / 2, (y0 + y1 + bend * (x1 - x0)) / 2
    if label:
        write(ax, *at, label, size, bbox={"fc": PAPER, "lw": 0, "pad": 1})


def bracket(ax, start: tuple, end: tuple, label="", depth: float = 0.3, size: float = 8):
    """A bracket along x or y with its label; depth: how far below or to the right it reaches (minus: above, left)."""
    (x0, y0), (x1, y1) = start, end
    below = y0 == y1
    dx, dy = (0, depth) if below else (depth, 0)
    ax.plot([x0, x0 + dx, x1 + dx, x1], [y0, y0 + dy, y1 + dy, y1], color=LINE, linewidth=1)
    side = {"va": "top" if depth > 0 else "bottom"} if below else {"ha": "left" if depth > 0 else "right"}
    write(ax, (x0 + x1) / 2 + 1.4 * dx, (y0 + y1) / 2 + 1.4 * dy, label, size, **side)


def timeline(ax, x: float, y: float, lanes: Mapping[str, Sequence[tuple]], barriers=None, tick=1, high=1):
    """Lanes of what is done from when to when, time to the right, and barriers across all of them.

    x, y: time 0 above the first lane; names stand left of it. lanes: name -> (from, to, label, owner) ...
    barriers: time -> label, above. tick: units for 1 of time; high: units for a lane.
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
