"""`gpu-exporter check --active`: runs the check unless a program uses the GPUs, prints it, and keeps it."""

from __future__ import annotations

import json
import pwd
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import click

from gpu_exporter.active_checks import report
from gpu_exporter.active_checks import verdicts as active
from gpu_exporter.active_checks.history import ActiveChecks, CheckHistory
from gpu_exporter.active_checks.load import INTERVAL, ROWS, Loads, readings
from gpu_exporter.active_checks.rates import Rates
from gpu_exporter.active_checks.run import TIME_LIMITS, CheckTarget, Outcomes, run
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.gpu_models import model_of
from gpu_exporter.cli.options import warn
from gpu_exporter.config import Config
from gpu_exporter.events.kernel_log_reader import boot_id
from gpu_exporter.health import check, fitness
from gpu_exporter.health.links import LinkHistory, Values, full_link
from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import cause, replace_file
from gpu_exporter.model.errors import WrongUsage
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Unknown, Verdict
from gpu_exporter.owners.cgroup import process_owner
from gpu_exporter.pipeline.monitor import Monitor, observe
from gpu_exporter.reports.numbers import binary_size
from gpu_exporter.sources.choice import make_source

# What must be read for `gpu_users`.
USER_ROWS = (m.PROCESSES, m.PROCESS_MEMORY, m.FB_USED)
# Memory in use (MiB) from which a GPU without visible processes is in use; the driver alone needs less.
HELD_MEMORY = 1000.0
HIDDEN = "not visible here (another container or PID namespace)"


def gpu_users(snapshot: Snapshot, files: HostFiles) -> dict[int, tuple[str, ...]]:
    """Return the programs that use each GPU, in words, by its index; GPUs that nothing uses are left out."""
    named: dict[int, dict[int, str]] = defaultdict(dict)
    for series, _ in snapshot.samples:
        if series.metric is m.PROCESS_MEMORY and series.gpu is not None:
            labels = dict(series.labels)
            named[series.gpu.index][int(labels["pid"])] = labels["process"]
    found = {index: tuple(_of_gpu(values, named[index], files)) for index, values in readings(snapshot).items()}
    return {index: programs for index, programs in found.items() if programs}


def _of_gpu(values: Mapping[Metric, float], named: Mapping[int, str], files: HostFiles) -> Iterator[str]:
    for pid, name in sorted(named.items()):
        yield f"process {pid} ({printable(name, 40)}){_owner(pid, files)}"
    hidden = int(values.get(m.PROCESSES, 0)) - len(named)
    memory = values.get(m.FB_USED, 0.0)
    if hidden > 0:
        yield f"{hidden} {'process that is' if hidden == 1 else 'processes that are'} {HIDDEN}"
    elif not named and memory >= HELD_MEMORY:
        yield f"a program that is {HIDDEN}, with {binary_size(memory * m.MIB)} of its memory"


def _owner(pid: int, files: HostFiles) -> str:
    """Return of whom a process is: user, and pod, job or container by its cgroup."""
    owner = process_owner(files.process(f"{pid}/cgroup").decode("utf-8", "replace"))
    parts = [f"user {user}" if (user := _user(pid, files)) else ""]
    if owner:
        parts += [f"job {owner.job}" if owner.job else f"pod UID {owner.pod}" if owner.pod else ""]
        parts += [f"container {owner.container[:12]}" if owner.container else ""]
    text = ", ".join(filter(None, parts))
    return f" of {text}" if text else ""


def _user(pid: int, files: HostFiles) -> str:
    status = procfs.status(files.process(f"{pid}/status"))
    if status is None:
        return ""
    try:
        return pwd.getpwuid(status.uid).pw_name
    except KeyError:
        return str(status.uid)


