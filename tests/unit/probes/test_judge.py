"""What besides rates makes a GPU unfit: errors, throttling, a rate that drops, and what the check could not do."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health.active_checks import History
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Health
from gpu_exporter.probes.judge import Counters, Result, judge
from gpu_exporter.probes.load import Load
from gpu_exporter.probes.run import Outcome, Outcomes, Target

TARGET = Target(0, "GPU-0", "0:1:0.0", "unknown")


def judged(
    outcome: Outcome | None = None,
    *,
    load: Load | None = None,
    after: Mapping[Metric, float] | None = None,
    out_of_time: bool = False,
) -> Result:
    """Return the result of one GPU with seven corrected errors before the check."""
    outcomes = Outcomes([outcome or Outcome(TARGET)], out_of_time=out_of_time)
    counters = Counters({0: {m.ECC_SBE_VOL: 7.0, m.ECC_DBE_VOL: 0.0}}, {0: after or {}})
    (result,) = judge(outcomes, {0: Gpu(0, "GPU-0")}, History(), {0: load or Load()}, counters)
    return result


def reasons(result: Result) -> list[str]:
    """Return why a GPU is unfit."""
    return [problem.reason for problem in result.verdict.problems]


@pytest.mark.parametrize(
    ("after", "health"),
    [
        ({m.ECC_SBE_VOL: 7.0}, Health.HEALTHY),
        ({m.ECC_SBE_VOL: 9.0}, Health.DEGRADED),
        ({m.ECC_DBE_VOL: 1.0}, Health.UNHEALTHY),
        ({m.NVLINK_CRC: 5.0}, Health.HEALTHY),  # it was not read before
    ],
)
def test_errors_during_the_check(after: Mapping[Metric, float], health: Health) -> None:
    assert judged(after=after).verdict.health is health


@pytest.mark.parametrize(("mask", "found"), [(0x4, []), (0x40, ["hw_thermal_slowdown"]), (0x84, ["hw_power_brake"])])
def test_what_holds_the_clock_down(mask: int, found: list[str]) -> None:
    """The power limit does at full load; heat and the power supply must not."""
    load = Load()
    load.take({m.CLOCK_EVENTS: float(mask), m.SM_CLOCK: 1695.0, m.POWER_INSTANT: 700.0})
    load.take({m.CLOCK_EVENTS: 0x41, m.SM_CLOCK: 345.0})  # idle: between two measurements
    assert reasons(judged(load=load)) == found
    assert (load.clock_low, load.clock_high, load.power) == (1695.0, 1695.0, 700.0)


@pytest.mark.parametrize(("last", "found"), [(870e12, []), (700e12, ["drops_under_load"])])
def test_a_rate_that_drops(last: float, found: list[str]) -> None:
    sustained = {"value": last, "first": 915e12, "last": last}
    assert reasons(judged(Outcome(TARGET, sustained=sustained))) == found


def test_too_little_time() -> None:
    """No GPU is blamed for it."""
    result = judged(out_of_time=True)
    assert result.verdict.health is Health.UNKNOWN
    assert result.verdict.unknown[0].why == "the time limit was too short: use a longer --timeout"
