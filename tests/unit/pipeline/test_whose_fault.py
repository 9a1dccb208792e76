"""Every place says the same about a GPU that is not read: it is lost, its source is silent, or it is attached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpu_exporter.app import api
from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.headline import headline
from gpu_exporter.diagnosis.presence import present
from gpu_exporter.diagnosis.window import Scrapes, seen
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.health import check
from gpu_exporter.model.errors import GpuLost, GpuNotSampled, SourceLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Device, Source
from gpu_exporter.model.source_kind import DCGM, NVML
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.pipeline.worker import Worker
from gpu_exporter.remediation import evidence
from tests.support.tools import until

GPUS = tuple(Gpu(index, f"GPU-{index}", f"00000000:0{index + 1}:00.0", "NVIDIA H200") for index in range(2))
HEALTHY = {m.GPU_TEMP: 40.0, m.ECC_DBE_VOL: 0.0, m.REMAP_PENDING: 0.0, m.REMAP_FAILURE: 0.0, m.RECOVERY: 0.0}
NO_LIST = SourceLost("the driver lists no GPU", "no_gpu")
SILENT = SourceLost("its versions differ", "version_mismatch")


class ScriptedDevice(Device):
    """A healthy GPU, until its source has another answer for it."""

    def __init__(self, source: ScriptedSource, gpu: Gpu) -> None:
        self._source, self.gpu = source, gpu

    def read(self, paces: frozenset[Pace]) -> Reading:
        self._source.answer(self.gpu.index)
        if self.gpu.index in self._source.samples_nothing:
            raise GpuNotSampled("no sample")
        values = {Series(metric, self.gpu): value for metric, value in HEALTHY.items()}
        return Reading(time.monotonic(), values, unsupported={m.RETIRED_PENDING: "not_supported"})


class ScriptedSource(Source):
    """Two GPUs that are read on the clock thread. The sets and errors are what fails."""

    live, description = True, "scripted GPUs"

    def __init__(self, *, through_hostengine: bool) -> None:
        self._through_hostengine = through_hostengine
        self.name = (DCGM if through_hostengine else NVML).name
        self.down: SourceLost | None = None
        self.lost: dict[int, str] = {}
        self.samples_nothing: set[int] = set()
        self.on_bus: Sequence[PciGpu] = tuple(PciGpu(gpu.pci_bus_id, "nvidia") for gpu in GPUS)

    @property
    def through_hostengine(self) -> bool:
        return self._through_hostengine

    def answer(self, index: int) -> None:
        """Raise what a call about this GPU raises."""
        if self.down:
            raise SourceLost(self.down.message, self.down.reason)
        if index in self.lost:
            raise GpuLost("lost", self.lost[index])

    def open(self) -> None:
        if self.down:
            raise SourceLost(self.down.message, self.down.reason)

    def count(self) -> int:
        return len(GPUS)

    def bus(self) -> Sequence[PciGpu]:
        return self.on_bus

    def instant(self, index: int) -> bool:
        return True

    def attach(self, index: int, metrics: Sequence[Metric]) -> ScriptedDevice:
        self.answer(index)
        return ScriptedDevice(self, GPUS[index])


class Node:
    """A collector of a scripted source, with the snapshot of its last collection."""

    def __init__(self, source: ScriptedSource, expected: int | None) -> None:
        self.source, self.taken, self.events = source, list[Snapshot](), EventLog(load(None), lambda pci: None)
        self.hanging: set[int] = set()
        settings = CollectionSettings(expected_gpus=expected)
        self.collector = Collector(source, (), self.taken.append, settings, context=Context(self.events))

    def pass_time(self) -> None:
        """Make all values old."""
        for state in self.collector._states.identified():
            state.read_at = None if state.read_at is None else state.read_at - 1000.0

    def fall_silent(self, error: SourceLost) -> None:
        """Let the source answer no call any more, as the last collection noticed."""
        self.source.down = error
        self.collector.connection.lost(self.collector.connection.generation, error)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Node]]:
    """Start a node, and collect once unless something is wrong from the beginning."""
    nodes: list[Node] = []

    def start(*, through_hostengine: bool, expected: int | None, before: Callable[[Node], None] | None) -> Node:
        node = Node(ScriptedSource(through_hostengine=through_hostengine), expected)
        nodes.append(node)
        monkeypatch.setattr(Worker, "late", property(lambda self: 9.0 if self.index in node.hanging else 0.0))
        if before:
            before(node)
        node.collector.connect()
        until(lambda: node.source.down is not None or node.collector._workers._workers[1:], what="workers")
        node.collector.tick()
        return node

    yield start
    for node in nodes:
        node.source.down = None
        assert node.collector.stop()


# --- situations: what happens to a node with two GPUs that answered --------------------------------------------------


def works(node: Node) -> None:
    """Nothing happens."""


def falls_off_the_bus(node: Node) -> None:
    node.source.lost[0] = "lost"


def falls_off_before_the_source_falls_silent(node: Node) -> None:
    node.source.lost[0] = "lost"
    node.collector.tick()
    node.fall_silent(SILENT)


def is_no_longer_listed(node: Node) -> None:
    node.source.lost[0] = "gone"


def all_leave_the_list(node: Node) -> None:
    node.fall_silent(NO_LIST)


def hangs(node: Node) -> None:
    node.hanging.add(0)
    node.pass_time()


def both_hang(node: Node) -> None:
    node.hanging.update((0, 1))
    is_not_sampled(node)


def falls_silent(node: Node) -> None:
    node.fall_silent(SILENT)


def has_an_xid_while_the_source_is_silent(node: Node) -> None:
    node.fall_silent(SILENT)
    node.events.add_driver_xids([XidEvent(time.time() + 1, GPUS[0].pci_bus_id, 79)])


def leaves_the_bus_while_the_source_is_silent(node: Node) -> None:
    node.source.on_bus = node.source.on_bus[1:]
    node.fall_silent(SILENT)
    until(lambda: len(node.collector._connector.bus) == 1, what="a look at the bus")


def is_not_sampled(node: Node) -> None:
    node.source.samples_nothing.update((0, 1))
    node.pass_time()


def is_refused(node: Node) -> None:
    node.source.lost[0] = "source_lost"


def all_lose_their_values(node: Node) -> None:
    node.source.lost.update({0: "lost", 1: "lost"})


def the_container_loses_its_devices(node: Node) -> None:
    node.source.lost.update({0: "unknown", 1: "unknown"})


# --- the matrix ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A situation, and what each place says of GPU 0. Both GPUs are down for the same reason if `both`.

    `check` is the exit code of `check`, `rules` are the failure modes of `diagnose` and of the alerts.
    """

    happens: Callable[[Node], None]
    through_hostengine: bool
    reason: str
    both: bool = False
    source_up: int = 1
    rules: tuple[str, ...] = ()
    check: int = 1
    action: str = "none"
    remediation: str = "unknown"
    severity: str = "warning"
    says: str = ""
    before: Callable[[Node], None] | None = None
    expected: int | None = field(default=None)


