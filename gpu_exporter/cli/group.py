"""The command line: the group of all commands, and one line for each warning and error that is logged meanwhile."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpu_exporter.cli.commands import SECTIONS, SUMMARIES, CommandFailure, Commands
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.version import __version__

# The longest message that is printed or logged, in characters.
LONGEST_MESSAGE = 4000


def _one_line(text: str) -> str:
    from gpu_exporter.io.decoding import printable  # only warnings and errors need it

    return printable(text, LONGEST_MESSAGE)


class OneLine(logging.Formatter):
    """A record is one line, whatever it contains."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        text = f"gpu-exporter: {record.getMessage()}" + (f": {type(error).__name__}: {error}" if error else "")
        return _one_line(" ".join(text.split()))


def without_tracebacks() -> None:
    """Print warnings and errors that are logged before, or without, `configure` as one line each."""
    if logging.lastResort:
        logging.lastResort.setFormatter(OneLine())


if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# What may stand alone: neither a command nor dcgm-exporter's.
OWN = ("-h", "--help", "--version")


class _Group(click.Group):
    """Lists the commands in sections, without importing them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["serve", *args] if _is_of_dcgm_exporter(args) else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their whole summaries, which click would cut off."""
        width = max(map(len, SUMMARIES))
        for title, summaries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in summaries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands, and options."""
        from click.shell_completion import CompletionItem  # only a shell needs it

        names = [CompletionItem(name, help=text) for name, text in SUMMARIES.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]


def _is_of_dcgm_exporter(args: Sequence[str]) -> bool:
    """Return whether these are dcgm-exporter's flags, which come without a subcommand: `serve` accepts them.

    Without any arguments, one of dcgm-exporter's variables says so.

    `--debug` is one of these flags, unless a command follows it.
    """
    if args and (not args[0].startswith("-") or args[0] in OWN):
        return False
    from gpu_exporter.catalogue.dcgm_exporter.flags import has_dcgm_exporter_variable, is_dcgm_exporter_flag

    if not args:
        return has_dcgm_exporter_variable(os.environ)
    return is_dcgm_exporter_flag(args[0]) and not (args[0] == "--debug" and args[1:2] and not args[1].startswith("-"))


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Group, commands=Commands(), invoke_without_command=True, context_settings=CONTEXT)
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


def execute(*, debug: bool) -> tuple[int, str]:
    """Run the command line. Returns the exit code, and the error if there is one to print."""
    if not debug:
        without_tracebacks()
    try:
        return cli.main(standalone_mode=False) or 0, ""
    except CommandFailure as error:
        return error.code, _one_line(error.message)
    except click.ClickException as error:
        return error.exit_code, _one_line(" ".join(error.format_message().split()))
    except GpuExporterError as error:
        return 1, _one_line(str(error))
    except click.Abort:
        raise KeyboardInterrupt from None
