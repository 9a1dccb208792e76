"""`diagnose` reports no hang and no straggler while a training loop says that it pauses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

SECONDS = 20
STRAGGLERS = {"GpuCollectiveStall", "GpuStragglerStarved", "GpuStragglerSlow"}


def scraped(
    ranks: Sequence[Values], second: int, evaluates: float | None, measured: Collection[int] = ()
) -> Iterator[ScrapedSample]:
    """Yield the samples of a job at a second. The loop of its first rank evaluates for a share of the time, if it says
    so; those of some ranks measure that they wait for others."""
    for gpu, values in enumerate(ranks):
        labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H200", "Hostname": "node"}
        for row, value in {**profiles.HEALTHY, **values}.items():
            if isinstance(value, float | int):
                yield ScrapedSample(row.name, labels, float(value))
        if evaluates is not None:
            share = 0.0 if gpu else evaluates
            for activity, total in (("training", (1 - share) * second), ("evaluation", share * second)):
                yield ScrapedSample(m.JOB_ACTIVITY.name, {**labels, "activity": activity}, total)
        if gpu in measured:
            yield ScrapedSample(m.JOB_PHASE.name, {**labels, "phase": "waiting"}, 0.1 * second)


CASES: Mapping[str, Sequence[Values]] = {
    "GpuCollectiveStall": [profiles.ABSENT, *[profiles.HANGING] * 3],
    "GpuStragglerStarved": [profiles.STARVED, *[profiles.OF_STARVED] * 3],
    "GpuStragglerSlow": [profiles.SLOW, *[profiles.OF_SLOW] * 3],
}


@pytest.mark.parametrize("mode", CASES)
@pytest.mark.parametrize(("evaluates", "excused"), [(None, False), (0.0, False), (0.5, True)])
def test_a_pause_excuses_what_gpus_show(mode: str, evaluates: float | None, excused: bool) -> None:
    scrapes = [Scrape(1000.0 + second, list(scraped(CASES[mode], second, evaluates))) for second in range(SECONDS)]

    found = {match.mode.name for gpu in diagnose(seen(scrapes, {}, job="job")) for match in gpu.matches}

    assert found & STRAGGLERS == (set() if excused else {mode})


@pytest.mark.parametrize("mode", CASES)
@pytest.mark.parametrize("measured", [(0,), (0, 1), (1, 2, 3), range(4)], ids=["slow rank", "half", "others", "all"])
def test_loops_that_measure_waiting_know_the_straggler_if_all_ranks_have_one(
    mode: str, measured: Collection[int]
) -> None:
    """GpuJobStraggler then says whether there is one; those of some ranks can compare only these. That the job hangs is
    true in any case."""
    scrapes = [Scrape(1000.0 + second, list(scraped(CASES[mode], second, None, measured))) for second in range(SECONDS)]

    found = {match.mode.name for gpu in diagnose(seen(scrapes, {}, job="job")) for match in gpu.matches}

    knows = len(measured) == len(CASES[mode]) and mode != "GpuCollectiveStall"
    assert found & STRAGGLERS == (set() if knows else {mode})
