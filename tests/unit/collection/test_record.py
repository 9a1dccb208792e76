"""A recording that cannot be made ends with an error, never as a success."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.collection import record
from gpu_exporter.config import Config
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.source import Source
from gpu_exporter.sources.choice import only
from gpu_exporter.sources.recording.writer import Writer


def recorded(source: Source, path: Path) -> tuple[int, bool]:
    return record.record(source, selected(MetricSet.DEFAULT), path, 0.1, 0.2, stop=threading.Event())


def test_an_unforeseen_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(Writer, "tick", fail)
    with pytest.raises(RuntimeError, match="unforeseen"):
        recorded(only(Config(source="simulated")), tmp_path / "out.jsonl")


def test_a_driver_that_hangs_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no file, so this is an error."""
    released = threading.Event()
    source = only(Config(source="simulated"))

    def hang() -> None:
        released.wait()
        raise GpuExporterError("the driver answers too late")

    monkeypatch.setattr(source, "open", hang)
    monkeypatch.setattr(record, "START_SECONDS", 0.1)
    monkeypatch.setattr(record, "GRACE_SECONDS", 0.1)
    with pytest.raises(GpuExporterError, match="a driver call hangs"):
        recorded(source, tmp_path / "out.jsonl")
    released.set()
