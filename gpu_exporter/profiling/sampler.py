"""Who samples stacks for the exporter: the exporter itself, or a process beside it that may read other processes."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.profiling import pyspy
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import SLACK_SECONDS, NotSampled, Sampling, SamplingFailure
from gpu_exporter.profiling.triggers import MOST_WRITTEN_BYTES

VERSION = 1
# For a request and for an answer to be transferred.
TRANSFER_SECONDS = 5.0
MOST_REQUEST_BYTES = 4 << 10
MOST_ANSWER_BYTES = 2 * MOST_WRITTEN_BYTES
MOST_WHY = 300
# The major number of /dev/nvidia0 and so on. From FIRST_CONTROL on, minors are control devices, which hold no GPU.
NVIDIA_MAJOR, FIRST_CONTROL = 195, 254


class Sampler(Protocol):
    """Samples the stacks of processes."""

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        """Return the folded stacks of each process by PID, or why there are none. Raises OSError without disk."""


@dataclass(frozen=True, slots=True)
class LocalSampler:
    """Runs py-spy. It writes below `scratch`."""

    py_spy: Path
    files: HostFiles
    scratch: Path | None = None

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        return pyspy.sample(self.py_spy, processes, sampling, self.files, self.scratch)


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """What a client sends: the processes to sample at the same time, and how."""

    version: int
    pids: tuple[int, ...]
    seconds: float
    rate: int


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """What the server answers about one process: its folded stacks, or why there are none."""

    pid: int
    folded: str = ""
    failure: str = ""
    why: str = ""


def encoded(answers: Sequence[SampleAnswer]) -> bytes:
    """Return answers as they are sent."""
    return json.dumps([asdict(answer) for answer in answers]).encode()


def receive(connection: socket.socket, most: int) -> bytes:
    """Return what the peer sends until it closes its side. Raises OSError, and ValueError beyond `most` bytes."""
    parts, size = [], 0
    while part := connection.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if size > most:
            raise ValueError(f"more than {most >> 10} KiB")
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class RemoteSampler:
    """Asks `gpu-exporter sampler`, which listens on the socket at `path`."""

    path: Path

    def sample(self, processes: Sequence[Process], sampling: Sampling) -> Mapping[int, str | NotSampled]:
        try:
            answers = {answer.pid: answer for answer in self._ask(processes, sampling)}
        except (OSError, ValueError) as error:
            why = printable(getattr(error, "strerror", None) or str(error), MOST_WHY)
            text = f"--profile-socket {self.path}: {why}: is gpu-exporter sampler running?"
            return {process.pid: NotSampled(text, SamplingFailure.SAMPLER) for process in processes}
        return {process.pid: _outcome(process, answers.get(process.pid)) for process in processes}

    def _ask(self, processes: Sequence[Process], sampling: Sampling) -> list[SampleAnswer]:
        request = SampleRequest(VERSION, tuple(process.pid for process in processes), sampling.seconds, sampling.rate)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(sampling.seconds + SLACK_SECONDS + TRANSFER_SECONDS)
            connection.connect(str(self.path))
            connection.sendall(json.dumps(asdict(request)).encode())
            connection.shutdown(socket.SHUT_WR)
            return json_as(list[SampleAnswer], receive(connection, MOST_ANSWER_BYTES))


def _outcome(process: Process, answer: SampleAnswer | None) -> str | NotSampled:
    if answer is None:
        return NotSampled(f"{process.title}: the sample server did not answer about it", SamplingFailure.SAMPLER)
    if answer.folded:
        return answer.folded
    known = answer.failure in {failure.value for failure in SamplingFailure}
    return NotSampled(
        printable(answer.why, MOST_WHY), SamplingFailure(answer.failure) if known else SamplingFailure.OTHER
    )


def holds_gpu(procfs: Path, pid: int, major: int = NVIDIA_MAJOR) -> bool:
    """Return whether a process has the device file of a GPU open. Needs the same permission as reading its stacks."""
    with suppress(OSError), os.scandir(procfs / str(pid) / "fd") as entries:
        for entry in entries:
            with suppress(OSError):  # closed meanwhile
                about = os.stat(entry.path)
                is_device = stat.S_ISCHR(about.st_mode) and os.major(about.st_rdev) == major
                if is_device and os.minor(about.st_rdev) < FIRST_CONTROL:
                    return True
    return False


def local_sampler(files: HostFiles, scratch: Path | None = None) -> LocalSampler:
    """Return the sampler of this process. Raises GpuExporterError if py-spy is not installed."""
    return LocalSampler(pyspy.program(), files, scratch)
