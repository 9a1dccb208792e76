"""The contract of the dcgm source on every DCGM: fake, real with injected GPUs, and real with real GPUs."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS, selected
from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import EntityKind, Metric, MetricSet, Pace
from gpu_exporter.pipeline.accumulator import INTEGRALS
from gpu_exporter.sources.dcgm import source as source_module
from gpu_exporter.sources.dcgm.device import DcgmDevice
from gpu_exporter.sources.dcgm.source import DcgmSource
from tests.dcgm.conftest import Engine
from tests.support.tools import LIMIT, PATIENCE

FULL = selected(MetricSet.FULL)
ALL = frozenset(Pace)


def eventually(holds: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE * timeout
    while not holds():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.1)


def values(reading: Reading) -> dict[Metric, float]:
    """Return the values of the GPU itself, without those of its parts."""
    return {series.metric: value for series, value in reading.values.items() if not series.labels}


@pytest.fixture
def opened(source: DcgmSource) -> DcgmSource:
    """An open source with at least one GPU."""
    source.open()
    assert source.count() > 0, "no GPUs: only test_host_engine_without_gpus can be run here"
    return source


@pytest.fixture
def device(opened: DcgmSource) -> DcgmDevice:
    """Its first GPU, with the full metric set."""
    return opened.attach(0, FULL)


def test_host_engine_without_gpus(source: DcgmSource) -> None:
    """It can be opened, and answers."""
    source.open()
    assert source.count() >= 0


def test_identity(opened: DcgmSource) -> None:
    """Identities of all GPUs have NVML's form, and equal those of `identities`."""
    gpus = [opened.attach(index, FULL).gpu for index in range(opened.count())]
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    for index, gpu in enumerate(gpus):
        assert gpu.index == index
        assert re.fullmatch(r"GPU-[0-9a-f-]{36}", gpu.uuid)
        assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-9]", gpu.pci_bus_id)
        assert re.fullmatch(r"nvidia\d+", gpu.device)
        assert gpu.model
        info = dict(gpu.info)
        assert gpu.driver == info["driver_version"]
        assert {"nvml_version", "cuda_version", "vbios_version", "architecture", "compute_capability"} <= info.keys()
        assert all(info.values())
    assert opened.identities() == {gpu.index: (gpu.uuid, gpu.pci_bus_id) for gpu in gpus}


def test_values_are_in_range_and_none_is_blank(device: DcgmDevice) -> None:
    """Also after the first profiling samples, which are blank with status 0."""
    seen: set[Metric] = set()

    def complete() -> bool:
        reading = device.read(ALL)
        for series, value in reading.values.items():
            assert math.isfinite(value)
            assert series.metric.low <= value <= series.metric.high, f"{series.metric.key} is {value}"
            seen.add(series.metric)
        return m.SM_ACTIVE in seen or m.SM_ACTIVE in reading.unsupported

    eventually(complete)
    plain = {m.GPU_UTIL, m.GPU_TEMP, m.SM_CLOCK, m.FB_TOTAL, m.FB_USED, m.ENERGY, m.PSTATE}
    assert plain <= seen | ({m.FB_TOTAL, m.FB_USED} if values(device.read(ALL)).get(m.MIG_MODE) else set())


def test_each_metric_has_a_value_or_a_reason(device: DcgmDevice) -> None:
    """A metric without a value has a reason of one word."""
    known: set[Metric] = set()

    def complete() -> bool:
        reading = device.read(ALL)
        known.update(series.metric for series in reading.values)
        missing = {row for row in FULL if row.entity not in m.NON_GPU_ENTITIES} - known - reading.unsupported.keys()
        return not {row for row in missing if row.entity is not EntityKind.INSTANCE and row is not m.MIG_DEVICE}

    eventually(complete)
    reasons = device.read(ALL).unsupported
    assert all(re.fullmatch(r"[a-z_]+", reason) for reason in reasons.values())
    assert reasons.keys().isdisjoint(known)
    assert all(
        reasons[row] == "no_field" for row in reasons if row.dcgm is None and row not in (m.NVLINK_COUNT, m.NVLINK_UP)
    )


