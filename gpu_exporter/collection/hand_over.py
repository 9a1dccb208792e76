"""The hand-over: the driver is let go of for a time, so that it can be replaced, a GPU reset or MIG changed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from gpu_exporter.model.source import Source

log = logging.getLogger(__name__)


class Release:
    """A request to hold nothing of the driver until a time. `open_files` are those that stayed open all the same."""

    def __init__(self, seconds: float) -> None:
        self.closed = False
        self.open_files: tuple[str, ...] = ()
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """It ends so many seconds from now; `until` is when in unix time."""
        self.until = time.time() + seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until it ends by itself."""
        return max(0.0, self._end - time.monotonic())

    @property
    def done(self) -> bool:
        """Nothing of the driver is held."""
        return self.closed and not self.open_files

    def close(self, source: Source) -> None:
        """Close the library, and see what is left. No call may be inside."""
        source.close()
        self.open_files = device_files() if source.live else ()
        self.closed = True
        if self.open_files:
            log.warning("source %s is %s, but holds %s", source.name, self, ", ".join(self.open_files))
        else:
            log.info("source %s is %s", source.name, self)

    def held(self, busy: Sequence[int]) -> str:
        """What keeps it from being done, in one line, if these GPUs are inside a driver call; else nothing."""
        if self.closed:
            return f"still open: {', '.join(self.open_files)}" if self.open_files else ""
        where = f"GPU {', '.join(map(str, busy))}" if busy else "the library"
        return f"{where}: a driver call does not return; when it does, the driver is let go of"

    def __str__(self) -> str:
        return f"released until {datetime.fromtimestamp(self.until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


class HandOver:
    """The present release, if there is one. `notice` is called when that changes."""

    def __init__(self, notice: Callable[[], None]) -> None:
        self.release: Release | None = None
        self._notice = notice
        self._lock = threading.Lock()

    def begin(self, seconds: float) -> None:
        """Let go of the driver for so long; if it is let go of already, for so long from now on."""
        with self._lock:
            if self.release:
                self.release.extend(seconds)
            else:
                self.release = Release(seconds)
        self._notice()

    def end(self) -> bool:
        """Take the driver up again. False if it is not released."""
        with self._lock:
            release, self.release = self.release, None
        self._notice()
        return release is not None

    def present(self) -> Release | None:
        """The release that holds now: one whose time is over does not."""
        with self._lock:
            if self.release and not self.release.left:
                log.info("nobody resumed in time: the release is over")
                self.release = None
            return self.release


def device_files(descriptors: Path = Path("/proc/self/fd"), prefix: str = "/dev/nvidia") -> tuple[str, ...]:
    """The driver's device files that this process has open."""
    found = set()
    try:
        for entry in descriptors.iterdir():
            try:
                found.add(os.readlink(entry))
            except OSError:  # closed meanwhile, as is the one that lists them
                continue
    except OSError:
        return ()
    return tuple(sorted(name for name in found if name.startswith(prefix)))
