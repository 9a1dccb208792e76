"""Scrapes as they come -> the view: current values, their history, who holds each GPU, and a diagnosis."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.incident_words import Code, as_dicts, explanations, hit_by, with_code
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.measurements import MEASUREMENTS
from gpu_exporter.diagnosis.presence import explain, is_unidentified
from gpu_exporter.diagnosis.report import is_reported
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import ByName, DeviceKey, Scrape, ScrapedSample, plausible, samples_by_name
from gpu_exporter.diagnosis.window import UNIDENTIFIED, DeviceIdentity, Window
from gpu_exporter.diagnosis.words import LONGEST_NAME
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.source_kind import BANNERS
from gpu_exporter.top.state import UNKNOWN, GpuRow, ProcessRow, View

LONGEST_COMMAND, LONGEST_OWNER = 400, 120


class HeldGpu(NamedTuple):
    """The owner of a GPU in words, and its processes, the one with most memory first."""

    owner: str
    processes: tuple[ProcessRow, ...]


class ShownHolders:
    """The owners and processes of all GPUs."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, str], dict[str, ProcessRow]] = defaultdict(dict)
        self.owners: dict[tuple[str, str], Mapping[str, str]] = {}
        self.leaders: dict[str, Mapping[str, str]] = {}

    def holder(self, device: DeviceKey, identity: DeviceIdentity) -> HeldGpu:
        """Return who holds a GPU or an instance."""
        rows = self.processes.get((device.uuid, device.instance), {})
        processes = sorted(rows.values(), key=lambda row: (-(row.memory or 0), row.pid))
        leader = self.leaders.get(device.uuid, {}) if not device.instance else {}
        if leader.get("pid") and leader["pid"] not in rows:
            processes.insert(0, ProcessRow(leader["pid"], command=_command(leader)))
        named = self.owners.get((device.uuid, device.instance), {})
        owner = identity.owner or _named(named) or _named(leader)
        if not owner and processes:
            program = processes[0].command.partition(" ")[0].rpartition("/")[2]
            owner = f"pid {processes[0].pid} {program}".strip()
        return HeldGpu(printable(owner, LONGEST_OWNER), tuple(processes))


def holders(samples: ByName, command_of: Callable[[str], str]) -> ShownHolders:
    """Return the owners and processes that samples name; `command_of` returns the command of a PID, if it is known."""
    held = ShownHolders()
    for sample in samples.get(m.HOST_PROCESS.name, ()):
        held.leaders[sample.labels.get("UUID", "")] = sample.labels
    for name in (m.CONTAINER_INFO.name, m.JOB_INFO.name):
        for sample in samples.get(name, ()):
            held.owners[sample.labels.get("UUID", ""), sample.labels.get("GPU_I_ID", "")] = sample.labels
    for name in (m.PROCESS_MEMORY.name, m.PROCESS_SM.name):
        for sample in samples.get(name, ()):
            _add(held, sample, command_of)
    return held


def _add(held: ShownHolders, sample: ScrapedSample, command_of: Callable[[str], str]) -> None:
    if not plausible(sample.value):
        return
    labels = sample.labels
    pid, device = printable(labels.get("pid", ""), 20), (labels.get("UUID", ""), labels.get("GPU_I_ID", ""))
    rows = held.processes[device]
    leader = held.leaders.get(device[0], {})
    command = _command(leader) if leader.get("pid") == pid else ""
    row = rows.get(pid) or ProcessRow(pid, command=command or command_of(pid) or _command(labels))
    if sample.name == m.PROCESS_MEMORY.name:
        rows[pid] = ProcessRow(pid, sample.value, row.sm, row.command)
    else:
        rows[pid] = ProcessRow(pid, row.memory, sample.value, row.command)


def _command(labels: Mapping[str, str]) -> str:
    name = labels.get("command") or labels.get("process") or labels.get("process_name") or labels.get("name", "")
    return printable(name, LONGEST_COMMAND)


def _named(labels: Mapping[str, str]) -> str:
    """Return the job, container or user of a GPU or a process."""
    for label, words in (("hpc_job", "job "), ("job_id", "job "), ("container", ""), ("container_id", "container ")):
        if labels.get(label):
            return words + (labels[label][:12] if label == "container_id" else labels[label])
    program = (labels.get("command") or labels.get("process", "")).partition(" ")[0].rpartition("/")[2]
    return f"{program} (uid {labels['uid']})" if labels.get("uid") else ""


