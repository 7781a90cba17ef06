"""Take the screenshots that the book and README.md show, with a headless Chromium, after `make book`.

    python -m tools.release.screenshots

book/_static/live/writer.png, cuts.png, training.png: the interactive demos, for readers without JavaScript.
book/_static/check.png: two answers to a gap in JupyterLab, for README.md.
check.png and training.png need Playwright (make browser). No test compares the pictures, because fonts differ between
browsers.
"""

import copy
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from tools.release import look

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "book" / "_static"
BUILT = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
COLOURS = 96  # colours per picture, enough for flat areas and the edges of letters
INSTRUMENT = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">
<link rel="stylesheet" href="custom.css"><link rel="stylesheet" href="live/page.css">
<style>* {{ box-sizing: border-box; }} body {{ margin: 0; color: #24262b; background: #fdfcf8; }}
.bd-article .live {{ margin: 0; }} .live + .live-offer {{ display: none; }}</style>
<body class="bd-article"><img class="{name}" src="logo.svg" alt="">
<script src="live/model.js"></script><script src="live/page.js"></script>"""

GAP = "positions-rope-forward"
ANSWER = """    x1, x2 = np.split(x, 2, axis=-1)
    y1 = x1 * cos {} x2 * sin
    y2 = x2 * cos {} x1 * sin
    return np.concatenate([y1, y2], axis=-1), (cos, sin)"""


def find_browser() -> str | None:
    """Return the path of the first Chromium on this machine; None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def run(browser: str, url: str, *options: str) -> str:
    """Open a page, wait until its scripts have finished, and return what the browser prints."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=60000",
    ]
    return subprocess.run([*command, *options, url], capture_output=True, text=True, timeout=300, check=True).stdout


def take(browser: str, url: str, size: tuple[int, int], path: Path) -> None:
    """Save a screenshot of the upper left corner of a page, with few colours."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        run(browser, url, f"--screenshot={raw}", f"--window-size={size[0]},{size[1]}")
        save(raw, path)


def save(raw: Path, path: Path) -> None:
    """Save the picture `raw` to `path` with few colours."""
    Image.open(raw).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB")


@contextmanager
def instrument(name: str, more: str = "") -> Iterator[str]:
    """Write a page with only one interactive demo, and yield its address."""
    page = BUILT / "_static" / "screenshot.html"
    page.write_text(INSTRUMENT.format(name=name) + more)
    try:
        yield page.as_uri()
    finally:
        page.unlink()


def take_instrument(browser: str, name: str, path: Path) -> None:
    """Measure the height of an interactive demo, and take a screenshot of the demo."""
    ask = "<script>setInterval(() => document.body.dataset.height = document.body.scrollHeight, 100)</script>"
    with instrument(name, ask) as url:
        said = run(browser, url, "--window-size=768,600", "--dump-dom")
        take(browser, url, (768, int(re.search(r'data-height="(\d+)"', said)[1])), path)


def take_training(browser: str, path: Path) -> None:
    """Take a screenshot of the training demo after some minutes, when its model is better than the trigram model."""
    with window(browser, {"width": 768, "height": 900}) as tab, instrument("live-training") as url:
        tab.goto(url)
        for button in ("Train a model", "Start"):
            tab.get_by_role("button", name=button).click()
        tab.wait_for_function("/^(Better|All)/.test(document.querySelector('[role=status]').textContent)", timeout=0)
        tab.get_by_role("button", name="Let it tell a story").click()
        tab.wait_for_function("document.querySelector('.live-story').textContent")
        with tempfile.TemporaryDirectory() as folder:
            tab.locator("section.live").screenshot(path=f"{folder}/raw.png")
            save(Path(folder) / "raw.png", path)


@contextmanager
def window(browser: str, size: dict, scale: int = 1) -> Iterator:
    """Open a browser window that Playwright controls."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        program = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = program.new_page(viewport=size, device_scale_factor=scale)
        tab.set_default_timeout(look.PATIENCE)
        yield tab
        program.close()


def answered() -> nbformat.NotebookNode:
    """Return a notebook with outputs: a gap of chapter 07 and its check, with a wrong and a right answer."""
    notebook = nbformat.read(ROOT / "notebooks" / "07_positions.ipynb", as_version=4)
    at = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells].index(GAP)
    pairs = [copy.deepcopy(notebook.cells[at : at + 2]) for _ in range(2)]
    for n, (pair, signs) in enumerate(zip(pairs, ("+-", "-+"), strict=True)):
        pair[0].source = pair[0].source.replace("    return None  # your code here", ANSWER.format(*signs))
        for cell in pair:
            cell.id += f"-{n}"
    first = [cell for cell in notebook.cells[:at] if cell.cell_type == "code"][:2]  # the imports
    notebook.cells = [*first, *pairs[0], *pairs[1]]
    NotebookClient(notebook, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    del notebook.cells[:2]
    return notebook


def take_check(browser: str, path: Path) -> None:
    """Take a screenshot of the answers to a gap in JupyterLab."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nbformat.write(answered(), folder / "07_positions.ipynb")
        with look.served(folder) as address, window(browser, {"width": 1200, "height": 900}, 2) as tab:
            tab.goto(address("07_positions.ipynb"))
            tab.wait_for_selector(".jp-OutputArea-output pre span")
            tab.wait_for_timeout(5000)
            boxes = [cell.bounding_box() for cell in tab.locator(".jp-Notebook .jp-Cell").all()]
            left, top = boxes[0]["x"], boxes[0]["y"]
            height = boxes[-1]["y"] + boxes[-1]["height"] - top
            tab.screenshot(path=folder / "raw.png", clip={"x": left, "y": top, "width": 670, "height": height})
        save(folder / "raw.png", path)


def main() -> int:
    browser = find_browser()
    if browser is None or not (BUILT / "_static" / "live" / "konigsberg.js").exists():
        print(f"screenshots need one of {', '.join(BROWSERS)}, and the book: make book", file=sys.stderr)
        return 1
    take_instrument(browser, "live-model", STATIC / "live" / "writer.png")
    take_instrument(browser, "live-cuts", STATIC / "live" / "cuts.png")
    take_check(browser, STATIC / "check.png")
    take_training(browser, STATIC / "live" / "training.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
