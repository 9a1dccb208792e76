"""The kernel-log parser on many lines: a million in `make soak`, 20 000 in CI.

    python -m tests.soak.kernel_log [--lines 1000000] [--seed 1]

Real lines are parsed to what they were made of, behind every prefix. Quoted, injected and random lines are ignored.
Damaged lines never cause an error, and every parsed value is in the line.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from gpu_exporter.events.kernel_log_entry import SxidLine, XidLine
from gpu_exporter.events.kernel_log_parser import parse, parse_kmsg

PREFIXES: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: f"[ 1234.567890] {text}",
    lambda text: f"[1234567.890123] {text}\n",
    lambda text: f"[   12.000001][ T1234] {text}",
    lambda text: f"[    0.000000][    C0] {text}",
    lambda text: f"<3>[   77.123456] {text}",
    lambda text: f"<6>{text}",
    lambda text: f"[Fri Nov 20 12:00:00 2026] {text}",
    lambda text: f"kern  :err   : [ 1234.567890] {text}",
    lambda text: f"2026-11-20T12:00:00,123456+00:00 {text}",
    lambda text: f"kernel: {text}",
    lambda text: f"Nov 20 12:00:00 host kernel: [ 1234.567890] {text}",
    lambda text: f"Nov  2 12:00:00 gpu-7.example.org kernel: {text}\r\n",
    lambda text: f"2026-11-20T12:00:00.123456+01:00 host kernel: [ 1234.567890] {text}",
    lambda text: f"2026-11-20T12:00:00Z host kernel: {text}",
    lambda text: f"2026-11-20T12:00:00+0100 host kernel: {text}",
    lambda text: f"1795172400.123456 host kernel: {text}",
    lambda text: f"[ 1234.567890] host kernel: {text}",
    lambda text: f"[ 1234.567890 <    0.000012>] {text}",
    lambda text: f"[<    0.000012>] {text}",
    lambda text: f"[Fri Nov 20 12:00:00 2026 <    0.000012>] {text}",
    lambda text: f"[lun. nov. 20 12:00:00 2026] {text}",
    lambda text: f"[Nov20 12:00] {text}",
    lambda text: f"[  +0.000012] {text}",
    lambda text: f"\x1b[32m[ 1234.567890] \x1b[0m\x1b[33m{text[:6]}\x1b[0m\x1b[31m{text[6:]}\x1b[0m\r\n",
    lambda text: f"\ufeff[ 1234.567890] {text}",
    lambda text: f"Nov 20 12:00:00.123456 host kernel: {text}",
    lambda text: f"Nov 20 12:00:00 host kern.err kernel: [ 1234.567890] {text}",
    lambda text: f"Fri 2026-11-20 12:00:00 UTC host kernel: {text}",
    lambda text: f"Fri 2026-11-20 12:00:00 CET host kernel: {text}",
    lambda text: f"2026-11-20 12:00:00 host kernel: {text}",
    lambda text: f"<3>Nov 20 12:00:00 host kernel: [ 1234.567890] {text}",
    lambda text: f"<3>1 2026-11-20T12:00:00.123456+01:00 host kernel - - - [ 1234.567890] {text}",
    lambda text: f'1 2026-11-20T11:00:00Z host kernel 1 ID [meta sequenceId="7"] \ufeff{text}',
    lambda text: f"Nov 20 12:00:00 kernel: {text}",
    lambda text: f"[ 1234.567890] kernel: {text}",
    lambda text: f"10.0.0.7: kern:     err: [2026-11-20T11:00:00.123456789Z]: {text}",
    lambda text: journal(text),
    lambda text: f"\x1e{journal(text)}",
    lambda text: f"data: {journal(text)}",
    lambda text: journal([*text.encode()]),
)
# Lines that quote an XID, or that another program wrote.
QUOTES: tuple[Callable[[str], str], ...] = (
    lambda text: f"app: {text}",
    lambda text: f" {text}",
    lambda text: f"[ 1234.567890] app: {text}",
    lambda text: f'[ 1234.567890] audit: type=1400 audit(1.2:3): comm="{text}"',
    lambda text: f"Nov 20 12:00:00 host python3[77]: {text}",
    lambda text: f"Nov 20 12:00:00 host kernel[77]: {text}",
    lambda text: f"Nov 20 12:00:00 host app: kernel: {text}",
    lambda text: f"2026-11-20T12:00:00Z host app[1]: [ 12.345678] {text}",
    lambda text: f"user  :notice: [ 1234.567890] {text}",
    lambda text: f"<12>[ 1234.567890] {text}",
    lambda text: f"<12>1 2026-11-20T12:00:00Z host kernel - - - {text}",
    lambda text: f"<3>1 2026-11-20T12:00:00Z host app - - - {text}",
    lambda text: f'<3>1 2026-11-20T12:00:00Z host app - - [a b="kernel - - -"] {text}',
    lambda text: f"Fri 2026-11-20 12:00:00 UTC host app[1]: {text}",
    lambda text: f"[Nov20 12:00] app: {text}",
    lambda text: f"segfault in {text}",
    lambda text: text.replace("NVRM: ", "").replace("nvidia-", ""),
    lambda text: text.replace("Xid (", "xid ("),
    lambda text: text.replace("): ", "):"),
    lambda text: journal(text, _TRANSPORT="syslog"),
    lambda text: journal(text, _TRANSPORT="stdout"),
    lambda text: journal(text, SYSLOG_FACILITY="1"),
    lambda text: json.dumps({"MESSAGE": text}),
)


def journal(text: object, **fields: str) -> str:
    """Return a line of `journalctl -o json`."""
    known = {"__REALTIME_TIMESTAMP": "1795172400123456", "_SOURCE_MONOTONIC_TIMESTAMP": "1234567890", "_BOOT_ID": "b0"}
    return json.dumps({"MESSAGE": text, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", **known, **fields})


def true_line(rng: random.Random) -> tuple[str, XidLine | SxidLine]:
    """Return a line as a driver prints it, and the values that it is made of."""
    address = f"{rng.randrange(16):04x}:{rng.randrange(256):02x}:{rng.randrange(32):02x}"
    pci = f"0000{address.upper()}.0"
    if rng.random() < 0.2:
        code, switch, link = rng.randrange(10000, 30000), rng.randrange(8), rng.randrange(64)
        fatal = rng.random() < 0.5
        message = f"Link {link:02d} LTSSM Fault Up"
        says = SxidLine(pci, code, fatal)
        severity = "Fatal" if fatal else "Non-fatal"
        return f"nvidia-nvswitch{switch}: SXid (PCI:{address}.0): {code:05d}, {severity}, {message}", says
    xid = XidLine(pci, rng.randrange(1, 200), "GPU has fallen off the bus.")
    where = f"PCI:{address}"
    if rng.random() < 0.3:
        xid = replace(xid, instance=rng.randrange(15))
        where += f" GPU-I:{xid.instance:02d}"
        if rng.random() < 0.5:
            where += f" GPU-CI:{rng.randrange(8):02d}"
    process = ""
    if rng.random() < 0.6:
        name = "".join(rng.choices(string.ascii_letters + string.digits + "._-/:() ", k=rng.randrange(1, 15)))
        xid = replace(xid, pid=rng.randrange(1, 2**22), name=name)
        process = f"pid={xid.pid}, name={name}, "
    if rng.random() < 0.4:
        channel = rng.randrange(2**32)
        text = rng.choice([f"Ch {channel:08x}", f"channel 0x{channel:08x}"]) + ", intr 00000000. MMU Fault: …"
        xid = replace(xid, message=text)
    return f"NVRM: Xid ({where}): {xid.code}, {process}{xid.message}", xid


def damage(rng: random.Random, line: str) -> str:
    """Drop, double, replace or move a few characters."""
    for _ in range(rng.randrange(1, 4)):
        at, other = sorted((rng.randrange(len(line) + 1), rng.randrange(len(line) + 1)))
        pieces = ("", line[at:other] * 2, chr(rng.choice([0, 10, 27, 65, 0xE9, 0x663, 0x1F600])), line[at:other][::-1])
        line = line[:at] + rng.choice(pieces) + line[at + rng.randrange(2) :]
    return line


def check_lines(rng: random.Random) -> None:
    """Parse a random line of each kind. Raises AssertionError."""
    line, says = true_line(rng)
    sort = rng.randrange(4)
    if sort == 0:
        logged = rng.choice(PREFIXES)(line)
        found = parse(logged)
        assert found is not None, logged
        assert replace(found, at=None) == says, logged
    elif sort == 1:
        logged = rng.choice(PREFIXES)(rng.choice(QUOTES)(line)) if rng.random() < 0.3 else rng.choice(QUOTES)(line)
        assert parse(logged) is None, logged
    elif sort == 2:
        text = damage(rng, line)
        found = parse(rng.choice(PREFIXES)(text))
        assert found is None or str(found.code) in text, text
        logged = damage(rng, rng.choice(PREFIXES)(line))
        parse(logged)
        parse_kmsg(logged.encode("utf-8", "replace"))
    else:
        words = ["Xid", "NVRM:", "(PCI:0000:01:00):", "kernel:", "79,", "SXid", "host", *string.printable]
        logged = " ".join(rng.choices(words, k=rng.randrange(40)))
        assert "NVRM: Xid (PCI:0000:01:00): 79," in logged or parse(logged) is None, logged


def fuzz(lines: int, seed: int) -> None:
    """Parse this many lines. The seed makes a failure reproducible."""
    rng = random.Random(seed)
    for _ in range(lines):
        check_lines(rng)


def main() -> int:
    """Run and print the rate."""
    options = argparse.ArgumentParser()
    options.add_argument("--lines", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    begin = time.monotonic()
    fuzz(chosen.lines, chosen.seed)
    print(f"{chosen.lines} kernel-log lines in {time.monotonic() - begin:.0f} s, none misread")
    return 0


if __name__ == "__main__":
    sys.exit(main())
