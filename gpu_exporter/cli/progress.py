"""Progress of a command that takes a while, on a terminal only: what is piped stays as it is."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from gpu_exporter.reports.numbers import percent

REDRAW_SECONDS = 0.25
BAR = 20


def has_colour() -> bool:
    """Return whether stdout is a terminal on which colour is wanted (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


class Progress:
    """Shows `what`, and how much of `seconds` has passed, on stderr until the end of the `with` block.

    With `share`, it shows that ratio instead, such as how much of a file was read. On a terminal that cannot rewrite a
    line, it is printed once. If stderr is no terminal, nothing is.
    """

    def __init__(self, what: str, seconds: float | None = None, share: Callable[[], float] | None = None) -> None:
        self._share = share
        self._what, self._seconds, self._begin = what, seconds, time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if sys.stderr and sys.stderr.isatty():
            if os.environ.get("TERM", "dumb") == "dumb":
                self._write(f"{self._what} …\n")
            else:
                with suppress(RuntimeError):  # no thread can be started
                    self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._done.wait(REDRAW_SECONDS):
            self._write(f"\r\x1b[K{self._line()[: shutil.get_terminal_size().columns - 1]}")
        self._write("\r\x1b[K")

    def _line(self) -> str:
        passed = time.monotonic() - self._begin
        if self._share is not None:
            share = min(max(self._share(), 0.0), 1.0)
            return f"{self._what} [{'#' * round(share * BAR):.<{BAR}}] {percent(share)}, {passed:.0f} s"
        if self._seconds is None:
            return f"{self._what} … {passed:.0f} s"
        share = min(passed / self._seconds, 1.0)
        full = round(share * BAR)
        return (
            f"{self._what} [{'#' * full}{'.' * (BAR - full)}] {min(passed, self._seconds):.0f} of {self._seconds:.0f} s"
        )

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
