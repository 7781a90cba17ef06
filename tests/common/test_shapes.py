"""Drawings: cells stand where they are said to, time runs to scale."""

import matplotlib.pyplot as plt
import pytest

from nanoeuler_book import figures, shapes


@pytest.fixture
def ax():
    with plt.rc_context():
        figures.use_style()
        yield shapes.canvas(12, 8)
        plt.close("all")


def test_a_label_stands_in_its_cell_and_a_box_is_as_wide_as_its_time(ax):
    shapes.cells(ax, 2, 1, [["a", "", 3], [4, 5, 6]], [[0, 1, 2], [3, None, 1]], side=(2, 1))
    assert {t.get_text(): t.get_position() for t in ax.texts}["6"] == (7, 2.5)
    ax.figure.canvas.draw()  # colours are given when it is drawn
    fills = ax.collections[0].get_facecolors()
    assert tuple(fills[1][:3]) == tuple(fills[5][:3]) == shapes.tint(1)
    shapes.timeline(ax, 3, 4, {"copy": [(1, 3, "tile", 0)], "add": [(3, 4, "", 1)]}, {3: "barrier"}, tick=2)
    assert [(p.get_x(), p.get_width()) for p in ax.patches] == [(5, 4), (9, 2)]
    assert list(ax.lines[0].get_xdata()) == [9, 9]
