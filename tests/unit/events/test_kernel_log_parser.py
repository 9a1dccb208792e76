"""Lines of the kernel log, as real drivers and loggers write them, and records of /dev/kmsg."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.events.kernel_log_entry import SxidLine, XidLine
from gpu_exporter.events.kernel_log_parser import KmsgRecord, LineJoiner, parse, parse_kmsg, parse_message
from gpu_exporter.model.pci import pci_bus_id, same_device
from gpu_exporter.model.verdict import Action
from tests.soak.kernel_log import PREFIXES, fuzz, journal

FAULT = (
    "NVRM: Xid (PCI:0000:00:06): 31, pid=486, name=bad, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS"
)
FAULT_SAYS = XidLine(
    "00000000:00:06.0", 31, "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS", 486, "bad"
)
LOST = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."
LOST_SAYS = XidLine("00000000:03:00.0", 79, "GPU has fallen off the bus.")
# One message of three lines, from a GPU that did not answer when the driver started.
DEAD = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
DEAD_SAYS = XidLine("00000000:B3:00.0", 79, " ".join(line.removeprefix("NVRM: ") for line in DEAD))
SWITCH = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 46 LTSSM Fault Up"
SWITCH_SAYS = SxidLine("00000000:C1:00.0", 20034, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FAULT, FAULT_SAYS),
        (LOST, LOST_SAYS),
        (SWITCH, SWITCH_SAYS),
        ("#012".join(DEAD), DEAD_SAYS),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 13, pid=1234, name=python3, Graphics SM Warp Exception",
            XidLine("00000000:01:00.0", 13, "Graphics SM Warp Exception", 1234, "python3", instance=5),
        ),
        (
            "NVRM: Xid (PCI:0000:4e:00 GPU-I:13 GPU-CI:00): 94, pid=7, name=a, Contained: SM (0x1)",
            XidLine("00000000:4E:00.0", 94, "Contained: SM (0x1)", 7, "a", instance=13),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x405840",
            XidLine("00000000:01:00.0", 13, "Graphics Exception: ESR 0x405840"),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 43, pid=1234, name=python3, Ch 00000008",
            XidLine("00000000:01:00.0", 43, "Ch 00000008", 1234, "python3"),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.",
            XidLine("00000000:01:00.0", 79, "GPU has fallen off the bus.", 1122),
        ),
        ("NVRM: Xid (PCI:0000:83:00): 48", XidLine("00000000:83:00.0", 48)),
        ("NVRM: Xid (PCI:0000:83:00): 45, ", XidLine("00000000:83:00.0", 45)),
        ("NVRM: Xid (PCI:0000:83:00): 45, pid=1, name=a, ", XidLine("00000000:83:00.0", 45, "", 1, "a")),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",  # before R340
            XidLine("00000000:03:00.0", 14, "Channel 00000001"),
        ),
        ("NVRM: Xid (PCI:10000:e1:1f): 62, 0a", XidLine("00010000:E1:1F.0", 62, "0a")),  # behind a VMD bridge
        (
            "NVRM: Xid (PCI:0000:01:00): 45, pid=9, name=x, Ch 0000000b caused by previous Xid 48",
            XidLine("00000000:01:00.0", 45, "Ch 0000000b caused by previous Xid 48", 9, "x"),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, said caused by previous Xid 48",
            XidLine("00000000:01:00.0", 31, "said caused by previous Xid 48"),
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)",
            XidLine(
                "00000009:01:00.0",
                149,
                "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)",
                detail="link 8, unit NETIR_LINK_EVT, fatal",
            ),
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            SxidLine("00000000:05:00.0", 12028, False),
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 10003, Host_unhandled_interrupt",
            SxidLine("00000000:05:00.0", 10003, None),
        ),
        ("nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 22013, Fatal", SxidLine("00000000:05:00.0", 22013, True)),
    ],
)
def test_messages(text: str, expected: XidLine | SxidLine) -> None:
    """All formats of drivers, bare and behind every prefix."""
    assert parse_message(text) == expected
    for prefix in PREFIXES:
        found = parse(prefix(text))
        assert found is not None, prefix(text)
        assert replace(found, at=None) == expected, prefix(text)


@pytest.mark.parametrize(
    ("number", "words", "action"),
    [
        (0, "None", Action.NONE),
        (1, "GPU Reset Required", Action.GPU_RESET),
        (1, "PF FLR", Action.GPU_RESET),
        (2, "Node Reboot Required", Action.NODE_REBOOT),
        (2, "OS Reboot", Action.NODE_REBOOT),
        (3, "Drain P2P", Action.DRAIN),
        (4, "Drain and Reset", Action.DRAIN),
        (5, "IMEX Domain Recovery", Action.DRAIN),
        (6, "GPU Bus Reset", Action.GPU_RESET),
        (7, "System Power Cycle", Action.NODE_REBOOT),
        (8, "Something New", Action.DRAIN),
    ],
)
def test_recovery_action_of_xid_154(number: int, words: str, action: Action) -> None:
    """By NVML's number, because the words differ between drivers; an unknown number requires a drain."""
    text = f"GPU recovery action changed from 0x0 (None) to 0x{number:x} ({words})"
    found = parse_message(f"NVRM: Xid (PCI:0000:01:00): 154, {text}")
    assert isinstance(found, XidLine)
    assert (found.code, found.message, found.recovery_action) == (154, text, action)


