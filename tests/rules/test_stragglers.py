"""Ranks that wait for one another: which are stragglers, and when none is. Levels of 8 H200s (profiles.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.window import Scrapes, seen
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, Generation, minutes, rank
from tests.unit.diagnosis.test_current import snapshots

MANY = 16
HELD, SHORTLY = 40.0, 18.0  # minutes; an alert on mere communication takes half an hour, one on a straggler ten minutes
PER_NODE = 8
DISTRIBUTED = 'ALERTS{alertstate="firing", domain="distributed"}'


def job(name: str, ranks: Sequence[Values], generation: Generation = Generation.GPU_EXPORTER) -> list[Device]:
    """Return a job with eight ranks per node. Ranks differ by less than 1 %, as in real jobs."""
    devices = []
    for number, values in enumerate(ranks):
        own = {row: value * (1 - 0.0005 * (number % 7)) for row, value in values.items() if isinstance(value, float)}
        story = [
            minutes(
                HELD if len(ranks) <= PER_NODE else SHORTLY,
                {**p.BOARD, **values, **{row: own[row] for row in own if row not in p.BOARD}},
            )
        ]
        node = f"{name}-{number // PER_NODE}"
        devices.append(Device(node, number % PER_NODE, story, generation, rank(name, number)))
    return devices


def named(name: str, mode: str, ranks: Iterable[int]) -> Expect:
    """Expect this alert on exactly these ranks of the job."""
    found = [
        ({"alertname": mode, "pod": f"{name}-worker-{number}", "node": f"{name}-{number // PER_NODE}"}, 1.0)
        for number in ranks
    ]
    return Expect(f'group by (alertname, pod, node) ({DISTRIBUTED[:-1]}, workload="{name}"}})', found)


def with_stragglers(size: int, straggler: Values, victim: Values, at: Sequence[int]) -> list[Values]:
    return [straggler if number in at else victim for number in range(size)]


DATA_BOUND: Values = {**p.STARVED, m.GR_ENGINE_ACTIVE: 0.34, m.GPU_UTIL: 34.0, m.TENSOR_ACTIVE: 0.10, m.POWER: 340.0}
SLOW, STARVED = "GpuStragglerSlow", "GpuStragglerStarved"

NAMED: Mapping[str, tuple[list[Values], str, Sequence[int]]] = {
    "starved-of-two": (with_stragglers(2, p.STARVED, p.OF_STARVED, [1]), STARVED, [1]),
    "starved-of-eight": (with_stragglers(8, p.STARVED, p.OF_STARVED, [7]), STARVED, [7]),
    "two-starved-of-eight": (with_stragglers(8, p.STARVED, p.OF_STARVED, [2, 5]), STARVED, [2, 5]),
    "starved-of-many": (with_stragglers(MANY, p.STARVED, p.OF_STARVED, [11]), STARVED, [11]),
    "slow-of-two": (with_stragglers(2, p.SLOW, p.OF_SLOW, [0]), SLOW, [0]),
    "slow-of-eight": (with_stragglers(8, p.SLOW, p.OF_SLOW, [3]), SLOW, [3]),
    "two-slow-of-eight": (with_stragglers(8, p.SLOW, p.OF_SLOW, [0, 1]), SLOW, [0, 1]),
    "slow-of-many": (with_stragglers(MANY, p.SLOW, p.OF_SLOW, [15]), SLOW, [15]),
    "hanging": (with_stragglers(8, p.ABSENT, p.HANGING, [6]), "GpuCollectiveStall", range(8)),
    "balanced": ([p.BALANCED] * 8, "", []),
    "balanced-of-many": ([p.BALANCED] * MANY, "", []),
    "data-bound": ([DATA_BOUND] * 8, "", []),
    "uneven": (
        [
            {**p.BALANCED, m.SM_ACTIVE: 0.70 + 0.02 * n, m.TENSOR_ACTIVE: 0.25 + 0.015 * n, m.SM_CLOCK: 1980.0 - 30 * n}
            for n in range(8)
        ],
        "",
        [],
    ),
    "idle": ([p.IDLE] * 8, "", []),
    "alone": ([p.OF_STARVED], "", []),
}


def test_only_stragglers_are_named(tmp_path: Path) -> None:
    jobs = {name: job(name, ranks) for name, (ranks, _, _) in NAMED.items()}
    small = [name for name, devices in jobs.items() if len(devices) <= PER_NODE]
    large = [name for name in jobs if name not in small]
    for names in (small, large):
        devices = [each for name in names for each in jobs[name]]
        check(tmp_path, [Case(names[0], devices, [named(name, *NAMED[name][1:]) for name in names])])


def test_a_job_on_two_nodes_and_two_exporters(tmp_path: Path) -> None:
    """The straggler's node has dcgm-exporter; the waiting ranks are on both nodes."""
    ranks = with_stragglers(16, p.SLOW, p.OF_SLOW, [12])
    devices = [*job("wide", ranks)[:8], *job("wide", ranks, Generation.DCGM_4_9)[8:]]
    check(tmp_path, [Case("wide", devices, [named("wide", SLOW, [12])])])


