"""The processes on a GPU, with the memory and SM share of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric, Pace, PerProcess, scaled
from gpu_exporter.sources.nvml.errors import UNSUPPORTED, outcome, raise_if_lost

KINDS = ("Compute", "Graphics", "MPSCompute")

# PIDs that some drivers list, of no process: the idle task, and -1.
NO_PROCESSES = frozenset({0, 2**32 - 1})

# The longest name of a process that is kept, in characters; that of a thread in Linux has 15.
LONGEST_NAME = 64

# A value by PID; None where the driver has none.
ByPid = dict[int, float | None]


class Processes:
    """The processes on one GPU. A PID that cannot be resolved has no series, and is counted as unresolved."""

    def __init__(self, gpu: Gpu, metrics: Sequence[Metric], proc: Path) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._gpu = gpu
        self._proc = proc
        self._rows = {row.nvml.what: row for row in metrics if isinstance(row.nvml, PerProcess)}
        self._counts = {what: Series(row, gpu) for what, row in self._rows.items() if what in ("listed", "unresolved")}
        self._series: dict[tuple[str, Labels], Series] = {}
        self._seen_until: dict[Labels, int] = {}
        self._listed_once = False
        self._open_module: bool | None = None

    def read(
        self,
        handles: Sequence[tuple[Sequence[Any], Labels]],
        paces: frozenset[Pace],
        values: dict[Series, float],
        failed: dict[Series, str],
    ) -> set[Series]:
        """Fill in what is due; return the series of processes that have ended. Raises GpuLost, SourceLost."""
        if not self._rows or Pace.FAST not in paces:
            return set()
        memory_of: dict[Labels, ByPid] = {}
        reason = ""
        for group, labels in handles:
            try:
                memory_of[labels] = _memory_by_pid(group)
            except pynvml.NVMLError as error:  # a MIG instance may be gone since the instances were listed
                raise_if_lost(error.value, f"GPU {self._gpu.index}, processes")
                reason = outcome(error.value)
        if reason and not memory_of:
            self._not_listed(reason, failed)
            return self._end(set())
        self._listed_once = True
        resolvable = self._resolvable()
        present: set[tuple[str, Labels]] = set()
        unresolved = 0
        for group, labels in handles:
            busy = self._busy(group, labels) if Pace.SLOW in paces else None
            for pid, memory in memory_of.get(labels, {}).items():
                name = self._name(pid) if resolvable else ""
                unresolved += not name
                if name:
                    process = (("pid", str(pid)), ("process", name), *labels)
                    present |= self._fill("memory", process, memory, values)
                    present |= {("sm", process)} if busy is None else self._fill("sm", process, busy.get(pid), values)
        counts = {"listed": sum(map(len, memory_of.values())), "unresolved": unresolved}
        values.update((series, counts[what]) for what, series in self._counts.items())
        return self._end(present)

    def _fill(
        self, what: str, labels: Labels, value: float | None, values: dict[Series, float]
    ) -> set[tuple[str, Labels]]:
        row = self._rows.get(what)
        if row is None or value is None:
            return set()
        values[self._series.setdefault((what, labels), Series(row, self._gpu, labels))] = scaled(value, row.scale)
        return {(what, labels)}

    def _end(self, present: set[tuple[str, Labels]]) -> set[Series]:
        return {self._series.pop(key) for key in self._series.keys() - present}

    def _not_listed(self, reason: str, failed: dict[Series, str]) -> None:
        if reason in ("not_supported", "no_permission") and not self._listed_once:
            self.unsupported.update((row, reason) for row in self._rows.values())
            self._rows.clear()
        else:
            failed.update((series, reason) for series in self._counts.values())

    def _busy(self, group: Sequence[Any], labels: Labels) -> ByPid:
        """Return percent of SM time by PID since the last call, without processes that were not sampled."""
        busy: ByPid = {}
        since = until = self._seen_until.get(labels, 0)
        for handle in group:
            try:
                samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since)
            except pynvml.NVMLError as error:
                raise_if_lost(error.value, f"GPU {self._gpu.index}, process utilisation")
                # an idle GPU has no samples, which is "not found"; after any other error, activity is unknown
                if error.value != pynvml.NVML_ERROR_NOT_FOUND and "sm" in self._rows:
                    self.unsupported[self._rows["sm"]] = outcome(error.value)
                continue
            until = max((until, *(sample.timeStamp for sample in samples)))
            busy.update((sample.pid, float(sample.smUtil)) for sample in samples)
            if "sm" in self._rows:
                self.unsupported.pop(self._rows["sm"], None)
        self._seen_until[labels] = until
        return busy

    def _resolvable(self) -> bool:
        """Return whether the driver's PIDs are those of this procfs.

        NVIDIA's open kernel module translates PIDs to the caller's PID namespace. The proprietary one always reports
        the host's PIDs, which may belong to other processes here. Only the host's procfs has kernel threads.
        """
        if self._open_module is None:
            self._open_module = "Open Kernel Module" in self._text("driver/nvidia/version")
        if self._open_module:
            with suppress(OSError):
                return os.readlink(f"{self._proc}/self") == str(os.getpid())
        return self._text("2/comm") == "kthreadd"

    def _name(self, pid: int) -> str:
        return printable(self._text(f"{pid}/comm"), LONGEST_NAME)  # a program chooses its name

    def _text(self, path: str) -> str:
        try:
            with open(f"{self._proc}/{path}", encoding="utf-8", errors="replace") as file:  # Path takes longer
                return file.read().strip()
        except OSError:
            return ""


def _memory_by_pid(group: Sequence[Any]) -> ByPid:
    """Return bytes of device memory by PID, on all of these devices; None where the driver does not report them."""
    memory: ByPid = {}
    for handle in group:
        for kind in KINDS:
            try:
                processes = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
            except pynvml.NVMLError as error:
                if kind == KINDS[0] or error.value not in UNSUPPORTED:
                    raise
                continue
            for process in processes:
                if process.pid in NO_PROCESSES:
                    continue
                before, used = memory.get(process.pid), process.usedGpuMemory
                memory[process.pid] = before if used is None else max(before or 0, used)
    return memory