# Judging takes at most this share of a core, and happens at least, and at most, so often (seconds).
JUDGE_SHARE, SOONEST, LATEST = 0.004, 2.0, 15.0
# So many values are kept for the sparklines.
HISTORY = 240
# A GPU that has not been seen for so long is no longer shown.
FORGET_SECONDS = 600.0
# A GPU counts as gone once it has not been seen for longer than this.
GONE_SECONDS = 5.0
# The first scrapes have no profiling values yet; without any, judging begins after this many.
PATIENCE = 4


class Tracker:
    """Keeps the view up to date. Use it from one thread. `command_of` returns the command line of a PID, if known."""

    def __init__(self, seconds: float, *, job: str = "", banner: str = "") -> None:
        self._rolling, self._banner = RollingWindow(seconds, job=job), banner
        self.command_of: Callable[[str], str] = lambda pid: ""
        # Returns what the processes on GPUs (index and UUID) do, as far as the user may see profiles.
        self.code_of: Callable[[Iterable[tuple[str, str]]], Code] = lambda gpus: {}
        self._taken, self._judged_at, self._pause, self._since = 0, 0.0, SOONEST, 0.0
        self._diagnoses: dict[DeviceKey, Diagnosis] = {}
        self._incidents: Sequence[Mapping[str, Any]] = ()
        self._found: dict[tuple[DeviceKey, str], float] = {}
        self._explained: Mapping[DeviceKey, Mapping[str, str]] = {}
        self._hit_by: Mapping[DeviceKey, str] = {}
        self._hidden: set[DeviceKey] = set()
        self._classes: dict[DeviceKey, tuple[str, float]] = {}
        self._rows: dict[DeviceKey, GpuRow] = {}
        self._history: dict[DeviceKey, dict[str, deque[float | None]]] = defaultdict(
            lambda: {measurement.name: deque(maxlen=HISTORY) for measurement in MEASUREMENTS}
        )

    def take(self, scrape: Scrape) -> View:
        """Add a scrape, and return the view of now."""
        by_name = samples_by_name(scrape.samples)
        if not all(sample.labels.get("UUID") for sample in by_name.get(m.UP.name, ())):
            by_name = samples_by_name(map(_with_uuid, scrape.samples))
        self._rolling.add(scrape.at, by_name)
        self._taken += 1
        ready = self._taken > PATIENCE or m.GR_ENGINE_ACTIVE.name in by_name
        window = self._rolling.recent()
        if ready:
            self._judge(window)
        facts = _facts(by_name, self.command_of)
        for device, identity in window.devices.items():
            if self._rolling.seen_at(device) == scrape.at:
                self._rows[device] = self._row(device, identity, window, facts)
        return View(
            scrape.at,
            banner=self._banner or facts.banner,
            missing=facts.missing,
            interval=facts.interval,
            since=self._since,
            gpus=tuple(self._shown(window)),
            incidents=self._incidents,
        )

    def _judge(self, window: Window) -> None:
        """Judge the GPUs, unless that was done a short while ago."""
        begun = time.monotonic()
        if begun - self._judged_at < self._pause:
            return
        cpu = time.thread_time()
        found = diagnose(window)
        self._diagnoses = {diagnosis.device: diagnosis for diagnosis in found if is_reported(diagnosis)}
        self._hidden = {diagnosis.device for diagnosis in found} - self._diagnoses.keys()
        for device, diagnosis in self._diagnoses.items():
            name = diagnosis.class_name
            if device not in self._classes or self._classes[device][0] != name:
                self._classes[device] = name, window.now
        names = [(device, match.mode.name) for device, each in self._diagnoses.items() for match in each.matches]
        self._found = {name: self._found.get(name, window.now) for name in names}
        gpus = ((each.identity.gpu, each.device.uuid) for each in self._diagnoses.values())
        incidents = of_diagnoses(self._diagnoses.values(), self._found)
        self._incidents = with_code(as_dicts(incidents), self.code_of(gpus))
        explained: dict[DeviceKey, dict[str, str]] = defaultdict(dict)
        for (device, mode), words in explanations(incidents).items():
            explained[device][mode] = words
        self._explained, self._hit_by = explained, hit_by(incidents)
        self._judged_at, self._since = begun, self._since or window.now
        self._pause = min(max((time.thread_time() - cpu) / JUDGE_SHARE, SOONEST), LATEST)

    def _shown(self, window: Window) -> Iterable[GpuRow]:
        """Yield the rows in order of node and index; those of GPUs that are gone keep their place."""
        last = {key: self._rolling.seen_at(key) for key in self._rows}
        for key in [key for key, at in last.items() if window.now - at > FORGET_SECONDS]:
            self._forget(key)
        for key in [key for key, at in last.items() if key.uuid.startswith(UNIDENTIFIED) and at < window.now]:
            self._forget(key)
        rows = sorted(self._rows.values(), key=lambda row: (row.node, len(row.index), row.index, row.key))
        for row in rows:
            gone = window.now - last[row.key]
            if gone > GONE_SECONDS:
                yield GpuRow(row.key, row.index, row.model, row.node, gone=gone, history=row.history, owner=row.owner)
            elif row.key not in self._hidden:
                yield row

    def _forget(self, key: DeviceKey) -> None:
        for of_device in (self._rows, self._history, self._classes, self._diagnoses):
            of_device.pop(key, None)

    def _row(self, device: DeviceKey, identity: DeviceIdentity, window: Window, facts: _Facts) -> GpuRow:
        values, limits = {}, {}
        history = self._history[device]
        for measurement in MEASUREMENTS:
            value, limit = measurement.value(window, device), measurement.limit(window, device)
            history[measurement.name].append(value)
            if value is not None:
                values[measurement.name] = value
            if limit is not None:
                limits[measurement.name] = limit
        held = facts.holders.holder(device, identity)
        before = self._rows.get(device) if device.uuid in facts.down else None
        return GpuRow(
            device,
            printable(identity.gpu or device.uuid, 40),
            printable(identity.model, 60),
            printable(identity.node, LONGEST_NAME),
            down=explain(printable(facts.down[device.uuid], 60)) if device.uuid in facts.down else "",
            health=facts.health.get(device.uuid, UNKNOWN),
            reasons=tuple(facts.reasons.get(device.uuid, ())),
            values=values,
            limits=limits,
            history={name: tuple(points) for name, points in history.items()},
            owner=held.owner or (before.owner if before else ""),  # nothing says who holds a GPU that is lost
            processes=held.processes,
            diagnosis=self._diagnoses.get(device),
            explained=self._explained.get(device, {}),
            hit_by=self._hit_by.get(device, ""),
            class_since=self._classes.get(device, ("", None))[1],
        )