# The rows that are read before and after a check: the verdict's, whether the GPU is busy, and the counters.
AROUND = tuple(dict.fromkeys((*fitness.ROWS, *USER_ROWS, m.GPU_UTIL, *active.COUNTERS)))


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the command line asks for. `gpus` is None for all, or what `check.names` returns; `seconds` is the limit."""

    config: Config
    gpus: frozenset[int | str] | None
    level: int
    force: bool
    seconds: float | None
    textfile: Path | None
    load_seconds: float


@dataclass(slots=True)
class _Checked:
    results: list[active.CheckResult] = field(default_factory=list)
    outcomes: Outcomes = field(default_factory=lambda: Outcomes([]))
    warnings: list[str] = field(default_factory=list)
    clean: bool = True
    users: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def _observed(request: CheckRequest) -> tuple[Snapshot, bool]:
    """Return what a passive check of all GPUs reads, and whether all threads have ended. Raises SourceLost."""
    config = request.config
    return observe(make_source(config), AROUND, config.expected_gpus, LinkHistory(config.state_dir, keeps=False))


def run_check(request: CheckRequest, *, as_json: bool) -> tuple[int, bool]:
    """Check the GPUs and print the result. Returns the exit code, and whether all threads have ended."""
    limit = request.seconds or TIME_LIMITS[request.level]
    if request.level > 1 and request.load_seconds + TIME_LIMITS[1] > limit:
        raise WrongUsage(
            f"a --load-time of {request.load_seconds:g} s does not fit into a --timeout of {limit:g} s",
            fix=f"use --timeout {request.load_seconds + TIME_LIMITS[1]:g}s",
        )
    end = time.monotonic() + limit
    before, clean = _observed(request)
    if not before.live:
        raise WrongUsage("--active needs real GPUs: simulated and replayed ones cannot compute")
    passive = check.report(before, request.gpus)
    untested = dict(_in_mig_mode(before))
    seen = {**_busy(before), **gpu_users(before, _files(request.config))}
    users = {index: programs for index, programs in seen.items() if index not in untested}
    if not request.force:
        untested = {**dict.fromkeys(users, "another program uses the GPU: end it, or use --force"), **untested}
    targets = [target for target in _targets(passive, readings(before)) if target.index not in untested]
    checked = _checked(request, targets, before, users, end) if targets else _Checked(users=users)
    result = _merged(passive, checked, untested)
    if as_json:
        content = {**check.as_dict(result), "active": report.as_dict(checked.results, checked.outcomes)}
        click.echo(json.dumps(content, indent=2))
    else:
        click.echo("\n".join((*report.lines(checked.results, checked.outcomes), *check.lines(result))))
    for warning in checked.warnings:
        warn(warning)
    return result.exit_code, clean and checked.clean and not checked.outcomes.stuck


def _targets(passive: check.CheckReport, values: Mapping[int, Values]) -> Iterator[CheckTarget]:
    """Yield the GPUs that can be tested: those that answer, and are not split into MIG instances."""
    for verdict in passive.verdicts:
        gpu = verdict.gpu
        if gpu.pci_bus_id and not any(problem.metric is m.UP for problem in verdict.problems):
            link = full_link(values.get(gpu.index, {}))
            yield CheckTarget(gpu.index, gpu.uuid, gpu.pci_bus_id, gpu.model, model_of(gpu), link)


def _busy(snapshot: Snapshot) -> dict[int, tuple[str, ...]]:
    """Return the GPUs that work, and that the driver lists no process of."""
    return {
        index: (f"a program that is {HIDDEN}; it is {values[m.GPU_UTIL]:.0f} % busy",)
        for index, values in readings(snapshot).items()
        if values.get(m.GPU_UTIL, 0) > 0
    }


def _files(config: Config) -> HostFiles:
    return HostFiles(config.procfs, config.sysfs)


def _in_mig_mode(snapshot: Snapshot) -> Iterator[tuple[int, str]]:
    for index, values in readings(snapshot).items():
        if values.get(m.MIG_MODE) == 1:
            yield index, "it is in MIG mode: active checks need whole GPUs"


def _checked(
    request: CheckRequest,
    targets: list[CheckTarget],
    before: Snapshot,
    users: Mapping[int, tuple[str, ...]],
    end: float,
) -> _Checked:
    """Run the check while the load is observed; judge and keep it. `users` are the programs that used GPUs before."""
    checked, loads, start = _Checked(), Loads(), time.time()
    monitor = Monitor(make_source(request.config), ROWS, INTERVAL, INTERVAL)
    monitor.start()
    history = _history(request.config.state_dir, checked.warnings)
    left = end - time.monotonic()
    try:
        checked.outcomes = run(
            targets,
            request.level,
            left,
            request.load_seconds,
            tick=lambda working: loads.take(monitor.snapshot(), working),
            slow=lambda outcomes: Rates(outcomes, history).slow(),
        )
    finally:
        checked.clean = monitor.stop()
    after = before
    if checked.clean and time.monotonic() < end:  # if a call of the driver hangs, another one would, too
        after, checked.clean = _observed(request)
    # A program that began meanwhile is seen afterwards. A process of the check that cannot be ended is no such program.
    later = {} if checked.outcomes.stuck else gpu_users(after, _files(request.config))
    checked.users = {**users, **later}
    gpus = {status.gpu.index: status.gpu for status in before.gpus}
    # Level 1 is too short for errors to accumulate.
    counters = active.Counters(readings(before), readings(after)) if request.level > 1 else active.Counters()
    checked.results = active.judge(checked.outcomes, gpus, history, loads.by_gpu, counters, checked.users)
    _keep(request, checked, start)
    return checked


def _history(directory: Path | None, warnings: list[str]) -> CheckHistory:
    if directory is None:
        return CheckHistory()
    try:
        return ActiveChecks(directory).read()
    except (OSError, ValueError) as error:
        warnings.append(f"the history of active checks cannot be read: {cause(error)} (--state-dir)")
        return CheckHistory()


def _keep(request: CheckRequest, checked: _Checked, at: float) -> None:
    """Write history and textfile. A check whose result cannot be kept is still a check: this is only a warning."""
    seconds = sum(checked.outcomes.seconds.values())
    runs = report.runs(checked.results, at, request.level, boot_id(request.config.procfs), seconds)
    try:
        if request.config.state_dir is not None and runs:
            ActiveChecks(request.config.state_dir).append(runs)
        if request.textfile is not None:
            replace_file(request.textfile, report.textfile(checked.results, checked.outcomes, at))
    except (OSError, ValueError) as error:
        checked.warnings.append(f"the result is not kept: {cause(error)}")


def _merged(passive: check.CheckReport, checked: _Checked, untested: Mapping[int, str]) -> check.CheckReport:
    """Return one report of the verdict by NVML and the active check. `untested` says why GPUs were not tested."""
    by_index = {result.verdict.gpu.index: result.verdict for result in checked.results}
    incomparable = {result.verdict.gpu.index for result in checked.results if not result.comparable}
    verdicts = tuple(_both(verdict, by_index.get(verdict.gpu.index), untested) for verdict in passive.verdicts)
    indices = [verdict.gpu.index for verdict in verdicts]
    in_use = {
        index: checked.users[index]
        for index in indices
        if index in checked.users and (index in untested or index in incomparable)
    }
    return replace(passive, verdicts=verdicts, in_use=in_use)


def _both(passive: Verdict, measured: Verdict | None, untested: Mapping[int, str]) -> Verdict:
    if measured is None:
        why = untested.get(passive.gpu.index, "it does not answer")
        return replace(passive, unknown=(*passive.unknown, Unknown("active check", why)))
    reasons = {problem.reason for problem in passive.problems}
    new = tuple(problem for problem in measured.problems if problem.reason not in reasons)
    return replace(passive, problems=(*passive.problems, *new), unknown=(*passive.unknown, *measured.unknown))