def at_power_cap(own: float, others: float) -> list[Values]:
    """Return four ranks; the last one is slow at its power limit, which may differ from that of the others."""
    slow = {**p.SLOW, m.POWER: 0.995 * own, m.POWER_INSTANT: 0.995 * own, m.POWER_LIMIT: own}
    victim = {**p.OF_SLOW, m.POWER: 0.6 * others, m.POWER_INSTANT: 0.6 * others, m.POWER_LIMIT: others}
    return with_stragglers(4, slow, victim, [3])


CAPPED = {
    "own": (at_power_cap(400.0, 700.0), "warning"),
    "everyone": (at_power_cap(400.0, 400.0), "info"),
    "nearly": (at_power_cap(690.0, 700.0), "info"),
    "more": (at_power_cap(700.0, 600.0), "info"),
}


def test_a_rank_that_its_own_power_limit_slows_down_is_a_fault(tmp_path: Path) -> None:
    """At the limit of all ranks it has more work; the power limit is no reference if it is itself the fault."""
    devices = [each for name, (ranks, _) in CAPPED.items() for each in job(name, ranks)]
    found = [({"workload": name, "gpu": "3", "severity": severity}, 1.0) for name, (_, severity) in CAPPED.items()]
    expression = f'group by (workload, gpu, severity) ({DISTRIBUTED[:-1]}, alertname="{SLOW}"}})'
    check(tmp_path, [Case("capped", devices, [Expect(expression, found)])])


def test_diagnose_gives_it_the_severity_of_the_alert() -> None:
    for name, (ranks, severity) in CAPPED.items():
        scrapes = Scrapes()
        levels = [
            {row: value for row, value in {**p.BOARD, **values}.items() if isinstance(value, float)} for values in ranks
        ]
        for snapshot in snapshots(levels, name):
            scrapes.take(snapshot)
        diagnoses = diagnose(seen(scrapes.taken, {}))
        found = {
            each.identity.gpu: match.mode for each in diagnoses for match in each.matches if match.mode.name == SLOW
        }
        assert {gpu: mode.severity.value for gpu, mode in found.items()} == {"3": severity}, name
        assert ("no fault" in found["3"].advice.partition(".")[0]) == (severity == "info")
        (incident,) = of_diagnoses(diagnoses)
        assert incident.incident.severity.value == severity


def test_a_hanging_job_is_wasted(tmp_path: Path) -> None:
    """Although its ranks keep their engines busy."""
    devices = job("hanging", NAMED["hanging"][0])
    wasted = [({"pod": f"hanging-worker-{number}"}, 1.0) for number in range(8)]
    expression = 'max by (pod) (gpu:wasted:ratio{workload="hanging"})'
    check(tmp_path, [Case("hanging", devices, [Expect(expression, wasted)])])
