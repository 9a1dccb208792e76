"""Compares `trace analyze` with numbers of TraceLens (AMD, MIT), which come with the traces in its repository.

    git clone https://github.com/AMD-AGI/TraceLens
    python -m benchmarks.trace_references TraceLens/tests/traces

Each trace has a `gpu_timeline.csv` beside it. Prints a Markdown table in milliseconds (gpu-exporter / TraceLens), and
exits with 1 if a number differs by more than 0.1 %, except where the reason is known.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import RankResult

MOST = 0.001
# The kernel table of this reference lacks the five memsets, which take the 26.6 us that differ.
KNOWN = ("normalization_layer_test",)
ROWS = ("busy_time", "computation_time", "total_comm_time", "exposed_comm_time", "total_time")


def references(folder: Path) -> Iterator[tuple[Path, Mapping[str, float]]]:
    """Yield each trace with its reference numbers, ms."""
    for table in sorted(folder.rglob("gpu_timeline.csv")):
        with table.open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("is_recompute", "False") == "False"]
        values = {row["type"]: float(row["time ms"]) for row in rows}
        if any("is_recompute" in row for row in rows):  # the rest is in rows of its own, which overlap with these
            values = {name: values[name] for name in ("total_time", "total_comm_time")}
        for trace in _traces(table):
            yield trace, values


def _traces(table: Path) -> list[Path]:
    """Return the trace that a table belongs to."""
    parent = table.parent
    if parent.name == "perf_csvs":
        return sorted(path for path in parent.parent.glob("*.json.gz"))
    stem = parent.name.removesuffix("_perf_report_csvs").removesuffix("_recompute")
    return [path for path in [parent.parent / f"{stem}.json.gz"] if path.exists()]


def measured(rank: RankResult) -> Mapping[str, float]:
    """Return the same numbers of a result, ms."""
    seconds = (
        rank.busy_ratio * rank.span_seconds,
        rank.compute_seconds,
        rank.communication_seconds,
        rank.exposed_communication_seconds,
        rank.span_seconds,
    )
    return {name: value * 1e3 for name, value in zip(ROWS, seconds, strict=True)}


def _difference(found: float, expected: float) -> float:
    """Return the relative difference; both may be 0."""
    return abs(found - expected) / expected if expected else abs(found)


def main() -> int:
    """Print the table."""
    folder = Path(sys.argv[1])
    failed = False
    print("| trace | busy | computing | communication | exposed | span | largest difference |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for path, expected in references(folder):
        (rank, *_) = analyze([read(path)]).ranks
        found = measured(rank)
        worst = max(_difference(found[name], expected[name]) for name in ROWS if name in expected)
        failed |= worst > MOST and not path.name.startswith(KNOWN)
        cells = [f"{found[name]:.3f} / {expected[name]:.3f}" if name in expected else "-" for name in ROWS]
        print(f"| {path.relative_to(folder)} | {' | '.join(cells)} | {worst:.5%} |".replace("| 0.000 / 0.000", "| 0"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
