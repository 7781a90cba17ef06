"""Drawings: a label is legible on a phone and on its fill, cells stand where they are said to, time runs to scale."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from nanoeuler_book import figures, shapes
from nanoeuler_lib.errors import NanoEulerError


@pytest.fixture
def ax():
    with plt.rc_context():
        figures.use_style()
        yield shapes.canvas(12, 8)
        plt.close("all")


def light(color):
    """Relative luminance by WCAG."""
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return np.dot([0.2126, 0.7152, 0.0722], parts)


def test_ink_is_legible_on_every_fill_and_owners_differ(ax):
    fills = [shapes.tint(owner) for owner in (None, *range(6))]
    assert all((light(fill) + 0.05) / (light(shapes.INK) + 0.05) > 4.5 for fill in fills)
    assert len(set(fills)) == 7


def test_a_label_stands_in_its_cell_and_a_box_is_as_wide_as_its_time(ax):
    shapes.cells(ax, 2, 1, [["a", "", 3], [4, 5, 6]], [[0, 1, 2], [3, None, 1]], side=(2, 1))
    assert {t.get_text(): t.get_position() for t in ax.texts}["6"] == (7, 2.5)
    ax.figure.canvas.draw()  # colours are given when it is drawn
    fills = ax.collections[0].get_facecolors()
    assert tuple(fills[1][:3]) == tuple(fills[5][:3]) == shapes.tint(1)
    shapes.timeline(ax, 3, 4, {"copy": [(1, 3, "tile", 0)], "add": [(3, 4, "", 1)]}, {3: "barrier"}, tick=2)
    assert [(p.get_x(), p.get_width()) for p in ax.patches] == [(5, 4), (9, 2)]
    assert list(ax.lines[0].get_xdata()) == [9, 9]


@pytest.mark.parametrize(
    "draw, told",
    [
        (lambda ax: shapes.canvas(4, 3, width=6), "width is 6 inches"),
        (lambda ax: shapes.write(ax, 1, 1, "small", 7), "size of 'small' is 7"),
        (lambda ax: shapes.cells(ax, 0, 0, [[1, 2]], [[0]]), r"\(1, 2\) and \(1, 1\)"),
    ],
)
def test_what_a_phone_could_not_show_is_refused(ax, draw, told):
    with pytest.raises(NanoEulerError, match=told):
        draw(ax)
