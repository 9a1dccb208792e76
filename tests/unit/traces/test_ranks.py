"""Ranks of a job, each analysed by itself: equal results however they run, lost workers, wrong sets of files."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import ranks
from gpu_exporter.traces.analysis import analyze, combined
from gpu_exporter.traces.ranks import Crew, RankWork, Start, analysed, in_process, in_processes, summaries
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.summary import RankSummary
from gpu_exporter.version import __version__
from tests.support.simulated_jobs import Job
from tests.support.traces import SyntheticTrace

HOUR_US = 3_600_000_000


def write_ranks(folder: Path, count: int) -> list[str]:
    """Write the traces of a job. The GPU of rank 1 is slower."""
    files = []
    for rank in range(count):
        trace = SyntheticTrace(rank=rank, world_size=count)
        for number in range(4):
            at, slower = 10_000 * number, 2000 * (rank == 1)
            trace.step(number, at, 10_000)
            trace.host(f"train.py(7): work{rank}", at, 15)
            trace.device(at + 20, 3000 + slower, launched=at)
            trace.host("cudaStreamSynchronize", at + 20, 9970, "cuda_runtime")
            args = {"Collective name": "allreduce", "Seq": number, "Group size": count, "Process Group Name": "0"}
            trace.device(at + 3030 + slower, 5000 - slower, "ncclDevKernel", launched=at + 5, stream=9, args=args)
        files.append(str(trace.write(folder / f"rank{rank}.json.gz")))
    return files


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_summary_is_all_that_the_analysis_needs(tmp_path: Path, count: int) -> None:
    """Results are those of the traces, also after the summaries were sent to another process."""
    files = write_ranks(tmp_path, count)
    whole = analyze([read(file) for file in files], details=True)
    sent = pickle.loads(pickle.dumps(analysed(files, details=True, jobs=1)))
    assert combined(sent) == whole
    assert set(whole.details) == {(rank, 0) for rank in range(count)}
    assert not analyze([read(file) for file in files]).details
    assert whole.straggler is None if count == 1 else whole.straggler and whole.straggler.rank == 1


def test_a_summary_is_small(tmp_path: Path) -> None:
    """Of each collective it has at most 100 bytes, of kernels nothing that grows with their number."""
    size = []
    for layers in (10, 110):
        made = Job(ranks=1, layers=layers, steps=6, overlaps=False).traces()[0]
        size.append(len(pickle.dumps(analysed([str(made.write(tmp_path / "rank0.json"))]))))
    assert size[0] < 12_000
    assert size[1] - size[0] < 100 * 100 * 6


def test_progress_in_one_process_is_shown_after_each_rank(tmp_path: Path) -> None:
    files = write_ranks(tmp_path, 3)
    seen: list[str] = []
    analysed(files, jobs=1, done=seen.append, progress=lambda read, total: seen.append(f"{read / total:.0%}"))
    assert seen == ["100%", files[0], "100%", files[1], "100%", files[2]]


@pytest.mark.slow
def test_processes_give_the_same_results(tmp_path: Path) -> None:
    files = write_ranks(tmp_path, 5)
    done: list[str] = []
    found = analysed(files, jobs=2, done=done.append)
    assert combined(found) == analyze([read(file) for file in files])
    assert sorted(done) == files


class Losing(Executor):
    """Runs tasks at once, and breaks after some, as an executor does whose worker was killed."""

    def __init__(self, tasks: int, error: type[Exception] = BrokenExecutor) -> None:
        self._left, self._error = tasks, error

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._left -= 1
        if self._left == -2:  # the others notice while they are submitted
            raise BrokenExecutor
        if self._left < 0:
            future.set_exception(self._error("lost"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def losing(tasks: Sequence[int], **options: Any) -> Start:
    """Return a start of crews, each of which finishes so many tasks."""

    @contextmanager
    def start(lost: int) -> Iterator[Crew]:
        yield Crew(Losing(tasks[lost], **options), lambda: 1, (KeyError,))

    return start


@pytest.mark.parametrize("tasks", [(0, 9), (1, 1, 9), (2, 0, 1, 9), (3, 0, 0, 1)])
def test_a_lost_worker_loses_no_rank(tmp_path: Path, tasks: Sequence[int]) -> None:
    files = write_ranks(tmp_path, 4)
    found = summaries(files, losing(tasks), lambda _: None, RankWork())
    assert combined(found) == combined(analysed(files))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (losing((2, 0, 0, 0)), "rank2.json.gz: the process that analysed it was killed 4 times"),
        (losing((1,), error=KeyError), "rank1.json.gz: the process that analysed it was killed 4 times"),
        (losing((1,), error=CancelledError), "the connection to the cluster was lost"),
        (losing((1,), error=ImportError), rf"cannot analyse traces \(lost\): install gpu-exporter {__version__}"),
    ],
)  # fmt: skip
def test_what_ends_every_worker_is_named(tmp_path: Path, start: Start, message: str) -> None:
    with pytest.raises(GpuExporterError, match=message):
        summaries(write_ranks(tmp_path, 4), start, lambda _: None, RankWork())


def test_a_cluster_without_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error after a while, which is none here."""

    class Waiting(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Future()

    @contextmanager
    def start(lost: int) -> Iterator[Crew]:
        yield Crew(Waiting(), lambda: 0)

    monkeypatch.setattr(ranks, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ranks, "NO_WORKER_SECONDS", 0.0)
    with pytest.raises(GpuExporterError, match="the cluster has had no worker"):
        summaries(["a"], start, lambda _: None, RankWork())


def test_a_worker_of_another_version(tmp_path: Path) -> None:
    (file,) = write_ranks(tmp_path, 1)
    with pytest.raises(GpuExporterError, match=f"the worker has gpu-exporter {__version__}, this machine 0.0.1"):
        RankWork(version="0.0.1")(file)


def test_workers_find_relative_names(tmp_path: Path) -> None:
    """They are relative to the directory of the caller, and stay as they are in the result."""
    write_ranks(tmp_path, 1)
    assert RankWork(directory=str(tmp_path))("rank0.json.gz").file == "rank0.json.gz"


@pytest.mark.parametrize(
    ("jobs", "size", "count", "expected"),
    [
        (None, 1, 4, None),
        (None, 9 << 20, 4, 3),
        (None, 9 << 20, 1, None),
        (2, 1, 4, 2),
        (8, 1, 4, 4),
        (1, 9 << 20, 4, None),
    ],
)
def test_how_many_processes(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, size: int, count: int, expected: int | None
) -> None:
    """One for each CPU, if the files are large or if they were asked for, but never more than files."""
    asked: list[int] = []

    def processes(at_once: int) -> Start:
        asked.append(at_once)
        return in_process

    def work(*_: object, **__: object) -> Callable[[str], RankSummary]:
        return lambda source: RankSummary(source, None, (), {}, {}, {}, 0)

    monkeypatch.setattr(ranks, "cpus", lambda: 3)
    monkeypatch.setattr(ranks, "in_processes", processes)
    monkeypatch.setattr(ranks, "_size", lambda _: size)
    monkeypatch.setattr(ranks, "RankWork", work)
    monkeypatch.setattr(ranks, "partial", lambda function, **_: function)
    analysed([f"f{number}" for number in range(count)], jobs=jobs)
    assert asked == ([] if expected is None else [expected])


def _rank(folder: Path, name: str, *, at: float = 0, **about: Any) -> str:
    trace = SyntheticTrace(**about)
    trace.device(at + 50, 20)
    return str(trace.write(folder / name, base=1_790_857_026_000_000_000))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([{"rank": 0, "world_size": 2}] * 2, r"0.json and .*1.json are both of rank 0"),
        ([{}, {"rank": 0, "world_size": 2}], r"0.json and .*1.json are both of rank 0"),
        (
            [{"rank": 0, "world_size": 2}, {}, {"rank": 2, "world_size": 4}],
            r"0.json is of a job of 2 ranks.*, .*2.json of a job of 4",
        ),
        ([{}, {"at": 2.5 * HOUR_US}], r"1.json was recorded 2.5 h after .*0.json"),
        ([{"at": 2.5 * HOUR_US}, {}, {"at": HOUR_US}], r"0.json was recorded 1.5 h after .*2.json"),
        ([{}, {"at": 0.9 * HOUR_US}, {"at": 1.8 * HOUR_US}], None),
        ([{"rank": 7, "world_size": 8}, {"rank": 1, "world_size": 8}], None),
    ],
)
def test_files_that_are_not_the_ranks_of_one_run(
    tmp_path: Path, files: Sequence[dict[str, Any]], message: str | None
) -> None:
    """Their names are in the error."""
    names = [_rank(tmp_path, f"{number}.json", **about) for number, about in enumerate(files)]
    if message is None:
        assert len(combined(analysed(names)).ranks) == len(files)
    else:
        with pytest.raises(GpuExporterError, match=message):
            combined(analysed(names))