def lost(happens: Callable[[Node], None], through_hostengine: bool, reason: str, **more: Any) -> Row:
    """Return the row of a GPU that is gone."""
    says: dict[str, Any] = {
        "rules": ("GpuLost",),
        "check": 3,
        "action": "node_reboot",
        "remediation": "faulty",
        "severity": "critical",
    }
    return Row(happens, through_hostengine, reason, **{**says, **more})


def silent(happens: Callable[[Node], None], through_hostengine: bool, **more: Any) -> Row:
    """Return the row of a node whose source does not answer."""
    return Row(happens, through_hostengine, "source_lost", both=True, **more)


HOSTENGINE, LIBRARY = "the DCGM host engine has no values (version mismatch)", "the driver's library cannot be used"
MATRIX = [
    *(Row(works, through, "", check=0, remediation="clean", severity="unknown") for through in (False, True)),
    *(lost(falls_off_the_bus, through, "lost") for through in (False, True)),
    *(lost(falls_off_before_the_source_falls_silent, through, "lost", source_up=0) for through in (False, True)),
    *(lost(is_no_longer_listed, through, "gone") for through in (False, True)),
    *(lost(leaves_the_bus_while_the_source_is_silent, through, "gone", source_up=0) for through in (False, True)),
    *(lost(has_an_xid_while_the_source_is_silent, through, "lost", source_up=0) for through in (False, True)),
    lost(all_leave_the_list, False, "gone", both=True, source_up=0),
    silent(all_leave_the_list, True, source_up=0, says="the DCGM host engine has no values (no gpu)"),
    lost(hangs, False, "stalled"),
    # As before: the driver is at fault, which no controller should reboot by itself.
    Row(both_hang, False, "stalled", both=True, source_up=0, severity="critical", says="calls of the driver hang"),
    silent(both_hang, True, says="what it is read through does not answer"),
    silent(falls_silent, True, source_up=0, says=HOSTENGINE),
    silent(falls_silent, False, source_up=0, says=LIBRARY),
    silent(is_not_sampled, True, says="what it is read through does not answer"),
    Row(is_refused, True, "source_lost", says="what it is read through does not answer"),
    silent(all_lose_their_values, True, source_up=0, says="the DCGM host engine has no values (lost)"),
    lost(all_lose_their_values, False, "lost", both=True),
    silent(the_container_loses_its_devices, False, source_up=0, says="a container that has lost its devices"),
    # Attached, and not sampled yet.
    Row(works, True, "unread", both=True, severity="info", says="attaching", before=is_not_sampled),
]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: f"{row.happens.__name__}-{row.through_hostengine}-{row.reason}")
def test_every_place_says_the_same(started: Callable[..., Node], row: Row) -> None:
    """A GPU that is gone is lost everywhere; what is silent, or not attached yet, is so nowhere."""
    node = started(through_hostengine=row.through_hostengine, expected=row.expected, before=row.before)
    row.happens(node)
    node.collector.tick()
    snapshot = node.taken[-1]

    values = {(series.metric, series.gpu, series.labels): value for series, value in snapshot.samples}
    status, other = snapshot.gpus
    assert (status.reason, other.reason) == (row.reason, row.reason if row.both else other.reason)
    if not row.both and row.rules:
        assert other.reason in ("", "source_lost")
    assert values[m.UP, status.gpu, ()] == (not row.reason)
    if row.reason:
        assert values[m.DOWN, status.gpu, (("reason", row.reason),)] == 1
    assert values[m.SOURCE_UP, None, (("source", node.source.name),)] == row.source_up

    verdict = snapshot.verdicts[0]
    checked = check.report(snapshot)
    assert (checked.exit_code, verdict.action.value) == (row.check, row.action)
    assert headline(status, verdict, None).severity == row.severity

    answer = api.node("n", "boot", snapshot, api.Since(), (), "", lambda uuid: None)
    found = evidence.judge(answer.body.decode(), "n", "boot", degraded=True)
    assert found.finding.value == row.remediation
    assert (found.action.value != "none") == bool(row.rules)

    scrapes, absent = present([Scrapes().of(snapshot)])
    diagnoses = diagnose(seen(scrapes, {}))
    modes = {match.mode.name for each in diagnoses if each.identity.gpu == "0" for match in each.matches}
    assert modes - {"GpuTelemetryStale"} - {"GpuXidFatal"} == set(row.rules)
    text = "\n".join((*check.lines(checked), *report.absences(absent)))
    assert row.says in text
    assert bool(row.reason) == bool(absent)


