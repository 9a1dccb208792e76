"""Alerts have the rank of their GPU, for dashboards; also for a while after the rank has ended, as on a lost GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_exporter.alerting import incidents
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import DEVICE_INFO
from tests.rules.promtool import check
from tests.rules.test_fleet_faults import Times, only, samples, series
from tests.rules.test_incident_rows import Labels, alert

END = 60


@dataclass(frozen=True)
class Ranks:
    """Alerts with their minutes, ranks of a job with theirs, and the ranks of GPUs at some minutes."""

    name: str
    alerts: Sequence[tuple[Labels, Times]]
    ranks: Sequence[tuple[int, str, str, Times]]
    shown: Mapping[int, Mapping[tuple[str, str], float]]

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        inputs = [series("ALERTS", {**each, "alertstate": "firing"}, times) for each, times in self.alerts]
        for gpu, job, rank, times in self.ranks:
            uuid, place = f"GPU-{gpu}", {"node": f"n{gpu // 8}", "gpu": f"{gpu % 8}"}
            inputs.append(series(m.JOB_RANK_INFO.name, {"job_id": job, "rank": rank, "UUID": uuid}, times))
            owner = {"namespace": "ml", "workload": job}
            inputs.append(series(DEVICE_INFO, {**place, "UUID": uuid, "modelName": "H100", **owner}, times))
        found = [
            samples(f"group by (UUID, rank) ({incidents.RANKS.record})", minute, expected, "UUID", "rank")
            for minute, expected in self.shown.items()
        ]
        return {"name": self.name, "interval": "30s", "input_series": inputs, "promql_expr_test": found}


CASES = (
    Ranks(
        "a GPU is lost: its rank ends before the alert begins, and the alert continues",
        [(alert("GpuLost", 3, "a"), [(12, 50)])],
        [(3, "a", "7", [(0, 10)]), (4, "a", "8", [(0, 10)])],
        {14: {("GPU-3", "7"): 1}, 24: {("GPU-3", "7"): 1}, 40: {}},
    ),
    Ranks(
        "another job gets the GPU while an alert about it fires",
        [(alert("GpuThermalThrottling", 3, "a"), [(5, 20)]), (alert("GpuThermalThrottling", 3, "b"), [(20, 42)])],
        [(3, "a", "7", [(0, 15)]), (3, "b", "1", [(30, 40)])],
        {18: {("GPU-3", "7"): 1}, 27: {}, 35: {("GPU-3", "1"): 1}, 41: {("GPU-3", "1"): 1}},
    ),
)


def test_ranks(tmp_path: Path) -> None:
    check(tmp_path, CASES, rules=only(tmp_path, "gpu-jobs"), interval="30s")
