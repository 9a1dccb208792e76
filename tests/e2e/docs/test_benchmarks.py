"""Short benchmarks on the fake driver."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from urllib.error import HTTPError

import pytest

from benchmarks import cost, perturbation
from benchmarks.exporter import TICKS, exporter_command, free_port, process_tree, running
from benchmarks.peers import PEERS, Peer
from benchmarks.perturbation import Turns, Work, pairs, slowdowns
from tests.support.fakes.driver import FakeDriver
from tests.support.stand_ins import spawning_exporter
from tests.support.tools import until

# What a program of the stand-in uses, and by how much /proc rounds the CPU of a few processes.
WORK_SECONDS, WORK_MIB, ROUNDED = 0.1, 24, 6 / TICKS


def test_cost(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has plausible numbers for one GPU of the fake driver."""
    monkeypatch.setattr(cost, "WARM_SECONDS", 2.0)
    monkeypatch.setattr(cost, "SCRAPES", 50)
    port = free_port()
    command = exporter_command(port, *cost.SETS["full"])
    found = cost.measure("full", command, port, 2, boards=1, env=driver.environment)

    assert 0 <= found.cpu < 0.5
    assert 10 < found.rss_mib < 100
    assert found.samples > 100
    assert found.body_bytes > 5 * found.gzip_bytes > 0
    assert 0 < found.alone.p50 <= found.alone.p99 <= found.alone.worst
    assert found.rendering_ms > 0
    assert found.ticks_skipped == 0


def spawning(port: int) -> list[str]:
    """Return the command of an exporter that runs a program for each scrape, and that has a daemon."""
    return [sys.executable, spawning_exporter.__file__, str(port), str(WORK_SECONDS), str(WORK_MIB)]


def test_processes_that_ended_and_daemons_count() -> None:
    """Each of them once: not more than the kernel says, when everything has ended."""
    port = free_port()
    waited_for = getrusage(RUSAGE_CHILDREN)
    with running(spawning(port), port) as exporter:
        start = exporter.cpu_seconds()
        for _ in range(3):
            exporter.page()
        total, tree = exporter.cpu_seconds(), process_tree(exporter.process.pid)
        ((pid, times),) = ((pid, each) for pid, each in tree.items() if pid != exporter.process.pid)
        memory = exporter.rss_mib()
    ended = getrusage(RUSAGE_CHILDREN)
    kernel = ended.ru_utime + ended.ru_stime - waited_for.ru_utime - waited_for.ru_stime

    assert total - start >= 3 * WORK_SECONDS - ROUNDED
    assert times.own / TICKS >= WORK_SECONDS - ROUNDED
    assert total - times.own / TICKS <= kernel + ROUNDED
    assert memory >= WORK_MIB
    until(lambda: state(pid) in ("", "Z"), what="the daemon ends, too")


def test_what_runs_beside_an_exporter_counts() -> None:
    """As DCGM's host engine, which is started first."""
    port, other = free_port(), free_port()
    with running(spawning(port), port, beside={other: spawning(other)}) as exporter:
        assert len(process_tree(*exporter.pids)) == 4
        assert exporter.cpu_seconds() >= 3 * WORK_SECONDS - ROUNDED  # two daemons, and the first scrape
        assert exporter.rss_mib() >= 2 * WORK_MIB


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Peer:
    """Return a peer whose program is a script, which a variable names."""
    path = folder / "stand-in"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("STAND_IN", str(path))
    return Peer("a peer", ("stand-in",), lambda port, _: spawning(port))


def test_a_peer_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU of the programs that it runs, of which there are none without a scrape."""
    monkeypatch.setattr(cost, "WARM_SECONDS", 0.5)
    monkeypatch.setattr(cost, "SCRAPES", 10)
    found = cost.measured(stand_in(tmp_path, monkeypatch, 'exec "$@"'), 1, 2)

    assert isinstance(found, cost.Cost)
    assert (found.name, found.gpus, found.samples) == ("a peer", 2, 1)
    assert found.cpu > found.idle_cpu >= 0
    assert found.rss_mib >= WORK_MIB
    assert found.start_seconds > 0


def test_a_peer_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its last words."""
    found = cost.measured(stand_in(tmp_path, monkeypatch, "echo starting >&2; echo no GPU >&2; exit 3"), 1, 1)

    assert isinstance(found, cost.NotMeasured)
    assert re.fullmatch(r"does not answer on port \d+, exit code 3: no GPU", found.why)


