"""The thread that profiles when it is time to: it asks `triggers` what to do, does it, and stores the result.

The collection loop only passes the processes of each GPU to it and takes its latest samples; neither waits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.decoding import printable
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.profile_reason import Reason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling import audit, records, stacks, triggers
from gpu_exporter.profiling.others import other_profiler
from gpu_exporter.profiling.processes import Process, is_alive, look_up
from gpu_exporter.profiling.pyspy import Failure, NotSampled, Sampling
from gpu_exporter.profiling.records import Summary
from gpu_exporter.profiling.result import ProcessProfile, process_profile
from gpu_exporter.profiling.sampler import Sampler
from gpu_exporter.profiling.samples import ProfileSeries
from gpu_exporter.profiling.store import ProfileStore
from gpu_exporter.profiling.triggers import Device, Request, Rules, State
from gpu_exporter.profiling.views import ProfileViews

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MOST_LINE = 600
# Failures that are about this node or its configuration are logged once, until a profile succeeds.
OF_NODE = frozenset({Failure.NOT_PERMITTED, Failure.SAMPLER, Failure.DISK})


@dataclass(frozen=True, slots=True)
class GpuFindings:
    """What is found about a GPU now: its job, by reason the name of the class or failure mode, and whether the other
    GPUs of its job wait for it."""

    job: str
    findings: Mapping[Reason, str]
    is_waited_for: bool = False


class ProfileWatch(threading.Thread):
    """Profiles GPUs by rules. `findings` returns what is found about the GPUs now, by UUID."""

    def __init__(
        self,
        rules: Rules,
        findings: Callable[[], Mapping[str, GpuFindings]],
        sampler: Sampler,
        store: ProfileStore,
        files: HostFiles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="profiles", daemon=True)
        self.store, self.views = store, ProfileViews(store)
        self._rules, self._findings, self._sampler, self._files = rules, findings, sampler, files
        self._clock = clock
        self._state, self._series = State(), ProfileSeries()
        self._seen: Sequence[GpuSamples] = ()
        self._published: Sequence[Sample] = self._series.samples((), (), 0.0)
        self._stopping = threading.Event()
        self._said: set[Failure] = set()
        self._broken = False

    # --- the clock's thread -----------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series] = ()) -> Sequence[Sample]:
        """Return the latest samples, and note the processes of each GPU. Never blocks, never raises."""
        self._seen = gpus
        return self._published

    def stop(self) -> None:
        """Request the end; does not wait for it. A py-spy that is running ends by itself."""
        self._stopping.set()

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
        """Take a profile if it is time, and make new samples."""
        seen, now = self._seen, self._clock()
        found = devices(seen, self._findings())
        self._state = triggers.observe(self._state, found, now)
        request = triggers.due(self._state, found, self._rules, now)
        if request and not paused(seen):
            self._take(request)
        self._published = self._series.samples(seen, self.store.summaries, time.time())

    def _take(self, request: Request) -> None:
        """Take a profile, and store it with whatever failed."""
        at, profiles = time.time(), []
        # Whatever happens now, it is not tried again at once.
        self._state = triggers.finish(self._state, request, (), self._clock())
        processes, failed = self._processes(request)
        sampling = triggers.sampling_of(request.seconds, triggers.RATE, len(processes))
        if processes:
            self._audit(request, processes)
            for process, outcome in self._sampled(processes, sampling).items():
                if isinstance(outcome, NotSampled):
                    failed.append((process, outcome))
                else:
                    profiles.append(process_profile(process, outcome, sampling))
        kinds = [(process, error.failure) for process, error in failed]
        self._state = triggers.finish(self._state, request, kinds, self._clock())
        self._report(failed, succeeded=bool(profiles))
        self._series.count(request.reason, kinds, succeeded=bool(profiles))
        if profiles or any(failure is not Failure.AVOIDED for _, failure in kinds):
            self._store(request, at, profiles, failed)

    def _store(
        self,
        request: Request,
        at: float,
        profiles: Sequence[ProcessProfile],
        failed: Sequence[tuple[Process, NotSampled]],
    ) -> None:
        newest = self.store.summaries[-1].id if self.store.summaries else "0"
        summary = Summary(
            str(max(round(at * 1000), int(newest) + 1)).zfill(13),
            round(at, 3),
            request.reason,
            request.finding,
            tuple(device.uuid for device in request.devices),
            tuple(device.index for device in request.devices),
            request.seconds,
            triggers.RATE,
            tuple(records.process_summary(profile, _uuids(request, profile.process)) for profile in profiles),
            tuple(records.failure(process, error) for process, error in failed),
            len({pid for device in request.devices for pid in device.pids}) - len(request.pids),
            records.odd_ranks(profiles, request.waited_for),
        )
        for odd in summary.odd:
            log.warning("profile: %s", printable(records.in_words(odd), MOST_LINE))
        if not self.store.add(summary, [records.process_stacks(profile) for profile in profiles]):
            self._series.count_failure(Failure.DISK)

    def _processes(self, request: Request) -> tuple[list[Process], list[tuple[Process, NotSampled]]]:
        """Return the processes to sample, and those that must not be sampled."""
        processes, failed = list[Process](), list[tuple[Process, NotSampled]]()
        for pid, gpus in request.pids.items():
            try:
                process = look_up(self._files, pid, gpus)
            except GpuExporterError:  # it ended after the driver listed it
                continue
            if self._state.avoids(process):
                error = f"{process.title}: left alone, because an earlier profile of its program failed"
                failed.append((process, NotSampled(error, Failure.AVOIDED)))
            else:
                processes.append(process)
        who = other_profiler(self._files, [process.pid for process in processes]) if processes else ""
        if who:
            error = f"not profiled while somebody else profiles: {who}"
            failed += [(process, NotSampled(error, Failure.OTHER_PROFILER)) for process in processes]
            processes = []
        return processes, failed

    def _sampled(
        self, processes: Sequence[Process], sampling: Sampling
    ) -> Mapping[Process, Sequence[stacks.Stack] | NotSampled]:
        try:
            outcomes = self._sampler.sample(processes, sampling)
        except OSError as error:
            text = f"--profile-dir: py-spy cannot write its result: {error.strerror}"
            return dict.fromkeys(processes, NotSampled(text, Failure.DISK))
        targets = {process.pid for process in processes}
        found: dict[Process, Sequence[stacks.Stack] | NotSampled] = {}
        for process in processes:
            outcome = outcomes[process.pid]
            if not isinstance(outcome, NotSampled) and not is_alive(self._files, process):
                outcome = NotSampled(f"{process.title}: it ended while it was sampled", Failure.ENDED)
            if isinstance(outcome, NotSampled):
                found[process] = outcome
            else:
                seen = stacks.parse(outcome, {process.pid, process.inner_pid})
                found[process] = tuple(stack for stack in seen if stack.worker not in targets)
        return found

    def _audit(self, request: Request, processes: Sequence[Process]) -> None:
        reason = f"{request.reason.value}{f':{request.finding}' if request.finding else ''}"
        line = audit.audit_line("stacks", processes, request.seconds, os.getuid(), reason)
        audit.record(line)
        log.info("%s", line)

    def _report(self, failed: Iterable[tuple[Process, NotSampled]], *, succeeded: bool) -> None:
        """Log failures of processes, and those of the node once."""
        if succeeded:
            self._said.clear()
        for _, error in failed:
            if error.failure is Failure.AVOIDED or error.failure in self._said:
                continue
            if error.failure in OF_NODE or error.failure is Failure.OTHER_PROFILER:
                self._said.add(error.failure)
            log.warning("profile: %s", error)


def _uuids(request: Request, process: Process) -> list[str]:
    return [device.uuid for device in request.devices if device.index in process.gpus]


def devices(gpus: Sequence[GpuSamples], findings: Mapping[str, GpuFindings]) -> list[Device]:
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
            found.append(Device(seen.gpu.uuid, seen.gpu.index, pids, about.job, about.findings, about.is_waited_for))
    return found


def paused(gpus: Sequence[GpuSamples]) -> bool:
    """Return whether DCGM reports that another tool uses the profiling counters of a GPU."""
    return any(series.metric is m.PROFILING_PAUSED and value for seen in gpus for series, value in seen.samples)


def remembered(summaries: Sequence[Summary], now: float, monotonic: float) -> State:
    """Return the state after a restart: the budgets and the programs to avoid, as the stored profiles say."""
    state = State()
    for summary in summaries:
        at = monotonic - max(0.0, now - summary.at)
        gpus = tuple(Device(uuid, index) for uuid, index in zip(summary.uuids, summary.gpus, strict=False))
        failed = [(Process(each.pid, 0, each.uid, each.command, each.pid), each.reason) for each in summary.failed]
        request = Request(summary.reason, summary.finding, gpus)
        state = triggers.finish(state, request, failed, at)
    return state