@pytest.mark.parametrize(
    ("line", "at"),
    [
        (LOST, None),
        (f"[ 1234.567890] {LOST}", None),
        (f"[    0.000000][    T1] {LOST}", None),
        (f"Nov 20 12:00:00 host kernel: [ 12.345678] {LOST}", None),
        (f"Nov 20 12:00:00 host kernel: {LOST}", None),
        (f"[ 12.345678] host kernel: {LOST}", None),
        (f"[Fri Nov 20 12:00:00 2026] {LOST}", None),
        (f"2026-11-20T12:00:00.5+01:00 host kernel: [ 12.345678] {LOST}", 1795172400.5),
        (f"2026-11-20T11:00:00+0000 host kernel: {LOST}", 1795172400.0),
        (f"2026-11-20T11:00:00,250000Z {LOST}", 1795172400.25),
        (f"1795172400.125000 host kernel: {LOST}", 1795172400.125),
        (f"2026-13-20T11:00:00Z host kernel: {LOST}", None),
        (f"0001-01-01T00:00:00Z host kernel: {LOST}", None),
        (f"9999-12-31T23:59:59Z host kernel: {LOST}", None),
        (f"2026-11-20 11:00:00+00:00 host kernel: {LOST}", 1795172400.0),
        (f"2026-11-20T11:00:00 host kernel: {LOST}", None),
        (f"Fri 2026-11-20 11:00:00.5 UTC host kernel: {LOST}", 1795172400.5),
        (f"Fri 2026-11-20 11:00:00 CET host kernel: {LOST}", None),
        (f"Fri 2026-11-20 16:30:00 +0530 host kernel: {LOST}", 1795172400.0),
        (f"<3>1 2026-11-20T12:00:00+01:00 host kernel - - - {LOST}", 1795172400.0),
        (f"[Nov20 12:00] {LOST}", None),
        (f" kern:     err: [2026-11-20T11:00:00.5Z]: {LOST}", 1795172400.5),
        (journal(LOST), 1795172400.123456),
        (journal(LOST, __REALTIME_TIMESTAMP="soon", _SOURCE_MONOTONIC_TIMESTAMP="-1"), None),
    ],
)
def test_times(line: str, at: float | None) -> None:
    """As far as the line has one; a date without year and time zone is not guessed."""
    found = parse(line)
    assert found is not None
    assert found.at == at
    assert replace(found, at=None) == LOST_SAYS


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Xid",
        "{",
        '{"Xid": 1}',
        "[" * 10000 + "Xid",
        "{" + '"a":{' * 10000 + "Xid",
        '["NVRM: Xid (PCI:0000:03:00): 79, x"]',
        "NVRM: GPU at PCI:0000:03:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "NVRM: GPU 0000:03:00.0: GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid (PCI:0000:66:00): 0, nothing",
        "NVRM: Xid (PCI:0000:66:00): 123456, too long a number",
        "NVRM: Xid (PCI:0000:66:00): 7\u0669, digits of another script",
        "NVRM: Xid (PCI:0000:66:00): 79GPU",
        "NVRM: Xid (PCI:66:00:00:00): 79, x",
        "NVRM: Xid (PCI:...): 79",
        "NVRM: Xid 154 GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "NVRM: nvidia: Xid (PCI:0000:66:00): 79, x",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 46 Sub-engine instance 00",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Data {0x50610002, 0x10100030, 0x00000000}",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        f"traps: {LOST[:40]}[77] general protection fault",
        f"Nov 20 12:00:00 host python3[4242]: {LOST}",
        f"Nov 20 12:00:00 host logger: {LOST}",
        f"Nov 20 12:00:00 host logger: kernel: {LOST}",
        f"Nov 20 12:00:00 logger[7]: kernel: {LOST}",
        f"Nov 20 12:00:00 host kernel: traps: {LOST}",
        f"Nov 20 12:00:00 host kernel: [ 12.345678] comm={LOST}",
        f"user  :notice: [ 12.345678] {LOST}",
        f"10.0.0.7: user: notice: [2026-11-20T11:00:00.5Z]: {LOST}",
        "#012".join(DEAD[:2]),
        "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5)#012NVRM: installed in this system is not supported",
        f"<13>[ 12.345678] {LOST}",
        journal(LOST, _TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel"),
        journal(LOST, SYSLOG_FACILITY="1"),
        journal(None),
        journal({"text": LOST}),
        journal(["N", -1, 256, 1e3]),
    ],
)
def test_other_messages(line: str) -> None:
    """Other messages, quotations, and lines of user space are ignored."""
    assert parse(line) is None


