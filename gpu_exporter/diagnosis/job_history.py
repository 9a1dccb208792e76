"""What the history of several nodes says about one job: its ranks, where their time went, and its incidents. Pure.

Each node has judged only its own GPUs. Here, what belongs together becomes one incident, by the relation between
failure modes that `incidents.py` reads, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_exporter.catalogue import job_signals as j
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.loops import STRAGGLER
from gpu_exporter.catalogue.failure_modes.mode import STRAGGLING_GPU, Place, Severity
from gpu_exporter.conditions.evaluate import holds
from gpu_exporter.diagnosis.kept_records import HOLD_SECONDS, KeptIncident, KeptUsage
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.training_loops import ENOUGH, RankMeans, SelfTime, self_times
from gpu_exporter.diagnosis.window import DeviceIdentity, Signals, Window
from gpu_exporter.model.job_message import TRAINING
from gpu_exporter.reports.numbers import first_of, ranges

MODE = {mode.name: mode for mode in MODES}
_SEVERITIES = [severity.value for severity in Severity]
# A clock that differs by less is not worth a remark: it may be the time of the answer.
CLOCK_SECONDS = 5.0
# What a node keeps of the usage of jobs ends with a period.
PERIOD_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The answer of `/api/v1/incidents?since=…` of a node. `ahead` is by how many seconds its clock differs."""

    node: str
    version: str = ""
    kept: bool = True
    incidents: list[KeptIncident] = field(default_factory=list)
    usage: list[KeptUsage] = field(default_factory=list)
    now: float | None = None
    ahead: float = 0.0

    def masked(self, names: DiagnosisNames) -> NodeHistory:
        """Return it with other names of owners, nodes and GPUs."""
        node = names.name("node", self.node)

        def gpus(of_incident: Iterable[dict[str, str]]) -> list[dict[str, str]]:
            return [{**gpu, "UUID": names.uuid(gpu.get("UUID", "")), "node": node} for gpu in of_incident]

        incidents = [
            replace(each, words=each.cause, culprits=gpus(each.culprits), hit=gpus(each.hit))
            for each in (incident.masked(names) for incident in self.incidents)
        ]
        usage = [
            replace(each, gpus=[replace(gpu, UUID=names.uuid(gpu.UUID)) for gpu in each.gpus])
            for each in (period.masked(names) for period in self.usage)
        ]
        return replace(self, node=node, incidents=incidents, usage=usage)


@dataclass(slots=True)
class RankTotals:
    """What a GPU did for the job in the whole period. As a straggler, it needed `excess` seconds more than usual for
    each step; `straggled` is for how many seconds incidents say so.
    `note` is what it does now."""

    node: str
    uuid: str
    gpu: str
    instance: str
    rank: str
    start: float = 0.0
    end: float = 0.0
    seconds: float = 0.0
    time: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    steps: float = 0.0
    step_seconds: float = 0.0
    self_seconds: float = 0.0
    self_steps: float = 0.0
    waiting_seconds: float = 0.0
    activity: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    restarts: float = 0.0
    excess: float = 0.0
    straggled: float = 0.0
    note: str = ""

    def add_steps(self, steps: float, means: RankMeans) -> None:
        """Add steps of a mean duration."""
        self.steps += steps
        self.step_seconds += means.step * steps
        if means.own is not None:
            self.self_steps += steps
            self.self_seconds += means.own * steps

    @property
    def own(self) -> float | None:
        """The mean duration of a step without waiting for other ranks; None if too few steps say so."""
        return self.self_seconds / self.self_steps if self.self_steps >= ENOUGH and self.self_seconds else None

    @property
    def means(self) -> RankMeans | None:
        """What ranks are compared by; None if too few steps were seen."""
        if self.steps < ENOUGH or not self.seconds:
            return None
        paused = sum(self.activity.get(activity, 0.0) for activity in j.PAUSES)
        waiting = self.waiting_seconds / self.steps if self.waiting_seconds else None
        return RankMeans(self.step_seconds / self.steps, self.own, paused / self.seconds, waiting)

    @property
    def lost(self) -> float:
        """The seconds that were not useful."""
        return sum(seconds for cause, seconds in self.time.items() if cause != Cause.USEFUL.value)


