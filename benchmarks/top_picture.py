"""Draws docs/images/top.svg: what `gpu-exporter top` shows of simulated GPUs, two of which have a fault.

    python -m benchmarks.top_picture [--seconds 40] [--out docs/images/top.svg]

The text is the text of the terminal, so the picture is sharp at any size, and contains no fonts of others.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import threading
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from benchmarks.harness import ROOT
from gpu_exporter.config import Config
from gpu_exporter.sources.choice import only
from gpu_exporter.top.feeds import SourceFeed
from gpu_exporter.top.lines import STYLES, UNICODE, Line
from gpu_exporter.top.screen import Screen
from gpu_exporter.top.tracker import BANNERS, Tracker

SIZE = (120, 34)
# Without the web fonts that Rich's own format loads.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code", "font-family: ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
)


def drawn(lines: list[Line], width: int) -> str:
    """Return lines of the screen as SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text.assemble(*((text, STYLES[style]) for text, style in line)), no_wrap=True, crop=True)
    return console.export_svg(title="gpu-exporter top --source simulated", code_format=FORMAT, unique_id="top")


def main() -> int:
    """Watch simulated GPUs, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/top.svg")
    chosen = parser.parse_args()
    config = Config(
        source="simulated",
        gpus=8,
        inject="GpuStragglerSlow:1",
        faults="lost node-000/6 at 10s for 1h",
    )
    feed = SourceFeed(only(config), Tracker(20.0, banner=BANNERS["simulated"]))
    feed.start(threading.Event().set)
    time.sleep(chosen.seconds)
    screen = Screen(UNICODE, SIZE, order="worst first")
    screen.lines(feed.view)
    screen.press("down")
    chosen.out.write_text(drawn(screen.lines(feed.view), SIZE[0]) + "\n")
    feed.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
