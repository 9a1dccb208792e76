"""Draws dashboards of other exporters before and after `gpu-exporter rewrite`, on the same GPUs.

    python -m tests.boards.peers DASHBOARD.json… [--out build/peers]

Prometheus scrapes recorded pages of the other exporters, and gpu-exporter on the GPUs that they were recorded on. What
a panel shows is printed if it differs after rewriting. Exit code 1 if a panel whose queries were all rewritten is empty
then, and was not before. The pictures are in the folder of `--out`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from gpu_exporter.catalogue.peer_series import PeerExporter
from gpu_exporter.migration.files import Migration
from tests import ROOT
from tests.boards.__main__ import WIDTHS, Shot, page_server, taken
from tests.boards.contents import contents
from tests.conftest import serving
from tests.support.fakes.driver import identity
from tests.support.peer_pages import GPU, NODE, page_of, scraped

# What the dashboards show. Grafana assumes an interval of 15 s, so rates need a minute.
SECONDS = 180
NOTE = "GPUs of a fake driver"


def flat(board: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dashboard without rows, with the panels of those that are collapsed."""
    panels = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    return {**board, "panels": [panel for panel in panels if panel["type"] != "row"]}


def variables(peer: PeerExporter, *, after: bool) -> Mapping[str, str]:
    """Return the variables that choose the first GPU, before or after rewriting."""
    uuid = str(identity(0)["UUID"])
    known = uuid if after else uuid.removeprefix(peer.prefixes.get("uuid", ""))
    return {"var-job": GPU if after else page_of(peer), "var-node": NODE, "var-hostname": NODE, "var-gpu": known}


def shown(panel: Mapping[str, Any]) -> list[str]:
    """Return the texts of a panel: of a table all, otherwise the latest of each series.

    Without names that Grafana makes of all labels, and without the prefix that not every exporter gives UUIDs.
    """
    fields = [field for frame in panel["frames"] if frame["rows"] for field in frame["fields"] if not field["hidden"]]
    rows = slice(None) if panel["type"] == "table" else slice(-1, None)
    named = (
        ("" if "{" in each["name"] else each["name"], each["text"][rows]) for each in fields if each["type"] != "time"
    )
    return sorted(f"{name}: {', '.join(texts)}".removeprefix("GPU-") for name, texts in named)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, bool]:
    """Return how a panel differs after rewriting, empty if it does not; and whether that is an error."""
    old, new = shown(before), shown(after)
    if old == new:
        return "", False
    refused = [query["expr"] for query in after["queries"] if query["expr"].startswith("#")]
    lines = [f"  {after['title']} ({after['type']})", *(f"    {each.splitlines()[0]}" for each in refused)]
    lines += [
        f"    {name}: {' | '.join(texts) or 'nothing'}"[:400] for name, texts in (("before", old), ("after", new))
    ]
    return "\n".join(lines), bool(old and not new and not refused)


def main() -> int:
    """Draw the dashboards, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dashboards", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers")
    arguments = parser.parse_args()
    boards = arguments.out / "dashboards"
    boards.mkdir(parents=True, exist_ok=True)
    views = []
    for path in arguments.dashboards:
        content, migration = path.read_text(), Migration()
        peer = next(series.peer for name, series in migration.series.items() if name in content)
        for when, text in (("before", content), ("after", migration.migrate(content))):
            (boards / f"{path.stem}-{when}.json").write_text(text)
            views.append((f"{path.stem}-{when}", json.loads(text), variables(peer, after=when == "after")))
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as serve,
        scraped(Path(folder), serve, "5s") as prometheus,
        page_server(arguments.out, boards) as base,
    ):
        time.sleep(SECONDS)
        server, end = f"http://127.0.0.1:{prometheus.port}", prometheus.now()
        panels = contents(server, [(flat(board), chosen) for _, board, chosen in views], end - SECONDS, end)
        for number, path in enumerate(arguments.dashboards):
            pairs = list(zip(panels[2 * number], panels[2 * number + 1], strict=True))
            found = [differences(*pair) for pair in pairs]
            full, equal = sum(bool(shown(before)) for before, _ in pairs), sum(not text for text, _ in found)
            print(f"{path.name}: {full} of {len(pairs)} panels had content, {equal} show the same after rewriting")
            print("\n".join(text for text, _ in found if text), flush=True)
            wrong += sum(error for _, error in found)
        times = {"prom": server, "from": f"{(end - SECONDS) * 1000:.0f}", "to": f"{end * 1000:.0f}", "open": "1"}
        shots = [
            Shot(
                f"{base}/?{urlencode({'board': name, 'note': NOTE, **times, **chosen})}",
                WIDTHS[0],
                str(arguments.out / f"{name}.png"),
            )
            for name, _, chosen in views
        ]
        for report in taken(shots, arguments.out):
            print(report["png"], *report["errors"], flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
