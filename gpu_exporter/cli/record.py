"""`gpu-exporter record`: a recording of GPUs, for `--source replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import SOURCE_SETTINGS, Command, parsed, settings
from gpu_exporter.cli.stop import leave, stop_event
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import duration, interval
from gpu_exporter.pipeline import recorder
from gpu_exporter.sources.choice import make_source

# How often the host evidence is read.
HOST_SECONDS = 1.0


@command("record", Command)
@settings(*SOURCE_SETTINGS, "metrics", "host_evidence")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write; compressed with gzip if its name ends in .gz.",
)
@click.option(
    "--interval", type=parsed(interval), default="100ms", show_default=True, help="Time between two collections."
)
@click.option("--duration", type=parsed(duration), default="60s", show_default=True, help="How long to record.")
@click.option("--mask", is_flag=True, help="Replace UUIDs, so that you can share the file.")
def record_command(out: Path, interval: float, duration: float, mask: bool, **values: Any) -> None:
    from gpu_exporter.owners.host_owner import host_evidence

    config = Config(**values)
    stop, source = stop_event(), make_source(config)
    host = host_evidence(source, config, HOST_SECONDS) if config.host_evidence else None
    metrics = selected(config.metrics, processes=host is not None)
    ticks, clean = recorder.record(source, metrics, out, interval, duration, mask=mask, host=host, stop=stop)
    click.echo(f"{out}: {ticks} readings of GPUs")
    leave(0, clean)
