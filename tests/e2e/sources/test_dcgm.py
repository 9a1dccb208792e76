"""A host engine that fails under a running exporter affects only what it reads, and the exporter recovers."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.pipeline.test_faults import Watched, states, withdrawn
from tests.e2e.pipeline.test_hand_over import bearer
from tests.support.fakes.hostengine import FakeHostengine
from tests.support.tools import LIMIT, until

TEMPERATURE, SM_SECONDS = "DCGM_FI_DEV_GPU_TEMP", "gpu_sm_active_seconds_total"
READ_AT = "gpu_last_read_timestamp_seconds"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeHostengine]:
    """A fake host engine with two GPUs."""
    fake = FakeHostengine(tmp_path / "engine", gpus=2)
    fake.start()
    yield fake
    fake.kill()


def profiled(page: Page) -> bool:
    """Return whether both GPUs are up with profiling."""
    return set(states(page).values()) == {"up"} and len(page.values(SM_SECONDS)) == 2


@pytest.fixture
def exporter(serve: Serve, engine: FakeHostengine) -> Watched:
    """An exporter that reads the host engine."""
    started = Watched(serve("--interval", "200ms", "--kernel-log", "none", *engine.flags, env=engine.environment))
    started.until(profiled)
    return started


@contextmanager
def scraped(exporter: Exporter) -> Iterator[None]:
    """Scrape all the time on a thread, at least once: each scrape succeeds."""
    scrapes = 0
    wrong: list[object] = []
    done = threading.Event()

    def scrape() -> None:
        nonlocal scrapes
        connection = HTTPConnection("127.0.0.1", exporter.port, timeout=LIMIT)
        while not done.is_set():
            try:
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    wrong.append(answer.status)
            except OSError as error:
                wrong.append(error)
            scrapes += 1
            done.wait(0.02)
        connection.close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
        until(lambda: scrapes or wrong, what="a scrape")
    finally:
        done.set()
        thread.join()
    assert not wrong


def down(reason: str) -> Callable[[Page], bool]:
    """Return a condition: the source is down for this reason, and no GPU has values of the device."""

    def holds(page: Page) -> bool:
        return (
            page.values("gpu_exporter_source_up", source="dcgm") == [0]
            and page.values("gpu_exporter_source_down_reason", source="dcgm", reason=reason) == [1]
            and all(withdrawn(page, gpu) for gpu in (0, 1))
        )

    return holds


def totals(page: Page) -> float:
    """Return the integral of both GPUs."""
    return sum(page.values(SM_SECONDS))


def recovers(exporter: Watched, before: float, timeout: float = 45) -> None:
    """Wait until both GPUs are back with profiling and larger counters."""
    exporter.until(lambda page: profiled(page) and totals(page) > before, timeout)


def test_killed_and_started_again(exporter: Watched, engine: FakeHostengine) -> None:
    """After kill -9, the source is down with the reason and without series; restarting the engine is enough."""
    before = totals(exporter.page())
    with scraped(exporter):
        engine.kill()
        exporter.until(down("no_connection"))
        engine.start()
        recovers(exporter, before)
    log = exporter.log.read_text()
    assert "source dcgm is down: DCGM: host engine at" in log
    assert "source dcgm answers" in log
    assert "Traceback" not in log
    assert exporter.stop() == 0


def test_hanging_host_engine(exporter: Watched, engine: FakeHostengine) -> None:
    """With SIGSTOP, the source is down, no scrape waits, and SIGCONT is enough to recover."""
    before = totals(exporter.page())
    with scraped(exporter):
        engine.signal(signal.SIGSTOP)
        exporter.until(down("stalled"))
        engine.signal(signal.SIGCONT)
        recovers(exporter, before)
    assert "Traceback" not in exporter.log.read_text()


def test_ends_while_it_hangs(exporter: Watched, engine: FakeHostengine) -> None:
    """SIGTERM takes effect also during a call that hangs."""
    engine.signal(signal.SIGSTOP)
    exporter.until(down("stalled"))
    assert exporter.stop() == 0
    engine.signal(signal.SIGCONT)


@pytest.mark.parametrize("command", ["check", "doctor", "diagnose", "once"])
def test_commands_while_it_hangs(engine: FakeHostengine, command: str) -> None:
    """They name the host engine, and advise nothing that ends work on the GPUs."""
    engine.signal(signal.SIGSTOP)
    ended = run(command, *engine.flags, env=engine.environment)
    engine.signal(signal.SIGCONT)
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    assert "host engine" in said
    assert not re.search("reboot|drain|lost", said, re.IGNORECASE), said


def test_a_gpu_is_removed_and_returns(exporter: Watched, engine: FakeHostengine) -> None:
    """Other GPUs are not affected."""
    before = totals(exporter.page())
    with scraped(exporter):
        engine.remove(1)
        exporter.until(lambda page: states(page)[0] == "up" and states(page)[1] != "up" and withdrawn(page, 1))
        assert exporter.page().value(TEMPERATURE, gpu="0") == 42
        engine.restore(1)
        recovers(exporter, before)
    assert exporter.page().values("gpu_exporter_source_up") == [1]


def test_a_gpu_is_added(exporter: Watched, engine: FakeHostengine) -> None:
    """A host engine that restarts with another GPU shows it."""
    from tests.support.fakes.hostengine import gpu

    engine.kill()
    with engine.changed() as state:
        state["gpus"].append(gpu(2))
    engine.start()
    exporter.until(lambda page: states(page) == {0: "up", 1: "up", 2: "up"}, 30)


def test_xids_are_counted(exporter: Watched, engine: FakeHostengine) -> None:
    """Each XID counts once, by code, on its GPU."""
    engine.xid(79, 79, 13, on=1)
    page = exporter.until(lambda page: page.values("gpu_xid_events_total", gpu="1", xid="13") == [1])
    assert page.value("gpu_xid_events_total", gpu="1", xid="79") == 2
    assert page.values("gpu_xid_events_total", gpu="0", xid="79") == [0]


def test_started_before_the_host_engine(serve: Serve, engine: FakeHostengine) -> None:
    """Without a host engine, the start fails with one line, as with any other source."""
    engine.kill()
    ended = run("once", *engine.flags, env=engine.environment)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "is nv-hostengine running there" in ended.stderr


def test_no_gpus(tmp_path: Path) -> None:
    """A host engine without a driver answers, and has no GPUs."""
    fake = FakeHostengine(tmp_path / "none", gpus=0)
    fake.start()
    try:
        ended = run("once", *fake.flags, env=fake.environment)
    finally:
        fake.kill()
    assert ended.returncode == 1
    assert "lists no GPU" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_flags_of_dcgm_need_dcgm() -> None:
    """Otherwise a user would assume that the host engine is read."""
    ended = run("once", "--source", "nvml", "--dcgm-hostengine", "localhost:5555")
    assert ended.returncode == 2
    assert "--dcgm-hostengine needs --source dcgm" in ended.stderr


def test_release_and_resume(serve: Serve, engine: FakeHostengine, tmp_path: Path) -> None:
    """A release closes the connection with all watches; a resume creates them again, and counters continue."""
    token = tmp_path / "token"
    flags = ("--interval", "200ms", "--kernel-log", "none", "--token-file", str(token), *engine.flags)
    exporter = Watched(serve(*flags, env=engine.environment))
    before = totals(exporter.until(profiled))
    assert exporter.ask("POST", "/-/release?for=60", bearer(token))[0] == 200
    exporter.until(lambda page: page.values("gpu_exporter_released") == [1] and withdrawn(page, 0))
    assert exporter.ask("POST", "/-/resume", bearer(token))[0] == 200
    recovers(exporter, before)


def test_switches_and_cpus(serve: Serve, engine: FakeHostengine) -> None:
    """NVSwitches and CPUs are exposed once, with the labels of dcgm-exporter and no GPU labels."""
    with engine.changed() as state:
        state["switches"] = [{"id": 0, "links": [], "fields": {"858": 47}}]
        state["cpus"], state["cores"] = [{"id": 1, "fields": {"1130": 180.5}}], []
    flags = ("--interval", "200ms", "--kernel-log", "none", "--metrics", "full", "--node-name", "here", *engine.flags)
    exporter = Watched(serve(*flags, env=engine.environment))
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT")))
    beside = [(labels, value) for name, labels, value in page.samples if "NVSWITCH" in name or "_CPU_" in name]
    assert beside == [({"nvswitch": "nvswitch0", "Hostname": "here"}, 47), ({"cpu": "1", "Hostname": "here"}, 180.5)]
    assert not [labels for name, labels, _ in page.samples if "NVSWITCH" in labels.get("metric", "")]


def test_other_fields_under_load(serve: Serve, engine: FakeHostengine, tmp_path: Path) -> None:
    """The fields file is replaced eight times: no failed scrape, no lost series, no sample that counts twice.

    No group is left over in the host engine.
    """
    chosen, few = tmp_path / "fields.csv", "DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_PROF_SM_ACTIVE, gauge, sm\n"
    chosen.write_text(few)
    engine.set(240, 0, on=0)
    # The series of a GPU are withdrawn after three intervals, which a busy machine must not take for one.
    given = ("--interval", "3s", "--kernel-log", "none", "-f", str(chosen), *engine.flags)
    exporter = Watched(serve(*given, env=engine.environment))
    exporter.until(lambda page: profiled(page) and len(page.values(TEMPERATURE)) == 2)
    first, missing = exporter.page(), 0
    before = totals(first)

    def shown(page: Page) -> bool:
        return bool(page.values("DCGM_FI_DEV_POWER_VIOLATION"))

    def hidden(page: Page) -> bool:
        return not shown(page)

    with scraped(exporter):
        for turn in range(8):
            more = f"DCGM_FI_DEV_POWER_VIOLATION, gauge, {turn}\n"
            chosen.write_text(few + more if turn % 2 else few)
            exporter.process.send_signal(signal.SIGHUP)
            page = exporter.until(shown if turn % 2 else hidden)
            missing += len(page.values(TEMPERATURE)) != 2 or len(page.values("DCGM_FI_PROF_SM_ACTIVE")) != 2
    recovers(exporter, before)
    engine.set(150, 77)
    page = exporter.until(lambda page: 77 in page.values(TEMPERATURE))
    lasted = sum(page.values(READ_AT)) - sum(first.values(READ_AT))
    assert (totals(page) - before) / lasted < 0.95 * 1.2
    assert not missing
    log = exporter.log.read_text()
    assert "the changed metrics are not read yet" not in log
    assert " is down" not in log
