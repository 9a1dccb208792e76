"""What goes wrong in a DCGM, one thing after the other, on the stand-in: what it costs, and what is said of it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter import metrics as m
from gpu_exporter.config import Hostengine, hostengine
from gpu_exporter.metrics import selected
from gpu_exporter.model import EntityKind, GpuLost, Metric, MetricSet, Pace, Reading, SourceLost
from gpu_exporter.sources.dcgm import DcgmSource
from gpu_exporter.sources.dcgm import bindings as b
from gpu_exporter.sources.dcgm import profiling as p
from gpu_exporter.sources.dcgm import session as s
from gpu_exporter.sources.dcgm.device import DcgmDevice
from tests.conftest import run
from tests.fakes.hostengine import BINDINGS, FakeHostengine, gpu, instance

FULL = selected(MetricSet.FULL)
DEFAULT = selected(MetricSet.DEFAULT)
ALL = frozenset(Pace)
FAST = frozenset({Pace.FAST})
Make = Callable[..., FakeHostengine]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Start a stand-in host engine, with a state of one's own if need be."""
    started: list[FakeHostengine] = []
    monkeypatch.setattr(s, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr("gpu_exporter.sources.dcgm.device.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("gpu_exporter.sources.dcgm.SHARED_SECONDS", 0.05)

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
    """Open a source on it that samples each tenth of a second."""
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
    """Read until it holds."""
    end = time.monotonic() + timeout
    while True:
        reading = device.read(ALL)
        if holds(reading):
            return reading
        assert time.monotonic() < end, f"never came true: {len(reading.values)} values, {reading.unsupported}"
        time.sleep(0.05)


def of(reading: Reading, metric: Metric) -> list[float]:
    """The values of a metric."""
    return [value for series, value in reading.values.items() if series.metric is metric]


def profiled(reading: Reading) -> bool:
    """Whether a profiling value is in it."""
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
def test_no_profiling_costs_only_that(engine: Make, connect: Connect, code: int, reason: str) -> None:
    """Plain fields go on being sampled, for they are in groups of their own."""
    device = connect(engine(profiling=code)).attach(0, DEFAULT)
    reading = until(device, lambda each: bool(each.values))
    assert reading.unsupported[m.SM_ACTIVE] == reading.unsupported[m.PCIE_TX] == reason
    assert of(reading, m.POWER) == [512.5]
    time.sleep(3.5)  # longer than a GPU whose samples grow no younger is up
    assert of(device.read(FAST), m.POWER) == [512.5]


def test_the_first_profiling_sample_is_blank_and_no_failure(engine: Make, connect: Connect) -> None:
    """It takes an interval; until then nothing is said."""
    device = connect(engine()).attach(0, DEFAULT)
    reading = device.read(ALL)
    assert not profiled(reading)
    assert m.SM_ACTIVE not in reading.unsupported
    assert not reading.failed
    reading = until(device, profiled)
    assert of(reading, m.SM_ACTIVE) == [0.95]


@pytest.mark.parametrize(("code", "reason"), [(-34, "in_use"), (-54, "paused")])
def test_counters_that_somebody_else_has(
    engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    """It is said so, the rest goes on, and profiling comes back by itself."""
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


def test_counters_that_are_taken_while_we_read(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """DCGM then has blanks with status 0: each series fails once, and the pause is said."""
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


def test_never_a_live_read(engine: Make, connect: Connect) -> None:
    """One ends the host engine; the stand-in dies of it, too, and this one lives."""
    fake = engine()
    device = connect(fake).attach(0, FULL)
    until(device, profiled)
    assert b.NO_FLAGS == 0
    assert fake.process is not None
    assert fake.process.poll() is None


# --- fields ---------------------------------------------------------------------------------------------------------


def test_an_unknown_field_costs_only_itself(engine: Make, connect: Connect) -> None:
    """The host engine refuses the whole group with it: the others are asked for without."""
    device = connect(engine(unknown_fields=[156, 1008, 237])).attach(0, FULL)
    reading = until(device, profiled)
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
    """It lacks fields, and has the rest."""
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
    """With status 0 or not: a field that never answered is not supported, and no value of DCGM's for none gets out."""
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
    """It is not unsupported then; and comes back."""
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
def test_numbers_that_mean_none(
    engine: Make, connect: Connect, field: int, raw: float, metric: Metric, value: list[float]
) -> None:
    """Beside the blanks: a 0 where the driver refused, states of the fabric that are none, blanks of 32 bits."""
    fake = engine()
    fake.set(field, raw)
    assert of(connect(fake).attach(0, DEFAULT).read(ALL), metric) == value


def test_names_that_are_taken(engine: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field group of the same name, by another client or left over: another name is taken."""
    tokens = iter(("same", "same"))
    monkeypatch.setattr("gpu_exporter.sources.dcgm.session.secrets.token_hex", lambda _: next(tokens))
    fake = engine()
    first, second = connect(fake), connect(fake)
    for source in (first, second):
        assert of(source.attach(0, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


# --- Xids -----------------------------------------------------------------------------------------------------------


def test_xids_each_once(engine: Make, connect: Connect) -> None:
    """What was there before we came is no news; two within a tick are two; and a new connection tells none again."""
    fake = engine(2)
    fake.xid(13)
    source = connect(fake)
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    assert all(device.told_since is not None for device in devices)
    told: list[tuple[str, int]] = []

    def look() -> None:
        for device in devices:
            device.read(FAST)
            told.extend((event.pci_bus_id, event.code) for event in device.events())
        time.sleep(0.1)

    for _ in range(3):
        look()
    assert told == []
    fake.xid(79, 31)
    fake.xid(48, on=1)
    for _ in range(5):
        look()
    assert sorted(told) == [("00000000:06:00.0", 31), ("00000000:06:00.0", 79), ("00000000:07:00.0", 48)]
    source.open()
    source.count()
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    fake.xid(94)
    for _ in range(5):
        look()
    assert told[3:] == [("00000000:06:00.0", 94)]


# --- GPUs, and what they are made of --------------------------------------------------------------------------------


def test_a_gpu_that_is_removed_and_comes_back(engine: Make, connect: Connect) -> None:
    """It stays in the list of all GPUs, and its values become blank: that costs that GPU."""
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

    end = time.monotonic() + 10
    while not gone():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert of(devices[0].read(FAST), m.GPU_TEMP) == [42]
    assert source.count() == 2
    devices[1].close()
    with pytest.raises(GpuLost, match="can't read it now") as lost:
        source.attach(1, DEFAULT)
    assert lost.value.reason == "gone"
    assert list(source.identities()) == [0]
    fake.restore(1)
    assert of(source.attach(1, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


def test_a_gpu_without_any_value_is_lost(engine: Make, connect: Connect) -> None:
    """As when it fell off the bus: every field is blank, with status 0."""
    fake = engine(2)
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.lose(0)
    time.sleep(0.2)
    with pytest.raises(GpuLost) as lost:
        until(device, lambda _: False, 2)
    assert lost.value.reason == "lost"


@pytest.mark.parametrize(("code", "reason"), [(-18, "lost"), (-19, "reset_required"), (-67, "gone")])
def test_a_status_that_says_that_the_gpu_is_lost(engine: Make, connect: Connect, code: int, reason: str) -> None:
    """It need not be every field."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    fake.set(150, {"status": code})
    with pytest.raises(GpuLost) as lost:
        until(device, lambda _: False, 2)
    assert lost.value.reason == reason


def test_a_host_engine_that_is_stuck_in_the_driver(engine: Make, connect: Connect) -> None:
    """It answers, and its samples grow old: they are not fresh, whatever they say."""
    fake = engine()
    device = connect(fake).attach(0, DEFAULT)
    device.read(ALL)
    with fake.changed() as state:
        state["wedged"] = True
    with pytest.raises(GpuLost, match="has sampled nothing for") as lost:
        until(device, lambda _: False, 10)
    assert lost.value.reason == "stalled"


def test_mig(engine: Make, connect: Connect) -> None:
    """Instances have what NVML's have; they come and go; one without a compute instance is none."""
    fake = engine()
    parts = [*instance(1, 101, 0, 1, "1g.18gb", **{"1002": 0.3}), *instance(2, 102, 0, 2, "2g.35gb", **{"1002": 0.6})]
    with fake.changed() as state:
        state["gpus"][0]["parts"] = [*parts, instance(3, 103, 0, 1, "1g.18gb")[0]]
        state["gpus"][0]["fields"]["67"] = 1
    device = connect(fake).attach(0, DEFAULT)
    reading = until(device, profiled)
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
    """From DCGM's list of links, or, without the module that has it, from the state of each link."""
    fake = engine(**({"switches": []} if listed else {}))
    with fake.changed() as state:
        state["gpus"][0]["links"] = [3] * 16 + [2, 0]
    reading = until(connect(fake).attach(0, FULL), profiled)
    assert of(reading, m.NVLINK_COUNT) == [17]
    assert of(reading, m.NVLINK_UP) == [16]
    assert sorted(of(reading, m.LINK_UP)) == [0] + [1] * 16
    assert of(reading, m.LINK_TX) == [64 << 20] * 17
    assert of(reading, m.LINK_ERRORS[0]) == [0] * 17


def test_what_is_beside_the_gpus(engine: Make, connect: Connect) -> None:
    """NVSwitches, their links, Grace CPUs and their cores, labelled as dcgm-exporter does."""
    switch = {"id": 3, "links": [3, 0], "fields": {"858": 47, "856": None}, "link_fields": {"870": 2, "780": 5000}}
    fake = engine(
        switches=[switch],
        cpus=[{"id": 0, "fields": {"1110": 51.5, "1130": 180.0}}],
        cores=[{"id": core, "cpu": 0, "fields": {"1100": 0.25}} for core in (0, 70)],
    )
    source = connect(fake)
    device = source.attach(0, FULL)
    device.read(ALL)
    found = {(sample.series.metric.name, sample.series.labels): sample.value for sample in source.beside()}
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
    assert source.beside() == ()


# --- the host engine ------------------------------------------------------------------------------------------------


def test_over_a_unix_socket(engine: Make, connect: Connect) -> None:
    """The same as over TCP."""
    assert of(connect(engine(unix=True)).attach(0, DEFAULT).read(ALL), m.GPU_TEMP) == [42]


def test_while_it_hangs_nobody_waits(engine: Make, connect: Connect) -> None:
    """One call is stuck, and all others are refused at once: no thread waits for another."""
    fake = engine(2)
    source = connect(fake)
    devices = [source.attach(index, DEFAULT) for index in range(2)]
    for device in devices:
        device.read(ALL)
    fake.signal(signal.SIGSTOP)
    time.sleep(0.2)
    took = []
    for device in devices * 3:
        begin = time.monotonic()
        with pytest.raises(SourceLost, match="does not answer") as lost:
            device.read(FAST)
        assert lost.value.reason == "stalled"
        took.append(time.monotonic() - begin)
    fake.signal(signal.SIGCONT)
    assert max(took) < source.patience + 1
    assert sorted(took)[-2] < 0.5


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STANDIN_DCGM_LIBRARY": "missing"}, "find no libdcgm.so of their version"),
        ({"STANDIN_DCGM": "3"}, ""),
        ({}, ""),
    ],
)
def test_bindings(tmp_path: Path, environment: dict[str, str], message: str) -> None:
    """Of DCGM 3.3 and 4, with warnings as errors; without their library, one line."""
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
    """The line names the packages and the flag."""
    with pytest.raises(SourceLost, match=r"datacenter-gpu-manager-4-core.*datacenter-gpu-manager for DCGM 3") as lost:
        b.load(tmp_path)
    assert lost.value.reason == "no_bindings"
    assert str(tmp_path) in str(lost.value)
    assert str(BINDINGS) not in sys.path


def test_embedded(tmp_path: Path) -> None:
    """Without an address it runs in the exporter's own process."""
    fake = FakeHostengine(tmp_path)
    flags = ("--source", "dcgm", "--dcgm-bindings", str(BINDINGS))
    ended = run("once", *flags, env=fake.environment)
    assert ended.returncode == 0, ended.stderr
    assert "DCGM_FI_PROF_SM_ACTIVE{" in ended.stdout


def test_where_a_host_engine_is() -> None:
    """Its own words of an address, and whether that is here."""
    assert str(Hostengine()) == "embedded host engine"
    assert [each.local for each in map(hostengine, ("", "/run/he", "localhost:1", "[::1]:1", "gpu-7:5555"))] == [
        True,
        True,
        True,
        True,
        False,
    ]
