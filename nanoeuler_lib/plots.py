"""The look of the book's figures, and the figures that more than one chapter draws."""

from importlib.resources import files


def use_style() -> None:
    """Give every matplotlib figure drawn from here on the book's look (`nanoeuler.mplstyle` says why it is so)."""
    import matplotlib.pyplot as plt

    plt.style.use(files("nanoeuler_lib") / "nanoeuler.mplstyle")
