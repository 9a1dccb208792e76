"""The owners of the processes on the GPUs, read from procfs.

The names of containers are in files of the container runtime, which only privileged users can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, TypeVar

from gpu_exporter.host.procfs import TICKS
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import FILE_SECONDS, FileWorker
from gpu_exporter.kubernetes import limits
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.owners import files
from gpu_exporter.owners.cgroup import ProcessOwner, process_owner

T = TypeVar("T")

LARGEST_CONFIG = 16 << 20
DOCKER = "var/lib/docker/containers/{}/config.v2.json"
PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"


class _DockerContainer(TypedDict, total=False):
    Name: str


class _PodmanContainer(TypedDict, total=False):
    id: str
    names: list[str] | None


def container_name(owner: ProcessOwner, root: Path) -> str:
    """Return the name of a container; empty if it cannot be determined, or is too long."""
    name = ""
    if owner.runtime == "docker":
        container = _json(root / DOCKER.format(owner.container), _DockerContainer)
        name = container.get("Name", "").removeprefix("/") if container else ""
    elif owner.runtime == "podman":
        for listed in _json(root / PODMAN, list[_PodmanContainer]) or ():
            names = listed.get("names")
            if listed.get("id") == owner.container and names:
                name = names[0]
    return name if len(name) <= limits.LONGEST_POD else ""


def _json(path: Path, kind: type[T]) -> T | None:
    try:
        answer = files.read(path, LARGEST_CONFIG)
        return json_as(kind, answer[0]) if answer else None
    except (OSError, ValueError):
        return None


LARGEST_FILE = 64 << 10
SLACK_SECONDS = 0.05

Processes = Mapping[int, ProcessOwner]


class ProcessLookup:
    """Looks up the owners of the PIDs in `wanted`, whose values are when the driver reported them (seconds since boot).

    An owner belongs to a PID and the start time of its process, because PIDs are reused.
    """

    def __init__(self, procfs: Path, patience: float = FILE_SECONDS) -> None:
        self._procfs, self._patience = procfs, patience
        self._worker = FileWorker("processes-files")
        self._owners: dict[tuple[int, int], ProcessOwner] = {}
        self.wanted: Mapping[int, float] = {}

    def ask(self) -> Processes:
        """Return the owners by PID, without PIDs whose owner cannot be determined. Raises LookupFailed."""
        return files.call_in_time(self._ask, self._worker, str(self._procfs), self._patience)

    def _ask(self) -> Processes:
        wanted, before = self.wanted, self._owners
        if wanted and not self._procfs.is_dir():
            raise LookupFailed("no_procfs", f"{self._procfs} does not exist", fix="check --procfs")
        self._owners = {}
        for pid, named_at in wanted.items():
            started = self._started(pid)
            if started is None or started / TICKS > named_at + SLACK_SECONDS:
                continue
            owner = before.get((pid, started)) or self._owner(pid)
            if owner and ((pid, started) in before or self._started(pid) == started):
                self._owners[pid, started] = owner
        return {pid: owner for (pid, _), owner in self._owners.items()}

    def _started(self, pid: int) -> int | None:
        """Return the ticks from the boot to the start of a process; None if it does not exist."""
        if (self._procfs / str(pid)).is_symlink():
            return None
        # The process chooses its name, which may contain blanks and parentheses.
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() and fields[19].isascii() else None

    def _owner(self, pid: int) -> ProcessOwner | None:
        owner = process_owner(self._read(f"{pid}/cgroup"))
        if owner and owner.job and not owner.user:
            try:
                return replace(owner, user=str((self._procfs / str(pid)).stat().st_uid))
            except OSError:
                return None
        # procfs may be the host's, mounted elsewhere: the runtime's files are below the same mount
        return replace(owner, name=container_name(owner, self._procfs.parent)) if owner else None

    def _read(self, path: str) -> str:
        try:
            answer = files.read(self._procfs / path, LARGEST_FILE)
        except OSError:
            return ""
        return answer[0].decode("utf-8", "replace") if answer else ""
