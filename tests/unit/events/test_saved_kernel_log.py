"""Saved kernel logs in the forms that people save, and `gpu-exporter events` of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_exporter.cli.events import events_command
from gpu_exporter.events.kernel_log_entry import SxidLine
from gpu_exporter.events.saved_kernel_log import read_saved
from tests.soak.kernel_log import PREFIXES, QUOTES, journal

XID = "NVRM: Xid (PCI:0000:06:00): 48, pid=77, name=python3, DBE (double bit error)"
LINK = "NVRM: Xid (PCI:0000:07:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)"
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 46 LTSSM Fault Up"
BOOT = "[    0.000000] Linux version 6.8.0"
VERBOSE = """Fri 2026-11-20 11:00:00.125000 UTC [s=6f1;i=2a;b=b0;m=1;t=2;x=3]
    _TRANSPORT={transport}
    SYSLOG_FACILITY=0
    SYSLOG_IDENTIFIER=kernel
    MESSAGE={text}
    _SOURCE_MONOTONIC_TIMESTAMP=1234567890
"""
EXPORT = """__CURSOR=s=6f1;i=2a
__REALTIME_TIMESTAMP=1795172400125000
_TRANSPORT={transport}
SYSLOG_FACILITY=0
MESSAGE={text}

"""
PRETTY = """{{
\t"__REALTIME_TIMESTAMP" : "1795172400125000",
\t"MESSAGE" : "{text}",
\t"_TRANSPORT" : "{transport}",
\t"SYSLOG_FACILITY" : "0"
}}
"""
AT = 1795172400.125


def events(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(events_command, ["--kernel-log", str(path), *arguments])


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_form_is_read(prefix: Callable[[str], str], tmp_path: Path) -> None:
    """An XID among other messages is listed, whatever the form of its line."""
    path = write(tmp_path / "log", "".join(prefix(text).rstrip("\n") + "\n" for text in ("NVRM: loading", XID, LINK)))
    log = read_saved(path)
    assert [entry.line.code for entry in log.entries] == [48, 149]
    assert (log.found, log.lines, log.kernel, log.mentions) == (2, 3, 3, 0)


def test_a_process_without_name(tmp_path: Path) -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus."
    assert "(pid 1122);" in events(write(tmp_path / "log", line)).output


@pytest.mark.parametrize("form", [VERBOSE, EXPORT, PRETTY])
def test_entries_of_several_lines(form: str, tmp_path: Path) -> None:
    """The journal's fields name the writer, in any order, and have the time."""
    texts = ((XID, "kernel"), (LINK, "syslog"), ("other", "kernel"), (SWITCH, "kernel"))
    path = write(tmp_path / "log", "".join(form.format(text=text, transport=transport) for text, transport in texts))
    log = read_saved(path)
    assert [(entry.line.code, entry.at) for entry in log.entries] == [(48, AT), (20034, AT)]
    assert (log.kernel, log.mentions) == (3, 1)


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (f"[ 1234.567890] {XID}", "1234.567890 s after boot"),
        (f"3,7,1500000,-;{XID}", "1.500000 s after boot"),
        (f"[Fri Nov 20 12:00:00 2026] {XID}", "Fri Nov 20 12:00:00 2026"),
        (f"[Nov20 12:00] usb 1-1\n[  +0.000012] {XID}", "Nov20 12:00"),
        (f"Nov 20 12:00:00 host kernel: [ 1234.567890] {XID}", "Nov 20 12:00:00"),
        (f"Fri 2026-11-20 12:00:00 CET host kernel: {XID}", "Fri 2026-11-20 12:00:00 CET"),
        (f"[ 1234.567890] host kernel: {XID}", "1234.567890 s after boot"),
        (f"0001-01-01T00:00:00Z host kernel: {XID}", "0001-01-01T00:00:00Z"),
        (XID, ""),
    ],
)
def test_a_time_without_year_or_zone_is_shown_as_written(line: str, time: str, tmp_path: Path) -> None:
    path = write(tmp_path / "log", line)
    result = events(path)
    assert result.output.startswith(f"{time or 'no time'}  00000000:06:00.0  XID 48 ROBUST_CHANNEL_GPU_ECC_DBE")
    (event,) = json.loads(events(path, "--json").output)["events"]
    assert (event["at"], event["time"]) == (None, time)


@pytest.mark.parametrize(
    "content",
    [
        f"{BOOT}\r\n[    1.000000] {XID}\r\n".encode(),
        f"\ufeff{BOOT}\n[    1.000000] {XID}".encode(),
        f"{BOOT}\n[    1.000000] {XID}\n".encode("utf-16"),
        f"{BOOT} ".encode() + b"\xff\xfe\n" + f"[    1.000000] {XID}\n".encode(),
        b"\0" * 4096 + f"[    1.000000] {XID}\n".encode(),
        gzip.compress(f"{BOOT}\n[    1.000000] {XID}\n".encode()),
        gzip.compress(f"{BOOT}\n".encode()) + gzip.compress(f"[    1.000000] {XID}\n".encode()),
        b"x" * 100_000 + f"\n[    1.000000] {XID}\n".encode(),
    ],
    ids=["CRLF", "BOM", "UTF-16", "not UTF-8", "NUL", "gzip", "rotated gzip", "long line"],
)
def test_every_encoding_is_read(content: bytes, tmp_path: Path) -> None:
    assert [entry.line.code for entry in read_saved(write(tmp_path / "log", content)).entries] == [48]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "it is empty"),
        ("-- No entries --\n", "it has no messages of the kernel"),
        ("Nov 20 12:00:00 host sshd[1]: Accepted\n", "it has no messages of the kernel"),
        ("2026-11-20T12:00:00.123456+01:00 host sshd[1]: Accepted\n", "it has no messages of the kernel"),
        (json.dumps({"MESSAGE": XID, "_TRANSPORT": "syslog"}), "it has no messages of the kernel"),
        ("some prose\n", "it has no messages of the kernel"),
        (b"\x1f\x8b\x08\0damaged", "damaged gzip"),
        (f"{BOOT}\n[    1.000000] app: {XID}\n", "not all of it was read"),
        (f"{BOOT}\n[    1.000000] NVRM: Xid (PCI:0000:06:00) 48 in a new form\n", "not all of it was read"),
        (BOOT + "\n" + "x" * 100_000 + XID, "not all of it was read"),
        (BOOT + "\n" + "x" * 20_000 + XID + "x" * 70_000 + "\n", "not all of it was read"),
    ],
)
def test_what_cannot_be_read_is_no_good_news(content: str | bytes, error: str, tmp_path: Path) -> None:
    result = events(write(tmp_path / "log", content))
    assert result.exit_code == 1
    assert error in result.output
    assert "no XIDs" not in result.output


