"""`gpu-exporter remediate`: the controller that cordons and drains nodes with unfit GPUs."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.logs import configure, write_decisions
from gpu_exporter.cli.options import Command
from gpu_exporter.cli.stop import stop_event


@command("remediate", Command)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="YAML file of the controller, which docs/remediation.md describes.",
)
@click.option("--explain", "node", default="", help="Print what would be done with this node now and why; do nothing.")
@click.option("--check", is_flag=True, help="Only check the file.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def remediate_command(path: Path, node: str, check: bool, log_level: str) -> None:
    """It runs in a pod of the cluster, and in observe mode by default: it decides and changes nothing. Each decision is
    a line of JSON on stdout.
    """
    from gpu_exporter.remediation.run import explain, run  # other commands start faster without these
    from gpu_exporter.remediation.settings import load

    settings = load(path)
    if check:
        click.echo(f"{path}: ok, pools: {', '.join(f'{pool.name} ({pool.mode.value})' for pool in settings.pools)}")
        return
    if node:
        click.echo("\n".join(explain(settings, node)))
        return
    queues = configure(log_level, "text"), write_decisions()
    try:
        run(settings, stop_event())
    finally:
        for lines in queues:
            lines.drain()
