"""A hand-over: the exporter closes the driver for a time, so that someone can replace the driver or reset a GPU."""

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


class HandOver:
    """A request to hand the driver over until a certain time. `open_files` are device files that stayed open."""

    def __init__(self, seconds: float) -> None:
        self.closed = False
        self.open_files: tuple[str, ...] = ()
        self.extend(seconds)

    def extend(self, seconds: float) -> None:
        """End the hand-over this many seconds from now; `until` is that moment in unix time."""
        self.until = time.time() + seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until it ends by itself."""
        return max(0.0, self._end - time.monotonic())

    @property
    def done(self) -> bool:
        """Whether the driver is released completely."""
        return self.closed and not self.open_files

    def close(self, source: Source) -> None:
        """Close the library, and check which files are still open. No call may be inside the library."""
        source.close()
        self.check_files(source)
        self.closed = True
        if self.open_files:
            log.warning("source %s is %s, but still has %s open", source.name, self, ", ".join(self.open_files))

    def check_files(self, source: Source) -> None:
        """Check again which files are open: a part of the source may need some seconds to end."""
        self.open_files = device_files() if source.live else ()
        if not self.open_files:
            log.info("source %s is %s", source.name, self)

    def problem(self, busy: Sequence[int]) -> str:
        """Return why the hand-over is not complete, in one line; empty if it is. `busy` are GPUs in a driver call."""
        if self.closed:
            return f"still open: {', '.join(self.open_files)}" if self.open_files else ""
        where = f"GPU {', '.join(map(str, busy))}" if busy else "the library"
        return f"{where}: a driver call does not return; when it does, the driver is released"

    def __str__(self) -> str:
        return f"released until {datetime.fromtimestamp(self.until, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


class HandOverState:
    """The current hand-over, if there is one. `notify` is called when that changes."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self.hand_over: HandOver | None = None
        self._notify = notify
        self._lock = threading.Lock()

    def begin(self, seconds: float) -> None:
        """Hand the driver over for this many seconds from now; extend a hand-over that is in force."""
        with self._lock:
            if self.hand_over:
                self.hand_over.extend(seconds)
            else:
                self.hand_over = HandOver(seconds)
        self._notify()

    def end(self) -> bool:
        """Use the driver again. Return False if it is not released."""
        with self._lock:
            ended, self.hand_over = self.hand_over, None
        self._notify()
        return ended is not None

    def current(self) -> HandOver | None:
        """Return the hand-over that is in force now; end one whose time is over."""
        with self._lock:
            if self.hand_over and not self.hand_over.left:
                log.info("the release has expired; reconnecting")
                self.hand_over = None
            return self.hand_over


def device_files(descriptors: Path = Path("/proc/self/fd")) -> tuple[str, ...]:
    """Return the driver's device files that this process has open."""
    targets = set()
    try:
        for entry in descriptors.iterdir():
            try:
                targets.add(os.readlink(entry))
            except OSError:  # closed meanwhile, as is the descriptor of this listing
                continue
    except OSError:
        return ()
    return tuple(sorted(name for name in targets if name.startswith("/dev/nvidia")))
