"""A thread that follows the history of active checks, for `/metrics` and `/api/v1/node`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.health.active_checks import ActiveChecks, Run
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.model.verdict import Health

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
QUANTITIES = {quantity.value: quantity for quantity in Quantity}


class ActiveCheckWatch:
    """Offers the last active check of each GPU. A file that cannot be read is logged once; the last result stays."""

    def __init__(self, directory: Path, seconds: float = INTERVAL_SECONDS) -> None:
        self._checks = ActiveChecks(directory)
        self._seconds = seconds
        self._stopping = threading.Event()
        self._complained = ""
        self._series: dict[tuple[str, str], Series] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._last: Mapping[str, Run] = {}

    def start(self) -> None:
        """Start to follow the file."""
        threading.Thread(target=self._follow, name="active-checks", daemon=True).start()

    def stop(self) -> None:
        """Request the end; does not wait for it."""
        self._stopping.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self._seconds)

    def poll(self) -> None:
        """Read the file if it was written since. Only the last runs are kept: a full history is several MiB."""
        complaint = ""
        try:
            stamp = self._checks.stamp()
            if stamp != self._stamp:
                history = self._checks.read()
                self._last = {uuid: run for uuid in history.gpus if (run := history.last(uuid))}
                self._stamp = stamp
        except (OSError, ValueError) as error:
            complaint = f"active checks cannot be read: {error}"
        if complaint and complaint != self._complained:
            log.warning("%s", complaint)
        self._complained = complaint

    def last(self, uuid: str) -> Run | None:
        """Return the last run of a GPU."""
        return self._last.get(uuid)

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return what the last active check of each GPU measured."""
        return tuple(sample for each in gpus for sample in self._of(each.gpu))

    def _of(self, gpu: Gpu) -> Iterator[Sample]:
        run = self.last(gpu.uuid)
        if run is None:
            return
        for name, value in run.values.items():
            if name in QUANTITIES:
                yield Sample(self._rate(gpu, QUANTITIES[name]), value)
        if run.health is not Health.UNKNOWN:
            yield Sample(self._plain(gpu, "passed"), float(run.health is Health.HEALTHY))
        yield Sample(self._plain(gpu, "at"), run.at)

    def _rate(self, gpu: Gpu, quantity: Quantity) -> Series:
        metric = m.PROBE_RATE if quantity.unit == "FLOP/s" else m.PROBE_BANDWIDTH
        labels = (("quantity", quantity.value),)
        return self._kept(gpu, quantity.value, Series(metric, gpu, labels))

    def _plain(self, gpu: Gpu, name: str) -> Series:
        return self._kept(gpu, name, Series(m.PROBE_PASSED if name == "passed" else m.PROBE_AT, gpu))

    def _kept(self, gpu: Gpu, name: str, series: Series) -> Series:
        """Return the series of the last call, which is the same object, unless the GPU has another identity now."""
        key = gpu.uuid, name
        if key not in self._series or self._series[key].gpu != gpu:
            self._series[key] = series
        return self._series[key]
