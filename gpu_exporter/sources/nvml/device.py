"""One GPU through NVML -> readings: the GPU itself, its MIG instances, its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from gpu_exporter.catalogue.metrics import MIG_DEVICE, NON_GPU_ENTITIES
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series, XidEvent
from gpu_exporter.model.metric import Buffered, EntityKind, Gpm, Labels, Metric, Pace, PerProcess
from gpu_exporter.sources.nvml.buffers import Buffers
from gpu_exporter.sources.nvml.errors import UNSUPPORTED, outcome, raise_if_lost
from gpu_exporter.sources.nvml.handle import Questions
from gpu_exporter.sources.nvml.mig import Instance, instances, mig_mode
from gpu_exporter.sources.nvml.peers import Peers
from gpu_exporter.sources.nvml.processes import Processes
from gpu_exporter.sources.nvml.xids import XidWatch

# How often the partitions of a GPU in MIG mode are listed; also at once when one of them stops answering.
PARTITION_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Part:
    """A MIG instance: its MIG devices, what the first of them is asked, and a series for each."""

    handles: tuple[Any, ...]
    questions: Questions
    info: tuple[Series, ...]


class NvmlDevice:
    """One GPU. In MIG mode, what belongs to its instances is asked of them, and of the GPU only the rest."""

    _board: Questions

    def __init__(
        self,
        handle: Any,
        gpu: Gpu,
        metrics: Sequence[Metric],
        turn: AbstractContextManager[None],
        queue: AbstractContextManager[None],
        proc: Path,
    ) -> None:
        self.gpu = gpu
        self._turn, self._queue = turn, queue
        self._handle = handle
        self._metrics = [row for row in metrics if row.nvml and not isinstance(row.nvml, PerProcess | Buffered)]
        unread = (metric for metric in metrics if metric.nvml is None and metric.entity not in NON_GPU_ENTITIES)
        self._foreign = dict.fromkeys(unread, "needs_dcgm")
        self._processes = Processes(gpu, metrics, proc)
        self._peers = Peers(handle, gpu, metrics)
        self._buffers = Buffers(handle, gpu, metrics, turn)
        self._links = range(self._link_count())
        wants_gpm = any(isinstance(metric.nvml, Gpm) for metric in metrics)
        self._without_gpm = self._gpm_support() if wants_gpm else None
        self._mig: bool | None = None
        self._instances: dict[Instance, _Part] = {}
        self._partitioned_at = -float("inf")
        self._repartition()
        self._watch = XidWatch(handle, gpu.pci_bus_id, turn)

    @property
    def xids_since(self) -> float | None:
        """When the driver was asked to tell of Xids; None if it does not."""
        return self._watch.since

    def events(self) -> Sequence[XidEvent]:
        """Xids that the driver told since the last call."""
        return self._watch.events()

    def _link_count(self) -> int:
        try:
            with self._turn:
                count = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0]
        except pynvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise  # whoever attaches tries again
            return 0
        return int(count.value.uiVal) if count.nvmlReturn == pynvml.NVML_SUCCESS else 0

    def _gpm_support(self) -> str | None:
        """Why this GPU has no GPM; None if it has."""
        try:
            with self._turn:
                supported = pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
        except pynvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise
            return outcome(error.value)
        return None if supported else "not_supported"

    def _repartition(self) -> set[Series]:
        """Look at MIG mode and instances again; return the series of those that are no more. Raises NVMLError."""
        mig = mig_mode(self._handle)
        present = instances(self._handle) if mig else {}
        ended: set[Series] = set()
        for instance in self._instances.keys() - present.keys():
            part = self._instances.pop(instance)
            part.questions.close()
            ended |= {*part.questions.answered, *part.info}
        if mig != self._mig:
            ended |= self._ask_board(mig)
        for instance, handles in present.items():
            part = self._instances.get(instance) or self._ask_instance(instance, handles)
            part.questions.handle = handles[0]  # it may have moved
            self._instances[instance] = replace(part, handles=handles)
        self._partitioned_at = time.monotonic()
        return ended

    def _ask_board(self, mig: bool) -> set[Series]:
        ended: set[Series] = set()
        if self._mig is not None:
            self._board.close()
            ended = self._board.answered
        self._mig = mig
        self._board = self._ask(
            self._handle,
            (m for m in self._metrics if m.entity is not EntityKind.INSTANCE and not (mig and m.per_instance)),
            partial(pynvml.nvmlGpmSampleGet, self._handle),
            links=self._links,
        )
        return ended

    def _ask_instance(self, instance: Instance, handles: tuple[Any, ...]) -> _Part:
        questions = self._ask(
            handles[0],
            (metric for metric in self._metrics if metric.entity is EntityKind.INSTANCE or metric.per_instance),
            partial(pynvml.nvmlGpmMigSampleGet, self._handle, instance.id),
            labels=instance.labels,
        )
        info = tuple(
            Series(MIG_DEVICE, self.gpu, (*instance.labels, ("compute_instance_id", str(number)), ("mig_uuid", uuid)))
            for number, uuid in instance.devices
        )
        return _Part(handles, questions, info)

    def _ask(
        self,
        handle: Any,
        metrics: Iterable[Metric],
        take_sample: Callable[[Any], Any],
        *,
        links: range = range(0),
        labels: Labels = (),
    ) -> Questions:
        without = self._without_gpm
        return Questions(
            handle,
            self.gpu,
            metrics,
            self._turn,
            links=links,
            labels=labels,
            take_sample=take_sample if without is None else None,
            without_gpm=without or "",
        )

    def read(self, paces: frozenset[Pace]) -> Reading:
        with self._queue:
            return self._read(paces)

    def _read(self, paces: frozenset[Pace]) -> Reading:
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        ended = self._partitions_due(paces)
        spans = dict(self._board.read(_due(self._board, paces), values, failed))
        for part in self._instances.values():
            self._read_part(part, paces, values, failed, spans)
        ended |= self._peers.read(paces, values, failed)
        buffered = self._buffers.read(paces, failed)
        parts = [(part.handles, part.questions.labels) for part in self._instances.values()]
        ended |= self._processes.read(parts if self._mig else [((self._handle,), ())], paces, values, failed)
        if failed and not values and Pace.FAST in paces:
            raise GpuLost(f"GPU {self.gpu.index}: no field answers", "unknown")
        return Reading(time.monotonic(), values, None, failed, self._unsupported(), spans, ended, buffered)

    def glance(self) -> Reading | None:
        """Alone what histograms are made of means of, between two ticks."""
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        spans: dict[Series, float] = {}
        with self._queue:
            for questions in (self._board, *(part.questions for part in self._instances.values())):
                spans.update(questions.glance(values, failed))
        return Reading(time.monotonic(), values, None, failed, self._unsupported(), spans) if values or failed else None

    def _partitions_due(self, paces: frozenset[Pace]) -> set[Series]:
        due = Pace.SLOW in paces or (self._mig and time.monotonic() - self._partitioned_at >= PARTITION_SECONDS)
        if not due:
            return set()
        try:
            return self._repartition()
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {self.gpu.index}, MIG")
            return set()  # an instance went away meanwhile: asked again at the next tick

    def _read_part(
        self,
        part: _Part,
        paces: frozenset[Pace],
        values: dict[Series, float],
        failed: dict[Series, str],
        spans: dict[Series, float],
    ) -> None:
        """Fill in what an instance answers. One that was destroyed fails, and is looked for at the next tick."""
        own: dict[Series, float] = dict.fromkeys(part.info, 1.0)
        missing: dict[Series, str] = {}
        spans.update(part.questions.read(_due(part.questions, paces), own, missing))
        if missing:
            self._partitioned_at = -float("inf")
        values.update(own)
        failed.update(missing)

    def _unsupported(self) -> dict[Metric, str]:
        """What neither the GPU nor any of its instances can answer."""
        found = {
            **self._foreign,
            **self._board.unsupported,
            **self._processes.unsupported,
            **self._peers.unsupported,
            **self._buffers.unsupported,
        }
        answered = {series.metric for part in self._instances.values() for series in part.questions.answered}
        for part in self._instances.values():
            found.update((metric, why) for metric, why in part.questions.unsupported.items() if metric not in answered)
        return found

    def close(self) -> None:
        self._watch.close()
        for questions in (self._board, *(part.questions for part in self._instances.values())):
            questions.close()


def _due(questions: Questions, paces: frozenset[Pace]) -> frozenset[Pace]:
    """Who never answered yet is asked for everything: it came after the slow paces' turn."""
    return paces if questions.answered else frozenset(Pace)
