"""Records docs/images/top.svg: what `gpu-exporter top` shows of simulated GPUs, two of which have a fault.

    python -m benchmarks.top_picture [--seconds 40] [--out docs/images/top.svg]

The frames are the text of the terminal after some keys, one after another. Readers who prefer no motion see the first.
The picture is sharp at any size, and loads no fonts.
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
from gpu_exporter.model.source_kind import BANNERS
from gpu_exporter.sources.choice import make_source
from gpu_exporter.top.feeds import SourceFeed
from gpu_exporter.top.lines import STYLES, UNICODE, Line
from gpu_exporter.top.screen import Screen
from gpu_exporter.top.tracker import Tracker

SIZE = (120, 34)
# Without the web fonts that Rich's own format loads.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code", "font-family: ui-monospace, Menlo, Consolas, DejaVu Sans Mono"
)


# The keys before each frame, with what is said about it.
FRAMES = (
    ((), "gpu-exporter top --source simulated: the worst first"),
    (("down", "enter"), "Enter: everything about a GPU"),
    (("esc", *"sss", "/", *"comm", "enter"), "sorted by SM activity, filtered by /comm"),
    (("?",), "?: help"),
)
FRAME_SECONDS = 4


def drawn(lines: list[Line], title: str, name: str) -> str:
    """Return lines of the screen as SVG, with ids and classes that begin with a name."""
    console = Console(record=True, width=SIZE[0], file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text.assemble(*((text, STYLES[style]) for text, style in line)), no_wrap=True, crop=True)
    return console.export_svg(title=title, code_format=FORMAT, unique_id=name)


def animated(frames: list[str]) -> str:
    """Return frames as one SVG, in which each is shown for some seconds."""
    head = re.match(r"<svg[^>]*>", frames[0])
    assert head
    bodies = [frame[head.end() : frame.rindex("</svg>")] for frame in frames]
    share = 100 / len(frames)
    style = [
        f"@keyframes frame{{0%,{share - 0.01:.2f}%{{visibility:visible}}{share:.2f}%,100%{{visibility:hidden}}}}",
        f".frame{{visibility:hidden;animation:frame {FRAME_SECONDS * len(frames)}s step-end infinite}}",
        *(f".frame{number}{{animation-delay:{FRAME_SECONDS * number}s}}" for number in range(len(frames))),
        "@media (prefers-reduced-motion){.frame{animation:none}.frame0{visibility:visible}}",
    ]
    parts = [f'<g class="frame frame{number}">{body}</g>' for number, body in enumerate(bodies)]
    return f"{head[0]}<style>{''.join(style)}</style>{''.join(parts)}</svg>"


def main() -> int:
    """Watch simulated GPUs, and write the recording."""
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
    feed = SourceFeed(make_source(config), Tracker(20.0, banner=BANNERS["simulated"]))
    feed.start(threading.Event().set)
    time.sleep(chosen.seconds)
    screen = Screen(UNICODE, SIZE)
    frames = []
    for number, (keys, title) in enumerate(FRAMES):
        screen.lines(feed.view)
        for key in keys:
            screen.press(key)
        frames.append(drawn(screen.lines(feed.view), title, f"top{number}"))
    chosen.out.write_text(animated(frames) + "\n")
    feed.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
