"""A short `python -m benchmarks.scale`; with `--long` on both versions of Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale import PROGRAMS, RULES, SLOW_SECONDS, measure
from tests.rules.needed import rule_groups
from tests.support.tools import is_long


@pytest.mark.parametrize("name", PROGRAMS if is_long() else ["newer"])
def test_two_nodes_with_all_rules(name: str, tmp_path: Path) -> None:
    """Nothing fails or is late; every rule group is loaded, records series and is evaluated in time."""
    program = PROGRAMS[name] / "prometheus"
    for number in range(3):  # retried because other processes can delay a scrape
        folder = tmp_path / str(number)
        folder.mkdir()
        load = measure(
            folder, nodes=2, gpus=2, seconds=10, interval=2, metrics="default", program=program, own_intervals=False
        )
        if load.passed(2):
            break

    groups = rule_groups(tuple(RULES))
    assert load.rule_seconds.keys() == {group["name"] for group in groups}
    assert set(load.rule_intervals.values()) == {2.0}
    own = {group["interval"] for group in groups if "interval" in group}
    assert own == {"5s", "10s", "1m", f"{SLOW_SECONDS // 60}m", "1h"}
    assert load.passed(2), load
    assert load.scrapes >= 6
    assert load.recorded_series_per_gpu > 10
    assert load.scraped_series_per_gpu > 50
    assert load.fleet_queries > 10
    assert 0 < load.fleet_seconds < 2
    assert 0 < load.bytes_per_sample < 16
