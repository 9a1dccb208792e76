"""When to profile which GPU, whether or not somebody asks. Pure: functions of what is seen, of the past, and of time.

Without being asked, only py-spy is used: after a trace with stacks, a job stays slower (docs/profile.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling, SamplingFailure

# A GPU is profiled at most once in this time. A stall counts only against earlier stalls: a job that hangs cannot be
# slowed down, and its stacks may be gone a minute later. A trace counts only against earlier traces: a person asks for
# it because of the stacks that were just sampled.
GAP_SECONDS = 600.0
# py-spy samples for whole seconds.
SECONDS, SCHEDULED_SECONDS = 5.0, 1.0
RATE = 50
# Of more processes, those with most memory on each GPU are sampled.
MOST_PROCESSES = 16
MOST_AVOIDED = 256
# What py-spy may write about all processes of a profile, and about one: a job decides how deep its stacks are.
MOST_WRITTEN_BYTES, MOST_OUTPUT_BYTES = 24 << 20, 8 << 20
# After these, the program of the process is left alone. A job may also end by itself while it is sampled: only the
# second end counts.
BAD = frozenset({SamplingFailure.TIMEOUT, SamplingFailure.NOT_PYTHON, SamplingFailure.UNSUPPORTED})


@dataclass(frozen=True, slots=True)
class ProfiledGpu:
    """A GPU as it is now: the PIDs of its processes, those with most memory first, its job, and what is found.

    `findings` has the name of the class or failure mode that is a reason to profile it. `is_waited_for`: it does
    nothing, while the other GPUs of its job wait in a collective. `owners` are names of its pod and job.
    """

    uuid: str
    index: int
    pids: tuple[int, ...] = ()
    job: str = ""
    findings: Mapping[ProfileReason, str] = field(default_factory=dict)
    is_waited_for: bool = False
    owners: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rules:
    """Which reasons are on, and how long a finding must last."""

    reasons: frozenset[ProfileReason]
    after: float = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A profile that the user `by` asks for: of a GPU, of PIDs, and of `owners`, a pod (namespace/name) or a job.

    What is not set does not narrow it. With `trace`, PyTorch records a trace, with `frames` of Python, and `outputs`
    are those of its analysis.
    """

    by: str
    gpu: int | None = None
    pids: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    seconds: float = SECONDS
    trace: bool = False
    frames: bool = True
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileRefusal:
    """Why a profile that somebody asks for is not taken; with a budget, after how many seconds it would be."""

    why: str
    retry_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A profile to take now. `finding` is the name of what was found; empty for the schedule, and if it is `asked`."""

    reason: ProfileReason
    finding: str
    devices: tuple[ProfiledGpu, ...]
    asked: Asked | None = None

    @property
    def seconds(self) -> float:
        """How long to sample."""
        if self.asked:
            return self.asked.seconds
        return SCHEDULED_SECONDS if self.reason is ProfileReason.SCHEDULE else SECONDS

    @property
    def pids(self) -> Mapping[int, tuple[int, ...]]:
        """The PIDs to sample with the indices of their GPUs, at most MOST_PROCESSES: first one of each GPU."""
        chosen = self._wanted()[:MOST_PROCESSES]
        return {pid: tuple(device.index for device in self.devices if pid in device.pids) for pid in chosen}

    @property
    def left_out(self) -> int:
        """The number of processes beyond MOST_PROCESSES."""
        return max(0, len(self._wanted()) - MOST_PROCESSES)

    def _wanted(self) -> list[int]:
        """Return the PIDs that are to be sampled, first one of each GPU."""
        only = self.asked.pids if self.asked else ()
        ranked = sorted((place, device.index, pid) for device in self.devices for place, pid in enumerate(device.pids))
        return list(dict.fromkeys(pid for _, _, pid in ranked if pid in only or not only))

    @property
    def waited_for(self) -> frozenset[int]:
        """The PIDs on GPUs that do nothing while others wait for them."""
        return frozenset(pid for device in self.devices if device.is_waited_for for pid in device.pids)


@dataclass(frozen=True, slots=True)
class TriggerState:
    """The past, in monotonic seconds: since when a GPU has a finding, when it was last profiled, and whom to avoid.

    `avoided` are programs, by user and command, and `ended` those of which a process ended while it was sampled.
    """

    since: Mapping[tuple[str, ProfileReason], float] = field(default_factory=dict)
    profiled: Mapping[str, float] = field(default_factory=dict)
    stalled: Mapping[str, float] = field(default_factory=dict)
    traced: Mapping[str, float] = field(default_factory=dict)
    avoided: tuple[tuple[int, str], ...] = ()
    ended: tuple[tuple[int, str], ...] = ()

    def avoids(self, process: Process) -> bool:
        """Return whether this process, or an earlier one with its command, responded badly to a profile."""
        return (process.uid, process.command) in self.avoided


def sampling_of(seconds: float, rate: int, processes: int) -> Sampling:
    """Return how to sample so many processes without being asked."""
    most = min(MOST_OUTPUT_BYTES, MOST_WRITTEN_BYTES // max(1, processes))
    return Sampling(seconds, rate, most_bytes=most)


def observe(state: TriggerState, devices: Sequence[ProfiledGpu], now: float) -> TriggerState:
    """Return the state after a look at the GPUs: since when each has its findings."""
    since = {
        (device.uuid, reason): state.since.get((device.uuid, reason), now)
        for device in devices
        for reason in device.findings
    }
    return replace(state, since=since)


def due(state: TriggerState, devices: Sequence[ProfiledGpu], rules: Rules, now: float) -> ProfileRequest | None:
    """Return the most urgent profile to take now; None if there is none. Call `observe` before."""
    held = [device for device in devices if device.pids]
    for reason in ProfileReason:
        if reason in rules.reasons:
            waiting = [device for device in held if _is_due(state, device, reason, rules, now)]
            if waiting:
                first = min(waiting, key=lambda device: (state.profiled.get(device.uuid, float("-inf")), device.index))
                finding = first.findings.get(reason, "")
                return ProfileRequest(
                    reason, finding, _together(first, held) if reason is ProfileReason.STALL else (first,)
                )
    return None


def _is_due(state: TriggerState, device: ProfiledGpu, reason: ProfileReason, rules: Rules, now: float) -> bool:
    last = (state.stalled if reason is ProfileReason.STALL else state.profiled).get(device.uuid)
    if last is not None and now - last < GAP_SECONDS:
        return False
    if reason is ProfileReason.SCHEDULE:
        return True
    since = state.since.get((device.uuid, reason))
    return since is not None and now - since >= rules.after


def requested(
    state: TriggerState, devices: Sequence[ProfiledGpu], asked: Asked, now: float
) -> ProfileRequest | ProfileRefusal:
    """Return the profile that somebody asks for, or why there is none: it must be of GPUs, and within the budget."""
    held = tuple(device for device in devices if device.pids and _is_wanted(device, asked))
    if not held:
        return ProfileRefusal("the driver lists no such process on a GPU of this node")
    for device in held:
        last = state.traced if asked.trace else state.profiled
        waited = now - last.get(device.uuid, float("-inf"))
        if waited < GAP_SECONDS:
            ago, wait = f"GPU {device.index} was profiled {waited:.0f} s ago", GAP_SECONDS - waited
            return ProfileRefusal(f"{ago}, and is at most once in {GAP_SECONDS / 60:.0f} min: wait {wait:.0f} s", wait)
    return ProfileRequest(ProfileReason.REQUEST, "", held, asked)


def _is_wanted(device: ProfiledGpu, asked: Asked) -> bool:
    return (
        asked.gpu in (None, device.index)
        and (not asked.pids or any(pid in device.pids for pid in asked.pids))
        and device.owners.issuperset(asked.owners)
    )


def _together(first: ProfiledGpu, devices: Sequence[ProfiledGpu]) -> tuple[ProfiledGpu, ...]:
    """Return all GPUs of the job that hangs, whether they wait or are waited for."""
    return tuple(
        device
        for device in devices
        if device is first or (device.job == first.job if first.job else ProfileReason.STALL in device.findings)
    )


def finish(
    state: TriggerState, request: ProfileRequest, failed: Sequence[tuple[Process, SamplingFailure]], now: float
) -> TriggerState:
    """Return the state after a profile, or an attempt, that ended now. `failed` are processes without stacks."""
    took = dict.fromkeys((device.uuid for device in request.devices), now)
    bad = [(process.uid, process.command) for process, failure in failed if failure in BAD]
    ended = {(process.uid, process.command) for process, failure in failed if failure is SamplingFailure.ENDED}
    avoided = tuple(dict.fromkeys((*state.avoided, *bad, *(ended & {*state.ended}))))[-MOST_AVOIDED:]
    once = tuple(dict.fromkeys((*state.ended, *ended)))[-MOST_AVOIDED:]
    stalled = {**state.stalled, **took} if request.reason is ProfileReason.STALL else state.stalled
    is_trace = request.asked is not None and request.asked.trace
    traced = {**state.traced, **took} if is_trace else state.traced
    return replace(
        state, profiled={**state.profiled, **took}, stalled=stalled, traced=traced, avoided=avoided, ended=once
    )
