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
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_exporter import __version__, doctor, record, render
from gpu_exporter.config import ENV_PREFIX, Config, boolean, duration, flag, interval, metric_set, read_file
from gpu_exporter.exposition import Renderer, Variant
from gpu_exporter.metrics import METRICS, selected
from gpu_exporter.model import (
    Gpu,
    GpuExporterError,
    Labels,
    Metric,
    MetricSet,
    Snapshot,
    Source,
)
from gpu_exporter.recording import load
from gpu_exporter.render.reference import read_from
from gpu_exporter.serve import observe, run
from gpu_exporter.sources.nvml import NvmlSource
from gpu_exporter.sources.replay import ReplaySource

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


SOURCE_SETTINGS = ("source", "recording", "speed", "loop")


def _source(config: Config) -> Source:
    """The source that was asked for. A recording is never played unless asked for by name."""
    if config.source != "replay":
        if config.recording is not None:
            raise GpuExporterError("--recording needs --source replay: a recording is never mistaken for GPUs")
        return NvmlSource()
    packaged = {path.name.removesuffix(".jsonl.gz"): path for path in sorted(PACKAGED.glob("*.jsonl.gz"))}
    if config.recording is None:
        names = ", ".join(packaged)
        raise GpuExporterError(f"--source replay needs --recording FILE, or one of the packaged ones: {names}")
    path = packaged.get(str(config.recording), config.recording)
    if path != config.recording and config.recording.exists():
        path = config.recording
    return ReplaySource(load(path), speed=config.speed, loop=config.loop)


def _everywhere(source: Source) -> Labels:
    return () if source.live else (("source", source.name),)


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
    source = _source(config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    clean = run(config, source, _everywhere(source), stop)
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        logging.shutdown()
        os._exit(0)


@cli.command()
@_settings(*SOURCE_SETTINGS, "metrics", "node_name")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of the exposition text.")
def once(as_json: bool, **settings: Any) -> None:
    """Read every GPU once and print it. Profiling metrics are means over half a second."""
    config = Config(**settings)
    source = _source(config)
    snapshot, clean = observe(source, selected(config.metrics))
    if as_json:
        click.echo(json.dumps(_as_dict(snapshot), indent=2))
    else:
        page = Renderer(config.node_name or socket.gethostname(), _everywhere(source)).render(snapshot)
        click.echo(page.body(Variant(openmetrics=False, gzip=False)), nl=False)
    _exit(0 if any(status.up for status in snapshot.gpus) else 1, clean)


def _as_dict(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for JSON: of each GPU its identity and the samples that were read."""
    samples: dict[Gpu, dict[str, float]] = {status.gpu: {} for status in snapshot.gpus}
    for series, value in snapshot.samples:
        if series.gpu is not None and (series.metric.nvml or series.metric.integral_of):
            own = ",".join(f'{name}="{text}"' for name, text in series.metric.labels + series.labels)
            samples[series.gpu][f"{series.metric}{{{own}}}" if own else str(series.metric)] = value
    gpus = [
        {
            "gpu": status.gpu.index,
            "UUID": status.gpu.uuid,
            "modelName": status.gpu.model,
            "up": status.up,
            **({} if status.up else {"reason": status.reason}),
            "info": dict(status.gpu.info),
            "samples": samples[status.gpu],
        }
        for status in snapshot.gpus
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
@_settings(*SOURCE_SETTINGS)
@click.option("--quiet", is_flag=True, help="Print nothing; the exit code tells.")
def doctor_command(quiet: bool, **settings: Any) -> None:
    """Say what works on this machine and why the rest does not. Exit code 1 if no GPU can be read."""
    logging.disable(logging.WARNING)  # what would be logged is a finding
    findings, clean = doctor.examine(_source(Config(**settings)))
    for finding in [] if quiet else findings:
        click.echo(f"{finding.level.value:<5} {finding.what}" + (f"\n      -> {finding.cure}" if finding.cure else ""))
    _exit(1 if any(finding.level is doctor.Level.FAIL for finding in findings) else 0, clean)


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
