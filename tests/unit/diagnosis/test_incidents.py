"""Scenarios: which alerts fire, which incidents they are, and how many messages people get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.mode import Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import effects
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.incident_words import total_cost
from gpu_exporter.diagnosis.incidents import DiagnosedIncident, Incident, PlacedMode, incidents, lost_gpus
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import DeviceIdentity
from tests.support.table import table_test

BY_NAME = {mode.name: mode for mode in MODES}
RANKS = range(4)


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of a mode on some GPUs of a node, or on a whole job or node without a GPU."""

    mode: str
    gpus: Iterable[int] = ()
    node: str = "n0"
    job: str = "train"

    def placed(self) -> Iterable[PlacedMode]:
        """Yield it on each GPU."""
        job = {"namespace": "ml", "workload": self.job} if self.job else {}
        node = {"node": self.node} if self.node else {}
        for gpu in self.gpus:
            yield PlacedMode(BY_NAME[self.mode], {**node, **job, "UUID": f"{self.node}-{gpu}"})
        if not self.gpus:
            yield PlacedMode(BY_NAME[self.mode], {**node, **job})


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, the alerts that fire, and the causes that incidents must name: one each."""

    name: str
    alerts: Sequence[Alert]
    causes: Mapping[str, int]


def of_job(mode: str, job: str = "train") -> Alert:
    """Return an alert about a job that names no GPU and no node."""
    return Alert(mode, node="", job=job)


SLOW_JOB = (of_job("GpuJobSlower"), of_job("GpuJobMfuDropped"), Alert("GpuCommunicationBound", RANKS))
SCENARIOS = (
    Scenario("nothing", (), {}),
    Scenario(
        "a GPU throttles in a job of four ranks",
        (
            *(Alert(mode, [1]) for mode in ("GpuThermalThrottling", "GpuThermalMarginLow", "GpuStragglerSlow")),
            Alert("GpuJobStraggler", [1]),
            *SLOW_JOB,
        ),
        {"GpuThermalThrottling": 1},
    ),
    Scenario(
        "a slow loader with storage behind it",
        (
            Alert("GpuLoaderStorageBound", [2]),
            *(
                Alert(mode, [2])
                for mode in ("GpuJobDataBound", "GpuDataLoadingBound", "GpuStragglerStarved", "GpuJobStraggler")
            ),
            *SLOW_JOB,
        ),
        {"GpuLoaderStorageBound": 1},
    ),
    Scenario(
        "slow storage starves all ranks of a job on two nodes",
        (
            *(Alert("GpuLoaderStorageBound", RANKS, node) for node in ("n0", "n1")),
            *(Alert("GpuHostBound", RANKS, node) for node in ("n0", "n1")),
            of_job("GpuJobGoodputLow"),
        ),
        {"GpuLoaderStorageBound": 1},
    ),
    Scenario(
        "the CPUs of a rank are taken by others",
        (Alert("GpuHostCpuStarved", [0]), Alert("GpuStragglerStarved", [0]), Alert("GpuHostBound", [0]), *SLOW_JOB),
        {"GpuHostCpuStarved": 1},
    ),
    Scenario(
        "a straggler whose host nobody sees", (Alert("GpuStragglerStarved", [0]), *SLOW_JOB), {"GpuStragglerStarved": 1}
    ),
    Scenario(
        "a hang, seen by counters and by the loop",
        (Alert("GpuCollectiveStall", RANKS), of_job("GpuJobStalled"), Alert("GpuAllocatedIdle", [3])),
        {"GpuJobStalled": 1},
    ),
    Scenario(
        "a GPU is lost in a job of 64 ranks",
        (
            Alert("GpuLost", [0]),
            Alert("GpuTelemetryStale", [0]),
            *(Alert("GpuCollectiveStall", range(8), f"n{node}") for node in range(8)),
            of_job("GpuJobStalled"),
            Alert("GpuNvlinkDown", [1, 2, 3]),
        ),
        {"GpuLost": 1},
    ),
    Scenario(
        "XID 79, and the GPU is lost",
        (Alert("GpuXidFatal", [0]), Alert("GpuLost", [0]), Alert("GpuRecoveryActionRequired", [0])),
        {"GpuXidFatal": 1},
    ),
    Scenario(
        "the alert of a lost GPU lacks its job",
        (Alert("GpuLost", [0], job=""), Alert("GpuTelemetryStale", [0], job="")),
        {"GpuLost": 1},
    ),
    Scenario(
        "uncorrectable ECC errors",
        tuple(
            Alert(mode, [0])
            for mode in ("GpuEccUncorrectable", "GpuXidFatal", "GpuRowRemapPending", "GpuEccCorrectableStorm")
        ),
        {"GpuEccUncorrectable": 1},
    ),
    Scenario(
        "rows can no longer be remapped",
        tuple(
            Alert(mode, [0]) for mode in ("GpuRowRemapFailed", "GpuEccUncorrectable", "GpuXidFatal", "GpuSpareRowsLow")
        ),
        {"GpuRowRemapFailed": 1},
    ),
    Scenario(
        "two independent faults on one node",
        (Alert("GpuEccUncorrectable", [0]), Alert("GpuThermalThrottling", [3], job="other")),
        {"GpuEccUncorrectable": 1, "GpuThermalThrottling": 1},
    ),
    Scenario(
        "two independent faults in one job",
        (Alert("GpuXidFatal", [0]), Alert("GpuStragglerSlow", [3])),
        {"GpuXidFatal": 1, "GpuStragglerSlow": 1},
    ),
    Scenario(
        "two stragglers in one job",
        (
            Alert("GpuThermalThrottling", [0]),
            Alert("GpuStragglerSlow", [0]),
            Alert("GpuStragglerStarved", [2]),
            *SLOW_JOB,
        ),
        {"GpuThermalThrottling": 1, "GpuStragglerStarved": 1},
    ),
    Scenario(
        "an exporter stops",
        (
            Alert("GpuExporterDown", job=""),
            Alert("GpuLost", RANKS, job=""),
            Alert("GpuTelemetryStale", RANKS, job=""),
            Alert("GpuMetricsMissing", job=""),
        ),
        {"GpuExporterDown": 1},
    ),
    Scenario(
        "an exporter stops while another node has a fault",
        (Alert("GpuExporterDown", job=""), Alert("GpuLost", [0], "n1", job="")),
        {"GpuExporterDown": 1, "GpuLost": 1},
    ),
    Scenario(
        "a network card is slow",
        (Alert("GpuNicSlowLink", [0]), Alert("GpuNicSlowRail", [0]), Alert("GpuStragglerStarved", [0]), *SLOW_JOB),
        {"GpuNicSlowLink": 1},
    ),
    Scenario(
        "a network card is down and the job stops",
        (
            Alert("GpuNicDown", [0]),
            Alert("GpuNicFlapping", [0]),
            Alert("GpuCollectiveStall", RANKS),
            of_job("GpuJobStalled"),
        ),
        {"GpuNicDown": 1},
    ),
    Scenario(
        "an NVLink is down",
        (Alert("GpuNvlinkDown", [0]), Alert("GpuNvlinkErrors", [0]), Alert("GpuNvlinkImbalance", [0]), *SLOW_JOB),
        {"GpuNvlinkDown": 1},
    ),
    Scenario(
        "a PCIe link that replays falls back to a lower speed",
        (Alert("GpuPcieReplayStorm", [0]), Alert("GpuPcieLinkDegraded", [0]), Alert("GpuPcieBound", [0])),
        {"GpuPcieReplayStorm": 1},
    ),
    Scenario(
        "GPUs are held but idle",
        (Alert("GpuAllocatedIdle", RANKS), Alert("GpuMemoryHoarded", RANKS), Alert("GpuHostBound", RANKS)),
        {"GpuAllocatedIdle": 1},
    ),
    Scenario(
        "two jobs on one node, each with its own straggler",
        (
            Alert("GpuStragglerSlow", [0], job="a"),
            Alert("GpuCommunicationBound", [0, 1], job="a"),
            Alert("GpuStragglerStarved", [2], job="b"),
            of_job("GpuJobSlower", "b"),
        ),
        {"GpuStragglerSlow": 1, "GpuStragglerStarved": 1},
    ),
    Scenario(
        "the same fault on GPUs of two nodes",
        (Alert("GpuThermalThrottling", [0, 1]), Alert("GpuThermalThrottling", [0], "n1", job="other")),
        {"GpuThermalThrottling": 2},
    ),
    Scenario(
        "the remediation controller stops",
        (Alert("GpuRemediationNotRunning", node="", job=""), Alert("GpuRemediationStuck", job="")),
        {"GpuRemediationNotRunning": 1},
    ),
)


@table_test("scenario", SCENARIOS, lambda scenario: scenario.name)
def test_one_incident_for_each_cause(scenario: Scenario) -> None:
    """None is missing, none is more."""
    found = incidents([placed for alert in scenario.alerts for placed in alert.placed()])
    causes = [incident.mode.name for incident in found]
    assert {name: causes.count(name) for name in causes} == scenario.causes


def test_the_most_urgent_finding_decides() -> None:
    """An incident is as urgent as what follows from it."""
    (found,) = incidents([*Alert("GpuExporterDown").placed(), *Alert("GpuLost", [0]).placed()])
    assert (found.mode.severity, found.severity) == (Severity.WARNING, Severity.CRITICAL)


def test_only_a_silent_exporter_explains_what_is_more_urgent() -> None:
    """Otherwise a ticket would silence a page, and an info a ticket."""
    order = list(Severity)
    urgency = {mode.name: order.index(mode.severity) for mode in MODES}
    more = {(cause, effect) for cause, those in EFFECTS.items() for effect in those if urgency[effect] < urgency[cause]}
    assert more == {("GpuExporterDown", "GpuLost")}


@pytest.mark.parametrize(
    ("explains", "problem"),
    [
        ("GpuTypo", "GpuLost explains GpuTypo, which is no mode"),
        ("GpuXidFatal", "GpuLost -> GpuXidFatal -> GpuLost"),
    ],
)
def test_mistakes_in_the_relation(explains: str, problem: str) -> None:
    changed = [replace(m, explains={Place.GPU: (explains,)}) if m.name == "GpuLost" else m for m in MODES]
    with pytest.raises(ValueError, match=problem):
        effects(changed)


def diagnosed(mode: str, culprits: Iterable[Diagnosis], hit: Iterable[Diagnosis]) -> DiagnosedIncident:
    """Return an incident with its GPUs."""
    return DiagnosedIncident(Incident(BY_NAME[mode], (PlacedMode(BY_NAME[mode], {}),)), tuple(culprits), tuple(hit))


def test_a_gpu_in_two_incidents_of_a_job_is_lost_once() -> None:
    """Two stragglers hold up the same ranks, and each waits for the other. Those that are only info have no total."""
    first, second, third, lost = (
        Diagnosis(
            DeviceKey("", f"GPU-{index}", ""),
            DeviceIdentity(),
            None,
            (),
            {},
            {},
            is_down=index == 3,
            shares={Cause.PEERS: 0.5},
        )
        for index in RANKS
    )
    found = [
        diagnosed("GpuStragglerStarved", [first], [second, third]),
        diagnosed("GpuLost", [lost], [third, first]),
    ]
    info = diagnosed("GpuHostBound", [replace(first, device=DeviceKey("", "GPU-9", ""))], [])
    assert [each.lost_gpus for each in (*found, info)] == [1.5, 2.0, 0.5]
    assert lost_gpus([*found, info]) == 3.0
    assert total_cost([*found, info], 2.0) == {"lost_gpu_hours_per_hour": 2.5, "lost_usd_per_hour": 5.0}
