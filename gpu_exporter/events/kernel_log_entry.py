"""The XIDs and SXids of the kernel log, as `kernel_log_parser` and `kernel_log_reader` return them."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.model.verdict import Action


@dataclass(frozen=True, slots=True)
class XidLine:
    """One XID. `pci` is as NVML writes it; `pid` and `name` are those that the driver knew, the name up to a comma.

    `instance` is the GPU instance in MIG mode, `recovery_action` the action that a 154 announces, `detail` what the
    message says of an NVLink. `at` is the unix time in the line, if it has one; a syslog date without year and zone
    does not count.
    """

    pci: str
    code: int
    message: str = ""
    pid: int | None = None
    name: str = ""
    instance: int | None = None
    recovery_action: Action | None = None
    at: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SxidLine:
    """One SXid. `fatal` is None if the line does not say. `at` is as in an XidLine."""

    pci: str
    code: int
    fatal: bool | None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far the log has been read: the boot id and the last sequence number of /dev/kmsg, or the inode of a file and
    the offset behind the last line. Unique for each entry, so it serves to deduplicate and to resume."""

    origin: str
    number: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An (S)XID in the log. `at` is unix time in seconds; None if a syslog line has no year or zone.

    `since_boot` is the time by the monotonic clock, which only /dev/kmsg has.
    """

    position: LogPosition
    at: float | None
    line: XidLine | SxidLine
    since_boot: float | None = None
