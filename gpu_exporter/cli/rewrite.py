"""`gpu-exporter rewrite`: dashboards and rules for another exporter."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import FileWorker, cause, read
from gpu_exporter.model.errors import GpuExporterError

# The largest dashboards have some hundred panels.
MOST_BYTES = 1 << 24
EXIT_LEFT = 3


@command("rewrite", Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def rewrite_command(file: Path) -> None:
    """FILE is a dashboard of Grafana (JSON) or a file of alerts and recording rules (YAML) for nvidia_gpu_exporter or
    nvitop-exporter. It is printed with queries that have the same values and units, and the same labels under the names
    that they have here. docs/peer-series.md lists what replaces each series.

    A query without a counterpart stays as it is, with a comment that says why; stderr lists these.

    Exit code 0 if every query was rewritten; 3 if one has a comment.
    """
    from gpu_exporter.migration.files import Migration

    migration = Migration()
    try:
        text = FileWorker("rewrite").call(lambda: read(file, MOST_BYTES)).decode()
        migrated = migration.migrate(text)
    except (OSError, ValueError) as error:
        raise GpuExporterError(f"{file}: {cause(error)}") from None
    click.echo(migrated, nl=False)
    click.echo(f"{file}: {migration.rewritten} queries rewritten, {migration.refused} not", err=True)
    for query, reasons in migration.problems:
        for reason in reasons:
            click.echo(f"{printable(query, 80)}: {reason}", err=True)
    if migration.problems:
        raise SystemExit(EXIT_LEFT)
