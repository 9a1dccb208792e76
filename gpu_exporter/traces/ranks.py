"""The ranks of a job, each analysed by itself: in this process, in several, or on a Dask cluster.

All of these run the same function in an executor of `concurrent.futures`, and return the same summaries in the order of
the sources. A rank whose worker is lost is analysed again by another.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpu_exporter.host import cgroup
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.analysis import summary
from gpu_exporter.traces.content import Progress, is_stream, is_url
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.summary import RankSummary
from gpu_exporter.version import __version__

DASK_EXTRA = "--dask needs the extra distributed: pip install distributed"
# Below, all files are analysed sooner than other processes have started.
PARALLEL_BYTES = 8 << 20
# So often a rank is analysed again after its worker was lost: something in it may end every worker.
MOST_LOST = 3
CONNECT_SECONDS, NO_WORKER_SECONDS, LOOK_SECONDS = 10, 60.0, 1.0
MOST_ERROR = 300


@dataclass(frozen=True)
class Crew:
    """An executor, and how many workers it has now."""

    executor: Executor
    workers: Callable[[], int]
    # What the executor raises for a task whose workers were lost several times.
    killed: tuple[type[Exception], ...] = ()


# Starts a crew. The argument says how often one was lost before.
Start = Callable[[int], AbstractContextManager[Crew]]
Done = Callable[[str], None]  # called with each source that is done


@dataclass(frozen=True)
class RankWork:
    """How to analyse a source, in whatever process: relative to `directory`, by the version of the caller."""

    details: bool = False
    directory: str = ""
    version: str = __version__

    def __call__(self, source: str, progress: Progress | None = None) -> RankSummary:
        """Return the summary of a source. Raises GpuExporterError, also if this is another version."""
        if self.version != __version__:
            raise GpuExporterError(
                f"the worker has gpu-exporter {__version__}, this machine {self.version}: install the same"
            )
        place = source if is_url(source) else str(Path(self.directory, source))
        return summary(replace(read(place, progress), path=source), details=self.details)


def summaries(
    sources: Sequence[str], start: Start, done: Done, work: Callable[[str], RankSummary]
) -> list[RankSummary]:
    """Return the summaries of sources, in their order. Raises GpuExporterError for the first that fails."""
    found: dict[str, RankSummary] = {}
    lost = 0
    while left := [source for source in sources if source not in found]:
        if lost > MOST_LOST:
            raise GpuExporterError(_lost(left[0], lost))
        with start(lost) as crew:
            for source, result in _finished(crew, left, work):
                found[source] = result
                done(source)
        lost += 1
    return [found[source] for source in sources]


def _lost(source: str, times: int) -> str:
    return (
        f"{source}: the process that analysed it was killed {times} times: if it needs more memory than there is, use a"
        " lower --jobs or larger workers"
    )


def _finished(
    crew: Crew, sources: Sequence[str], work: Callable[[str], RankSummary]
) -> Iterator[tuple[str, RankSummary]]:
    """Yield sources with their summaries as these are made; after the loss of an executor, no others."""
    futures: dict[Future[RankSummary], str] = {}
    try:
        for source in sources:
            future = crew.executor.submit(work, source)
            if future.done():  # in this process
                yield from _result(crew, source, future)
            else:
                futures[future] = source
            del future
    except BrokenExecutor:
        pass
    seen = time.monotonic()
    while futures:
        finished, _ = wait(futures, LOOK_SECONDS, FIRST_COMPLETED)
        if finished or crew.workers():
            seen = time.monotonic()
        elif time.monotonic() - seen > NO_WORKER_SECONDS:
            raise GpuExporterError(f"the cluster has had no worker for {NO_WORKER_SECONDS:.0f} s: start one")
        # A cluster keeps, and after a loss computes again, what somebody refers to.
        while finished:
            future = finished.pop()
            yield from _result(crew, futures.pop(future), future)
            del future


def _result(crew: Crew, source: str, future: Future[RankSummary]) -> Iterator[tuple[str, RankSummary]]:
    """Yield a source with its summary; nothing if its worker was lost and it has to be analysed again."""
    try:
        yield source, future.result()
    except BrokenExecutor:
        return
    except crew.killed as error:
        raise GpuExporterError(_lost(source, MOST_LOST + 1)) from error
    except CancelledError as error:
        raise GpuExporterError("the connection to the cluster was lost: is its scheduler running?") from error
    except ImportError as error:
        raise GpuExporterError(
            f"a worker cannot analyse traces ({error}): install gpu-exporter {__version__} there with the extra trace"
        ) from error


class _InProcess(Executor):
    """Runs what is submitted at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def in_process(lost: int = 0) -> Iterator[Crew]:
    """Analyse ranks one after the other in this process."""
    yield Crew(_InProcess(), lambda: 1)


