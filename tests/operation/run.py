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
from tests.operation.fleet import HOUR
from tests.operation.verdict import SEVERITIES, Firing, Verdict, firings, joined
from tests.rules.needed import write_needed
from tests.rules.shapes import STEP

PROGRAM = ROOT / ".tools" / "virtual_clock" / "virtual_clock"
RULES = ROOT / "alerts"
# Scrapes before each part of a period: the longest window of a rule is a day.
OVERLAP = 26 * HOUR
# False alerts that are acceptable: none pages anyone, and a ticket is rarer than one per node and month.
WEEKS_PER_TICKET = 52 / 12


def judge(period: Period, rules: Path = RULES, processes: int = 1) -> Verdict:
    """Run a period through rules in Prometheus' own rule engine, and judge what they report.

    With several processes, each runs a part of the period, and OVERLAP before it, which fills the windows of the rules.
    """
    fleet = period.fleet()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "period.json"
        write(fleet, path)
        write_needed(rules, Path(folder) / "rules.yaml")
        edges = [fleet.total * part // processes for part in range(processes + 1)]
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
    for firing in (*verdict.false, *verdict.repeats):
        if firing.severity != "info":
            what = "false" if firing in verdict.false else "repeated"
            at = f"{firing.start / 86400:6.2f} d"
            lines.append(
                f"{at}  {firing.node:10}{firing.gpu:3}{firing.name:32}{firing.severity:10}{firing.hours:6.2f} h  {what}"
            )
    lines += [f"ended early: {truth.what} on {truth.node}: {name}" for truth, name in verdict.ended_early]
    incidents = len({(truth.what, truth.node, truth.start) for truth, _, _ in verdict.detections})
    noise = ", ".join(f"{len(verdict.noise(severity))} {severity}" for severity in SEVERITIES)
    lines.append(
        f"{verdict.node_weeks:.0f} node-weeks, {incidents} incidents, {len(verdict.missed)} missed; noise: {noise}"
    )
    return "\n".join(lines)


def main() -> int:
    """Print the verdict; fail if it is not acceptable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--composition", choices=COMPOSITIONS, default="usual")
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1, help="parts of the period that run at the same time")
    parser.add_argument("--rules", type=Path, default=RULES, help="folder of rule files")
    parser.add_argument("--json", type=Path, help="file for the numbers that docs/alert-quality.md shows")
    chosen = parser.parse_args()
    verdict = judge(Period(chosen.composition, chosen.days, chosen.seed), chosen.rules, chosen.processes)
    print(report(verdict))
    if chosen.json:
        chosen.json.write_text(json.dumps(verdict.summary(), indent=1) + "\n")
    tickets = sum(each.severity == "warning" for each in verdict.false)
    bad = [each for each in verdict.false if each.severity == "critical"] or verdict.missed or verdict.ended_early
    return 0 if not bad and tickets * WEEKS_PER_TICKET < verdict.node_weeks else 1


if __name__ == "__main__":
    sys.exit(main())
