"""Parents and children of processes: a training loop may send from another process than the one on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles

INIT = 1
# Launchers, wrappers and loader workers are not further away from the process on the GPU.
MOST_GENERATIONS = 8
# PIDs are used again, but not so soon.
REMEMBER_SECONDS = 10.0
MOST_REMEMBERED = 4096


class Family:
    """Finds the relatives of a process in /proc. Its answers are remembered for some seconds."""

    def __init__(self, files: HostFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = files, clock
        self._parents: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._since = clock()

    def relatives(self, pid: int, uid: int, listed: Collection[int]) -> Iterable[int]:
        """Return the nearest parent of a process among `listed`, else its children there, if they are of this user.

        Launchers and loader workers are not on a GPU themselves. PID 0, which is not visible from here, has none.
        """
        if not pid:
            return []
        now = self._clock()
        if now - self._since > REMEMBER_SECONDS or len(self._parents) > MOST_REMEMBERED:
            self._parents, self._users, self._since = {}, {}, now
        above = next((parent for parent in self._ancestors(pid) if parent in listed), None)
        near = [above] if above is not None else [other for other in listed if pid in self._ancestors(other)]
        return [other for other in near if self._user(other) == uid]

    def _ancestors(self, pid: int) -> list[int]:
        """Return the parents of a process, nearest first, without init, which is everyone's parent."""
        found: list[int] = []
        while len(found) < MOST_GENERATIONS and (pid := self._parent(pid)) > INIT:
            found.append(pid)
        return found

    def _parent(self, pid: int) -> int:
        if pid not in self._parents:
            stat = procfs.stat(self._read(f"{pid}/stat"))
            self._parents[pid] = stat.parent if stat else 0
        return self._parents[pid]

    def _user(self, pid: int) -> int:
        if pid not in self._users:
            status = procfs.status(self._read(f"{pid}/status"))
            self._users[pid] = status.uid if status else -1
        return self._users[pid]

    def _read(self, path: str) -> bytes:
        try:
            return self._files.process(path)
        except PermissionError:
            return b""
