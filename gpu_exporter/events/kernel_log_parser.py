"""Parser of XIDs and SXids in lines of the kernel log. Pure; never raises.

The forms of messages are those of NVIDIA's open kernel modules (`kernel_rc.c`, `error_nvswitch.h`) and of older
drivers. Only a line that begins as the driver's lines do, after a prefix that names the kernel, counts; a log that
quotes an XID does not. Text alone cannot prove its writer: programs that may write to /dev/kmsg or to the syslog socket
can forge lines of `dmesg` or of a mixed syslog. /dev/kmsg itself and the journal's JSON name the writer, so forgeries
there are rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_exporter.catalogue.faults import recovery_action
from gpu_exporter.events.kernel_log_entry import SxidLine, XidLine
from gpu_exporter.model.pci import pci_bus_id

_PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
# `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 …)`
NVLINK_5 = range(144, 151)
_NVLINK = re.compile(
    r"(?P<unit>[A-Z0-9_/]{1,64}) +(?P<severity>Fatal|Nonfatal) +XC[0-9]+ +i[0-9]+ +Link +(?P<link>-?[0-9]{1,3})\b"
)
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
# A GPU that no longer answers when the driver starts has no XID, but this message of three lines. Text logs have it in
# lines, or in one line with `#012` between them (syslog).
_LOST = re.compile(rf"NVRM: The NVIDIA GPU {_PCI}\b.{{0,200}}fallen off the bus and is not responding", re.DOTALL)
_BREAK = re.compile(r"(?:\n|#012)\s*NVRM: ")
_LOST_LINES = 3
FELL_OFF_THE_BUS = 79
_NOT_STARTED = re.compile(rf"NVRM: GPU {_PCI}: RmInitAdapter failed!")
_PROCESS = re.compile(r"pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?(?:, name=(?P<name>[^,]*))?(?:, |$)")
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]{1,4}) \(")

YEAR_3000 = 32503680000.0  # unix seconds
# Names of days and months are those of the locale in which the log was saved.
_NAME = r"[^\W\d_]{2,5}\.?"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}"
_DELTA = r"< *\+?[0-9]{1,10}\.[0-9]{1,9} *>"
_SINCE_BOOT = rf"\[ *[0-9]{{1,10}}\.[0-9]{{3,9}}(?: {_DELTA})?\](?:\[ *[TC][0-9]+\])? "
_DATE = rf"{_NAME} +[0-9]{{1,2}} {_CLOCK}(?:\.[0-9]{{1,9}})?"
_FULL = rf"{_NAME} [0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}} {_CLOCK}(?:\.[0-9]{{1,9}})? [A-Za-z0-9+:-]{{1,9}}"
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
_UNIX = r"[0-9]{9,11}\.[0-9]{1,9}"
_MONOTONIC = rf"\[ *[0-9]{{1,10}}\.[0-9]{{1,9}}(?: {_DELTA})?\]"
_TIME = rf"(?P<time>{_DATE}|{_FULL}|{_ISO}|{_UNIX}|{_MONOTONIC})"
# Of a syslog line only the tag `kernel:` shows that the kernel wrote it; what is before it is the host, if that is not
# left out (`journalctl --no-hostname`). RFC 5424 has a version and more fields.
_SYSLOG = re.compile(
    rf"(?:<[0-7]>)?(?:{_TIME} (?:\S*[^\s:] (?:kern\.[a-z]+ )?)?)?kernel: (?:{_SINCE_BOOT})?(?P<text>.*)", re.DOTALL
)
_RFC_5424 = re.compile(
    rf"(?:<[0-7]>)?1 (?P<time>{_ISO}) \S+ kernel \S+ \S+ (?:-|\[.*?\]) \ufeff?(?:{_SINCE_BOOT})?(?P<text>.*)", re.DOTALL
)
# `talosctl dmesg`, also of several nodes.
_TALOS = re.compile(rf" *(?:\S+: +)?kern: +[a-z]+: \[(?P<time>{_ISO})\]: (?P<text>.*)", re.DOTALL)
# `dmesg`: seconds since boot, the date (-T), that of the minute or the time since the last line (-H), or ISO 8601.
_STAMPS = (
    r" *[0-9]{1,10}\.[0-9]{3,9}",
    rf"{_NAME} {_NAME} +[0-9]{{1,2}} {_CLOCK} [0-9]{{4}}",
    rf"{_NAME} *[0-9]{{1,2}} [0-9]{{2}}:[0-9]{{2}}",
    r" *\+[0-9]{1,10}\.[0-9]{3,9}",
)
_STAMP = rf"\[(?P<time>{'|'.join(_STAMPS)})?(?:(?<!\[) )?(?:{_DELTA})?\](?:\[ *[TC][0-9]+\])? "
_DMESG = re.compile(
    rf"(?P<level><[0-7]>)?(?P<facility>kern +:[a-z]+ *: )?(?:{_STAMP}|(?P<iso>{_ISO}) )?(?P<text>.*)", re.DOTALL
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# How messages of the driver begin. A line without prefix is the kernel's if it is one of these.
_DRIVER = ("NVRM: ", "nvidia-nvswitch", "nvidia-nvlink", "nvidia ", "nvidia: ")


@dataclass(frozen=True, slots=True)
class KernelText:
    """A message of the kernel. `at` is its unix time, if it is known, `time` the time as it is written in the line."""

    text: str
    time: str = ""
    at: float | None = None


def parse(line: str) -> XidLine | SxidLine | None:
    """Parse a line of `dmesg`, a syslog file or `journalctl` (also `-o json`); None if it is not an (S)XID."""
    if not _may_report(line) and "{" not in line[:7]:  # nearly all lines, and cheaper than what follows
        return None
    message = kernel_text(line)
    found = parse_message(message.text) if message else None
    return replace(found, at=message.at) if found and message else None


def kernel_text(line: str) -> KernelText | None:
    """Return the message of a line of `dmesg`, a syslog file or `journalctl`; None if the kernel did not write it."""
    line = line.rstrip("\r\n").lstrip("\ufeff\0")
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    entry = line.removeprefix("\x1e").removeprefix("data: ")  # json-seq, json-sse
    if entry.startswith("{"):
        return journal_text(entry)
    prefix = _SYSLOG.fullmatch(line) or _RFC_5424.fullmatch(line) or _TALOS.fullmatch(line)
    if prefix:
        return KernelText(prefix["text"], _time(prefix["time"]), unix_time(prefix["time"]))
    prefix = _DMESG.fullmatch(line)
    if prefix is None:
        return None
    text, written = prefix["text"], prefix["time"] or prefix["iso"]
    if prefix["iso"] and "," not in prefix["iso"] and not text.startswith(_DRIVER):  # syslog of a program
        return None
    if not (written or prefix["level"] or prefix["facility"] or prefix.start("text") or text.startswith(_DRIVER)):
        return None
    return KernelText(text, _time(written), unix_time(prefix["iso"]))


def parse_message(text: str) -> XidLine | SxidLine | None:
    """Parse a kernel message without prefix; None if it is not an (S)XID."""
    xid = _XID.fullmatch(text)
    if xid:
        return _xid(xid)
    lost = _LOST.match(text)
    if lost:
        return XidLine(pci_bus_id(lost["pci"]), FELL_OFF_THE_BUS, _BREAK.sub(" ", text).removeprefix("NVRM: ").rstrip())
    sxid = _SXID.fullmatch(text)
    if not sxid or _SXID_DETAIL.match(sxid["rest"]):
        return None
    fatal = sxid["severity"].lower() == "fatal" if sxid["severity"] else None
    return SxidLine(pci_bus_id(sxid["pci"]), int(sxid["code"]), fatal)


def fault_without_xid(text: str) -> str:
    """Return in words what a kernel message says of a GPU that cannot be used, though not with an XID; else nothing."""
    found = _NOT_STARTED.match(text)
    if found:
        return f"the driver could not initialise GPU {pci_bus_id(found['pci'])}"
    is_reset = text.startswith("NVRM: ") and "[NV_ERR_RESET_REQUIRED]" in text
    return "the driver refused work because a GPU needs a reset" if is_reset else ""


def _may_report(text: str) -> bool:
    """Whether a text may report an XID, an SXid or a lost GPU."""
    return "Xid" in text or "fallen off" in text


class LineJoiner:
    """Finds the message about a lost GPU in a text log that has its lines one by one."""

    def __init__(self) -> None:
        self._first: KernelText | None = None
        self._texts: list[str] = []

    def take(self, line: str) -> tuple[XidLine | SxidLine, KernelText] | None:
        """Add a line; return what the message reports that it completes, with the first line of the message."""
        if "NVRM: " not in line:
            self._first = None
        elif "NVRM: The NVIDIA GPU" in line:
            self._first = kernel_text(line)
            self._texts = [self._first.text] if self._first else []
        elif self._first:
            message, first = kernel_text(line), self._first
            self._texts.append(message.text if message else line.strip())
            found = parse_message("\n".join(self._texts))
            if found or len(self._texts) == _LOST_LINES:
                self._first = None
            if found:
                return found, first
        return None


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
        detail=nvlink_detail(text) if code in NVLINK_5 else "",
    )


def nvlink_detail(message: str) -> str:
    """Return link, unit and severity of an NVLink 5 error in words; empty if the message has another form.

    What the registers that follow mean is in NVIDIA's Xid catalog, sheet "XID 144-150 Decode".
    """
    found = _NVLINK.match(message)
    if not found:
        return ""
    where = "no single link" if found["link"].startswith("-") else f"link {int(found['link'])}"
    return f"{where}, unit {found['unit']}, {'fatal' if found['severity'] == 'Fatal' else 'not fatal'}"


def _time(written: str | None) -> str:
    """Return a time for people: of a number of seconds, since when they count."""
    text = (written or "").strip("[] ")
    seconds = re.match(r"[0-9]{1,10}\.[0-9]{3,9}(?= |$)", text)
    return f"{seconds[0]} s after boot" if seconds and len(text.split(".")[0]) < 9 else text


def unix_time(written: str | None) -> float | None:
    """Return the unix time that is written as a number, or as a date with year and zone.

    None for a date that no clock has: programs in Go write the year 1 for a time that they do not know. Python 3.10
    needs a colon in the zone, and 3 or 6 decimals.
    """
    written = written or ""
    if re.fullmatch(_UNIX, written):
        return float(written)
    parts = re.fullmatch(
        rf"(?:{_NAME} )?([0-9-]{{10}})[T ]([0-9:]{{8}})(?:[.,]([0-9]+))? ?(?:Z|UTC|([+-][0-9]{{2}}):?([0-9]{{2}}))",
        written,
    )
    if not parts:
        return None
    zone = f"{parts[4]}:{parts[5]}" if parts[4] else "+00:00"
    try:
        at = datetime.fromisoformat(f"{parts[1]}T{parts[2]}{zone}").timestamp() + float(f"0.{parts[3] or 0}")
    except (ValueError, OverflowError):
        return None
    return at if 0 < at < YEAR_3000 else None


def journal_text(line: str) -> KernelText | None:
    """Return the message of a line of `journalctl -o json`; None if the kernel did not write it."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return journal_message(entry) if isinstance(entry, dict) else None


def journal_message(entry: Mapping[str, object]) -> KernelText | None:
    """Return the message of an entry of the journal, whose fields name the writer, and cannot be set by user space."""
    if entry.get("_TRANSPORT") != "kernel" or entry.get("SYSLOG_FACILITY", "0") != "0":
        return None
    text = entry.get("MESSAGE")
    if isinstance(text, list):  # how the journal writes bytes that are not text
        text = bytes(byte for byte in text if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    if not isinstance(text, str):
        return None
    microseconds = str(entry.get("__REALTIME_TIMESTAMP", ""))
    known = re.fullmatch(r"[0-9]{1,18}", microseconds)
    return KernelText(text, "", int(microseconds) / 1e6 if known else None)


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
        return parse_message(self.message) if self.facility == 0 and _may_report(self.message) else None


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
