"""Take the pictures of our own pages anew, with a headless Chromium: after `make book`, when they look different.

    python -m tools.workshop.screenshots

book/_static/live/writer.png, cuts.png: the instruments, for readers without JavaScript; book/_static/page.png: a page
of a chapter, for README.md. Pictures are not compared by a test: another browser draws letters differently.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "book" / "_static"
BUILT = ROOT / "_build" / "html"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
COLOURS = 96  # of a picture: flat areas and letters' edges need no more
INSTRUMENT = """<!doctype html><html lang="en" data-theme="light"><meta charset="utf-8">
<link rel="stylesheet" href="custom.css"><link rel="stylesheet" href="live/page.css">
<style>* {{ box-sizing: border-box; }} body {{ margin: 0; color: #24262b; background: #fdfcf8; }}
.bd-article .live {{ margin: 0; }}</style>
<body class="bd-article"><img class="{name}" src="logo.svg" alt="">
<script src="live/model.js"></script><script src="live/page.js"></script>"""


def find_browser() -> str | None:
    """The first Chromium of this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def run(browser: str, url: str, *options: str) -> str:
    """Open a page and return what the browser prints; it waits until the page's scripts are done."""
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=60000",
    ]
    return subprocess.run(
        [*command, *options, url], capture_output=True, text=True, timeout=300, check=True
    ).stdout


def take(browser: str, url: str, size: tuple[int, int], path: Path) -> None:
    """A picture of the upper left corner of a page, in few colours."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        run(browser, url, f"--screenshot={raw}", f"--window-size={size[0]},{size[1]}")
        Image.open(raw).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} kB")


def take_instrument(browser: str, name: str, path: Path) -> None:
    """An instrument alone, on a page of its own width; its height is asked first."""
    page = BUILT / "_static" / "screenshot.html"
    ask = "<script>setInterval(() => document.body.dataset.height = document.body.scrollHeight, 100)</script>"
    page.write_text(INSTRUMENT.format(name=name) + ask)
    try:
        height = int(
            re.search(
                r'data-height="(\d+)"', run(browser, page.as_uri(), "--window-size=768,600", "--dump-dom")
            )[1]
        )
        take(browser, page.as_uri(), (768, height), path)
    finally:
        page.unlink()


def main() -> int:
    browser = find_browser()
    if browser is None or not (BUILT / "_static" / "live" / "konigsberg.js").exists():
        print(f"needs one of {', '.join(BROWSERS)}, and the book: make book", file=sys.stderr)
        return 1
    take_instrument(browser, "live-model", STATIC / "live" / "writer.png")
    take_instrument(browser, "live-cuts", STATIC / "live" / "cuts.png")
    take(browser, (BUILT / "notebooks" / "06_attention.html").as_uri(), (1280, 900), STATIC / "page.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
