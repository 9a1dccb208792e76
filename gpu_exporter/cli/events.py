"""`gpu-exporter events`: the latest XIDs in the kernel log."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gpu_exporter.catalogue.xids import load
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command, settings
from gpu_exporter.config import Config
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_thread import KernelWatch
from gpu_exporter.model.errors import GpuExporterError


@command("events", Command)
@settings("kernel_log", "xid_overrides", "procfs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def events_command(as_json: bool, **values: Any) -> None:
    """A running exporter serves the same, and XIDs that only NVML reported, at /api/v1/events, with what the GPU was
    doing at that time.
    """
    config = Config(**values)
    if config.kernel_log in ("", "none"):
        raise GpuExporterError(
            "the kernel log is disabled. A running exporter lists its XIDs at /api/v1/events; to read a kernel log,"
            " name it with --kernel-log, such as /dev/kmsg"
        )
    events = EventLog(load(config.xid_overrides), lambda pci: None)
    watch = KernelWatch(events, Path(config.kernel_log), None, procfs=config.procfs)
    watch.poll()
    if watch.reason:
        raise GpuExporterError(f"kernel log {watch.reason}")
    latest = events.recent()
    if as_json:
        click.echo(json.dumps({"events": latest}, indent=2))
        return
    for event in reversed(latest):
        process = f" (pid {event['pid']}, {event['process']})" if event["pid"] else ""
        click.echo(
            f"{datetime.fromtimestamp(event['at']).astimezone().isoformat(timespec='seconds')}  {event['pci_bus_id']}"
            f"  XID {event['xid']} {event['name']}: {event['meaning']}{process}; {event['kind']} -> {event['action']}"
        )
    if not latest:
        click.echo("no XIDs in the kernel log")