def test_profiling_samples_count_once(device: DcgmDevice) -> None:
    """However often a series is read, its spans add up to the elapsed time, never to more."""
    eventually(lambda: bool({m.PCIE_TX} & (values(device.read(ALL)).keys() | device.read(ALL).unsupported.keys())))
    if m.PCIE_TX in device.read(ALL).unsupported:
        return  # this host engine reports no profiling for this GPU
    first: float | None = None
    total, last = 0.0, 0.0
    while total < 5:
        reading = device.read(frozenset({Pace.FAST}))
        spans = {series.metric: span for series, span in reading.spans.items() if not series.labels}
        assert {series.metric for series in reading.values if series.metric in INTEGRALS} <= {
            series.metric for series in reading.spans
        }
        if m.PCIE_TX in spans:
            if first is None:
                first = reading.at
            else:
                total += spans[m.PCIE_TX]
            last = reading.at
        time.sleep(0.1)
    assert first is not None
    assert total == pytest.approx(last - first, abs=1.2)


def test_any_subset_can_be_selected(opened: DcgmSource) -> None:
    """One metric, or profiling alone; metrics that were not selected have no values."""
    few = opened.attach(0, [m.POWER, m.GPU_TEMP])
    reading = few.read(ALL)
    assert {series.metric for series in reading.values} <= {m.POWER, m.GPU_TEMP, m.MIG_DEVICE}
    profiling = opened.attach(0, [m.GR_ENGINE_ACTIVE, m.DRAM_ACTIVE])
    eventually(lambda: bool(profiling.read(ALL).values or profiling.read(ALL).unsupported))


def test_devices_share_a_connection(opened: DcgmSource) -> None:
    """All GPUs can be closed and attached again: this does not use up the 64 field groups of a host engine."""
    for _ in range(10):
        devices = [opened.attach(index, FULL) for index in range(opened.count())]
        for device in devices:
            assert values(device.read(ALL))
        for device in devices:
            device.close()


def test_attached_twice(opened: DcgmSource) -> None:
    """As after a change of metrics: closing the first handle affects neither values nor freshness of the second."""
    few = [m.POWER, m.GPU_TEMP, m.GR_ENGINE_ACTIVE, m.DRAM_ACTIVE]
    first = opened.attach(0, FULL)
    first.read(ALL)
    second = opened.attach(0, few)
    eventually(lambda: m.DRAM_ACTIVE in values(second.read(ALL)) or m.DRAM_ACTIVE in second.read(ALL).unsupported)
    first.close()
    end = time.monotonic() + 8  # longer than a GPU without new samples is up
    seen = []
    while time.monotonic() < end:
        reading = second.read(frozenset({Pace.FAST}))
        assert {m.POWER, m.GPU_TEMP} <= values(reading).keys()
        seen.append(m.DRAM_ACTIVE in values(reading))
        time.sleep(0.5)
    assert any(seen[-6:]) or m.DRAM_ACTIVE in reading.unsupported


def test_every_gpu_has_room(opened: DcgmSource) -> None:
    """Also while each is attached twice."""
    devices = [opened.attach(index, FULL) for _ in range(2) for index in range(opened.count())]
    for device in devices:
        assert "no_room" not in device.read(ALL).unsupported.values()


def test_health_and_peers_are_read_by_calls(opened: DcgmSource) -> None:
    """Each GPU has a verdict for 11 systems and a state of its NVLinks to each other GPU, or the reason why not."""
    count = opened.count()
    for index in range(count):
        reading = opened.attach(index, [m.POWER, m.EXP_HEALTH, m.EXP_P2P]).read(ALL)
        health = {
            dict(series.labels)["health_watch"]: value
            for series, value in reading.values.items()
            if series.metric is m.EXP_HEALTH
        }
        peers = {dict(series.labels)["peer_gpu"] for series in reading.values if series.metric is m.EXP_P2P}
        assert len(health) == 11 or m.EXP_HEALTH in reading.unsupported
        assert set(health.values()) <= {0, 10, 20}
        assert peers == {str(other) for other in range(count) if other != index} or m.EXP_P2P in reading.unsupported


def test_no_such_gpu(opened: DcgmSource) -> None:
    """An index that does not exist is an error, and affects no other GPU."""
    from gpu_exporter.model.errors import GpuLost

    with pytest.raises(GpuLost, match="no longer lists a GPU at this index"):
        opened.attach(99, FULL)
    assert opened.count() > 0


def test_open_again(opened: DcgmSource) -> None:
    """After a loss, all groups and watches are created again."""
    for _ in range(3):
        opened.close()
        opened.open()
        device = opened.attach(0, FULL)
        assert values(device.read(ALL))


