"""Draws every dashboard with Grafana's components, on a simulated fleet with six faults, and lists what looks wrong.

    python -m tests.boards [--only fleet,job] [--dashboards FOLDER] [--out build/boards] [--pictures]

The pictures and `report.txt` and `report.json` are written to the folder of `--out`. The fleet's history, which takes
some minutes, is kept there for the next run; `--fresh` makes it anew. `--pictures` writes those of the documentation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests import ROOT
from tests.boards import history, plan
from tests.support.prometheus import scraping
from tests.support.tools import tool

PAGE = ROOT / "tests" / "boards" / "page"
MODULES = ROOT / ".tools" / "boards" / "page" / "node_modules"
PICTURES = ROOT / "docs" / "images"
WIDTHS = (1920, 1280)
SHOWN_SECONDS = 3 * plan.HOUR
NOTE = "Simulated GPUs"
# What someone who follows a fault chooses on a dashboard, in addition to what it shows when it is opened.
CHOICES = {
    "node": ({"node": "node-006"}, {"node": "node-005"}),
    "gpu": ({"node": "node-006", "gpu": "5"}, {"node": "node-005", "gpu": "6"}),
    "job": (
        {"namespace": "nlp", "workload": "llm-pretrain"},
        {"namespace": "vision", "workload": "video-diffusion"},
        {"namespace": "chat", "workload": "llm-serve"},
    ),
}
# The pictures of the documentation: name, dashboard, choice, and height in pixels.
DOCUMENTED: Sequence[tuple[str, str, dict[str, str], int]] = (
    ("dashboards-fleet", "fleet", {}, 1080),
    ("dashboards-job", "job", CHOICES["job"][0], 1080),
    ("dashboards-gpu", "gpu", CHOICES["gpu"][0], 1080),
    ("dashboards-cost", "cost", {}, 1080),
)


@dataclass(frozen=True)
class Shot:
    """A picture to take."""

    url: str
    width: int
    png: str
    height: int | None = None


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@contextmanager
def page_server(out: Path, dashboards: Path) -> Iterator[str]:
    """Bundle the page, and serve it and the dashboards; yield the address."""
    folder = out / "page"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["node", str(PAGE / "build.mjs"), str(MODULES), str(folder)], check=True)
    shutil.copytree(dashboards, folder / "dashboards")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def shots(base: str, prometheus: str, boards: Sequence[Path], out: Path) -> Iterator[Shot]:
    """Yield the pictures of these dashboards: with all rows opened, also of each choice, and as on a small screen.

    The upper part of a picture with opened rows is what a dashboard shows when it is opened.
    """
    for name in (board.stem for board in boards):
        for choice in ({}, *CHOICES.get(name, ())):
            png = "-".join((name, f"{WIDTHS[0]}", *choice.values()))
            yield Shot(address(base, prometheus, name, choice, open="1"), WIDTHS[0], str(out / f"{png}.png"))
        yield Shot(address(base, prometheus, name, {}), WIDTHS[1], str(out / f"{name}-{WIDTHS[1]}.png"))


def address(base: str, prometheus: str, board: str, choice: dict[str, str], **more: str) -> str:
    """Return the page of a dashboard at the end of the fleet's history."""
    end = plan.START + plan.LENGTH - history.STEP
    times = {"from": f"{(end - SHOWN_SECONDS) * 1000:.0f}", "to": f"{end * 1000:.0f}"}
    variables = {f"var-{name}": value for name, value in choice.items()}
    return f"{base}/?{urlencode({'board': board, 'prom': prometheus, 'note': NOTE, **times, **variables, **more})}"


def taken(wanted: Sequence[Shot], out: Path) -> Iterator[dict[str, Any]]:
    """Take pictures; yield the report on each."""
    listing = out / "shots.json"
    listing.write_text(json.dumps({"chromium": str(tool("chromium")), "shots": [asdict(shot) for shot in wanted]}))
    command = ["node", str(PAGE / "shoot.mjs"), str(MODULES), str(listing)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")


def as_text(report: dict[str, Any]) -> str:
    """Return the report on one picture, for people."""
    queries = report["queries"]
    slowest = max((query.get("ms", 0) for query in queries), default=0)
    lines = [f"{Path(report['png']).name}: {report['height']} px, {len(queries)} queries, slowest {slowest} ms"]
    lines += [f"  {error}" for error in report["errors"]]
    for panel in report["panels"]:
        lines += [f"  {panel['title']}: {problem}" for problem in panel["problems"]]
    return "\n".join(lines)


def main() -> int:
    """Take the pictures and write the reports; fail if a query or a component fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of dashboards, separated by commas")
    parser.add_argument("--dashboards", type=Path, default=ROOT / "dashboards")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "boards")
    parser.add_argument("--fresh", action="store_true", help="make the fleet's history anew")
    parser.add_argument("--pictures", action="store_true", help="write the pictures of the documentation only")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    stored = chosen.out / "history"
    if chosen.fresh or not (stored / "data").exists():
        shutil.rmtree(stored, ignore_errors=True)
        stored.mkdir()
        history.blocks(stored)
    only = chosen.only.split(",") if chosen.only else None
    boards = [path for path in sorted(chosen.dashboards.glob("*.json")) if only is None or path.stem in only]
    with (
        scraping(stored, "1h", {"static_configs": []}) as prometheus,
        page_server(chosen.out, chosen.dashboards) as base,
    ):
        server = f"http://127.0.0.1:{prometheus.port}"
        if chosen.pictures:
            wanted = [
                Shot(address(base, server, board, choice), WIDTHS[0], str(PICTURES / f"{name}.png"), height)
                for name, board, choice, height in DOCUMENTED
            ]
        else:
            wanted = list(shots(base, server, boards, chosen.out))
        reports = []
        for number, report in enumerate(taken(wanted, chosen.out), 1):
            reports.append(report)
            print(f"picture {number} of {len(wanted)}: {as_text(report)}", flush=True)
    (chosen.out / "report.json").write_text(json.dumps(reports, indent=1))
    (chosen.out / "report.txt").write_text("\n".join(map(as_text, reports)) + "\n")
    failed = [report for report in reports if report["errors"] or any("error" in query for query in report["queries"])]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
