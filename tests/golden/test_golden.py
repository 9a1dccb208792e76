"""Whole outputs: the exposition of the packaged recording, and the rendered reference pages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_exporter import render
from gpu_exporter.accumulate import Accumulator
from gpu_exporter.exposition import Renderer, Variant
from gpu_exporter.histograms import histograms_of
from gpu_exporter.metrics import METRICS, selected
from gpu_exporter.model import MetricSet, Pace, Sample, Snapshot
from gpu_exporter.recording import load
from gpu_exporter.sources.replay import ReplaySource
from tests.conftest import RECORDINGS


def test_exposition_of_the_packaged_recording(golden: Callable[[str, str], None]) -> None:
    """Thirty seconds of two H200s in one-second ticks, byte for byte."""
    now = 0.0
    source = ReplaySource(load(RECORDINGS / "h200_x2_ddp.jsonl.gz"), clock=lambda: now)
    devices = [source.attach(index, selected(MetricSet.FULL)) for index in range(source.count())]
    accumulators = [Accumulator(15.0) for _ in devices]
    made, samples = histograms_of(METRICS), tuple[Sample, ...]()
    for second in range(30):
        now = float(second)
        samples = tuple(
            sample
            for device, accumulator in zip(devices, accumulators, strict=True)
            for sample in accumulator.apply(device.read(frozenset({Pace.FAST})), made)
        )
    page = Renderer("node-1", (("source", "replay"),)).render(Snapshot(now, "replay", samples))

    golden("h200_x2_ddp.prom", page.body(Variant(openmetrics=False, gzip=False)).decode())


@pytest.mark.drift
def test_rendered_files_are_current() -> None:
    """Every rendered file is what the catalogues say."""
    assert render.stale(Path(__file__).parent.parent.parent) == [], "fix: run `make generate` and commit what it writes"