@dataclass(frozen=True, slots=True)
class PastJob:
    """What is known of a job in a period. `goodput` is the share of the time from its first to its last sign of life
    in which its ranks trained; None if no training loop said so. `remarks` is what is missing or doubtful."""

    job: str
    since: float
    until: float
    start: float
    end: float
    ranks: Sequence[RankTotals]
    incidents: Sequence[KeptIncident]
    remarks: Sequence[str]
    others: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of the job."""
        return not self.ranks and not self.incidents

    @property
    def goodput(self) -> float | None:
        """The share of its time that the job spent in training steps."""
        trained = sum(rank.activity.get(TRAINING, 0.0) for rank in self.ranks)
        whole = (self.end - self.start) * len({(rank.rank or rank.uuid, rank.instance) for rank in self.ranks})
        return min(trained / whole, 1.0) if trained and whole else None

    @property
    def time(self) -> Mapping[str, float]:
        """The GPU-seconds by cause, the longest first."""
        total: dict[str, float] = defaultdict(float)
        for rank in self.ranks:
            for cause, seconds in rank.time.items():
                total[cause] += seconds
        return dict(sorted(total.items(), key=lambda item: -item[1]))

    @property
    def seconds(self) -> float:
        """The GPU-seconds that were seen."""
        return sum(rank.seconds for rank in self.ranks)

    @property
    def lost(self) -> float:
        """The GPU-seconds that were lost."""
        return sum(rank.lost for rank in self.ranks)


def job_history(
    job: str, since: float, until: float, nodes: Sequence[NodeHistory], missing: Iterable[str] = ()
) -> PastJob:
    """Return what the histories of nodes say about a job: its workload, namespace/workload, Slurm number or `job_id`.

    `missing` says of which nodes there is no history, and why.
    """
    ranks: dict[tuple[str, ...], RankTotals] = {}
    others: set[str] = set()
    # The names that the job has on nodes, and when it used each GPU.
    names, used = {job}, defaultdict[str, list[tuple[float, float]]](list)
    for node in nodes:
        for period in node.usage:
            for gpu in period.gpus:
                if job not in (gpu.job, gpu.job.rpartition("/")[2], gpu.job_id):
                    others |= {name for name in (gpu.job, gpu.job_id) if name}
                    continue
                names |= {gpu.job} - {""}
                begin, end = gpu.start or period.start, gpu.end or period.end
                used[gpu.UUID].append((begin, end))
                key = (node.node, gpu.UUID, gpu.GPU_I_ID, gpu.rank)
                total = ranks.get(key)
                if total is None:
                    total = RankTotals(*key[:2], gpu.gpu, gpu.GPU_I_ID, gpu.rank, begin, end)
                    ranks[key] = total
                total.start, total.end = min(total.start, begin), max(total.end, end)
                total.seconds += gpu.seconds
                total.steps += gpu.steps
                total.step_seconds += gpu.step_seconds
                total.self_seconds += gpu.self_seconds
                total.self_steps += gpu.self_steps
                total.waiting_seconds += gpu.waiting_seconds
                total.restarts += gpu.restarts
                for cause, seconds in gpu.time.items():
                    total.time[cause] += seconds
                for activity, seconds in gpu.activity.items():
                    total.activity[activity] += seconds
    found = [
        _with_node(incident, node.node)
        for node in nodes
        for incident in node.incidents
        if _concerns(incident, names, used)
    ]
    _join_silent(ranks)
    of_job = sorted(ranks.values(), key=_place)
    _compare(of_job)
    incidents = joined(found)
    _note_straggling(of_job, incidents)
    times = [time for rank in of_job for time in (rank.start, rank.end)] or [
        time for each in incidents for time in (each.start, each.end or each.seen)
    ]
    return PastJob(
        job,
        since,
        until,
        min(times, default=since),
        max(times, default=until),
        of_job,
        incidents,
        [*missing, *_remarks(nodes, of_job)],
        sorted(others),
    )


def _with_node(incident: KeptIncident, node: str) -> KeptIncident:
    culprits, hit = ([{"node": node, **gpu} for gpu in gpus] for gpus in (incident.culprits, incident.hit))
    return replace(incident, culprits=culprits, hit=hit)


def _concerns(incident: KeptIncident, names: set[str], used: Mapping[str, Sequence[tuple[float, float]]]) -> bool:
    """Return whether an incident is of the job, or of a GPU while the job used it, or soon after: a lost GPU has no
    owner."""
    if any(job in names or job.rpartition("/")[2] in names for job in incident.jobs):
        return True
    if incident.jobs:
        return False
    end = incident.end or incident.seen
    periods = (period for gpu in (*incident.culprits, *incident.hit) for period in used.get(gpu.get("UUID", ""), ()))
    return any(incident.start <= last + PERIOD_SECONDS and end >= first for first, last in periods)


def joined(found: Iterable[KeptIncident]) -> list[KeptIncident]:
    """Return the incidents of several nodes, each cause once, in order of time.

    The same cause at the same time, in the same job or on the same node, is one incident. One that another one explains
    at the same time belongs to that.
    """
    same = _merged(sorted(found, key=lambda each: each.start))
    causes: list[KeptIncident] = []
    effects: list[tuple[KeptIncident, KeptIncident]] = []
    for each in same:
        cause = next((other for other in same if other is not each and _explains(other, each)), None)
        if cause is None:
            causes.append(each)
        else:
            effects.append((each, cause))
    by_id = {id(each): replace(each, hit=[*each.hit], explains=[*each.explains]) for each in causes}
    for each, cause in effects:
        while id(cause) not in by_id:  # an effect of an effect
            cause = next(of for effect, of in effects if effect is cause)
        whole = by_id[id(cause)]
        whole.hit += [gpu for gpu in _gpus(each) if gpu not in (*whole.hit, *whole.culprits)]
        whole.explains += [name for name in (each.cause, *each.explains) if name not in whole.explains]
        whole.lost_gpu_hours += each.lost_gpu_hours
    return list(by_id.values())


def _merged(ordered: Sequence[KeptIncident]) -> list[KeptIncident]:
    """Return incidents in which those of the same cause, place and time are one."""
    found: list[list[KeptIncident]] = []
    for each in ordered:
        for group in found:
            first, last = group[0], max(other.end or other.seen for other in group)
            if first.cause == each.cause and each.start <= last + HOLD_SECONDS and _shares_place(first, each):
                group.append(each)
                break
        else:
            found.append([each])
    return [_one(group) if len(group) > 1 else group[0] for group in found]


def _one(group: Sequence[KeptIncident]) -> KeptIncident:
    """Return one incident for those of several nodes. If the others wait, those that do not wait are the culprits."""
    mode = MODE.get(group[0].cause)
    singled_out = [each for each in group if each.hit]
    leading = singled_out if mode and mode.cause is Cause.PEERS and singled_out else group
    culprits = _distinct(gpu for each in leading for gpu in each.culprits)
    return replace(
        leading[0],
        severity=min((each.severity for each in group), key=_SEVERITIES.index),
        start=min(each.start for each in group),
        seen=max(each.seen for each in group),
        end=None if any(each.end is None for each in group) else max(each.end or 0.0 for each in group),
        culprits=culprits,
        hit=[gpu for gpu in _distinct(gpu for each in group for gpu in _gpus(each)) if gpu not in culprits],
        jobs=list(dict.fromkeys(job for each in group for job in each.jobs)),
        explains=list(dict.fromkeys(name for each in group for name in each.explains)),
        lost_gpu_hours=sum(each.lost_gpu_hours for each in group),
    )


def _gpus(incident: KeptIncident) -> list[dict[str, str]]:
    return [*incident.culprits, *incident.hit]


def _distinct(gpus: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    return list({(gpu.get("UUID"), gpu.get("GPU_I_ID"), gpu.get("node")): gpu for gpu in gpus}.values())


def _nodes(incident: KeptIncident) -> set[str]:
    return {gpu.get("node", "") for gpu in incident.culprits} - {""}


def _shares_place(one: KeptIncident, other: KeptIncident) -> bool:
    return bool({*one.jobs} & {*other.jobs} or _nodes(one) & _nodes(other))


def _explains(cause: KeptIncident, effect: KeptIncident) -> bool:
    """Return whether an incident explains another one that happens while it lasts, or begins with it."""
    places = EFFECTS.get(cause.cause, {}).get(effect.cause, ())
    if Place.JOB in places and {*cause.jobs} & {*effect.jobs}:
        pass
    elif not (Place.NODE in places and _nodes(cause) & _nodes(effect)):
        return False
    end, of_effect = (each.end or each.seen for each in (cause, effect))
    together = min(end, of_effect) - max(cause.start, effect.start)
    return together >= (of_effect - effect.start) / 2


def _place(rank: RankTotals) -> tuple[object, ...]:
    number = int(rank.rank) if rank.rank.isdecimal() else 1 << 30
    return number, rank.node, int(rank.gpu) if rank.gpu.isdecimal() else 0, rank.uuid, rank.instance


def _join_silent(ranks: dict[tuple[str, ...], RankTotals]) -> None:
    """Add the time in which a rank sent nothing, as that on a lost GPU, to the only rank of its GPU."""
    for (*place, rank), total in list(ranks.items()):
        of_gpu = [key for key in ranks if list(key[:-1]) == place and key[-1]]
        if rank or len(of_gpu) != 1:
            continue
        whole = ranks[of_gpu[0]]
        whole.start, whole.end = min(whole.start, total.start), max(whole.end, total.end)
        whole.seconds += total.seconds
        for cause, seconds in total.time.items():
            whole.time[cause] += seconds
        del ranks[(*place, rank)]


def _compare(ranks: Sequence[RankTotals]) -> None:
    """Note which ranks are stragglers in the whole period, as the live diagnosis judges the last seconds."""
    means = {place: known for place, rank in enumerate(ranks) if (known := rank.means)}
    for place, self_time in self_times(means).items():
        if is_straggler(self_time):
            ranks[place].excess = self_time.excess * self_time.step


def is_straggler(self_time: SelfTime) -> bool:
    """Return whether a rank that compares so with the others of its job is a straggler."""
    condition = MODE[STRAGGLER].on_node
    assert condition
    rank = DeviceKey("", "", "")
    signals: Signals = {signal: {rank: [(0.0, value)]} for signal, value in self_time.signals().items()}
    return holds(condition, Window(0.0, {rank: DeviceIdentity()}, signals), rank) is True


def _note_straggling(ranks: Sequence[RankTotals], incidents: Iterable[KeptIncident]) -> None:
    """Note for how long incidents call a rank a straggler."""
    for each in incidents:
        if each.cause in STRAGGLING_GPU and each.severity != "info":
            culprits = {(gpu.get("UUID", ""), gpu.get("GPU_I_ID", "")) for gpu in each.culprits}
            for rank in ranks:
                end = min(each.end or each.seen, rank.end)
                if (rank.uuid, rank.instance) in culprits and end > max(each.start, rank.start):
                    rank.straggled += end - max(each.start, rank.start)


def _remarks(nodes: Sequence[NodeHistory], ranks: Sequence[RankTotals]) -> Iterable[str]:
    versions = sorted({node.version for node in nodes})
    if len(versions) > 1:
        of = ", ".join(f"{version}: {_names(n.node for n in nodes if n.version == version)}" for version in versions)
        yield f"the exporters have different versions, which may judge differently ({of})"
    for node in nodes:
        if abs(node.ahead) > CLOCK_SECONDS:
            side = "ahead of" if node.ahead > 0 else "behind"
            yield f"the clock of {node.node} is {abs(node.ahead):.0f} s {side} this machine's: its times are as it says"
        if not node.kept:
            yield f"{node.node} keeps no history of jobs, and incidents only since its start: give it --state-dir"
    silent = [int(rank.rank) for rank in ranks if rank.rank.isdecimal() and rank.steps and rank.own is None]
    if silent and len(ranks) > 1:
        whose = f"{'rank' if len(silent) == 1 else 'ranks'} {ranges(sorted(set(silent)))}"
        yield f"{whose} did not tell the time of their own work (StepTimer.watch does), so they are not compared"
    numbers = {int(rank.rank) for rank in ranks if rank.rank.isdecimal()}
    absent = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if absent:
        yield f"nothing is known of {'rank' if len(absent) == 1 else 'ranks'} {ranges(absent)}"


def _names(nodes: Iterable[str]) -> str:
    return first_of(list(nodes), 4)
