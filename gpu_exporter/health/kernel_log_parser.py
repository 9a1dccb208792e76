"""Parser of XIDs and SXids in lines of the kernel log. Pure; never raises.

The forms are those of NVIDIA's open kernel modules (`kernel_rc.c`, `error_nvswitch.h`) and of older drivers. Only a
line that begins as the driver's lines do, after a prefix that names the kernel, counts; a log that quotes an XID does
not. Text alone cannot prove its writer: programs that may write to /dev/kmsg or to the syslog socket can forge lines of
`dmesg` or of a mixed syslog. /dev/kmsg itself and the journal's JSON name the writer, so forgeries there are rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_exporter.catalogue.faults import recovery_action
from gpu_exporter.health.kernel_log_entry import SxidLine, XidLine
from gpu_exporter.model.pci import pci_bus_id

_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: GPU-I:(?P<gi>[0-9]{{1,3}}))?(?: GPU-CI:[0-9]{{1,3}})?\): "
    r"(?P<code>[1-9][0-9]{0,4})(?:, ?(?P<rest>.*))?",
    re.DOTALL,
)
_SXID = re.compile(
    rf"nvidia-nvswitch[0-9]{{1,4}}: SXid \(PCI:{_PCI}\): (?P<code>[0-9]{{1,6}}), "
    r"(?:(?P<severity>(?i:fatal|non-fatal))(?:, |$))?(?P<rest>.*)",
    re.DOTALL,
)
# An SXid is followed by lines of the same form with registers, which are not further errors.
_SXID_DETAIL = re.compile(r"Severity [0-9]|Data \{")
_PROCESS = re.compile(r"pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?(?:, name=(?P<name>[^,]*))?(?:, |$)")
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]{1,4}) \(")

_SINCE_BOOT = r"\[ *[0-9]{1,10}\.[0-9]{3,9}\](?:\[ *[TC][0-9]+\])? "
_DATE = r"[A-Z][a-z]{2} +[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}"
_ISO = r"(?P<iso>[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2}))"
_UNIX = r"(?P<unix>[0-9]{9,11}\.[0-9]{1,9})"
_MONOTONIC = r"\[ *[0-9]{1,10}\.[0-9]{1,9}\]"
# Of a syslog line only the tag `kernel:` shows that the kernel wrote it.
_SYSLOG = re.compile(
    rf"(?:<[0-7]>)?(?:(?:{_DATE}|{_ISO}|{_UNIX}|{_MONOTONIC}) \S+ )?kernel: (?:{_SINCE_BOOT})?(?P<text>.*)", re.DOTALL
)
_DMESG = re.compile(
    rf"(?:<[0-7]>)?(?:kern +:[a-z]+ *: )?"
    rf"(?:{_SINCE_BOOT}|\[[A-Z][a-z]{{2}} {_DATE} [0-9]{{4}}\] |{_ISO} )?(?P<text>.*)",
    re.DOTALL,
)


def parse(line: str) -> XidLine | SxidLine | None:
    """Parse a line of `dmesg`, a syslog file or `journalctl` (also `-o json`); None if it is not an (S)XID."""
    if line.startswith("{"):
        return _journal(line)
    if "Xid" not in line:  # nearly all lines, and cheaper than what follows
        return None
    line = line.rstrip("\r\n")
    prefix = _SYSLOG.fullmatch(line) or _DMESG.fullmatch(line)
    found = parse_message(prefix["text"]) if prefix else None
    return replace(found, at=_written_at(prefix.groupdict())) if found and prefix else None


def parse_message(text: str) -> XidLine | SxidLine | None:
    """Parse a kernel message without prefix; None if it is not an (S)XID."""
    xid = _XID.fullmatch(text)
    if xid:
        return _xid(xid)
    sxid = _SXID.fullmatch(text)
    if not sxid or _SXID_DETAIL.match(sxid["rest"]):
        return None
    fatal = sxid["severity"].lower() == "fatal" if sxid["severity"] else None
    return SxidLine(pci_bus_id(sxid["pci"]), int(sxid["code"]), fatal)


def _xid(found: re.Match[str]) -> XidLine:
    code, rest = int(found["code"]), found["rest"] or ""
    process = _PROCESS.match(rest)
    text = rest[process.end() :] if process else rest
    recovery = _RECOVERY.match(text) if code == 154 else None
    return XidLine(
        pci=pci_bus_id(found["pci"]),
        code=code,
        message=text,
        pid=int(process["pid"]) if process and process["pid"].isdecimal() else None,
        name=(process["name"] or "").replace("<unknown>", "") if process else "",
        instance=int(found["gi"]) if found["gi"] else None,
        recovery_action=recovery_action(int(recovery[1], 16)) if recovery else None,
    )


def _written_at(prefix: Mapping[str, str | None]) -> float | None:
    unix = prefix.get("unix")
    return float(unix) if unix else _unix(prefix["iso"] or "")


def _unix(iso: str) -> float | None:
    """Return the unix time of a date with a zone. Python 3.10 needs a colon in the zone, and 3 or 6 decimals."""
    parts = re.fullmatch(r"(.{19})(?:[.,]([0-9]+))?(?:Z|([+-][0-9]{2}):?([0-9]{2}))", iso)
    if not parts:
        return None
    zone = f"{parts[3]}:{parts[4]}" if parts[3] else "+00:00"
    try:
        return datetime.fromisoformat(parts[1] + zone).timestamp() + float(f"0.{parts[2] or 0}")
    except (ValueError, OverflowError):
        return None


def _journal(line: str) -> XidLine | SxidLine | None:
    """Parse a line of `journalctl -o json`, whose fields name the writer, and cannot be set by user space."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("_TRANSPORT") != "kernel" or entry.get("SYSLOG_FACILITY", "0") != "0":
        return None
    text = entry.get("MESSAGE")
    if isinstance(text, list):  # how the journal writes bytes that are not text
        text = bytes(byte for byte in text if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    found = parse_message(text) if isinstance(text, str) else None
    microseconds = str(entry.get("__REALTIME_TIMESTAMP", ""))
    known = found and re.fullmatch(r"[0-9]{1,18}", microseconds)
    return replace(found, at=int(microseconds) / 1e6) if found and known else found


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """A record of /dev/kmsg (`Documentation/ABI/testing/dev-kmsg`). `microseconds` count since boot, by the kernel's
    clock, which stops in suspend. `facility` 0 is the kernel; records of user space have another."""

    facility: int
    sequence: int
    microseconds: int
    message: str

    @property
    def xid_line(self) -> XidLine | SxidLine | None:
        """The (S)XID that it reports, if the kernel wrote it."""
        return parse_message(self.message) if self.facility == 0 and "Xid" in self.message else None


_HEADER = re.compile(rb"([0-9]{1,6}),([0-9]{1,20}),([0-9]{1,20})(?:,[^;\n]*)?;([^\n]*)(?:\n|\Z)")


def parse_kmsg(data: bytes) -> KmsgRecord | None:
    """Parse one read of /dev/kmsg; None if it is not a record. Ignores unknown header fields, as the ABI requires."""
    header = _HEADER.match(data)
    if not header:
        return None
    priority, sequence, microseconds = (int(number) for number in header.groups()[:3])
    return KmsgRecord(priority >> 3, sequence, microseconds, _unescape(header[4]))


def _unescape(data: bytes) -> str:
    plain = re.sub(rb"\\x([0-9a-fA-F]{2})", lambda found: bytes([int(found[1], 16)]), data)
    return plain.decode(errors="replace")
