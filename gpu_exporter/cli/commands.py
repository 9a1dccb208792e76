"""The commands beside `serve`: each parses its options and calls the module that does the work."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gpu_exporter.catalogue.metrics import METRICS, NON_GPU_ENTITIES, selected
from gpu_exporter.catalogue.xids import load
from gpu_exporter.cli.options import OWNER_SETTINGS, SOURCE_SETTINGS, parsed, settings
from gpu_exporter.cli.stop import stop_event
from gpu_exporter.collection import record
from gpu_exporter.collection.monitor import observe
from gpu_exporter.config import ENV_PREFIX, Config
from gpu_exporter.diagnosis import remote
from gpu_exporter.diagnosis.doctor import examine, surroundings
from gpu_exporter.exposition.fields_in_force import Fields
from gpu_exporter.exposition.pages import Variant
from gpu_exporter.exposition.renderer import Renderer, everywhere, style
from gpu_exporter.health import check, judge
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_thread import KernelWatch
from gpu_exporter.inputs import duration, hand_over, interval, metric_set
from gpu_exporter.library import readings
from gpu_exporter.model import finding
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric, MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source_kind import SOURCE_KINDS
from gpu_exporter.render import artifacts
from gpu_exporter.render.docs.reference import read_from
from gpu_exporter.sources.choice import chosen, named, only


@click.group()
def commands() -> None:
    """The commands that `gpu_exporter.cli.main` lists beside `serve`."""


@commands.command()
@settings(*SOURCE_SETTINGS, "metrics", "schema", "collectors", "devices", "processes", "node_name")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the exposition text.")
def once(as_json: bool, **values: Any) -> None:
    """Read every GPU once and print it. Profiling metrics are means over half a second."""
    config = Config(**values)
    ((name, source),) = chosen(config).items()
    selection = Fields(config).selection
    snapshot, clean = observe(source, selection.asked)
    if as_json:
        click.echo(json.dumps(_as_dict(snapshot), indent=2))
    else:
        page = Renderer(name, everywhere(source), selection, style(config)).render(snapshot)
        click.echo(page.body(Variant(openmetrics=False, gzip=False)), nl=False)
    _exit(0 if any(status.up for status in snapshot.gpus) else 1, clean)


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for JSON: of each GPU its identity and the samples that were read."""
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


def _exit(code: int, clean: bool) -> None:
    """End; without destructors if a thread is stuck in a driver."""
    if clean:
        sys.exit(code)
    sys.stdout.flush()
    os._exit(code)


@commands.command("record")
@settings(*SOURCE_SETTINGS, "metrics")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write; gzip if it ends in .gz.")
@click.option("--interval", type=parsed(interval), default="0.1", show_default=True, help="Time between two ticks.")
@click.option("--duration", type=parsed(duration), default="60", show_default=True, help="How long to record.")
@click.option("--mask", is_flag=True, help="Replace UUIDs, so that the file can be shared.")
def record_command(out: Path, interval: float, duration: float, mask: bool, **values: Any) -> None:
    """Record the GPUs to a file that `--source replay` plays."""
    config = Config(**values)
    stop, source = stop_event(), only(config)
    ticks, clean = record.record(source, selected(config.metrics), out, interval, duration, mask=mask, stop=stop)
    click.echo(f"{out}: {ticks} ticks")
    _exit(0, clean)


@commands.command("metrics")
@click.option("--metrics", type=parsed(metric_set), default="full", show_default=True, help="Which set.")
def metrics_command(metrics: MetricSet) -> None:
    """Print the metric catalogue as a table; full also prints what only a file of fields can name."""
    rows = [("METRIC", "TYPE", "UNIT", "SET", "READ", "DCGM", "NVML", "HELP")]
    rows += [_row(metric) for metric in METRICS if metrics is MetricSet.FULL or metric.set is MetricSet.DEFAULT]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[7]]))


def _row(metric: Metric) -> tuple[str, str, str, str, str, str, str, str]:
    read = metric.read.name.lower() if metric.nvml or metric.entity in NON_GPU_ENTITIES else "-"
    dcgm = "-" if metric.dcgm is None else str(metric.dcgm)
    return (metric.key, metric.kind.value, metric.unit, metric.set.value, read, dcgm, read_from(metric), metric.help)


