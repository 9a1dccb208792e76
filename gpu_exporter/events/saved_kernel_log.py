"""XIDs in a saved kernel log, of any machine, boot and year: the output of `dmesg` or `journalctl`, or a syslog file.

Whatever is left out is counted, so that a log that could not be read is never taken for one without errors.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from gpu_exporter.events.event_log import KEPT
from gpu_exporter.events.kernel_log_entry import SxidLine, XidLine
from gpu_exporter.events.kernel_log_parser import (
    KernelText,
    LineJoiner,
    fault_without_xid,
    journal_message,
    kernel_text,
    parse_kmsg,
    parse_message,
    unix_time,
)
from gpu_exporter.events.kernel_log_reader import CHUNK, LONGEST_LINE
from gpu_exporter.io.decoding import GZIP
from gpu_exporter.io.file_access import FileWorker

# A text that begins with one of these has two bytes for a character.
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
MOST_BYTES = 8 << 30
# What begins a line that reports an XID, also in forms that the parser does not know.
_MENTION = re.compile(r"S?Xid \(")
# A line of `journalctl -o export`, `verbose` or `json-pretty`: one field of an entry.
_FIELD = re.compile(
    r"\s*(?:(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)|\"(?P<key>[A-Z_][A-Z0-9_]*)\" : \"(?P<text>.*)\",?)"
)
_VERBOSE = re.compile(r"(?P<time>\S+ [0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{8,15} \S+) \[s=.*\]")
_FIELDS = ("_TRANSPORT", "SYSLOG_FACILITY", "MESSAGE", "__REALTIME_TIMESTAMP")
_KMSG = re.compile(r"[0-9]{1,6},[0-9]{1,20},[0-9]{1,20}[,;]")


class File(Protocol):
    """What is read of a file."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """An XID or SXid. `at` is its unix time, if the log has it; `time` the time as it is written."""

    line: XidLine | SxidLine
    at: float | None
    time: str


@dataclass(slots=True)
class SavedLog:
    """What a file contains: the last XIDs and SXids, and how many there are.

    `kernel` lines or entries are messages of the kernel, `mentions` those that report an XID without being one of them
    or in an unknown form, `long` those that were skipped. `cut`: the file is larger than what was read. `overwritten`
    messages were in /dev/kmsg before the first that is still there. `faults`: what the kernel
    reported without an XID of GPUs that cannot be used, and how often.
    """

    entries: deque[SavedEntry] = field(default_factory=lambda: deque(maxlen=KEPT))
    found: int = 0
    lines: int = 0
    kernel: int = 0
    mentions: int = 0
    long: int = 0
    cut: bool = False
    overwritten: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    _entry: dict[str, str] = field(default_factory=dict)
    _time: str = ""
    _minute: str = ""
    _joiner: LineJoiner = field(default_factory=LineJoiner)

    def take(self, line: str) -> None:
        """Add a line."""
        self.lines += 1
        text = line.rstrip("\r\n")
        heading, part = _VERBOSE.fullmatch(text), _FIELD.fullmatch(text)
        if heading or text.strip() in ("", "{", "}", "},{"):
            self.end()
            self._time = heading["time"] if heading else ""
        elif part:
            name, value = (part["name"], part["value"]) if part["name"] else (part["key"], _unescaped(part["text"]))
            if name in _FIELDS:
                self._entry[name] = value
        else:
            self._message(kernel_text(_without_kmsg_header(text)), text)
            joined = self._joiner.take(text)
            if joined:
                self._add(joined[0], joined[1])

    def skip(self, part: bytes, *, ends: bool) -> None:
        """Count a line, or a part of it, that is longer than any message of the kernel."""
        self.long += ends
        self.mentions += b"Xid (" in part

    @property
    def complete(self) -> bool:
        """Whether all lines that may report an XID were read."""
        return not self.mentions and not self.cut

    def end(self) -> None:
        """Take what was collected of an entry of the journal."""
        entry, self._entry = self._entry, {}
        if entry:
            message = journal_message(entry)
            if message and message.at is None:
                message = KernelText(message.text, self._time, unix_time(self._time))
            self._message(message, entry.get("MESSAGE", ""))

    def _message(self, message: KernelText | None, raw: str) -> None:
        if message is None:
            self.mentions += bool(_MENTION.search(raw))
            return
        self.kernel += 1
        # `dmesg -H` has the date where the minute changes, and later the time since the line before.
        if not message.time.startswith("+"):
            self._minute = message.time
        line = parse_message(message.text)
        if line is None:
            if fault := fault_without_xid(message.text):
                self.faults[fault] += 1
            self.mentions += bool(_MENTION.search(message.text)) and not _is_detail(message.text)
            return
        self._add(line, message)

    def _add(self, line: XidLine | SxidLine, message: KernelText) -> None:
        self.found += 1
        time = self._minute if message.time.startswith("+") else message.time
        self.entries.append(SavedEntry(line, message.at, time))


def _without_kmsg_header(text: str) -> str:
    """Return a line of a saved /dev/kmsg as `dmesg --raw` has it."""
    record = parse_kmsg(text.encode()) if _KMSG.match(text) else None
    return f"<{record.facility << 3 | 6}>[{record.microseconds / 1e6:.6f}] {record.message}" if record else text


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _is_detail(text: str) -> bool:
    """Whether a line has registers of the SXid before it."""
    return bool(re.search(r"SXid \([^)]*\): [0-9]+, (?:Severity [0-9]|Data \{)", text))


def read_saved(path: Path) -> SavedLog:
    """Read a log, which may be compressed with gzip. Raises OSError, also if the file does not answer in time."""
    log, worker = SavedLog(), FileWorker("kernel-log-file")
    with worker.call(lambda: path.open("rb", buffering=CHUNK)) as file:
        for line in _lines(worker, file, log):
            log.take(line)
    log.end()
    return log


def _lines(worker: FileWorker, file: BinaryIO, log: SavedLog) -> Iterator[str]:
    """Yield the lines of a file, and count those that are too long."""
    start = worker.call(lambda: file.peek(2)[:2] if hasattr(file, "peek") else b"")
    unpacked: File = gzip.GzipFile(fileobj=file) if start == GZIP else file
    encoding, rest, skipping, left = "utf-8", b"", False, MOST_BYTES
    while left > 0:
        try:
            chunk = worker.call(lambda: unpacked.read(CHUNK))
        except (EOFError, zlib.error) as error:
            raise OSError(None, f"damaged gzip: {error}") from error
        if not chunk:
            break
        if left == MOST_BYTES:
            encoding = UTF_16.get(chunk[:2], encoding)
        left -= len(chunk)
        newline = "\n".encode(encoding)
        *lines, rest = (rest + chunk).split(newline)
        for line in lines:
            if skipping or len(line) > LONGEST_LINE:
                log.skip(line, ends=True)
                skipping = False
            else:
                yield line.decode(encoding, errors="replace")
        if len(rest) > LONGEST_LINE:
            log.skip(rest, ends=False)
            rest, skipping = b"", True
    log.cut = left <= 0
    if rest:
        yield rest.decode(encoding, errors="replace")
