"""`gpu-exporter check`: whether a job may start on these GPUs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import SOURCE_SETTINGS, Command, json_option, parsed, settings, warn
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config
from gpu_exporter.health import check, fitness
from gpu_exporter.health.links import LinkHistory
from gpu_exporter.io.user_text import duration
from gpu_exporter.pipeline.monitor import observe
from gpu_exporter.sources.choice import make_source


@command("check", Command)
@settings(*{*SOURCE_SETTINGS, "expected_gpus", "state_dir"} - {"gpus"})
@click.option(
    "--gpus",
    type=parsed(check.names),
    help="Check only these GPUs, by index (0,1), device file (nvidia0, as Slurm counts) or UUID. (In other commands, "
    "--gpus is the number of simulated GPUs.)",
)
@click.option(
    "--active",
    is_flag=True,
    help="Also measure memory, PCIe, NVLink and arithmetic, for a few seconds. Does not test GPUs that are in use.",
)
@click.option(
    "--level",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="With --active: 2 also tests most of the memory, and computes at full power.",
)
@click.option(
    "--load-time",
    "load_seconds",
    type=parsed(duration),
    default="30s",
    show_default=True,
    help="With --level 2: how long it tests memory and computes.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --active: also test GPUs that are in use. This slows down their jobs, and low rates are not judged.",
)
@click.option(
    "--timeout",
    "seconds",
    type=parsed(duration),
    help="With --active: how long the check may take (default: 30s, with --level 2 90s). With --collectives: how long a"
    " rank waits for another one (default: 120s).",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --active: also write the results to this file, for the textfile collector of node_exporter.",
)
@click.option(
    "--collectives",
    is_flag=True,
    help="Measure all-reduce, all-to-all and pairs of ranks of a job instead. Run it under torchrun.",
)
@json_option
def check_command(
    gpus: frozenset[int | str] | None, as_json: bool, active: bool, collectives: bool, **values: Any
) -> None:
    """A GPU is unhealthy if it is lost, stuck or missing, had uncorrectable ECC errors since the driver was loaded, has
    memory that cannot be remapped, or if the driver requests a recovery action. A GPU is degraded, and not fit for a
    new job either, if its memory needs a reset to be remapped, if hardware throttles it, and so on: docs/health.md
    lists all reasons. A value that the hardware does not support is never a fault.

    Exit code 0 if all GPUs are healthy; 3 if one is degraded or unhealthy; otherwise 4 if --active has no comparable
    result because another program uses one, 1 if the health of one is unknown or there is no GPU; 2 after wrong usage
    or an unexpected error.
    """
    logging.disable(logging.WARNING)  # the verdict contains what would be logged
    of_active = {name: values.pop(name) for name in ("level", "force", "seconds", "textfile", "load_seconds")}
    _reject_unused(active=active, collectives=collectives, level=of_active["level"])
    config = Config(**values)
    if collectives:
        from gpu_exporter.cli.collective_check import run_collectives

        sys.exit(run_collectives(of_active["seconds"], as_json=as_json))
    if active:
        from gpu_exporter.cli.active_check import CheckRequest, run_check

        leave(*run_check(CheckRequest(config, gpus, **of_active), as_json=as_json))
    links = LinkHistory(config.state_dir, keeps=False)
    snapshot, clean = observe(make_source(config), fitness.ROWS, config.expected_gpus, links)
    report = check.report(snapshot, gpus)
    click.echo(json.dumps(check.as_dict(report), indent=2) if as_json else "\n".join(check.lines(report)))
    if links.problems.current:
        warn(links.problems.current)
    leave(report.exit_code, clean)


def _reject_unused(*, active: bool, collectives: bool, level: int) -> None:
    """Raise UsageError for options of `check` that would have no effect."""
    given = click.get_current_context().get_parameter_source
    for name, needs, has in (
        ("level", "--active", active),
        ("force", "--active", active),
        ("textfile", "--active", active),
        ("load_seconds", "--active --level 2", active and level > 1),
        ("seconds", "--active or --collectives", active or collectives),
    ):
        if not has and given(name) is ParameterSource.COMMANDLINE:
            flag = {"load_seconds": "--load-time", "seconds": "--timeout"}.get(name, f"--{name}")
            raise click.UsageError(f"{flag} needs {needs}")
    if active and collectives:
        raise click.UsageError("--active and --collectives exclude each other")
