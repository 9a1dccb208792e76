"""GpuAttributionDown fires if kubelet or the API server does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from tests.rules.promtool import Case, Expect, check_together
from tests.rules.series import Device, minutes
from tests.rules.shapes import STEP

LONG = 20.0
FIRES = 'group by (node, instance, source, severity) (ALERTS{alertname="GpuAttributionDown", alertstate="firing"})'


def lookup_up(node: str, source: str, *stretches: tuple[float, int]) -> dict[str, str]:
    """Return the series of a lookup: 0 or 1 for each stretch of minutes."""
    labels = f'{{job="gpu-exporter", instance="{node}:9400", source="{source}"}}'
    values = " ".join(f"{value}x{round(length * 60 / STEP) - 1}" for length, value in stretches)
    return {"series": f"{m.ATTRIBUTION_UP.name}{labels}", "values": values}


# The stretches of a lookup, and whether the alert fires: after five minutes.
STORIES: Mapping[str, tuple[Sequence[tuple[float, int]], bool]] = {
    "never answered": ([(LONG, 0)], True),
    "answers": ([(LONG, 1)], False),
    "stopped": ([(LONG - 8, 1), (8, 0)], True),
    "a restart": ([(LONG - 4, 1), (4, 0)], False),
    "two restarts": ([(LONG - 12, 1), (3, 0), (6, 1), (3, 0)], False),
}


def lookups(name: str, stretches: Sequence[tuple[float, int]], *, fires: bool) -> Case:
    """Expect the alert with the node's name, but not for another lookup or node."""
    devices = [Device(node, gpu, [minutes(LONG)]) for node in ("a", "b") for gpu in range(2)]
    more = [
        lookup_up("a", "kubelet", *stretches),
        lookup_up("a", "pods", (LONG, 1)),
        lookup_up("b", "kubelet", (LONG, 1)),
    ]
    blamed = {"node": "a", "instance": "a:9400", "source": "kubelet", "severity": "warning"}
    others = Expect('count(ALERTS{alertname!="GpuAttributionDown", alertstate="firing"})')
    return Case(name, devices, [Expect(FIRES, [(blamed, 1.0)] if fires else []), others], more=more)


def without_gpus() -> Case:
    """Expect the alert without the name of the node."""
    blamed = {"instance": "c:9400", "source": "kubelet", "severity": "warning"}
    devices = [Device("a", 0, [minutes(LONG)])]
    return Case("no GPUs", devices, [Expect(FIRES, [(blamed, 1.0)])], more=[lookup_up("c", "kubelet", (LONG, 0))])


def test_lookup_that_does_not_answer(tmp_path: Path) -> None:
    stories = [lookups(name, stretches, fires=fires) for name, (stretches, fires) in STORIES.items()]
    check_together(tmp_path, [*stories, without_gpus()])
