"""The exporter publishes the last active check in its `--state-dir`."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_exporter.active_checks.history import ActiveChecks, Run
from gpu_exporter.model.verdict import Health
from tests.conftest import Serve
from tests.support.fakes.driver import FakeDriver


def test_the_last_result(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """In /metrics and /api/v1/node."""
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    ActiveChecks(tmp_path / "state").append({uuid: Run(1e9, 1, Health.HEALTHY, values={"bf16": 9e14})})
    exporter = serve("--state-dir", str(tmp_path / "state"), env=driver.environment)
    page = exporter.until(lambda page: page.values("gpu_probe_passed") == [1.0])
    assert page.values("gpu_probe_flops_per_second", quantity="bf16") == [9e14]
    (gpu,) = json.loads(exporter.get("/api/v1/node")[1])["gpus"]
    assert (gpu["active_check"]["at"], gpu["active_check"]["rates"]) == (1e9, {"bf16": 9e14})
