"""Take the screenshots of the live page and of a report on a trace: `python -m tests.page.shoot [NAME ...]`.

Those of the docs go to docs/images. The GPUs of the live page are simulated, and the page says so; the trace is real.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import ROOT
from tests.page.conftest import OPTIONS, chromium_path
from tests.page.hour import SCENES, served

DOCS, OTHERS = ROOT / "docs" / "images", ROOT / "build" / "screenshots"
MOST_BYTES = 200 * 1024
REPORT, TRACE = "trace-report", ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"


class Shot(NamedTuple):
    """A picture: its scene, the size of the window, the GPU whose row is open, and what is scrolled to the top."""

    name: str
    scene: str
    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"
    opened: int | None = None
    top: str = ""
    in_docs: bool = False


SHOTS = (
    Shot("live-page", "failing", 1280, 780, in_docs=True),
    Shot("live-page-dark", "failing", 1440, 900, "dark"),
    Shot("live-page-wall", "failing", 3840, 2160, "dark"),
    Shot("live-page-phone", "failing", 390, 844, in_docs=True),
    Shot("live-page-lost-gpu", "failing", 1440, 1100, "light", 3, ".gpu:nth-of-type(1)"),
    Shot("live-page-job", "straggler", 1440, 900),
    Shot("live-page-ranks", "straggler", 1440, 700, "light", None, "#jobs"),
    Shot("live-page-straggler", "straggler", 1280, 700, "dark", 5, ".gpu:nth-of-type(1)", in_docs=True),
    Shot("live-page-phone-row", "straggler", 390, 1600, "dark", 5, ".gpu:nth-of-type(1)"),
)


def main(names: Sequence[str]) -> None:
    """Take all screenshots, or those with these names."""
    OTHERS.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in SHOTS if not names or shot.name in names]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*OPTIONS, "--disable-lcd-text"])
        for scene, of_scene in groupby(shots, lambda shot: shot.scene):
            with served(SCENES[scene]) as port:
                for shot in of_scene:
                    _print(take(browser, shot, f"http://127.0.0.1:{port}/"))
        if not names or REPORT in names:
            _print(report(browser))
        browser.close()


def _print(path: Path) -> None:
    size = path.stat().st_size
    too_large = path.parent == DOCS and size > MOST_BYTES
    print(f"{path.relative_to(ROOT)}: {size >> 10} KiB{', too large' if too_large else ''}")


def report(browser: Browser) -> Path:
    """Take a screenshot of the report on the recorded trace; return its path."""
    file = OTHERS / f"{REPORT}.html"
    command = [sys.executable, "-m", "gpu_exporter", "trace", "analyze", str(TRACE), "--report", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1100, "height": 1280})
    page.goto(file.as_uri())
    path = DOCS / f"{REPORT}.png"
    page.screenshot(path=path)
    page.close()
    return path


def take(browser: Browser, shot: Shot, url: str) -> Path:
    """Take one screenshot; return its path."""
    window = {"width": shot.width, "height": shot.height}
    context = browser.new_context(viewport=window, color_scheme=shot.scheme, locale="en-GB", timezone_id="UTC")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(url)
    expect(page.locator(".gpu .line").first).to_be_attached()
    expect(page.get_by_role("status")).to_have_text("Live")
    if shot.opened is not None:
        _open(page, shot.opened)
    if shot.top:
        page.evaluate("top => document.querySelector(top).scrollIntoView()", shot.top)
    path = (DOCS if shot.in_docs else OTHERS) / f"{shot.name}.png"
    page.screenshot(path=path, animations="disabled")
    context.close()
    return path


def _open(page: Page, gpu: int) -> None:
    page.get_by_role("button", name=f"GPU {gpu}", exact=True).and_(page.locator("[aria-expanded]")).click()
    expect(page.locator(".gpu canvas")).to_have_count(6)
    page.mouse.move(0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
