"""What procfs says about a process that is to be profiled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.processes import ENDED
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError

MOST_COMMAND = 80
MOST_ENVIRONMENT = 4 << 20
RANK = re.compile(r"[0-9]{1,6}", re.ASCII)
NO_PROCESS = (
    "check the PID; a container sees only its own processes unless it shares those of the host (hostPID: true in a pod)"
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process at one moment. `started`, in ticks since the boot, tells it from a later one with the same PID.

    `inner_pid` is its PID in its own PID namespace, and `rank` the variable that torchrun sets.
    """

    pid: int
    started: int
    uid: int
    command: str
    inner_pid: int
    gpus: tuple[int, ...] = ()
    rank: str = ""

    @property
    def title(self) -> str:
        """The process for people: its PID, its command and its GPUs."""
        numbers = ", ".join(map(str, self.gpus))
        on = f" on GPU{'s' if len(self.gpus) > 1 else ''} {numbers}" if self.gpus else ""
        rank = f", rank {self.rank}" if self.rank else ""
        return f"process {self.pid} ({self.command}{rank}){on}"


def look_up(files: HostFiles, pid: int, gpus: tuple[int, ...] = ()) -> Process:
    """Return what procfs says about a process. Raises GpuExporterError if it does not exist or has ended."""
    try:
        stat = procfs.stat(files.proc(f"{pid}/stat"))
        status = files.proc(f"{pid}/status")
        words = files.proc(f"{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
    except OSError as error:
        raise GpuExporterError(f"there is no process {pid} here", fix=NO_PROCESS) from error
    if stat is None or stat.state in ENDED:
        raise GpuExporterError(f"process {pid} has ended")
    text = (words or stat.name).decode("utf-8", "replace")
    inner = _numbers(status, b"NSpid:") or (pid,)
    rank = (environment(files, pid) or {}).get("RANK", "")
    command = printable(text, MOST_COMMAND)
    user = _numbers(status, b"Uid:")[1]
    return Process(pid, stat.started, user, command, inner[-1], gpus, rank if RANK.fullmatch(rank) else "")


def is_alive(files: HostFiles, process: Process) -> bool:
    """Return whether this process still runs, and not another one with its PID."""
    stat = procfs.stat(files.process(f"{process.pid}/stat"))
    return stat is not None and stat.started == process.started and stat.state not in ENDED


def environment(files: HostFiles, pid: int) -> dict[str, str] | None:
    """Return the environment that a process was started with; None if it may not be read."""
    try:
        content = files.proc(f"{pid}/environ", MOST_ENVIRONMENT)
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in content.split(b"\0") if b"=" in entry)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "surrogateescape") for name, _, value in pairs}


def _numbers(status: bytes, name: bytes) -> tuple[int, ...]:
    """Return the numbers in a line of /proc/<pid>/status; none if there is no such line."""
    line = next((line for line in status.splitlines() if line.startswith(name)), b"")
    return tuple(int(word) for word in line.split()[1:] if word.isdigit())
