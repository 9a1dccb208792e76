"""Health checks and the NVLinks between GPUs, with dcgm-exporter's labels.

DCGM has calls for them instead of fields (`session.py`).

Source: NVIDIA/dcgm-exporter 4.5.3-4.8.2, `internal/pkg/collector/gpu_health_collector.go`, `p2p_status_collector.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import LINK_STATUS
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Labels, Metric, Pace
from gpu_exporter.sources.dcgm.values import Entity

# `dcgmHealthSystems_t`, as far as a GPU has them; all bits mean the GPU as a whole, as for XID 79.
SYSTEMS = {
    0x1: "PCIE",
    0x2: "NVLINK",
    0x4: "PMU",
    0x8: "MCU",
    0x10: "MEM",
    0x20: "SM",
    0x40: "INFOROM",
    0x80: "THERMAL",
    0x100: "POWER",
    0x200: "DRIVER",
    0xFFFFFFFF: "ALL",
}
PASS, NO_ERROR = 0, "DCGM_FR_OK"


class DcgmIncident(NamedTuple):
    """A finding of a health check: 10 is a warning, 20 a failure; `error` is DCGM's name of it."""

    system: int
    status: int
    entity: Entity
    error: str


class CallAnswers(NamedTuple):
    """DCGM's last answers about all GPUs with subscribers, or the reason why there are none."""

    health: tuple[DcgmIncident, ...] | str = ()
    peers: Mapping[int, Mapping[int, int]] | str = {}


NO_ANSWERS = CallAnswers()


class HealthAndPeers:
    """Health and link states of one GPU as series. The labels contain the state, so a new state is a new series."""

    def __init__(self, series_of: Callable[[Metric, Labels], Series], metrics: Iterable[Metric]) -> None:
        self.rows = frozenset(metrics) & {m.EXP_HEALTH, m.EXP_P2P}
        self.unsupported: dict[Metric, str] = {}
        self._series_of = series_of
        self._current: dict[Metric, dict[object, Series]] = {row: {} for row in self.rows}

    def read(
        self,
        answers: CallAnswers,
        gpu: tuple[Entity, int],
        paces: frozenset[Pace],
        values: dict[Series, float],
        failed: dict[Series, str],
    ) -> set[Series]:
        """Fill in what is due for a GPU, given by entity and index; return the series of findings that have ended."""
        board, index = gpu
        ended: set[Series] = set()
        for row in self.rows:
            answer = answers.health if row is m.EXP_HEALTH else answers.peers
            if row.pace not in paces:
                continue
            current = self._current[row]
            if isinstance(answer, str):
                self.unsupported[row] = answer
                failed.update(dict.fromkeys(current.values(), answer))
                continue
            self.unsupported.pop(row, None)
            rows = _health(answers.health, board) if row is m.EXP_HEALTH else _peers(answers.peers, index)
            now = {key: (self._series_of(row, labels), value) for key, labels, value in rows}
            ended |= set(current.values()) - {series for series, _ in now.values()}
            self._current[row] = {key: series for key, (series, _) in now.items()}
            values.update(now.values())
        return ended


def _health(incidents: object, board: Entity) -> Iterable[tuple[object, Labels, float]]:
    assert isinstance(incidents, tuple)
    last = {incident.system: incident for incident in incidents if incident.entity == board}
    for system, name in SYSTEMS.items():
        incident = last.get(system)
        error, status = (incident.error, incident.status) if incident else (NO_ERROR, PASS)
        yield system, (("health_error_code", error), ("health_watch", name)), status


def _peers(peers: object, index: int) -> Iterable[tuple[object, Labels, float]]:
    assert isinstance(peers, Mapping)
    for other, status in peers.get(index, {}).items():
        if other != index:
            word = LINK_STATUS[status] if status < len(LINK_STATUS) else LINK_STATUS[-1]
            yield other, (("link_status", word), ("peer_gpu", str(other))), status
