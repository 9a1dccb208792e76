"""The thread that reads the host evidence of all GPUs, every 5 s, and every second while a GPU waits for its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import limits, procfs
from gpu_exporter.host.files import MACHINE_BYTES, HostFiles
from gpu_exporter.host.gpu import GpuHost, Machine, topology
from gpu_exporter.host.threads import RowThread
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import GpuSamples, Row

PERIOD_SECONDS, WAITING_SECONDS = 5.0, 1.0
# A GPU whose engine is less busy than this possibly waits for its host.
BUSY_ENGINE = 0.85
# The driver names processes some time before they are read.
SLACK_SECONDS = 0.05
MOST_COMMAND = 120

# What a process belongs to, by the paths of its cgroups: labels such as its pod.
OwnerOf = Callable[[bytes], Labels]


@dataclass(frozen=True, slots=True)
class WatchedGpu:
    """A GPU with its processes, each with the latest time at which it may have started (seconds since the boot)."""

    gpu: Gpu
    pids: Mapping[int, float]
    waits: bool


class HostWatch(RowThread):
    """Keeps the host evidence up to date.

    With `names`, there is also a row that identifies the process that launches the work of each GPU; `commands` adds
    its command line, which may contain secrets.
    """

    def __init__(
        self,
        files: HostFiles,
        *,
        names: bool = False,
        commands: bool = False,
        owner_of: OwnerOf = lambda cgroups: (),
        period: float = PERIOD_SECONDS,
    ) -> None:
        super().__init__("host", "host evidence", period)
        self._files, self._names, self._commands, self._owner_of = files, names, commands, owner_of
        self._targets: Sequence[WatchedGpu] = ()
        self._hosts: dict[str, GpuHost] = {}

    def rows(self, gpus: Iterable[GpuSamples]) -> Sequence[Row]:
        """Return the evidence of the last read, and note the processes for the next one. Never blocks, never raises."""
        seen = tuple(gpus)
        self._targets = tuple(map(_target, seen))
        if any(target.waits for target in self._targets):
            self._wake.set()
        return super().rows(seen)

    def _wait(self, begun: float) -> None:
        """Wait for a second, then until the period ends or a GPU waits."""
        if self._stopping.wait(max(0.0, begun + WAITING_SECONDS - time.monotonic())):
            return
        self._wake.clear()
        if not any(target.waits for target in self._targets):
            self._wake.wait(max(0.0, begun + self._period - time.monotonic()))

    def read(self, now: float) -> Sequence[Row]:
        """Return the evidence, after reading the GPUs that wait and those that are due at this time."""
        targets = self._targets
        on_gpus = {pid for target in targets for pid in target.pids}
        machine = self._machine() if on_gpus else Machine({}, {}, has_swap=False)
        hosts = {}
        for target in targets:
            uuid = target.gpu.uuid
            host = self._hosts.get(uuid) or GpuHost(topology(target.gpu.pci_bus_id, self._files.sys))
            if target.waits or host.is_due(now, self._period):
                host.read(self._files, target.pids, on_gpus, machine, time.monotonic())
            hosts[uuid] = host
        self._hosts = hosts
        return [row for target in targets for row in self._rows_of(target.gpu, hosts[target.gpu.uuid])]

    def _machine(self) -> Machine:
        files = self._files
        try:
            busy = procfs.busy_seconds(files.proc("stat", MACHINE_BYTES))
            has_swap = files.proc("swaps").count(b"\n") > 1
        except OSError:
            busy, has_swap = {}, False
        return Machine(busy, dict(limits.pressures(files, "")), has_swap)

    def _rows_of(self, gpu: Gpu, host: GpuHost) -> Iterator[Row]:
        for metric, value in host.values().items():
            yield Row(metric, gpu, value, ())
        for metric, reason in host.missing.items():
            yield Row(m.SUPPORTED, gpu, 0, (("metric", metric.key), ("reason", reason)))
        if self._names and host.leader:
            yield Row(m.HOST_PROCESS, gpu, 1, self._identity(host))

    def _identity(self, host: GpuHost) -> Labels:
        leader = host.leader
        if leader is None:
            return ()
        labels = {"pid": str(leader.pid), "process": _text(leader.stat.name, 64)}
        if host.limits.uid is not None:
            labels["uid"] = str(host.limits.uid)
        try:
            labels.update(self._owner_of(self._files.proc(f"{leader.pid}/cgroup")))
            if self._commands:
                command = self._files.proc(f"{leader.pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ")
                labels["command"] = _text(command, MOST_COMMAND)
        except OSError:
            pass
        return tuple((name, value) for name, value in labels.items() if value)


def _text(content: bytes, most: int) -> str:
    return printable(content.decode("utf-8", "replace"), most)


def _target(seen: GpuSamples) -> WatchedGpu:
    """Return what to read for a GPU: the processes that the driver names, and whether the GPU waits."""
    pids: dict[int, float] = {}
    waits = False
    named_at = procfs.since_boot(seen.read_at) + SLACK_SECONDS if seen.read_at is not None else 0.0
    for series, value in seen.samples if seen.read_at is not None else ():
        if series.metric is m.PROCESS_MEMORY or series.metric is m.PROCESS_SM:
            pids[int(dict(series.labels)["pid"])] = named_at
        elif series.metric is m.GR_ENGINE_ACTIVE:
            waits = waits or value < BUSY_ENGINE
    return WatchedGpu(seen.gpu, pids, waits and bool(pids))
