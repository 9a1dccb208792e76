"""`gpu-exporter metrics`: the list of metrics that gpu-exporter knows."""

from __future__ import annotations

import sys

import click

from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.cli import tables
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command, parsed
from gpu_exporter.io.user_text import metric_set
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet


@command("metrics", Command)
@click.argument("text", default="")
@click.option("--metrics", type=parsed(metric_set), default="full", show_default=True, help="Set of metrics to list.")
def metrics_command(text: str, metrics: MetricSet) -> None:
    """`full` also lists metrics that are exposed only if dcgm-exporter's CSV file of fields (--collectors) names them.
    On a terminal the table fits its width, with the help text below each metric. Otherwise each metric is one line with
    its full name, whatever the width.
    """
    rows = [metric for metric in METRICS if metrics is MetricSet.FULL or metric.set is MetricSet.DEFAULT]
    if not (rows := tables.matching(rows, text)):
        raise GpuExporterError(f"no metric has {text!r} in its name or help; list all with `gpu-exporter metrics`")
    lines = tables.metric_list(rows, tables.terminal_width()) if sys.stdout.isatty() else tables.metric_table(rows)
    click.echo("\n".join(lines))