DEAD = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize(
    ("first", "others", "time"),
    [
        ("[ 1843.308145] ", "               ", "1843.308145 s after boot"),
        ("Nov 20 12:00:00 host kernel: ", "                             ", "Nov 20 12:00:00"),
        ("Nov 20 12:00:00 host kernel: ", "Nov 20 12:00:01 host kernel: ", "Nov 20 12:00:00"),
        ("[Nov20 12:00] ", "[  +0.000002] ", "Nov20 12:00"),
    ],
)
def test_a_lost_gpu_without_xid(first: str, others: str, time: str, tmp_path: Path) -> None:
    """Text logs have the lines of its message one by one, or indented."""
    lines = [f"{first}{DEAD[0]}", *(f"{others}{line}" for line in DEAD[1:]), f"{first}NVRM: loading"]
    log = read_saved(write(tmp_path / "log", "\n".join(lines)))
    assert [(entry.line.pci, entry.line.code, entry.time) for entry in log.entries] == [("00000000:B3:00.0", 79, time)]
    assert log.found == 1


def test_faults_without_xid(tmp_path: Path) -> None:
    """GPUs that cannot be used; a program that quotes such a message does not count."""
    failed = "NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)"
    reset = "NVRM: nvAssertOkFailedNoLog: Reset required [NV_ERR_RESET_REQUIRED] (0x62) @ channel.c:2827"
    kernel = "Nov 20 12:00:00 host kernel: "
    lines = [kernel + failed, kernel + failed, kernel + reset, f"Nov 20 12:00:00 host app[7]: {failed}"]
    result = events(write(tmp_path / "log", "\n".join(lines)))
    assert result.exit_code == 0
    assert result.stdout == "no XIDs in the kernel log\n"
    assert [line.partition("/log: ")[2] for line in result.stderr.splitlines()] == [
        "the driver could not initialise GPU 00000000:0A:00.0; messages without an XID: 2",
        "the driver refused work because a GPU needs a reset; messages without an XID: 1",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        (f"Nov 20 12:00:00 host python3[7]: {DEAD[0]}", *DEAD[1:]),
        (f"[ 1.000000] {DEAD[0]}", "[ 1.000000] usb 1-1", DEAD[2]),
        (f"[ 1.000000] {DEAD[0]} (PCI ID: 10de:26b5)", "[ 1.000000] NVRM: installed in this system is not supported"),
    ],
)
def test_other_messages_about_gpus(lines: tuple[str, ...], tmp_path: Path) -> None:
    """Lines of a program, parts of the message, and another one that begins as it does."""
    assert not read_saved(write(tmp_path / "log", "\n".join((BOOT, *lines)))).entries


@pytest.mark.parametrize("quote", QUOTES)
def test_quotes_are_left_out_and_counted(quote: Callable[[str], str], tmp_path: Path) -> None:
    path = write(tmp_path / "log", f"{BOOT}\n[    1.000000] {XID}\n{quote(LINK)}\n")
    log = read_saved(path)
    assert [entry.line.code for entry in log.entries] == [48]
    assert log.mentions == ("Xid (" in quote(LINK))
    assert events(path).exit_code == 0


def test_the_last_of_many(tmp_path: Path) -> None:
    """What is not listed is counted."""
    path = write(tmp_path / "log", "".join(f"[{n:5d}.000000] {XID}\n" for n in range(300)))
    result = events(path)
    assert f"kernel log {path}: only the last 256 of 300 XIDs are listed" in result.output
    assert result.output.count("XID 48") == 256


def test_a_log_without_errors(tmp_path: Path) -> None:
    result = events(write(tmp_path / "log", f"{BOOT}\n"))
    assert (result.exit_code, result.output) == (0, "no XIDs in the kernel log\n")


def test_errors_of_switches_and_links(tmp_path: Path) -> None:
    """SXids are no all-clear, and an XID has the message to which its meaning refers, with what it says of the link."""
    path = write(tmp_path / "log", f"{journal(LINK)}\n{journal(SWITCH)}\n")
    link, switch = events(path).output.splitlines()
    assert "link 8, unit NETIR_LINK_EVT, fatal; " in link
    assert link.endswith(
        'hardware -> gpu_reset; message "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)"'
    )
    assert switch.endswith("00000000:C1:00.0  SXID 20034 of an NVSwitch, fatal")
    shown = json.loads(events(path, "--json").output)
    assert [event["xid"] for event in shown["events"]] == [149]
    assert [(sxid["sxid"], sxid["fatal"]) for sxid in shown["sxids"]] == [(20034, True)]
    assert isinstance(read_saved(path).entries[1].line, SxidLine)