@pytest.mark.parametrize(
    "text",
    ["0000:0a:00", "0000:0A:00.0", "00000000:0A:00.0", "PCI:0000:0a:00", "0a:00.0", "0a:00"],
)
def test_addresses_match_those_of_nvml(text: str) -> None:
    """The kernel log has a domain of four digits and no function, NVML has eight and capitals."""
    assert pci_bus_id(text) == "00000000:0A:00.0"
    assert same_device(text, "00000000:0A:00.0")
    assert not same_device(text, "00000001:0A:00.0")
    assert not same_device(text, "00000000:0A:00.1")


@pytest.mark.parametrize("text", ["", "0a", "GPU-0a:00", "0000:0a:00.8", "0000:0g:00", "000000000:0a:00", "0a:00\n"])
def test_bad_addresses(text: str) -> None:
    """They match no device, not even themselves."""
    assert pci_bus_id(text) == ""
    assert not same_device(text, text)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"6,339,5140900,-;NET: Registered\n", KmsgRecord(0, 339, 5140900, "NET: Registered")),
        (
            b"7,160,424069,-;pci_root PNP0A03:00: host bridge\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n",
            KmsgRecord(0, 160, 424069, "pci_root PNP0A03:00: host bridge"),
        ),
        (
            b"12,340,5690716,-,caller=T42,more=1;text;with;semicolons",
            KmsgRecord(1, 340, 5690716, "text;with;semicolons"),
        ),
        (b"3,1,2,c;a\\x5cb \\xc3\\xa9 \\x0a\n", KmsgRecord(0, 1, 2, "a\\b é \n")),
        (b"30,1,2,-;\xff\n no equals\nNO_SPACE=1\n", KmsgRecord(3, 1, 2, "\ufffd")),
        (b"6,18446744073709551615,0,-;\n", KmsgRecord(0, 2**64 - 1, 0, "")),
    ],
)
def test_kmsg_records(data: bytes, expected: KmsgRecord) -> None:
    """The format of Documentation/ABI/testing/dev-kmsg."""
    assert parse_kmsg(data) == expected


