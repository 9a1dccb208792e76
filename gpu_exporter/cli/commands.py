"""The commands other than `serve`. Each parses its options and calls the module that does the work."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_exporter.catalogue.metrics import METRICS, selected
from gpu_exporter.catalogue.xids import load
from gpu_exporter.cli import local_exporter, tables
from gpu_exporter.cli.bundle import bundle_command
from gpu_exporter.cli.compare import compare_command
from gpu_exporter.cli.login import login, login_options
from gpu_exporter.cli.options import COULD_NOT_TELL, OWNER_SETTINGS, SOURCE_SETTINGS, Command, parsed, settings
from gpu_exporter.cli.profile import profile_command
from gpu_exporter.cli.release import release_command, resume_command
from gpu_exporter.cli.remediate import remediate_command
from gpu_exporter.cli.sampler import sampler_command
from gpu_exporter.cli.stop import leave, stop_event
from gpu_exporter.cli.top import top_command
from gpu_exporter.cli.trace import trace_command
from gpu_exporter.collection import record
from gpu_exporter.collection.monitor import observe
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import remote
from gpu_exporter.diagnosis.doctor import examine, surroundings
from gpu_exporter.exposition.fields_in_force import Fields
from gpu_exporter.exposition.pages import Variant
from gpu_exporter.exposition.renderer import Renderer, everywhere, style
from gpu_exporter.health import check, judge
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_thread import KernelWatch
from gpu_exporter.inputs import duration, interval, metric_set
from gpu_exporter.library import readings
from gpu_exporter.model import finding
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.render import artifacts
from gpu_exporter.sources.choice import chosen, only, origin


class _Others(click.Group):
    command_class = Command


@click.group(cls=_Others)
def commands() -> None:
    """The commands that `gpu_exporter.cli.group` lists after `serve`."""


@commands.command()
@settings(*SOURCE_SETTINGS, "metrics", "schema", "collectors", "devices", "processes", "node_name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def once(as_json: bool, **values: Any) -> None:
    """Read every GPU once and print its metrics.

    On a terminal it prints a table with units, otherwise the format of /metrics. Profiling metrics are means over half
    a second. Exit code 1 if no GPU can be read.
    """
    config = Config(**values)
    ((name, source),) = chosen(config).items()
    selection = Fields(config).selection
    snapshot, clean = observe(source, selection.read_rows)
    if as_json:
        click.echo(json.dumps(_as_dict(snapshot), indent=2))
    elif sys.stdout.isatty():
        click.echo("\n".join(tables.reading_table(readings(snapshot), _width())))
    else:
        page = Renderer(name, everywhere(source), selection, style(config)).render(snapshot)
        click.echo(page.body(Variant(openmetrics=False, gzip=False)), nl=False)
    leave(0 if any(status.up for status in snapshot.gpus) else 1, clean)


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot for JSON: the identity and the samples of each GPU."""
    gpus = [
        {
            "gpu": reading.index,
            "UUID": reading.gpu.uuid,
            "modelName": reading.gpu.model,
            "up": reading.up,
            **({} if reading.up else {"reason": reading.reason}),
            "info": dict(reading.gpu.info),
            "samples": reading.as_dict(),
        }
        for reading in readings(snapshot)
    ]
    return {"at": snapshot.at, "source": snapshot.source, "live": snapshot.live, "gpus": gpus}


@commands.command("record")
@settings(*SOURCE_SETTINGS, "metrics", "host_evidence")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="File to write; compressed with gzip if its name ends in .gz.",
)
@click.option(
    "--interval", type=parsed(interval), default="100ms", show_default=True, help="Time between two collections."
)
@click.option("--duration", type=parsed(duration), default="60s", show_default=True, help="How long to record.")
@click.option("--mask", is_flag=True, help="Replace UUIDs, so that you can share the file.")
def record_command(out: Path, interval: float, duration: float, mask: bool, **values: Any) -> None:
    """Record GPUs to a file that `--source replay` replays."""
    from gpu_exporter.cli.host import recorded_host

    config = Config(**values)
    stop, source = stop_event(), only(config)
    host = recorded_host(source, config)
    metrics = selected(config.metrics, processes=host is not None)
    ticks, clean = record.record(
        source, metrics, out, interval, duration, origin=origin(source), mask=mask, host=host, stop=stop
    )
    click.echo(f"{out}: {ticks} ticks")
    leave(0, clean)


