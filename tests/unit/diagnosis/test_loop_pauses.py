"""`diagnose` reports no hang and no straggler while a training loop says that it pauses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
    ranks: Sequence[Values], second: int, evaluates: float | None, waits: float | None = None
) -> Iterator[ScrapedSample]:
    """Yield the samples of a job at a second. The loop of its first rank evaluates, and waits for another rank, for
    shares of the time, if it says so."""
    for gpu, values in enumerate(ranks):
        labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H200", "Hostname": "node"}
        for row, value in {**profiles.HEALTHY, **values}.items():
            if isinstance(value, float | int):
                yield ScrapedSample(row.name, labels, float(value))
        if evaluates is not None:
            share = 0.0 if gpu else evaluates
            for activity, total in (("training", (1 - share) * second), ("evaluation", share * second)):
                yield ScrapedSample(m.JOB_ACTIVITY.name, {**labels, "activity": activity}, total)
        if waits is not None and not gpu:
            yield ScrapedSample(m.JOB_PHASE.name, {**labels, "phase": "waiting"}, waits * second)


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
def test_a_loop_that_measures_waiting_knows_its_straggler(mode: str) -> None:
    """GpuJobStraggler then says whether there is one. That the job hangs is true in any case."""
    scrapes = [Scrape(1000.0 + second, list(scraped(CASES[mode], second, None, 0.0))) for second in range(SECONDS)]

    found = {match.mode.name for gpu in diagnose(seen(scrapes, {}, job="job")) for match in gpu.matches}

    assert found & STRAGGLERS == {mode} & {"GpuCollectiveStall"}
