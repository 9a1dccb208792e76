"""The loop of the live view: it draws the latest view when there is one, and handles keys. On one thread."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.top.lines import glyphs
from gpu_exporter.top.terminal import ENDS, Terminal

if TYPE_CHECKING:
    from gpu_exporter.top.feeds import Feed

# The screen is drawn at least so often: the clock, and the age of values that are old.
REDRAW_SECONDS = 1.0
# A terminal that cannot move its cursor gets a table below the last one, so often.
DUMB_SECONDS = 5.0
# How late that is, and the end after Ctrl-C.
WAKE_SECONDS = 0.1
STARTING = "  Starting: reading the first values …"


class _Starter(threading.Thread):
    """Makes and starts the feed, while the first screen is already drawn: its imports take most of the start."""

    def __init__(self, make: Callable[[], Feed], changed: Callable[[], None]) -> None:
        super().__init__(name="start", daemon=True)
        self._make, self._changed = make, changed
        self.feed: Feed | None = None
        self.error: GpuExporterError | None = None
        self.unexpected: Exception | None = None

    def run(self) -> None:
        try:
            feed = self._make()
            feed.start(self._changed)
            self.feed = feed
        except GpuExporterError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self.unexpected = error
        self._changed()

    def check(self) -> None:
        """Raise what went wrong."""
        if self.unexpected:
            raise self.unexpected
        if self.error:
            raise self.error


def run(make: Callable[[], Feed]) -> bool:
    """Show the feed until the user quits. Return False if a driver call is stuck. Raises GpuExporterError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsage(
            "top needs a terminal; use `gpu-exporter diagnose`, or `gpu-exporter top --once --recording FILE`"
        )
    logging.disable(logging.WARNING)  # the view shows what would be logged
    console = Console()
    if console.is_dumb_terminal:
        return _run_dumb(make)
    terminal = Terminal(console)
    starter = _Starter(make, terminal.wake)
    terminal.enter()
    try:
        _loop(terminal, starter)
    finally:
        terminal.leave()
    return starter.feed.stop() if starter.feed else True


def _loop(terminal: Terminal, starter: _Starter) -> None:
    terminal.draw([(), ((STARTING, ""),)])  # type: ignore[list-item]  # a span is a pair
    starter.start()
    while not starter.feed:
        keys, ends = terminal.wait(REDRAW_SECONDS)
        starter.check()
        if ends or "q" in keys or "ctrl-c" in keys:
            return
    from gpu_exporter.top.screen import Screen  # the starter has imported what it needs

    screen = Screen(glyphs(sys.stdout.encoding))
    while True:
        screen.size = terminal.size
        terminal.draw(screen.lines(starter.feed.view))
        keys, ends = terminal.wait(REDRAW_SECONDS)
        for key in keys:
            screen.press(key)
        if ends or screen.done:
            return


def _run_dumb(make: Callable[[], Feed]) -> bool:
    """Print a table again and again, until Ctrl-C."""
    from gpu_exporter.top.lines import ASCII
    from gpu_exporter.top.screen import Screen

    ended: list[int] = []

    def end(number: int, _frame: object) -> None:
        if ended:  # the terminal may take no more output
            raise KeyboardInterrupt
        ended.append(number)

    # An exception that a handler raises is lost in a destructor.
    for number in ENDS:
        signal.signal(number, end)
    changed, due = threading.Event(), 0.0
    starter = _Starter(make, changed.set)
    starter.start()
    screen = Screen(ASCII, size=(Console().width, 100))
    while not ended:
        time.sleep(WAKE_SECONDS)
        if not changed.is_set() or time.monotonic() < due:
            continue
        changed.clear()
        starter.check()
        if starter.feed and starter.feed.view.since:
            lines = ["".join(span.text for span in line).rstrip() for line in screen.lines(starter.feed.view)[:-1]]
            print("\n".join(lines).rstrip(), flush=True)
            due = time.monotonic() + DUMB_SECONDS
    return starter.feed.stop() if starter.feed else True
