"""Whole outputs: the exposition of the packaged recording, and the rendered reference pages."""

from collections.abc import Callable

import pytest

from content import artifacts
from gpu_exporter.catalogue.metrics import METRICS, selected
from gpu_exporter.model.gpu import Sample
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.pipeline.histograms import histograms_of
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer
from gpu_exporter.sources.recording.format import load
from gpu_exporter.sources.recording.replay import ReplaySource
from tests import ROOT
from tests.conftest import RECORDINGS


def test_exposition_of_the_packaged_recording(golden: Callable[[str, str], None]) -> None:
    """Thirty one-second ticks of two H200s, byte for byte."""
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
    """Every rendered file is up to date with the catalogues."""
    assert artifacts.stale(ROOT) == [], "fix: run `make generate` and commit what it writes"
