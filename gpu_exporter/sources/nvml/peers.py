"""What a GPU is to each other one: whether their NVLinks work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pynvml

from gpu_exporter.catalogue.dcgm_exporter.names import LINK_STATUS
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric, Pace, PerPeer
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, UNSUPPORTED, outcome, source_lost


class Peers:
    """One GPU beside the others. A state is part of its series' labels, so that a new state is a new series."""

    def __init__(self, handle: Any, gpu: Gpu, metrics: Iterable[Metric]) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._handle, self._gpu = handle, gpu
        self._rows = [row for row in metrics if isinstance(row.nvml, PerPeer)]
        self._known: dict[tuple[Metric, int], Series] = {}
        self._peers: dict[int, Any] = {}

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> set[Series]:
        """Fill in what is due; return the series of states that are no more. Raises SourceLost."""
        ended: set[Series] = set()
        for row in self._rows if Pace.RARE in paces else ():
            assert isinstance(row.nvml, PerPeer)
            for other in self._others():
                if row in self.unsupported:
                    break
                known = self._known.get((row, other))
                try:
                    status = int(self._ask(row.nvml, other))
                except pynvml.NVMLError as error:
                    self._missing(row, error.value, known, failed)
                    continue
                word = LINK_STATUS[status] if status < len(LINK_STATUS) else LINK_STATUS[-1]
                labels: Labels = (("link_status", word), ("peer_gpu", str(other)))
                if known is None or known.labels != labels:
                    ended |= {known} if known else set()
                    known = self._known[row, other] = Series(row, self._gpu, labels)
                values[known] = status
        return ended

    def _others(self) -> Sequence[int]:
        try:
            return [index for index in range(pynvml.nvmlDeviceGetCount()) if index != self._gpu.index]
        except pynvml.NVMLError as error:
            if error.value in LIBRARY_LOST:
                raise source_lost(error.value) from error
            return ()

    def _ask(self, question: PerPeer, other: int) -> int:
        peer = self._peers.get(other)
        if peer is None:
            peer = self._peers[other] = pynvml.nvmlDeviceGetHandleByIndex(other)
        return int(getattr(pynvml, f"nvmlDeviceGet{question.name}")(self._handle, peer, *question.args))

    def _missing(self, row: Metric, code: int, known: Series | None, failed: dict[Series, str]) -> None:
        """No answer. A GPU that is lost may be the other one, which says so itself."""
        if code in LIBRARY_LOST:
            raise source_lost(code)
        if known is not None:
            failed[known] = outcome(code)
        elif code in UNSUPPORTED:
            self.unsupported[row] = outcome(code)
