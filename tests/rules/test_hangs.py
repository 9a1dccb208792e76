"""The alert on a job that hangs fires in its time, and for no other job.

Jobs of two and four ranks on H100s and H200s, that wait with messages of 4 KiB to 1 GiB and each protocol of NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.metric import Metric
from tests import ROOT
from tests.rules.promtool import Case, Expect, check
from tests.rules.recorded import values_by_phase
from tests.rules.series import Device, Stretch, minutes, rank
from tests.rules.shapes import Shape
from tests.support.tools import is_long
from tests.support.truth import TRUTH

STALL = next(mode for mode in MODES if mode.name == "GpuCollectiveStall")
JOBS = [path for path in TRUTH if "_x2_" in path.name or "_x4_" in path.name]
# Minutes of work before, and then of the phase, until the alert has to fire: its window is full of the hang, and its
# hold is over. Rules are evaluated once a minute, and some read what others recorded the minute before.
BEFORE, EVALUATIONS = 20.0, 3.0
IN_TIME = (WINDOW + STALL.hold) / 60 + EVALUATIONS
# Jobs in one run of promtool, which limits the number of samples.
MANY = 16
RULES = [ROOT / "alerts" / f"{name}.yaml" for name in ("recording", "distributed")]
FIRED = f'group by (node, gpu) (last_over_time(ALERTS{{alertstate="firing", alertname="{STALL.name}"}}[1d]))'
# Three of four ranks of an H100 wait in an all-reduce. What the fourth, which never came, read was not measured.
WAITING_H100: Values = {**profiles.HANGING, m.SM_ACTIVE: 0.182, m.SM_OCCUPANCY: 0.057}
FOUR_H100: tuple[Values, ...] = (
    *({**WAITING_H100, m.POWER: watts} for watts in (205.0, 210.0, 215.0)),
    profiles.ABSENT,
)


def test_diagnose_names_a_hang_of_four_h100_ranks() -> None:
    scrapes = [Scrape(1000.0 + second, list(_scraped(FOUR_H100))) for second in range(8)]

    found = diagnose(seen(scrapes, {}, job="job"))

    assert [[match.mode.name for match in of_gpu.matches] for of_gpu in found] == [[STALL.name]] * 4


def _scraped(ranks: tuple[Values, ...]) -> Iterator[ScrapedSample]:
    for gpu, values in enumerate(ranks):
        labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node"}
        for row, value in {**profiles.HEALTHY, **values}.items():
            if isinstance(value, float | int):
                yield ScrapedSample(row.name, labels, float(value))


def test_the_alert_fires_in_time_and_for_nothing_else(tmp_path: Path) -> None:
    fleet = [*_recorded_jobs(), *_of_four()]
    jobs = [list(ranks) for _, ranks in groupby(fleet, lambda device: device.node)]

    check(tmp_path, [_case(jobs[start : start + MANY]) for start in range(0, len(jobs), MANY)], rules=RULES)


def test_a_rank_that_stops_twice_is_not_starved(tmp_path: Path) -> None:
    """A job that stands still for six minutes works again and hangs: means of five minutes mix work and waiting."""
    devices = []
    for gpu, stopped in enumerate(FOUR_H100):
        parts = (BEFORE, profiles.BALANCED), (6.0, stopped), (6.0, profiles.BALANCED), (IN_TIME, stopped)
        story = [minutes(length, _gauges(values)) for length, values in parts]
        devices.append(Device("twice-hanging", gpu, story, owner=rank("twice", gpu)))
    starved = 'last_over_time(ALERTS{alertstate="firing", alertname="GpuStragglerStarved"}[1d])'
    case = _case([devices])
    check(tmp_path, [Case(case.name, devices, [*case.expected, Expect(starved)])], rules=RULES)


def _case(jobs: Sequence[Sequence[Device]]) -> Case:
    """Return a case in which the alert has fired on all ranks of the jobs that hang, and on no other."""
    fleet = [device for ranks in jobs for device in ranks]
    expected = [({"node": each.node, "gpu": str(each.gpu)}, 1.0) for each in fleet if "-hang" in each.node]
    return Case(fleet[0].node, fleet, [Expect(FIRED, expected)])


def _recorded_jobs() -> Iterator[Device]:
    """Yield the ranks of a job for each phase: it works, then the phase goes on until the alert has to fire.

    Only with `--long` all phases of work; `tests/unit/diagnosis/test_hangs.py` has all of them, without rules.
    """
    for path in JOBS:
        recording = path.name.partition(".")[0]
        known = values_by_phase([path])
        working = [phase for phase in TRUTH[path] if not phase.startswith("hang")]
        left_out = () if is_long() else {*working} - {*working[::3]}
        for phase, truths in TRUTH[path].items():
            if phase in left_out:
                continue
            node = f"{recording}-{phase}"
            for gpu in range(len(truths)):
                yield Device(node, gpu, _story(known[phase, gpu]), owner=rank(node, gpu))


def _of_four() -> Iterator[Device]:
    for gpu, values in enumerate(FOUR_H100):
        yield Device("four-hanging", gpu, _story(values), owner=rank("four", gpu))


def _story(values: Mapping[Metric, Shape]) -> Sequence[Stretch]:
    return [minutes(BEFORE, _gauges(profiles.BALANCED)), minutes(IN_TIME, _gauges(values))]


def _gauges(values: Mapping[Metric, Shape]) -> Mapping[Metric, Shape]:
    """Return the values that depend on the load, on a healthy board."""
    return {**profiles.HEALTHY, **{row: value for row, value in values.items() if row in profiles.BALANCED}}