class _Facts:
    """What the samples of one scrape say about each GPU beside its values, by UUID."""

    def __init__(self) -> None:
        self.down: dict[str, str] = {}
        self.health: dict[str, str] = {}
        self.reasons: dict[str, list[str]] = defaultdict(list)
        self.holders = ShownHolders()
        self.banner, self.missing, self.interval = "", 0, 1.0


def _facts(samples: ByName, command_of: Callable[[str], str]) -> _Facts:
    facts = _Facts()
    for sample in samples.get(m.UP.name, ()):
        facts.banner = BANNERS.get(sample.labels.get("source", ""), facts.banner)
    for sample in samples.get(m.DOWN.name, ()):
        if sample.value == 1:
            facts.down[sample.labels.get("UUID", "")] = sample.labels.get("reason", "")
    for sample in samples.get(m.HEALTH_STATE[0].name, ()):
        if sample.value == 1:
            facts.health[sample.labels.get("UUID", "")] = printable(sample.labels.get("state", ""), 20)
    for sample in samples.get(m.HEALTH_REASON.name, ()):
        if sample.value == 1:
            facts.reasons[sample.labels.get("UUID", "")].append(_reason(sample.labels))
    facts.holders = holders(samples, command_of)
    for sample in samples.get(m.INTERVAL.name, ()):
        if plausible(sample.value):
            facts.interval = max(1.0, sample.value)
    down = [sample.labels for sample in samples.get(m.SOURCE_DOWN.name, ()) if sample.value == 1]
    for sample in samples.get(m.EXPECTED.name, ()):
        if plausible(sample.value) and not any(map(faults.lists_nothing, down)):
            facts.missing = max(0, faults.missing(int(sample.value), len(samples.get(m.UP.name, ()))))
    return facts


def _reason(labels: Mapping[str, str]) -> str:
    """Return a reason of the verdict with the action that repairs it."""
    reason, action = (printable(labels.get(name, ""), 60).replace("_", " ") for name in ("reason", "action"))
    return f"{reason} -> {action}" if action and action != "none" else reason


def _with_uuid(sample: ScrapedSample) -> ScrapedSample:
    """Return a sample of a GPU that was never identified with a name in place of the UUID."""
    labels = sample.labels
    if not is_unidentified(labels):
        return sample
    return sample._replace(labels={**labels, "UUID": f"{UNIDENTIFIED}{labels['gpu']}"})
