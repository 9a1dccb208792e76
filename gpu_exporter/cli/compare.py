"""`gpu-exporter compare`: whether two sources agree."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import click

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import SOURCE_SETTINGS, Command, json_option, parsed, settings
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import duration
from gpu_exporter.model.errors import WrongUsage
from gpu_exporter.model.source_kind import SOURCE_KINDS
from gpu_exporter.sources.choice import source_by_name


def _side(text: str) -> str:
    """Parse the name of a source; replay may be followed by a recording, as in replay:FILE."""
    (source,) = (setting for setting in fields(Config) if setting.name == "source")
    source.metadata["parse"](text.partition(":")[0])
    return text


@command("compare", Command)
@settings(*(setting for setting in SOURCE_SETTINGS if setting != "source"), "metrics")
@click.option("--a", type=parsed(_side), required=True, help="A source, as for --source, or replay:FILE.")
@click.option("--b", type=parsed(_side), required=True, help="The other source.")
@click.option(
    "--seconds", type=parsed(duration), default="30s", show_default=True, help="How long to read both sources."
)
@json_option
def compare_command(a: str, b: str, seconds: float, as_json: bool, **values: Any) -> None:
    """Gauges are compared by their means, profiling metrics by their integrals, counters by their increase; constant
    values, such as names and limits, must be equal. docs/compare.md lists the tolerances. A metric that only one source
    supports is shown, but is not a difference.

    Exit code 0 if the sources agree; 3 if a value or the identity of a GPU differs.
    """
    from gpu_exporter.doctor import comparison

    config = Config(**values)
    if a == b and SOURCE_KINDS[a.partition(":")[0]].live:
        raise WrongUsage(
            f"--a {a} --b {b}: a process can open a driver's library only once; name two different sources"
        )
    sides = ((a, source_by_name(config, a)), (b, source_by_name(config, b)))
    result, clean = comparison.compare_sources(*sides, selected(config.metrics), seconds)
    click.echo(json.dumps(comparison.as_dict(result), indent=2) if as_json else "\n".join(comparison.lines(result)))
    leave(comparison.EXIT_DIFFERS if result.differs else 0, clean)