def test_a_truncated_rank_is_named(tmp_path: Path) -> None:
    """It is analysed up to its end, unless it has no GPU events."""
    whole = Path(_rank(tmp_path, "0.json", rank=0, world_size=2)).read_bytes()
    cut = tmp_path / "1.json"
    Path(_rank(tmp_path, "1.json", rank=1, world_size=2))
    text = cut.read_bytes()
    cut.write_bytes(text[: text.rindex(b"}]") - 3] + b"")
    (tmp_path / "more.json").write_bytes(text.replace(b'"traceEvents": [', b'"traceEvents": [' + _event() * 3)[:-90])
    found = combined(analysed([str(tmp_path / "0.json"), str(tmp_path / "more.json")]))
    assert found.truncated == (str(tmp_path / "more.json"),)
    assert found.to_json()["truncated"] == found.truncated
    cut.write_bytes(whole[: whole.index(b"[", whole.index(b"traceEvents")) + 9])
    with pytest.raises(GpuExporterError, match=r"1\.json: truncated before the first GPU event: copy it again"):
        combined(analysed([str(cut)]))


def _event() -> bytes:
    return b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 9, "args": {"device": 0}}, '


def test_dask_cannot_read_standard_input() -> None:
    with pytest.raises(GpuExporterError, match="-: only this process can read it: leave out --dask"):
        analysed(["-"], dask="tcp://127.0.0.1:1")


def test_processes_are_started_for_half_as_many_after_each_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = []
    for lost in range(3):
        with in_processes(4)(lost) as crew:
            workers.append(crew.workers())
    assert workers == [4, 2, 1]
