"""Doctor's checks of the socket of training loops: whether jobs reach it, and what became of their messages."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.jobs.socket_file import answers
from gpu_exporter.jobs.store import Accepted
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.job_message import SOCKET_VARIABLE
from gpu_exporter.model.source_kind import REPLAY, SIMULATED
from gpu_exporter.reports.numbers import ranges, whole_duration

TOPIC = "jobs"
RESTART = "start `gpu-exporter serve --job-socket` with this path; see its log"
OF_RANKS = frozenset(row.name for row in (m.JOB_RANK_INFO, m.JOB_STARTED_AT, m.JOB_STEPPED_AT, m.JOB_ENDED_AT))
# By result: why messages are dropped, and what to do about it.
DROPPED: Mapping[Accepted, tuple[str, str]] = {
    Accepted.INVALID: ("they are faulty", "the exporter's log says what is wrong, once a minute"),
    Accepted.TOO_LARGE: ("they are too large", "use fewer or shorter names of phases"),
    Accepted.VERSION: (
        "they are of another version",
        "install the same version of gpu-exporter in the job and on the node",
    ),
    Accepted.UNKNOWN_GPU: (
        "their GPU is unknown",
        "set hostPID (--pid=host) for the exporter, or pass `uuid=` to StepTimer, or POD_UID to the pod",
    ),
    Accepted.OTHER_SENDER: ("another sender sends for the same rank", "give each job its own job_id"),
    Accepted.OLD_ATTEMPT: (
        "a later process has replaced the sender",
        "give jobs that run at the same time own job_ids",
    ),
    Accepted.OVERLAP: (
        "another process of the same rank was still sending",
        "expected for a moment after a restart; otherwise give each job its own job_id",
    ),
    Accepted.BACKWARDS: ("their sums are lower than before", "use one StepTimer per process"),
    Accepted.LIMIT: (
        "there are too many ranks, jobs, series, phases or connections",
        "docs/jobs.md has the limits; look for a process that floods the socket",
    ),
}


def checks(path: Path, page: Callable[[], str]) -> list[Finding]:
    """Return the findings about the socket. `page` returns the running exporter's /metrics, or raises
    GpuExporterError."""
    reached = _reached(path)
    try:
        samples = parsed(page())
    except (GpuExporterError, ValueError) as error:
        return [*reached, _unasked(FindingLevel.NOTE, error)]
    return [*reached, *judge(samples)]


def why_silent(path: Path | None, page: Callable[[], str], job: str) -> list[Finding]:
    """Return why messages of a job do not arrive, or of all jobs if the name is empty; FAIL if none arrives."""
    what, cure = "no socket is named", f"give --job-socket, or set {SOCKET_VARIABLE} as in the job"
    reached = _reached(path) if path else [Finding(TOPIC, FindingLevel.WARN, what, cure)]
    try:
        samples = parsed(page())
    except (GpuExporterError, ValueError) as error:
        return [*reached, _unasked(FindingLevel.FAIL, error)]
    return [*reached, *judge(samples), *ranks(samples, job)]


def _unasked(level: FindingLevel, error: Exception) -> Finding:
    why = str(error).partition(": is it running?")[0]  # doctor has no --url
    what = f"the running exporter cannot be asked what became of messages of training loops: {why}"
    return Finding(
        TOPIC, level, what, "start `serve` with the settings of this command, or give the --address of the exporter"
    )


def _reached(path: Path) -> list[Finding]:
    found = [*_socket(path), *_folders(path)]
    if all(finding.level is FindingLevel.OK for finding in found):
        return [Finding(TOPIC, FindingLevel.OK, f"the exporter listens on {path}, and every user may send to it")]
    return found


def _socket(path: Path) -> Iterator[Finding]:
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            yield Finding(TOPIC, FindingLevel.WARN, f"{path} is not a socket", "remove it, or use another --job-socket")
        elif not answers(path):
            yield Finding(TOPIC, FindingLevel.WARN, f"no process listens on {path}", RESTART)
        elif not mode & stat.S_IWOTH:
            what = f"other users may not send to {path}: its mode is {stat.S_IMODE(mode):#o}"
            yield Finding(TOPIC, FindingLevel.WARN, what, f"`chmod a+rw {path}`")
    except FileNotFoundError:
        yield Finding(TOPIC, FindingLevel.WARN, f"there is no socket {path}", RESTART)
    except PermissionError:
        what = f"this user (UID {os.geteuid()}) may not send to {path}"
        yield Finding(TOPIC, FindingLevel.WARN, what, f"`chmod a+rw {path}`, and a+x for each folder above it")
    except OSError as error:
        what = f"{path} cannot be used: {error.strerror or error}"
        yield Finding(
            TOPIC, FindingLevel.WARN, what, "run this as the exporter's user; if that fails, too, use another path"
        )


def _folders(path: Path) -> Iterator[Finding]:
    """Yield a finding on each folder above the socket through which other users may not go."""
    for folder in path.absolute().parents:
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue
        if not mode & stat.S_IXOTH:
            what = f"jobs of other users do not reach {path}: {folder} has the mode {stat.S_IMODE(mode):#o}"
            yield Finding(TOPIC, FindingLevel.WARN, what, f"`chmod a+x {folder}`, or use another folder")


def judge(samples: Sequence[ScrapedSample]) -> Iterator[Finding]:
    """Yield what became of the messages, from the metrics of a running exporter. Pure."""
    counts = {sample.labels.get("result", ""): sample.value for sample in samples if sample.name == m.JOB_MESSAGES.name}
    if not counts:
        what = "the running exporter receives no messages of training loops: it was started without --job-socket"
        yield Finding(TOPIC, FindingLevel.WARN, what, RESTART)
        return
    if any(sample.name == m.JOB_SOCKET_UP.name and not sample.value for sample in samples):
        what = "the running exporter could not make its socket"
        yield Finding(TOPIC, FindingLevel.WARN, what, "its log says why; it tries again every second")
    yield _received(counts.get(Accepted.ACCEPTED.value, 0.0), samples)
    for result, (why, cure) in DROPPED.items():
        if count := counts.get(result.value, 0.0):
            yield Finding(
                TOPIC, FindingLevel.WARN, f"messages of training loops dropped: {count:.0f}, because {why}", cure
            )
    yield from _unverified([sample.labels for sample in samples if sample.name == m.JOB_RANK_INFO.name])


def _received(accepted: float, samples: Sequence[ScrapedSample]) -> Finding:
    if not accepted:
        what = "no message of a training loop was accepted so far"
        return Finding(TOPIC, FindingLevel.NOTE, what, f"set {SOCKET_VARIABLE} in jobs: docs/training.md")
    ranks = [sample.labels for sample in samples if sample.name == m.JOB_RANK_INFO.name]
    jobs = len({labels.get("job_id") for labels in ranks})
    what = f"messages of training loops accepted: {accepted:.0f}; sending now: ranks {len(ranks)}, jobs {jobs}"
    return Finding(TOPIC, FindingLevel.OK, what)


def ranks(samples: Sequence[ScrapedSample], job: str) -> Iterator[Finding]:
    """Yield which ranks of a job send and since when, and which do not; of all jobs if the name is empty. Pure."""
    by_job: dict[str, dict[str, dict[int, ScrapedSample]]] = defaultdict(lambda: defaultdict(dict))
    now = 0.0
    for sample in samples:
        if sample.name == m.RENDERED_AT.name:
            now = sample.value
        elif sample.name in OF_RANKS and sample.labels.get("rank", "").isdecimal():
            by_job[sample.labels.get("job_id", "")][sample.name][int(sample.labels["rank"])] = sample
    if job and job not in by_job:
        others = f"; jobs that do: {', '.join(sorted(by_job))}" if by_job else ""
        cure = "job_id is the first argument of StepTimer; without it, what docs/training.md says"
        yield Finding(TOPIC, FindingLevel.FAIL, f"no rank of job {job} sends{others}", cure)
    elif not by_job:
        cure = f"does the job have {SOCKET_VARIABLE}, and does it make steps? StepTimer sends from the first step on"
        yield Finding(TOPIC, FindingLevel.FAIL, "no training loop sends", cure)
    for name, series in sorted(by_job.items()):
        if name == job or not job:
            yield from _of_job(name, series, now)


def _of_job(name: str, series: Mapping[str, Mapping[int, ScrapedSample]], now: float) -> Iterator[Finding]:
    sending, ended = series.get(m.JOB_RANK_INFO.name, {}), series.get(m.JOB_ENDED_AT.name, {})
    started, stepped = series.get(m.JOB_STARTED_AT.name, {}), series.get(m.JOB_STEPPED_AT.name, {})
    worlds = [sample.labels.get("world_size", "") for sample in sending.values()]
    world = max((int(size) for size in worlds if size.isdecimal()), default=0)
    if sending:
        since = whole_duration(now - min((sample.value for sample in started.values()), default=now))
        what = f"job {name}: {_numbers(sending)} of {world} sending for {since}"
        if stepped:
            what += f"; last step {whole_duration(now - max(sample.value for sample in stepped.values()))} ago"
        yield Finding(TOPIC, FindingLevel.OK, what)
    if ended:
        age = whole_duration(now - min(sample.value for sample in ended.values()))
        what = f"job {name}: {_numbers(ended)} sent the last message {age} ago"
        yield Finding(TOPIC, FindingLevel.WARN, what, "read the log of the rank, and look for its process")
    if missing := set(range(world)) - sending.keys() - ended.keys():
        what = f"job {name}: {_numbers(missing)} not sending to this exporter"
        cure = f"ranks of this node need {SOCKET_VARIABLE}; those of other nodes send to the exporter there"
        yield Finding(TOPIC, FindingLevel.NOTE, what, cure)


def _numbers(numbers: Iterable[int]) -> str:
    """Return numbers of ranks, with runs of them as ranges."""
    text = ranges(numbers)
    return f"rank{'' if text.isdecimal() else 's'} {text}"


def _unverified(ranks: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    unverified = sum(labels.get("verified") == "false" for labels in ranks)
    if any(labels.get("source") in (SIMULATED.name, REPLAY.name) for labels in ranks):
        return  # no process can use these GPUs
    if unverified:
        what = f"ranks whose process is not seen on a GPU (unverified): {unverified} of {len(ranks)}"
        yield Finding(TOPIC, FindingLevel.NOTE, what, "set hostPID (--pid=host) for the exporter")
