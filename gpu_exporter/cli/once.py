"""`gpu-exporter once`: the metrics of every GPU, read once."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from gpu_exporter.app.library import readings
from gpu_exporter.cli import tables
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import SOURCE_SETTINGS, Command, json_option, settings
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config, package_settings
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.fields_in_force import Fields, FieldsSettings
from gpu_exporter.pipeline.monitor import observe
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer, Style, source_labels
from gpu_exporter.sources.choice import make_sources


@command("once", Command)
@settings(*SOURCE_SETTINGS, "metrics", "schema", "collectors", "devices", "processes", "node_name")
@json_option
def once_command(as_json: bool, **values: Any) -> None:
    """On a terminal it prints a table with units, otherwise the format of /metrics. Profiling metrics are means over
    half a second. Exit code 1 if no GPU can be read.
    """
    config = Config(**values)
    ((name, source),) = make_sources(config).items()
    selection = Fields(package_settings(config, FieldsSettings)).selection
    snapshot, clean = observe(source, selection.read_rows)
    if as_json:
        click.echo(json.dumps(_as_dict(snapshot), indent=2))
    elif sys.stdout.isatty():
        click.echo("\n".join(tables.reading_table(readings(snapshot), tables.terminal_width())))
    else:
        page = Renderer(name, source_labels(source), selection, package_settings(config, Style)).render(snapshot)
        click.echo(page.body(Variant(openmetrics=False, gzip=False)), nl=False)
    leave(0 if any(status.up for status in snapshot.gpus) else 1, clean)


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot for JSON: the identity and the samples of each GPU."""
    gpus = [
        {
            "gpu": reading.index,
            "UUID": reading.gpu.uuid,
            "modelName": reading.gpu.model,
            "up": reading.up,
            **({} if reading.up else {"reason": reading.reason}),
            "info": dict(reading.gpu.info),
            "samples": reading.as_dict(),
        }
        for reading in readings(snapshot)
    ]
    return {"at": snapshot.at, "source": snapshot.source, "live": snapshot.live, "gpus": gpus}