@commands.command("metrics")
@click.argument("text", default="")
@click.option("--metrics", type=parsed(metric_set), default="full", show_default=True, help="Set of metrics to list.")
def metrics_command(text: str, metrics: MetricSet) -> None:
    """List the metrics that gpu-exporter knows, or those with TEXT in their name or help.

    `full` also lists metrics that are exposed only if dcgm-exporter's CSV file of fields (--collectors) names them.
    On a terminal the table fits its width, with the help text below each metric. Otherwise each metric is one line with
    its full name, whatever the width.
    """
    rows = [metric for metric in METRICS if metrics is MetricSet.FULL or metric.set is MetricSet.DEFAULT]
    if not (rows := tables.matching(rows, text)):
        raise GpuExporterError(f"no metric has {text!r} in its name or help; list all with `gpu-exporter metrics`")
    lines = tables.metric_list(rows, _width()) if sys.stdout.isatty() else tables.metric_table(rows)
    click.echo("\n".join(lines))


def _width() -> int:
    """Return the width of the terminal, or what lines need at least to be readable."""
    return max(40, shutil.get_terminal_size().columns)


@commands.command("generate", error_code=2, hidden=True)
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is stale.")
@click.option("--root", type=click.Path(path_type=Path), default=".", help="Root directory of the repository.")
def generate_command(check: bool, root: Path) -> None:
    """Write the committed files that are rendered from the catalogues. For developers, in a checkout.

    Exit code 1 if --check finds a stale file.
    """
    artifacts.check(root)
    changed = artifacts.stale(root) if check else artifacts.write(root)
    for name in changed:
        click.echo(f"{name}: {'stale; run `gpu-exporter generate`' if check else 'written'}")
    if reason := artifacts.left_out(root):
        click.echo(reason, err=True)
    sys.exit(1 if check and changed else 0)


