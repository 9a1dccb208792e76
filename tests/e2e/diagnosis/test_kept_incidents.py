"""A running exporter keeps incidents in `--state-dir`, over a restart; `diagnose --job` and the API show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import Exporter, Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until


def past(exporter: Exporter) -> list[dict[str, Any]]:
    """Return what was lost in the last hour."""
    answer = json.loads(exporter.ask("GET", "/api/v1/incidents?since=1h")[1])
    assert answer["kept"]
    return [each for each in answer["incidents"] if each["cause"] == "GpuLost"]


def test_a_lost_gpu_over_a_restart(serve: Serve, tmp_path: Path) -> None:
    """The same incident goes on after the exporter was restarted."""
    driver, state = FakeDriver(tmp_path / "driver", gpus=2), tmp_path / "state"
    first = serve("--state-dir", str(state), env=driver.environment)
    first.until(lambda page: page.values("gpu_up") == [1.0, 1.0])
    driver.lose(1)
    (lost,) = until(lambda: past(first), 60, "the incident")
    assert lost["end"] is None
    assert [gpu["gpu"] for gpu in lost["culprits"]] == ["1"]
    first.stop()
    assert list(state.glob("history-*.jsonl"))
    second = serve("--state-dir", str(state), env=driver.environment)
    (again,) = until(lambda: past(second), 60, "the incident of before")
    assert (again["id"], again["start"]) == (lost["id"], lost["start"])
