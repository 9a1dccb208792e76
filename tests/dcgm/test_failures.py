"""Failures of a DCGM on the fake host engine: what each affects, and what the exporter reports."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.io.user_text import Hostengine, device_list, hostengine
from gpu_exporter.model.errors import GpuLost, GpuNotSampled, SourceLost
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import EntityKind, Metric, MetricSet, Pace
from gpu_exporter.sources.dcgm import demand, loading
from gpu_exporter.sources.dcgm import profiling as p
from gpu_exporter.sources.dcgm import source as source_module
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS, Demand, EngineLoad
from gpu_exporter.sources.dcgm.device import DcgmDevice
from gpu_exporter.sources.dcgm.source import DcgmSource
from gpu_exporter.sources.dcgm.switches_and_cpus import ChosenDevices
from gpu_exporter.sources.dcgm.values import EntityGroup
from gpu_exporter.sources.dcgm.values import gpu as dcgm_gpu
from tests.conftest import run
from tests.support.fakes.hostengine import BINDINGS, FakeHostengine, gpu, instance
from tests.support.tools import LIMIT, PATIENCE
from tests.support.tools import until as wait_until

FULL = selected(MetricSet.FULL)
DEFAULT = selected(MetricSet.DEFAULT)
ALL = frozenset(Pace)
FAST = frozenset({Pace.FAST})
Make = Callable[..., FakeHostengine]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Start a fake host engine, optionally with another state."""
    started: list[FakeHostengine] = []
    monkeypatch.setattr("gpu_exporter.sources.dcgm.inventory.LIST_SECONDS", 0.2)
    monkeypatch.setattr("gpu_exporter.sources.dcgm.device.LIST_SECONDS", 0.2)
    monkeypatch.setattr("gpu_exporter.sources.dcgm.source.SHARED_SECONDS", dict.fromkeys(Pace, 0.05))

    def start(gpus: int = 1, **state: Any) -> FakeHostengine:
        made = FakeHostengine(tmp_path / str(len(started)), gpus, unix=bool(state.pop("unix", False)))
        made.state.update(state)
        made.write()
        made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def connect() -> Iterator[Callable[[FakeHostengine], DcgmSource]]:
    """Open a source that samples ten times a second."""
    opened = []

    def open_(fake: FakeHostengine) -> DcgmSource:
        source = DcgmSource(hostengine(fake.address), BINDINGS)
        source.sample_every(0.1)
        opened.append(source)
        source.open()
        source.count()
        return source

    yield open_
    for source in opened:
        source.close()


Connect = Callable[[FakeHostengine], DcgmSource]


def until(device: DcgmDevice, holds: Callable[[Reading], bool], timeout: float = 10.0) -> Reading:
    """Read until a condition is true."""
    end = time.monotonic() + PATIENCE * timeout
    while True:
        reading = device.read(ALL)
        if holds(reading):
            return reading
        assert time.monotonic() < end, f"never came true: {len(reading.values)} values, {reading.unsupported}"
        time.sleep(0.05)


def of(reading: Reading, metric: Metric) -> list[float]:
    """Return the values of a metric."""
    return [value for series, value in reading.values.items() if series.metric is metric]


def profiled(reading: Reading) -> bool:
    """Return whether a reading has a profiling value."""
    return bool(of(reading, m.SM_ACTIVE))


# --- profiling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-33, "no_profiling_module"),
        (-36, "profiling_not_supported"),
        (-37, "profiling_library_error"),
        (-44, "driver_too_old"),
        (-29, "requires_root"),
    ],
)
def test_failing_profiling_affects_nothing_else(engine: Make, connect: Connect, code: int, reason: str) -> None:
    """Other fields are still sampled, because they are in groups of their own."""
    device = connect(engine(profiling=code)).attach(0, DEFAULT)
    reading = until(device, lambda each: bool(each.values))
    assert reading.unsupported[m.SM_ACTIVE] == reading.unsupported[m.PCIE_TX] == reason
    assert of(reading, m.POWER) == [512.5]
    time.sleep(3.5)  # longer than a GPU without new samples is up
    assert of(device.read(FAST), m.POWER) == [512.5]


def test_the_first_profiling_sample_is_blank_and_no_failure(engine: Make, connect: Connect) -> None:
    """It takes an interval; until then, nothing is reported."""
    device = connect(engine()).attach(0, DEFAULT)
    reading = device.read(ALL)
    assert not profiled(reading)
    assert m.SM_ACTIVE not in reading.unsupported
    assert not reading.failed
    reading = until(device, profiled)
    assert of(reading, m.SM_ACTIVE) == [0.95]


