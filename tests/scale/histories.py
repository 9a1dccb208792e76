"""Fault histories: failure modes injected into jobs whose ranks are on all shards, and into single GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.loops import TrainingLoop
from tests.rules.loops import Stretch as Said
from tests.rules.loops import parts as said_parts
from tests.rules.series import Device, Key, injected, minutes, of_peers, parts_of, rank
from tests.rules.shapes import STEP, Part

SHARDS = 4
BY_NAME = {mode.name: mode for mode in MODES}
# Minutes before a failure mode is injected, while it is, and after its repair.
BEFORE, DURING, AFTER = 20.0, 65.0, 25.0
TICKS = round((BEFORE + DURING + AFTER) * 60 / STEP)
LARGE, SMALL = 64, 8
# Modes of jobs, with the number of ranks.
JOBS: Mapping[str, int] = {
    "GpuStragglerSlow": LARGE,
    "GpuStragglerStarved": SMALL,
    "GpuStragglerLaunchBound": SMALL,
    "GpuCollectiveStall": SMALL,
    "GpuCommunicationBound": SMALL,
    "GpuNvlinkImbalance": SMALL,
}
# Modes that training loops report: what the loop says meanwhile, and the number of ranks.
LOOPS: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "GpuJobStraggler": ({"own": 1.25}, LARGE),
    "GpuJobStalled": ({"since": BEFORE * 60}, SMALL),
    "GpuJobGoodputLow": ({"trains": 0.4}, SMALL),
}
SINGLE = (
    "GpuLost",
    "GpuXidFatal",
    "GpuEccUncorrectable",
    "GpuNvlinkDown",
    "GpuThermalThrottling",
    "GpuPowerBrake",
    "GpuPcieLinkDegraded",
    "GpuExporterDown",
    "GpuFakeLoad",
    "GpuPcieBound",
    "GpuDataLoadingBound",
)
NAMES = (*JOBS, *LOOPS, *SINGLE)


@dataclass(frozen=True, slots=True)
class History:
    """All series of some failure modes, from TICKS scrapes."""

    series: Mapping[Key, Sequence[Part]]

    def shard_of(self, key: Key) -> int:
        """Return the number of the shard that scrapes a series, from 1; 0 for the Prometheus above."""
        instance = dict(key[1]).get("instance", "")
        found = re.fullmatch(r".+-(\d+):9400", instance)
        return int(found[1]) + 1 if found else 0


def history(names: Iterable[str] = NAMES, ranks: int = LARGE) -> History:
    """Return the history of these failure modes, each on nodes of its own. No job has more than so many ranks."""
    devices: list[Device] = []
    found: dict[Key, Sequence[Part]] = {}
    for number, name in enumerate(names):
        if name in LOOPS:
            changes, most = LOOPS[name]
            devices += _ranks(name, min(most, ranks), healthy=True)
            found |= dict(_said(name, changes, min(most, ranks)))
        elif name in JOBS:
            devices += _ranks(name, min(JOBS[name], ranks))
        else:
            devices.append(_single(name, number % SHARDS))
    return History({**parts_of(devices), **found})


def _ranks(name: str, ranks: int, *, healthy: bool = False) -> Iterator[Device]:
    """Return a job, whose first rank has the failure mode; rank after rank is on another node and shard."""
    mode = BY_NAME[name]
    for number in range(ranks):
        during = (
            minutes(DURING) if healthy else of_peers(DURING, mode.inject) if number else injected(DURING, mode.inject)
        )
        story = (minutes(BEFORE), during, minutes(AFTER))
        place = f"{name.lower()}-{number % SHARDS}", number // SHARDS
        yield Device(*place, story, owner=rank(name.lower(), number))


def _single(name: str, shard: int) -> Device:
    story = (minutes(BEFORE), injected(DURING, BY_NAME[name].inject), minutes(AFTER))
    return Device(f"{name.lower()}-{shard}", 0, story, owner=rank(name.lower()))


def _said(name: str, changes: Mapping[str, Any], ranks: int) -> Iterator[tuple[Key, Sequence[Part]]]:
    """Yield what the ranks of a training loop say: all is well before and after."""
    well = TrainingLoop(name.lower(), ranks=ranks)
    bad = TrainingLoop(name.lower(), ranks=ranks, **changes)
    story = [Said(BEFORE, well), Said(DURING, bad), Said(AFTER, well)]
    for text in dict.fromkeys((*well, *bad)):
        family, _, rest = text.rstrip("}").partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        number = int(labels["rank"])
        node = f"{name.lower()}-{number % SHARDS}"
        place = {"gpu": str(number // SHARDS), "UUID": f"GPU-{node}-{number // SHARDS}"}
        scrape = {"job": "gpu-exporter", "instance": f"{node}:9400"}
        yield (family, tuple({**labels, **place, **scrape}.items())), list(said_parts(text, story))
