"""`gpu-exporter check --collectives`: measures collectives between the ranks of a job, and prints them on rank 0."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from gpu_exporter.active_checks.collectives import CollectiveFinding, MeasuredCollective, findings, limit, measure
from gpu_exporter.health.check import EXIT_CODES
from gpu_exporter.model.verdict import Health
from gpu_exporter.reports.numbers import counted

# How long a rank waits for the others.
WAIT_SECONDS = 120.0


def run_collectives(seconds: float | None, *, as_json: bool) -> int:
    """Measure, print the result on rank 0, and return the exit code, which is the same on all ranks."""
    measured, number = measure(seconds or WAIT_SECONDS)
    found = list(findings(measured))
    if number == 0:
        click.echo(json.dumps(_as_dict(measured, found), indent=2) if as_json else "\n".join(_lines(measured, found)))
    return EXIT_CODES[Health.DEGRADED if found else Health.HEALTHY]


def _lines(measured: MeasuredCollective, found: Sequence[CollectiveFinding]) -> Iterator[str]:
    nodes = len({rank.node for rank in measured.ranks})
    yield f"{counted(len(measured.ranks), 'rank')} on {counted(nodes, 'node')}; bus bandwidth as in nccl-tests"
    for each in measured.collectives:
        most = limit(each.name, measured.ranks, measured.fabric)
        share = f"  {each.bandwidth / most:4.0%} of what the links allow" if most else ""
        yield f"  {each.name:10} {each.size / (1 << 20):6.0f} MiB {each.bandwidth / 1e9:8.1f} GB/s{share}"
    for (one, other), rate in sorted(measured.pairs.items()):
        yield f"  ranks {one} and {other} {rate / 1e9:12.1f} GB/s each way"
    yield from (finding.words for finding in found)
    yield "collectives: " + (counted(len(found), "finding") if found else "healthy")


def _as_dict(measured: MeasuredCollective, found: Sequence[CollectiveFinding]) -> dict[str, object]:
    return {
        "ok": not found,
        "ranks": [asdict(rank) for rank in measured.ranks],
        "fabric": asdict(measured.fabric),
        "collectives": [
            {**asdict(each), "limit": limit(each.name, measured.ranks, measured.fabric)}
            for each in measured.collectives
        ],
        "pairs": [{"ranks": pair, "bandwidth": rate} for pair, rate in sorted(measured.pairs.items())],
        "findings": [asdict(finding) for finding in found],
    }
