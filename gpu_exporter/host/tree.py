"""The processes below a process that uses a GPU: its loader workers and other helpers."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from gpu_exporter.host import sample
from gpu_exporter.host.files import HostFiles

# How often all threads are asked for their children, and limits are read again.
SCAN_SECONDS = 10.0
MOST_DESCENDANTS = 1024


@dataclass(slots=True)
class Tree:
    """The descendants of the process `root`, without those that use a GPU themselves and without what these started."""

    root: int
    pids: frozenset[int] = frozenset()
    supported: bool = True
    # Those that only a thorough scan finds: children of other threads, and grandchildren.
    _deep: frozenset[int] = field(default=frozenset())

    def scan(self, files: HostFiles, on_gpus: Container[int], *, thorough: bool) -> None:
        """Look for descendants: children of the main thread only, or `thorough`."""
        try:
            direct = {pid for pid in sample.children(files, self.root, thorough=thorough) if pid not in on_gpus}
        except FileNotFoundError:
            self.supported = False
            return
        self.supported = True
        if thorough:
            self._deep = frozenset(self._below(files, direct, on_gpus))
        self.pids = frozenset(direct) | self._deep

    def forget(self, pid: int) -> None:
        """Forget a descendant that has ended."""
        self.pids -= {pid}
        self._deep -= {pid}

    def _below(self, files: HostFiles, direct: set[int], on_gpus: Container[int]) -> set[int]:
        seen, waiting = set(direct), list(direct)
        while waiting and len(seen) < MOST_DESCENDANTS:
            try:
                more = sample.children(files, waiting.pop(), thorough=True)
            except FileNotFoundError:  # it has ended
                continue
            new = {pid for pid in more if pid not in seen and pid not in on_gpus}
            seen |= new
            waiting.extend(new)
        return seen
