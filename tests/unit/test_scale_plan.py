"""Plans of fleets are in proportion to what was measured, and no limit of a server is exceeded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.scale_plan import DEFAULTS, FORWARDED, MEASURED, Measured, Server, plan, table

SERVER = Server(**DEFAULTS)
GPU = Measured(scraped=4.0, recorded_per_second=1.0, cores=1e-4, mib=1.0, mib_per_series=0.005, rules=2e-5, bytes=2.0)


def test_one_server_is_enough() -> None:
    """Without a level above."""
    found = plan(10_000, GPU, SERVER)
    assert (found.shards, found.per_shard, found.above, found.gib_above) == (1, 10_000, 0, 0.0)
    assert found.cores == pytest.approx(1.0)
    assert found.gib == pytest.approx(10_000 / 1024)
    assert (found.samples, found.recorded) == (40_000, 10_000)
    assert found.gigabytes == pytest.approx(50_000 * 2 * 86400 * 15 / 1e9)
    assert found.dollars == pytest.approx(found.gigabytes * 0.08)


@pytest.mark.parametrize(
    ("gpu", "shards"),
    [
        (replace(GPU, mib=3.28), 10),  # half of 32 GiB
        (replace(GPU, cores=8e-4), 10),  # half of 8 cores
        (replace(GPU, rules=1e-4), 10),  # half of the interval
    ],
)
def test_each_limit_counts(gpu: Measured, shards: int) -> None:
    """Memory, CPU and the slowest rule group; 50 000 GPUs need as many servers as the tightest of these says."""
    found = plan(50_000, gpu, SERVER)
    assert found.shards in (shards, shards + 1)
    assert found.cores <= SERVER.cores * SERVER.full
    assert found.gib <= SERVER.memory * SERVER.full
    assert found.rules <= 0.5
    assert found.above == FORWARDED * 50_000


def test_longer_interval_costs_less() -> None:
    """Samples of scrapes halve, those of rules stay."""
    report = json.loads(MEASURED.read_text())
    one, two = Measured.of(report, 30.0), Measured.of(report, 60.0)
    assert two.scraped == pytest.approx(one.scraped / 2)
    assert two.recorded_per_second == one.recorded_per_second
    assert one.cores / 2 < two.cores < one.cores


def test_table_has_a_column_for_each_fleet() -> None:
    """And no level above for one server."""
    text = table([plan(gpus, GPU, SERVER) for gpus in (1000, 200_000)], SERVER)
    assert "| 1000 GPUs | 200000 GPUs |" in text
    assert "| its memory, at most | - |" in text
