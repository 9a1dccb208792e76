"""Profiles of the processes on the GPUs of a node: what the diagnosis finds decides when `profiling` takes one.

Imported only with `--profile`.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from gpu_exporter.app.endpoint import Reply
from gpu_exporter.catalogue.failure_modes.bottleneck import LAUNCH_BOUND
from gpu_exporter.catalogue.failure_modes.distributed import COLLECTIVE_STALL, STRAGGLERS
from gpu_exporter.config import Config
from gpu_exporter.diagnosis.rolling import Current, RankState
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.user_text import boolean, duration
from gpu_exporter.live_page.monitor import LiveMonitor
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.source import Source
from gpu_exporter.profiling.sampler import RemoteSampler, local_sampler
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.triggers import MOST_PROCESSES, SECONDS, Asked, ProfileRefusal, Rules
from gpu_exporter.profiling.watch import Given, GpuFindings, ProfileWatch
from gpu_exporter.sources.choice import is_local

HOST_BOUND_CLASSES = frozenset({"host-bound", "data-loading-bound"})
# The failure modes that are reasons. A straggler that computes more slowly is one, too: its stacks tell more work from
# a slower chip.
REASON_OF: Mapping[str, ProfileReason] = {
    COLLECTIVE_STALL: ProfileReason.STALL,
    **dict.fromkeys(STRAGGLERS, ProfileReason.STRAGGLER),
    LAUNCH_BOUND: ProfileReason.HOST_BOUND,
}

# What a URL that asks for a profile may say, and the outputs of the analysis of a trace.
ARGUMENTS = frozenset({"gpu", "pid", "pod", "job", "seconds", "trace", "frames", "output"})
OUTPUTS = frozenset({"text", "json", "folded", "pprof", "report"})
# The arguments that may be repeated.
REPEATED = frozenset({"pid", "output"})
TRACE_SECONDS, MOST_TRACE_SECONDS = 0.5, 10.0
NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
MOST_GPU, MOST_PID = 1023, 1 << 22


def profile_watch(source: Source, config: Config, monitor: LiveMonitor | None, *, alone: bool) -> ProfileWatch:
    """Return the thread that profiles. Raises GpuExporterError if that is not possible here."""
    if not alone or not is_local(config, source):
        raise GpuExporterError("--profile: only processes on the GPUs of this machine can be profiled", fix="remove it")
    if monitor is None:
        raise GpuExporterError("--profile needs the diagnosis of the live page", fix="remove --live-page false")
    files = HostFiles(config.procfs, config.sysfs)
    sampler = (
        RemoteSampler(config.profile_socket) if config.profile_socket else local_sampler(files, config.profile_dir)
    )
    store = ProfileStore(config.profile_dir, Bounds(config.profile_keep))
    rules = Rules(config.profile, config.profile_after)
    watch = ProfileWatch(rules, lambda: findings(monitor.current), sampler, store, files, lines=config.profile_lines)
    monitor.newest_profile, monitor.code_of = watch.views.newest, watch.views.lines
    return watch


def findings(current: Current) -> Mapping[str, GpuFindings]:
    """Return what is a reason to profile a GPU now, by UUID. MIG instances count as their GPU."""
    jobs = {rank.device.uuid: (name, rank.state) for name, ranks in current.jobs.items() for rank in ranks}
    found: defaultdict[str, dict[ProfileReason, str]] = defaultdict(dict)
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for device, diagnosis in current.diagnoses.items():
        about = diagnosis.identity
        owners[device.uuid] |= {f"{about.namespace}/{about.pod}"} if about.pod else set()
        owners[device.uuid] |= {about.workload} if about.workload else set()
        reasons = found[device.uuid]
        if diagnosis.bottleneck and diagnosis.bottleneck.name in HOST_BOUND_CLASSES:
            reasons[ProfileReason.HOST_BOUND] = diagnosis.bottleneck.name
        for match in diagnosis.matches:
            if match.mode.name in REASON_OF:
                reasons[REASON_OF[match.mode.name]] = match.mode.name
    return {
        uuid: GpuFindings(jobs[uuid][0], reasons, jobs[uuid][1] is RankState.WAITED_FOR, frozenset(owners[uuid]))
        if uuid in jobs
        else GpuFindings("", reasons, owners=frozenset(owners[uuid]))
        for uuid, reasons in found.items()
    }


def asked(arguments: Mapping[str, Sequence[str]], by: str) -> Asked:
    """Return the profile that a user asks for with these arguments of a URL. Raises ValueError."""
    _check(arguments)
    last = {name: values[-1] for name, values in arguments.items() if values}
    trace = switch(last, "trace", default=False)
    return Asked(
        by,
        number(last["gpu"], 0, MOST_GPU) if "gpu" in last else None,
        tuple(number(pid, 1, MOST_PID) for pid in arguments.get("pid", ())),
        tuple(last[name] for name in ("pod", "job") if name in last),
        _length(last.get("seconds"), trace=trace),
        trace,
        switch(last, "frames", default=True),
        tuple(arguments.get("output", ())) if trace else (),
    )


def _check(arguments: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError for unknown arguments, and for too many of one."""
    if unknown := sorted(arguments.keys() - ARGUMENTS):
        raise ValueError(f"{printable(unknown[0], 40)}: is none of {', '.join(sorted(ARGUMENTS))}")
    for name, values in sorted(arguments.items()):
        most = MOST_PROCESSES if name in REPEATED else 1
        if len(values) > most:
            raise ValueError(f"{name}: at most {most}, not {len(values)}")
    if strange := set(arguments.get("output", ())) - OUTPUTS:
        raise ValueError(f"output: {printable(min(strange), 40)} is none of {', '.join(sorted(OUTPUTS))}")


def _length(text: str | None, *, trace: bool) -> float:
    """Return how long to profile in seconds: stacks for whole ones. Raises ValueError."""
    if text is None:
        return TRACE_SECONDS if trace else SECONDS
    seconds, most = duration(text), MOST_TRACE_SECONDS if trace else SECONDS
    if not 0 < seconds <= most:
        raise ValueError(f"seconds: at most {most:g}")
    return seconds if trace else float(math.ceil(seconds))


def switch(arguments: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether an argument is true. Raises ValueError: a trace costs too much to guess."""
    try:
        return boolean(arguments[name]) if name in arguments else default
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def number(text: str, least: int, most: int) -> int:
    """Return a whole number of a URL. Raises ValueError."""
    if not NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError(f"{printable(text, 20)!r} is no whole number from {least} to {most}")
    return int(text)


async def ask(watch: ProfileWatch, arguments: Mapping[str, Sequence[str]], by: str) -> Reply:
    """Have a profile taken for a user, as the arguments of a URL say. Returns it, or why there is none."""
    try:
        question = asked(arguments, by)
    except ValueError as error:
        return Reply(400, f"{error}\n".encode())
    answer = await asyncio.wrap_future(watch.ask(question))
    if isinstance(answer, ProfileRefusal):
        return Reply(429 if answer.retry_seconds else 409, f"{answer.why}\n".encode(), answer.retry_seconds)
    # Not on this thread: scrapes would wait for a large answer.
    return Reply(200, await asyncio.get_running_loop().run_in_executor(None, _as_json, answer))


def _as_json(answer: Given) -> bytes:
    outputs = {name: base64.b64encode(content).decode() for name, content in answer.outputs.items()}
    return msgspec.json.encode({"profile": answer.summary, "stacks": answer.stacks, "outputs": outputs})
