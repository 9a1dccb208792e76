"""Faults of real nodes, injected under a running server.

Each affects only what is broken, and recovery needs no restart.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_exporter.remediation import evidence
from tests.conftest import Exporter, Page, Serve, run
from tests.support.fakes.driver import FakeDriver, identity, steps

SM_ACTIVE, SM_SECONDS = "DCGM_FI_PROF_SM_ACTIVE", "gpu_sm_active_seconds_total"
# The series of a GPU that does not answer; all others are withdrawn.
ALWAYS = {"gpu_info", "gpu_up", "gpu_read_stalled_seconds"}
ALWAYS |= {"gpu_exporter_collection_failures_total", "gpu_exporter_ticks_skipped_total"}
ALWAYS |= {"gpu_health_state"}
ALLOWED = ALWAYS | {"gpu_source_info", "gpu_down_reason", "gpu_last_read_timestamp_seconds", "gpu_snapshot_age_seconds"}
ALLOWED |= {"gpu_exporter_collection_duration_seconds", "gpu_exporter_collection_seconds_total"}
# These say why the GPU is down.
ALLOWED |= {"gpu_xid_events_total", "DCGM_FI_DEV_XID_ERRORS", "gpu_health_reason"}


class Watched(Exporter):
    """An exporter whose every response is checked for what must never appear, whatever breaks."""

    def __init__(self, exporter: Exporter) -> None:
        super().__init__(exporter.process, exporter.port, exporter.log)
        self._totals: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def page(self, *, whole: bool = True) -> Page:
        """Scrape the whole page; fail on duplicate series, NaN, infinity, negative numbers and falling counters."""
        page = super().page()
        keys = [(name, frozenset(labels.items())) for name, labels, _ in page.samples]
        assert len(keys) == len(set(keys))
        for key, (name, labels, value) in zip(keys, page.samples, strict=True):
            assert math.isfinite(value), f"{name}{labels} is {value}"
            assert value >= 0, f"{name}{labels} is {value}"
            if name.startswith("gpu_") and name.endswith("_total"):
                assert value >= self._totals.get(key, 0), f"{name}{labels} fell to {value}"
                self._totals[key] = value
        return page

    def status(self, path: str) -> int:
        """Return the status code of a response."""
        return self.get(path)[0].status


Start = Callable[..., Watched]
Drive = Callable[..., FakeDriver]


@pytest.fixture
def gpus(tmp_path: Path) -> Callable[[int], FakeDriver]:
    """Return a function that makes a fake driver with this many H200s."""
    return lambda count: FakeDriver(tmp_path / "driver", gpus=count)


@pytest.fixture
def start(serve: Serve) -> Start:
    """Start an exporter of a driver, and wait until all its GPUs are up with profiling metrics, or until `until`.

    In a new process, which can close the library and open another.
    """

    def begin(driver: FakeDriver, *arguments: str, until: Callable[[Page], bool] | None = None) -> Watched:
        exporter = Watched(serve("--interval", "200ms", *arguments, env=driver.environment, new=True))
        exporter.until(until or (lambda page: set(states(page).values()) == {"up"} == profiled(page)))
        return exporter

    return begin


def states(page: Page) -> dict[int, str]:
    """Return "up" or the reason why not, for each GPU; fail if `gpu_up` and `gpu_down_reason` contradict each other."""
    ups = {int(labels["gpu"]): value for name, labels, value in page.samples if name == "gpu_up"}
    reasons = {int(labels["gpu"]): labels["reason"] for name, labels, _ in page.samples if name == "gpu_down_reason"}
    assert all(bool(up) != (gpu in reasons) for gpu, up in ups.items())
    return {gpu: reasons.get(gpu, "up") for gpu in ups}


def profiled(page: Page) -> set[str]:
    """Return {"up"} if all GPUs are up and have profiling metrics."""
    have = {int(labels["gpu"]) for name, labels, _ in page.samples if name == SM_SECONDS}
    return {state if gpu in have else "no profiling" for gpu, state in states(page).items()}


def up(count: int, **others: str) -> dict[int, str]:
    """Return the states of `count` GPUs, all up except the `others`: `up(8, gpu3="lost")`."""
    return {gpu: others.get(f"gpu{gpu}", "up") for gpu in range(count)}


def families(page: Page, gpu: int) -> set[str]:
    """Return the names of all series of a GPU."""
    return {name for name, labels, _ in page.samples if labels.get("gpu") == str(gpu)}


def withdrawn(page: Page, gpu: int) -> bool:
    """Return whether a GPU has only its identity and state, and no values of the device."""
    return ALWAYS <= families(page, gpu) <= ALLOWED


# --- a driver call that never returns -------------------------------------------------------------------------------


def test_a_wedged_gpu_affects_no_other(start: Start, gpus: Drive) -> None:
    """If one of eight GPUs hangs in the driver, it is down without series, and the others are read and scraped."""
    driver = gpus(8)
    driver.lock("gpu")
    exporter = start(driver)
    driver.block(3)
    first = exporter.until(lambda page: states(page) == up(8, gpu3="stalled") and withdrawn(page, 3))
    others = {*"01234567"} - {"3"}
    skipped = "gpu_exporter_ticks_skipped_total"
    page = exporter.until(
        lambda page: (
            states(page) == up(8, gpu3="stalled")
            and page.value("gpu_read_stalled_seconds", gpu="3") > 2.5
            and page.value(skipped, gpu="3") >= first.value(skipped, gpu="3") + 3
            and all(page.value("gpu_read_stalled_seconds", gpu=gpu) == 0 for gpu in others)
            and all(page.value(SM_SECONDS, gpu=gpu) > first.value(SM_SECONDS, gpu=gpu) + 0.5 for gpu in others)
        )
    )
    assert withdrawn(page, 3)
    assert page.value("gpu_devices_visible") == 7
    assert (exporter.status("/readyz"), exporter.status("/healthz")) == (200, 200)
    driver.unblock(3)
    # The GPM sample from before covers the time in between: nothing of the integral is lost.
    exporter.until(
        lambda page: (
            states(page) == up(8)
            and page.values(SM_SECONDS, gpu="3") == pytest.approx(page.values(SM_SECONDS, gpu="4"), abs=1)
        )
    )


def test_a_wedged_driver_affects_no_scrape(start: Start, gpus: Drive) -> None:
    """If a GPU hangs and the driver has a global lock, no GPU is up and the node is not ready, but /healthz is fine."""
    driver = gpus(8)
    driver.lock("driver")
    exporter = start(driver)
    assert exporter.status("/readyz") == 200
    driver.block(3)
    stalled = dict.fromkeys(range(8), "stalled")
    page = exporter.until(lambda page: states(page) == stalled and all(withdrawn(page, gpu) for gpu in range(8)))
    assert (exporter.status("/readyz"), exporter.status("/healthz")) == (503, 200)
    assert page.value("gpu_devices_visible") == 0
    made = "gpu_exporter_snapshot_timestamp_seconds"
    exporter.until(lambda later: later.value(made) > page.value(made) + 1 and bool(later.values("process_open_fds")))
    driver.unblock(3)
    exporter.until(lambda page: states(page) == up(8) and profiled(page) == {"up"})
    assert exporter.status("/readyz") == 200


@pytest.mark.parametrize(("lock", "after"), [("gpu", "up"), ("driver", "source_lost")])
def test_a_hanging_call_about_no_gpu(start: Start, gpus: Drive, lock: str, after: str) -> None:
    """The number of GPUs is never returned: they are read on, or wait for it, and none of them is to blame."""
    driver = gpus(2)
    driver.lock(lock)
    exporter = start(driver)
    waits = driver.waiting()
    driver.delay("Count", 3600)
    made, found = "gpu_exporter_snapshot_timestamp_seconds", set[str]()
    first = exporter.until(lambda page: waits(), 30)

    def settled(page: Page) -> bool:
        found.update(states(page).values())
        later = page.value(made) > first.value(made) + 3
        return later and states(page) == dict.fromkeys(range(2), after)

    exporter.until(settled, 30)
    assert found <= {"up", after}
    assert "stuck in a driver call" not in exporter.log.read_text()
    driver.unset("Delay.Count")
    exporter.until(lambda page: states(page) == up(2), 30)


@pytest.mark.parametrize(("lock", "stuck"), [("gpu", {3}), ("driver", set(range(8)))])
def test_ends_on_sigterm_while_wedged(start: Start, gpus: Drive, lock: str, stuck: set[int]) -> None:
    """A thread that is stuck in the driver does not delay the exit."""
    driver = gpus(8)
    driver.lock(lock)
    exporter = start(driver)
    driver.block(3)
    exporter.until(lambda page: {gpu for gpu, state in states(page).items() if state == "stalled"} == stuck)
    assert exporter.stop() == 0


@pytest.mark.parametrize(("lock", "stuck"), [("gpu", {2}), ("driver", set(range(8)))])
def test_starts_with_a_gpu_that_is_wedged(start: Start, gpus: Drive, lock: str, stuck: set[int]) -> None:
    """A GPU that hangs before the start is down and has no identity until it answers."""
    driver = gpus(8)
    driver.lock(lock)
    driver.block(2)
    exporter = start(
        driver, until=lambda page: {gpu for gpu, state in states(page).items() if state == "stalled"} >= {2}
    )
    page = exporter.until(lambda page: page.value("gpu_devices_visible") == 8 - len(stuck))
    assert page.value("gpu_devices_expected") == 8
    assert not page.values("gpu_info", gpu="2")
    driver.unblock(2)
    exporter.until(lambda page: states(page) == up(8) and len(page.values("gpu_info")) == 8)


def test_starts_while_the_library_hangs(serve: Serve, driver: FakeDriver) -> None:
    """The start does not wait for a library that hangs; the exporter uses it once it answers."""
    driver.delay("Init", 600)
    exporter = Watched(serve("--interval", "200ms", env=driver.environment))
    assert exporter.page().value("gpu_exporter_source_up") == 0
    assert (exporter.status("/readyz"), exporter.status("/healthz")) == (503, 200)
    driver.unset("Delay.Init")
    exporter.until(lambda page: states(page) == up(1))


# --- GPUs that are lost, come and go --------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "reason"), [("lose", "lost"), ("require_reset", "reset_required")])
def test_a_lost_gpu_affects_no_other(start: Start, gpus: Drive, fault: str, reason: str) -> None:
    """If one of eight GPUs falls off the bus or needs a reset, it is down with the reason, and recovers by itself."""
    driver = gpus(8)
    exporter = start(driver)
    getattr(driver, fault)(5)
    page = exporter.until(lambda page: states(page) == up(8, gpu5=reason) and withdrawn(page, 5))
    assert (page.value("gpu_devices_visible"), page.value("gpu_devices_expected")) == (7, 8)
    assert page.value("gpu_exporter_collection_failures_total", gpu="5") >= 1
    assert page.value("gpu_exporter_source_up") == 1
    driver.restore(5)
    back = exporter.until(lambda page: states(page) == up(8) and profiled(page) == {"up"})
    assert back.value("gpu_devices_visible") == 8


def test_all_gpus_lost(start: Start, gpus: Drive) -> None:
    """If every GPU is lost, the library is reopened, because only that may find them."""
    driver = gpus(2)
    exporter = start(driver)
    with driver.batch():
        driver.lose(0)
        driver.lose(1)
        driver.fail("Init", 9)
    exporter.until(lambda page: states(page) == dict.fromkeys(range(2), "lost"))
    exporter.until(lambda page: page.value("gpu_exporter_source_up") == 0)
    with driver.batch():
        driver.restore(0)
        driver.restore(1)
        driver.unset("Init")
    exporter.until(lambda page: states(page) == up(2) and profiled(page) == {"up"})


def test_a_container_that_lost_its_devices(start: Start, gpus: Drive) -> None:
    """All GPUs stop to answer at the same moment: the source is down, and no GPU is blamed or drained."""
    driver = gpus(2)
    exporter = start(driver)
    with driver.batch():
        driver.answer_unknown(0)
        driver.answer_unknown(1)
    page = exporter.until(lambda page: states(page) == dict.fromkeys(range(2), "source_lost"))
    assert page.value("gpu_exporter_source_up") == 0
    assert page.value("gpu_exporter_source_down_reason", reason="unknown") == 1
    assert page.values("gpu_health_state") == [0] * 6
    assert not page.values("gpu_health_reason")
    answer = exporter.get("/api/v1/node")[1].decode()
    node = json.loads(answer)
    found = evidence.judge(answer, node["node"], node["boot_id"], degraded=True)
    assert (found.finding, found.faults) == (evidence.NodeFinding.UNKNOWN, ())
    driver.restore(1)
    page = exporter.until(lambda page: states(page) == {0: "unknown", 1: "up"})
    assert page.value("gpu_exporter_source_up") == 1
    assert page.value("gpu_health_reason", gpu="0", reason="no_answer", action="drain") == 1


def test_gpus_appear_and_vanish(start: Start, gpus: Drive) -> None:
    """GPUs that are added are read; one that vanishes is down and still expected."""
    driver = gpus(2)
    exporter = start(driver)
    driver.count(4)
    page = exporter.until(lambda page: states(page) == up(4) and profiled(page) == {"up"})
    assert (page.value("gpu_devices_visible"), page.value("gpu_devices_expected")) == (4, 4)
    with driver.batch():
        driver.lose(3)  # an earlier handle
        driver.count(3)
    page = exporter.until(lambda page: states(page) == up(4, gpu3="gone") and withdrawn(page, 3))
    assert (page.value("gpu_devices_visible"), page.value("gpu_devices_expected")) == (3, 4)


# --- the library ----------------------------------------------------------------------------------------------------


def test_driver_reload(start: Start, gpus: Drive) -> None:
    """The driver is reloaded and its counters restart at zero: those of gpu-exporter continue, without a restart."""
    driver = gpus(8)
    driver.set("PowerUsage", 0)  # with which energy rises between two reads
    exporter = start(driver)
    before = exporter.page()
    energy = "gpu_energy_joules_total"
    assert before.value(energy, gpu="7") == 2455.539
    driver.unload()
    lost = dict.fromkeys(range(8), "source_lost")
    page = exporter.until(lambda page: states(page) == lost and all(withdrawn(page, gpu) for gpu in range(8)))
    assert page.value("gpu_exporter_source_up", source="nvml") == 0
    assert (page.value("gpu_devices_visible"), page.value("gpu_devices_expected")) == (0, 8)
    assert page.values("gpu_exporter_build_info") == [1]
    assert (exporter.status("/readyz"), exporter.status("/healthz")) == (503, 200)
    with driver.batch():
        driver.set("FieldValues.83", 1000)
        driver.load()
    page = exporter.until(lambda page: states(page) == up(8) and profiled(page) == {"up"})
    assert page.value("gpu_exporter_source_up") == 1
    classic = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total"  # the parser adds the suffix
    assert page.values(classic) == [1000] * 8
    assert page.values(energy) == [2456.539] * 8
    assert page.value(SM_SECONDS, gpu="7") > before.value(SM_SECONDS, gpu="7")
    assert page.value(SM_ACTIVE, gpu="7") == 0.96


def test_gpu_missing_after_driver_reload(start: Start, gpus: Drive) -> None:
    """After a reload, one of four GPUs is gone and the others have new indices: each keeps its UUID and stays up."""
    driver = gpus(4)
    exporter = start(driver)
    driver.unload()
    exporter.until(lambda page: page.value("gpu_exporter_source_up") == 0)
    with driver.batch():
        for index in (1, 2):
            for key, value in identity(index + 1).items():
                driver.set(key, value, index)
        driver.count(3)
        driver.load()

    def by_uuid(page: Page) -> dict[str, tuple[str, float]]:
        return {labels["UUID"]: (labels["gpu"], up) for name, labels, up in page.samples if name == "gpu_up"}

    uuids = [str(identity(gpu)["UUID"]) for gpu in range(4)]
    indices_and_up = [("0", 1), ("1", 0), ("1", 1), ("2", 1)]
    wanted = dict(zip(uuids, indices_and_up, strict=True))
    first = exporter.until(lambda page: by_uuid(page) == wanted)
    made, broken = "gpu_exporter_snapshot_timestamp_seconds", []

    def later(page: Page) -> bool:
        if by_uuid(page) != wanted:
            broken.append(by_uuid(page))
        return page.value(made) > first.value(made) + 3

    page = exporter.until(later)
    assert not broken
    assert page.value("gpu_down_reason", UUID=uuids[1], reason="gone") == 1
    failures = "gpu_exporter_collection_failures_total"
    assert page.value(failures, UUID=uuids[3]) == first.value(failures, UUID=uuids[3])


# --- fields ---------------------------------------------------------------------------------------------------------

OUTCOMES = {1: (3, "not_supported"), 2: (4, "no_permission"), 3: (999, "unknown"), 4: (15, "lost")}
OUTCOMES |= {5: (16, "reset_required")}


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("PowerUsage", {"DCGM_FI_DEV_POWER_USAGE"}),
        ("FieldValues.186", {"DCGM_FI_DEV_POWER_USAGE_INSTANT"}),
        ("Gpm.2", {SM_ACTIVE, SM_SECONDS}),
    ],
)
def test_outcomes_stay_apart(start: Start, gpus: Drive, key: str, names: set[str]) -> None:
    """Each of the five errors of a field removes only the field or its GPU, and is exposed as the reason."""
    driver = gpus(6)
    for gpu, (code, _) in OUTCOMES.items():
        driver.fail(key, code, gpu)
    metric = min(names)
    failures = "gpu_exporter_field_failures_total"
    exporter = start(
        driver,
        until=lambda page: (
            states(page) == up(6, gpu4="lost", gpu5="reset_required")
            and sum(page.values(failures, gpu="3", metric=metric, reason="unknown")) >= 3
        ),
    )
    page = exporter.until(lambda page: names <= families(page, 0))
    for gpu in (1, 2, 3):
        extra = {failures} if gpu == 3 else set()
        assert families(page, gpu) - extra == families(page, 0) - names
    unsupported = {
        (labels["gpu"], labels["reason"], value)
        for name, labels, value in page.samples
        if name == "gpu_metric_supported" and labels["metric"] == metric
    }
    assert unsupported == {("1", "not_supported", 0), ("2", "no_permission", 0)}
    assert {labels["gpu"] for name, labels, _ in page.samples if name == failures} == {"3"}
    driver.unset(key, 3)
    exporter.until(lambda page: names <= families(page, 3))


# One GPU for each: values that must be dropped, whatever the call.
ABSURD: list[tuple[str, float, str]] = [
    ("UtilizationRates.gpu", 808, "DCGM_FI_DEV_GPU_UTIL"),
    ("Temperature.0", 4294967295, "DCGM_FI_DEV_GPU_TEMP"),
    ("PowerUsage", 4294967295, "DCGM_FI_DEV_POWER_USAGE"),
    ("Gpm.2", math.nan, SM_ACTIVE),
    ("Gpm.2", math.inf, SM_ACTIVE),
    ("Gpm.2", 1e30, SM_ACTIVE),
    ("Gpm.2", -5, SM_ACTIVE),
    ("Gpm.20", 1e30, "DCGM_FI_PROF_PCIE_TX_BYTES"),
]


def test_absurd_values_are_dropped_and_counted(start: Start, gpus: Drive) -> None:
    """Impossible values are not exposed, do not enter integrals, and affect no other metric."""
    driver = gpus(len(ABSURD))
    exporter = start(driver)
    before = exporter.page()
    with driver.batch():
        for gpu, (key, value, _) in enumerate(ABSURD):
            driver.set(key, value, gpu)
    rejected = "gpu_samples_rejected_total"
    page = exporter.until(
        lambda page: all(
            sum(page.values(rejected, gpu=str(gpu), metric=metric)) >= 3 for gpu, (*_, metric) in enumerate(ABSURD)
        )
    )
    assert len(page.values(rejected)) == len(ABSURD)
    for gpu, (*_, metric) in enumerate(ABSURD):
        assert families(before, gpu) - families(page, gpu) == {metric}
    with driver.batch():
        for gpu, (key, *_) in enumerate(ABSURD):
            driver.unset(key, gpu)
    back = exporter.until(lambda page: all(metric in families(page, gpu) for gpu, (*_, metric) in enumerate(ABSURD)))
    assert {round(value, 3) for value in back.values(SM_ACTIVE)} == {0.96}
    # The time in which the value was absurd is not in the integral.
    assert 0 < back.value(SM_SECONDS, gpu="4") < back.value(SM_SECONDS, gpu="0")


# --- profiling ------------------------------------------------------------------------------------------------------


def test_gpm_at_the_shortest_interval(start: Start, driver: FakeDriver) -> None:
    """The driver returns a tenth of the value for windows below 100 ms: at an interval of 100 ms, none is used."""
    exporter = start(driver, "--interval", "100ms")
    seen: list[float] = []

    def long_enough(page: Page) -> bool:
        seen.extend(page.values(SM_ACTIVE))
        return page.value(SM_SECONDS) > 2.5

    exporter.until(long_enough)
    assert set(seen) == {0.96}


def test_gpm_when_the_driver_is_late(start: Start, driver: FakeDriver) -> None:
    """After a slow sample, the driver's window is shorter than the exporter's: such a value is not used either."""
    exporter = start(driver, "--interval", "150ms")
    for _ in range(3):
        for delay in (0.1, 0):
            driver.delay("GpmSampleGet", delay)
            total = exporter.page().value(SM_SECONDS)
            page = exporter.until(
                lambda page, total=total: page.value(SM_SECONDS) > total + 0.4 and page.values(SM_ACTIVE)  # type: ignore[misc]
            )
            assert page.value(SM_ACTIVE) == 0.96


def test_gauge_is_the_rate_of_the_integral(start: Start, driver: FakeDriver) -> None:
    """SM activity steps from 0 to 100 %: the integral is exact, and the gauge is its rate over the window."""
    window, interval = 1.0, 0.25
    driver.set("Gpm.2", steps((0, time.time() - 60)))
    exporter = start(driver, "--interval", f"{interval}s", "--gauge-window", f"{window}s")
    begin = time.time() + 1
    driver.set("Gpm.2", steps((0, begin - 60), (100, begin)))
    seen: list[tuple[float, float, float]] = []

    def long_enough(page: Page) -> bool:
        at = page.value("gpu_last_read_timestamp_seconds")
        seen.append((at, page.value(SM_SECONDS), page.value(SM_ACTIVE)))
        return at > begin + 1.5 * (window + interval) and seen[-1][2] == 1

    exporter.until(long_enough)
    interval = max(interval, *(after[0] - before[0] for before, after in pairwise(seen)))

    def exact(at: float, total: float, gauge: float) -> bool:
        # The window begins at a read, so it may be longer than set, by up to an interval.
        least, most = min(total / (window + interval), 1) - 0.05, min(total / window, 1) + 0.05
        return abs(total - max(0.0, at - begin)) <= 0.05 and least <= gauge <= most

    # A busy machine may interrupt a read between the driver's sample and its time.
    assert sum(exact(*each) for each in seen) >= 0.75 * len(seen)


# --- a driver that is not there at the start ------------------------------------------------------------------------


def without_library(driver: FakeDriver) -> None:
    """Replace the library by an empty file, which also hides the real one of this machine."""
    (driver.directory / "libnvidia-ml.so.1").write_bytes(b"")


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (without_library, "libnvidia-ml.so.1"),
        (FakeDriver.unload, "modprobe nvidia"),
        (lambda driver: driver.fail("Init", 18), "reboot"),
        (lambda driver: driver.count(0), "no GPU"),
    ],
    ids=["no library", "not loaded", "version mismatch", "no GPU"],
)
def test_start_without_driver(driver: FakeDriver, fault: Callable[[FakeDriver], None], named: str) -> None:
    """`serve` exits immediately with code 1 and one line that names the cause."""
    fault(driver)
    ended = run("serve", "--address", "127.0.0.1:0", env=driver.environment)
    assert ended.returncode == 1
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith("gpu-exporter: ")
    assert named in line
