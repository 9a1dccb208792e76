"""The same faults raise the same alerts with the rules of two levels, and in vmalert on VictoriaMetrics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.rules.needed import bundled, write_needed
from tests.rules.promtool import BY_NAME, RULES, check
from tests.rules.series import Generation
from tests.rules.test_modes import case
from tests.scale.engines import vmalert_tool
from tests.support.incidents import in_incident_of
from tests.support.tools import NEWER

ALERTS = ("GpuStragglerSlow", "GpuThermalThrottling", "GpuLost", "GpuNicSlowRail")
CASE = case(Generation.GPU_EXPORTER, [BY_NAME[name] for name in ALERTS])


def needed(folder: Path, part: str) -> Path:
    """Write the rules of a part of the bundle that these alerts need, and return the file: all take much longer."""
    path = folder / "rules.yaml"
    write_needed(bundled(folder, part), path, _with_implied())
    groups = json.loads(path.read_text())["groups"]
    named = [{**group, "name": f"{group['name']}-{number}"} for number, group in enumerate(groups)]
    path.write_text(json.dumps({"groups": named}))  # both levels have groups of the same name
    return path


def _with_implied() -> Collection[str]:
    return {each for name in ALERTS for each in in_incident_of(BY_NAME[name])}


def test_two_levels_raise_the_same_alerts(tmp_path: Path) -> None:
    """Shards and the level above, as one: the rules of shards compare no nodes."""
    check(tmp_path, [CASE], rules=[needed(tmp_path, "levels")])


@pytest.mark.slowest
def test_vmalert_raises_the_same_alerts(tmp_path: Path) -> None:
    """With holds and `keep_firing_for`, from the same samples."""
    content = dict(CASE.rendered())
    content["metricsql_expr_test"] = content.pop("promql_expr_test")
    done = vmalert_tool(tmp_path, needed(tmp_path, "vmalert"), content)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


@pytest.mark.parametrize("part", ["alerts", "levels", "vmalert"])
def test_vmalert_accepts_all_rules(part: str, tmp_path: Path) -> None:
    """Expressions and templates."""
    paths = RULES if part == "alerts" else sorted(bundled(tmp_path, part).iterdir())
    for path in paths:  # together, files have groups of the same name
        done = subprocess.run([NEWER / "vmalert", "-dryRun", f"-rule={path}"], capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stderr[-2000:]}"
