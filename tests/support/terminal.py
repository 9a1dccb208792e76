"""A program in a pseudo-terminal, and what its screen shows: enough of a terminal for what `top` writes."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence

from rich.cells import cell_len

from tests.support.tools import PATIENCE, until

CODE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """The characters on a screen. `raw` is all that was written, `alternate` whether the program owns the screen."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.raw = ""
        self.alternate = False
        self._cells = [[" "] * columns for _ in range(rows)]
        self._row = self._column = 0
        self._rest = ""
        # After a change of the size, what was drawn for the old one may still come.
        self._outdated = False

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the program draws everything again."""
        self.columns, self.rows = columns, rows
        self._cells = [[" "] * columns for _ in range(rows)]
        self._outdated = True

    def feed(self, text: str) -> None:
        """Interpret what the program wrote."""
        self.raw += text
        text, self._rest = self._rest + text, ""
        while text:
            if text[0] == "\x1b":
                match = CODE.match(text)
                if not match:
                    self._rest = text
                    return
                self._code(match[1], match[2])
                text = text[match.end() :]
            else:
                self._put(text[0])
                text = text[1:]

    def _code(self, numbers: str, kind: str) -> None:
        if kind == "H":
            row, column = (int(number) for number in (numbers or "1;1").split(";"))
            self._row, self._column = row - 1, column - 1
        elif kind == "J":
            self._outdated = False
            self._cells = [[" "] * self.columns for _ in range(self.rows)]
        elif kind == "K" and self._row < self.rows:
            self._cells[self._row] = [" "] * self.columns
        elif numbers == "?1049":
            self.alternate = kind == "h"

    def _put(self, char: str) -> None:
        if char in "\r\n":
            return
        assert char.isprintable(), f"a control character reached the terminal: {char!r}"
        if not self.alternate or self._outdated:  # these lines are broken, and scroll
            return
        assert self._column < self.columns, f"a line is longer than {self.columns} columns: {self.text}"
        if self._row < self.rows:
            self._cells[self._row][self._column] = char
            for place in range(self._column + 1, self._column + cell_len(char)):
                self._cells[self._row][place] = ""
        self._column += cell_len(char)

    @property
    def text(self) -> str:
        """The lines, without blanks at their ends; of a program that does not own the screen, all that it printed."""
        if not self.alternate:
            return self.raw.rpartition("\x1b[?1049l")[2].replace("\r", "")
        return "\n".join("".join(cells).rstrip() for cells in self._cells)


class Terminal:
    """A program in a pseudo-terminal of this size."""

    def __init__(self, command: Sequence[str], *, size: tuple[int, int] = (80, 24), env: Mapping[str, str]) -> None:
        self.screen = Screen(*size)
        # They would override the size of the terminal.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                os.execve(command[0], list(command), {**inherited, "TERM": "xterm-256color", "NO_COLOR": "", **env})
            finally:
                os._exit(127)
        self._set_size(*size)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, as a window manager does."""
        self.read(0)
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type these characters."""
        os.write(self._fd, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""
        os.kill(self._pid, number)

    def read(self, seconds: float) -> bool:
        """Read what the program wrote within these seconds. Return False if it has ended."""
        while select.select([self._fd], [], [], seconds)[0]:
            try:
                content = os.read(self._fd, 1 << 16)
            except OSError:  # the other end is closed
                return False
            if not content:
                return False
            self.screen.feed(self._decoder.decode(content))
            seconds = 0
        return True

    def until(self, holds: Callable[[str], object], seconds: float = 15.0) -> str:
        """Read until the text of the screen fulfils a condition, and return it."""
        end = time.monotonic() + PATIENCE * seconds
        while not holds(self.screen.text):
            alive = self.read(0.05)
            assert alive or holds(self.screen.text), f"it ended; the screen showed:\n{self.screen.text}"
            assert time.monotonic() < end, (
                f"never came true; the screen shows:\n{self.screen.text}\nlast written: {self.screen.raw[-300:]!r}"
            )
        return self.screen.text

    def end(self, seconds: float = 15.0) -> int:
        """Read until the program ends, and return its exit code."""
        end = time.monotonic() + PATIENCE * seconds
        while self.read(0.05):
            assert time.monotonic() < end, f"does not end; the screen shows:\n{self.screen.text}"
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def stalled(self, polls: int = 30) -> None:
        """Read nothing until the program has filled the buffer of the terminal: nothing more comes for some polls."""
        unread, same = -1, 0

        def full() -> bool:
            nonlocal unread, same
            now = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0" * 4))[0]
            unread, same = now, same + 1 if now == unread and now > 1000 else 0
            return same > polls

        until(full, 30.0, "a full buffer")

    def exit_code(self) -> int:
        """Wait for the end of the program without reading, and return its exit code."""

        def ended() -> tuple[int, int] | None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            return (pid, status) if pid else None

        found = until(ended, 15.0, "the end")
        assert found
        self._pid = 0
        return os.waitstatus_to_exitcode(found[1])

    def close(self) -> None:
        """Kill the program if it still runs."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)
