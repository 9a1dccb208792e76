"""`gpu-exporter trace`: where the time of GPUs went, according to profiler traces."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import COULD_NOT_TELL, Failure
from gpu_exporter.cli.progress import Progress

if TYPE_CHECKING:
    from gpu_exporter.traces.model import Trace

MISSING = "trace needs NumPy, which is not installed: pip install numpy"
# The subcommands: each in its own module, imported when it is called.
SUBCOMMANDS: Mapping[str, str] = {
    "analyze": "gpu_exporter.cli.trace_analyze:analyze_command",
    "diff": "gpu_exporter.cli.trace_compare:diff_command",
    "top": "gpu_exporter.cli.trace_compare:top_command",
}
GATE_FAILED = 1


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


def require_numpy() -> None:
    """Raise Failure with one line if NumPy is not installed."""
    if importlib.util.find_spec("numpy") is None:
        raise Failure(MISSING, COULD_NOT_TELL)


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Read traces, with progress on a terminal. Raises GpuExporterError and OSError."""
    require_numpy()
    from gpu_exporter.traces.reader import read

    traces = []
    for number, path in enumerate(paths, 1):
        share = [0.0]

        def report(done: int, total: int, share: list[float] = share) -> None:
            share[0] = done / total if total else 1.0

        of_all = f" ({number} of {len(paths)})" if len(paths) > 1 else ""
        with Progress(f"reading {path.name}{of_all}", share=lambda share=share: share[0]):  # type: ignore[misc]
            traces.append(read(path, report))
    return traces
