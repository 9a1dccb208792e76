"""Who holds each GPU, and which processes run on it, by the samples of one scrape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import DeviceKey, ScrapedSample, plausible
from gpu_exporter.diagnosis.signal_reader import ByName
from gpu_exporter.diagnosis.window import DeviceIdentity
from gpu_exporter.io.decoding import printable
from gpu_exporter.top.state import ProcessRow

LONGEST_COMMAND, LONGEST_OWNER = 400, 120


class Held(NamedTuple):
    """The owner of a GPU in words, and its processes, the one with most memory first."""

    owner: str
    processes: tuple[ProcessRow, ...]


class Holders:
    """The owners and processes of all GPUs."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, str], dict[str, ProcessRow]] = defaultdict(dict)
        self.owners: dict[tuple[str, str], Mapping[str, str]] = {}
        self.leaders: dict[str, Mapping[str, str]] = {}

    def of(self, device: DeviceKey, identity: DeviceIdentity) -> Held:
        """Return who holds a GPU or an instance."""
        rows = self.processes.get((device.uuid, device.instance), {})
        processes = sorted(rows.values(), key=lambda row: (-(row.memory or 0), row.pid))
        leader = self.leaders.get(device.uuid, {}) if not device.instance else {}
        if leader.get("pid") and leader["pid"] not in rows:
            processes.insert(0, ProcessRow(leader["pid"], command=_command(leader)))
        named = self.owners.get((device.uuid, device.instance), {})
        owner = _pod(identity) or _named(named) or _named(leader)
        if not owner and processes:
            program = processes[0].command.partition(" ")[0].rpartition("/")[2]
            owner = f"pid {processes[0].pid} {program}".strip()
        return Held(printable(owner, LONGEST_OWNER), tuple(processes))


def holders(samples: ByName, command_of: Callable[[str], str]) -> Holders:
    """Return the owners and processes that samples name; `command_of` returns the command of a PID, if it is known."""
    held = Holders()
    for sample in samples.get(m.HOST_PROCESS.name, ()):
        held.leaders[sample.labels.get("UUID", "")] = sample.labels
    for name in (m.CONTAINER_INFO.name, m.JOB_INFO.name):
        for sample in samples.get(name, ()):
            held.owners[sample.labels.get("UUID", ""), sample.labels.get("GPU_I_ID", "")] = sample.labels
    for name in (m.PROCESS_MEMORY.name, m.PROCESS_SM.name):
        for sample in samples.get(name, ()):
            _add(held, sample, command_of)
    return held


def _add(held: Holders, sample: ScrapedSample, command_of: Callable[[str], str]) -> None:
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


def _pod(identity: DeviceIdentity) -> str:
    pod = identity.pod or identity.workload
    return f"{identity.namespace}/{pod}" if identity.namespace and pod else pod


def _named(labels: Mapping[str, str]) -> str:
    """Return the job, container or user of a GPU or a process."""
    for label, words in (("hpc_job", "job "), ("job_id", "job "), ("container", ""), ("container_id", "container ")):
        if labels.get(label):
            return words + (labels[label][:12] if label == "container_id" else labels[label])
    program = (labels.get("command") or labels.get("process", "")).partition(" ")[0].rpartition("/")[2]
    return f"{program} (uid {labels['uid']})" if labels.get("uid") else ""
