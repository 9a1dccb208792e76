"""Command lines of processes on this machine, read on a thread of its own: procfs waits for a process that hangs."""

from __future__ import annotations

import queue
import threading
import time

from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable

LONGEST = 400
# A PID may be reused, so its command is read again after this time.
VALID_SECONDS = 30.0
# Enough for thousands of processes; more are left out.
MOST = 4096


class CommandLines(threading.Thread):
    """Knows the commands of the processes that were asked for. `command` never blocks."""

    def __init__(self, files: HostFiles) -> None:
        super().__init__(name="commands", daemon=True)
        self._files = files
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        # By PID: the command, empty if it cannot be read, and when it was asked for.
        self._known: dict[str, tuple[str, float]] = {}

    def command(self, pid: str) -> str:
        """Return the command of a process, and read it for the next time; empty if it is not known yet."""
        now = time.monotonic()
        command, asked = self._known.get(pid, ("", float("-inf")))
        if now - asked > VALID_SECONDS and pid.isdecimal():
            if len(self._known) >= MOST:
                self._known = {key: value for key, value in self._known.items() if now - value[1] <= VALID_SECONDS}
            if len(self._known) < MOST:
                self._known[pid] = command, now
                self._wanted.put(pid)
        return command

    def run(self) -> None:
        while pid := self._wanted.get():
            self._known[pid] = self._read(pid), time.monotonic()

    def stop(self) -> None:
        """End the thread; does not wait for it."""
        self._wanted.put("")

    def _read(self, pid: str) -> str:
        try:
            content = self._files.proc(f"{pid}/cmdline")
        except OSError:
            return ""
        return printable(content.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace"), LONGEST)
