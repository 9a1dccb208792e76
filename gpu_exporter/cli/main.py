"""The command line: `serve`, and the group of all commands. Every error is one line and an exit code."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from gpu_exporter.catalogue.dcgm_exporter.flags import is_theirs, translate
from gpu_exporter.cli.logs import configure
from gpu_exporter.cli.options import EVERY_SETTING, settings
from gpu_exporter.cli.stop import exit_after, stop_event
from gpu_exporter.config import ENV_PREFIX, Config
from gpu_exporter.exposition.fields_in_force import Fields
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.serving.run import run
from gpu_exporter.sources.choice import chosen
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

WARNINGS = "gpu_exporter.warnings"
# How long after SIGTERM `serve` ends at the latest, whatever hangs.
EXIT_SECONDS = 1.2
# How long the last lines may take to be read from stderr.
LAST_LINES_SECONDS = 0.3


class _Serve(click.Command):
    """`serve`, which also accepts the flags and environment variables of dcgm-exporter."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            translation = translate(args, os.environ)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error
        ctx.meta[WARNINGS] = translation.warnings
        return super().parse_args(ctx, list(translation.arguments))


class _Commands(click.Group):
    """Imports the commands beside `serve` only when they are called, which saves the server their memory."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `serve` before dcgm-exporter's flags, which come without a subcommand."""
        return super().parse_args(ctx, ["serve", *args] if args and is_theirs(args[0]) else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._others()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._others().get(cmd_name)

    @staticmethod
    def _others() -> Mapping[str, click.Command]:
        from gpu_exporter.cli.commands import commands

        return commands.commands


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-exporter")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Why GPUs are slow, broken or wasted: telemetry for Prometheus."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command(cls=_Serve)
@settings(*EVERY_SETTING)
def serve(**chosen_settings: Any) -> None:
    """Serve /metrics until SIGTERM.

    The flags and environment variables of dcgm-exporter are understood, too: docs/dcgm-exporter-flags.md has them.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    config = Config(**chosen_settings)
    lines = configure(config.log_level, config.log_format)
    try:
        for warning in click.get_current_context().meta.get(WARNINGS, ()):
            log.warning(warning)
        faulthandler.enable()  # a crash inside the driver's library should say where
        sources = chosen(config)
        fields = Fields(config)
        signal.signal(signal.SIGHUP, lambda *_: fields.ask())
        stop = stop_event()
        exit_after(stop, EXIT_SECONDS)
        clean = run(config, sources, fields, stop, lines)
    finally:
        lines.drain(LAST_LINES_SECONDS)
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        os._exit(0)


def _fail(message: str, code: int) -> int:
    """Print why it ends; a reader of stderr that stalls does not hold up the end. Returns the exit code."""

    def echo() -> None:
        with suppress(OSError):
            click.echo(f"gpu-exporter: {message}", err=True)

    printing = threading.Thread(target=echo, daemon=True)
    printing.start()
    printing.join(EXIT_SECONDS)
    if printing.is_alive():  # it holds the lock of stderr
        os._exit(code)
    return code


def main() -> None:
    """Run the command line. Every error that the user can fix is one line."""
    try:
        code = cli.main(standalone_mode=False, auto_envvar_prefix=ENV_PREFIX.rstrip("_"))
    except click.ClickException as error:
        code = _fail(" ".join(error.format_message().split()), 2)
    except GpuExporterError as error:
        code = _fail(str(error), 1)
    except click.Abort:
        code = 130
    except BrokenPipeError:  # `gpu-exporter once | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        code = _fail(str(error.strerror or error), 1)
    sys.exit(code)