@pytest.mark.parametrize("data", [b"", b"\n", b"6,1;x", b"6,1,2", b"-6,1,2,-;x", b"text", b"<6>[ 1.0] x", b"6,1,x,-;x"])
def test_bad_kmsg_records(data: bytes) -> None:
    """Content with another beginning is ignored."""
    assert parse_kmsg(data) is None


@pytest.mark.parametrize("facility", range(24))
def test_only_the_kernels_facility_counts(facility: int) -> None:
    """The kernel gives records that user space writes to /dev/kmsg another facility."""
    record = parse_kmsg(f"{facility << 3 | 3},7,1500000,-;{LOST}\n DEVICE=+pci:0000:03:00.0\n".encode())
    assert record is not None
    assert record.xid_line == (LOST_SAYS if facility == 0 else None)


def test_a_record_of_several_lines() -> None:
    record = parse_kmsg(b"3,7,1500000,-;" + b"\\x0a".join(line.encode() for line in DEAD) + b"\n")
    assert record is not None
    assert record.xid_line == DEAD_SAYS


@pytest.mark.parametrize("text", [f"[ 12.345678] {LOST}", f"kernel: {LOST}", f"a\\x0a{LOST}", f" {LOST}"])
def test_a_record_has_no_prefix(text: str) -> None:
    """Its text begins with the driver's; a second line in it is not a record."""
    record = parse_kmsg(f"3,7,1500000,-;{text}\n".encode())
    assert record is not None
    assert record.xid_line is None


@given(st.text() | st.text('NVRM: SXid(PC0123456789abcdef.),[]{}<>"\\\nkernl '))
def test_any_text(text: str) -> None:
    """It is parsed or ignored, and every parsed value is in it."""
    found = parse(text)
    assert found is None or str(found.code) in text
    parse(journal(text))
    parse("{" + text)
    pci_bus_id(text)


@given(st.binary() | st.builds(lambda rest: b"3,1,2,-;" + rest, st.binary()))
def test_any_record(data: bytes) -> None:
    """Any bytes are a record or ignored."""
    record = parse_kmsg(data)
    assert record is None or record.xid_line is None


@pytest.mark.slow
def test_twenty_thousand_lines() -> None:
    """A short `make soak`."""
    fuzz(20_000, seed=1)


@pytest.mark.parametrize(
    ("code", "message", "detail"),
    [
        (144, "SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000002)", "link 0, unit SAW_MVB, fatal"),
        (145, "RLW_REMAP  Nonfatal XC1 i0 Link -1 (0x4 0x4 0x0)", "no single link, unit RLW_REMAP, not fatal"),
        (150, "NEW_UNIT   Fatal XC0 i0 Link 17 (0xa 0x1)", "link 17, unit NEW_UNIT, fatal"),
        (149, "", ""),
        (149, "other text", ""),
        (74, "NETIR Fatal XC0 i0 Link 1 (0x0)", ""),
    ],
)
def test_errors_of_nvlink_5(code: int, message: str, detail: str) -> None:
    """Link, unit and severity are in words; registers are left as they are."""
    found = parse_message(f"NVRM: Xid (PCI:0000:03:00): {code}, {message}")
    assert isinstance(found, XidLine)
    assert (found.detail, found.recovery_action) == (detail, None)


def test_a_message_of_more_lines_is_another_one() -> None:
    """Otherwise, a flood of the driver's messages would be joined, and searched again with each of them."""
    joiner = LineJoiner()
    lost = "NVRM: fallen off the bus and is not responding to commands."
    lines = ("NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: installed in this system has", "NVRM: another message", lost)
    assert [joiner.take(f"[    1.000000] {line}") for line in lines] == [None] * 4
