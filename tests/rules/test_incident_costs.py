"""What an incident hits and costs is the same in Python and in Prometheus."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_exporter.alerting import incidents
from gpu_exporter.alerting.aggregates import SHARE, WAITING, WAITING_TIME, WASTED, WASTED_COST
from gpu_exporter.alerting.groups import RuleGroup, as_text
from gpu_exporter.alerting.rules import groups
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, CLASS, FAKE_LOAD
from gpu_exporter.catalogue.causes import SHARES, Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope, Severity
from gpu_exporter.catalogue.failure_modes.relation import is_of_job
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.conditions.signal import DEVICE_INFO
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.incidents import DiagnosedIncident, of_diagnoses
from tests.rules.promtool import Expect, Sample, check
from tests.support.incidents import diagnosed_gpu

INCIDENTS = ("gpu-alerts", "gpu-incidents", "gpu-incident-costs")
SETS, AT_ONCE = 100, 20
GPUS = 8
FOUND = [
    mode.name
    for mode in MODES
    if mode.scope in (Scope.DEVICE, Scope.JOB) and mode.name not in ("GpuLost", "GpuCollectiveStall")
]
PARTS = 16
# Costs are compared in parts of this, because sums of thirds are not exact in floating point.
UNIT = 2.0**-20
PRICE = next(price.value for price in PRICES if price.name == "usdPerGpuHour")
KEY = ("cluster", "alertname", "severity", "place")
# What incidents cost, and what none explains.
ALL_WASTE = f"sum by (cluster) ({incidents.OPEN_COST.record} or {incidents.UNEXPLAINED_COST.record})"
Series = tuple[str, Mapping[str, str], float]


def drawn(number: int) -> Sequence[Diagnosis]:
    """Draw GPUs of two jobs and of none on four nodes, some of which are lost, wait for others, or have findings."""
    chance = random.Random(number)
    gpus = []
    for gpu in range(GPUS):
        cuts = sorted(chance.choices(range(PARTS + 1), weights=[4, *[1] * PARTS], k=3))
        causes = chance.sample(SHARES[:-1], 3)
        shares = {cause: (b - a) / PARTS for cause, a, b in zip(causes, (0, *cuts), cuts, strict=False)}
        modes = chance.sample(FOUND, chance.choice((0, 0, 0, 1, 2)))
        lost = chance.random() < 0.1
        modes += ["GpuLost"] if lost else ["GpuCollectiveStall"] if chance.random() < 0.1 else []
        job = chance.choice(("a", "b", "a", "b", ""))
        name = chance.choice(BOTTLENECKS).name if chance.random() < 0.6 else chance.choice(("waiting", "communicating"))
        gpus.append(
            diagnosed_gpu(gpu, *modes, job=job, class_name=name, shares=shares, is_down=lost, cluster=f"c{number}")
        )
        # Of an instance in MIG mode. A GPU that is lost counts as a whole one: its instances are not listed any more.
        gpus[-1].identity.share = 1.0 if lost else chance.choice((1.0, 1.0, 0.5, 0.25))
    return gpus


def waste(gpu: Diagnosis) -> float:
    """Return the GPU time that a GPU wastes, as `workload:wasted_cost:usd_per_hour` counts it."""
    if gpu.is_down:
        return 1.0
    if gpu.bottleneck and gpu.bottleneck.name == FAKE_LOAD:
        return gpu.identity.share
    return sum(time for cause, time in gpu.gpu_time.items() if cause.is_waste)


def rounded(usd: float) -> float:
    """Return a cost as PromQL's `round()` does."""
    return math.floor(usd / UNIT + 0.5) * UNIT


def series(gpu: Diagnosis) -> Iterator[Series]:
    """Yield what Prometheus has recorded of a GPU, and its alerts."""
    identity = gpu.identity
    device = {"cluster": gpu.device.cluster, "UUID": gpu.device.uuid}
    owner = {"namespace": identity.namespace, "workload": identity.workload}
    where = {**device, "node": identity.node, "gpu": identity.gpu, **owner}
    yield DEVICE_INFO, where, 1
    yield SHARE.record, where, identity.share
    yield s.UP.record, device, int(not gpu.is_down)
    if gpu.bottleneck:
        yield CLASS, {**where, "class": gpu.bottleneck.name}, 1
    for cause, share in gpu.shares.items():
        yield RECORD, {**where, LABEL: cause.value}, share
    for match in gpu.matches:
        yield alert(match.mode, where)


def alert(mode: FailureMode, where: Mapping[str, str]) -> Series:
    """Return the series of a firing alert."""
    kind = {"severity": mode.severity.value, "domain": mode.domain.value, "alertstate": "firing"}
    return "ALERTS", {"alertname": mode.name, **kind, **where}, 1


def rendered_series(name: str, labels: Mapping[str, str], value: float) -> Mapping[str, str]:
    """Return a series in promtool's format."""
    text = ", ".join(f'{label}="{each}"' for label, each in labels.items() if each)
    return {"series": f"{name}{{{text}}}", "values": f"{value:.15g}x4"}


def row(found: DiagnosedIncident) -> Mapping[str, str]:
    """Return the labels of an incident."""
    mode, cause = found.incident.mode, found.culprits[0]
    owner = f"{cause.identity.namespace}/{cause.identity.workload}"
    kind = {"alertname": mode.name, "severity": mode.severity.value}
    place = owner if is_of_job(mode) and cause.identity.workload else cause.identity.node
    return {"cluster": cause.device.cluster, **kind, "place": place}


