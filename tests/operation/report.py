"""Write docs/alert-quality.md from the results of `make soak`: `python -m tests.operation.report`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gpu_exporter.reports.markdown import table
from tests import ROOT
from tests.operation.verdict import SEVERITIES

RESULTS = ROOT / "tests" / "operation" / "results"
PAGE = ROOT / "docs" / "alert-quality.md"
# What is expected of each severity in normal operation with incidents, and why.
EXPECTED = {
    "critical": "Only fatal faults of the hardware. Each page is an injected fault; there is no false page.",
    "warning": "Faults, hangs, stragglers and GPUs that are held without use. Fewer than one false ticket "
    "per node and month.",
    "info": "What limits the programs that run. These alerts describe normal work, so they fire often; they are shown "
    "on dashboards and notify nobody.",
}
NAMES = {
    "usual-1": "The usual mix, seed 1",
    "usual-2": "The usual mix, seed 2",
    "other-5": "Another mix of jobs and recordings, which the rules were not tuned with",
}
INTRO = """# Alert quality

How often do the alerts fire when nothing is wrong, and do they fire when something is? `make soak` composes weeks of
operation and evaluates all rules over them, with the rule engine of Prometheus itself on a virtual clock. This page
shows the results of its last run. It is rendered: run `make soak`, or `python -m tests.operation.report` for the page
alone. `python -m tests.operation.run --between 0 3` judges only three days of a period, with some of its faults.

## What is in a period?

- Nodes with gpu-exporter and with two generations of dcgm-exporter, with the values of recorded H200s.
- Training jobs with loading, allocators that fill up, checkpoints and evaluations; even and uneven pipelines; serving
  by day and almost no requests at night; notebooks, some of them forgotten; jobs that work in bursts; a GPU in MIG
  mode; a node that an autoscaler adds and removes.
- Planned reboots, failed scrapes, restarts of Prometheus, and nodes whose clock is wrong by up to ten minutes.
- Faults: every failure mode of the [catalogue](failure-modes.md), fatal XIDs with what they do to a GPU, and hangs
  during a restart of Prometheus. Each is injected at a known time, and its alert must fire within its hold, its window
  and 12 minutes; failed scrapes in that time add to it, and a stop of Prometheus adds its length and the hold, because
  Prometheus may hold the alert anew. An alert on a fatal XID must last until the repair.

Loads are repeated parts of recordings, faults are injected values: no fault of this page happened to real hardware.
Real clusters have jobs that no recording has.

## How is a firing judged?

A firing is *right* if an injected fault, or what the program does, explains it. It is *repeated* if the same alert has
already reported the same thing on the same GPU, such as after a restart of Prometheus, which forgets that an alert was
to keep firing. Everything else is *false*.

## How are incidents counted?

An [incident](diagnose.md#which-finding-is-the-cause) is a cause, with all alerts that it explains; the same cause on
several GPUs of a node or job is one. It is judged as its first alert is, and has the severity of the most urgent one.
An alert that fires before its cause, or after it, is an incident of its own meanwhile. *Notifications* are the
incidents among critical alerts and warnings: what the example for Alertmanager sends as a page or a ticket.
"""
NONE = "\nNo results are stored yet: run `make soak`.\n"


def page() -> str:
    """Return the page."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    periods = "".join(_period(NAMES[name], results[name]) for name in NAMES if name in results)
    return INTRO + (periods or NONE)


def _period(name: str, result: Mapping[str, Any]) -> str:
    weeks = result["nodes"] * result["days"] / 7
    late, minutes = result["longest_delay"]
    missed, late_ones = (", ".join(result[key]) or "none" for key in ("missed", "late"))
    early = ", ".join(result["ended_early"]) or "none"
    from_day, to_day = result["from_day"], round(result["from_day"] + result["days"], 1)
    facts = (
        f"Days {from_day:g} to {to_day:g} of {result['nodes']} nodes with {result['gpus']} GPUs "
        f"({weeks:.1f} node-weeks), {result['injected']} injected faults, of which {result['one_incident']} were one "
        f"incident each. Not detected: {missed}. Detected late: {late_ones}. Ended before the repair: {early}. Half of "
        f"the faults were detected within {result['median_delay_minutes']:g} minutes; the longest delay was "
        f"{minutes:g} minutes ({late})."
    )
    head = ("severity", "per node and week", "all", "right", "repeated", "false", "what is expected, and why")
    alerts = (
        "alert",
        "severity",
        "firings",
        "right",
        "repeated",
        "false",
        "hours",
        "within minutes",
        "right because of",
    )
    return (
        f"\n## {name}\n\n{facts}\n\n{table(head, list(_by_severity(result, weeks)))}\n"
        f"{table(alerts, list(_by_alert(result)))}"
    )


def _by_severity(result: Mapping[str, Any], weeks: float) -> Iterator[tuple[str, ...]]:
    for severity in SEVERITIES:
        for what, counts in result["severities"][severity].items():
            if severity == "info" and what == "notifications":
                continue
            numbers = (f"{counts[column] / weeks:.2f}" for column in ("all", "right", "repeated", "false"))
            yield (severity, what, *numbers, EXPECTED[severity] if what == "firings" else "")


def _by_alert(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for row in result["alerts"]:
        counts = (str(row[column]) for column in ("firings", "right", "repeated", "false"))
        delay = result["longest_delays"].get(row["alert"])
        link = f"[{row['alert']}](runbooks/{row['alert'].lower()}.md)"
        yield (
            link,
            row["severity"],
            *counts,
            f"{row['hours']:.1f}",
            f"{delay:g}" if delay is not None else "-",
            ", ".join(row["reasons"]) or "-",
        )


def main() -> int:
    """Write the page."""
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
