"""The command line: thin. Settings come from `config.Config`; every error is one line and an exit code."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_exporter import check, doctor, finding, health, node, record, render
from gpu_exporter.config import ENV_PREFIX, Config, boolean, duration, flag, interval, metric_set, read_file
from gpu_exporter.exposition import Renderer, Variant
from gpu_exporter.library import readings
from gpu_exporter.metrics import METRICS, selected
from gpu_exporter.model import (
    GpuExporterError,
    Metric,
    MetricSet,
    Snapshot,
    Source,
)
from gpu_exporter.recording import load
from gpu_exporter.render.reference import read_from
from gpu_exporter.serve import everywhere, observe, run
from gpu_exporter.sources import local_gpus
from gpu_exporter.sources.replay import ReplaySource
from gpu_exporter.sources.simulated import fleet
from gpu_exporter.sources.simulated.workload import workloads
from gpu_exporter.version import __version__

F = TypeVar("F", bound=Callable[..., Any])
PACKAGED = Path(__file__).parent / "recordings"


def _parsed(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """One of config's parsers as a click type."""

    def convert(value: Any) -> Any:
        try:
            return parse(value) if isinstance(value, str) else value
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    convert.__name__ = "value"
    return convert


def _settings(*names: str) -> Callable[[F], F]:
    """Options for these settings, from flag, then environment, then config file, then default."""

    def decorate(function: F) -> F:
        for setting in reversed(fields(Config)):
            if setting.name not in names:
                continue
            parse = setting.metadata["parse"]
            bare: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if parse is boolean else {}
            function = click.option(
                f"--{flag(setting)}",
                setting.name,
                envvar=f"{ENV_PREFIX}{setting.name.upper()}",
                type=_parsed(parse),
                default=setting.metadata["default"],
                show_default=bool(setting.metadata["default"]),
                show_envvar=True,
                help=setting.metadata["help"],
                **bare,
            )(function)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=f"{ENV_PREFIX}CONFIG",
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=_file_of(names),
            help="YAML file of settings, below environment and flags.",
        )(function)

    return decorate


def _file_of(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, Path | None], None]:
    """Reads the file into the defaults of these settings; others are another command's."""

    def load_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
        if path is not None:
            ctx.default_map = {name: value for name, value in read_file(path).items() if name in names}

    return load_file


SIMULATED_SETTINGS = ("nodes", "gpus", "seed", "faults")
SOURCE_SETTINGS = ("source", "recording", "speed", "loop", "procfs", *SIMULATED_SETTINGS[1:])


def _sources(config: Config) -> Mapping[str, Source]:
    """The source that was asked for, of each node by name. None but NVML is taken unless asked for by name."""
    for name in SIMULATED_SETTINGS if config.source != "simulated" else ():
        if getattr(config, name) != getattr(Config(), name):
            raise GpuExporterError(
                f"--{name} needs --source simulated: simulated GPUs are never mistaken for real ones"
            )
    if config.recording is not None and config.source != "replay":
        raise GpuExporterError("--recording needs --source replay: a recording is never mistaken for GPUs")
    if config.source == "simulated":
        return _fleet(config)
    source = _replay(config) if config.source == "replay" else local_gpus(procfs=config.procfs)
    return {config.node_name or socket.gethostname(): source}


def _fleet(config: Config) -> Mapping[str, Source]:
    if config.nodes > 1 and config.node_name:
        raise GpuExporterError("--node-name is of one node: simulated ones are called node-000 and so on, leave it out")
    known = workloads(sorted(PACKAGED.glob("*.jsonl.gz")))
    sources = fleet(config.nodes, config.gpus, config.seed, config.faults, known)
    return sources if not config.node_name else {config.node_name: sources["node-000"]}


def _source(config: Config) -> Source:
    (source,) = _sources(config).values()
    return source


