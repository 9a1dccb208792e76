"""`gpu-exporter events`: the latest XIDs in the kernel log."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gpu_exporter.catalogue.xids import Catalogue, load
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command, json_option, settings
from gpu_exporter.config import Config
from gpu_exporter.events.event_log import KEPT, Event
from gpu_exporter.events.kernel_log_entry import SxidLine
from gpu_exporter.events.kernel_log_reader import KernelLog
from gpu_exporter.events.saved_kernel_log import SavedEntry, SavedLog, read_saved
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.model.errors import GpuExporterError, WrongUsage

FORMS = "the output of dmesg or journalctl, or a syslog file with messages of the kernel"


@command("events", Command)
@settings("kernel_log", "xid_overrides", "procfs")
@json_option
def events_command(as_json: bool, **values: Any) -> None:
    """The log may be that of this machine, or a file: saved output of dmesg or journalctl, or a syslog file. The file
    may be from another machine or year, and compressed with gzip.

    A running exporter serves the same, and XIDs that only NVML reported, at /api/v1/events, with what the GPU was doing
    at that time.
    """
    config = Config(**values)
    path = config.kernel_log
    if path is None:
        raise WrongUsage(
            "the kernel log is disabled. A running exporter lists its XIDs at /api/v1/events; to read a kernel log,"
            " name it with --kernel-log, such as /dev/kmsg"
        )
    log = _ring(path, config.procfs) if _is_ring(path) else _file(path)
    for note in _left_out(log):
        click.echo(f"kernel log {path}: {note}", err=True)
    xids = load(config.xid_overrides)
    if as_json:
        shown = [_json(entry, xids) for entry in reversed(log.entries)]
        sxids = [row for row in shown if "sxid" in row]
        click.echo(json.dumps({"events": [row for row in shown if "xid" in row], "sxids": sxids}, indent=2))
    else:
        for entry in log.entries:
            click.echo(_text(entry, xids))
        if not log.found and log.complete:
            click.echo("no XIDs in the kernel log")
    if not log.found and not log.complete:
        raise GpuExporterError(
            f"kernel log {path}: whether it reports XIDs is not known, because not all of it was read"
        )


def _is_ring(path: Path) -> bool:
    """Whether a path is /dev/kmsg, and not a file that may have its name."""
    try:
        mode = FileWorker("kernel-log-file").call(path.stat).st_mode
    except (OSError, ValueError):  # ValueError: a path with a NUL
        return path.name == "kmsg"
    return stat.S_ISCHR(mode) or (path.name == "kmsg" and not stat.S_ISREG(mode))


def _ring(path: Path, procfs: Path) -> SavedLog:
    """Read the messages of this boot that the kernel still has."""
    log, ring, worker = SavedLog(), KernelLog(path, procfs=procfs), FileWorker("kernel-log-file")
    while not ring.at_end:
        try:
            entries = worker.call(ring.read)
        except OSError as error:
            raise GpuExporterError(f"kernel log {path}: {error.strerror}") from error
        if ring.reason:
            raise GpuExporterError(f"kernel log {ring.reason}")
        log.entries.extend(SavedEntry(entry.line, entry.at, "") for entry in entries)
        log.found += len(entries)
        log.overwritten = ring.first
    return log


def _file(path: Path) -> SavedLog:
    """Read a saved log. Raises GpuExporterError if nothing in it is a message of the kernel."""
    try:
        log = read_saved(path)
    except (OSError, ValueError) as error:
        raise GpuExporterError(f"kernel log {KernelLog(path).why(error)}") from error
    if not log.kernel:
        what = "it has no messages of the kernel" if log.lines else "it is empty"
        raise GpuExporterError(f"kernel log {path}: {what}; use {FORMS}")
    return log


def _left_out(log: SavedLog) -> Iterator[str]:
    """Yield what is not listed."""
    if log.found > KEPT:
        yield f"only the last {KEPT} of {log.found} XIDs are listed"
    for fault, count in log.faults.items():
        yield f"{fault}; messages without an XID: {count}"
    if log.mentions:
        yield f"left out {log.mentions} lines that mention an XID, but not as the kernel logs messages of the driver"
    if log.long:
        yield f"left out {log.long} lines that are longer than messages of the kernel"
    if log.cut:
        yield "only the beginning was read, because the file is too large"
    if log.overwritten:
        yield f"the kernel no longer has the first {log.overwritten} messages since the boot"


def _event(entry: SavedEntry, xids: Catalogue) -> Event:
    line = entry.line
    assert not isinstance(line, SxidLine)
    xid = xids[line.code]
    event = Event(0.0, entry.at or 0.0, line.pci, xid.code, xid.mnemonic, xid.kind.value, xid.action.value, xid.meaning)
    event.take(line)
    event.witnesses.append("kernel")
    return event


def _json(entry: SavedEntry, xids: Catalogue) -> dict[str, Any]:
    """Return an entry for JSON. Its `at` is null, and `time` as it was written, if the log has no year or zone."""
    line, when = entry.line, {"at": entry.at, "time": entry.time}
    if isinstance(line, SxidLine):
        return {"sxid": line.code, "pci_bus_id": line.pci, "fatal": line.fatal, **when}
    return {**_event(entry, xids).shown(), **when}


def _text(entry: SavedEntry, xids: Catalogue) -> str:
    line = entry.line
    local = datetime.fromtimestamp(entry.at).astimezone().isoformat(timespec="seconds") if entry.at else entry.time
    where = f"{local or 'no time'}  {line.pci}"
    if isinstance(line, SxidLine):
        severity = {True: "fatal", False: "not fatal", None: "severity unknown"}[line.fatal]
        return f"{where}  SXID {line.code} of an NVSwitch, {severity}"
    event = _event(entry, xids)
    process = f" ({', '.join(filter(None, (f'pid {event.pid}', event.process)))})" if event.pid else ""
    message = f'; message "{event.message}"' if event.message else ""
    return f"{where}  XID {event.xid} {event.name}: {event.meaning}{process}; {event.kind} -> {event.action}{message}"
