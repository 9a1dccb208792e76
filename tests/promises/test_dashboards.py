"""Every query of the dashboards has its result in a real Prometheus, on the values of simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.diagnosis import signal_reader
from tests.conftest import Serve
from tests.e2e.content.test_dashboards import Target, at_once, compare, scraped_twice
from tests.support import panels
from tests.support.prometheus import scraping
from tests.support.tools import until

CLUSTER = "simulated"


def test_each_panel_shows_the_values_of_its_series(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query finds every device that has its series, with its labels and no NaN; the others are empty."""
    # Two seconds must suffice also for fields that are read every 15 s: only their presence matters here.
    monkeypatch.setattr(signal_reader, "PERIODS", {})
    exporter = serve("--source", "simulated", "--gpus", "4", "--interval", "500ms", "--metrics", "full")
    target = Target(CLUSTER, exporter.port)
    folder = tmp_path / "rules"
    folder.mkdir()
    with scraping(tmp_path, "1s", {"static_configs": [target.config]}, rule_files=at_once(folder)) as prometheus:
        until(lambda: prometheus.query("count_over_time(up[1m]) >= 8"), 30, "the eighth scrape")
        # It is recorded from alerts, by rules of other groups, which are evaluated at other moments.
        until(lambda: prometheus.query("incident:open:usd_per_hour"), 30, "the cost of an incident")
        answered: set[str] = set()

        def wrong() -> list[str]:
            (found,) = scraped_twice([target])
            return panels.problems(prometheus, panels.BOARDS, found, {"cluster": CLUSTER}, answered)

        compare(prometheus, tmp_path, wrong)
    asked = {text for board in panels.BOARDS.values() for text in panels.expressions(board)}
    assert len(answered) > len(asked) / 3
