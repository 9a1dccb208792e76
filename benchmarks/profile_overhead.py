"""Measures what profiles cost a training job on a GPU, before, during and after, and whether they name the slow line.

    python -m benchmarks.profile_overhead [--budget 145] [--json FILE] [NAME …]

The job is `profile_overhead_job.py`, a script without any code of gpu-exporter, whose loader is slowed at run time. All
jobs start at once, and wait; then one after another trains, is profiled, and is killed. Needs PyTorch, NumPy, msgspec,
PyYAML and the program py-spy; without a GPU, traces have no GPU events and name nothing. A variant for which no time of
the budget is left is skipped and printed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import analysis, pyspy, stacks
from gpu_exporter.profiling.kineto_daemon import DaemonSocket, TraceOptions
from gpu_exporter.profiling.processes import look_up
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.trace_session import TakenTrace, TraceSession

JOB = Path(__file__).with_name("profile_overhead_job.py")
# The job sleeps in this function.
RESPONSIBLE = "load_batch"
FILES = HostFiles(Path("/proc"), Path("/sys"))
IDLE, TRACE, PYSPY = "idle", "trace", "py-spy"
TEARDOWN: Mapping[str, str] = {"TEARDOWN_CUPTI": "1"}
FEWER = ("kernel", "gpu_memcpy", "cuda_runtime", "python_function")


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to profile: its kind, what a trace records, and what is in the environment of the job."""

    name: str
    kind: str = TRACE
    options: TraceOptions = field(default_factory=TraceOptions)
    environment: Mapping[str, str] = field(default_factory=dict)