@pytest.mark.parametrize("through_hostengine", [True, False])
def test_no_gpu_is_missing_while_nothing_lists_them(started: Callable[..., Node], through_hostengine: bool) -> None:
    """A node whose source was down from the start is expected to have GPUs: nobody drains or reboots it."""

    def down(node: Node) -> None:
        node.source.down = SILENT

    node = started(through_hostengine=through_hostengine, expected=2, before=down)
    snapshot = node.taken[-1]
    answer = api.node("n", "boot", snapshot, api.Since(), (), "no GPU has been read yet", lambda uuid: None)
    found = evidence.judge(answer.body.decode(), "n", "boot", degraded=True)
    _, absent = present([Scrapes().of(snapshot)])
    assert (found.finding, found.faults) == (evidence.NodeFinding.UNKNOWN, ())
    assert [gpus.gpus for gpus in absent] == ["every GPU"]
    assert check.report(snapshot).exit_code == 1
    assert not any(series.metric is m.MISSING for series, _ in snapshot.samples)


def test_reasons_have_one_meaning() -> None:
    """Each is about the GPU or about telemetry, and the table of docs/health.md lists them."""
    assert not faults.DOWN.keys() & faults.TELEMETRY.keys()
    by_name = {state.name: state.promql for state in faults.STATES}
    for name, reasons in (("GPU lost", faults.DOWN), ("GPU not read", faults.TELEMETRY)):
        assert f'"{"|".join(reasons)}"' in by_name[name]
