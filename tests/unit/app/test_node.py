"""One node: which parts it has, and how old the metrics of the process may be."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.app.node import ProcessMetrics, _kernel_log
from gpu_exporter.catalogue.xids import load
from gpu_exporter.config import Config
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.io.file_access import WaitingWriters
from gpu_exporter.io.user_text import hostengine
from tests.unit.pipeline.test_metrics_change import FakeSource


@pytest.mark.parametrize(
    ("engine", "settings", "followed"),
    [
        ("localhost:5555", {}, True),
        ("other-host:5555", {}, False),
        ("10.0.0.1:5555", {"kubernetes": True}, True),
        ("", {"kernel_log": None}, False),
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
    config = Config(source="dcgm", dcgm_hostengine=hostengine(engine), **{"kernel_log": log, **settings})
    watch = _kernel_log(EventLog(load(None), lambda pci: None), source, config, WaitingWriters())

    assert (watch.reason == "") is followed


def test_nodes_share_the_metrics_of_the_process_for_a_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are collected at the first call, and every 5 s with an interval of 1 s."""
    now, process = [100.0], ProcessMetrics(1.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    collected = []
    for _ in range(11):
        collected.append(process.collect())
        now[0] += 1.0

    assert collected[0]
    assert [new is not old for old, new in itertools.pairwise(collected)] == [*[False] * 4, True] * 2