@pytest.mark.parametrize(("code", "reason"), [(-34, "in_use"), (-54, "paused")])
def test_counters_in_use_by_another_program(
    engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    """The reason is reported, other values continue, and profiling resumes by itself."""
    monkeypatch.setattr(p, "RETRY_SECONDS", 0.3)
    fake = engine(profiling=code)
    device = connect(fake).attach(0, DEFAULT)
    reading = until(device, lambda each: bool(of(each, m.PROFILING_PAUSED)))
    (series,) = (series for series in reading.values if series.metric is m.PROFILING_PAUSED)
    assert dict(series.labels) == {"reason": reason}
    assert reading.unsupported[m.SM_ACTIVE] == "paused"
    assert of(reading, m.POWER) == [512.5]
    with fake.changed() as state:
        state["profiling"] = 0
    ended = False

    def back(each: Reading) -> bool:
        nonlocal ended
        ended = ended or series in each.ended
        return profiled(each)

    reading = until(device, back)
    assert ended
    assert not of(reading, m.PROFILING_PAUSED)
    assert m.SM_ACTIVE not in reading.unsupported


def test_counters_taken_while_reading(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """DCGM then returns blanks with status 0: each series fails once, and the pause is reported."""
    monkeypatch.setattr(p, "PATIENCE_SECONDS", 0.2)
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    until(device, profiled)
    for field in range(1001, 1017):
        fake.state["gpus"][0]["fields"][str(field)] = None
    fake.write()
    failed: list[str] = []

    def paused(each: Reading) -> bool:
        failed.extend(reason for series, reason in each.failed.items() if series.metric is m.SM_ACTIVE)
        return bool(of(each, m.PROFILING_PAUSED))

    until(device, paused)
    for _ in range(5):
        paused(device.read(FAST))
    assert failed == ["paused"]
    with fake.changed() as state:
        state["gpus"][0]["fields"].update({k: v for k, v in gpu(0)["fields"].items() if k.startswith("10")})
    until(device, lambda each: profiled(each) and not of(each, m.PROFILING_PAUSED))


@pytest.mark.parametrize("metrics", [DEFAULT, [metric for metric in DEFAULT if metric in m.PROFILING]])
def test_counters_that_have_stopped(engine: Make, connect: Connect, metrics: Sequence[Metric]) -> None:
    """All are 0 although the GPU works: no values, and the pause is reported. NVLinks count on their own."""
    fake = engine()
    device = connect(fake).attach(0, metrics)
    until(device, profiled)
    with fake.changed() as state:
        fields = state["gpus"][0]["fields"]
        fields.update({"203": 24, **{str(field): type(fields[str(field)])() for field in range(1001, 1017)}})
    reading = until(device, lambda each: bool(of(each, m.PROFILING_PAUSED)))
    assert not of(reading, m.SM_ACTIVE)
    fake.set(203, 0)
    assert not of(device.read(FAST), m.SM_ACTIVE)
    with fake.changed() as state:
        state["gpus"][0]["fields"].update({k: v for k, v in gpu(0)["fields"].items() if k.startswith("10")})
    until(device, lambda each: profiled(each) and not of(each, m.PROFILING_PAUSED))


@pytest.mark.parametrize("metrics", [DEFAULT, [metric for metric in DEFAULT if metric in m.PROFILING]])
def test_counters_that_keep_their_values(
    engine: Make,
    connect: Connect,
    metrics: Sequence[Metric],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a GPU whose power changes they are no values. This is said once, also if the fields are watched again."""
    monkeypatch.setattr("gpu_exporter.catalogue.stopped_counters.KEPT_SECONDS", 1.0)
    monkeypatch.setattr(p, "RETRY_SECONDS", 1.0)
    fake, watts = engine(), itertools.count(100)

    def watches(each: Reading) -> bool:
        fake.set(155, float(next(watts)))
        return bool(of(each, m.PROFILING_PAUSED))

    caplog.set_level("INFO", "gpu_exporter.sources.dcgm")
    device = connect(fake).attach(0, metrics)
    until(device, profiled)
    reading = until(device, watches)
    assert not of(reading, m.SM_ACTIVE)
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
        assert not of(device.read(FAST), m.SM_ACTIVE)
        time.sleep(0.1)
    fake.set(1010, 12345)
    until(device, lambda each: profiled(each) and not of(each, m.PROFILING_PAUSED))
    stopped, again = (each for each in caplog.messages if "profiling counters" in each)
    assert stopped == (
        "GPU 0: DCGM's profiling counters have stopped, so they have no values: end the profiler that holds them, or "
        "run `dcgmi profile --resume`; else restart nv-hostengine"
    )
    assert again == "GPU 0: DCGM's profiling counters count again"


def test_never_a_live_read_but_of_links(engine: Make, connect: Connect) -> None:
    """Live reads of profiling fields crash some host engines. The fake one would crash, too."""
    fake = engine()
    source = connect(fake)
    until(source.attach(0, FULL), profiled)
    with pytest.raises(AssertionError):
        source._open_session().connection.live([dcgm_gpu(0)], [150])
    assert fake.process is not None
    assert fake.process.poll() is None


# --- fields ---------------------------------------------------------------------------------------------------------


def test_an_unknown_field_affects_no_other(engine: Make, connect: Connect) -> None:
    """The host engine refuses the whole group; the other fields are requested again without it."""
    device = connect(engine(unknown_fields=[156, 1008, 237])).attach(0, FULL)
    reading = until(device, lambda reading: bool(of(reading, m.FP32_ACTIVE)))  # a reading has new samples only
    assert {row for row, reason in reading.unsupported.items() if reason == "unknown_field"} == {
        m.ENERGY,
        m.ENERGY_JOULES,
        m.FP16_ACTIVE,
        m.PCIE_GEN,
    } - {m.FP16_ACTIVE} | {row for row in reading.unsupported if row is m.FP16_ACTIVE}
    assert m.FP16_ACTIVE in reading.unsupported
    assert of(reading, m.PCIE_WIDTH) == [16]
    assert of(reading, m.FP32_ACTIVE) == [0.015]


@pytest.mark.parametrize("version", ["3.3.9", "4.0.0", "4.6.0"])
def test_an_older_host_engine(engine: Make, connect: Connect, version: str) -> None:
    """Fields that it lacks have no value; others do."""
    device = connect(engine(version=version)).attach(0, FULL)
    reading = until(device, profiled)
    assert of(reading, m.GPU_TEMP) == [42]
    lacks = m.TEMP_MARGIN in reading.unsupported, m.LINK_UP in reading.unsupported
    assert lacks == (version < "4", version < "4.6")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "no_value"),
        ("not_found", "not_supported"),
        ("not_supported", "not_supported"),
        ("no_permission", "no_permission"),
        ({"status": -6}, "not_supported"),
        ({"status": -17}, "no_permission"),
        ({"status": -3}, "unknown"),
    ],
)
def test_blanks(engine: Make, connect: Connect, answer: Any, reason: str) -> None:
    """With any status, no blank of DCGM is exposed; a field that never had a value is unsupported."""
    fake = engine()
    for field in (155, 202):
        fake.set(field, answer)
    device = connect(fake).attach(0, DEFAULT)
    reading = until(device, lambda each: m.POWER in each.unsupported)
    assert reading.unsupported[m.POWER] == reading.unsupported[m.PCIE_REPLAY] == reason
    assert not of(reading, m.POWER)
    fake.set(155, 100.0)
    reading = until(device, lambda each: of(each, m.POWER) == [100.0])
    assert m.POWER not in reading.unsupported


def test_a_field_that_stops_answering_fails(engine: Make, connect: Connect) -> None:
    """It is not reported as unsupported, and recovers."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.set(150, None)
    reading = until(device, lambda each: bool(each.failed))
    assert {series.metric: reason for series, reason in reading.failed.items()} == {m.GPU_TEMP: "no_value"}
    assert m.GPU_TEMP not in reading.unsupported
    fake.set(150, 55)
    until(device, lambda each: of(each, m.GPU_TEMP) == [55])


@pytest.mark.parametrize(
    ("field", "raw", "metric", "value"),
    [
        (140, 0, m.MEMORY_TEMP, []),
        (157, 0.0, m.POWER_INSTANT, []),
        (170, 0, m.FABRIC, []),
        (170, 6, m.FABRIC, []),
        (170, -6, m.FABRIC, []),
        (170, 4, m.FABRIC, [4]),
        (112, 0x44, m.CLOCK_EVENTS, [0x44]),
        (156, 2**53, m.ENERGY, [2**53]),
        (150, 0x7FFFFFF0, m.GPU_TEMP, []),
    ],
)
def test_numbers_that_mean_no_value(
    engine: Make, connect: Connect, field: int, raw: float, metric: Metric, value: list[float]
) -> None:
    """Besides blanks: a 0 where the driver refused, fabric states that mean "none", 32-bit blanks."""
    fake = engine()
    fake.set(field, raw)
    assert of(connect(fake).attach(0, DEFAULT).read(ALL), metric) == value


def test_names_that_are_taken(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a field group of the same name exists, of another client or left over, another name is used."""
    tokens = iter(("same", "same"))
    monkeypatch.setattr("gpu_exporter.sources.dcgm.groups.secrets.token_hex", lambda _: next(tokens))
    fake = engine()
    first, second = connect(fake), connect(fake)
    for source in (first, second):
        assert of(source.attach(0, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


# --- XIDs -----------------------------------------------------------------------------------------------------------


def test_each_xid_counts_once(engine: Make, connect: Connect) -> None:
    """XIDs from before the connection do not count, two in one tick count twice, and a new connection repeats none."""
    fake = engine(2)
    fake.xid(13)
    source = connect(fake)
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    assert all(device.xids_since is not None for device in devices)
    xids: list[tuple[str, int]] = []

    def read_xids() -> None:
        for device in devices:
            device.read(FAST)
            xids.extend((event.pci_bus_id, event.code) for event in device.events())

    def has(count: int) -> bool:
        read_xids()
        return len(xids) >= count

    for _ in range(3):
        read_xids()
    assert xids == []
    fake.xid(79, 31)
    fake.xid(48, on=1)
    wait_until(lambda: has(3), what="three XIDs")
    for _ in range(5):
        read_xids()
    assert sorted(xids) == [("00000000:06:00.0", 31), ("00000000:06:00.0", 79), ("00000000:07:00.0", 48)]
    source.open()
    source.count()
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    fake.xid(94)
    wait_until(lambda: has(4), what="another XID")
    for _ in range(5):
        read_xids()
    assert xids[3:] == [("00000000:06:00.0", 94)]


# --- GPUs, and what they are made of --------------------------------------------------------------------------------


def test_a_gpu_that_is_removed_and_comes_back(engine: Make, connect: Connect) -> None:
    """It stays in the list of all GPUs, and its values become blank: only that GPU is down."""
    fake = engine(2)
    source = connect(fake)
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    for device in devices:
        device.read(ALL)
    fake.remove(1)

    def gone() -> str:
        try:
            devices[1].read(FAST)
        except GpuLost as lost:
            return lost.reason
        return ""

    wait_until(gone, what="a lost GPU")
    assert of(devices[0].read(FAST), m.GPU_TEMP) == [42]
    assert source.count() == 2
    devices[1].close()
    with pytest.raises(GpuLost, match="cannot read it now") as lost:
        source.attach(1, DEFAULT)
    assert lost.value.reason == "gone"
    assert list(source.identities()) == [0]
    fake.restore(1)
    assert of(source.attach(1, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


def test_another_gpu_at_the_same_number(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values must not count for the GPU that was there before. One misread UUID loses no GPU."""
    monkeypatch.setitem(SAMPLED_SECONDS, Pace.SLOW, 0.5)
    fake = engine()
    source = connect(fake)
    device = source.attach(0, DEFAULT)
    device.read(ALL)
    fake.set(54, "GPU-other")
    until(device, lambda reading: device._other_since is not None)
    fake.set(54, device.gpu.uuid)
    until(device, lambda reading: device._other_since is None)
    with fake.changed() as state:
        state["gpus"][0]["attributes"]["uuid"] = state["gpus"][0]["fields"]["54"] = "GPU-other"
    with pytest.raises(GpuLost, match="another GPU at this number") as lost:
        until(device, lambda reading: False)
    assert lost.value.reason == "gone"
    device.close()

    assert source.attach(0, DEFAULT).gpu.uuid == "GPU-other"


def test_a_gpu_without_any_value_is_lost(engine: Make, connect: Connect) -> None:
    """As when it fell off the bus: every field is blank, with status 0."""
    fake = engine(2)
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.lose(0)
    with pytest.raises(GpuLost) as lost:
        until(device, lambda _: False)
    assert lost.value.reason == "lost"


@pytest.mark.parametrize(("code", "reason"), [(-18, "lost"), (-19, "reset_required"), (-57, "stalled")])
def test_a_gpu_is_lost_by_status(engine: Make, connect: Connect, code: int, reason: str) -> None:
    """One field with the status "lost" is enough."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.set(150, {"status": code})
    with pytest.raises(GpuLost) as lost:
        until(device, lambda _: False, 2)
    assert lost.value.reason == reason


def test_detached_gpus_are_no_lost_gpus(engine: Make, connect: Connect) -> None:
    """A host engine has released the driver, for example for an upgrade."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.set(150, {"status": -67})
    with pytest.raises(SourceLost) as lost:
        until(device, lambda _: False, 2)
    assert lost.value.reason == "detached"


def test_a_host_engine_that_samples_nothing(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with samples that grow old: they say nothing about the GPU. After a while, it is connected anew."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    with fake.changed() as state:
        state["wedged"] = True
    with pytest.raises(GpuNotSampled):
        until(device, lambda _: False, 10)
    monkeypatch.setattr("gpu_exporter.sources.dcgm.device.RECONNECT_SECONDS", 0.0)
    with pytest.raises(SourceLost, match="has sampled no GPU for") as lost:
        device.read(ALL)
    assert lost.value.reason == "stalled"


def test_a_host_engine_that_has_not_sampled_yet(engine: Make, connect: Connect) -> None:
    """An overloaded one accepts the watches, and has no sample for seconds."""
    fake = engine(first_sample_seconds=1e6)
    device = connect(fake).attach(0, DEFAULT)
    with pytest.raises(GpuNotSampled):
        device.read(ALL)
    with fake.changed() as state:
        state["first_sample_seconds"] = 0

    def sampled() -> bool:
        try:
            return of(device.read(ALL), m.POWER) == [512.5]
        except GpuNotSampled:
            return False

    wait_until(sampled, what="the first sample")


def test_mig(engine: Make, connect: Connect) -> None:
    """Instances have the values that NVML has. They come and go; one without a compute instance is ignored."""
    fake = engine()
    parts = [*instance(1, 101, 0, 1, "1g.18gb", **{"1002": 0.3}), *instance(2, 102, 0, 2, "2g.35gb", **{"1002": 0.6})]
    with fake.changed() as state:
        state["gpus"][0]["parts"] = [*parts, instance(3, 103, 0, 1, "1g.18gb")[0]]
        state["gpus"][0]["fields"]["67"] = 1
    device = connect(fake).attach(0, DEFAULT)
    reading = until(device, lambda reading: len(of(reading, m.SM_ACTIVE)) == 2)
    of_parts = {
        dict(series.labels)["GPU_I_PROFILE"]: value
        for series, value in reading.values.items()
        if series.metric is m.SM_ACTIVE
    }
    assert of_parts == {"1g.18gb": 0.3, "2g.35gb": 0.6}
    assert sorted(of(reading, m.INSTANCE_SLICES)) == [1, 2]
    devices = [dict(series.labels) for series in reading.values if series.metric is m.MIG_DEVICE]
    assert {each["mig_uuid"] for each in devices} == {"MIG-0-1", "MIG-0-2"}
    assert of(reading, m.POWER) == [512.5]
    assert sorted(of(reading, m.FB_TOTAL)) == [16384, 16384]
    with fake.changed() as state:
        state["gpus"][0]["parts"] = parts[:2]
    ended: set[Metric] = set()

    def one(each: Reading) -> bool:
        ended.update(series.metric for series in each.ended)
        return len([series for series in each.values if series.metric is m.MIG_DEVICE]) == 1

    until(device, one)
    assert {m.MIG_DEVICE, m.SM_ACTIVE, m.FB_TOTAL, m.INSTANCE_SLICES} <= ended


@pytest.mark.parametrize("listed", [True, False])
def test_nvlinks(engine: Make, connect: Connect, listed: bool) -> None:
    """Read from DCGM's list of links, or without that module from the state of each link."""
    fake = engine(**({"switches": []} if listed else {}))
    with fake.changed() as state:
        state["gpus"][0]["links"] = [3] * 16 + [2, 0]
    reading = until(connect(fake).attach(0, FULL), lambda reading: profiled(reading) and bool(of(reading, m.LINK_TX)))
    assert of(reading, m.NVLINK_COUNT) == [17]
    assert of(reading, m.NVLINK_UP) == [16]
    assert sorted(of(reading, m.LINK_UP)) == [0] + [1] * 16
    assert of(reading, m.LINK_TX) == [64 << 20] * 17
    assert of(reading, m.LINK_ERRORS[0]) == [0] * 17


def test_switches_and_cpus(engine: Make, connect: Connect) -> None:
    """NVSwitches, their links, Grace CPUs and their cores have the labels of dcgm-exporter."""
    switch = {"id": 3, "links": [3, 0], "fields": {"858": 47, "856": None}, "link_fields": {"870": 2, "780": 5000}}
    fake = engine(
        switches=[switch],
        cpus=[{"id": 0, "fields": {"1110": 51.5, "1130": 180.0}}],
        cores=[{"id": core, "cpu": 0, "fields": {"1100": 0.25}} for core in (0, 70)],
    )
    source = connect(fake)
    device = source.attach(0, FULL)
    device.read(ALL)
    found = {(sample.series.metric.name, sample.series.labels): sample.value for sample in source.non_gpu_samples()}
    of_link = (("nvlink", "0"), ("nvswitch", "nvswitch3"))
    assert found == {
        (m.SWITCH_TEMP.name, (("nvswitch", "nvswitch3"),)): 47,
        (m.SWITCH_LINK.name, of_link): 2,
        (m.SWITCH_LINK_TX.name, of_link): 5000,
        (m.CPU_TEMP.name, (("cpu", "0"),)): 51.5,
        (m.CPU_POWER.name, (("cpu", "0"),)): 180,
        (m.CPU_UTIL.name, (("cpucore", "0"), ("cpu", "0"))): 0.25,
        (m.CPU_UTIL.name, (("cpucore", "70"), ("cpu", "0"))): 0.25,
    }
    assert all(series.metric.entity is not EntityKind.NVSWITCH for series in device.read(ALL).values)
    source.close()
    assert source.non_gpu_samples() == ()


def test_a_node_of_16_gpus_has_room(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of a host engine share 64 groups and 64 field groups; each GPU needs one or two."""
    monkeypatch.setattr("gpu_exporter.sources.dcgm.source.READ_SECONDS", 60.0)  # 16 GPUs, perhaps on a busy machine
    source = connect(engine(16))
    for _ in range(3):
        devices = [source.attach(index, FULL) for index in range(16)]
    for device in devices:
        reading = until(device, profiled)
        assert not [row for row, reason in reading.unsupported.items() if reason == "no_room"]


def attached_together(source: DcgmSource, gpus: int) -> list[DcgmDevice]:
    """Attach GPUs as the workers of a collector do: each on its own thread, all at the same time."""
    hold = threading.Event()
    with ThreadPoolExecutor(gpus + 1) as pool:
        pool.submit(source._caller.call, hold.wait, LIMIT)
        devices = [pool.submit(source.attach, index, FULL) for index in range(gpus)]
        wait_until(lambda: len(source._caller._waiting) == gpus)
        hold.set()
        return [device.result() for device in devices]


def test_gpus_that_are_attached_together_are_watched_together(
    engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four GPUs need no more calls that wait for the host engine than one does, and none of these is for a link: it
    would read them at each pass of its loop, which takes a second here for each of them."""

    def calls(gpus: int) -> Sequence[Sequence[Any]]:
        path = tmp_path / f"calls-{gpus}"
        monkeypatch.setenv("STANDIN_DCGM_CALLS", str(path))
        devices = attached_together(connect(engine(gpus, link_seconds=1.0)), gpus)
        made = [json.loads(line) for line in path.read_text().splitlines()]
        for device in devices:
            reading = until(device, lambda each: bool(of(each, m.LINK_TX) and of(each, m.LINK_ERRORS[0])))
            assert len(of(reading, m.LINK_UP)) == 18
        return made

    one, four = calls(1), calls(4)
    assert [call[0] for call in four].count("watch") == [call[0] for call in one].count("watch") > 0
    assert {call[2] for call in four if call[0] == "group_add"} == {EntityGroup.GPU}


@pytest.mark.slowest
def test_a_host_engine_that_falls_behind_is_asked_for_less(
    engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, a reason for what is not read, a finding for `doctor`; and everything again later."""
    monkeypatch.setattr(demand, "GRACE_SECONDS", 0.2)
    fake = engine()
    source = connect(fake)
    source.sample_every(0.5)
    device = source.attach(0, FULL)
    until(device, lambda each: bool(of(each, m.LINK_TX)))
    with fake.changed() as state:
        state["pass_seconds"] = 2.0
    reading = until(device, lambda each: each.unsupported.get(m.LINK_TX) == demand.OVERLOADED)
    assert of(reading, m.GPU_TEMP) == [42]
    assert any("asked for less" in finding.what for finding in source.findings())
    said = [line for line in caplog.messages if "falls behind" in line]
    assert len(said) == len({*said}) > 0
    monkeypatch.setattr(source, "_load", EngineLoad(Demand.NO_EXTRAS, patience=0.0))
    with fake.changed() as state:
        state["pass_seconds"] = 0.0
    until(device, lambda each: source.demand is Demand.ALL and bool(of(each, m.LINK_TX)))


def test_attached_twice(engine: Make, connect: Connect) -> None:
    """As during a change of metrics: closing one handle affects the other in nothing, and both get all XIDs."""
    fake = engine()
    source = connect(fake)
    first = source.attach(0, (m.POWER, m.SM_ACTIVE))
    until(first, profiled)
    second = source.attach(0, (m.POWER, m.SM_ACTIVE, m.GPU_TEMP))
    until(second, profiled)
    fake.xid(31)
    until(first, lambda _: bool(source.count()) and len(first._xids) > 0)
    assert [event.code for event in first.events()] == [event.code for event in second.events()] == [31]
    first.close()
    assert first.events() == []
    fake.set(155, 300.0)
    fake.set(1002, 0.25)
    fake.xid(79)
    until(second, lambda each: of(each, m.POWER) == [300] and of(each, m.SM_ACTIVE) == [0.25])
    until(second, lambda each: of(each, m.GPU_TEMP) == [42])
    until(second, lambda _: len(second._xids) > 0)
    assert [event.code for event in second.events()] == [79]


def test_a_sample_counts_once_for_two_devices(engine: Make, connect: Connect) -> None:
    """The second handle continues where the first one is."""
    source = connect(engine())
    source.sample_every(0.5)
    first = source.attach(0, (m.SM_ACTIVE,))
    until(first, profiled)
    begin, total = time.monotonic(), 0.0
    for _ in range(10):
        second = source.attach(0, (m.SM_ACTIVE,))
        total += sum(until(second, profiled).spans.values())
    assert total < time.monotonic() - begin + 0.5


def test_repeated_changes_of_metrics(engine: Make, connect: Connect) -> None:
    """Each change creates field groups, and removes the previous ones."""
    source = connect(engine())
    plain = [row for row in DEFAULT if row.dcgm is not None and row.entity is EntityKind.GPU]
    before = source.attach(0, plain)
    for left_out in islice(combinations(plain, 2), 80):
        device = source.attach(0, [row for row in plain if row not in left_out])
        before.close()
        before = device
        assert "no_room" not in device.read(ALL).unsupported.values()


def by_labels(reading: Reading, metric: Metric) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by label values."""
    return {
        tuple(value for _, value in series.labels): value
        for series, value in reading.values.items()
        if series.metric is metric
    }


def test_health_equals_that_of_dcgm_exporter(engine: Make, connect: Connect) -> None:
    """Each system has a series with its latest incident; it ends with the incident."""
    memory, bus = [0x10, 20, 1, 1, 4], [0xFFFFFFFF, 20, 1, 0, 120]
    fake = engine(2, health=[[0x10, 10, 1, 1, 777], memory, bus])
    source = connect(fake)
    devices = [source.attach(index, (m.POWER, m.EXP_HEALTH)) for index in range(2)]
    first, second = (by_labels(device.read(ALL), m.EXP_HEALTH) for device in devices)
    assert len(first) == len(second) == 11
    assert {key: value for key, value in first.items() if value} == {("DCGM_FR_FALLEN_OFF_BUS", "ALL"): 20}
    assert {key: value for key, value in second.items() if value} == {("DCGM_FR_VOLATILE_DBE_DETECTED", "MEM"): 20}
    assert first["DCGM_FR_OK", "PCIE"] == 0
    with fake.changed() as state:
        state["health"] = [[0x1, 10, 1, 1, 777]]
    ended: set[tuple[str, ...]] = set()

    def healed(each: Reading) -> bool:
        ended.update(tuple(value for _, value in series.labels) for series in each.ended)
        return by_labels(each, m.EXP_HEALTH).get(("DCGM_FR_UNKNOWN(777)", "PCIE")) == 10

    until(devices[1], healed)
    assert ended == {("DCGM_FR_OK", "PCIE"), ("DCGM_FR_VOLATILE_DBE_DETECTED", "MEM")}


def test_health_without_its_module(engine: Make, connect: Connect) -> None:
    """The reason is reported, and nothing else fails."""
    reading = connect(engine()).attach(0, (m.POWER, m.EXP_HEALTH)).read(ALL)
    assert reading.unsupported == {m.EXP_HEALTH: "no_module"}
    assert of(reading, m.POWER) == [512.5]


def test_links_between_gpus_equal_those_of_dcgm_exporter(engine: Make, connect: Connect) -> None:
    """A GPU has no link to itself."""
    source = connect(engine(3, peers={"0-2": 5, "2-0": 9}))
    devices = [source.attach(index, (m.POWER, m.EXP_P2P)) for index in range(3)]
    first, _, last = (by_labels(device.read(ALL), m.EXP_P2P) for device in devices)
    assert first == {("OK", "1"): 0, ("NotSupported", "2"): 5}
    assert last == {("Unknown", "0"): 9, ("OK", "1"): 0}


@pytest.mark.parametrize(("instances", "left"), [((102,), ["2"]), (("MIG-0-1",), ["1"]), ((101, 102), ["1", "2"])])
def test_chosen_instances(engine: Make, instances: tuple[int | str, ...], left: list[str]) -> None:
    """Selected by DCGM's number, or by the UUID of the MIG device."""
    fake = engine()
    with fake.changed() as state:
        state["gpus"][0]["parts"] = [*instance(1, 101, 0, 1, "1g.18gb"), *instance(2, 102, 0, 2, "2g.35gb")]
        state["gpus"][0]["fields"]["67"] = 1
    source = DcgmSource(hostengine(fake.address), BINDINGS, instances=instances)
    source.sample_every(0.1)
    source.open()
    reading = until(source.attach(0, DEFAULT), profiled)
    source.close()
    for metric in (m.SM_ACTIVE, m.FB_USED, m.INSTANCE_SLICES, m.MIG_DEVICE):
        found = [dict(series.labels)["GPU_I_ID"] for series in reading.values if series.metric is metric]
        assert sorted(found) == left, metric.key


@pytest.mark.parametrize(
    ("switches", "cpus", "expected"),
    [
        ("g", "f", {"nvswitch3", "nvswitch4", "cpu0", "core0", "core70"}),
        ("g:4", "g", {"nvswitch4", "cpu0"}),
        ("i:1", "i:70", {"link1 nvswitch3", "link1 nvswitch4", "core70"}),
        ("i", "g:9", {"link0 nvswitch3", "link1 nvswitch3", "link0 nvswitch4", "link1 nvswitch4"}),
    ],
)
def test_chosen_switches_and_cpus(
    engine: Make, caplog: pytest.LogCaptureFixture, switches: str, cpus: str, expected: set[str]
) -> None:
    """NVSwitches or their NVLinks, CPUs or their cores; one that does not exist is reported once."""
    fields = {"fields": {"858": 47}, "link_fields": {"870": 2}, "links": [3, 3]}
    fake = engine(
        switches=[{"id": 3, **fields}, {"id": 4, **fields}],
        cpus=[{"id": 0, "fields": {"1130": 180.0}}],
        cores=[{"id": core, "cpu": 0, "fields": {"1100": 0.25}} for core in (0, 70)],
    )
    chosen = ChosenDevices(device_list(switches), device_list(cpus))
    source = DcgmSource(hostengine(fake.address), BINDINGS, chosen=chosen)
    source.open()
    device = source.attach(0, FULL)
    device.read(ALL)
    names = {"nvswitch": "", "nvlink": "link", "cpu": "cpu", "cpucore": "core"}
    found = set()
    for sample in source.non_gpu_samples():
        own = sample.series.labels
        own = own[:1] if own[0][0] == "cpucore" else own
        found.add(" ".join(names[name] + value for name, value in own))
    source.close()
    assert found == expected
    assert [record.getMessage() for record in caplog.records if "devices" in record.getMessage()] == (
        ["--cpu-devices: there is no 9; those there are: 0"] if cpus == "g:9" else []
    )


def test_switches_and_cpus_selected_later(engine: Make, connect: Connect) -> None:
    """After a reload of the fields file. Detaching a device without such metrics removes nothing."""
    source = connect(engine(switches=[{"id": 0, "links": [], "fields": {"858": 47, "864": 0}}]))
    source.attach(0, ()).close()
    before = source.attach(0, (m.POWER,))
    before.read(ALL)
    assert source.non_gpu_samples() == ()
    device = source.attach(0, (m.POWER, m.SWITCH_TEMP))
    before.close()
    device.read(ALL)
    assert [(sample.series.metric, sample.value) for sample in source.non_gpu_samples()] == [(m.SWITCH_TEMP, 47)]


# --- the host engine ------------------------------------------------------------------------------------------------


def test_over_a_unix_socket(engine: Make, connect: Connect) -> None:
    """It works as over TCP."""
    assert of(connect(engine(unix=True)).attach(0, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


def until_settled(device: DcgmDevice) -> None:
    """Read until the device watches nothing again, as it does a while after attaching."""
    until(device, lambda _: device._settled)


def test_calls_during_a_hang_fail_at_once(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call is stuck; all others are refused, so that no thread waits for it."""
    fake = engine(2)
    source = connect(fake)
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    for device in devices:
        until_settled(device)
    source.interval = 0.0  # so that no read shares the answers of the one before
    fake.signal(signal.SIGSTOP)
    for device in devices * 3:
        # Only the first call may wait at all: others would wait forever.
        monkeypatch.setattr(source_module, "READ_SECONDS", math.inf if device is not devices[0] else 1.0)
        with pytest.raises(SourceLost, match="does not answer") as lost:
            device.read(FAST)
        assert lost.value.reason == "stalled"
    fake.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STANDIN_DCGM_LIBRARY": "missing"}, "find no libdcgm.so of their version"),
        ({"STANDIN_DCGM": "3"}, ""),
        ({}, ""),
    ],
)
def test_bindings(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    """DCGM 3.3 and 4 work with warnings as errors; without their library, the error is one line."""
    fake = FakeHostengine(tmp_path / "engine", version="3.3.9" if "STANDIN_DCGM" in environment else "4.6.0")
    fake.start()
    try:
        ended = run("once", *fake.flags, env={**fake.environment, **environment, "PYTHONWARNINGS": "error"})
    finally:
        fake.kill()
    if message:
        assert ended.returncode == 1
        assert message in ended.stderr
        assert ended.stderr.count("\n") == 1
    else:
        assert ended.stderr == ""
        assert "DCGM_FI_PROF_SM_ACTIVE{" in ended.stdout


def test_no_bindings(tmp_path: Path) -> None:
    """The error names the packages and the flag."""
    with pytest.raises(SourceLost, match=r"datacenter-gpu-manager-4-core.*datacenter-gpu-manager for DCGM 3") as lost:
        loading.load(tmp_path)
    assert lost.value.reason == "no_bindings"
    assert str(tmp_path) in str(lost.value)
    assert str(BINDINGS) not in sys.path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def x(:\n", "invalid syntax"),
        ("raise ValueError('two\\nlines')\n", "two lines"),
        ("raise SystemExit\n", "SystemExit"),
        ("", "dcgm_structs"),
    ],
)
def test_broken_bindings(tmp_path: Path, content: str, message: str) -> None:
    """Whatever their files contain, the error is one line."""
    broken = tmp_path / "bindings"
    shutil.copytree(BINDINGS, broken)
    (broken / "dcgm_structs.py").write_text(content)
    ended = run("once", "--source", "dcgm", "--dcgm-bindings", str(broken))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "its Python bindings can't be imported: " in ended.stderr
    assert message in ended.stderr


def test_embedded(tmp_path: Path) -> None:
    """Without an address, DCGM runs in the exporter's own process."""
    fake = FakeHostengine(tmp_path)
    flags = ("--source", "dcgm", "--dcgm-bindings", str(BINDINGS))
    ended = run("once", *flags, env=fake.environment)
    assert ended.returncode == 0, ended.stderr
    assert "DCGM_FI_PROF_SM_ACTIVE{" in ended.stdout


def test_host_engine_addresses() -> None:
    """An address has a description, and is local or remote."""
    assert str(Hostengine()) == "embedded host engine"
    assert [each.local for each in map(hostengine, ("", "/run/he", "localhost:1", "[::1]:1", "gpu-7:5555"))] == [
        True,
        True,
        True,
        True,
        False,
    ]