def test_a_peer_that_is_not_installed_says_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program that it needs: those in PATH, and those that a variable names."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("NVIDIA_SMI", "/opt/nvidia-smi")
    why = {peer.name: peer.missing() for peer in PEERS}

    assert why["nvidia_gpu_exporter, nvidia-smi"] == (
        "nvidia_gpu_exporter is not in PATH, and NVIDIA_GPU_EXPORTER is not set"
    )
    assert why["dcgm-exporter, 1 s, and nv-hostengine"] == (
        "dcgm-exporter is not in PATH, and DCGM_EXPORTER is not set;"
        " nv-hostengine is not in PATH, and NV_HOSTENGINE is not set"
    )
    assert not any(peer.present() for peer in PEERS if peer.programs and not peer.module)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: str(peer.name))
def test_a_peer_serves_on_its_port(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are those that the variables name; an engine has a port of its own, which the exporter knows."""
    for name in (*peer.programs, "nv-hostengine"):
        monkeypatch.setenv(name.upper().replace("-", "_"), f"/opt/{name}")
    command, beside = peer.commands(9400)

    assert "9400" in " ".join(command)
    assert not peer.programs or command[0] == f"/opt/{peer.programs[0]}"
    assert [each[0] for each in beside.values()] == ["/opt/nv-hostengine"] * peer.engine
    assert all(f"127.0.0.1:{port}" in command and str(port) in each for port, each in beside.items())


def test_allocations(driver: FakeDriver) -> None:
    """A collection frees what it allocates."""
    for _ in range(3):  # on a busy machine, the start may take longer than the benchmark waits for it
        found = cost.allocations((), driver.environment, ticks=2)
        if abs(found["blocks_kept"]) < 5_000:
            break

    assert 1 < found["peak_kib"] < 10_000
    assert abs(found["blocks_kept"]) < 5_000


def test_turns(driver: FakeDriver) -> None:
    """An exporter runs only during its turn."""
    port = free_port()
    with running(exporter_command(port, "--interval", "100ms"), port, driver.environment) as exporter:
        turns = Turns({"1 s": exporter})
        try:
            assert state(exporter.process.pid) == "T"
            with turns.turn("off"):
                assert state(exporter.process.pid) == "T"
            with turns.turn("1 s"):
                assert state(exporter.process.pid) != "T"
                assert "gpu_up" in exporter.page()
            assert state(exporter.process.pid) == "T"
        finally:
            turns.end()


def state(pid: int) -> str:
    """Return the state of a process in /proc: T is stopped, Z has ended; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_work_runs_the_given_number_of_steps() -> None:
    """More steps take longer."""
    work = Work("hashing", 1)
    try:
        one, many = work.seconds(1), work.seconds(200)
    finally:
        work.end()

    assert many > 5 * one


def test_slowdown_refers_to_the_interval() -> None:
    """A run of 0.2 s contains the work of a whole second; at 100 ms a run is as long as the interval."""
    found = slowdowns({"1 s": [(0.2, 0.21)] * 5, "100 ms": [(0.1, 0.11)] * 5})

    assert {name: each["mean"] for name, each in found.items()} == {
        "1 s": pytest.approx(0.01),
        "100 ms": pytest.approx(0.1),
    }


def test_pairs_are_taken_of_each_condition(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped exporter collects once in each of its turns; the first sample of each round is dropped."""
    monkeypatch.setattr(perturbation, "WARM_SECONDS", 0.5)
    monkeypatch.setattr(perturbation, "ROUNDS", 2)
    port = free_port()
    with running(exporter_command(port), port, driver.environment) as exporter:
        begin, before = time.monotonic(), cost.skipped(exporter.page()) or 0
        turns, work = Turns({"1 s": exporter}), Work("hashing", 1)
        try:
            found = pairs(work, turns, 8)
        finally:
            turns.end()
            work.end()

        def ticks() -> float:
            try:
                skipped = cost.skipped(exporter.page()) or 0
            except HTTPError:  # its page expired while it was stopped
                return 0.0
            return time.monotonic() - begin - skipped + before

        # 2 rounds of 3 turns, and those at both ends; skipped ticks are counted by the next one.
        until(lambda: 6 <= ticks() <= 10, 2, "a tick in each turn")

    assert {name: len(taken) for name, taken in found.items()} == {"noise": 4, "1 s": 4}
    assert all(0 < took < 10 for taken in found.values() for both in taken for took in both)
