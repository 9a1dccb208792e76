"""Jobs whose ranks are in several cliques of an NVLink fabric: the ranks outside the largest one are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes, rank

NAME = "GpuJobAcrossCliques"
PER_NODE = 4
# Two codes as they are: large numbers, which are close to each other.
HERE, THERE = 4_294_967_294.0, 4_294_967_295.0


def of(*codes: float | None, load: Values = p.BALANCED) -> list[Values]:
    """Return the values of ranks with these codes."""
    return [load if code is None else {**load, m.FABRIC_CODE: code} for code in codes]


def replicas() -> list[Values]:
    """Return the ranks of a service; its replica in the other clique has fewer requests."""
    some = {**p.BALANCED, m.NVLINK_TX: 2e9, m.NVLINK_RX: 2e9}
    return [*of(*[HERE] * 6), *of(THERE, THERE, load=some)]


JOBS: Mapping[str, tuple[list[Values], Sequence[int]]] = {
    "one-clique": (of(*[HERE] * 8), []),
    "no-fabric": (of(*[None] * 8), []),
    "two-of-eight": (of(*[HERE] * 6, THERE, THERE), [6, 7]),
    "half": (of(*[HERE] * 4, *[THERE] * 4), range(8)),
    "three-cliques": (of(*[HERE] * 6, THERE, 7.0), [6, 7]),
    "communication-bound": (of(*[HERE] * 6, THERE, THERE, load=p.ALL_REDUCE), [6, 7]),
    "no-collectives": (of(*[HERE] * 6, THERE, THERE, load=p.GEMM), []),
    "idle": (of(*[HERE] * 6, THERE, THERE, load=p.IDLE), []),
    "one-does-not-communicate": ([*of(*[HERE] * 6, THERE), *of(THERE, load=p.GEMM)], []),
    "replicas": (replicas(), []),
    "alone": (of(THERE), []),
}


def devices(job: str, ranks: Sequence[Values]) -> list[Device]:
    return [
        Device(
            f"{job}-{number // PER_NODE}",
            number % PER_NODE,
            [minutes(40, {**p.BOARD, **values})],
            owner=rank(job, number),
        )
        for number, values in enumerate(ranks)
    ]


def test_the_alert(tmp_path: Path) -> None:
    cases = []
    for job, (ranks, named) in JOBS.items():
        expected = [({"pod": f"{job}-worker-{number}"}, 1.0) for number in named]
        alerts = f'ALERTS{{alertname="{NAME}", alertstate="firing", workload="{job}"}}'
        cases.append(Case(job, devices(job, ranks), [Expect(f"group by (pod) ({alerts})", expected)]))
    check(tmp_path, cases)


def test_diagnose() -> None:
    for job, (ranks, named) in JOBS.items():
        found = diagnose(seen([Scrape(1000.0 + second, scraped(ranks)) for second in range(8)], {}, job=job))
        across = [
            number for number, of_rank in enumerate(found) if NAME in [each.mode.name for each in of_rank.matches]
        ]
        assert across == list(named), job


def scraped(ranks: Sequence[Values]) -> list[ScrapedSample]:
    samples = []
    for gpu, values in enumerate(ranks):
        labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": "NVIDIA GB200", "Hostname": "node"}
        samples += [
            ScrapedSample(row.name, labels, float(value))
            for row, value in {**p.HEALTHY, **values}.items()
            if isinstance(value, float | int)
        ]
    return samples
