"""The network port or the NVLink of an alert about it is recorded, for dashboards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_exporter.alerting import incidents
from gpu_exporter.catalogue import metrics as m
from tests.rules.promtool import check
from tests.rules.test_fleet_faults import only, samples, series
from tests.rules.test_incident_rows import Labels, alert


@dataclass(frozen=True)
class Links:
    """Alerts that fire, the series of an exporter, and the link of each alert by its name and GPU."""

    name: str
    alerts: Sequence[Labels]
    exported: Sequence[tuple[str, Labels, int]]
    links: Mapping[tuple[str, str, str], float]

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        inputs = [series("ALERTS", {**each, "alertstate": "firing"}, [(0, 9)]) for each in self.alerts]
        inputs += [series(name, labels, [(0, 9)], value) for name, labels, value in self.exported]
        found = samples(
            f"group by (alertname, gpu, link) ({incidents.ALERT_LINKS.record})",
            8,
            self.links,
            *("alertname", "gpu", "link"),
        )
        return {"name": self.name, "interval": "30s", "input_series": inputs, "promql_expr_test": [found]}


def port(gpu: int, *devices: str) -> Iterator[tuple[str, Labels, int]]:
    """Yield the ports nearest to a GPU."""
    for device in devices:
        yield m.NIC_INFO.name, {"UUID": f"GPU-{gpu}", "gpu": f"{gpu}", "device": device, "port": "1"}, 1


def fault(gpu: int, kind: str, *devices: str) -> Iterator[tuple[str, Labels, int]]:
    """Yield the faulty ports of a GPU."""
    for device in devices:
        labels = {"UUID": f"GPU-{gpu}", "gpu": f"{gpu}", "device": device, "port": "1", "fault": kind}
        yield m.NIC_FAULT.name, labels, 1


def nvlinks(gpu: int, down: Sequence[int], expected: int = 18) -> Iterator[tuple[str, Labels, int]]:
    """Yield the state of the NVLinks of a GPU with 18."""
    for metric, value in ((m.NVLINK_EXPECTED, expected), (m.NVLINK_COUNT, 18)):
        yield metric.name, {"UUID": f"GPU-{gpu}", "gpu": f"{gpu}"}, value
    for number in range(18):
        labels = {"gpu_uuid": f"GPU-{gpu}", "gpu": f"{gpu}", "nvlink": f"{number}"}
        yield m.LINK_UP.name, labels, int(number not in down)


CASE = Links(
    "links",
    [
        *(alert("GpuNicDown", gpu) for gpu in (0, 1, 2)),
        alert("GpuNicSlowLink", 0),
        *(alert("GpuNicErrors", gpu) for gpu in (0, 3)),
        *(alert("GpuNvlinkDown", gpu) for gpu in (0, 1, 2)),
        alert("GpuLost", 0),
    ],
    [
        *port(0, "mlx5_0", "mlx5_1"),
        *port(1, "mlx5_2", "mlx5_3"),
        *(each for gpu in (2, 3, 4) for each in port(gpu, f"mlx5_{gpu + 2}")),
        *fault(0, "down", "mlx5_0"),
        *fault(0, "slow", "mlx5_1"),
        *fault(1, "down", "mlx5_2", "mlx5_3"),
        *nvlinks(0, [7]),
        *nvlinks(1, [3, 4, 5]),
        *nvlinks(2, [1, 2], expected=17),  # a board with bridges: it is unknown which link should be up
    ],
    dict.fromkeys(
        (
            ("GpuNicDown", "0", "mlx5_0 port 1"),
            ("GpuNicDown", "1", "2 links"),
            ("GpuNicDown", "2", "mlx5_4 port 1"),
            ("GpuNicSlowLink", "0", "mlx5_1 port 1"),
            ("GpuNicErrors", "3", "mlx5_5 port 1"),
            ("GpuNvlinkDown", "0", "NVLink 7"),
            ("GpuNvlinkDown", "1", "3 links"),
        ),
        1.0,
    ),
)


def test_the_link_of_an_alert(tmp_path: Path) -> None:
    """The faulty one, or how many; of other alerts about the network, the nearest port if it is a single one."""
    check(tmp_path, [CASE], rules=only(tmp_path, "gpu-alerts", "gpu-incidents"), interval="30s")
