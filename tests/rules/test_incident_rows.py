"""An incident is one row: its cause, where, on how many GPUs and nodes, since when, and how much it explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.alerting import incidents
from tests.rules.promtool import BY_NAME, check
from tests.rules.test_fleet_faults import only as only_groups
from tests.rules.test_fleet_faults import samples, series

Labels = Mapping[str, str]
ROW = ("alertname", "node", "gpu", "namespace", "workload")
SHOWN = (incidents.OPEN_GPUS, incidents.OPEN_NODES, incidents.OPEN_EXPLAINED, incidents.OPEN_SINCE)


def alert(name: str, gpu: int | None = None, job: str = "", node: str = "", **more: str) -> Labels:
    """Return the labels of an alert: of a GPU of the node of its number divided by eight, or of a job."""
    where = {"node": node}
    if gpu is not None:
        where = {"node": f"n{gpu // 8}", "gpu": str(gpu % 8), "UUID": f"GPU-{gpu}"}
    owner = {"namespace": "ml", "workload": job} if job else {}
    mode = BY_NAME[name]
    kind = {"severity": mode.severity.value, "domain": mode.domain.value}
    return {"alertname": name, **kind, **where, **owner, **more}


@dataclass(frozen=True)
class Rows:
    """Alerts of a cluster, and the values of each row in the order of `SHOWN`."""

    name: str
    alerts: Sequence[Labels]
    rows: Mapping[Sequence[str], Sequence[int | None]]

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format. Each alert has begun one second after the one before."""
        inputs = [series("ALERTS", {**each, "alertstate": "firing"}, [(0, 5)]) for each in self.alerts]
        inputs += [series("ALERTS_FOR_STATE", each, [(0, 5)], number) for number, each in enumerate(self.alerts, 1)]
        expected = [
            samples(
                f"sum by ({', '.join(ROW)}) ({shown.record})",
                4,
                {row: value for row, values in self.rows.items() if (value := values[place]) is not None},
                *ROW,
            )
            for place, shown in enumerate(SHOWN)
        ]
        return {"name": self.name, "interval": "30s", "input_series": inputs, "promql_expr_test": expected}


CASES = (
    Rows(
        "two GPUs of a node, the job on them, and a GPU of another job",
        [
            *(alert("GpuXidFatal", gpu, "a", xid="79") for gpu in (0, 1)),
            *(alert("GpuLost", gpu) for gpu in (0, 1)),
            alert("GpuJobStalled", None, "a"),
            alert("GpuXidFatal", 9, "b", xid="79"),
        ],
        {
            ("GpuXidFatal", "n0", "", "ml", "a"): (2, 1, 3, 1),
            ("GpuXidFatal", "n1", "1", "ml", "b"): (1, 1, 0, 6),
        },
    ),
    Rows(
        "a job on two nodes",
        [alert("GpuHostBound", gpu, "a") for gpu in (0, 1, 8)] + [alert("GpuHostBound", 9, "b")],
        {("GpuHostBound", "", "", "ml", "a"): (3, 2, 0, 1), ("GpuHostBound", "n1", "1", "ml", "b"): (1, 1, 0, 4)},
    ),
    Rows(
        "GPUs of two jobs on one node, and an alert without a GPU",
        [
            alert("GpuEccUncorrectable", 0, "a"),
            alert("GpuEccUncorrectable", 1, "b"),
            alert("GpuExporterDown", node="n3", instance="n3:9400"),
        ],
        {
            ("GpuEccUncorrectable", "n0", "", "", ""): (2, 1, 0, 1),
            ("GpuExporterDown", "n3", "", "", ""): (None, 1, 0, 3),
        },
    ),
    Rows(
        "many nodes",
        [alert("GpuXidFatal", 8 * node, xid="79") for node in range(5)]
        + [alert("GpuFleetFault", cause="GpuXidFatal", xid="79"), alert("GpuRemediationBreakerOpen", namespace="gpu")],
        {("GpuFleetFault", "", "", "", ""): (None, 5, 6, 6)},
    ),
    Rows(
        "two clusters with the same names",
        [
            alert("GpuXidFatal", 0, "a", cluster="c", xid="79"),
            alert("GpuLost", 0, cluster="c"),
            alert("GpuLost", 0, "a", cluster="d"),
        ],
        {("GpuXidFatal", "n0", "0", "ml", "a"): (1, 1, 1, 1), ("GpuLost", "n0", "0", "ml", "a"): (1, 1, 0, 3)},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows(tmp_path: Path, case: Rows) -> None:
    rules = only_groups(tmp_path, "gpu-alerts", "gpu-incidents", "gpu-incident-costs")
    check(tmp_path, [case], rules=rules, interval="30s")
