"""`gpu-exporter serve`: serves /metrics, with the settings or with dcgm-exporter's flags."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from typing import Any

import click

from gpu_exporter.catalogue.dcgm_exporter.flags import implies_dcgm, translate
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.logs import configure
from gpu_exporter.cli.options import EVERY_SETTING, Command, settings, variable_warnings
from gpu_exporter.cli.stop import exit_after, stop_event
from gpu_exporter.config import Config, package_settings

log = logging.getLogger(__name__)

WARNINGS, DCGM_IMPLIED = "gpu_exporter.warnings", "gpu_exporter.dcgm_implied"
# `serve` ends at most so long after SIGTERM, whatever hangs.
EXIT_SECONDS = 1.2


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


@command("serve", _Serve)
@settings(*EVERY_SETTING)
def serve_command(**chosen_settings: Any) -> None:
    """It also accepts the flags and environment variables of dcgm-exporter, which docs/dcgm-exporter-flags.md lists."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    from gpu_exporter.app import heap
    from gpu_exporter.app.run import run
    from gpu_exporter.pipeline.fields_in_force import Fields, FieldsSettings
    from gpu_exporter.sources.choice import make_sources, without_missing_dcgm

    config = Config(**chosen_settings)
    heap.limit_stacks()
    if config.nodes == 1:  # the thousands of threads of many nodes would contend for the one arena
        heap.share()
    lines = configure(config.log_level, config.log_format)
    try:
        meta = click.get_current_context().meta
        for warning in meta.get(WARNINGS, ()):
            log.warning(warning)
        if meta.get(DCGM_IMPLIED):
            config = without_missing_dcgm(config)
        if sys.stderr:  # None if it is closed
            faulthandler.enable()  # if the driver's library crashes, stderr shows where
        sources = make_sources(config)
        fields = Fields(package_settings(config, FieldsSettings))
        stop = stop_event(hang_up=fields.request_reload)
        exit_after(stop, EXIT_SECONDS)
        clean = run(config, sources, fields, stop, lines)
    finally:
        lines.drain()
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        os._exit(0)
