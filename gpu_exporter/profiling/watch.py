"""The thread that profiles when it is time to: it asks `triggers` what to do, does it, and stores the result.

The collection loop only passes the processes of each GPU to it and takes its latest samples; neither waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, Full, Queue

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling import audit, records, triggers
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import NotSampled, SamplingFailure
from gpu_exporter.profiling.records import ProcessStacks, Summary
from gpu_exporter.profiling.sampler import Sampler
from gpu_exporter.profiling.store import ProfileStore
from gpu_exporter.profiling.taking import Taken, Taker
from gpu_exporter.profiling.triggers import Asked, ProfiledGpu, ProfileRefusal, ProfileRequest, Rules, TriggerState
from gpu_exporter.profiling.views import ProfileSeries, ProfileViews

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MOST_LINE, MOST_USER = 600, 60
# Failures that are about this node or its configuration are logged once, until a profile succeeds.
OF_NODE = frozenset({SamplingFailure.NOT_PERMITTED, SamplingFailure.SAMPLER, SamplingFailure.DISK})


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """What is found about a GPU now: its job, by reason the name of the class or failure mode, whether the other
    GPUs of its job wait for it, and the names of its pod and job."""

    job: str
    findings: Mapping[ProfileReason, str]
    is_waited_for: bool = False
    owners: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Given:
    """The answer to somebody who asks for a profile: also what the analysis of traces says, by name."""

    summary: Summary
    stacks: Sequence[ProcessStacks]
    outputs: Mapping[str, bytes]


class ProfileWatch(threading.Thread):
    """Profiles GPUs by rules. `findings` returns what is found about the GPUs now, by UUID.

    With `lines`, samples name the line of code that keeps a GPU waiting.
    """

    def __init__(
        self,
        rules: Rules,
        findings: Callable[[], Mapping[str, GpuFindings]],
        sampler: Sampler,
        store: ProfileStore,
        files: HostFiles,
        clock: Callable[[], float] = time.monotonic,
        *,
        lines: bool = False,
    ) -> None:
        super().__init__(name="profiles", daemon=True)
        self.store, self.views = store, ProfileViews(store)
        self._rules, self._findings, self._taker = rules, findings, Taker(sampler, files)
        self._clock = clock
        # At most one person waits.
        self._questions: Queue[tuple[Asked, Future[Given | ProfileRefusal]]] = Queue(1)
        self._state, self._series = TriggerState(), ProfileSeries(lines=lines)
        self._seen: Sequence[GpuSamples] = ()
        self._published: Sequence[Sample] = self._series.samples((), (), 0.0)
        self._stopping = threading.Event()
        self._said: set[SamplingFailure] = set()
        self._broken = False

    # --- the clock's thread -----------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series] = ()) -> Sequence[Sample]:
        """Return the latest samples, and note the processes of each GPU. Never blocks, never raises."""
        self._seen = gpus
        return self._published

    def stop(self) -> None:
        """Request the end; does not wait for it. A py-spy that is running ends by itself."""
        self._stopping.set()

    # --- any thread -------------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> Future[Given | ProfileRefusal]:
        """Have a profile taken, and return what will be its result. Refused at once while somebody else waits."""
        answer = Future[Given | ProfileRefusal]()
        try:
            self._questions.put_nowait((asked, answer))
        except Full:
            answer.set_result(ProfileRefusal("somebody else asks for a profile, too: try again", TICK_SECONDS))
        return answer

    # --- its own thread ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self.store.load(time.time())
        except OSError as error:
            log.warning("profiles of %s cannot be read: %s", self.store.folder, error.strerror)
        self._state = remembered(self.store.summaries, time.time(), self._clock())
        while not self._stopping.wait(TICK_SECONDS):
            try:
                self.tick()
                self._broken = False
            except Exception:  # profiles are optional: everything else goes on
                if not self._broken:
                    log.exception("profiles: unexpected error, please report it")
                self._broken = True

    def tick(self) -> None:
        """Take a profile if it is time or somebody asks for one, and make new samples."""
        seen, now = self._seen, self._clock()
        found = devices(seen, self._findings())
        self._state = triggers.observe(self._state, found, now)
        with suppress(Empty):
            self._answer(*self._questions.get_nowait(), seen, found)
        request = triggers.due(self._state, found, self._rules, self._clock())
        if request and not paused(seen):
            self._take(request)
        self._published = self._series.samples(seen, self.store.summaries, time.time())

    def _answer(
        self,
        asked: Asked,
        answer: Future[Given | ProfileRefusal],
        seen: Sequence[GpuSamples],
        found: Sequence[ProfiledGpu],
    ) -> None:
        """Take the profile that somebody asks for, or refuse it."""
        if not answer.set_running_or_notify_cancel():
            return
        request = triggers.requested(self._state, found, asked, self._clock())
        if paused(seen):
            request = ProfileRefusal("not profiled while another tool uses the profiling counters of a GPU")
        try:
            answer.set_result(request if isinstance(request, ProfileRefusal) else self._take(request))
        except BaseException as error:
            answer.set_exception(error)
            raise

    def _take(self, request: ProfileRequest) -> Given:
        """Take a profile, and store it with whatever failed."""
        at, before = time.time(), self._state
        # Whatever happens now, it is not tried again at once.
        self._state = triggers.finish(self._state, request, (), self._clock())
        processes, failed = self._taker.processes(request, self._state)
        taken = Taken(failed=failed)
        if processes:
            self._audit(request, processes)
            self._taker.take(request, processes, taken)
        self._state = triggers.finish(self._state, request, taken.failures, self._clock())
        if request.asked and not taken.counts:  # a person may try again
            self._state = replace(self._state, profiled=before.profiled, traced=before.traced)
        self._report(taken.failed, succeeded=taken.succeeded)
        self._series.count(request.reason, taken.failures, succeeded=taken.succeeded)
        summary = self._summary(request, at, taken)
        stacks = [*map(records.process_stacks, taken.profiles), *(taken.traced.stacks if taken.traced else ())]
        if taken.succeeded or any(failure is not SamplingFailure.AVOIDED for _, failure in taken.failures):
            self._store(summary, stacks)
        return Given(summary, stacks, taken.traced.outputs if taken.traced else {})

    def _summary(self, request: ProfileRequest, at: float, taken: Taken) -> Summary:
        newest = self.store.summaries[-1].id if self.store.summaries else "0"
        profiled = [records.process_summary(each, _uuids(request, each.process)) for each in taken.profiles]
        traced = taken.traced
        if traced:
            profiled += [records.traced_process(each, _uuids(request, each)) for each in traced.taken]
        return Summary(
            str(max(round(at * 1000), int(newest) + 1)).zfill(13),
            round(at, 3),
            request.reason,
            request.finding,
            tuple(device.uuid for device in request.devices),
            tuple(device.index for device in request.devices),
            request.seconds,
            0 if traced else triggers.RATE,
            tuple(profiled),
            tuple(records.failure(process, error) for process, error in taken.failed),
            request.left_out,
            records.odd_ranks(taken.profiles, request.waited_for),
            traced.kernels if traced else (),
        )

    def _store(self, summary: Summary, stacks: Sequence[ProcessStacks]) -> None:
        for odd in summary.odd:
            log.warning("profile: %s", printable(records.in_words(odd), MOST_LINE))
        if not self.store.add(summary, stacks):
            self._series.count_failure(SamplingFailure.DISK)
        self._series.add_kernels(summary)

    def _audit(self, request: ProfileRequest, processes: Sequence[Process]) -> None:
        asked = request.asked
        about = f"by={printable(asked.by, MOST_USER)}" if asked else request.finding
        reason = f"{request.reason.value}{f':{about}' if about else ''}"
        method = "trace" if asked and asked.trace else "stacks"
        line = audit.audit_line(method, processes, request.seconds, os.getuid(), reason)
        audit.record(line)
        log.info("%s", line)

    def _report(self, failed: Iterable[tuple[Process, NotSampled]], *, succeeded: bool) -> None:
        """Log failures of processes, and those of the node once."""
        if succeeded:
            self._said.clear()
        for _, error in failed:
            if error.failure is SamplingFailure.AVOIDED or error.failure in self._said:
                continue
            if error.failure in OF_NODE or error.failure is SamplingFailure.OTHER_PROFILER:
                self._said.add(error.failure)
            log.warning("profile: %s", error)


def _uuids(request: ProfileRequest, process: Process) -> list[str]:
    return [device.uuid for device in request.devices if device.index in process.gpus]


def devices(gpus: Sequence[GpuSamples], findings: Mapping[str, GpuFindings]) -> list[ProfiledGpu]:
    """Return the GPUs with their processes, those with most memory first, and what is found about them."""
    found = []
    for seen in gpus:
        memory: dict[int, float] = {}
        for series, value in seen.samples if seen.read_at is not None else ():
            if series.metric is m.PROCESS_MEMORY or series.metric is m.PROCESS_SM:
                pid = int(dict(series.labels)["pid"])
                memory[pid] = memory.get(pid, 0.0) + (value if series.metric is m.PROCESS_MEMORY else 0.0)
        pids = tuple(sorted(memory, key=lambda pid: (-memory[pid], pid)))
        about = findings.get(seen.gpu.uuid, GpuFindings("", {}))
        if seen.gpu.uuid:
            state = (about.findings, about.is_waited_for, about.owners)
            found.append(ProfiledGpu(seen.gpu.uuid, seen.gpu.index, pids, about.job, *state))
    return found


def paused(gpus: Sequence[GpuSamples]) -> bool:
    """Return whether DCGM reports that another tool uses the profiling counters of a GPU."""
    return any(series.metric is m.PROFILING_PAUSED and value for seen in gpus for series, value in seen.samples)


def remembered(summaries: Sequence[Summary], now: float, monotonic: float) -> TriggerState:
    """Return the state after a restart: the budgets and the programs to avoid, as the stored profiles say."""
    state = TriggerState()
    for summary in summaries:
        at = monotonic - max(0.0, now - summary.at)
        gpus = tuple(ProfiledGpu(uuid, index) for uuid, index in zip(summary.uuids, summary.gpus, strict=False))
        failed = [(Process(each.pid, 0, each.uid, each.command, each.pid), each.reason) for each in summary.failed]
        asked = Asked("", trace=True) if summary.is_trace else None
        request = ProfileRequest(summary.reason, summary.finding, gpus, asked)
        state = triggers.finish(state, request, failed, at)
    return state
