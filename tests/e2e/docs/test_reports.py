"""A year of hourly sums: the queries of docs/scale.md answer from a real VictoriaMetrics what was recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from gpu_exporter.alerting.hourly_sums import COST, ENERGY, GPU_HOURS, REPORTS, TIME_HOURS, WASTED
from gpu_exporter.catalogue.causes import Cause
from tests import ROOT
from tests.rules.needed import rule_groups
from tests.rules.promtool import Expect, check
from tests.support.victoria import Labels, Samples, victoria

PAGE = (ROOT / "docs/scale.md").read_text()
QUERIES = re.findall(r"^\| .+ \| `(sum by .+?)` \|$", PAGE, re.MULTILINE)
EXAMPLE = re.search(r"<!-- tried by tests/e2e/docs/test_reports.py -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
HOURS = 365 * 24
# The year begins some days after 1970 does: a window that begins at 0 has no samples in VictoriaMetrics.
START = 10 * 86400
# GPUs that each team uses all the time, and the share that is useful.
TEAMS: Mapping[str, tuple[int, float]] = {"research": (64, 0.75), "search": (8, 0.5), "ads": (1, 0.1)}
USD, KWH = 2.5, 0.7


def year() -> Iterator[tuple[Labels, Samples]]:
    """Yield the hourly sums of each team; the second half of the year has twice the GPUs."""
    for team, (gpus, useful) in TEAMS.items():
        of_hour = {
            (GPU_HOURS.record, ""): 1.0,
            (COST.record, ""): USD,
            (WASTED.record, ""): USD * (1 - useful),
            (ENERGY.record, ""): KWH,
            (TIME_HOURS.record, Cause.USEFUL.value): useful,
            (TIME_HOURS.record, Cause.HOST.value): 1 - useful,
        }
        for (name, cause), value in of_hour.items():
            labels = {"__name__": name, "cluster": "a", "namespace": team, "cause": cause}
            yield (
                labels,
                [((START + n * 3600) * 1000, value * gpus * (1 + (n > HOURS / 2))) for n in range(1, HOURS + 1)],
            )


def test_a_year_by_team(tmp_path: Path) -> None:
    """Hours, price, waste, utilisation and energy are those of the year."""
    hours = HOURS * 1.5
    with victoria(tmp_path) as store:
        store.write(year())
        answers = []
        for query in QUERIES:
            found = store.api("query", query=query, time=str(START + HOURS * 3600))["result"]
            answers.append({each["metric"]["namespace"]: float(each["value"][1]) for each in found})
    factors = {team: (gpus * hours, useful) for team, (gpus, useful) in TEAMS.items()}
    expected = [
        {team: used for team, (used, _) in factors.items()},
        {team: used * USD for team, (used, _) in factors.items()},
        {team: used * USD * (1 - useful) for team, (used, useful) in factors.items()},
        {team: useful for team, (_, useful) in factors.items()},
        {team: used * KWH for team, (used, _) in factors.items()},
    ]
    assert answers == [pytest.approx(each, rel=1e-3) for each in expected]


def test_exactly_these_series_are_kept() -> None:
    """The example keeps what the rules record for reports."""
    assert EXAMPLE
    (keep,) = yaml.safe_load(EXAMPLE[1])["remote_write"][0]["write_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], each.record) for each in REPORTS)
    assert sum(each.record.count(":") for each in REPORTS) == 2 * keep["regex"].count("|") + 2


class Used:
    """A namespace that uses three GPUs for half of an hour, in promtool's format."""

    name = "reports"

    def rendered(self) -> Mapping[str, object]:
        """Return it in promtool's format."""
        labels = 'cluster="a",namespace="research",workload="llm"'
        inputs = [{"series": f"workload:gpus:count{{{labels}}}", "values": "_x30 3x29 stale"}]
        expect = Expect(
            GPU_HOURS.record, [({"__name__": GPU_HOURS.record, "cluster": "a", "namespace": "research"}, 1.5)]
        )
        return {"interval": "1m", "input_series": inputs, "promql_expr_test": [expect.rendered(3600)]}


def test_an_hour_is_the_sum_of_its_minutes(tmp_path: Path) -> None:
    """Also of a workload that runs for a part of it."""
    groups = rule_groups((ROOT / "alerts/recording.yaml",))
    (reports,) = (group for group in groups if group["name"] == "gpu-reports")
    path = tmp_path / "reports.yaml"
    path.write_text(json.dumps({"groups": [reports]}))
    check(tmp_path, [Used()], rules=[path])
