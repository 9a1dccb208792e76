"""`gpu-exporter profile`: what a running job does, by function and line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.local_exporter import SETTINGS, LocalCommand, remote_of, remote_options
from gpu_exporter.cli.options import OWNER_SETTINGS, parsed, require_numpy, settings
from gpu_exporter.cli.progress import Progress
from gpu_exporter.cli.stop import leave
from gpu_exporter.config import Config
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import refuse_unwritable
from gpu_exporter.io.user_text import duration
from gpu_exporter.model.errors import GpuExporterError

if TYPE_CHECKING:
    from gpu_exporter.profiling.kineto_daemon import TraceOptions
    from gpu_exporter.profiling.processes import Process
    from gpu_exporter.profiling.pyspy import Sampling
    from gpu_exporter.profiling.targets import Wanted

STACK_SECONDS, TRACE_SECONDS = 5.0, 0.5
MOST_STACK_SECONDS, MOST_TRACE_SECONDS, MOST_RATE = 600.0, 10.0, 1000
RATE = 50
# The files that both methods write, by the name of their option.
FILES = ("folded", "pprof", "report")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outputs by name, one error for each process that has none, and whether no driver call is stuck."""

    outputs: Mapping[str, bytes]
    errors: Sequence[GpuExporterError]
    clean: bool = True


def _file(name: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.Path(path_type=Path, dir_okay=False), help=f"{text} Only you can read it.")


