"""`gpu-exporter trace diff` and `trace top`: two traces compared, and where GPU time goes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.cli.options import COULD_NOT_TELL, Command
from gpu_exporter.cli.trace_files import read_all, require_numpy
from gpu_exporter.io.decoding import printable

if TYPE_CHECKING:
    from gpu_exporter.traces.diff import TraceTotals
    from gpu_exporter.traces.kernel_reports import KernelReport

MOST_NAME, MOST_STALLS = 120, 3
# `totals.KEYS`, which needs NumPy.
BY = ("operator", "kernel", "class", "code", "cause", "idle-code")


@click.command("diff", cls=Command, error_code=COULD_NOT_TELL)
@click.argument("before", metavar="BEFORE", type=click.Path(path_type=Path))
@click.argument("after", metavar="AFTER", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON. docs/traces.md describes it.")
def diff_command(before: Path, after: Path, as_json: bool) -> int:
    """Show what got slower between two traces of the same program: operators, kernels, code, causes of idle time.

    Times are per step if both traces have steps. To compare several ranks or to fail a build, use
    trace analyze --baseline.
    """
    require_numpy()
    from gpu_exporter.traces import diff
    from gpu_exporter.traces.diff import totals

    first, second = read_all([before, after])
    found = diff.diff(totals(first), totals(second))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else "\n".join(diff.lines(found)))
    return 0


@click.command("top", cls=Command, error_code=COULD_NOT_TELL)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(BY),
    default="kernel",
    show_default=True,
    help="What to sum by: GPU time by operator, kernel, class of kernel or Python code that launched it; idle time by"
    " cause or code.",
)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many rows to print.")
@click.option("--json", "as_json", is_flag=True, help="Print all rows as JSON.")
def top_command(file: Path, by: str, limit: int, as_json: bool) -> int:
    """List what takes most time in a trace, per step and GPU.

    FILE may also be a CSV report of kernels: of `nsys stats --report cuda_gpu_kern_sum`, whose sums are no utilisation
    because kernels overlap, or of `ncu --csv`, which says what limits each kernel.
    """
    if file.suffix == ".csv":
        from gpu_exporter.traces import kernel_reports

        kernels = kernel_reports.read(file)
        rows = [{**asdict(each), "bound": each.bound} for each in kernels]
        _print(rows, as_json, _report(kernels[:limit], len(kernels)))
        return 0
    require_numpy()
    from gpu_exporter.traces.diff import totals

    (trace,) = read_all([file])
    found = totals(trace)
    listed = [{"name": name, **asdict(total)} for name, total in found.by[by].items()]
    _print(listed, as_json, _table(found, by, limit))
    return 0


def _print(rows: Sequence[Any], as_json: bool, lines: Iterator[str]) -> None:
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(lines))


def _table(found: TraceTotals, by: str, limit: int) -> Iterator[str]:
    from gpu_exporter.reports.numbers import short_duration

    unit = "step" if found.steps else "trace"
    what = "Idle time" if by in ("cause", "idle-code") else "GPU time"
    yield f"{what} by {by}, per {unit} of {short_duration(found.step_seconds)}"
    for name, total in list(found.by[by].items())[:limit]:
        share = total.seconds / found.step_seconds if found.step_seconds else 0.0
        time = short_duration(total.seconds)
        yield f"  {share:>6.1%}  {time:>8}  {total.count:>8.4g} x  {printable(name, MOST_NAME)}"
    if len(found.by[by]) > limit:
        yield f"  and {len(found.by[by]) - limit} more"


def _report(kernels: Sequence[KernelReport], number: int) -> Iterator[str]:
    total = sum(kernel.seconds for kernel in kernels)
    yield "Time by kernel; kernels may overlap"
    for kernel in kernels:
        share = kernel.seconds / total if total else 0.0
        limits = [f"{kernel.bound}: compute {kernel.compute:.0%}, memory {kernel.memory:.0%}"] if kernel.bound else []
        limits += [f"occupancy {kernel.occupancy:.0%}"] if kernel.occupancy is not None else []
        limits += [f"waits for {reason} ({value:.1f})" for reason, value in list(kernel.stalls.items())[:MOST_STALLS]]
        name = printable(kernel.name, MOST_NAME)
        yield f"  {share:>6.1%}  {kernel.seconds * 1e3:>10.4g} ms  {kernel.count:>7} x  {name}"
        if limits:
            yield f"{'':34}{'; '.join(limits)}"
    if number > len(kernels):
        yield f"  and {number - len(kernels)} more"
