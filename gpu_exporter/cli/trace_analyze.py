"""`gpu-exporter trace analyze`: the analysis of traces, as text or JSON, and the gate of a build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_exporter.cli.options import COULD_NOT_TELL, Command, parsed
from gpu_exporter.cli.trace_files import read_all, require_numpy
from gpu_exporter.io.user_text import ratio

if TYPE_CHECKING:
    from gpu_exporter.traces.result import AnalysisResult

GATE_FAILED = 1

F = TypeVar("F", bound=Callable[..., Any])


def _limit(name: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=parsed(ratio), default=default, show_default=True, help=text)


@click.command("analyze", cls=Command, error_code=COULD_NOT_TELL)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON. docs/traces.md describes it.")
@click.option(
    "--folded",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write what the host did while the GPU was idle as folded stacks, with microseconds, for flame graphs.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page of HTML with timelines and flame graphs, without any other file.",
)
@click.option(
    "--pprof",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write GPU time and idle time by stack for pprof, Pyroscope and Parca.",
)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CONDITION",
    help="End with exit code 1 if a GPU fulfils this condition, such as 'idle>20%' or 'exposed_communication>15%'. May"
    " be repeated.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output of an earlier --json: end with exit code 1 if steps take longer by more than --max-regression.",
)
@_limit("--max-regression", "5%", "How much longer than in the baseline a step may take.")
@_limit("--least-share", "20%", "The share of the span that the largest loss must take to name the class.")
@_limit("--compute-bound", "20%", "Below this share of lost time, a job is compute-bound.")
@_limit("--straggler", "10%", "By how much of a step a rank must be slower than the others to be a straggler.")
def analyze_command(
    files: tuple[Path, ...],
    as_json: bool,
    folded: Path | None,
    report: Path | None,
    pprof: Path | None,
    fail_on: tuple[str, ...],
    baseline: Path | None,
    max_regression: float,
    least_share: float,
    compute_bound: float,
    straggler: float,
) -> int:
    """Analyse traces of one job, one FILE for each rank: class, causes of idle time, kernels, advice.

    FILE is a trace of the PyTorch profiler: .json or .json.gz. The exit code is 0 if all conditions hold, 1 if one of
    --fail-on or --baseline does not, and 2 if a file cannot be read, is empty or has no GPU events.
    """
    require_numpy()
    from gpu_exporter.traces import gate
    from gpu_exporter.traces.analysis import analyze
    from gpu_exporter.traces.exports import folded_lines, pprof_profile
    from gpu_exporter.traces.verdict import Thresholds

    try:
        conditions = [gate.condition(text) for text in fail_on]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fail-on") from None
    before = gate.baseline(baseline) if baseline else None
    traces = read_all(files)
    result = analyze(traces, Thresholds(least_share, compute_bound, straggler))
    if folded:
        folded.write_text("\n".join(folded_lines(result)) + "\n", encoding="utf-8")
    if report:
        from gpu_exporter.traces.html_page import page

        report.write_text(page(traces, result), encoding="utf-8")
    if pprof:
        pprof.write_bytes(pprof_profile(traces, result))
    _print(result, as_json)
    failures = [line for condition in conditions for line in condition.failures(result)]
    if before:
        failures += gate.regressions(result, before, max_regression)
    for line in failures:
        click.echo(f"gate failed: {line}", err=True)
    return GATE_FAILED if failures else 0


def _print(result: AnalysisResult, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    from gpu_exporter.traces.text_report import lines

    click.echo("\n".join(lines(result)))
