"""Two sources as one: NVML everywhere, DCGM where NVML lacks profiling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.source import Device, Source
from gpu_exporter.sources import auto, backoff
from gpu_exporter.sources.auto import AutoSource
from tests.support.tools import until
from tests.support.virtual_time import Clock

ASKED = (m.SM_ACTIVE, m.PCIE_TX, m.GPU_TEMP, m.FAN)
PROFILING = {m.SM_ACTIVE: "not_supported", m.PCIE_TX: "not_supported"}


class FakeDevice(Device):
    """Returns the given answers, or raises the given error."""

    def __init__(self, gpu: Gpu, metrics: Sequence[Metric], answers: Callable[[Sequence[Metric]], Reading]) -> None:
        self.gpu = gpu
        self.metrics = metrics
        self.closed = False
        self._answers = answers

    def read(self, paces: frozenset[Pace]) -> Reading:
        return self._answers(self.metrics)

    def close(self) -> None:
        self.closed = True


class FakeSource(Source):
    """GPUs by index, the same in both sources but for their order."""

    description, live = "", True
    reads_until_profiled = 4

    def __init__(self, name: str, gpus: Sequence[Gpu], answers: Callable[[Gpu, Sequence[Metric]], Reading]) -> None:
        self.name = name
        self.gpus = gpus
        self.down: SourceLost | None = None
        self.devices: list[FakeDevice] = []
        self.opened = 0
        self.interval = 0.0
        self._answers = answers

    def open(self) -> None:
        if self.down:
            raise self.down
        self.opened += 1

    def count(self) -> int:
        return len(self.gpus)

    def identities(self) -> Mapping[int, tuple[str, str]]:
        return {index: (gpu.uuid, gpu.pci_bus_id) for index, gpu in enumerate(self.gpus)}

    def sample_every(self, seconds: float) -> None:
        self.interval = seconds

    def attach(self, index: int, metrics: Sequence[Metric]) -> FakeDevice:
        gpu = self.gpus[index]
        device = FakeDevice(gpu, metrics, lambda asked: self._answer(gpu, asked))
        self.devices.append(device)
        return device

    def _answer(self, gpu: Gpu, metrics: Sequence[Metric]) -> Reading:
        if self.down:
            raise self.down
        return self._answers(gpu, metrics)


HOPPER, AMPERE = Gpu(0, "GPU-h"), Gpu(1, "GPU-a")


def nvml(gpu: Gpu, metrics: Sequence[Metric]) -> Reading:
    values = {Series(m.GPU_TEMP, gpu): 40.0}
    if gpu is HOPPER:
        values |= {Series(m.SM_ACTIVE, gpu): 0.5, Series(m.PCIE_TX, gpu): 1e6}
        return Reading(time.monotonic(), values, 1.0, unsupported={m.FAN: "not_supported"})
    return Reading(time.monotonic(), values, unsupported={**PROFILING, m.FAN: "not_supported"})


def dcgm(gpu: Gpu, metrics: Sequence[Metric]) -> Reading:
    assert m.GPU_TEMP not in metrics, "NVML answers that"
    values = {Series(metric, gpu): 0.25 for metric in metrics if metric is not m.FAN}
    return Reading(time.monotonic(), values, 2.0, unsupported={m.FAN: "not_in_dcgm"})


def by_metric(reading: Reading) -> Mapping[Metric, float]:
    return {series.metric: value for series, value in reading.values.items()}


def choices(source: AutoSource) -> list[tuple[str, str]]:
    return sorted(
        (sample.series.gpu.uuid if sample.series.gpu else "", "/".join(value for _, value in sample.series.labels))
        for sample in source.non_gpu_samples()
    )


@pytest.fixture
def both() -> tuple[FakeSource, FakeSource]:
    others = [Gpu(0, AMPERE.uuid), Gpu(1, HOPPER.uuid)]
    return FakeSource("nvml", [HOPPER, AMPERE], nvml), FakeSource("dcgm", others, dcgm)


def test_a_mixed_node_has_all_metrics(both: tuple[FakeSource, FakeSource]) -> None:
    first, second = both
    source = AutoSource(first, lambda: second)
    source.sample_every(0.25)
    source.open()
    hopper, ampere = (source.attach(index, ASKED) for index in (0, 1))
    assert by_metric(hopper.read(frozenset(Pace))) == {m.GPU_TEMP: 40.0, m.SM_ACTIVE: 0.5, m.PCIE_TX: 1e6}
    assert second.opened == 0, "DCGM is not needed yet"
    until(lambda: m.SM_ACTIVE in by_metric(ampere.read(frozenset(Pace))))
    reading = ampere.read(frozenset({Pace.FAST}))
    assert by_metric(reading) == {m.GPU_TEMP: 40.0, m.SM_ACTIVE: 0.25, m.PCIE_TX: 0.25}
    assert {series.gpu for series in reading.values} == {AMPERE}
    assert reading.unsupported == {m.FAN: "not_in_dcgm"}
    assert {series.metric: span for series, span in reading.spans.items()} == {m.SM_ACTIVE: 2.0, m.PCIE_TX: 2.0}
    assert choices(source) == [("GPU-a", "nvml+dcgm/no_gpm"), ("GPU-h", "nvml/gpm")]
    assert [device.gpu.uuid for device in second.devices] == [AMPERE.uuid]
    assert second.interval == 0.25
    source.close()
    assert not source.non_gpu_samples()


def test_a_node_of_hopper_never_opens_dcgm(both: tuple[FakeSource, FakeSource]) -> None:
    first, second = both
    source = AutoSource(first, lambda: second)
    source.open()
    device = source.attach(0, ASKED)
    for _ in range(3):
        device.read(frozenset(Pace))
    source.close()
    assert second.opened == 0
    assert second.devices == []


def test_gpu_that_is_attached_twice_is_shown_once(both: tuple[FakeSource, FakeSource]) -> None:
    """Whichever of its devices is closed first."""
    source = AutoSource(both[0], None)
    source.open()
    shown = [("GPU-a", "nvml/no_gpm_and_no_dcgm")]
    present = source.attach(1, ASKED)
    present.read(frozenset(Pace))
    for earlier_is_closed in (False, True):
        successor = source.attach(1, ASKED)
        assert choices(source) == shown
        successor.read(frozenset(Pace))
        assert choices(source) == shown
        (present if earlier_is_closed else successor).close()
        assert choices(source) == shown


def test_without_dcgm_the_reason_is_shown(both: tuple[FakeSource, FakeSource]) -> None:
    source = AutoSource(both[0], None)
    source.open()
    reading = source.attach(1, ASKED).read(frozenset(Pace))
    assert by_metric(reading) == {m.GPU_TEMP: 40.0}
    assert reading.unsupported == {**PROFILING, m.FAN: "not_supported"}
    assert choices(source) == [("GPU-a", "nvml/no_gpm_and_no_dcgm")]


@pytest.mark.slow
def test_a_dead_host_engine_affects_only_its_values(both: tuple[FakeSource, FakeSource]) -> None:
    first, second = both
    source = AutoSource(first, lambda: second)
    source.open()
    device = source.attach(1, ASKED)
    until(lambda: m.SM_ACTIVE in by_metric(device.read(frozenset(Pace))))
    given = {series for series in device.read(frozenset(Pace)).values if series.metric is not m.GPU_TEMP}
    held = set(given)
    second.down = SourceLost("DCGM: the host engine is gone", "connection_lost")
    reading = device.read(frozenset(Pace))
    assert by_metric(reading) == {m.GPU_TEMP: 40.0}
    assert reading.ended >= held
    assert set(reading.failed.values()) == {"connection_lost"}
    assert second.devices[-1].closed
    until(lambda: choices(source) == [("GPU-a", "nvml/no_gpm_and_dcgm_connection_lost")])
    second.down = None
    until(lambda: m.SM_ACTIVE in by_metric(device.read(frozenset(Pace))))
    assert choices(source) == [("GPU-a", "nvml+dcgm/no_gpm")]
    source.close()


@pytest.mark.slow
def test_device_of_an_earlier_connection_does_not_close_the_present_one(
    both: tuple[FakeSource, FakeSource],
) -> None:
    """Two GPUs notice the same loss, the second one only when DCGM is open again."""
    first, second = both
    first.gpus = [AMPERE, Gpu(2, "GPU-b")]
    second.gpus = first.gpus
    source = AutoSource(first, lambda: second)
    source.open()
    devices = [source.attach(index, ASKED) for index in range(2)]
    for device in devices:
        until(lambda device=device: m.SM_ACTIVE in by_metric(device.read(frozenset(Pace))))  # type: ignore[misc]
    earlier = second.devices[1]
    second.down = SourceLost("DCGM: the host engine is gone", "connection_lost")
    devices[0].read(frozenset(Pace))
    second.down = None
    until(lambda: second.opened == 2)
    until(lambda: m.SM_ACTIVE in by_metric(devices[0].read(frozenset(Pace))))

    def fail(metrics: Sequence[Metric]) -> Reading:
        raise SourceLost("DCGM: reconnected meanwhile", "no_connection")

    earlier._answers = fail
    devices[1].read(frozenset(Pace))
    assert earlier.closed
    assert all(m.SM_ACTIVE in by_metric(device.read(frozenset(Pace))) for device in devices)
    source.close()


@pytest.mark.slow
def test_a_host_engine_that_fails_every_read_is_reopened_with_back_off(
    both: tuple[FakeSource, FakeSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most once until time passes."""
    first, second = both

    def fail(gpu: Gpu, metrics: Sequence[Metric]) -> Reading:
        raise SourceLost("DCGM: it hangs", "stalled")

    second._answers = fail
    source = AutoSource(first, lambda: second)
    source.open()
    device = source.attach(1, ASKED)
    clock = Clock()
    monkeypatch.setattr(auto, "time", clock)
    monkeypatch.setattr(backoff, "time", clock)

    for _ in range(50):
        device.read(frozenset(Pace))
        time.sleep(0.01)  # the chance to do it again
    before = second.opened
    assert before <= 2
    clock.pass_by(backoff.LONGEST_BACKOFF)
    until(lambda: device.read(frozenset(Pace)) and second.opened > before, what="another attempt")
    source.close()


