"""The measured, computed and compared sections of docs/scale.md, rendered from results here and in tests/scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import scale_plan
from gpu_exporter.reports import markdown

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/scale.md"
BEGIN, END = "<!-- from benchmarks/results/scale.json -->\n", "<!-- end -->\n"
STORES, END_OF_STORES = "<!-- from tests/scale/results/stores.json -->\n", "<!-- end of stores -->\n"
STORES_RESULT = ROOT / "tests/scale/results/stores.json"
PLAN, END_OF_PLAN = "<!-- computed from benchmarks/results/scale.json -->\n", "<!-- end of plan -->\n"

Report = Mapping[str, Any]
_ROWS: tuple[tuple[str, Callable[[Report, Report], str]], ...] = (
    ("GPUs", lambda asked, load: f"{asked['nodes'] * asked['gpus']}, on {asked['nodes']} nodes"),
    ("scrape interval, duration", lambda asked, load: f"{asked['interval']} s, {asked['seconds']} s"),
    ("scrapes", lambda asked, load: f"{load['scrapes']}: {load['failed']} failed, {load['late']} late"),
    ("missed evaluations of rule groups", lambda asked, load: f"{load['rules_missed']}"),
    (
        "series for each GPU",
        lambda asked, load: (
            f"{load['scraped_series_per_gpu']:.0f} scraped, {load['recorded_series_per_gpu']:.0f} recorded"
        ),
    ),
    ("series in memory", lambda asked, load: f"{load['head_series']}"),
    (
        "samples a second",
        lambda asked, load: f"{load['samples_per_second']:.0f} scraped, {load['recorded_per_second']:.0f} recorded",
    ),
    ("bytes a sample, on disk", lambda asked, load: f"{load['bytes_per_sample']:.2f}"),
    (
        "Prometheus",
        lambda asked, load: f"{load['prometheus_cpu']:.2f} of a core, {load['prometheus_mib'] / 1024:.1f} GiB",
    ),
    (
        "the exporter, as all nodes",
        lambda asked, load: f"{load['exporter_cpu']:.2f} of a core, {load['exporter_mib']:.0f} MiB",
    ),
    (
        "queries of the first screen of the dashboard Fleet",
        lambda asked, load: (
            f"{load['fleet_queries']} in {load['fleet_seconds']:.2f} s" if "fleet_seconds" in load else ""
        ),
    ),
)


def section(reports: Sequence[Report]) -> str:
    """Return the section: a table with a column for each report, in order. Rows that no report has are left out."""
    machine = reports[0]["machine"]
    rows = [[title, *(shown(each["asked"], each["load"]) for each in reports)] for title, shown in _ROWS]
    rows = [row for row in rows if any(row[1:])]
    groups = reports[0]["load"]["rule_intervals"]
    took = [
        [f"`{name}`, every {every:.0f} s", *(f"{each['load']['rule_seconds'][name]:.2f} s" for each in reports)]
        for name, every in groups.items()
    ]
    head = [f"`--metrics {each['asked']['metrics']}`" for each in reports]
    return (
        f"{reports[0]['date']}, Prometheus {machine['prometheus']} and the simulated nodes together on "
        f"{machine['cores']} cores ({machine['cpu']}):\n\n{markdown.table(['', *head], rows)}\n"
        f"The longest evaluation of each rule group:\n\n{markdown.table(['', *head], took)}"
    )


def known() -> list[Report]:
    """Return the committed reports: of the default metric set, and of all metrics if that was measured, too."""
    paths = (RESULTS / "scale.json", RESULTS / "scale_full.json")
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def stores_section(clusters: Sequence[Report]) -> str:
    """Return the table of clusters of stores, with a column for each: with all stores, and after the loss of one."""
    rows: Sequence[tuple[str, Callable[[Report], str]]] = (
        ("rules that failed", lambda look: f"{look['failed']} of {look['rules']}"),
        ("firing alerts that differ", lambda look: f"{look['other_alerts']} of {look['alerts']}"),
        ("queries with a result that differ", lambda look: f"{look['differ']} of {look['equal'] + look['differ']}"),
    )
    table = [[title, *("; then ".join(map(shown, cluster["looks"])) for cluster in clusters)] for title, shown in rows]
    return markdown.table(["", *(f"{each['name']}, {each['date']}" for each in clusters)], table)


def known_stores() -> list[Report]:
    """Return the committed comparisons of clusters of stores."""
    clusters: list[Report] = json.loads(STORES_RESULT.read_text())
    return clusters


def page(text: str, reports: Sequence[Report], clusters: Sequence[Report]) -> str:
    """Return the page with new sections: what was measured, what is computed from it, and what was compared."""
    text = _replaced(text, BEGIN, section(reports), END)
    text = _replaced(text, STORES, stores_section(clusters), END_OF_STORES)
    return _replaced(text, PLAN, scale_plan.section(reports[0]), END_OF_PLAN)


def _replaced(text: str, begin: str, section: str, end: str) -> str:
    before, rest = text.split(begin)
    return f"{before}{begin}\n{section}\n{end}{rest.split(end)[1]}"
