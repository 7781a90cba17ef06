"""Take screenshots of ten pages, and of three chapters in JupyterLab, for a person to check: `make look`.

    python -m tools.release.look _build/html _build/screenshots

The first 5,000 pixels of each page are shown at three widths (desktop, tablet, phone), light and dark, and each chapter
in JupyterLab at three scroll positions.
"""

import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tools.book import lab, pdf

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["book/intro", "book/how_to_read", "book/notation", "book/glossary", "book/references", "404"]
PAGES += [f"notebooks/{name}" for name in ("00_start_here", "06_attention", "12_pretraining", "23_first_kernels")]
CHAPTERS = ["00_start_here", "06_attention", "23_first_kernels"]
WIDTHS = {1400: 900, 820: 1180, 390: 844}
HEIGHT = 5000
PATIENCE = 120_000  # time limit in milliseconds, enough for a busy machine


def book(browser, site: Path, folder: Path) -> None:
    """Take screenshots of the listed pages at all widths, in light and dark mode."""
    for theme in ("light", "dark"):
        for width, height in WIDTHS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            context.set_default_timeout(PATIENCE)
            tab = context.new_page()
            for page in PAGES:
                tab.goto((site / f"{page}.html").as_uri())
                tab.evaluate("() => window.MathJax?.startup?.promise")
                tab.wait_for_timeout(1500)
                whole = tab.evaluate("document.documentElement.scrollHeight")
                clip = {"x": 0, "y": 0, "width": width, "height": min(whole, HEIGHT)}
                name = re.sub(r"\W+", "-", page)
                tab.screenshot(path=folder / f"{name}-{width}-{theme}.png", full_page=True, clip=clip)
            context.close()


@contextmanager
def served(folder: Path) -> Iterator[Callable[[str], str]]:
    """Run JupyterLab in a folder; yield a function that returns the address at which it opens a file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, address = secrets.token_hex(8), f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        f"--port={port}",
        f"--IdentityProvider.token={token}",
    ]
    server = subprocess.Popen(
        [*command, "--allow-root", f"--notebook-dir={folder}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(f"{address}/api?token={token}", server)
        yield lambda file: f"{address}/lab/tree/{file}?reset&token={token}"
    finally:
        server.terminate()
        server.wait()


def jupyterlab(browser, folder: Path) -> None:
    """Take screenshots of working copies in JupyterLab."""
    lab.renew()
    with served(ROOT) as address:
        for name in CHAPTERS:
            context = browser.new_context(viewport={"width": 1400, "height": 1000})
            context.set_default_timeout(PATIENCE)
            tab = context.new_page()
            tab.goto(address(f"work/{name}.ipynb"))
            tab.wait_for_selector(".jp-Notebook .jp-MarkdownCell a.link")
            tab.wait_for_timeout(8000)
            for place in range(3):
                tab.screenshot(path=folder / f"jupyterlab-{name}-{place}.png")
                tab.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollBy(0, 2500)")
                tab.wait_for_timeout(3000)
            context.close()


def wait_for(address: str, server: subprocess.Popen) -> None:
    """Wait until JupyterLab's server answers; end the program if the server does not answer in time."""
    for _ in range(PATIENCE // 1000):
        if server.poll() is not None:
            sys.exit(f"JupyterLab must keep running, but ended with code {server.returncode}")
        try:
            urlopen(address).close()
            return
        except OSError:
            time.sleep(1)
    sys.exit(f"JupyterLab must answer within {PATIENCE // 1000} seconds, but did not")


def main() -> None:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("screenshots need Playwright: make browser")
    if pdf.chromium() is None:
        sys.exit("screenshots need Chromium or Chrome: install one, or set NANOEULER_CHROMIUM to its path")
    site, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=pdf.chromium(), args=["--no-sandbox"])
        book(browser, site, folder)
        jupyterlab(browser, folder)
        browser.close()
    print(f"{len(list(folder.glob('*.png')))} screenshots in {folder}: look at them")


if __name__ == "__main__":
    main()