def test_a_gpu_that_dcgm_does_not_know_keeps_nvml(both: tuple[FakeSource, FakeSource]) -> None:
    first, second = both
    second.gpus = [HOPPER]
    source = AutoSource(first, lambda: second)
    source.open()
    device = source.attach(1, ASKED)
    until(lambda: device.read(frozenset(Pace)) and choices(source) == [("GPU-a", "nvml/no_gpm_and_dcgm_gone")])
    assert by_metric(device.read(frozenset(Pace))) == {m.GPU_TEMP: 40.0}
    source.close()


def test_missing_bindings_are_a_reason(both: tuple[FakeSource, FakeSource]) -> None:
    def missing() -> FakeSource:
        raise SourceLost("DCGM: no bindings", "bindings_missing")

    source = AutoSource(both[0], missing)
    source.open()
    device = source.attach(1, ASKED)
    wanted = [("GPU-a", "nvml/no_gpm_and_dcgm_bindings_missing")]
    until(lambda: device.read(frozenset(Pace)) and choices(source) == wanted)
    source.close()


def test_a_thread_that_cannot_start_affects_only_dcgm(
    both: tuple[FakeSource, FakeSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML's values are served, and DCGM is opened as soon as there is a thread for it."""
    first, second = both
    source = AutoSource(first, lambda: second)
    source.open()
    ampere = source.attach(1, ASKED)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", refuse)
        assert by_metric(ampere.read(frozenset(Pace))) == {m.GPU_TEMP: 40.0}
    until(lambda: m.SM_ACTIVE in by_metric(ampere.read(frozenset(Pace))))
    source.close()
