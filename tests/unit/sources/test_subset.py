"""A subset of a source's GPUs."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.sources.simulated.source import FleetSettings, fleet
from gpu_exporter.sources.simulated.workload import workloads
from gpu_exporter.sources.subset import Subset
from tests.conftest import RECORDINGS


def subset(*chosen: int | str) -> Subset:
    """Return some of four simulated GPUs."""
    known = workloads(sorted(RECORDINGS.glob("*.jsonl.gz")))
    (source,) = fleet(FleetSettings(1, 4), known).values()
    return Subset(source, chosen)


def test_they_keep_their_numbers() -> None:
    """An index is that of all GPUs, whichever are selected."""
    source = subset(1, 3)
    source.open()

    assert (source.count(), source.expected(), source.live) == (2, 2, False)
    metrics = selected(MetricSet.DEFAULT)
    assert [source.attach(index, metrics).gpu.index for index in range(2)] == [1, 3]
    assert [source.gpu_index(position) for position in range(2)] == [1, 3]


def test_a_uuid_finds_its_gpu() -> None:
    """At any index."""
    every = subset(0, 1, 2, 3)
    every.open()
    uuid = every.attach(2, ()).gpu.uuid
    source = subset(uuid)
    source.open()

    assert source.attach(0, ()).gpu.index == 2


def test_a_missing_gpu_is_an_error() -> None:
    """At the start, the error lists the existing GPUs."""
    with pytest.raises(SourceLost, match=r"--devices: there is no GPU 7, GPU-x: choose from 0 \(GPU-.*, 3 \(GPU-"):
        subset(0, 7, "GPU-x").open()


def test_a_gpu_that_disappears_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are still read after a restart of the library; it is still expected."""
    source = subset(0, 3)
    source.open()
    monkeypatch.setattr(type(source._source), "count", lambda self: 3)
    source.open()

    assert (source.count(), source.expected()) == (2, 2)
    assert source.attach(0, ()).gpu.index == 0
    with pytest.raises(GpuLost, match="GPU 3: the driver no longer lists it"):
        source.attach(1, ())


def test_a_uuid_that_moves_to_another_index_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may change the order of its GPUs without an error."""
    every = subset(0, 1, 2, 3)
    every.open()
    uuid = every.attach(1, ()).gpu.uuid
    source = subset(uuid)
    source.open()
    attach = type(source._source).attach
    monkeypatch.setattr(type(source._source), "attach", lambda self, index, metrics: attach(self, 3 - index, metrics))

    assert source.attach(0, ()).gpu.uuid == uuid
