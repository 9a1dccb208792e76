"""Traces of processes that somebody asked for: what their GPUs did, by kernel class and by stack."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import json_as
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import analysis
from gpu_exporter.profiling.kineto_daemon import DaemonSocket, TraceOptions
from gpu_exporter.profiling.processes import Process, environment
from gpu_exporter.profiling.records import KernelTime, ProcessStacks, StackKind
from gpu_exporter.profiling.trace_session import TraceSession, check_socket_folder, socket_folder
from gpu_exporter.traces.kernel_classes import CLASS_NAMES

COST = (
    "a trace with Python frames makes a job slower until it ends, by 4 to 20 % when this was measured; --no-stacks"
    " costs less, and a profile without --trace leaves nothing behind (docs/profile.md)"
)
# What the exporter keeps in memory of an analysis.
MOST_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Traced:
    """What traces say: outputs of their analysis by name, kernels and stacks; and the processes that have none.

    `requested`: whether any process was asked to record, even if its trace is of no use.
    """

    outputs: Mapping[str, bytes]
    taken: Sequence[Process]
    kernels: tuple[KernelTime, ...]
    stacks: Sequence[ProcessStacks]
    failed: Sequence[tuple[Process, GpuExporterError]]
    requested: bool


@dataclass(frozen=True, slots=True)
class _OfDevice:
    """The answer `device` of the analysis about one GPU of a trace: stacks, and seconds of stacks that are left out."""

    of: str
    kernels: Mapping[str, float]
    gpu: tuple[Mapping[str, float], float]
    idle: tuple[Mapping[str, float], float]


def recorded(session: TraceSession, socket_dir: Path | None = None) -> None:
    """Have the processes of a session record traces. Raises GpuExporterError if the socket cannot be used."""
    folder = socket_dir
    started_with = [environment(session.files, process.pid) for process in session.processes]
    if folder is None and (folder := socket_folder(started_with)):
        check_socket_folder(folder, session.processes)
    with DaemonSocket(folder) as socket:
        session.run(socket)


def analysed(
    session: TraceSession, outputs: Collection[str], most_bytes: int = analysis.MOST_ANSWER_BYTES
) -> Mapping[str, bytes]:
    """Return the outputs of the analysis of all traces together, of at most so many bytes; empty if there are none.

    A trace that cannot be analysed moves its process from `taken` to `failed`, and spoils no other one.
    """
    if not session.taken:
        return {}
    try:
        return analysis.analyze(session.taken, outputs, most_bytes)
    except GpuExporterError as error:
        problems = {session.taken[0].process.pid: error} if len(session.taken) == 1 else _problems(session)
    for taken in [each for each in session.taken if each.process.pid in problems]:
        session.discard(taken, problems[taken.process.pid])
    return analysis.analyze(session.taken, outputs, most_bytes) if session.taken else {}


def _problems(session: TraceSession) -> Mapping[int, GpuExporterError]:
    """Return why traces cannot be analysed, each on its own, by PID."""
    problems = {}
    for taken in session.taken:
        try:
            analysis.analyze([taken], {"device"})
        except GpuExporterError as error:
            problems[taken.process.pid] = error
    return problems


def trace(
    processes: Sequence[Process],
    options: TraceOptions,
    files: HostFiles,
    uuids: Mapping[int, str],
    outputs: Sequence[str],
) -> Traced:
    """Take traces of processes, all at the same moment. `uuids` are those of GPUs by index. Never raises for a job."""
    session = TraceSession(processes, options, files, files.procfs)
    try:
        recorded(session)
        found = analysed(session, {*outputs, "device"}, MOST_BYTES)
        of_devices = json_as(list[_OfDevice], found["device"]) if found else []
    except (GpuExporterError, ValueError) as problem:
        error = GpuExporterError(str(problem))
        missing = {process.pid for process, _ in session.failed}
        failed = [(process, error) for process in processes if process.pid not in missing]
        return Traced({}, (), (), (), [*session.failed, *failed], session.has_requested)
    finally:
        taken = [each.process for each in session.taken]
        session.close()
    by_name = {f"process {process.pid}": process for process in taken}
    devices = [(by_name[each.of], each) for each in of_devices if each.of in by_name]
    return Traced(
        {name: found[name] for name in outputs if name in found},
        taken,
        tuple(kernel for process, device in devices for kernel in _kernels(process, device, uuids)),
        [stacks for process, device in devices for stacks in _stacks(process, device)],
        session.failed,
        session.has_requested,
    )


def _kernels(process: Process, device: _OfDevice, uuids: Mapping[int, str]) -> list[KernelTime]:
    """Return the time of kernels by class. A process with several GPUs numbers them in its own way: it has none."""
    if len(process.gpus) != 1 or process.gpus[0] not in uuids:
        return []
    uuid = uuids[process.gpus[0]]
    known = ((name, seconds) for name, seconds in sorted(device.kernels.items()) if name in CLASS_NAMES)
    return [KernelTime(uuid, name, round(seconds, 6)) for name, seconds in known]


def _stacks(process: Process, device: _OfDevice) -> list[ProcessStacks]:
    kinds = ((StackKind.GPU, device.gpu), (StackKind.IDLE, device.idle))
    return [ProcessStacks(process.pid, process.gpus, *stacks, kind) for kind, stacks in kinds if stacks[0]]