def test_address_without_a_host_engine(bindings: Path) -> None:
    """The error is one line with the address."""
    source = DcgmSource(Hostengine("127.0.0.1:1"), bindings)
    with pytest.raises(SourceLost, match=r"127\.0\.0\.1:1.*nv-hostengine") as lost:
        source.open()
    assert lost.value.reason == "no_connection"


@pytest.mark.ends_engine
def test_killed_and_started_again(
    engine: tuple[Hostengine, Engine | None], opened: DcgmSource, device: DcgmDevice
) -> None:
    """After SIGKILL, the source fails at once. The old connection stays dead, and a new one has all values."""
    process = engine[1]
    assert process is not None
    device.read(ALL)
    process.kill()
    time.sleep(0.5)
    with pytest.raises(SourceLost) as lost:
        device.read(ALL)
    assert lost.value.reason == "no_connection"
    process.start()
    with pytest.raises(SourceLost):
        device.read(ALL)
    device.close()
    opened.close()
    opened.open()
    assert values(opened.attach(0, FULL).read(ALL))


@pytest.mark.ends_engine
def test_hanging_host_engine(
    engine: tuple[Hostengine, Engine | None],
    opened: DcgmSource,
    device: DcgmDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With SIGSTOP, a call fails after the timeout and later ones at once; after SIGCONT, the source recovers."""
    process = engine[1]
    assert process is not None
    device.read(ALL)
    process.signal(signal.SIGSTOP)
    try:
        monkeypatch.setattr(source_module, "READ_SECONDS", 1.0)
        reasons: list[str] = []

        def hangs() -> bool:
            try:
                device.read(ALL)  # of what was read a moment ago, no call is made
            except SourceLost as lost:
                reasons.append(lost.reason)
            return bool(reasons)

        eventually(hangs)
        assert reasons == ["stalled"]
        # Others would wait forever.
        monkeypatch.setattr(source_module, "READ_SECONDS", math.inf)
        for ask in (lambda: device.read(ALL), opened.count, opened.open):
            with pytest.raises(SourceLost):
                ask()
        device.close()
        opened.close()
    finally:
        monkeypatch.setattr(source_module, "READ_SECONDS", LIMIT)
        process.signal(signal.SIGCONT)

    def back() -> bool:
        try:
            opened.open()
        except SourceLost:
            return False
        return opened.count() > 0

    eventually(back, 70)
    assert values(opened.attach(0, FULL).read(ALL))


@pytest.mark.beside_a_driver
def test_units_equal_those_of_nvml(device: DcgmDevice) -> None:
    """Stable values equal NVML's; changing values, such as clocks, have at least the same magnitude."""
    from gpu_exporter.sources.nvml.source import NvmlSource

    nvml = NvmlSource()
    nvml.open()
    try:
        index = next(
            index
            for index in range(nvml.count())
            if pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) == device.gpu.uuid
        )
        peer = nvml.attach(index, FULL)
        assert {**vars_of(peer.gpu), "index": 0, "info": ()} == {**vars_of(device.gpu), "index": 0, "info": ()}
        nvml_values, dcgm_values = values(peer.read(ALL)), values(device.read(ALL))
        peer.close()
    finally:
        nvml.close()
    for metric in nvml_values.keys() & dcgm_values.keys() - set(INTEGRALS):
        if metric.pace is not Pace.FAST and metric.unit not in ("seconds", "celsius", "joules", "millijoules"):
            assert dcgm_values[metric] == pytest.approx(nvml_values[metric], rel=0.001, abs=1.01), metric.key
        elif metric.unit not in ("percent", "bitmask", "bool", "state", "generation", "lanes"):
            slack = 0.05 if metric.unit == "ratio" else 30
            low, high = nvml_values[metric] / 50 - slack, nvml_values[metric] * 50 + slack
            assert low <= dcgm_values[metric] <= high, metric.key


def vars_of(gpu: object) -> dict[str, object]:
    """Return the fields of a dataclass with slots."""
    return {name: getattr(gpu, name) for name in gpu.__slots__}  # type: ignore[attr-defined]


def test_every_row_with_a_dcgm_field_is_in_the_full_set() -> None:
    """The other rows of the catalogue are computed by the exporter."""
    asked = {row.dcgm for row in FULL}
    assert {row.key for row in METRICS if row.dcgm is not None and row.dcgm not in asked} == {m.XID_ERRORS.key}
