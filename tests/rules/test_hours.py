"""Hourly sums where scrapes are missing: what must have been is added, what cannot be known is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpu_exporter.alerting.hourly_sums import COST, ENERGY, GPU_HOURS, TIME_HOURS, WASTED
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from tests.rules.promtool import Case, Expect, check_together
from tests.rules.series import Device, Stretch, minutes, rank

PRICE = next(price.value for price in PRICES if price.name == "usdPerGpuHour")
IDLE, WATTS = 0.25, 400.0
LOAD = {**HEALTHY, m.GR_ENGINE_ACTIVE: 1 - IDLE, m.SM_ACTIVE: 0.72, m.GPU_UTIL: 75.0, m.POWER: WATTS}
# The windows of the rules are full after half an hour; then follows an hour that is counted.
BEFORE, HOUR = 30.0, 60.0
# Where time went is known two minutes after a gap of 20, and owners change within a minute.
TOLERANCE = 0.06
OWNER = 'label_replace(vector(1), "namespace", "a", "", "")'


def busy(length: float, owner: str = "a", fault: str = "") -> Stretch:
    """Return some minutes of a GPU that a namespace uses."""
    return replace(minutes(length, LOAD, fault), owner={**rank("train"), "namespace": owner})


def nobodys(length: float) -> Stretch:
    """Return some minutes of a GPU that has no owner."""
    return replace(minutes(length, LOAD), owner={})


def gap(length: float, fault: str = "down") -> Stretch:
    """Return some minutes in which nothing is scraped."""
    return minutes(length, LOAD, fault)


def case(name: str, *story: Stretch, hours: float, lost: float = 0.0) -> Case:
    """Return two GPUs, one of them in MIG mode, and that a namespace used each for so many hours in the last hour.

    For `lost` minutes it did not answer.
    """
    # The instances of a lost GPU are not listed.
    parts = (("n1", ""), ("n2", "")) if lost else (("n1", ""), ("n2", "3"), ("n2", "9"))
    devices = [Device(node, 0, story, full=False, instance=each) for node, each in parts]
    working, gpus = hours - lost / 60, 2
    values = {
        GPU_HOURS: hours,
        TIME_HOURS: working,
        COST: hours * PRICE,
        WASTED: (working * IDLE + lost / 60) * PRICE,
        ENERGY: working * WATTS / 1000,
    }
    # Not the recorded series: promtool evaluates groups in any order, so that values may be of the minute before.
    expected = [
        Expect(
            f"group by (namespace) (abs(sum by (namespace) (({of.expression}) and on (namespace) {OWNER})"
            f" / {gpus * value} - 1) <= {TOLERANCE})",
            [({"namespace": "a"}, 1.0)],
        )
        for of, value in values.items()
    ]
    return Case(name, devices, expected)


def stories() -> Sequence[Case]:
    """Return GPUs with gaps of several kinds: counters stand still in gaps, which are longer than a rate needs."""
    first, rest = busy(BEFORE + 20), HOUR - 20
    later = minutes(rest, LOAD, "absent")
    return (
        case("whole", busy(BEFORE + HOUR), hours=1.0),
        case("three", first, gap(2.5), busy(rest - 2.5), hours=1.0),
        case("five", first, gap(4.5), busy(rest - 4.5), hours=1.0),
        case("several", *(each for _ in range(9) for each in (busy(6), gap(4))), hours=1.0),
        case("restarted", *(each for _ in range(9) for each in (busy(6), nobodys(4))), hours=36 / 60),
        case("long", first, gap(20), busy(rest - 20), hours=40 / 60),
        case("other", first, gap(3), busy(rest - 3, "b"), hours=20 / 60),
        case("removed", first, later, hours=20 / 60),
        case("lost", first, busy(rest, fault="lost"), hours=1.0, lost=40),
    )


def test_hourly_sums(tmp_path: Path) -> None:
    """A gap of at most five minutes is bridged if the GPU has the same owner before and after it."""
    check_together(tmp_path, stories())
