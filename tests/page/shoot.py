"""Take the pictures of the live page and of a report on a trace: `python -m tests.page.shoot [--compare] [NAME ...]`.

Those of the docs go to docs/images. The GPUs of the live page are simulated, and the page says so; the trace is real.
With `--compare`, nothing in docs/images changes: the command fails if a picture there differs from what it would take.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests import ROOT
from tests.page.conftest import OPTIONS, chromium_path
from tests.page.hour import END, SCENES, served
from tests.page.moving import moving

DOCS, OTHERS = ROOT / "docs" / "images", ROOT / "build" / "screenshots"
MOST_BYTES, MOST_TOUR_BYTES = 200 * 1024, 520 * 1024
TOP = DOCS / "top.svg"
# How many pixels of a picture may differ: fonts are drawn a little differently on each machine.
MOST_DIFFERENT = 0.02
# The moving picture at the beginning of the docs, its size, and how long each frame is shown.
TOUR, TOUR_SIZE, TOUR_SECONDS = "tour", (1000, 620), 4
REPORT, TRACE = "trace-report", ROOT / "tests" / "data" / "pytorch_trace_slow_loader.json.gz"
# The pictures of the docs that other commands make: `make pictures` calls them, too.
OF_OTHERS = {
    "top.svg": "benchmarks.top_picture",
    **{f"dashboards-{name}.png": "boards" for name in ("cost", "fleet", "gpu", "job")},
}


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
    Shot("live-page", "failing", 1280, 765, in_docs=True),
    Shot("live-page-dark", "failing", 1440, 900, "dark"),
    Shot("live-page-wall", "failing", 3840, 2160, "dark"),
    Shot("live-page-phone", "failing", 390, 844, in_docs=True),
    Shot("live-page-lost-gpu", "failing", 1440, 1100, "light", 3, ".gpu:nth-of-type(1)"),
    Shot("live-page-job", "straggler", 1440, 900),
    Shot("live-page-ranks", "straggler", 1440, 700, "light", None, "#jobs"),
    Shot("live-page-straggler", "straggler", 1280, 700, "dark", 5, ".gpu:nth-of-type(1)", in_docs=True),
    Shot("live-page-phone-row", "straggler", 390, 1600, "dark", 5, ".gpu:nth-of-type(1)"),
)


def in_docs() -> set[str]:
    """Return the names of the pictures that this command makes for the docs."""
    return {f"{name}.png" for name in (REPORT, TOUR, *(shot.name for shot in SHOTS if shot.in_docs))}


def main(arguments: Sequence[str]) -> int:
    """Take all screenshots, or those with these names; return 1 if a picture of the docs is not as it should be."""
    compared = "--compare" in arguments
    names = [name for name in arguments if name != "--compare"]
    OTHERS.mkdir(parents=True, exist_ok=True)
    shots = [shot for shot in SHOTS if (not names or shot.name in names) and (shot.in_docs or not compared)]
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*OPTIONS, "--disable-lcd-text"])
        for scene, of_scene in groupby(shots, lambda shot: shot.scene):
            with served(SCENES[scene]) as port:
                found += [(take(browser, shot, f"http://127.0.0.1:{port}/"), shot.in_docs) for shot in of_scene]
        if not names or REPORT in names:
            found.append((report(browser), True))
        if not names or TOUR in names:
            with served(SCENES["straggler"]) as port:
                found.append((tour(browser, f"http://127.0.0.1:{port}/"), True))
        problems = [_check(browser, path, compared=compared) if in_docs else _told(path) for path, in_docs in found]
        browser.close()
    return int(any(problems))


def _told(path: Path) -> bool:
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size >> 10} KiB")
    return False


def _check(browser: Browser, path: Path, *, compared: bool) -> bool:
    """Keep a picture for the docs, or compare it with the one that is there; return whether something is wrong."""
    size, committed = path.stat().st_size, DOCS / path.name
    if size > (MOST_TOUR_BYTES if path.stem == TOUR else MOST_BYTES):
        print(f"{path.name}: {size >> 10} KiB, too large")
        return True
    if not compared:
        shutil.copyfile(path, committed)
        return _told(committed)
    share = difference(browser, path.read_bytes(), committed.read_bytes())
    print(f"{path.name}: {share:.2%} of the pixels differ")
    return share > MOST_DIFFERENT


def difference(browser: Browser, one: bytes, other: bytes) -> float:
    """Return the share of the pixels in which two pictures differ; 1 if their sizes do. Of a moving one, the first
    frame is compared."""
    page = browser.new_page()
    urls = [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in (one, other)]
    share: float = page.evaluate(
        """async urls => {
            const [a, b] = await Promise.all(urls.map(async url => {
                const image = new Image();
                image.src = url;
                await image.decode();
                const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
                canvas.drawImage(image, 0, 0);
                return canvas.getImageData(0, 0, image.width, image.height);
            }));
            if (a.width !== b.width || a.height !== b.height) return 1;
            let different = 0;
            for (let at = 0; at < a.data.length; at += 4) {
                if ([0, 1, 2].some(part => Math.abs(a.data[at + part] - b.data[at + part]) > 32)) different += 1;
            }
            return different / (a.width * a.height);
        }""",
        urls,
    )
    page.close()
    return share


def report(browser: Browser) -> Path:
    """Take a screenshot of the report on the recorded trace; return its path."""
    file = OTHERS / f"{REPORT}.html"
    command = [sys.executable, "-m", "gpu_exporter", "trace", "analyze", str(TRACE), "--report", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page = browser.new_page(viewport={"width": 1100, "height": 1280})
    page.goto(file.as_uri())
    path = OTHERS / f"{REPORT}.png"
    page.screenshot(path=path)
    page.close()
    return path


def tour(browser: Browser, url: str) -> Path:
    """Make the moving picture: the live page, the opened row of the cause, its runbook, and `top`; return its path."""
    page = _opened_page(browser, *TOUR_SIZE, "light", url)
    frames = [page.screenshot(animations="disabled")]
    page.locator(".gpu h3 button").first.click()
    expect(page.locator(".gpu canvas")).to_have_count(6)
    page.evaluate("document.querySelector('.gpu').scrollIntoView()")
    page.mouse.move(0, 0)
    frames.append(page.screenshot(animations="disabled"))
    page.get_by_role("link", name="Runbook", exact=True).first.click()
    expect(page.get_by_role("heading", name="What to do first")).to_be_visible()
    frames.append(page.screenshot())
    page.context.close()
    page = browser.new_page(viewport={"width": TOUR_SIZE[0], "height": TOUR_SIZE[1]}, reduced_motion="reduce")
    page.set_content(
        f"<style>body{{margin:0;background:#0c0c0c}}svg{{width:100%;height:100vh}}</style>{TOP.read_text()}"
    )
    frames.append(page.screenshot())
    page.close()
    path = OTHERS / f"{TOUR}.png"
    path.write_bytes(moving(frames, TOUR_SECONDS))
    return path


def _opened_page(browser: Browser, width: int, height: int, scheme: Literal["light", "dark"], url: str) -> Page:
    """Open the live page at the end of the hour, and wait until everything is drawn."""
    window: ViewportSize = {"width": width, "height": height}
    context = browser.new_context(viewport=window, color_scheme=scheme, locale="en-GB", timezone_id="UTC")
    page = context.new_page()
    page.clock.set_fixed_time(END * 1000)
    page.goto(url)
    expect(page.locator(".gpu .line").first).to_be_attached()
    expect(page.get_by_role("status")).to_have_text("Live")
    return page


def take(browser: Browser, shot: Shot, url: str) -> Path:
    """Take one screenshot; return its path."""
    page = _opened_page(browser, shot.width, shot.height, shot.scheme, url)
    if shot.opened is not None:
        _open(page, shot.opened)
    if shot.top:
        page.evaluate("top => document.querySelector(top).scrollIntoView()", shot.top)
    path = OTHERS / f"{shot.name}.png"
    page.screenshot(path=path, animations="disabled")
    page.context.close()
    return path


def _open(page: Page, gpu: int) -> None:
    page.get_by_role("button", name=f"GPU {gpu}", exact=True).and_(page.locator("[aria-expanded]")).click()
    expect(page.locator(".gpu canvas")).to_have_count(6)
    page.mouse.move(0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
