"""Takes profiles: not of processes that must be left alone, or that somebody else profiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import tracing
from gpu_exporter.profiling.kineto_daemon import TraceOptions
from gpu_exporter.profiling.processes import Process, is_alive, look_up
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.result import ProcessProfile, process_profile
from gpu_exporter.profiling.sampler import Sampler
from gpu_exporter.profiling.stacks import Stack, parse
from gpu_exporter.profiling.tracing import Traced
from gpu_exporter.profiling.triggers import RATE, Asked, ProfileRequest, TriggerState, sampling_of

# Programs that profile GPUs while they run, by their name in /proc/PID/comm.
PROGRAMS = frozenset({b"nsys", b"ncu"})
SAMPLER = b"py-spy"


def other_profiler(files: HostFiles, pids: Iterable[int]) -> str:
    """Return who profiles the GPUs of this node or debugs one of these processes, in words; empty if nobody does.

    A session that a process has opened in itself, such as one of torch.profiler, cannot be seen from outside.
    """
    targets = list(pids)
    for pid in targets:
        if tracer := _tracer(files.process(f"{pid}/status")):
            return f"process {tracer} debugs process {pid}"
    names = {str(pid).encode() for pid in targets}
    for pid in files.pids():
        with suppress(PermissionError):  # hidden from this user
            name = files.process(f"{pid}/comm").strip()
            if name in PROGRAMS or (name == SAMPLER and names.intersection(_arguments(files, pid))):
                return f"{name.decode()} is running (process {pid})"
    return ""


def _arguments(files: HostFiles, pid: int) -> list[bytes]:
    return files.process(f"{pid}/cmdline").split(b"\0")


def _tracer(status: bytes) -> int:
    """Return the PID of the process that debugs another one, from /proc/PID/status; 0 if there is none."""
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name == b"TracerPid" and value.strip().isdigit():
            return int(value)
    return 0


@dataclass(slots=True)
class Taken:
    """What was taken: profiles of stacks, or what traces say; and the processes that have neither."""

    profiles: list[ProcessProfile] = field(default_factory=list)
    traced: Traced | None = None
    failed: list[tuple[Process, NotSampled]] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        """Whether there is anything of at least one process."""
        return bool(self.profiles or (self.traced and self.traced.taken))

    @property
    def counts(self) -> bool:
        """Whether it uses up the budget: it succeeded, or a job recorded a trace, which slows it down, in vain."""
        return self.succeeded or (self.traced is not None and self.traced.requested)

    @property
    def failures(self) -> list[tuple[Process, SamplingFailure]]:
        """The processes that have nothing, by kind."""
        return [(process, error.failure) for process, error in self.failed]


@dataclass(frozen=True, slots=True)
class Taker:
    """Takes profiles: stacks with a sampler, and traces that somebody asks for."""

    _sampler: Sampler
    files: HostFiles

    def take(self, request: ProfileRequest, processes: Sequence[Process], taken: Taken) -> None:
        """Add the profiles of processes, or their traces if somebody asks for these."""
        if request.asked and request.asked.trace:
            self._trace(request, request.asked, processes, taken)
            return
        sampling = sampling_of(request.seconds, RATE, len(processes))
        for process, outcome in self._stacks(processes, sampling).items():
            if isinstance(outcome, NotSampled):
                taken.failed.append((process, outcome))
            else:
                taken.profiles.append(process_profile(process, outcome, sampling))

    def _trace(self, request: ProfileRequest, asked: Asked, processes: Sequence[Process], taken: Taken) -> None:
        uuids = {device.index: device.uuid for device in request.devices}
        options = TraceOptions(asked.seconds, stacks=asked.frames)
        taken.traced = traced = tracing.trace(processes, options, self.files, uuids, asked.outputs)
        taken.failed += [(process, NotSampled(str(error), SamplingFailure.OTHER)) for process, error in traced.failed]

    def processes(
        self, request: ProfileRequest, state: TriggerState
    ) -> tuple[list[Process], list[tuple[Process, NotSampled]]]:
        """Return the processes to sample, and those that must not be sampled."""
        processes, failed = list[Process](), list[tuple[Process, NotSampled]]()
        for pid, gpus in request.pids.items():
            try:
                process = look_up(self.files, pid, gpus)
            except GpuExporterError:  # it ended after the driver listed it
                continue
            if state.avoids(process):
                error = f"{process.title}: left alone, because an earlier profile of its program failed"
                failed.append((process, NotSampled(error, SamplingFailure.AVOIDED)))
            else:
                processes.append(process)
        who = other_profiler(self.files, [process.pid for process in processes]) if processes else ""
        if who:
            error = f"not profiled while somebody else profiles: {who}"
            failed += [(process, NotSampled(error, SamplingFailure.OTHER_PROFILER)) for process in processes]
            processes = []
        return processes, failed

    def _stacks(
        self, processes: Sequence[Process], sampling: Sampling
    ) -> Mapping[Process, Sequence[Stack] | NotSampled]:
        """Return the stacks of each process, or why there are none."""
        try:
            outcomes = self._sampler.sample(processes, sampling)
        except OSError as error:
            text = f"--profile-dir: py-spy cannot write its result: {error.strerror}"
            return dict.fromkeys(processes, NotSampled(text, SamplingFailure.DISK))
        targets = {process.pid for process in processes}
        found: dict[Process, Sequence[Stack] | NotSampled] = {}
        for process in processes:
            outcome = outcomes[process.pid]
            if not isinstance(outcome, NotSampled) and not is_alive(self.files, process):
                outcome = NotSampled(f"{process.title}: it ended while it was sampled", SamplingFailure.ENDED)
            if isinstance(outcome, NotSampled):
                found[process] = outcome
            else:
                seen = parse(outcome, {process.pid, process.inner_pid})
                found[process] = tuple(stack for stack in seen if stack.worker not in targets)
        return found