def in_processes(jobs: int) -> Start:
    """Analyse this many ranks at a time in other processes; after the loss of one, half as many."""

    @contextmanager
    def start(lost: int) -> Iterator[Crew]:
        at_once = max(1, jobs >> lost)
        # Spawned: a fork would copy threads and locks of this process in whatever state they are.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(at_once, context, initializer=_begin_worker)
        try:
            yield Crew(executor, lambda: at_once)
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            executor.shutdown(cancel_futures=True)
            raise
        executor.shutdown()

    return start


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def on_dask(address: str) -> Start:
    """Analyse ranks on the workers of the Dask cluster whose scheduler has this address."""

    @contextmanager
    def start(lost: int) -> Iterator[Crew]:
        try:
            from distributed import Client
            from distributed.scheduler import KilledWorker
        except ImportError:
            raise GpuExporterError(DASK_EXTRA) from None
        for name in ("distributed", "tornado.application"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what they log is raised, too
        if not re.search(r":\d{1,5}/?$", address):  # it would take the client 20 s to end
            raise GpuExporterError(f"--dask {address}: has no port", fix="use for example tcp://scheduler:8786")
        try:
            client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise GpuExporterError(f"--dask {address}: {printable(str(error), MOST_ERROR)}") from error
        with client, client.get_executor(pure=False) as executor:
            try:
                yield Crew(executor, lambda: len(client.nthreads()), (KilledWorker,))
            except BaseException:
                executor.shutdown(wait=False)
                raise

    return start


def cpus() -> int:
    """Return how many CPUs this process may use, with the limits of its cgroups."""

    def content(path: str) -> bytes:
        return Path(f"/sys/fs/cgroup{path}").read_bytes()

    try:
        limits = list(cgroup.cpu_limits(cgroup.paths(Path("/proc/self/cgroup").read_bytes()), content))
    except OSError:
        limits = []
    return max(1, min([len(os.sched_getaffinity(0)), *(int(limit.cpus) for limit in limits)]))


def analysed(
    sources: Sequence[str],
    *,
    details: bool = False,
    jobs: int | None = None,
    dask: str | None = None,
    done: Done = lambda source: None,
    progress: Progress | None = None,
) -> list[RankSummary]:
    """Return the summaries of sources, in their order.

    With `dask`, the address of a scheduler, they are analysed on its workers; otherwise `jobs` at a time, by default as
    many as there are CPUs. `progress` is called while a source is read in this process. Raises GpuExporterError.
    """
    streams = [source for source in sources if is_stream(source)]
    if dask and streams:
        raise GpuExporterError(f"{streams[0]}: only this process can read it: leave out --dask")
    start = on_dask(dask) if dask else in_process
    others = [source for source in sources if source not in streams]
    if not dask and len(others) > 1:
        at_once = min(jobs or (cpus() if _bytes(others) > PARALLEL_BYTES else 1), len(others))
        start = in_processes(at_once) if at_once > 1 else in_process
    # Workers of a cluster have other current directories.
    work = RankWork(details, os.getcwd() if dask else "")
    here = partial(RankWork(details), progress=progress)
    of_streams = iter(summaries(streams, in_process, done, here))
    of_others = iter(summaries(others, start, done, here if start is in_process else work))
    return [next(of_streams if source in streams else of_others) for source in sources]


def _bytes(sources: Sequence[str]) -> int:
    """Return the size of files; URLs count as large."""
    return sum(PARALLEL_BYTES if is_url(source) else _size(Path(source)) for source in sources)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
