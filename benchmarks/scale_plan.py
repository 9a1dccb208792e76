"""Computes layouts for fleets of GPUs from what `benchmarks.scale` has measured: shards, memory, rules, storage.

    python -m benchmarks.scale_plan [--gpus 1000 --gpus 100000] [--measured FILE] [--interval 30] [--cores 8]
                                    [--memory 32] [--full 0.5] [--days 15] [--price 0.08]

All grows in proportion to GPUs; the measurement is of one Prometheus. Measure your own with `python -m benchmarks.scale
--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from gpu_exporter.alerting import levels, rules
from gpu_exporter.reports import markdown

MEASURED = ROOT / "benchmarks/results/scale.json"
FLEETS = (1_000, 10_000, 100_000)
# Series that shards forward for each GPU, if all exist: an upper bound.
FORWARDED = sum(name.startswith("gpu:") for name in levels.split(rules.groups({})).forwarded)
MIB_PER_GIB, BYTES_PER_GB, DAY = 1024, 1e9, 86400


@dataclass(frozen=True, slots=True)
class Server:
    """A server for one Prometheus: cores, GiB of memory, the share of both to use, days to keep, USD per GB-month."""

    cores: float
    memory: float
    full: float
    days: float
    price: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one GPU costs a Prometheus; `rules` is the largest share of its interval that a rule group takes."""

    scraped: float
    recorded_per_second: float
    cores: float
    mib: float
    mib_per_series: float
    rules: float
    bytes: float

    @classmethod
    def of(cls, report: Mapping[str, Any], interval: float) -> Measured:
        """Return the measurement of a report, for scrapes at another interval: CPU is in proportion to samples.

        Raises KeyError or TypeError for a report that `benchmarks.scale` did not write.
        """
        asked, load = report["asked"], report["load"]
        gpus = asked["nodes"] * asked["gpus"]
        recorded = load["recorded_per_second"] / gpus
        before = load["samples_per_second"] / gpus + recorded
        now = load["scraped_series_per_gpu"] / interval + recorded
        return cls(
            scraped=load["scraped_series_per_gpu"] / interval,
            recorded_per_second=recorded,
            cores=load["prometheus_cpu"] / gpus * now / before,
            mib=load["prometheus_mib"] / gpus,
            mib_per_series=load["prometheus_mib"] / load["head_series"],
            rules=max(took / load["rule_intervals"][name] for name, took in load["rule_seconds"].items()) / gpus,
            bytes=load["bytes_per_sample"],
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout for a number of GPUs."""

    gpus: int
    shards: int
    per_shard: int
    cores: float
    gib: float
    rules: float
    samples: float
    recorded: float
    above: int
    gib_above: float
    gigabytes: float
    dollars: float


def plan(gpus: int, measured: Measured, server: Server) -> Plan:
    """Return the layout: as few shards as CPU, memory and half of the interval of the slowest rule group allow."""
    most = min(
        server.cores * server.full / measured.cores,
        server.memory * server.full * MIB_PER_GIB / measured.mib,
        0.5 / measured.rules,
    )
    shards = ceil(gpus / most)
    each = ceil(gpus / shards)
    forwarded = FORWARDED * gpus if shards > 1 else 0
    samples = (measured.scraped + measured.recorded_per_second) * gpus
    gigabytes = samples * measured.bytes * DAY * server.days / BYTES_PER_GB
    return Plan(
        gpus=gpus,
        shards=shards,
        per_shard=each,
        cores=each * measured.cores,
        gib=each * measured.mib / MIB_PER_GIB,
        rules=each * measured.rules,
        samples=measured.scraped * gpus,
        recorded=measured.recorded_per_second * gpus,
        above=forwarded,
        gib_above=forwarded * measured.mib_per_series / MIB_PER_GIB,
        gigabytes=gigabytes,
        dollars=gigabytes * server.price,
    )


def table(plans: Sequence[Plan], server: Server) -> str:
    """Return the plans as a Markdown table, a column each."""
    rows: Sequence[tuple[str, Sequence[str]]] = (
        ("Prometheus servers that scrape", [f"{each.shards}" for each in plans]),
        ("GPUs of each", [f"{each.per_shard}" for each in plans]),
        ("CPU of each", [f"{each.cores:.1f} cores" for each in plans]),
        ("memory of each", [f"{each.gib:.1f} GiB" for each in plans]),
        ("slowest rule group, as a share of its interval", [f"{each.rules:.0%}" for each in plans]),
        ("samples a second, scraped", [f"{each.samples:.0f}" for each in plans]),
        ("samples a second, recorded", [f"{each.recorded:.0f}" for each in plans]),
        ("series forwarded to the level above, at most", [f"{each.above or '-'}" for each in plans]),
        ("its memory, at most", [f"{each.gib_above:.1f} GiB" if each.above else "-" for each in plans]),
        (f"storage for {server.days:g} days", [f"{each.gigabytes:.0f} GB" for each in plans]),
        (f"its price at {server.price:g} USD per GB and month", [f"{each.dollars:.0f} USD a month" for each in plans]),
    )
    return markdown.table(["", *(f"{each.gpus} GPUs" for each in plans)], [[title, *values] for title, values in rows])


def section(report: Mapping[str, Any]) -> str:
    """Return the computed section of docs/scale.md: the default fleets and server."""
    server, interval = Server(**DEFAULTS), float(report["asked"]["interval"])
    measured = Measured.of(report, interval)
    return (
        f"Computed, not measured, from the measurement of {report['date']} above; scraped every {interval:.0f} s, "
        f"servers of {server.cores:g} cores and {server.memory:g} GiB, filled to {server.full:.0%}:\n\n"
        f"{table([plan(gpus, measured, server) for gpus in FLEETS], server)}"
    )


DEFAULTS: Mapping[str, float] = {"cores": 8.0, "memory": 32.0, "full": 0.5, "days": 15.0, "price": 0.08}
_HELP = {
    "cores": "cores of a server",
    "memory": "GiB of memory of a server",
    "full": "share of cores and memory to use; the rest is for queries",
    "days": "days of retention",
    "price": "USD per GB and month of storage",
}


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main() -> int:
    """Print the plans; return 2 if the measurement cannot be read."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, action="append", help="GPUs of a fleet; repeat it for several")
    options.add_argument("--measured", type=Path, default=MEASURED, help="file that `benchmarks.scale --json` wrote")
    options.add_argument("--interval", type=_positive, default=30.0, help="scrape interval in seconds")
    for name, default in DEFAULTS.items():
        options.add_argument(f"--{name}", type=_positive, default=default, help=f"{_HELP[name]} (default: %(default)s)")
    chosen = options.parse_args()
    server = Server(**{name: getattr(chosen, name) for name in DEFAULTS})
    try:
        measured = Measured.of(json.loads(chosen.measured.read_text()), chosen.interval)
    except (OSError, KeyError, TypeError, ValueError) as error:
        options.error(f"{chosen.measured}: {error!r}; write it with `python -m benchmarks.scale --json FILE`")
    print(table([plan(gpus, measured, server) for gpus in chosen.gpus or FLEETS], server))
    return 0


if __name__ == "__main__":
    sys.exit(main())