VARIANTS = (
    Variant("trace with stacks"),
    Variant("trace with stacks, TEARDOWN_CUPTI=1", environment=TEARDOWN),
    Variant("trace without stacks", options=TraceOptions(stacks=False)),
    Variant("trace of fewer activities", options=TraceOptions(activities=FEWER)),
    Variant("py-spy", PYSPY),
    Variant("daemon, nothing requested", IDLE),
    Variant("trace without stacks, TEARDOWN_CUPTI=1", options=TraceOptions(stacks=False), environment=TEARDOWN),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds of a step in the three phases, and what the profile says. Empty texts if it failed."""

    variant: str
    before: float = 0.0
    during: float = 0.0
    after: float = 0.0
    longest: float = 0.0
    wait: float = 0.0
    megabytes: float = 0.0
    named: str = ""
    problem: str = ""


@dataclass(slots=True)
class Job:
    """A job that waits for its turn."""

    variant: Variant
    folder: Path
    running: subprocess.Popen[bytes]

    def steps(self, begin: float, end: float) -> list[float]:
        """Return the seconds of the steps that began in this monotonic time."""
        found = []
        for line in (self.folder / "steps").read_text().splitlines()[:-1]:
            at, seconds = map(float, line.split())
            if begin <= at < end:
                found.append(seconds)
        return found


@dataclass(frozen=True, slots=True)
class Phases:
    """How many seconds each phase takes."""

    warm: float = 2.0
    before: float = 3.0
    after: float = 4.0


@contextmanager
def started(variants: Sequence[Variant], folder: Path) -> Iterator[list[Job]]:
    """Start a job for each variant, and kill those that still run at the end."""
    jobs = []
    try:
        for number, variant in enumerate(variants):
            of_job = folder / str(number)
            of_job.mkdir()
            environment = {
                **os.environ,
                "KINETO_USE_DAEMON": "1",
                "KINETO_IPC_SOCKET_DIR": str(of_job),
                **variant.environment,
            }
            arguments = [sys.executable, str(JOB), *(str(of_job / name) for name in ("go", "slow", "steps"))]
            jobs.append(Job(variant, of_job, subprocess.Popen(arguments, env=environment)))
        yield jobs
    finally:
        for job in jobs:
            job.running.kill()
            job.running.wait()


def measure(job: Job, phases: Phases) -> tuple[Measured, TakenTrace | None]:
    """Let a job train and profile it. Returns the times of its steps, and its trace if there is one."""
    (job.folder / "go").touch()
    until_training(job)
    time.sleep(phases.warm)
    (job.folder / "slow").touch()
    time.sleep(0.2)
    begin = time.monotonic()
    time.sleep(phases.before)
    requested = time.monotonic()
    measured, trace = _profiled(job, Measured(job.variant.name))
    taken = time.monotonic()
    if trace:
        requested, taken = trace.requested_at, trace.taken_at
    time.sleep(phases.after)
    end = time.monotonic()
    job.running.kill()
    during = job.steps(requested, taken)
    return (
        replace(
            measured,
            before=_median(job.steps(begin, requested)),
            during=_median(during),
            after=_median(job.steps(taken + 0.5, end)),
            longest=max(during, default=0.0),
            wait=taken - requested,
        ),
        trace,
    )


def until_training(job: Job) -> None:
    end = time.monotonic() + 60.0
    while not (job.folder / "steps").exists() or (job.folder / "steps").stat().st_size < 1000:
        if job.running.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{job.variant.name}: the job does not train; see its error above")
        time.sleep(0.1)


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0


def _profiled(job: Job, measured: Measured) -> tuple[Measured, TakenTrace | None]:
    process = look_up(FILES, job.running.pid)
    if job.variant.kind == PYSPY:
        sampling = Sampling(5.0, 50)
        answer = pyspy.sample(pyspy.program(), [process], sampling, FILES)[process.pid]
        if isinstance(answer, GpuExporterError):
            return replace(measured, problem=str(answer)), None
        main, *_ = stacks.profiles(stacks.parse(answer, {process.pid}), sampling.rate)
        lines = [line.frame for cause in main.causes for line in cause.lines]
        return replace(measured, named=_responsible(lines)), None
    session = TraceSession([process], job.variant.options, FILES, Path("/proc"))
    with DaemonSocket(job.folder) as socket:
        if job.variant.kind == IDLE:
            end = time.monotonic() + 6.0
            while (left := end - time.monotonic()) > 0:
                socket.receive(left)
            return measured, None
        session.run(socket)
    if session.errors:
        return replace(measured, problem=str(session.errors[0])), None
    trace = session.taken[0]
    return replace(measured, megabytes=os.fstat(trace.descriptor).st_size / 1e6), trace


def _responsible(lines: Sequence[str]) -> str:
    return next((line for line in lines if RESPONSIBLE in line), "")


def analysed(measured: Measured, trace: TakenTrace | None) -> Measured:
    """Add the responsible line of a trace, or why it cannot be analysed."""
    if trace is None:
        return measured
    try:
        text = analysis.analyze([trace], ["text"])["text"].decode()
    except GpuExporterError as error:
        return replace(measured, problem=str(error))
    finally:
        os.close(trace.descriptor)
    return replace(measured, named=_responsible([line.strip() for line in text.splitlines()]))


def lines(found: Sequence[Measured]) -> Iterator[str]:
    """Yield the table."""
    head = f"{'variant':<40} {'before':>9} {'during':>9} {'after':>9} {'longest':>9} {'during':>8} {'after':>8}"
    yield f"{head} {'ready':>7} {'size':>7}  responsible line"
    for each in found:
        if not each.before:
            yield f"{each.variant:<40} {each.problem}"
            continue
        times = " ".join(f"{seconds * 1e3:6.2f} ms" for seconds in (each.before, each.during, each.after, each.longest))
        slower = " ".join(f"{seconds / each.before - 1:+8.2%}" for seconds in (each.during, each.after))
        size = f"{each.wait:5.1f} s {each.megabytes:4.0f} MB"
        yield f"{each.variant:<40} {times} {slower} {size}  {each.named or '-'} {each.problem}".rstrip()


def main() -> int:
    """Measure and print. Returns 0; what was not measured is printed as such."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="variants that contain one of these texts (default: all)")
    parser.add_argument("--budget", type=float, default=145.0, help="seconds in total (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    chosen = parser.parse_args()
    begin = time.monotonic()
    variants = [each for each in VARIANTS if not chosen.names or any(name in each.name for name in chosen.names)]
    found: list[Measured] = []
    traces: list[TakenTrace | None] = []
    with tempfile.TemporaryDirectory(prefix="gpu-exporter-", dir="/tmp") as folder:
        with started(variants, Path(folder)) as jobs:
            for job in jobs:
                # A variant takes at most some 21 s, the analysis of all traces 15 s.
                if time.monotonic() - begin > chosen.budget - 36.0:
                    found.append(Measured(job.variant.name, problem="skipped: no time is left"))
                    traces.append(None)
                    continue
                measured, trace = measure(job, Phases())
                found.append(measured)
                traces.append(trace)
                print("\n".join(list(lines([measured]))[1:]), flush=True)
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(analysed, found, traces))
    print("\n".join(["", *lines(found), "", f"{time.monotonic() - begin:.0f} s in all"]))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
