"""`gpu-exporter sampler`: samples stacks for an exporter that may not read other processes itself.

It runs in a container beside the exporter, with SYS_PTRACE and the host's PIDs, and listens on nothing but a Unix
socket that only the exporter's container has mounted. It answers only root, its own user and that of the exporter, and
samples only processes that hold a GPU, one request at a time.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import stat
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.jobs.socket_file import peer
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.processes import Process, look_up
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.sampler import (
    MOST_REQUEST_BYTES,
    MOST_WHY,
    TRANSFER_SECONDS,
    VERSION,
    SampleAnswer,
    Sampler,
    SampleRequest,
    encoded,
    receive,
)
from gpu_exporter.profiling.triggers import MOST_PROCESSES, SECONDS, sampling_of

log = logging.getLogger(__name__)

# The exporter runs as another user, whose connections are accepted: who it is, the kernel says.
MODE = 0o666
MOST_RATE = 100
POLL_SECONDS = 1.0


def checked(content: bytes) -> SampleRequest:
    """Return a request. Raises ValueError for one that an exporter never sends."""
    request = json_as(SampleRequest, content)
    if request.version != VERSION:
        raise ValueError(f"version {request.version}, but this server speaks version {VERSION}: update both")
    if not 0 < request.seconds <= SECONDS or not 0 < request.rate <= MOST_RATE:
        raise ValueError(f"at most {SECONDS:g} s at {MOST_RATE} samples per second")
    if not request.pids or len(request.pids) > MOST_PROCESSES or min(request.pids) < 1:
        raise ValueError(f"1 to {MOST_PROCESSES} processes")
    return request


class SampleServer:
    """Answers requests on a socket until `stop`. `holds` says whether a process holds a GPU.

    Besides root and the user of this process, it answers `users`. The constructor binds the socket, or raises
    GpuExporterError.
    """

    def __init__(
        self, path: Path, sampler: Sampler, files: HostFiles, holds: Callable[[int], bool], users: Collection[int] = ()
    ) -> None:
        self._sampler, self._files, self._holds = sampler, files, holds
        self._users = {0, os.geteuid(), *users}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()  # of an earlier container: nobody else has this folder
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            self._socket.bind(str(path))
            path.chmod(MODE)
            self._socket.listen(1)
        except OSError as error:
            self._socket.close()
            raise _unusable(path, error) from error

    def run(self, stop: threading.Event) -> None:
        """Answer one client after another until `stop`."""
        while not stop.is_set():
            ready, _, _ = select.select([self._socket], [], [], POLL_SECONDS)
            if ready:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):  # the exporter has gone
                    connection.settimeout(TRANSFER_SECONDS)
                    _, uid = peer(connection)
                    if uid in self._users:
                        self._serve(connection)
                    else:
                        log.warning("a request of user %d is refused: --client-uid names the user of the exporter", uid)

    def close(self) -> None:
        """Stop to listen. The file of the socket stays, and the next server replaces it."""
        self._socket.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            request = checked(receive(connection, MOST_REQUEST_BYTES))
        except ValueError as error:
            log.warning("a request is refused: %s", printable(str(error), MOST_WHY))
            return
        connection.sendall(encoded(self.answers(request)))

    def answers(self, request: SampleRequest) -> Sequence[SampleAnswer]:
        """Return the stacks of the processes of a request, or why there are none."""
        processes, answers = list[Process](), list[SampleAnswer]()
        for pid in dict.fromkeys(request.pids):
            try:
                process = look_up(self._files, pid)
            except GpuExporterError as error:
                answers.append(SampleAnswer(pid, "", SamplingFailure.ENDED.value, str(error)))
                continue
            if self._holds(pid):
                processes.append(process)
            else:
                answers.append(
                    SampleAnswer(pid, "", SamplingFailure.NOT_PERMITTED.value, f"{process.title}: holds no GPU")
                )
        log.info("stacks of %s for %g s", ", ".join(each.title for each in processes) or "nothing", request.seconds)
        return [*answers, *self._sampled(processes, sampling_of(request.seconds, request.rate, len(processes)))]

    def _sampled(self, processes: Sequence[Process], sampling: Sampling) -> Sequence[SampleAnswer]:
        if not processes:
            return ()
        try:
            outcomes = self._sampler.sample(processes, sampling)
        except OSError as error:
            why = f"py-spy cannot write its result: {error.strerror}"
            return [SampleAnswer(process.pid, "", SamplingFailure.DISK.value, why) for process in processes]
        return [
            SampleAnswer(pid, "", outcome.failure.value, str(outcome))
            if isinstance(outcome, NotSampled)
            else SampleAnswer(pid, outcome)
            for pid, outcome in outcomes.items()
        ]


def _unusable(path: Path, error: OSError) -> GpuExporterError:
    if error.errno == errno.EADDRINUSE:
        return GpuExporterError(f"--socket {path}: exists, and is not a socket", fix="remove it or use another path")
    return GpuExporterError(f"--socket {path}: {error.strerror or error}", fix="use a path in a folder that exists")