class Fleets:
    """Clusters, and what Python says their incidents cost and hit."""

    name = "costs"

    def __init__(self, sets: Sequence[Sequence[Diagnosis]], of_jobs: Sequence[Series] = ()) -> None:
        self._sets, self._of_jobs = sets, of_jobs

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        found = [each for gpus in self._sets for each in of_diagnoses(gpus)]
        costs: list[Sample] = [(row(each), rounded(each.lost_gpus * PRICE)) for each in found]
        gpus: list[Sample] = [(row(each), len(each.losses)) for each in found]
        columns = ((incidents.OPEN_COST, costs), (incidents.OPEN_GPUS, gpus))
        wasted: list[Sample] = [
            ({"cluster": each[0].device.cluster}, rounded(sum(map(waste, each)) * PRICE)) for each in self._sets
        ]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [rendered_series(*each) for gpus in self._sets for gpu in gpus for each in series(gpu)]
            + [rendered_series(*each) for each in self._of_jobs],
            "promql_expr_test": [
                Expect(f"round(sum by ({', '.join(KEY)}) ({column.record}), {UNIT})", samples).rendered(120)
                for column, samples in (columns if not self._of_jobs else ())
            ]
            + [Expect(f"round({ALL_WASTE}, {UNIT})", wasted).rendered(120)],
        }


def rules(folder: Path) -> Sequence[Path]:
    """Write the rules of incidents, and those on waiting ranks, which they read."""
    waiting = {WAITING.record, WAITING_TIME.record, WASTED.record, WASTED_COST.record}
    path = folder / "costs.yaml"
    path.write_text(
        as_text(
            RuleGroup(group.name, rules)
            for group in groups({})
            if (rules := [each for each in group.rules if each.get("record") in waiting or group.name in INCIDENTS])
        )
    )
    return [path]


def test_costs_are_those_of_python(tmp_path: Path) -> None:
    """For any findings, classes and shares of the time."""
    parts = [range(start, start + AT_ONCE) for start in range(0, SETS, AT_ONCE)]
    cases = [Fleets([drawn(number) for number in part]) for part in parts]
    check(tmp_path, cases, rules=rules(tmp_path))


def test_costs_and_the_unexplained_rest_are_the_waste_where_alerts_are_about_whole_jobs(tmp_path: Path) -> None:
    """These are about all GPUs of a job, which also have alerts of their own."""
    sets = [drawn(number) for number in range(AT_ONCE)]
    chance = random.Random(1)
    of_jobs = [
        alert(mode, {"cluster": gpus[0].device.cluster, "namespace": "ml", "workload": job})
        for gpus in sets
        for job in "ab"
        for mode in chance.sample([mode for mode in MODES if mode.scope is Scope.JOB], chance.choice((0, 1, 2)))
    ]
    check(tmp_path, [Fleets(sets, of_jobs)], rules=rules(tmp_path))


class Unexplained:
    """Two causes for which two ranks wait, who also waste time of their own; and a job without an incident."""

    name = "unexplained"

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        waits = {Cause.PEERS: 0.5, Cause.HOST: 0.25}
        gpus = [
            diagnosed_gpu(
                0,
                "GpuThermalThrottling",
                "GpuLoaderStorageBound",
                job="a",
                class_name="host-bound",
                shares={Cause.HOST: 0.5},
            ),
            *(diagnosed_gpu(gpu, job="a", class_name="waiting", shares=waits) for gpu in (1, 2)),
            diagnosed_gpu(3, job="b", class_name="host-bound", shares={Cause.HOST: 0.5}),
        ]
        found: list[Sample] = [({"workload": "a"}, 2 * 0.25 * PRICE), ({"workload": "b"}, 0.5 * PRICE)]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": [rendered_series(*each) for gpu in gpus for each in series(gpu)],
            "promql_expr_test": [
                Expect(f"sum by (workload) ({incidents.UNEXPLAINED_COST.record})", found).rendered(120)
            ],
        }


def test_waste_that_no_incident_explains(tmp_path: Path) -> None:
    """Time that costs two incidents is not subtracted twice."""
    check(tmp_path, [Unexplained()], rules=rules(tmp_path))


def test_what_is_drawn_has_every_kind_of_incident() -> None:
    """Victims, incidents without any, and several incidents of one job."""
    found = [each for number in range(SETS) for each in of_diagnoses(drawn(number))]
    assert {bool(each.hit) for each in found} == {True, False}
    assert any(each.incident.severity is Severity.INFO and each.lost_gpus for each in found)
    assert any(gpu.is_down for number in range(SETS) for gpu in drawn(number))
    assert any(each.culprits[0].shares.get(Cause.PEERS) for each in found)
    # GPUs whose time several incidents share, and GPUs of an incident whose time counts for a more severe one.
    shares = [
        [each.losses[gpu.device] for each in found if gpu.device in each.losses]
        for number in range(SETS)
        for found in [of_diagnoses(drawn(number))]
        for gpu in drawn(number)
    ]
    assert any(len(of_gpu) > 2 and all(of_gpu) for of_gpu in shares)
    assert any(0 in of_gpu and any(of_gpu) for of_gpu in shares)
