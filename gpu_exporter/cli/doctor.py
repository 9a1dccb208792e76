"""`gpu-exporter doctor`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import click

from gpu_exporter.cli import local_exporter
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import OWNER_SETTINGS, SOURCE_SETTINGS, json_option, settings
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config, package_settings
from gpu_exporter.doctor import examine, machine
from gpu_exporter.http import client
from gpu_exporter.model import finding
from gpu_exporter.sources.choice import make_source


@command("doctor", local_exporter.LocalCommand, error_code=2)
@settings(
    *SOURCE_SETTINGS, *OWNER_SETTINGS, *local_exporter.SETTINGS, "node_name", "host_evidence", "nics", "job_socket"
)
@click.option(
    "--job",
    is_flag=False,
    flag_value="",
    metavar="[JOB_ID]",
    help="Only check whether messages of training loops arrive, of this job or of all jobs, and why not. Asks the "
    "exporter of this machine, on port 9400 or at --address.",
)
@click.option("--quiet", is_flag=True, help="Print nothing; only set the exit code.")
@json_option
def doctor_command(job: str | None, quiet: bool, as_json: bool, **values: Any) -> None:
    """Exit code 0 if a GPU can be read, even with warnings; 1 if none can; 2 if that cannot be determined.

    With --job, 0 if messages arrive, 1 if none does.
    """
    logging.disable(logging.WARNING)  # the findings contain what would be logged
    config = Config(**values)
    findings, clean = _examined(config) if job is None else (_examined_job(config, job), True)
    result = finding.as_dict(findings)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif not quiet:
        click.echo("\n".join(map(str, findings)))
    leave(0 if result["ok"] else 1, clean)


def _examined_job(config: Config, job: str) -> list[finding.Finding]:
    """Return why messages of a job do not arrive."""
    from gpu_exporter.doctor import jobs

    return jobs.why_silent(config.job_socket, partial(_own_metrics, config), job)


def _examined(config: Config) -> tuple[list[finding.Finding], bool]:
    """Return the findings on GPUs and machine, and False if a driver call is stuck."""
    certificate = partial(local_exporter.certificate, config.web_config_file)
    around = machine.checks(config.address, certificate, kubelet_checked=config.kubernetes)
    if config.kubernetes or config.hpc_job_mapping_dir:
        from gpu_exporter.doctor.owners import checks
        from gpu_exporter.owners.settings import OwnerSettings

        around += checks(package_settings(config, OwnerSettings))
    if config.nics:
        from gpu_exporter.doctor import nics

        around += (partial(nics.checks, config.procfs, config.sysfs),)
    if config.host_evidence:
        from gpu_exporter.doctor import host

        around += (partial(host.checks, config.procfs, config.sysfs),)
    if config.job_socket is not None:
        from gpu_exporter.doctor import jobs

        around += (partial(jobs.checks, config.job_socket, partial(_own_metrics, config)),)
    return examine.examine(lambda: make_source(config), around)


def _own_metrics(config: Config) -> str:
    """Return the /metrics response of the exporter with these settings. Raises GpuExporterError."""
    url, leaf = local_exporter.url_and_certificate(config.address, config.web_config_file)
    return client.Remote(url, certificate=leaf).metrics()