@commands.command("doctor", cls=local_exporter.LocalCommand, error_code=2)
@settings(
    *SOURCE_SETTINGS, *OWNER_SETTINGS, *local_exporter.SETTINGS, "node_name", "host_evidence", "nics", "job_socket"
)
@click.option("--quiet", is_flag=True, help="Print nothing; only set the exit code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(quiet: bool, as_json: bool, **values: Any) -> None:
    """Report what works on this machine, and why the rest does not.

    Exit code 0 if a GPU can be read, even with warnings; 1 if none can; 2 if that cannot be determined.
    """
    logging.disable(logging.WARNING)  # the findings contain what would be logged
    config = Config(**values)
    certificate = partial(local_exporter.certificate, config.web_config_file)
    around = surroundings.checks(config.address, certificate, kubelet_checked=config.kubernetes)
    if config.kubernetes or config.hpc_job_mapping_dir:
        from gpu_exporter.diagnosis.doctor.attribution import checks

        around += checks(config)
    if config.nics:
        from gpu_exporter.diagnosis.doctor import nics

        around += (partial(nics.checks, config),)
    if config.host_evidence:
        from gpu_exporter.diagnosis.doctor import host

        around += (partial(host.checks, config),)
    if config.job_socket is not None:
        from gpu_exporter.diagnosis.doctor import jobs

        around += (partial(jobs.checks, config.job_socket, partial(_own_metrics, config)),)
    findings, clean = examine.examine(lambda: only(config), around)
    result = finding.as_dict(findings)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif not quiet:
        click.echo("\n".join(map(str, findings)))
    leave(0 if result["ok"] else 1, clean)


def _own_metrics(config: Config) -> str:
    """Return the /metrics response of the exporter with these settings. Raises GpuExporterError."""
    url, leaf = local_exporter.url_and_certificate(config.address, config.web_config_file)
    return remote.Remote(url, certificate=leaf).metrics()


@commands.command("check")
@settings(*{*SOURCE_SETTINGS, "expected_gpus", "state_dir"} - {"gpus"})
@click.option(
    "--gpus",
    type=parsed(check.indices),
    help="Check only these GPUs, by index, such as 0,1. (In other commands, --gpus is the number of simulated GPUs.)",
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
    "--force", is_flag=True, help="With --active: also test GPUs that are in use. This slows down their jobs."
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_command(gpus: frozenset[int] | None, as_json: bool, active: bool, collectives: bool, **values: Any) -> None:
    """Check whether a job may start on these GPUs. Takes a fraction of a second if they respond.

    A GPU is unhealthy if it is lost, stuck or missing, had uncorrectable ECC errors since the driver was loaded, has
    memory that cannot be remapped, or if the driver requests a recovery action. A GPU is degraded, and not fit for a
    new job either, if its memory needs a reset to be remapped, if hardware throttles it, and so on: docs/health.md
    lists all reasons. A value that the hardware does not support is never a fault.

    Exit code 0 if all GPUs are healthy; 3 if one is degraded or unhealthy; otherwise 1 if the health of one is unknown
    or there is no GPU; 2 after wrong usage or an unexpected error.
    """
    logging.disable(logging.WARNING)  # the verdict contains what would be logged
    of_active = {name: values.pop(name) for name in ("level", "force", "seconds", "textfile", "load_seconds")}
    _reject_unused(active=active, collectives=collectives, level=of_active["level"])
    config = Config(**values)
    if collectives:
        from gpu_exporter.cli.collective_check import run_collectives

        sys.exit(run_collectives(of_active["seconds"], as_json=as_json))
    if active:
        from gpu_exporter.cli.active_check import Request, run_check

        leave(*run_check(Request(config, gpus, **of_active), as_json=as_json))
    snapshot, clean = observe(only(config), judge.ROWS, config.expected_gpus)
    report = check.report(snapshot, gpus)
    click.echo(json.dumps(check.as_dict(report), indent=2) if as_json else "\n".join(check.lines(report)))
    leave(check.EXIT_CODES[report.health], clean)


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


@commands.command("events")
@settings("kernel_log", "xid_overrides", "procfs")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def events_command(as_json: bool, **values: Any) -> None:
    """List the latest XIDs in the kernel log, the newest last: which GPU, whose fault, what repairs it.

    A running exporter serves the same, and XIDs that only NVML reported, at /api/v1/events, with what the GPU was doing
    at that time.
    """
    config = Config(**values)
    if config.kernel_log in ("", "none"):
        raise GpuExporterError(
            "the kernel log is disabled. A running exporter lists its XIDs at /api/v1/events; to read a kernel log,"
            " name it with --kernel-log, such as /dev/kmsg"
        )
    events = EventLog(load(config.xid_overrides), lambda pci: None)
    watch = KernelWatch(events, Path(config.kernel_log), None, procfs=config.procfs)
    watch.poll()
    if watch.reason:
        raise GpuExporterError(f"kernel log {watch.reason}")
    latest = events.recent()
    if as_json:
        click.echo(json.dumps({"events": latest}, indent=2))
        return
    for event in reversed(latest):
        process = f" (pid {event['pid']}, {event['process']})" if event["pid"] else ""
        click.echo(
            f"{datetime.fromtimestamp(event['at']).astimezone().isoformat(timespec='seconds')}  {event['pci_bus_id']}"
            f"  XID {event['xid']} {event['name']}: {event['meaning']}{process}; {event['kind']} -> {event['action']}"
        )
    if not latest:
        click.echo("no XIDs in the kernel log")


@commands.command("diagnose", error_code=COULD_NOT_TELL)
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
    """Explain for each GPU what limits it, what is wrong with it, the numbers that show it, and what to do.

    It watches the GPUs of this machine or an exporter (--url) for a while, queries a Prometheus (--url) for the last
    minutes, with or without gpu-exporter's rules, or reads a recording. It reports a problem at once, while an alert
    waits longer before it fires. docs/diagnose.md explains the report.

    Exit code 0 if nothing is wrong; 1 if something was found; 2 if that could not be determined.
    """
    from gpu_exporter.cli.diagnose import Request, diagnosis

    credentials = login(values)
    what = {name: values.pop(name) for name in ("seconds", "phase", "one_job", "price", "report", "mask_names")}
    if what["mask_names"] and not what["report"]:
        raise GpuExporterError("--mask-names masks names in a report: give --report FILE.html")
    request = Request(Config(**values), remote.Remote(url, **credentials) if url else None, **what)
    leave(*diagnosis(request, every=every, as_json=as_json, verbose=verbose))


commands.add_command(top_command)
commands.add_command(trace_command)
commands.add_command(profile_command)
commands.add_command(bundle_command)
commands.add_command(compare_command)
commands.add_command(release_command)
commands.add_command(resume_command)
commands.add_command(remediate_command)
commands.add_command(sampler_command)
