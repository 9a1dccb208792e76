"""Utilisation between two scrapes: the integral of the samples that the driver keeps, in an exporter with faults."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Pace
from tests.conftest import Page, Serve
from tests.support.fakes.driver import AMPERE, H200, FakeDriver, Value, steps
from tests.support.tools import until

UTIL, MEMORY, ENERGY = m.GPU_UTIL_SECONDS.name, m.MEM_UTIL_SECONDS.name, m.ENERGY_SAMPLED.name
NOT_FOUND, NOT_SUPPORTED = 6, 3
# What counts an engine by samples, and by GPM.
ENGINES = {
    3: (m.ENC_UTIL_SECONDS.name, m.NVENC[1].name),
    4: (m.DEC_UTIL_SECONDS.name, m.NVDEC[1].name),
    8: (m.JPG_UTIL_SECONDS.name, m.NVJPG[1].name),
    9: (m.OFA_UTIL_SECONDS.name, m.NVOFA[1].name),
}
# The kinds of samples that are read, on GPUs with GPM and without.
Kind = tuple[Mapping[str, Value], int, str]
KINDS: Mapping[str, Kind] = {
    "with GPM": (H200, 1, UTIL),
    "without GPM": (AMPERE, 1, UTIL),
    "encoders": (AMPERE, 3, m.ENC_UTIL_SECONDS.name),
}
# How long the driver keeps samples, and a time in which it overwrites more than what is read between two pages.
KEPT_SECONDS, STALL_SECONDS = 14.2, 30.0


def total(page: Page, name: str = UTIL) -> float:
    """Return the integral on a page."""
    return sum(page.values(name))


def check_kinds(check: Callable[[Serve, Path, Kind], None], serve: Serve, folder: Path) -> None:
    """Check all kinds of samples at the same time, because an exporter reads them every 10 s."""
    with ThreadPoolExecutor(len(KINDS)) as pool:
        for done in [pool.submit(check, serve, folder / name, kind) for name, kind in KINDS.items()]:
            done.result()


def test_faults_count_nothing_twice(serve: Serve, tmp_path: Path) -> None:
    """Half busy: no fault makes the integral rise faster than that, and after each fault it rises again."""
    check_kinds(faults_count_nothing_twice, serve, tmp_path)


def faults_count_nothing_twice(serve: Serve, folder: Path, of: Kind) -> None:
    profile, kind, name = of
    driver = FakeDriver(folder, 1, profile)
    driver.set(f"Samples.{kind}", 50)
    began = time.monotonic()
    exporter = serve("--interval", "200ms", "--metrics", "full", env=driver.environment)
    page = exporter.until(lambda page: total(page, name) > 0, 30)

    def rises_on() -> None:
        nonlocal page
        before = total(page, name)
        page = exporter.until(lambda page: total(page, name) > before + 1, 60)
        assert total(page, name) <= 0.5 * (time.monotonic() - began)

    rises_on()
    back = time.time()
    driver.set("ClockBack", steps((0, back), (3600, math.inf)))
    rises_on()
    driver.set("ClockBack", steps((0, back), (3600, time.time()), (0, math.inf)))
    rises_on()
    driver.lose(0)
    page = exporter.until(lambda page: page.values("gpu_up") == [0], 30)
    driver.restore(0)
    page = exporter.until(lambda page: page.values("gpu_up") == [1] and bool(page.values(name)), 60)
    rises_on()
    driver.unload()
    driver.load()
    rises_on()


@pytest.mark.slowest
def test_a_stall_loses_what_the_driver_overwrote(serve: Serve, tmp_path: Path) -> None:
    """What the driver still has counts, and nothing more."""
    check_kinds(a_stall_loses_what_the_driver_overwrote, serve, tmp_path)


def a_stall_loses_what_the_driver_overwrote(serve: Serve, folder: Path, of: Kind) -> None:
    profile, kind, name = of
    driver = FakeDriver(folder, 1, profile)
    driver.set(f"Samples.{kind}", 50)
    exporter = serve("--interval", "200ms", "--metrics", "full", env=driver.environment)
    before = total(exporter.until(lambda page: total(page, name) > 0, 30))
    stopped = time.monotonic()
    exporter.process.send_signal(signal.SIGSTOP)
    until(lambda: time.monotonic() > stopped + STALL_SECONDS, STALL_SECONDS + 60)
    exporter.process.send_signal(signal.SIGCONT)
    resumed = time.monotonic()
    page = exporter.until(lambda page: total(page, name) > before + 0.4 * KEPT_SECONDS, 60)

    assert total(page, name) - before <= 0.5 * (KEPT_SECONDS + Pace.BUFFERED.value + time.monotonic() - resumed)


def test_gpus_without_samples(serve: Serve, tmp_path: Path) -> None:
    """Not supported, or never a sample: no series, and the reason. Samples that come later count."""
    driver = FakeDriver(tmp_path / "driver", 1)
    driver.fail("Samples.1", NOT_SUPPORTED)
    driver.fail("Samples.2", NOT_FOUND)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: page.values(m.SUPPORTED.name, metric=MEMORY) == [0], 30)
    assert not page.values(UTIL)
    assert not page.values(MEMORY)
    assert page.values(m.SUPPORTED.name, metric=UTIL, reason="not_supported") == [0]
    assert page.values(m.SUPPORTED.name, metric=MEMORY, reason="no_value") == [0]
    driver.set("Samples.2", 100)
    page = exporter.until(lambda page: total(page, MEMORY) > 0, 60)
    assert not page.values(m.SUPPORTED.name, metric=MEMORY)


@pytest.mark.parametrize("profile", [H200, AMPERE], ids=["with GPM", "without GPM"])
def test_engines(serve: Serve, tmp_path: Path, profile: Mapping[str, Value]) -> None:
    """An engine has samples where GPM has no counter of it, and only with the full set."""
    driver = FakeDriver(tmp_path / "driver", 1, profile)
    for kind in (1, *ENGINES):
        driver.set(f"Samples.{kind}", 100)
    exporter = serve("--interval", "200ms", "--metrics", "full", env=driver.environment)
    page = exporter.until(lambda page: total(page, UTIL) > 0, 60)
    for sampled, counted in ENGINES.values():
        assert bool(page.values(sampled)) != bool(page.values(counted)), (sampled, counted)
        assert not page.values(m.SUPPORTED.name, metric=sampled)
    assert bool(page.values(m.DEC_UTIL_SECONDS.name)) == (profile is AMPERE)


def test_energy_without_a_counter(serve: Serve, tmp_path: Path) -> None:
    """It is the integral of the power samples on the GPU that has no energy counter, and no faster than its power."""
    driver = FakeDriver(tmp_path / "driver", 2)
    driver.set("Samples.0", 200_000)
    driver.fail("FieldValues.83", NOT_SUPPORTED, gpu=1)
    began = time.monotonic()
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: total(page, ENERGY) > 500, 60)

    assert total(page, ENERGY) <= 200 * (time.monotonic() - began)
    assert page.values(ENERGY, gpu="1")
    assert not page.values(ENERGY, gpu="0")
    assert page.values(m.ENERGY_JOULES.name, gpu="0")
    assert page.values(m.SUPPORTED.name, gpu="1", metric=m.ENERGY_JOULES.name) == [0]
    assert not page.values(m.SUPPORTED.name, metric=ENERGY)
