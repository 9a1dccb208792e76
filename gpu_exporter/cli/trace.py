"""`gpu-exporter trace`: where the time of GPUs went, according to profiler traces.

`analyze` prints the analysis and can be the gate of a build; `diff` compares two traces; `top` lists what takes time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.options import COULD_NOT_TELL, Command, parsed, require_numpy
from gpu_exporter.cli.progress import Progress
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import refuse_unwritable
from gpu_exporter.io.user_text import ratio
from gpu_exporter.reports.numbers import percent

if TYPE_CHECKING:
    from gpu_exporter.traces.diff import TraceTotals
    from gpu_exporter.traces.kernel_reports import KernelReport
    from gpu_exporter.traces.model import Trace
    from gpu_exporter.traces.result import AnalysisResult


def read_trace(source: str) -> Trace:
    """Read a trace, with progress on a terminal. Raises GpuExporterError."""
    require_numpy()
    from gpu_exporter.traces.reader import read

    progress = _ReadProgress(1)
    with Progress(f"reading {_short(source)}", share=progress.share):
        return read(source, progress)


class _ReadProgress:
    """How much of several sources is done: those that are, and of the one that this process reads the part that is."""

    def __init__(self, sources: int) -> None:
        self._sources, self._done, self._part = sources, 0, 0.0

    def __call__(self, read: int, total: int) -> None:
        self._part = min(read / total, 1.0) if total else 0.0

    def done(self, source: str) -> None:
        """Count a source as done."""
        self._done, self._part = self._done + 1, 0.0

    def share(self) -> float:
        return (self._done + self._part) / self._sources


def _short(source: str) -> str:
    return "standard input" if source == "-" else printable(source.rpartition("/")[2], MOST_NAME)


GATE_FAILED = 1

F = TypeVar("F", bound=Callable[..., Any])


def _limit(name: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=parsed(ratio), default=default, show_default=True, help=text)


@click.command(
    "analyze",
    cls=Command,
    error_code=COULD_NOT_TELL,
    short_help="Say where the time went, and what to change.",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
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
@click.option(
    "--jobs", type=click.IntRange(1), help="How many ranks to analyse at a time, in processes; by default one per CPU."
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Analyse ranks on the workers of this Dask cluster, such as tcp://scheduler:8786, which read the files"
    " themselves. Needs the extra distributed.",
)
@_limit("--max-regression", "5%", "How much longer than in the baseline a step may take.")
@_limit("--least-share", "20%", "The share of the span that the largest loss must take to name the class.")
@_limit("--compute-bound", "20%", "Below this share of lost time, a job is compute-bound.")
@_limit("--straggler", "10%", "For how much of a step the others must wait for a rank to be a straggler.")
def analyze_command(
    files: tuple[str, ...],
    as_json: bool,
    folded: Path | None,
    report: Path | None,
    pprof: Path | None,
    fail_on: tuple[str, ...],
    baseline: Path | None,
    jobs: int | None,
    dask: str | None,
    max_regression: float,
    least_share: float,
    compute_bound: float,
    straggler: float,
) -> int:
    """Analyse traces of one job, one FILE for each rank: class, causes of idle time, kernels, advice.

    FILE is a trace of the PyTorch profiler (.json), an SQLite export of Nsight Systems, or a profile of JAX
    (.xplane.pb), also compressed with gzip or zstd: a name, a pattern such as 'rank*.json.gz', a URL such as
    s3://bucket/rank0.json.gz, or - for standard input. The exit code is 0 if all conditions hold, 1 if one of --fail-on
    or --baseline does not, and 2 if a file cannot be read, is empty or has no GPU events.
    """
    require_numpy()
    from gpu_exporter.traces import gate
    from gpu_exporter.traces.analysis import combined
    from gpu_exporter.traces.content import expanded
    from gpu_exporter.traces.exports import folded_lines, pprof_profile
    from gpu_exporter.traces.ranks import analysed
    from gpu_exporter.traces.verdict import Thresholds

    for path in filter(None, (folded, report, pprof)):
        refuse_unwritable(path)

    try:
        conditions = [gate.condition(text) for text in fail_on]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fail-on") from None
    before = gate.baseline(baseline) if baseline else None
    sources = expanded(files)
    progress = _ReadProgress(len(sources))
    what = _short(sources[0]) if len(sources) == 1 else f"{len(sources)} ranks"
    with Progress(f"analysing {what}", share=progress.share):
        found = analysed(
            sources,
            details=bool(folded or report or pprof),
            jobs=jobs,
            dask=dask,
            done=progress.done,
            progress=progress,
        )
    result = combined(found, Thresholds(least_share, compute_bound, straggler))
    if folded:
        folded.write_text("\n".join(folded_lines(result)) + "\n", encoding="utf-8")
    if report:
        from gpu_exporter.traces.html_page import page

        report.write_text(page(result), encoding="utf-8")
    if pprof:
        pprof.write_bytes(pprof_profile(result))
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


MOST_NAME, MOST_STALLS = 120, 3
TRACE_ENDINGS = (".json", ".json.gz", ".json.zst", ".sqlite", ".xplane.pb")
# `totals.KEYS`, which needs NumPy.
BY = ("operator", "kernel", "class", "code", "cause", "idle-code")


@click.command(
    "diff",
    cls=Command,
    error_code=COULD_NOT_TELL,
    short_help="Show what changed between two traces of the same program.",
)
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. docs/traces.md describes it.")
def diff_command(before: str, after: str, as_json: bool) -> int:
    """Show what changed between two traces of the same program: operators, kernels, code, waiting, causes of idle time.

    BEFORE and AFTER are files as for trace analyze; for a job of several ranks, patterns, or folders with a file for
    each rank. Times are per step if both have steps, and means over the GPUs. To fail a build, use
    trace analyze --baseline.
    """
    require_numpy()
    from gpu_exporter.traces import diff
    from gpu_exporter.traces.diff import totals

    jobs = [_files(before), _files(after)]
    found = diff.diff(*(totals(*map(read_trace, files)) for files in jobs))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else "\n".join(diff.lines(found)))
    return 0


def _files(source: str) -> list[str]:
    """Return the traces in a folder, or the sources that a name or a pattern stands for.

    Raises click.BadParameter if a folder has no trace, GpuExporterError if nothing matches a pattern.
    """
    from gpu_exporter.traces.content import expanded, in_order

    if not Path(source).is_dir():
        return expanded([source])
    found = in_order(str(file) for file in Path(source).iterdir() if file.name.endswith(TRACE_ENDINGS))
    if not found:
        raise click.BadParameter(f"{source} has no file that ends in {', '.join(TRACE_ENDINGS)}")
    return found


@click.command("top", cls=Command, error_code=COULD_NOT_TELL, short_help="List what takes most time in a trace.")
@click.argument("file", metavar="FILE")
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
def top_command(file: str, by: str, limit: int, as_json: bool) -> int:
    """List what takes most time in a trace, per step and GPU. Shares are of all GPU time, or for idle time of the span
    from the first to the last event of the GPU, as in trace analyze.

    FILE may also be a CSV report of kernels: of `nsys stats --report cuda_gpu_kern_sum`, whose sums are no utilisation
    because kernels overlap, or of `ncu --csv`, which says what limits each kernel.
    """
    if file.endswith(".csv"):
        from gpu_exporter.traces import kernel_reports

        kernels = kernel_reports.read(Path(file))
        rows = [{**asdict(each), "bound": each.bound} for each in kernels]
        _print_comparison(rows, as_json, _report(kernels, limit))
        return 0
    require_numpy()
    from gpu_exporter.traces.diff import totals

    found = totals(read_trace(file))
    listed = [{"name": name, **asdict(total)} for name, total in found.by[by].items()]
    _print_comparison(listed, as_json, _table(found, by, limit))
    return 0


def _print_comparison(rows: Sequence[Any], as_json: bool, lines: Iterator[str]) -> None:
    click.echo(json.dumps(rows, indent=2) if as_json else "\n".join(lines))


def _table(found: TraceTotals, by: str, limit: int) -> Iterator[str]:
    from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
    from gpu_exporter.reports.numbers import duration

    unit = "step" if found.steps else "trace"
    idle, of_table = by in ("cause", "idle-code"), sum(total.seconds for total in found.by[by].values())
    if idle:  # of the same span as in `trace analyze`: from the first to the last event of the GPU
        whole = found.busy_seconds + of_table
        yield f"Idle time by {by}, per {unit}: {duration(of_table)} of {duration(whole)}"
        yield f" of span      time      gaps  {by}"
    else:
        whole = of_table
        yield f"GPU time by {by}, per {unit}: {duration(whole)} in all"
        yield f"  of all      time  launches  {by}"
    for name, total in list(found.by[by].items())[:limit]:
        share = percent(total.seconds / whole if whole else 0.0)
        words = TRACE_WORDS[TraceCause(name)] if by == "cause" else printable(name, MOST_NAME)
        yield f"  {share:>6}  {duration(total.seconds):>8}  {total.count:>8.4g}  {words}"
    if len(found.by[by]) > limit:
        yield f"  and {len(found.by[by]) - limit} more"


def _report(kernels: Sequence[KernelReport], limit: int) -> Iterator[str]:
    total = sum(kernel.seconds for kernel in kernels)
    yield f"GPU time by kernel: {total * 1e3:.4g} ms in all; kernels may overlap"
    yield "  of all           time  launches  kernel"
    for kernel in kernels[:limit]:
        share = percent(kernel.seconds / total if total else 0.0)
        limits = []
        if kernel.compute is not None and kernel.memory is not None:
            limits.append(f"{kernel.bound}: compute {percent(kernel.compute)}, memory {percent(kernel.memory)}")
        limits += [f"occupancy {percent(kernel.occupancy)}"] if kernel.occupancy is not None else []
        limits += [f"waits for {reason} ({value:.1f})" for reason, value in list(kernel.stalls.items())[:MOST_STALLS]]
        name = printable(kernel.name, MOST_NAME)
        yield f"  {share:>6}  {kernel.seconds * 1e3:>10.4g} ms  {kernel.count:>8}  {name}"
        if limits:
            yield f"{'':34}{'; '.join(limits)}"
    if len(kernels) > limit:
        yield f"  and {len(kernels) - limit} more"


@command("trace", click.Group, invoke_without_command=True)
@click.pass_context
def trace_command(ctx: click.Context) -> None:
    """It needs NumPy: pip install numpy."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for each in (analyze_command, diff_command, top_command):
    trace_command.add_command(each)
