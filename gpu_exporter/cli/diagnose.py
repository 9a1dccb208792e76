"""`gpu-exporter diagnose`: what limits each GPU, what is wrong with it, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.login import login, login_options
from gpu_exporter.cli.options import COULD_NOT_TELL, SOURCE_SETTINGS, Command, parsed, settings
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import duration
from gpu_exporter.model.errors import GpuExporterError

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.remote import Remote


@command("diagnose", Command, error_code=COULD_NOT_TELL)
@settings(*SOURCE_SETTINGS, "kernel_log", "xid_overrides", "profile_dir")
@click.option(
    "--for",
    "seconds",
    type=parsed(duration),
    help="How long to watch (default: 20s). With the URL of a Prometheus, how far to look back (default: 5m). "
    "A recording is always read to its end.",
)
@click.option("--phase", default="", help="Diagnose only this part of a recording, such as ddp_straggler_slow_gpu.")
@click.option("--one-job", is_flag=True, help="Compare all GPUs with each other, as ranks of one job.")
@click.option("--url", default="", help="URL of an exporter or a Prometheus to ask, instead of this machine's GPUs.")
@login_options
@click.option(
    "--gpu-price", "price", type=click.FloatRange(min=0), help="USD per GPU-hour, to say what the loss costs."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the diagnosis to this file, as HTML with charts that needs neither a network nor scripts.",
)
@click.option("--mask-names", is_flag=True, help="In the --report, replace names of pods, hosts, commands and users.")
@click.option("--all", "every", is_flag=True, help="Also list the failure modes that could not be evaluated, and why.")
@click.option("--verbose", is_flag=True, help="Add the names of the series.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diagnose_command(every: bool, verbose: bool, as_json: bool, url: str, **values: Any) -> None:
    """It watches the GPUs of this machine or an exporter (--url) for a while, queries a Prometheus (--url) for the last
    minutes, with or without gpu-exporter's rules, or reads a recording. It reports a problem at once, while an alert
    waits longer before it fires. docs/diagnose.md explains the report.

    Exit code 0 if nothing is wrong; 1 if something was found; 2 if that could not be determined.
    """
    from gpu_exporter.cli.diagnose_run import DiagnoseRequest, diagnosis

    credentials = login(values)
    what = {name: values.pop(name) for name in ("seconds", "phase", "one_job", "price", "report", "mask_names")}
    if what["mask_names"] and not what["report"]:
        raise GpuExporterError("--mask-names masks names in a report: give --report FILE.html")
    request = DiagnoseRequest(Config(**values), _remote(url, credentials) if url else None, **what)
    leave(*diagnosis(request, every=every, as_json=as_json, verbose=verbose))


def _remote(url: str, credentials: Mapping[str, Any]) -> Remote:
    from gpu_exporter.diagnosis.remote import Remote

    return Remote(url, **credentials)
