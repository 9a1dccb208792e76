"""dcgm-exporter with its default fields: what its few fields show is found, and somebody hears of what they hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Values
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, Generation, minutes, rank

HELD = 60.0


def default(values: Values) -> Values:
    """Return the values of the default fields, which have NVLink traffic only in both directions together."""
    sent, received = values[m.NVLINK_TX], values[m.NVLINK_RX]
    assert isinstance(sent, float)
    assert isinstance(received, float)
    both = {**values, m.NVLINK_BOTH: (sent + received) / 1e6}
    return {row: value for row, value in both.items() if row.name in DEFAULT_FIELDS}


DEFAULT = default(p.HEALTHY)
WITHOUT_PROFILING: Values = {row: value for row, value in DEFAULT.items() if "_PROF_" not in row.name}
# Lanes and generation of the link are unknown: with 16 lanes of generation 6, a good one has 0.5 and 0.9 per second.
GPUS: Mapping[str, tuple[Values, Mapping[str, str]]] = {
    "good": ({**DEFAULT, m.PCIE_REPLAY: Ramp(0, 0.5)}, {"GpuMetricsMissing": "warning"}),
    "storm": (
        {**DEFAULT, m.PCIE_REPLAY: Ramp(0, 5.0)},
        {"GpuMetricsMissing": "warning", "GpuPcieReplayStorm": "warning"},
    ),
    "guest": (WITHOUT_PROFILING, {"GpuMetricsMissing": "info"}),
    "recommended": (p.HEALTHY, {}),
}


def test_default_fields(tmp_path: Path) -> None:
    """A field that could be collected and is not opens a ticket; one that the GPU does not have is only shown."""
    devices = [
        Device(node, 0, [minutes(HELD, values)], generation=Generation.DCGM_4_8_2) for node, (values, _) in GPUS.items()
    ]
    found = [
        ({"node": node, "alertname": name, "severity": severity}, 1.0)
        for node, (_, alerts) in GPUS.items()
        for name, severity in alerts.items()
    ]
    expression = 'group by (node, alertname, severity) (ALERTS{alertstate="firing"})'
    check(tmp_path, [Case("default", devices, [Expect(expression, found)])])


# The last of four ranks, the others, and the ranks with each alert on the job: a slow rank needs SM activity.
JOBS: Mapping[str, tuple[Values, Values, Mapping[str, Sequence[int]]]] = {
    "starved": (p.STARVED, p.OF_STARVED, {"GpuStragglerStarved": [3]}),
    "hanging": (p.ABSENT, p.HANGING, {"GpuCollectiveStall": range(4)}),
    "deadlocked": (p.HANGING, p.HANGING, {"GpuCollectiveStall": range(4)}),
    "slow": (p.SLOW, p.OF_SLOW, {}),
    "balanced": (p.BALANCED, p.BALANCED, {}),
    "loading": (p.SLOW_LOADER, p.SLOW_LOADER, {}),
    "idle": (p.IDLE, p.IDLE, {}),
}


def test_jobs_with_default_fields(tmp_path: Path) -> None:
    """Engine, memory and NVLink are enough for what hangs or starves. What stays hidden has a ticket on every GPU."""
    devices = [
        Device(job, gpu, [minutes(40, default({**p.BOARD, **values}))], Generation.DCGM_4_8_2, rank(job, gpu))
        for job, (last, others, _) in JOBS.items()
        for gpu, values in enumerate((others, others, others, last))
    ]
    found = [
        ({"node": job, "alertname": name, "gpu": str(gpu)}, 1.0)
        for job, (_, _, alerts) in JOBS.items()
        for name, gpus in {"GpuMetricsMissing": range(4), **alerts}.items()
        for gpu in gpus
    ]
    expression = 'group by (node, alertname, gpu) (ALERTS{alertstate="firing", severity!="info", domain!="cost"})'
    check(tmp_path, [Case("jobs", devices, [Expect(expression, found)])])
