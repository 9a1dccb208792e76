"""While a training loop says that it pauses, what its GPUs show is no hang and no straggler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from tests import ROOT
from tests.rules.promtool import Case, Expect, check, check_together
from tests.rules.series import Device, minutes, rank

RULES = [ROOT / "alerts" / f"{name}.yaml" for name in ("recording", "distributed")]
HOUR = 60.0
EVALUATES = replace(m.JOB_ACTIVITY, labels=(("activity", "evaluation"),))
SAVES = replace(m.JOB_ACTIVITY, labels=(("activity", "checkpoint"),))
WAITS = replace(m.JOB_PHASE, labels=(("phase", "waiting"),))
TELEMETRY = "GpuCollectiveStall|GpuStragglerStarved|GpuStragglerSlow"
NAMED = f'group by (workload, alertname) (ALERTS{{alertstate="firing", alertname=~"{TELEMETRY}"}})'


def telemetry(name: str, ranks: Sequence[Values], said: Values, loops: Collection[int] = (0,)) -> list[Device]:
    """Return the ranks of a job, of which some have a loop that says this."""
    return [
        Device(
            name,
            gpu,
            [minutes(40, {**profiles.HEALTHY, **values, **(said if gpu in loops else {})})],
            owner=rank(name, gpu),
        )
        for gpu, values in enumerate(ranks)
    ]


# What ranks show, and its alert.
SHOWN: Mapping[str, Sequence[Values]] = {
    "GpuCollectiveStall": [profiles.ABSENT, *[profiles.HANGING] * 3],
    "GpuStragglerStarved": [profiles.STARVED, *[profiles.OF_STARVED] * 3],
    "GpuStragglerSlow": [profiles.SLOW, *[profiles.OF_SLOW] * 3],
}


def test_a_pause_excuses_what_gpus_show(tmp_path: Path) -> None:
    """An evaluation or a checkpoint of rank 0 alone. A loop that trains is no excuse, nor is a rare pause."""
    stories: Mapping[str, Values] = {
        "silent": {},
        "trains": {EVALUATES: Ramp(0, 0.0), SAVES: Ramp(0, 0.0)},
        "rarely": {EVALUATES: Ramp(0, 0.02), SAVES: Ramp(0, 0.0)},
        "evaluates": {EVALUATES: Ramp(0, 1.0), SAVES: Ramp(0, 0.0)},
        "saves": {EVALUATES: Ramp(0, 0.0), SAVES: Ramp(0, 0.4)},
    }
    cases = []
    for alert, ranks in SHOWN.items():
        gpus = [gpu for name, said in stories.items() for gpu in telemetry(name, ranks, said)]
        found = [({"workload": name, "alertname": alert}, 1.0) for name in ("silent", "trains", "rarely")]
        cases.append(Case(alert, gpus, [Expect(NAMED, found)]))
    check_together(tmp_path, cases, rules=RULES)


def test_loops_that_measure_waiting_know_the_straggler_if_all_ranks_have_one(tmp_path: Path) -> None:
    """Those of some ranks can compare only these. That the job hangs is true in any case."""
    measured: Mapping[str, Collection[int]] = {"slow-rank": (0,), "half": (0, 1), "others": (1, 2, 3), "all": range(4)}
    cases = []
    for alert, ranks in SHOWN.items():
        gpus = [gpu for name, loops in measured.items() for gpu in telemetry(name, ranks, {WAITS: Ramp(0, 0.1)}, loops)]
        names = [name for name in measured if name != "all" or alert == "GpuCollectiveStall"]
        cases.append(
            Case(alert, gpus, [Expect(NAMED, [({"workload": name, "alertname": alert}, 1.0) for name in names])])
        )
    check_together(tmp_path, cases, rules=RULES)


def test_a_pause_excuses_a_hang_for_an_hour(tmp_path: Path) -> None:
    """Then the checkpoint itself hangs."""
    said: Values = {SAVES: Ramp(0, 1.0)}
    gpus = [
        Device("stuck", gpu, [minutes(HOUR + 30, {**profiles.HEALTHY, **values, **said})], owner=rank("stuck", gpu))
        for gpu, values in enumerate([profiles.ABSENT, profiles.HANGING])
    ]
    named = 'group by (alertname) (ALERTS{alertstate="firing", alertname="GpuCollectiveStall"})'
    check(tmp_path, [Case("stuck", gpus, [Expect(named, [({"alertname": "GpuCollectiveStall"}, 1.0)])])], rules=RULES)


def test_a_slow_loader(tmp_path: Path) -> None:
    """Only that of the rank whose loop says so."""
    gpus = [
        Device("data", gpu, [minutes(40, {**profiles.HEALTHY, m.JOB_DATA: Ramp(0, share)})], owner=rank("data", gpu))
        for gpu, share in enumerate((0.4, 0.1))
    ]
    expected = [({"gpu": "0", "alertname": "GpuJobDataBound"}, 1.0)]
    check(tmp_path, [Case("data", gpus, [Expect('group by (gpu, alertname) (ALERTS{alertstate="firing"})', expected)])])
