"""The terminal: its size, keys as they are pressed, and a screen of which only the lines that changed are written.

Rich provides colours and the width of characters. Textual would provide the rest, too, but a small program with it
starts 0.2 s later, and needs 2.7 % of a core for one update per second.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style

from gpu_exporter.top.lines import ASCII, STYLES, Line, glyphs

# What terminals send for keys.
KEYS = {
    **{"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "pgup", "\x1b[6~": "pgdn"},
    **{"\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end"},
    **{"\x1bOP": "f1", "\x1b[11~": "f1", "\x1bOR": "f3", "\x1b[13~": "f3", "\x1bOS": "f4", "\x1b[14~": "f4"},
    **{"\x1b[17~": "f6", "\x1b[21~": "f10", "\t": "tab"},
    **{"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "esc", "\x03": "ctrl-c"},
}
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|)|.", re.DOTALL)
CUT_OFF = re.compile(rb"\x1b(?:\[[0-9;?]*|O)?\Z")
REST_SECONDS = 0.05
# By the names of Rich. A terminal without colours gets no codes at all, not even for bold text.
COLOURS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
# What replaces characters that an old encoding lacks.
NOT_ASCII = str.maketrans({"°": " ", "…": "~", "±": "~"})
SMALLEST = (20, 4)
ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# A terminal takes so many bytes without blocking once it is writable.
CHUNK = 256
# How long a stalled link can delay the end.
LEAVE_SECONDS = 0.5
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"


def keys_of(text: str) -> Iterator[str]:
    """Yield the keys of what a terminal sent. Sequences that mean nothing here are skipped."""
    for sequence in SEQUENCE.findall(text):
        if sequence in KEYS:
            yield KEYS[sequence]
        elif len(sequence) == 1 and sequence.isprintable():
            yield sequence


class Terminal:
    """Owns the terminal between `enter` and `leave`. `wake` may be called on any thread."""

    def __init__(self, console: Console) -> None:
        self._console, self._input, self._output = console, sys.stdin.fileno(), sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "ascii"
        self._missing = NOT_ASCII if glyphs(self._encoding) is ASCII else {}
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        # Signals and wake-ups that came while something was written, and whether the terminal is gone.
        self._noticed, self._gone = b"", False
        self._written: list[str] = []
        self._settings: list[Any] = []
        self._codes: dict[str, tuple[str, str]] = {}

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = os.get_terminal_size(self._output)
        return max(size.columns, SMALLEST[0]), max(size.lines, SMALLEST[1])

    def enter(self) -> None:
        """Take the whole screen, and read keys one by one. Signals wake `wait`."""
        self._settings = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP):
            signal.signal(number, lambda *_: None)
        self._write(ENTER)
        self._written = []

    def leave(self) -> None:
        """Give the screen back as it was."""
        if self._settings:
            self._write(LEAVE, LEAVE_SECONDS)
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._input, termios.TCSANOW, self._settings)
            self._settings = []

    def wake(self) -> None:
        """Let `wait` return."""
        with suppress(BlockingIOError):  # it will return anyway
            os.write(self._writer, b"\0")

    def wait(self, seconds: float) -> tuple[list[str], bool]:
        """Wait for keys, a call of `wake`, a signal or the timeout. Return the keys, and whether to end."""
        ready, _, _ = select.select([self._input, self._reader], [], [], 0 if self._noticed else seconds)
        keys, ends = [], self._gone
        if self._reader in ready:
            self._noticed += os.read(self._reader, 4096)
        noticed, self._noticed = self._noticed, b""
        ends = self._signals(noticed) or ends
        if self._input in ready:
            content = self._typed()
            while CUT_OFF.search(content) and select.select([self._input], [], [], REST_SECONDS)[0]:
                content += self._typed()  # the rest of a sequence that a slow link divided
            keys = list(keys_of(content.decode("utf-8", "ignore")))
            ends = ends or not content  # the terminal is gone
        return keys, ends

    def _typed(self) -> bytes:
        """Return what was typed; nothing if the terminal is gone."""
        try:
            return os.read(self._input, 4096)
        except OSError:
            return b""

    def _signals(self, numbers: bytes) -> bool:
        if signal.SIGTSTP in numbers:
            self.leave()
            os.kill(os.getpid(), signal.SIGSTOP)
            self.enter()
        if signal.SIGWINCH in numbers:
            self._written = []
        return not ENDS.isdisjoint(numbers)

    def draw(self, lines: Sequence[Line]) -> None:
        """Write the lines that differ from those on the screen."""
        rendered = [self.rendered(line) for line in lines]
        if len(rendered) != len(self._written):
            self._written = [""] * len(rendered)
            parts = ["\x1b[2J"]
        else:
            parts = []
        for place, (new, old) in enumerate(zip(rendered, self._written, strict=True), 1):
            if new != old:
                parts.append(f"\x1b[{place};1H\x1b[2K{new}\x1b[0m")
        self._written = rendered
        if parts:
            self._write("".join(parts))

    def rendered(self, line: Line) -> str:
        """Return a line with the codes of its styles."""
        return "".join(self._styled(text, style) if style else text for text, style in line)

    def _styled(self, text: str, name: str) -> str:
        if name not in self._codes:
            style = Style.parse(STYLES[name])
            if self._console.no_color:
                style = style.without_color
            system = COLOURS.get(self._console.color_system or "")
            before, _, after = style.render("\0", color_system=system).partition("\0")
            self._codes[name] = before, after
        before, after = self._codes[name]
        return f"{before}{text}{after}"

    def _write(self, text: str, seconds: float | None = None) -> None:
        """Write all of a text, but give up for a signal that ends the program, or after `seconds`.

        A link may stall for any time. (With sys.stdout, a signal such as SIGWINCH can also cut off the rest.)
        """
        content = memoryview(text.translate(self._missing).encode(self._encoding, "replace"))
        while content and not self._gone:
            readers = [self._reader] if seconds is None else []
            ready, writable, _ = select.select(readers, [self._output], [], seconds)
            if ready:
                self._noticed += os.read(self._reader, 4096)
            if not writable and (seconds is not None or not ENDS.isdisjoint(self._noticed)):
                return
            try:
                content = content[os.write(self._output, content[:CHUNK]) :] if writable else content
            except BlockingIOError:  # another program has made the terminal non-blocking
                continue
            except OSError:
                self._gone = True
