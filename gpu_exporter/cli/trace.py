"""`gpu-exporter trace`: where the time of GPUs went, according to profiler traces."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

from gpu_exporter.cli.commands import command

if TYPE_CHECKING:
    pass

# The subcommands: each in its own module, imported when it is called.
SUBCOMMANDS: Mapping[str, str] = {
    "analyze": "gpu_exporter.cli.trace_analyze:analyze_command",
    "diff": "gpu_exporter.cli.trace_compare:diff_command",
    "top": "gpu_exporter.cli.trace_compare:top_command",
}


class _Subcommands(click.Group):
    """Imports a subcommand when it is called, and asks for NumPy first."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, name = SUBCOMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@command("trace", _Subcommands)
def trace_command() -> None:
    """It needs NumPy: pip install numpy."""
