"""Scenarios: which alerts fire, which incidents they are, and how many messages people get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pytest

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.mode import Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import effects
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.incident_words import total_cost
from gpu_exporter.diagnosis.incidents import PlacedMode, incidents, of_diagnoses
from tests.support.incidents import BY_NAME, diagnosed_gpu
from tests.support.table import table_test

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


waiting = partial(diagnosed_gpu, class_name="communicating", shares={Cause.PEERS: 0.5})
throttled = partial(diagnosed_gpu, class_name="throttled")


@dataclass(frozen=True, slots=True)
class Costs:
    """The GPUs of a job, and for each cause the GPUs that cause it, those it hits, and the GPU-hours lost per hour."""

    name: str
    gpus: Sequence[Diagnosis]
    found: Mapping[str, tuple[Sequence[int], Sequence[int], float]]


COSTS = (
    Costs(
        "a throttled GPU in a job that computes",
        (
            throttled(0, "GpuThermalThrottling", shares={Cause.THROTTLED: 0.3}),
            *map(diagnosed_gpu, (1, 2, 3)),
        ),
        {"GpuThermalThrottling": ([0], [], 0.3)},
    ),
    Costs(
        "a GPU is lost, but the other ranks compute and communicate as before",
        (diagnosed_gpu(0, "GpuLost", is_down=True), *(diagnosed_gpu(n, shares={Cause.PEERS: 0.2}) for n in (1, 2, 3))),
        {"GpuLost": ([0], [], 1.0)},
    ),
    Costs(
        "a GPU is lost, and the other ranks, whose job runs on, wait for a straggler",
        (
            diagnosed_gpu(0, "GpuLost", is_down=True),
            diagnosed_gpu(1, "GpuStragglerStarved", shares={Cause.HOST: 0.6}),
            waiting(2),
        ),
        {"GpuLost": ([0], [], 1.0), "GpuStragglerStarved": ([1], [2], 1.1)},
    ),
    Costs(
        "a throttled GPU for which others wait",
        (
            throttled(0, "GpuThermalThrottling", shares={Cause.THROTTLED: 0.3}),
            waiting(1),
            diagnosed_gpu(2, job="b"),
        ),
        {"GpuThermalThrottling": ([0], [1], 0.8)},
    ),
    Costs(
        "a throttled GPU that waits, as the others do, for one that is lost",
        (
            diagnosed_gpu(0, "GpuLost", is_down=True),
            waiting(1, "GpuThermalThrottling", "GpuCollectiveStall"),
            waiting(2, "GpuCollectiveStall"),
        ),
        {"GpuLost": ([0], [1, 2], 2.0), "GpuThermalThrottling": ([1], [], 0.0)},
    ),
    Costs(
        "a slow link, for which its own rank waits, too",
        (waiting(0, "GpuNicSlowLink"), waiting(1), diagnosed_gpu(2, shares={Cause.PEERS: 0.05})),
        {"GpuNicSlowLink": ([0], [1], 1.0)},
    ),
    Costs(
        "a slow link in a job that a straggler holds up",
        (waiting(0, "GpuNicSlowLink"), diagnosed_gpu(1, "GpuStragglerStarved", shares={Cause.HOST: 0.6})),
        {"GpuStragglerStarved": ([1], [0], 1.1), "GpuNicSlowLink": ([0], [], 0.0)},
    ),
    Costs(
        "two stragglers hold up the same ranks",
        (
            diagnosed_gpu(0, "GpuHostCpuStarved", shares={Cause.HOST: 0.4, Cause.PEERS: 0.2}),
            diagnosed_gpu(
                1, "GpuThermalThrottling", class_name="throttled", shares={Cause.THROTTLED: 0.4, Cause.PEERS: 0.2}
            ),
            waiting(2),
        ),
        {"GpuThermalThrottling": ([1], [2], 0.65), "GpuHostCpuStarved": ([0], [2], 0.65)},
    ),
    Costs(
        "a lost GPU, which stops a job, and a less severe straggler in it",
        (
            diagnosed_gpu(0, "GpuLost", is_down=True),
            diagnosed_gpu(1, "GpuHostCpuStarved", shares={Cause.HOST: 0.4}),
            waiting(2, "GpuCollectiveStall"),
        ),
        {"GpuLost": ([0], [2], 1.5), "GpuHostCpuStarved": ([1], [], 0.4)},
    ),
    Costs(
        "two causes on one GPU: the more severe one",
        (diagnosed_gpu(0, "GpuEccUncorrectable", "GpuHostCpuStarved", shares={Cause.HOST: 0.4}),),
        {"GpuEccUncorrectable": ([0], [], 0.4), "GpuHostCpuStarved": ([0], [], 0.0)},
    ),
    Costs(
        "a job that hangs",
        (
            diagnosed_gpu(0, "GpuCollectiveStall", class_name="idle", shares={Cause.PEERS: 1.0}),
            diagnosed_gpu(1, "GpuCollectiveStall", class_name="waiting", shares={Cause.PEERS: 1.0}),
        ),
        {"GpuCollectiveStall": ([0], [1], 2.0)},
    ),
    Costs(
        "SMs that are empty while a kernel runs are no waste, a load that only looks busy is nothing else",
        (
            diagnosed_gpu(0, "GpuEccUncorrectable", job="", shares={Cause.UNDERFILLED: 0.4, Cause.COPIES: 0.2}),
            diagnosed_gpu(2, "GpuFakeLoad", job="b", class_name="fake-load"),
        ),
        {"GpuEccUncorrectable": ([0], [], 0.2), "GpuFakeLoad": ([2], [], 1.0)},
    ),
)


@table_test("costs", COSTS, lambda costs: costs.name)
def test_what_an_incident_hits_and_costs(costs: Costs) -> None:
    """Its own GPUs lose what they waste, and the ranks that wait for them the time in which they wait."""

    def numbers(gpus: Sequence[Diagnosis]) -> list[int]:
        return [int(each.device.uuid.removeprefix("GPU-")) for each in gpus]

    found = of_diagnoses(costs.gpus)
    assert {
        each.incident.mode.name: (numbers(each.culprits), numbers(each.hit), round(each.lost_gpus, 6)) for each in found
    } == costs.found


def test_the_time_of_a_gpu_in_two_incidents_counts_once() -> None:
    """Those that are only info have no total."""
    costs = next(each for each in COSTS if each.name.startswith("two stragglers"))
    info = diagnosed_gpu(9, "GpuHostBound", job="b", shares={Cause.HOST: 0.5})
    found = of_diagnoses([*costs.gpus, info])
    assert sum(each.lost_gpus for each in found) == pytest.approx(2 * 0.4 + 0.5 + 0.5)
    assert total_cost(found, 2.0) == {"lost_gpu_hours_per_hour": 1.3, "lost_usd_per_hour": 2.6}


def test_order() -> None:
    """By severity, then what costs more, then what began earlier."""
    gpus = [
        diagnosed_gpu(0, "GpuThermalThrottling", job="", shares={Cause.THROTTLED: 0.9}),
        diagnosed_gpu(2, "GpuEccUncorrectable", job=""),
        diagnosed_gpu(4, "GpuPowerBrake", job="", shares={Cause.THROTTLED: 0.5}),
        diagnosed_gpu(6, "GpuThermalThrottling", job="", shares={Cause.THROTTLED: 0.51}),
    ]
    since = {(gpus[2].device, "GpuPowerBrake"): 10.0, (gpus[3].device, "GpuThermalThrottling"): 5.0}
    found = of_diagnoses(gpus, since)
    order = ["GPU-2", "GPU-0", "GPU-6", "GPU-4"]
    assert [each.culprits[0].device.uuid for each in found] == order
    assert [group[0].device.uuid for group in report.groups(gpus, found)] == order


def test_gpus_that_cause_incidents_come_first() -> None:
    """In the order of these, whatever the severity of the findings that they explain on others."""
    gpus = [
        diagnosed_gpu(0, "GpuJobStalled", job="a"),
        diagnosed_gpu(1, "GpuHostBound", job=""),
        diagnosed_gpu(2, "GpuEccUncorrectable", job="a"),
    ]
    found = of_diagnoses(gpus)
    assert [group[0].device.uuid for group in report.groups(gpus, found)] == ["GPU-2", "GPU-1", "GPU-0"]