@commands.command("generate")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is not what it would be.")
@click.option("--root", type=click.Path(path_type=Path), default=".", help="The repository.")
def generate_command(check: bool, root: Path) -> None:
    """Write the files that are rendered from the catalogues."""
    changed = artifacts.stale(root) if check else artifacts.write(root)
    for name in changed:
        click.echo(f"{name}: {'stale; run `gpu-exporter generate`' if check else 'written'}")
    if reason := artifacts.left_out(root):
        click.echo(reason, err=True)
    sys.exit(1 if check and changed else 0)


@commands.command("doctor")
@settings(*SOURCE_SETTINGS, *OWNER_SETTINGS, "address", "node_name")
@click.option("--quiet", is_flag=True, help="Print nothing; only the exit code counts.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def doctor_command(quiet: bool, as_json: bool, **values: Any) -> None:
    """Say what works on this machine and why the rest does not.

    Exit code 0 if a GPU can be read, whatever else there is to note or warn of; 1 if none can.
    """
    logging.disable(logging.WARNING)  # what would be logged is a finding
    config = Config(**values)
    around = surroundings.checks(config.address, asked=config.kubernetes)
    if config.kubernetes or config.hpc_job_mapping_dir:
        from gpu_exporter.diagnosis.doctor.attribution import checks

        around += checks(config)
    findings, clean = examine.examine(lambda: only(config), around)
    result = finding.as_dict(findings)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif not quiet:
        click.echo("\n".join(map(str, findings)))
    _exit(0 if result["ok"] else 1, clean)


@commands.command("check")
@settings(*{*SOURCE_SETTINGS, "expected_gpus"} - {"gpus"})
@click.option("--gpus", type=parsed(check.indices), help="Only these, by index, such as 0,1.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def check_command(gpus: frozenset[int] | None, as_json: bool, **values: Any) -> None:
    """Say whether a job may start on these GPUs, in a fraction of a second where they answer.

    Unhealthy is a GPU that is lost, stuck or missing, has uncorrectable ECC errors since the driver was loaded, memory
    that can't be remapped, or of which the driver asks for a recovery action. Degraded, and not fit for a new job
    either, is one whose memory waits to be remapped, that hardware slows down, and the like; docs/health.md has all.

    Exit code 0 if all are healthy; 1 if that is unknown, as when no GPU can be read; 3 if one is degraded or
    unhealthy. What the hardware does not have is said, and no fault.
    """
    logging.disable(logging.WARNING)  # what would be logged is in the verdict
    config = Config(**values)
    snapshot, clean = observe(only(config), judge.ROWS, config.expected_gpus)
    report = check.report(snapshot, gpus)
    click.echo(json.dumps(check.as_dict(report), indent=2) if as_json else "\n".join(check.lines(report)))
    _exit(check.EXIT_CODES[report.health], clean)


@commands.command("events")
@settings("kernel_log", "xid_overrides", "procfs")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def events_command(as_json: bool, **values: Any) -> None:
    """Show the last Xids in the kernel log, the newest last: which GPU, whose fault, what repairs it.

    A running exporter has the same, with what the GPU was doing then, at /api/v1/events.
    """
    config = Config(**values)
    if config.kernel_log in ("", "none"):
        raise GpuExporterError("the kernel log is switched off: name one with --kernel-log, such as /dev/kmsg")
    events = EventLog(load(config.xid_overrides), lambda pci: None)
    watch = KernelWatch(events, Path(config.kernel_log), None, procfs=config.procfs)
    watch.poll()
    if watch.reason:
        raise GpuExporterError(f"kernel log {watch.reason}")
    found = events.recent()
    if as_json:
        click.echo(json.dumps({"events": found}, indent=2))
        return
    for event in reversed(found):
        who = f" (pid {event['pid']}, {event['process']})" if event["pid"] else ""
        click.echo(
            f"{datetime.fromtimestamp(event['at']).astimezone().isoformat(timespec='seconds')}  {event['pci_bus_id']}"
            f"  Xid {event['xid']} {event['name']}: {event['meaning']}{who}; {event['kind']} -> {event['action']}"
        )
    if not found:
        click.echo("no Xids in the kernel log")


@commands.command("diagnose")
@settings(*SOURCE_SETTINGS, "kernel_log", "xid_overrides")
@click.option(
    "--for", "seconds", type=parsed(duration), help="How long to watch: 20s. Of a Prometheus, how far back: 5m."
)
@click.option("--phase", default="", help="Of a recording, the phase to look at.")
@click.option("--one-job", is_flag=True, help="All GPUs are ranks of one job: compare them with each other.")
@click.option("--url", default="", help="Instead of this machine's GPUs, an exporter's or a Prometheus' URL.")
@click.option("--user", default="", help="Whom to log in there as.")
@click.option("--password-file", type=click.Path(path_type=Path), help="The user's password.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="Certificates of the authority of an https URL.")
@click.option("--all", "every", is_flag=True, help="Also say which failure modes could not be judged, and why.")
@click.option("--verbose", is_flag=True, help="Add the names of the series.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def diagnose_command(every: bool, verbose: bool, as_json: bool, url: str, **values: Any) -> None:
    """Say of each GPU what limits it, what is wrong with it, by which numbers, and what to do.

    Watches the GPUs of this machine, or an exporter (--url), for a while; asks a Prometheus (--url), with or without
    gpu-exporter's rules, for its last minutes; or reads a recording. Alerts' holds are ignored; docs/diagnose.md has
    more.

    Exit code 0 if nothing is wrong, 1 if something was found, 2 if that could not be determined.
    """
    from gpu_exporter.cli.diagnose import Request, diagnosis

    login = {name: values.pop(name) for name in ("user", "password_file", "ca_file")}
    what = {name: values.pop(name) for name in ("seconds", "phase", "one_job")}
    request = Request(Config(**values), remote.Remote(url, **login) if url else None, **what)
    _exit(*diagnosis(request, every=every, as_json=as_json, verbose=verbose))


def _side(text: str) -> str:
    """A source by name; replay may have a recording after it."""
    (source,) = (setting for setting in fields(Config) if setting.name == "source")
    source.metadata["parse"](text.partition(":")[0])
    return text


@commands.command("compare")
@settings(*(setting for setting in SOURCE_SETTINGS if setting != "source"), "metrics")
@click.option("--a", type=parsed(_side), required=True, help="A source, as for --source; or replay:FILE.")
@click.option("--b", type=parsed(_side), required=True, help="The other one.")
@click.option("--seconds", type=parsed(duration), default="30", show_default=True, help="How long to read both.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")
def compare_command(a: str, b: str, seconds: float, as_json: bool, **values: Any) -> None:
    """Read two sources over the same time, and print how far they agree on each metric of each GPU.

    Gauges are compared by their means, profiling by its integrals, counters by their rise, what never changes must be
    equal; docs/compare.md has the tolerances. Exit code 0 if they agree; 3 if a value or what a GPU is differs. What
    only one of them can answer is shown, and no difference.
    """
    from gpu_exporter.diagnosis import compare

    config = Config(**values)
    if a == b and SOURCE_KINDS[a.partition(":")[0]].live:
        raise GpuExporterError(f"--a {a} --b {b}: a driver's library is opened once in a process; name two sources")
    sides = ((a, named(config, a)), (b, named(config, b)))
    result, clean = compare.watch(*sides, selected(config.metrics), seconds)
    click.echo(json.dumps(compare.as_dict(result), indent=2) if as_json else "\n".join(compare.lines(result)))
    _exit(compare.EXIT_DIFFERS if result.differs else 0, clean)


def _of_a_running_one(function: Callable[..., None]) -> Callable[..., None]:
    """Options that say which exporter, and why it should obey."""
    file = click.Path(path_type=Path)
    for option in (
        click.option("--ca-file", type=file, help="Certificates of the authority that an https URL is verified with."),
        click.option("--password-file", type=file, help="The user's password."),
        click.option("--user", default="", help="Whom to log in as, instead of the token."),
        settings("token_file"),
        click.option(
            "--url",
            envvar=f"{ENV_PREFIX}URL",
            default="http://localhost:9400",
            show_default=True,
            show_envvar=True,
            help="The running exporter.",
        ),
    ):
        function = option(function)
    return function


@commands.command("release")
@_of_a_running_one
@click.option("--for", "seconds", type=parsed(hand_over), default="10m", show_default=True, help="Until it resumes.")
def release_command(seconds: float, **of: Any) -> None:
    """Have a running exporter let go of the driver, for a driver upgrade, a MIG change or a GPU reset.

    Exit code 0 if it holds nothing of the driver any more, until `resume` or the end of the time. Again extends it.
    """
    click.echo(remote.Remote(**of).post(f"/-/release?for={seconds:.3f}"))


@commands.command("resume")
@_of_a_running_one
def resume_command(**of: Any) -> None:
    """Have it take the driver up again. Exit code 0 if that answers."""
    click.echo(remote.Remote(**of).post("/-/resume"))
