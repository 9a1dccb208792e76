"""What is recorded; and a recording that cannot be made ends with an error, never as a success."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.config import Config
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline import recorder
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.sources.choice import make_source
from gpu_exporter.sources.recording.format import load
from gpu_exporter.sources.recording.replay import ReplaySource
from gpu_exporter.sources.recording.writer import RecordingWriter


def recorded(source: Source, path: Path) -> tuple[int, bool]:
    return recorder.record(source, selected(MetricSet.DEFAULT), path, 0.1, 0.2, stop=threading.Event())


def test_an_unforeseen_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(RecordingWriter, "tick", fail)
    with pytest.raises(RuntimeError, match="unforeseen"):
        recorded(make_source(Config(source="simulated")), tmp_path / "out.jsonl")


def test_a_driver_that_hangs_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no file, so this is an error."""
    released = threading.Event()
    source = make_source(Config(source="simulated"))

    def hang() -> None:
        released.wait()
        raise GpuExporterError("the driver answers too late")

    monkeypatch.setattr(source, "open", hang)
    monkeypatch.setattr(recorder, "START_SECONDS", 0.1)
    monkeypatch.setattr(recorder, "GRACE_SECONDS", 0.1)
    with pytest.raises(GpuExporterError, match="a driver call hangs"):
        recorded(source, tmp_path / "out.jsonl")
    released.set()


def test_a_wall_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times keep rising: a reader rejects a recording in which they do not."""
    hours = iter(range(10_000, 0, -1))
    clock = SimpleNamespace(time=lambda: 3600.0 * next(hours), monotonic=time.monotonic)
    monkeypatch.setattr(recorder, "time", clock)
    path = tmp_path / "out.jsonl"
    recorded(make_source(Config(source="simulated", gpus=1)), path)
    times = [json.loads(line)["t"] for line in path.read_text().splitlines()[1:]]
    assert len(times) > 1
    assert times == sorted(set(times))


def test_zeros_that_cannot_be_are_neither_played_nor_recorded(tmp_path: Path) -> None:
    """An old recording of a board whose driver answers 0 for what it does not know has no such values."""
    zeros = dict.fromkeys((row.key for row in (m.FB_TOTAL, m.FB_USED, m.POWER_LIMIT, m.GPU_TEMP, m.GPU_UTIL)), 0.0)
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    writer = RecordingWriter(old, [Gpu(0, "GPU-0")], 0.1, mask=False)
    for n in range(50):
        writer.tick(1000 + n / 10, 0, zeros)
    writer.close()
    player = ReplaySource(load(old))
    reading = player.attach(0, selected(MetricSet.DEFAULT)).read(frozenset(Pace))
    assert {sample.series.metric for sample in Accumulator(15.0).apply(reading)} == {m.GPU_UTIL, m.GPU_UTIL_SECONDS}
    recorded(player, new)
    ticks = [json.loads(line) for line in new.read_text().splitlines()[1:]]
    assert {name for tick in ticks for name in tick["samples"]} == {m.GPU_UTIL.key}
