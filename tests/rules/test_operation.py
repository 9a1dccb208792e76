"""Six and a half hours of operation in promtool: every incident is reported, and nothing else is.

`make soak` runs two weeks, with restarts of Prometheus, which promtool cannot simulate.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.operation.activities import train
from tests.operation.compositions import DCGM, OURS, USUAL_JOBS, USUAL_PIPELINES
from tests.operation.encode import series
from tests.operation.fleet import HOUR, Fleet, Truth, steps
from tests.operation.incidents import BY_NAME, Site, fatal, inject
from tests.rules.promtool import check
from tests.rules.series import selector
from tests.rules.shapes import STEP, notation
from tests.support.incidents import in_incident_of

HOURS = 6.5
# Alerts of normal operation are info.
TICKETS = 'alertstate="firing", severity!="info"'


def shift() -> Fleet:
    """Return a working day: two training jobs, an uneven pipeline, a planned reboot, failed scrapes, incidents."""
    rng, fleet, broken = random.Random("shift"), Fleet(int(HOURS * HOUR)), int(3.5 * HOUR)
    ours, theirs = fleet.node("train-a", 2, OURS), fleet.node("train-b", 2, DCGM)
    pipes = fleet.node("pipes", 2, OURS)
    fleet.node("spare", 1, OURS)
    train(fleet, ours, steps(5), fleet.total, "llm", USUAL_JOBS[0], rng)
    train(fleet, theirs, steps(5), fleet.total, "vit", USUAL_JOBS[1], rng)
    train(fleet, pipes, steps(5), fleet.total, "pipe", USUAL_PIPELINES[0], rng)
    fleet.clocks = {"train-a": [(0, -600.0)], "pipes": [(0, -200.0), (3 * HOUR, 90.0)]}
    fleet.reboot("spare", 2 * HOUR, 8.0)
    fleet.silence("pipes", 4 * HOUR, 2.5)
    inject(fleet, Site("train-a", ours, jobs=True), BY_NAME["GpuCollectiveStall"], 2 * HOUR, rng)
    inject(fleet, Site("train-b", theirs, jobs=True), BY_NAME["GpuStragglerStarved"], HOUR, rng)
    inject(fleet, Site("train-b", theirs), BY_NAME["GpuThermalThrottling"], 3 * HOUR, rng)
    fatal(fleet, Site("train-a", ours), "GpuEccUncorrectable", 48, broken, rng)
    fleet.silence("train-a", broken + steps(30), 2)
    return fleet


class Shift:
    """The test in promtool's format: which alerts fire when, and which have fired at the end."""

    name = "shift"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        inputs = [{"series": selector(*key), "values": notation(parts)} for key, parts in series(self._fleet).items()]
        incidents = [truth for truth in self._fleet.truths if truth.must]
        tests = [each for truth in incidents for each in _in_time(truth)]
        names = sorted({(name, truth.node) for truth in incidents for name in truth.must})
        implied = {name for cause, _ in names for name in in_incident_of(BY_NAME[cause])} - {name for name, _ in names}
        those = f'{TICKETS}, alertname!~"{"|".join(sorted(implied))}"'
        ever = f"group by (alertname, node) (last_over_time(ALERTS{{{those}}}[1d]))"
        tests.append(_expect(ever, self._fleet.total - 1, [{"alertname": name, "node": node} for name, node in names]))
        return {"name": self.name, "interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": tests}


def _in_time(truth: Truth) -> Sequence[Mapping[str, Any]]:
    """Expect the alerts of an incident in time, and that of a fatal XID until the repair."""
    times = [truth.start + steps(truth.within), *([truth.end - steps(10)] if truth.lasts else [])]
    return [
        _expect(
            f'group by (alertname, node) (ALERTS{{{TICKETS}, alertname="{name}"}})',
            at,
            [{"alertname": name, "node": truth.node}],
        )
        for name in truth.must
        for at in times
    ]


def _expect(expression: str, at: int, labels: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    samples = [{"labels": selector("", each.items()), "value": 1} for each in labels]
    return {"expr": expression, "eval_time": f"{at * STEP}s", "exp_samples": samples}


def test_a_shift(tmp_path: Path) -> None:
    check(tmp_path, [Shift(shift())])
