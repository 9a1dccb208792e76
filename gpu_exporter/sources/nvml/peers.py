"""The state of the NVLinks between one GPU and each other GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pynvml

from gpu_exporter.catalogue.dcgm_exporter.names import LINK_STATUS
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric, Pace, PerPeer
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, UNSUPPORTED, outcome, source_lost


class Peers:
    """The peers of one GPU. The labels of a series contain the state, so a new state is a new series."""

    def __init__(self, handle: Any, gpu: Gpu, metrics: Iterable[Metric]) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._handle, self._gpu = handle, gpu
        self._rows = [row for row in metrics if isinstance(row.nvml, PerPeer)]
        self._current: dict[tuple[Metric, int], Series] = {}
        self._peers: dict[int, Any] = {}

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> set[Series]:
        """Fill in what is due; return the series of states that have ended. Raises SourceLost."""
        ended: set[Series] = set()
        for row in self._rows if Pace.RARE in paces else ():
            assert isinstance(row.nvml, PerPeer)
            for other in self._others():
                if row in self.unsupported:
                    break
                series = self._current.get((row, other))
                try:
                    status = int(self._status(row.nvml, other))
                except pynvml.NVMLError as error:
                    self._missing(row, error.value, series, failed)
                    continue
                word = LINK_STATUS[status] if status < len(LINK_STATUS) else LINK_STATUS[-1]
                labels: Labels = (("link_status", word), ("peer_gpu", str(other)))
                if series is None or series.labels != labels:
                    ended |= {series} if series else set()
                    series = self._current[row, other] = Series(row, self._gpu, labels)
                values[series] = status
        return ended

    def _others(self) -> Sequence[int]:
        try:
            return [index for index in range(pynvml.nvmlDeviceGetCount()) if index != self._gpu.index]
        except pynvml.NVMLError as error:
            if error.value in LIBRARY_LOST:
                raise source_lost(error.value) from error
            return ()

    def _status(self, call: PerPeer, other: int) -> int:
        peer = self._peers.get(other)
        if peer is None:
            peer = self._peers[other] = pynvml.nvmlDeviceGetHandleByIndex(other)
        return int(getattr(pynvml, f"nvmlDeviceGet{call.name}")(self._handle, peer, *call.args))

    def _missing(self, row: Metric, code: int, series: Series | None, failed: dict[Series, str]) -> None:
        """Record that there is no status. A lost GPU may be the peer, and its own read reports that."""
        if code in LIBRARY_LOST:
            raise source_lost(code)
        if series is not None:
            failed[series] = outcome(code)
        elif code in UNSUPPORTED:
            self.unsupported[row] = outcome(code)
