"""`gpu-exporter bundle`: write the rules, dashboards, runbooks, chart and examples that belong to this version."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_exporter.alerting import bundle
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import Command, parsed
from gpu_exporter.io.user_text import duration, web_url

# Signals are means over two minutes: with a longer interval, nobody sees the time in between.
SHORTEST, LONGEST = 5.0, 120.0


@command("bundle", Command)
@click.argument("parts", nargs=-1, metavar="[PART]...", type=click.Choice(list(bundle.PARTS)))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write to; required, except with --list.",
)
@click.option("--list", "listed", is_flag=True, help="Write nothing; list the files.")
@click.option(
    "--limits",
    type=click.Path(path_type=Path),
    help="YAML file with your thresholds for the rules and runbooks, such as `thermalMargin: 5`. The keys are those of"
    " the chart's `prometheusRule.limits`. Give it again at each upgrade.",
)
@click.option(
    "--grafana-url", type=parsed(web_url), default="", help="URL of your Grafana, for the links of alerts to it."
)
@click.option(
    "--domain",
    "domains",
    multiple=True,
    type=click.Choice([domain.value for domain in Domain]),
    help="Domain whose alerts to write, with the recording rules that it needs; repeat it for several. All by default.",
)
@click.option(
    "--interval",
    type=parsed(duration),
    help="How often the rules are evaluated, from 5s to 2m; more often than Prometheus scrapes has no use. Those whose"
    " samples are counted, and those that must be prompt, keep their own interval. By default, 10s to 1m.",
)
def bundle_command(
    parts: tuple[str, ...],
    out: Path | None,
    listed: bool,
    limits: Path | None,
    grafana_url: str,
    domains: tuple[str, ...],
    interval: float | None,
) -> None:
    """PART is alerts, dashboards, runbooks, chart or deploy; all by default. To upgrade, run it again with the same
    folder: it removes files that an earlier version wrote and this one does not have, and touches no other files. To
    uninstall, delete the folder.
    """
    if interval is not None and (not SHORTEST <= interval <= LONGEST or interval % 1):
        raise click.UsageError(f"--interval: {interval:g}s is not whole seconds from {SHORTEST:g}s to {LONGEST:g}s")
    some = tuple(domain for domain in Domain if domain.value in domains) or tuple(Domain)
    chosen = bundle.BundleChoice(bundle.limits(limits) if limits else {}, grafana_url, some, interval or 0.0)
    names = tuple(dict.fromkeys(parts)) or tuple(bundle.PARTS)
    if listed:
        for name in names:
            for path, _ in bundle.PARTS[name](chosen):
                click.echo(f"{name}/{path}")
        return
    if not out:
        raise click.UsageError("name a folder with --out, such as --out gpu-exporter, or use --list")
    try:
        count = len(bundle.write(out, names, chosen))
    except OSError as error:
        raise click.ClickException(f"{error.filename or out}: {error.strerror or error}") from None
    click.echo(f"{count} files written to {out}")
