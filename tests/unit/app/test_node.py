"""One node: which parts it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.app.node import _kernel_log
from gpu_exporter.catalogue.xids import load
from gpu_exporter.config import Config
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.io.user_text import hostengine
from tests.unit.pipeline.test_metrics_change import FakeSource


@pytest.mark.parametrize(
    ("engine", "settings", "followed"),
    [
        ("localhost:5555", {}, True),
        ("other-host:5555", {}, False),
        ("10.0.0.1:5555", {"kubernetes": True}, True),
        ("", {"kernel_log": "none"}, False),
    ],
)
def test_kernel_log_is_of_the_machine_of_the_gpus(
    tmp_path: Path, engine: str, settings: dict[str, Any], followed: bool
) -> None:
    """An XID of a local GPU must not count for a GPU of another machine."""
    source = FakeSource()
    source.name = "dcgm"
    log = tmp_path / "kern.log"
    log.write_text("")
    config = Config(source="dcgm", dcgm_hostengine=hostengine(engine), **{"kernel_log": str(log), **settings})
    watch = _kernel_log(EventLog(load(None), lambda pci: None), source, config)

    assert (watch.reason == "") is followed
