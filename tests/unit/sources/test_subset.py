"""Some of the GPUs of a source."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.sources.simulated.source import FleetSettings, fleet
from gpu_exporter.sources.simulated.workload import workloads
from gpu_exporter.sources.subset import Subset
from tests.conftest import RECORDINGS


def some(*chosen: int | str) -> Subset:
    """Of four simulated GPUs."""
    known = workloads(sorted(RECORDINGS.glob("*.jsonl.gz")))
    (source,) = fleet(FleetSettings(1, 4), known).values()
    return Subset(source, chosen)


def test_they_keep_their_numbers() -> None:
    """A GPU is the same one, whether others are looked at or not."""
    source = some(1, 3)
    source.open()

    assert (source.count(), source.expected(), source.live) == (2, 2, False)
    metrics = selected(MetricSet.DEFAULT)
    assert [source.attach(index, metrics).gpu.index for index in range(2)] == [1, 3]
    assert [source.gpu_index(position) for position in range(2)] == [1, 3]


def test_a_uuid_finds_its_gpu() -> None:
    """Wherever it is."""
    every = some(0, 1, 2, 3)
    every.open()
    uuid = every.attach(2, ()).gpu.uuid
    source = some(uuid)
    source.open()

    assert source.attach(0, ()).gpu.index == 2


def test_one_that_is_not_there_is_named_with_those_that_are() -> None:
    """At the start, where it is a mistake."""
    with pytest.raises(SourceLost, match=r"--devices: there is no GPU 7, GPU-x: choose from 0 \(GPU-.*, 3 \(GPU-"):
        some(0, 7, "GPU-x").open()


def test_one_that_goes_later_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on when the library is opened anew; it is expected still."""
    source = some(0, 3)
    source.open()
    monkeypatch.setattr(type(source._source), "count", lambda self: 3)
    source.open()

    assert (source.count(), source.expected()) == (2, 2)
    assert source.attach(0, ()).gpu.index == 0
    with pytest.raises(GpuLost, match="GPU 3: the driver no longer lists it"):
        source.attach(1, ())


def test_a_uuid_that_moves_to_another_index_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver may change the order of its GPUs without an error."""
    every = some(0, 1, 2, 3)
    every.open()
    uuid = every.attach(1, ()).gpu.uuid
    source = some(uuid)
    source.open()
    attach = type(source._source).attach
    monkeypatch.setattr(type(source._source), "attach", lambda self, index, metrics: attach(self, 3 - index, metrics))

    assert source.attach(0, ()).gpu.uuid == uuid