def _replay(config: Config) -> ReplaySource:
    packaged = {path.name.removesuffix(".jsonl.gz"): path for path in sorted(PACKAGED.glob("*.jsonl.gz"))}
    if config.recording is None:
        names = ", ".join(packaged)
        raise GpuExporterError(f"--source replay needs --recording FILE, or one of the packaged ones: {names}")
    path = packaged.get(str(config.recording), config.recording)
    if path != config.recording and config.recording.exists():
        path = config.recording
    return ReplaySource(load(path), speed=config.speed, loop=config.loop)


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-exporter")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Why GPUs are slow, broken or wasted: telemetry for Prometheus."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command()
@_settings(*(setting.name for setting in fields(Config)))
def serve(**settings: Any) -> None:
    """Serve /metrics until SIGTERM."""
    config = Config(**settings)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    faulthandler.enable()  # a crash inside the driver's library should say where
    sources = _sources(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    clean = run(config, sources, stop)
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        logging.shutdown()
        os._exit(0)


@cli.command()
@_settings(*SOURCE_SETTINGS, "metrics", "processes", "node_name")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the exposition text.")
def once(as_json: bool, **settings: Any) -> None:
    """Read every GPU once and print it. Profiling metrics are means over half a second."""
    config = Config(**settings)
    ((name, source),) = _sources(config).items()
    snapshot, clean = observe(source, selected(config.metrics, processes=config.processes))
    if as_json:
        click.echo(json.dumps(_as_dict(snapshot), indent=2))
    else:
        page = Renderer(name, everywhere(source)).render(snapshot)
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


@cli.command("record")
@_settings(*SOURCE_SETTINGS, "metrics")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write; gzip if it ends in .gz.")
@click.option("--interval", type=_parsed(interval), default="0.1", show_default=True, help="Time between two ticks.")
@click.option("--duration", type=_parsed(duration), default="60", show_default=True, help="How long to record.")
@click.option("--mask", is_flag=True, help="Replace UUIDs, so that the file can be shared.")
def record_command(out: Path, interval: float, duration: float, mask: bool, **settings: Any) -> None:
    """Record the GPUs to a file that `--source replay` plays."""
    config = Config(**settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    source = _source(config)
    ticks, clean = record.record(source, selected(config.metrics), out, interval, duration, mask=mask, stop=stop)
    click.echo(f"{out}: {ticks} ticks")
    _exit(0, clean)


@cli.command("metrics")
@click.option("--metrics", type=_parsed(metric_set), default="full", show_default=True, help="Which set.")
def metrics_command(metrics: MetricSet) -> None:
    """Print the metric catalogue as a table."""
    rows = [("METRIC", "TYPE", "UNIT", "SET", "READ", "DCGM", "NVML", "HELP")]
    rows += [_row(metric) for metric in METRICS if metrics is MetricSet.FULL or metric.set is MetricSet.DEFAULT]
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[7]]))


def _row(metric: Metric) -> tuple[str, str, str, str, str, str, str, str]:
    read = metric.pace.name.lower() if metric.nvml else "-"
    dcgm = "-" if metric.dcgm is None else str(metric.dcgm)
    return (metric.key, metric.kind.value, metric.unit, metric.set.value, read, dcgm, read_from(metric), metric.help)


@cli.command("generate")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file is not what it would be.")
@click.option("--root", type=click.Path(path_type=Path), default=".", help="The repository.")
def generate_command(check: bool, root: Path) -> None:
    """Write the files that are rendered from the catalogues."""
    changed = render.stale(root) if check else render.write(root)
    for name in changed:
        click.echo(f"{name}: {'stale; run `gpu-exporter generate`' if check else 'written'}")
    sys.exit(1 if check and changed else 0)


@cli.command("doctor")
@_settings(*SOURCE_SETTINGS, "address")
@click.option("--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def doctor_command(quiet: bool, as_json: bool, **settings: Any) -> None:
    """Say what works on this machine and why the rest does not.

    Exit code 0 if a GPU can be read, whatever else there is to note or warn of; 1 if none can.
    """
    logging.disable(logging.WARNING)  # what would be logged is a finding
    config = Config(**settings)
    findings, clean = doctor.examine(lambda: _source(config), node.looks(config.address))
    result = finding.as_dict(findings)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    elif not quiet:
        click.echo("\n".join(map(str, findings)))
    _exit(0 if result["ok"] else 1, clean)


@cli.command("check")
@_settings(*{*SOURCE_SETTINGS, "expected_gpus"} - {"gpus"})
@click.option("--gpus", type=_parsed(check.indices), help="Only these, by index, such as 0,1.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
def check_command(gpus: frozenset[int] | None, as_json: bool, **settings: Any) -> None:
    """Say whether a job may start on these GPUs, in a fraction of a second where they answer.

    Unhealthy is a GPU that is lost, stuck or missing, has uncorrectable ECC errors since the driver was loaded, memory
    that waits to be remapped or can't be, or of which the driver asks for a recovery action.

    Exit code 0 if all are healthy; 1 if that can't be told, as when no GPU can be read; 3 if one is unhealthy. What
    the hardware does not have is said, and no fault.
    """
    logging.disable(logging.WARNING)  # what would be logged is in the verdict
    config = Config(**settings)
    snapshot, clean = observe(_source(config), health.ROWS, config.expected_gpus)
    report = check.report(snapshot, gpus)
    click.echo(json.dumps(check.as_dict(report), indent=2) if as_json else "\n".join(check.lines(report)))
    _exit(check.EXIT_CODES[report.health], clean)


def main() -> None:
    """Entry point: every error that is the user's to mend is one line."""
    try:
        code = cli.main(standalone_mode=False, auto_envvar_prefix=ENV_PREFIX.rstrip("_"))
    except click.ClickException as error:
        click.echo(f"gpu-exporter: {' '.join(error.format_message().split())}", err=True)
        code = 2
    except GpuExporterError as error:
        click.echo(f"gpu-exporter: {error}", err=True)
        code = 1
    except click.Abort:
        code = 130
    except BrokenPipeError:  # `gpu-exporter once | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        click.echo(f"gpu-exporter: {error.strerror or error}", err=True)
        code = 1
    sys.exit(code)
