"""Run a period of operation through the rules: `python -m tests.operation.run --composition usual --seed 1`."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from tests import ROOT
from tests.operation.compositions import COMPOSITIONS, Period
from tests.operation.encode import write
from tests.operation.fleet import DAY, HOUR
from tests.operation.verdict import SEVERITIES, Firing, Verdict, firings, joined
from tests.rules.needed import write_needed
from tests.rules.shapes import STEP

PROGRAM = ROOT / ".tools" / "virtual_clock" / "virtual_clock"
RULES = ROOT / "alerts"
# Scrapes before each part of a period: the longest window of a rule is a day.
OVERLAP = 26 * HOUR
# False alerts that are acceptable: none pages anyone, and a ticket is rarer than one per node and month.
WEEKS_PER_TICKET = 52 / 12


def judge(
    period: Period, rules: Path = RULES, processes: int = 1, between: tuple[float, float] | None = None
) -> Verdict:
    """Run a period, or what is between two of its days, through rules in Prometheus' own rule engine; judge the alerts.

    With several processes, each runs a part, and OVERLAP before it, which fills the windows of the rules.
    """
    fleet = period.fleet()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "period.json"
        write(fleet, path)
        write_needed(rules, Path(folder) / "rules.yaml")
        if between:
            fleet.cut(*(round(day * DAY) for day in between))
        edges = [fleet.first + (fleet.total - fleet.first) * part // processes for part in range(processes + 1)]
        parts = list(pairwise(edges))

        def run(part: tuple[int, int]) -> list[Firing]:
            first = max(0, part[0] - OVERLAP)
            tsdb = f"{folder}/tsdb-{first}"
            command = [str(PROGRAM), str(path), f"{folder}/rules.yaml", tsdb, str(first), str(part[1])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            shutil.rmtree(tsdb)
            return firings(done.stdout.splitlines(), part[1] * STEP)

        with ThreadPoolExecutor(processes) as pool:
            found = list(pool.map(run, parts))
    return Verdict(fleet, joined([(start * STEP, each) for (start, _), each in zip(parts, found, strict=True)]))


def report(verdict: Verdict) -> str:
    """Return all about a period, for people."""
    lines = [verdict.table(), "", verdict.delays(), ""]
    for firing in (*verdict.alerts.false, *verdict.alerts.repeated):
        if firing.severity != "info":
            lines.append(f"{_line(firing)}  {'false' if firing in verdict.alerts.false else 'repeated'}")
    lines += ["", "Injected faults that are not one incident:"]
    for of_fault in verdict.injected.values():
        lines += [_line(each) for each in of_fault if len(of_fault) > 1]
    lines += [f"ended early: {truth.what} on {truth.node}: {name}" for truth, name in verdict.ended_early]
    for severity in SEVERITIES:
        for what, judged in (
            ("firings", verdict.alerts),
            ("incidents", verdict.incidents),
            ("notifications", verdict.notifications),
        ):
            counts = ", ".join(f"{number} {name}" for name, number in judged.counts(severity).items())
            lines.append(f"{severity} {what}: {counts}")
    lines.append(
        f"{verdict.node_weeks:.0f} node-weeks, {len(verdict.injected)} injected faults, {len(verdict.missed)} missed"
    )
    return "\n".join(lines)


def _line(firing: Firing) -> str:
    at = f"{firing.start / 86400:6.2f} d"
    return f"{at}  {firing.node:10}{firing.gpu:3}{firing.name:32}{firing.severity:10}{firing.hours:6.2f} h"


def main() -> int:
    """Print the verdict; fail if it is not acceptable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--composition", choices=COMPOSITIONS, default="usual")
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--between", type=float, nargs=2, metavar="DAY", help="judge only what is between two days of the period"
    )
    parser.add_argument("--processes", type=int, default=1, help="parts of the period that run at the same time")
    parser.add_argument("--rules", type=Path, default=RULES, help="folder of rule files")
    parser.add_argument("--json", type=Path, help="file for the numbers that docs/alert-quality.md shows")
    chosen = parser.parse_args()
    period = Period(chosen.composition, chosen.days, chosen.seed)
    verdict = judge(period, chosen.rules, chosen.processes, chosen.between)
    print(report(verdict))
    if chosen.json:
        chosen.json.write_text(json.dumps(verdict.summary(), indent=1) + "\n")
    pages, tickets = (verdict.alerts.counts(severity)["false"] for severity in ("critical", "warning"))
    bad = pages or verdict.missed or verdict.ended_early
    return 0 if not bad and tickets * WEEKS_PER_TICKET < verdict.node_weeks else 1


if __name__ == "__main__":
    sys.exit(main())
