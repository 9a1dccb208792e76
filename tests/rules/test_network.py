"""Jobs that communicate only between nodes: their network traffic counts as communication, in rules and `diagnose`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from tests import ROOT
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes, rank

RULES = [ROOT / "alerts" / f"{name}.yaml" for name in ("recording", "distributed", "network")]


def over_network(values: Values, sent: float, received: float) -> Values:
    """Return the values of a rank without NVLink traffic, whose network port has this traffic."""
    network = {m.NIC_TX: Ramp(0, sent), m.NIC_RX: Ramp(0, received)}
    return {**profiles.HEALTHY, **values, m.NVLINK_TX: 0.0, m.NVLINK_RX: 0.0, **network}


# The last rank computes more slowly; or all ranks wait in a collective: with traffic it is slow, without it hangs.
SLOW = [over_network(profiles.OF_SLOW, 2e9, 2e9), over_network(profiles.SLOW, 2e9, 2e9)]
WAITING = [over_network(profiles.HANGING, 2e9, 2e9)] * 2
HANGING = [over_network(profiles.HANGING, 0, 0)] * 2
# Storage is read over the network, in one direction.
READING = [over_network(profiles.HANGING, 1e6, 2e9)] * 2
JOBS = {"slow": SLOW, "waiting": WAITING, "hanging": HANGING, "reading": READING}


def test_rules(tmp_path: Path) -> None:
    """Only the straggler is named; only jobs without traffic in both directions hang."""
    fleet = [
        Device(name, gpu, [minutes(30, values)], owner=rank(name, gpu))
        for name, ranks in JOBS.items()
        for gpu, values in enumerate(ranks)
    ]
    stalls = [
        ({"node": name, "gpu": str(gpu), "alertname": "GpuCollectiveStall"}, 1.0)
        for name in ("hanging", "reading")
        for gpu in range(2)
    ]
    straggler = ({"node": "slow", "gpu": "1", "alertname": "GpuStragglerSlow"}, 1.0)
    expected = [Expect(_firing("GpuCollectiveStall"), stalls), Expect(_firing("GpuStragglerSlow"), [straggler])]
    check(tmp_path, [Case("network", fleet, expected)], rules=RULES)


def _firing(name: str) -> str:
    return f'group by (node, gpu, alertname) (ALERTS{{alertstate="firing", alertname="{name}"}})'


@pytest.mark.parametrize(("job", "stalls"), [("waiting", False), ("hanging", True), ("reading", True)])
def test_diagnose(job: str, stalls: bool) -> None:
    """The same in Python."""
    scrapes = [Scrape(1000.0 + second, list(_scraped(job, second))) for second in range(8)]
    found = [{match.mode.name for match in of_gpu.matches} for of_gpu in diagnose(seen(scrapes, {}, job="job"))]
    assert ["GpuCollectiveStall" in names for names in found] == [stalls] * 2


def _scraped(job: str, second: float) -> Iterator[ScrapedSample]:
    for gpu, values in enumerate(JOBS[job]):
        labels = {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node"}
        for row, value in values.items():
            at = value.start + value.per_second * second if isinstance(value, Ramp) else value
            if isinstance(at, float | int):
                yield ScrapedSample(row.name, labels, float(at))
