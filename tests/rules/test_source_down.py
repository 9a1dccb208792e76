"""GpuSourceDown fires once for a node whose GPUs cannot be read; nothing is said about these GPUs meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from tests.rules.promtool import Case, Expect, check_together
from tests.rules.series import Device, minutes
from tests.rules.shapes import STEP

LONG = 30.0
FIRES = 'group by (node, severity, action) (ALERTS{alertname="GpuSourceDown", alertstate="firing"})'
BLAMED = [({"node": "a", "severity": "warning", "action": "none"}, 1.0)]


def source_up(node: str, *stretches: tuple[float, int]) -> dict[str, str]:
    """Return the series of a source: 0 or 1 for each stretch of minutes."""
    labels = f'{{job="gpu-exporter", instance="{node}:9400", source="dcgm"}}'
    values = " ".join(f"{value}x{round(length * 60 / STEP) - 1}" for length, value in stretches)
    return {"series": f"{m.SOURCE_UP.name}{labels}", "values": values}


def devices(*stretches: tuple[float, int]) -> list[Device]:
    """Return a node whose source is down in some stretches of minutes, and a healthy one."""
    story = [minutes(length, fault="" if up else "reload") for length, up in stretches]
    return [Device(node, gpu, story if node == "a" else [minutes(LONG)]) for node in ("a", "b") for gpu in range(4)]


LOOP = [(1.0, 0), (0.5, 1)] * 14


# The stretches of a source, and whether the alert fires.
STORIES: Mapping[str, tuple[Sequence[tuple[float, int]], bool]] = {
    "works": ([(LONG, 1)], False),
    "killed": ([(LONG - 8, 1), (8, 0)], True),
    "stopped for half a minute": ([(LONG - 5, 1), (0.5, 0), (4.5, 1)], False),
    "stopped for 3 min": ([(LONG - 7, 1), (3, 0), (4, 1)], False),
    "restarts again and again": ([(LONG - 21, 1), *LOOP], True),
    "rare restarts": ([(LONG - 21, 1), *((length, 1 - up) for length, up in LOOP)], False),
}


def sources(name: str, stretches: Sequence[tuple[float, int]], *, fires: bool) -> Case:
    """Expect one warning for the node, without a drain; no GPU is ever lost, stale or missing."""
    others = Expect('count(last_over_time(ALERTS{alertname!="GpuSourceDown", alertstate="firing"}[1h]))')
    more = [source_up("a", *stretches), source_up("b", (LONG, 1))]
    return Case(name, devices(*stretches), [Expect(FIRES, BLAMED if fires else []), others], more=more)


def from_the_start() -> Case:
    """Its GPUs are expected, and in no list: they are not missing. The node has no name yet."""
    labels = '{job="gpu-exporter", instance="c:9400"'
    down = {"series": f'{m.SOURCE_DOWN.name}{labels}, source="dcgm", reason="no_connection"}}', "values": "1x200"}
    counts = [
        {"series": f"{name}{labels}}}", "values": f"{value}x200"}
        for name, value in ((m.EXPECTED.name, 8), (m.VISIBLE.name, 0), ("up", 1))
    ]
    fired = Expect('group by (instance) (ALERTS{alertstate="firing"})', [({"instance": "c:9400"}, 1.0)])
    names = Expect('group by (alertname) (ALERTS{alertstate="firing"})', [({"alertname": "GpuSourceDown"}, 1.0)])
    more = [source_up("c", (LONG, 0)), down, *counts]
    return Case("from the start", [Device("b", 0, [minutes(LONG)])], [fired, names], more=more)


def empty_list() -> Case:
    """The driver answers that there is no GPU: that is about the GPUs."""
    labels = '{job="gpu-exporter", instance="c:9400"'
    down = {"series": f'{m.SOURCE_DOWN.name}{labels}, source="nvml", reason="no_gpu"}}', "values": "1x200"}
    counts = [
        {"series": f"{name}{labels}}}", "values": f"{value}x200"}
        for name, value in ((m.EXPECTED.name, 8), (m.VISIBLE.name, 0), ("up", 1), ("gpu_info", 1))
    ]
    fired = Expect(
        'group by (severity) (ALERTS{alertname="GpuLost", alertstate="firing"})', [({"severity": "critical"}, 1.0)]
    )
    return Case("empty list", [Device("b", 0, [minutes(LONG)])], [fired], more=[down, *counts])


def test_a_source_that_is_down(tmp_path: Path) -> None:
    """One warning for the node after five minutes; it may be down from the start, or the driver may list no GPU."""
    stories = [sources(name, stretches, fires=fires) for name, (stretches, fires) in STORIES.items()]
    check_together(tmp_path, [*stories, from_the_start(), empty_list()])
