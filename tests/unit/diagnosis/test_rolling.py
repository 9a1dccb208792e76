"""A rolling window has the diagnosis of the last seconds, as if only these had been watched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import distributed
from gpu_exporter.diagnosis.diagnose import MINUTES, Diagnosis, diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes, WatchedScrapes
from gpu_exporter.diagnosis.report import as_dict, report_lines
from gpu_exporter.diagnosis.result import diagnose_scrapes
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, samples_by_name
from gpu_exporter.diagnosis.window import seen
from tests import PACKAGED_RECORDINGS

SECONDS = 5.0
STRAGGLERS = set(distributed.STRAGGLERS)
LABELS = {"gpu": "0", "UUID": "GPU-0"}


def _every(seconds: float) -> Iterator[Scrape]:
    """Yield a recording of two GPUs as scrapes of both, so often."""
    at, samples, begun = 0.0, {}, 0.0
    for scrape in RecordedScrapes(PACKAGED_RECORDINGS / "h200_x2_ddp.jsonl.gz"):
        uuid = scrape.samples[0].labels["UUID"]
        at, samples[uuid] = scrape.at, scrape.samples
        if at >= begun + seconds:
            begun = at
            yield Scrape(at, [sample for of_gpu in samples.values() for sample in of_gpu])


def test_the_diagnosis_is_that_of_the_last_seconds() -> None:
    rolling = RollingWindow(SECONDS, job="job")
    scrapes: list[Scrape] = []
    classes = set()
    for number, scrape in enumerate(_every(1.0)):
        scrapes.append(scrape)
        rolling.add(scrape.at, samples_by_name(scrape.samples))
        if number % 4 == 3:
            found = as_dict(diagnose(rolling.recent()))["gpus"]
            recent = [each for each in scrapes if each.at >= scrape.at - SECONDS]
            fresh = as_dict(diagnose(seen(recent, {}, job="job")))["gpus"]
            assert [_judged(gpu) for gpu in found] == [_judged(gpu) for gpu in fresh]
            classes |= {gpu["class"] for gpu in found}
    assert len(classes) > 2


def _judged(gpu: dict[str, Any]) -> tuple[Any, ...]:
    """Return what must be equal. After its begin, a job has stragglers later than in a window of its own."""
    modes = [mode["name"] for mode in gpu["modes"] if mode["name"] not in STRAGGLERS]
    return gpu["UUID"], gpu["class"], gpu["evidence"], gpu["time"], modes


WORKS = {
    m.GR_ENGINE_ACTIVE: 0.95,
    m.SM_ACTIVE: 0.7,
    m.TENSOR_ACTIVE: 0.4,
    m.DRAM_ACTIVE: 0.3,
    m.NVLINK_TX: 2e10,
    m.NVLINK_RX: 2e10,
}


def stragglers(begins: Sequence[float], engines: Sequence[float], idle: float) -> dict[float, set[str]]:
    """Return the stragglers by the seconds since the first rank began to work, with what each begins with, and its
    engine activity. Before, all are idle."""
    rolling, found = RollingWindow(20.0, job="job"), {}
    for at in range(int(idle) + 60):
        samples = [
            ScrapedSample(metric.name, {"UUID": f"GPU-{rank}", "gpu": str(rank)}, value * (at >= idle + begin))
            for rank, (begin, engine) in enumerate(zip(begins, engines, strict=True))
            for metric, value in {**WORKS, m.GR_ENGINE_ACTIVE: engine}.items()
        ]
        rolling.add(1.7e9 + at, samples_by_name(samples))
        found[at - idle] = {
            each.identity.gpu
            for each in diagnose(rolling.recent())
            if STRAGGLERS & {match.mode.name for match in each.matches}
        }
    return found


LAUNCHES = {m.GR_ENGINE_ACTIVE: 0.95, m.SM_ACTIVE: 0.1, m.DRAM_ACTIVE: 0.002, m.NVLINK_TX: 4e9, m.NVLINK_RX: 4e9}


def _launch_bound(seconds: int) -> list[Scrape]:
    """Recorded on four H100s: in 16 s of a balanced launch-bound job with FSDP2, the third rank was the last one."""
    samples = [
        ScrapedSample(metric.name, {"UUID": f"GPU-{rank}", "gpu": str(rank)}, value)
        for rank, engine in enumerate((0.999, 0.998, 0.375, 0.84))
        for metric, value in {**LAUNCHES, m.PCIE_RX: 4e9, m.GR_ENGINE_ACTIVE: engine}.items()
    ]
    return [Scrape(1.7e9 + at, samples) for at in range(seconds)]


def _last(found: Sequence[Diagnosis]) -> tuple[set[str], set[str]]:
    """Return which GPUs are stragglers, and of which only minutes could tell."""
    named = {each.identity.gpu for each in found if STRAGGLERS & {match.mode.name for match in each.matches}}
    return named, {each.identity.gpu for each in found if MINUTES in each.unknown.get(distributed.ALWAYS_LAST, ())}


@pytest.mark.parametrize(("seconds", "last"), [(20.0, (set(), {"2"})), (300.0, ({"2"}, set()))])
def test_only_minutes_tell_who_is_always_last(seconds: float, last: tuple[set[str], set[str]]) -> None:
    rolling = RollingWindow(seconds, job="job")
    for scrape in _launch_bound(320):
        rolling.add(scrape.at, samples_by_name(scrape.samples))
    assert _last(diagnose(rolling.recent())) == last


@pytest.mark.parametrize(("seconds", "last"), [(21, (set(), {"2"})), (301, ({"2"}, set()))])
def test_a_short_watch_says_what_only_minutes_tell(seconds: int, last: tuple[set[str], set[str]]) -> None:
    """Also one of two scrapes, as of an exporter that is asked."""
    scrapes = _launch_bound(seconds)
    for watched in (scrapes, [scrapes[0], scrapes[-1]]):
        found = diagnose_scrapes(WatchedScrapes(watched, "http://node:9400", seconds), "job")
        assert _last(found.diagnoses) == last
        text = " ".join(report_lines(found, every=False, verbose=False, price=None))
        assert ("GPU 2 was the last to launch in a launch-bound job." in text) == (seconds < 300)


@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_ranks_that_begin_at_different_times(idle: float) -> None:
    assert not any(stragglers([0.0, 1.0, 0.0, 6.0], [0.95] * 4, idle).values())


@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_a_straggler_is_found_after_a_whole_window(idle: float) -> None:
    found = stragglers([0.0, 1.0, 0.0, 2.0], [0.95, 0.95, 0.95, 0.6], idle)
    assert min(seconds for seconds, ranks in found.items() if ranks) == pytest.approx(22, abs=1)
    assert found[50] == {"3"}


def test_old_points_are_dropped() -> None:
    """Of a value that is read once a minute, the last point stays as long as it is valid."""
    rolling = RollingWindow(SECONDS)
    for at in range(1000, 1200):
        samples = [ScrapedSample(m.SM_ACTIVE.name, LABELS, 0.5), ScrapedSample(m.POWER.name, LABELS, 300.0)]
        rolling.add(float(at), samples_by_name(samples))
    window = rolling.recent()
    (device,) = window.devices
    assert len(window.points(device, s.SM_ACTIVE)) <= SECONDS + 1
    rolling.add(1300.0, samples_by_name([ScrapedSample(m.UP.name, LABELS, 1.0)]))
    assert not rolling.recent().points(device, s.SM_ACTIVE)


def test_derived_signals_follow_their_inputs() -> None:
    """A sum has a point for each scrape, and none once an input has ended."""
    rolling = RollingWindow(SECONDS)
    for at in range(1000, 1010):
        samples = [ScrapedSample(name, LABELS, 1e9) for name in (m.NVLINK_TX.name, m.NVLINK_RX.name)]
        rolling.add(float(at), samples_by_name(samples))
        window = rolling.recent()
    (device,) = window.devices
    assert window.points(device, s.NVLINK)[-1] == (1009.0, 2e9)
    assert len(window.points(device, s.NVLINK)) <= SECONDS + 1
    rolling.add(1020.0, samples_by_name([ScrapedSample(m.UP.name, LABELS, 1.0)]))
    assert not rolling.recent().points(device, s.NVLINK)


def test_devices_that_are_gone() -> None:
    """They are judged no longer, but it is known when they were seen."""
    rolling = RollingWindow(SECONDS)
    rolling.add(1000.0, samples_by_name([ScrapedSample(m.SM_ACTIVE.name, LABELS, 0.5)]))
    (device,) = rolling.recent().devices
    rolling.add(1010.0, samples_by_name([ScrapedSample(m.SM_ACTIVE.name, {**LABELS, "UUID": "GPU-1"}, 0.5)]))
    assert [key.uuid for key in rolling.recent().devices] == ["GPU-1"]
    assert rolling.seen_at(device) == pytest.approx(1000.0)