@command("profile", LocalCommand)
@settings("source", "procfs", *OWNER_SETTINGS, "node_name", "token_file", *SETTINGS)
@remote_options
@click.option("--standalone", is_flag=True, help="Profile from here, even if an exporter runs.")
@click.option("--gpu", type=click.IntRange(0), help="Profile the processes on the GPU with this index.")
@click.option("--pid", "pids", type=click.IntRange(1), multiple=True, help="Profile this process. May be repeated.")
@click.option("--pod", default="", metavar="NAMESPACE/NAME", help="Profile the processes of this pod.")
@click.option("--job", default="", help="Profile the processes of this job of Slurm or another scheduler.")
@click.option("--seconds", type=parsed(duration), help="How long to profile.  [default: 5s; with --trace 0.5s]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. docs/profile.md describes it.")
@_file("--folded", "Write folded stacks, with microseconds, for flame graphs.")
@_file("--pprof", "Write a profile for pprof, Pyroscope and Parca.")
@_file("--report", "Write a page of HTML with flame graphs, without any other file.")
@click.option("--rate", type=click.IntRange(1, MOST_RATE), default=RATE, show_default=True, help="Samples per second.")
@click.option("--native", is_flag=True, help="Sample functions of C and C++, too. This stops the process briefly.")
@click.option("--no-workers", is_flag=True, help="Do not sample child processes, such as those of a data loader.")
@click.option("--trace", is_flag=True, help="Have PyTorch record a trace. The job needs KINETO_USE_DAEMON=1.")
@click.option("--no-stacks", is_flag=True, help="With --trace: record no Python frames, which costs the job less.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="With --trace: keep traces here.")
@click.option(
    "--socket-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --trace: the job's KINETO_IPC_SOCKET_DIR, if it has one that cannot be read from the process.",
)
@click.option("--trace-dir", help="With --trace: folder in which the job writes, as the job sees it.  [default: /tmp]")
def profile_command(
    pids: tuple[int, ...], seconds: float | None, as_json: bool, rate: int, native: bool, trace: bool, **values: Any
) -> None:
    """It samples the stacks of the processes with py-spy, without their cooperation. With --trace, PyTorch itself
    records what the GPU and the host do. Without --gpu, --pid, --pod or --job, it profiles every process that holds a
    GPU.

    With --url, or with the exporter's --token-file or a --user, the exporter profiles, within its budget: see
    docs/profile.md.
    """
    require_numpy()
    from gpu_exporter.profiling.targets import Wanted
    from gpu_exporter.profiling.tracing import COST

    files = {name: path for name in FILES if (path := values.pop(name))}
    wanted = Wanted(values.pop("gpu"), values.pop("pod"), values.pop("job"))
    places = _Places(*(values.pop(name) for name in ("no_stacks", "keep", "socket_dir", "trace_dir")))
    how = _Sampled(rate, native, not values.pop("no_workers"))
    login = {name: values.pop(name) for name in ("url", "user", "password_file", "ca_file", "token_file", *SETTINGS)}
    standalone = values.pop("standalone")
    _refuse(bool(pids), wanted, trace, native, places)
    for path in files.values():
        refuse_unwritable(path)
    outputs = (*files, "json" if as_json else "text")
    request = _Request(pids, wanted, _length(seconds, trace), outputs, places if trace else None, how)
    config = Config(**values)
    if trace and not places.no_stacks:
        click.echo(f"gpu-exporter: {COST}", err=True)
    outcome = (None if standalone else _by_exporter(login, request)) or _from_here(request, config)
    _write(outcome.outputs, files)
    _finish(outcome)


def _by_exporter(login: Mapping[str, Any], request: _Request) -> _Outcome | None:
    """Return the profile that a running exporter takes; None to take it from here.

    It is asked if there is a login for it. Raises UsageError and GpuExporterError.
    """
    from gpu_exporter.cli import profile_exporter
    from gpu_exporter.profiling.triggers import SECONDS

    trace = request.trace
    is_own = request.how != _Sampled() or (trace is not None and trace != _Places(trace.no_stacks))
    is_own = is_own or (trace is None and request.seconds > SECONDS)
    if login["url"] and is_own:
        raise click.UsageError(
            f"the exporter samples for at most {SECONDS:g} s, and takes no --rate, --native, --no-workers, --keep,"
            " --socket-dir or --trace-dir: leave them out, or leave out --url"
        )
    if is_own or not (login["url"] or login["token_file"] or login["user"]):
        return None
    arguments = profile_exporter.arguments(request.pids, request.wanted, request.seconds)
    if trace:
        arguments += profile_exporter.trace_query(request.outputs, frames=not trace.no_stacks)
    remote = remote_of(**login)
    with Progress(f"Waiting for {remote.url}"):
        answer = profile_exporter.ask(remote, arguments, required=bool(login["url"]))
    profiles = answer.profiles() if answer else []
    made = _stack_outputs(profiles, request.outputs) if profiles else {}
    return _Outcome(answer.traced if trace else made, answer.errors) if answer else None


def _from_here(request: _Request, config: Config) -> _Outcome:
    """Return the profile of the processes that this command finds and samples itself."""
    from gpu_exporter.cli.profile_targets import holding, named
    from gpu_exporter.profiling import pyspy
    from gpu_exporter.profiling.kineto_daemon import TraceOptions

    trace, how = request.trace, request.how
    if not trace:
        pyspy.program()  # if it is missing, nothing else is asked
    found = named(request.pids, config) if request.pids else holding(request.wanted, config)
    outcome = _Outcome({}, ())
    if found.processes:
        _audit(bool(trace), found.processes, request.seconds)
        if trace:
            options = TraceOptions(request.seconds, stacks=not trace.no_stacks)
            outcome = _traced(found.processes, options, config, request.outputs, trace)
        else:
            sampling = pyspy.Sampling(request.seconds, how.rate, how.native, how.workers)
            outcome = _sampled(found.processes, sampling, config, request.outputs)
    return _Outcome(outcome.outputs, [*found.errors, *outcome.errors], found.clean)


def _refuse(by_pid: bool, wanted: Wanted, trace: bool, native: bool, places: _Places) -> None:
    """Raise UsageError for options that exclude each other."""
    if not trace and places != _Places():
        raise click.UsageError("--no-stacks, --keep, --socket-dir and --trace-dir need --trace")
    if trace and native:
        raise click.UsageError("--native and --trace exclude each other: a trace has its own events of C and C++")
    if by_pid and (wanted.gpu is not None or wanted.pod or wanted.job):
        raise click.UsageError("--pid names processes: leave out --gpu, --pod and --job")
    if wanted.pod and not all(wanted.pod.partition("/")):
        raise click.UsageError("--pod: give the namespace, too, as in --pod training/trainer-0")


@dataclass(frozen=True, slots=True)
class _Places:
    """Options of --trace: where traces are kept, where the socket is, and where the job writes."""

    no_stacks: bool = False
    keep: Path | None = None
    socket: Path | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class _Sampled:
    """How stacks are sampled."""

    rate: int = RATE
    native: bool = False
    workers: bool = True


@dataclass(frozen=True, slots=True)
class _Request:
    """What is profiled, for how long, which outputs are made of it, and with `trace` that PyTorch records a trace."""

    pids: tuple[int, ...]
    wanted: Wanted
    seconds: float
    outputs: tuple[str, ...]
    trace: _Places | None
    how: _Sampled


def _length(seconds: float | None, trace: bool) -> float:
    """Return how long to profile. Raises UsageError if that is too long."""
    length = seconds or (TRACE_SECONDS if trace else STACK_SECONDS)
    most = MOST_TRACE_SECONDS if trace else MOST_STACK_SECONDS
    if length > most:
        raise click.UsageError(f"--seconds: at most {most:g} s{' of a trace' if trace else ''}")
    return length if trace else float(math.ceil(length))


def _audit(trace: bool, processes: Sequence[Process], seconds: float) -> None:
    from gpu_exporter.profiling import audit

    line = audit.audit_line("trace" if trace else "stacks", processes, seconds, os.getuid())
    audit.record(line)
    click.echo(f"gpu-exporter: {line}", err=True)


def _sampled(processes: Sequence[Process], sampling: Sampling, config: Config, wanted: Sequence[str]) -> _Outcome:
    """Sample the stacks of processes, all at the same time."""
    from gpu_exporter.host.files import HostFiles
    from gpu_exporter.profiling import pyspy, stacks
    from gpu_exporter.profiling.result import process_profile

    with Progress("Sampling stacks", sampling.seconds):
        answers = pyspy.sample(pyspy.program(), processes, sampling, HostFiles(config.procfs, config.sysfs))
    profiles, errors = [], []
    targets = {process.pid for process in processes}
    for process in processes:
        answer = answers[process.pid]
        if isinstance(answer, GpuExporterError):
            errors.append(answer)
        else:
            seen = stacks.parse(answer, {process.pid, process.inner_pid}, native=sampling.native)
            own = [stack for stack in seen if stack.worker not in targets]  # ranks may be children of another target
            profiles.append(process_profile(process, own, sampling))
    return _Outcome(_stack_outputs(profiles, wanted) if profiles else {}, errors)


def _stack_outputs(profiles: Sequence[Any], wanted: Sequence[str]) -> dict[str, bytes]:
    from gpu_exporter.profiling import html_page, result, text_report
    from gpu_exporter.traces.pprof import profile

    merged = result.all_stacks(profiles)
    made: dict[str, Callable[[], str | bytes]] = {
        "text": lambda: "\n".join(text_report.lines(profiles)),
        "json": lambda: json.dumps({"processes": [each.to_json() for each in profiles]}, indent=2),
        "folded": lambda: "\n".join(result.folded_lines(merged)) + "\n",
        "pprof": lambda: profile({"wall": merged}, profiles[0].sampling.seconds),
        "report": lambda: html_page.page(profiles),
    }
    outputs = {name: made[name]() for name in wanted}
    return {name: text.encode() if isinstance(text, str) else text for name, text in outputs.items()}


def _traced(
    processes: Sequence[Process], options: TraceOptions, config: Config, wanted: Sequence[str], places: _Places
) -> _Outcome:
    """Have processes record traces, all from the same moment on, and analyse them together."""
    from gpu_exporter.host.files import HostFiles
    from gpu_exporter.profiling import analysis, tracing
    from gpu_exporter.profiling.trace_session import TraceSession

    files = HostFiles(config.procfs, config.sysfs)
    trace_dir = PurePosixPath(places.trace) if places.trace else None
    session = TraceSession(processes, options, files, config.procfs, trace_dir)
    try:
        with Progress("Waiting for traces"):
            tracing.recorded(session, places.socket)
        if places.keep:
            for path in analysis.keep(session.taken, places.keep):
                click.echo(f"gpu-exporter: kept {path}", err=True)
        with Progress("Analysing"):
            return _Outcome(tracing.analysed(session, wanted), session.errors)
    except GpuExporterError as error:
        return _Outcome({}, [*session.errors, error])
    finally:
        session.close()


def _write(outputs: Mapping[str, bytes], files: Mapping[str, Path]) -> None:
    """Print the text or the JSON, and write the files."""
    from gpu_exporter.io.file_access import write_private

    for name, content in outputs.items():
        if name in files:
            write_private(files[name], content)
        else:
            # What an exporter answered may contain anything.
            lines = content.decode("utf-8", "replace").split("\n")
            click.echo("\n".join(printable(line, len(line)) for line in lines))


def _finish(outcome: _Outcome) -> None:
    """Print the errors. The command fails if there is no profile at all, with the last error."""
    failed = not outcome.outputs
    for error in outcome.errors[: -1 if failed else None]:
        click.echo(f"gpu-exporter: {error}", err=True)
    if failed:
        raise outcome.errors[-1]
    leave(0, outcome.clean)
