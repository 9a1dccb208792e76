"""The command line: `serve`, and the group of all commands."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from gpu_exporter.catalogue.dcgm_exporter.flags import (
    has_dcgm_exporter_variable,
    implies_dcgm,
    is_dcgm_exporter_flag,
    translate,
)
from gpu_exporter.cli.logs import configure, without_tracebacks
from gpu_exporter.cli.options import EVERY_SETTING, Command, Failure, settings, variable_warnings
from gpu_exporter.cli.stop import exit_after, stop_event
from gpu_exporter.config import Config
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

WARNINGS, DCGM_IMPLIED = "gpu_exporter.warnings", "gpu_exporter.dcgm_implied"
# `serve` ends at most so long after SIGTERM, whatever hangs.
EXIT_SECONDS = 1.2
# How long `serve` waits at its end until the last log lines are written.
LAST_LINES_SECONDS = 0.3


class _Serve(Command):
    """`serve`, which also accepts the flags and environment variables of dcgm-exporter."""

    debug_help = "Log at level debug, and show a traceback if an unexpected error ends the command."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            translation = translate(args, os.environ)
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error
        ctx.meta[WARNINGS] = translation.warnings
        ctx.meta[DCGM_IMPLIED] = implies_dcgm(args, translation.arguments)
        return super().parse_args(ctx, list(translation.arguments))

    def warn_of_variables(self, ctx: click.Context) -> None:
        """Leave the warnings to the log."""
        ctx.meta[WARNINGS] = (*ctx.meta[WARNINGS], *variable_warnings())


class _Commands(click.Group):
    """Imports the commands beside `serve` only when they are called, which saves the server their memory."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `serve` before dcgm-exporter's flags, which come without a subcommand.

        Without any arguments, insert it if one of dcgm-exporter's variables is set.

        `--debug` is one of these, unless a command follows it.
        """
        ours = args[:1] == ["--debug"] and len(args) > 1 and not args[1].startswith("-")
        theirs = is_dcgm_exporter_flag(args[0]) if args else has_dcgm_exporter_variable(os.environ)
        return super().parse_args(ctx, ["serve", *args] if theirs and not ours else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._others()]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole summaries, which click would cut off."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _summary(command)) for name, command in commands if command and not command.hidden]
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "top":  # it starts fast, without the imports of all others
            from gpu_exporter.cli.top import top_command

            return top_command
        return super().get_command(ctx, cmd_name) or self._others().get(cmd_name)

    @staticmethod
    def _others() -> Mapping[str, click.Command]:
        from gpu_exporter.cli.commands import commands

        return commands.commands


def _summary(command: click.Command) -> str:
    """Return the first paragraph of a command's help."""
    return " ".join((command.help or "").partition("\n\n")[0].split())


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Commands, invoke_without_command=True, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="gpu-exporter")
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show a traceback if an unexpected error ends the command."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Export GPU telemetry to Prometheus, and explain why GPUs are slow, broken or wasted.

    Exit code 0 means success, 1 that the command failed, 2 wrong usage or an unexpected error. Some commands
    have other exit codes: see their help.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command(cls=_Serve)
@settings(*EVERY_SETTING)
def serve(**chosen_settings: Any) -> None:
    """Serve /metrics for Prometheus, until SIGTERM.

    It also accepts the flags and environment variables of dcgm-exporter, which docs/dcgm-exporter-flags.md lists.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    from gpu_exporter.exposition.fields_in_force import Fields  # other commands start faster without these
    from gpu_exporter.serving.run import run
    from gpu_exporter.sources.choice import chosen, without_missing_dcgm

    config = Config(**chosen_settings)
    lines = configure(config.log_level, config.log_format)
    try:
        meta = click.get_current_context().meta
        for warning in meta.get(WARNINGS, ()):
            log.warning(warning)
        if meta.get(DCGM_IMPLIED):
            config = without_missing_dcgm(config)
        if sys.stderr:  # None if it is closed
            faulthandler.enable()  # if the driver's library crashes, stderr shows where
        sources = chosen(config)
        fields = Fields(config)
        signal.signal(signal.SIGHUP, lambda *_: fields.request_reload())
        stop = stop_event()
        exit_after(stop, EXIT_SECONDS)
        clean = run(config, sources, fields, stop, lines)
    finally:
        lines.drain(LAST_LINES_SECONDS)
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        os._exit(0)


def execute(*, debug: bool) -> tuple[int, str]:
    """Run the command line. Returns the exit code, and the error if there is one to print."""
    if not debug:
        without_tracebacks()
    try:
        return cli.main(standalone_mode=False) or 0, ""
    except Failure as error:
        return error.code, error.message
    except click.ClickException as error:
        return error.exit_code, " ".join(error.format_message().split())
    except GpuExporterError as error:
        return 1, str(error)
    except click.Abort:
        raise KeyboardInterrupt from None
