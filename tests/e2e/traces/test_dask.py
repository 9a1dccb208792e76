"""`gpu-exporter trace analyze --dask`: on a cluster of two worker processes, one of which is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_exporter.traces.analysis import combined
from gpu_exporter.traces.ranks import RankWork, analysed, on_dask, summaries
from gpu_exporter.traces.summary import RankSummary
from tests.conftest import run
from tests.unit.traces.test_ranks import write_ranks

pytestmark = pytest.mark.slow
RANKS = 24


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a scheduler with two workers."""
    from distributed import LocalCluster  # slow to import, which each worker of the tests would pay

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as running:
        yield running.scheduler_address


def pids_of(cluster: str) -> list[int]:
    """Return the processes of the workers."""
    from distributed import Client  # slow to import, too

    with Client(cluster) as client:
        return list(client.run(os.getpid).values())


def test_the_command_prints_the_same_with_and_without_a_cluster(tmp_path: Path, cluster: str) -> None:
    write_ranks(tmp_path, RANKS)
    pattern = str(tmp_path / "rank*.json.gz")
    alone, on_cluster = (run("trace", "analyze", "--json", pattern, *more) for more in ((), ("--dask", cluster)))
    assert (on_cluster.returncode, on_cluster.stderr) == (0, "")
    assert on_cluster.stdout == alone.stdout
    assert '"rank": 23' in alone.stdout


def test_a_killed_worker_loses_no_rank(tmp_path: Path, cluster: str) -> None:
    """It is killed when the first rank is done."""
    files = write_ranks(tmp_path, RANKS)
    pids = pids_of(cluster)
    done: list[str] = []

    def kill_one(source: str) -> None:
        if not done:
            os.kill(pids[0], signal.SIGKILL)
        done.append(source)

    found = analysed(files, dask=cluster, done=kill_one)
    assert combined(found) == combined(analysed(files))
    assert sorted(done) == sorted(files)


def counted(source: str) -> RankSummary:
    """Return the summary of a rank, and write a line for each call beside it."""
    with Path(source).with_name("calls").open("a") as file:
        file.write(f"{source}\n")
    return RankWork()(source)


def test_a_rank_that_was_done_is_not_analysed_again(tmp_path: Path, cluster: str) -> None:
    """A worker is killed near the end: only what it was doing is done again."""
    files = write_ranks(tmp_path, RANKS)
    pids = pids_of(cluster)
    done: list[str] = []

    def kill_one(source: str) -> None:
        done.append(source)
        if len(done) == RANKS - 4:
            os.kill(pids[0], signal.SIGKILL)

    found = summaries(files, on_dask(cluster), kill_one, counted)
    assert combined(found) == combined(analysed(files))
    again = len((tmp_path / "calls").read_text().splitlines()) - RANKS
    assert again < RANKS / 4


def test_what_a_worker_cannot_read_is_named(tmp_path: Path, cluster: str) -> None:
    (file,) = write_ranks(tmp_path, 1)
    ran = run("trace", "analyze", "--dask", cluster, file, str(tmp_path / "absent.json"))
    assert (ran.returncode, ran.stderr) == (2, f"gpu-exporter: {tmp_path}/absent.json: No such file or directory\n")


@pytest.mark.parametrize(("address", "why"), [("tcp://127.0.0.1:1", ""), ("scheduler", "has no port: use for example")])
def test_no_scheduler(tmp_path: Path, address: str, why: str) -> None:
    ran = run("trace", "analyze", "--dask", address, *write_ranks(tmp_path, 1))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"gpu-exporter: --dask {address}: {why}")
    assert ran.stderr.count("\n") == 1
