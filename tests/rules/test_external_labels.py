"""Rules where a store or a ruler adds a label to all series, also to recorded ones, such as Thanos' `tenant_id`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue.failure_modes.loops import TrainingLoop
from tests.rules.loops import Stretch, devices, series
from tests.rules.needed import rule_groups
from tests.rules.promtool import RULES, Case, Expect, check
from tests.rules.series import Device, minutes
from tests.rules.test_allocation import BIG, GPU, HELD, SPREAD, cluster

LABEL = "tenant_id"
ADDED = {LABEL: "a"}


@dataclass(frozen=True)
class Labelled:
    """A case whose series all have the label."""

    case: Case

    @property
    def name(self) -> str:
        return self.case.name

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        content = self.case.rendered()
        return {**content, "input_series": [_labelled(each) for each in content["input_series"]]}


def _labelled(series: Mapping[str, str]) -> Mapping[str, str]:
    name, _, labels = series["series"].partition("{")
    return {**series, "series": f'{name}{{{LABEL}="a",{labels or "}"}'}


def labelled_rules(folder: Path) -> Sequence[Path]:
    """Write the rules so that what they record has the label."""
    groups = [
        {**group, "rules": [{**rule, "labels": {**rule.get("labels", {}), **ADDED}} for rule in group["rules"]]}
        for group in rule_groups(tuple(RULES))
    ]
    path = folder / "labelled.yaml"
    path.write_text(json.dumps({"groups": groups}))
    return [path]


def test_jobs_and_allocation(tmp_path: Path) -> None:
    """Each is recorded once, with the values that it has without the label."""
    story = [Stretch(HELD, TrainingLoop("job", trains=0.8))]
    values = {
        "job:speed:per_second": 8000,
        "job:step_typical:seconds": 0.5,
        "job:standstill:seconds < bool 60": 1,
        "job:self_margin:seconds < bool 1": 1,
        f'node:allocated:count{{resource="{GPU}"}}': 4,
        f'cluster:pending:count{{resource="{GPU}"}}': 3,
        f'cluster:starved:count{{resource="{GPU}"}}': 3,
    }
    expected = [Expect(f"round(sum by ({LABEL}) ({name}), 0.0001)", [(ADDED, value)]) for name, value in values.items()]
    expected.append(Expect(f'sum by ({LABEL}) (node:free:count{{resource="{GPU}"}})', [(ADDED, 4.0)]))
    more = [*series("job", story), *cluster(*SPREAD, BIG).series()]
    fleet = [Device("well", 0, [minutes(HELD)]), *devices("job", story)]
    check(tmp_path, [Labelled(Case("labelled", fleet, expected, more=more))], rules=labelled_rules(tmp_path))
