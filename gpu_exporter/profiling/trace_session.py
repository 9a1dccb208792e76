"""Requests traces from processes and collects the files that they write."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import kineto_daemon
from gpu_exporter.profiling.kineto_daemon import (
    DaemonSocket,
    Peer,
    Registration,
    TraceOptions,
    configuration,
    trace_configuration,
)
from gpu_exporter.profiling.processes import Process, environment, is_alive
from gpu_exporter.profiling.trace_file import MOST_TRACE_BYTES, TraceFile

USE_DAEMON, SOCKET_DIR, TRACE_DIR = "KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR", "KINETO_ONDEMAND_TRACE_DIR"
# Newer versions of libkineto write requested traces only below this folder, or below TRACE_DIR.
DEFAULT_TRACE_DIR = PurePosixPath("/tmp")
# libkineto polls every 5 s, and more rarely while it is busy.
POLL_SECONDS, ANSWER_SECONDS = 5.5, 12.0
# Between the latest poll and the beginning of the warm-up.
SLACK_SECONDS = 1.5
# How long a process may take to write its trace; longer while the file grows.
WRITE_SECONDS, MOST_WRITE_SECONDS = 60.0, 300.0
TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TakenTrace:
    """A trace that a process wrote: an open file without a name, which the receiver closes.

    `requested_at` and `taken_at` are monotonic seconds.
    """

    process: Process
    descriptor: int
    requested_at: float = 0.0
    taken_at: float = 0.0


@dataclass(slots=True)
class _Target:
    process: Process
    file: TraceFile
    environment: Mapping[str, str] | None
    deadline: float
    requested_at: float = 0.0
    complaint: str = ""
    written: int = 0
    latest: float = 0.0
    settled: bool = False


@dataclass(slots=True)
class TraceSession:
    """One request to some processes, of which each is answered once.

    With several processes, all record from the same moment on. `answer_seconds` is how long to wait for a poll.
    """

    processes: Sequence[Process]
    options: TraceOptions
    files: HostFiles
    procfs: Path
    trace_dir: PurePosixPath | None = None
    answer_seconds: float = ANSWER_SECONDS
    write_seconds: float = WRITE_SECONDS
    taken: list[TakenTrace] = field(default_factory=list, init=False)
    failed: list[tuple[Process, GpuExporterError]] = field(default_factory=list, init=False)
    _start: float | None = field(default=None, init=False)
    _targets: dict[int, _Target] = field(default_factory=dict, init=False)

    @property
    def errors(self) -> list[GpuExporterError]:
        """Why processes have no trace, one for each."""
        return [error for _, error in self.failed]

    @property
    def has_requested(self) -> bool:
        """Whether any process was asked to record, so that it may be slower from now on."""
        return any(target.requested_at for target in self._targets.values())

    def run(self, socket: DaemonSocket) -> None:
        """Fill in `taken` and `failed`: each process is in one of them."""
        try:
            self._open()
            checked = 0.0
            while any(not target.settled for target in self._targets.values()):
                if received := socket.receive(TICK_SECONDS):
                    self._handle(socket, *received)
                # A flood of the socket must not delay its reading.
                if (now := time.monotonic()) >= checked + TICK_SECONDS:
                    self._check_all(now)
                    checked = now
        finally:
            for target in self._targets.values():
                target.file.close()

    def discard(self, taken: TakenTrace, error: GpuExporterError) -> None:
        """Give up a trace that was taken, but is of no use."""
        self.taken.remove(taken)
        os.close(taken.descriptor)
        self.failed.append((taken.process, error))

    def close(self) -> None:
        """Close the files that were taken."""
        while self.taken:
            os.close(self.taken.pop().descriptor)

    # --- the request ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for process in self.processes:
            started_with = environment(self.files, process.pid)
            try:
                folder = trace_folder(self.trace_dir, started_with)
                file = TraceFile(process, folder, self.procfs)
            except GpuExporterError as error:
                self.failed.append((process, error))
                continue
            patience = POLL_SECONDS if is_without_daemon(started_with) else self.answer_seconds
            deadline = time.monotonic() + min(patience, self.answer_seconds)
            target = _Target(process, file, started_with, deadline)
            self._targets[process.pid] = target
            try:
                file.check_space()
            except GpuExporterError as error:
                self._fail(target, error)

    def _handle(self, socket: DaemonSocket, peer: Peer, datagram: bytes) -> None:
        """Answer a datagram. Processes that are no targets get no answer, which libkineto does not mind."""
        target = self._targets.get(peer.pid)
        if target is None:
            return
        try:
            message = kineto_daemon.decode(datagram)
        except ValueError as error:
            target.complaint = f"it sent garbage: {error}"
            return
        if isinstance(message, Registration):
            socket.reply(peer, kineto_daemon.registered(1))
            return
        if target.settled or target.requested_at:
            socket.reply(peer, configuration(""))
            return
        if not message.accepts:
            target.complaint = "another profiler is active in it: try again when that has ended"
            socket.reply(peer, configuration(""))
        elif not socket.may_reply(peer):
            target.complaint = f"its {SOCKET_DIR} is written differently: write it without a slash at the end"
        else:
            self._request(socket, peer, target)

    def _request(self, socket: DaemonSocket, peer: Peer, target: _Target) -> None:
        """Request the trace; with several processes, for the moment at which all can begin."""
        options, now = self.options, time.time()
        if len(self._targets) > 1 and self._start is None:
            self._start = now + POLL_SECONDS + SLACK_SECONDS + options.warm_up
            for other in self._targets.values():
                other.deadline = min(other.deadline, time.monotonic() + POLL_SECONDS)
        text = trace_configuration(options, target.file.requested, self._start)
        if not socket.reply(peer, configuration(text)):
            target.complaint = "it did not read the answer"
            return
        target.requested_at = time.monotonic()
        # Without a start, libkineto adds two seconds to the warm-up.
        delay = self._start - now if self._start else options.warm_up + 2.0
        target.deadline = time.monotonic() + delay + options.seconds + self.write_seconds
        target.latest = target.deadline - self.write_seconds + MOST_WRITE_SECONDS

    # --- the file ---------------------------------------------------------------------------------------------------

    def _check_all(self, now: float) -> None:
        for target in self._targets.values():
            if not target.settled:
                self._check(target, now)

    def _check(self, target: _Target, now: float) -> None:
        """Take the trace of a target if it is complete, or find out why there will be none."""
        process, file = target.process, target.file
        if target.requested_at and file.is_complete():
            try:
                descriptor = file.take()
            except GpuExporterError as error:
                self._fail(target, error)
                return
            self.taken.append(TakenTrace(process, descriptor, target.requested_at, now))
            target.settled = True
            return
        if not is_alive(self.files, process):
            when = "while it recorded its trace" if target.requested_at else "before it was asked for a trace"
            self._fail(target, GpuExporterError(f"{process.title}: it ended {when}"))
            return
        if not target.requested_at:
            if now > target.deadline:
                why = no_answer(target.complaint, target.environment)
                self._fail(target, GpuExporterError(f"{process.title}: {why}"))
            return
        self._check_written(target, now)

    def _check_written(self, target: _Target, now: float) -> None:
        """Fail if the file is too large, or does not grow any more."""
        title, written = target.process.title, target.file.written_bytes()
        if written > MOST_TRACE_BYTES:
            fix = "use a shorter --seconds, or --no-stacks"
            self._fail(target, GpuExporterError(f"{title}: its trace exceeds {MOST_TRACE_BYTES >> 20} MiB", fix=fix))
            return
        if written > target.written:
            target.written = written
            target.deadline = min(max(target.deadline, now + self.write_seconds / 2), target.latest)
        if now > target.deadline:
            if target.file.free_bytes() < 1 << 20:
                why = f"the file system of {target.file.path} is full"
            else:
                why = "it accepted the request, but wrote no trace: its log says why"
            self._fail(target, GpuExporterError(f"{title}: {why}"))

    def _fail(self, target: _Target, error: GpuExporterError) -> None:
        self.failed.append((target.process, error))
        target.settled = True


def trace_folder(wanted: PurePosixPath | None, started_with: Mapping[str, str] | None) -> PurePosixPath:
    """Return the folder, as the job sees it, for its trace. Raises GpuExporterError if it is no absolute path."""
    folder = wanted or PurePosixPath((started_with or {}).get(TRACE_DIR) or DEFAULT_TRACE_DIR)
    if not folder.is_absolute() or ".." in folder.parts or not str(folder).isprintable():
        name = "--trace-dir" if wanted else TRACE_DIR
        raise GpuExporterError(f"{name}: {printable(str(folder), 100)} is not an absolute path without '..'")
    return folder


def socket_folder(environments: Sequence[Mapping[str, str] | None]) -> Path | None:
    """Return the folder of the socket that these processes use; None for the abstract socket.

    Raises GpuExporterError if they use different ones.
    """
    folders = {started_with.get(SOCKET_DIR, "") for started_with in environments if started_with is not None}
    if len(folders) > 1:
        raise GpuExporterError(f"the processes have different {SOCKET_DIR}: choose some of them with --pid")
    text = folders.pop() if folders else ""
    return Path(text) if text else None


def check_socket_folder(folder: Path, processes: Sequence[Process]) -> None:
    """Raise GpuExporterError for a folder that a job named, but its user may not write to.

    A job could otherwise make root create a socket anywhere.
    """
    try:
        about = folder.stat()
    except OSError as error:
        fix = "it must be the same folder in the job and here"
        raise GpuExporterError(f"{SOCKET_DIR}={printable(str(folder), 100)}: {error.strerror}", fix=fix) from error
    for process in processes:
        if about.st_uid != process.uid and not about.st_mode & stat.S_IWOTH:
            text = f"its user {process.uid} may not write to its {SOCKET_DIR}, {printable(str(folder), 100)}"
            raise GpuExporterError(f"{process.title}: {text}", fix="if you trust it, give the folder with --socket-dir")


def is_without_daemon(started_with: Mapping[str, str] | None) -> bool:
    """Return whether a process was started without the variable; it may have set it itself before it imported torch."""
    return started_with is not None and started_with.get(USE_DAEMON, "") in ("", "0")


def no_answer(complaint: str, started_with: Mapping[str, str] | None) -> str:
    """Return why a process did not ask for a trace, and what to do about it."""
    if complaint:
        return complaint
    if is_without_daemon(started_with):
        return f"it was not started with {USE_DAEMON}=1: set it in the job, or leave out --trace to sample stacks"
    return (
        f"it did not ask for a trace: it must import torch, run with {USE_DAEMON}=1 and reach the socket; in a"
        f" container, set {SOCKET_DIR} to a folder that both share, and give it with --socket-dir"
    )
