"""Runs a history through rules: in one Prometheus, in two levels of Prometheus, and in vmalert on VictoriaMetrics."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.alerting import levels, rules
from gpu_exporter.alerting.levels import RuleLevel
from tests import ROOT
from tests.operation.encode import period
from tests.operation.run import PROGRAM
from tests.operation.verdict import Firing, firings
from tests.rules.needed import bundled, write_needed
from tests.rules.series import selector
from tests.rules.shapes import STEP, notation
from tests.scale.histories import SHARDS, TICKS, History
from tests.support.tools import NEWER, tool
from tests.support.victoria import Labels, Samples

# The interval of the slowest rule groups, in seconds.
EVALUATION = 60


@dataclass(frozen=True, slots=True)
class Shard:
    """How a shard differs from a good one: seconds that its clock is ahead and its samples late; when it is down."""

    ahead: int = 0
    late: int = 0
    stopped: Sequence[tuple[int, int]] = field(default=())

    def encoded(self) -> Mapping[str, Any]:
        """Return it as virtual_clock reads it."""
        return {"Ahead": self.ahead, "Late": self.late, "Stopped": self.stopped}


def one(history: History, folder: Path, *, aligned: bool = False) -> list[Firing]:
    """Return what one Prometheus with all rules reports.

    `aligned`: it evaluates all groups at once, and alerts after what they read.
    """
    content, path = {**period(history.series, TICKS), "Aligned": aligned}, rule_file(folder)
    if aligned:
        groups = json.loads(path.read_text())["groups"]
        groups.sort(key=lambda group: "alert" in group["rules"][0])
        path.write_text(json.dumps({"groups": groups}))
    return _run(folder / "one", content, path)


def two(history: History, folder: Path, shards: Sequence[Shard] = (Shard(),) * SHARDS) -> list[Firing]:
    """Return what two levels of Prometheus report: shards with their rules, and one above them with the others."""
    below, above = (bundled(folder, "levels") / f"{level.value}.yaml" for level in (RuleLevel.SHARD, RuleLevel.GLOBAL))
    forwarded = levels.split(rules.groups({})).forwarded
    content = {
        **period(history.series, TICKS, history.shard_of),
        "Levels": {"Rules": str(below), "Forwarded": forwarded, "Shards": [each.encoded() for each in shards]},
    }
    return _run(folder / "two", content, above)


def _run(folder: Path, content: Mapping[str, Any], rule_files: Path, *blocks: Path) -> list[Firing]:
    folder.mkdir()
    (folder / "period.json").write_text(json.dumps(content))
    command = [PROGRAM, folder / "period.json", rule_files, folder / "data", *blocks]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return firings(done.stdout.splitlines(), TICKS * STEP)


def rule_file(folder: Path, source: Path = ROOT / "alerts") -> Path:
    """Write all alerts of a folder of rules and what they read to one file."""
    path = folder / "rules.yaml"
    write_needed(source, path)
    return path


def vmalert_test(history: History, folder: Path, expected: Sequence[Firing]) -> str:
    """Evaluate all alerts in vmalert, on VictoriaMetrics; return how they differ from those that are expected.

    They are compared each minute, except within an evaluation of a start or an end: the virtual clock is Prometheus 2,
    which counts the sample at the beginning of a window, too, so a window ends one evaluation later. It evaluates a
    scrape after vmalert.
    """
    inputs = [{"series": selector(*key), "values": notation(parts)} for key, parts in history.series.items()]
    ends = [at for firing in expected for at in (firing.start, firing.end)]
    times = [at for at in range(120, TICKS * STEP, 60) if all(abs(at - end) > EVALUATION + STEP for end in ends)]
    labels = ", ".join(sorted({name for firing in expected for name, _ in firing.key}))
    query = f'group by ({labels}) (ALERTS{{alertstate="firing"}})'
    tests = [
        {"expr": query, "eval_time": f"{at}s", "exp_samples": [_sample(each) for each in expected if _fires(each, at)]}
        for at in times
    ]
    case = {"name": "histories", "interval": f"{STEP}s", "input_series": inputs, "metricsql_expr_test": tests}
    done = vmalert_tool(folder, rule_file(folder, bundled(folder, "vmalert")), case)
    return f"compared at {len(times)} times" + ("" if done.returncode == 0 else f": {done.stdout}{done.stderr}")


def vmalert_tool(folder: Path, rules: Path, case: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run a unit test of vmalert, which evaluates the groups of a file in their order."""
    order = [group["name"] for group in yaml.safe_load(rules.read_text())["groups"]]
    path = folder / "vmalert.yaml"
    path.write_text(json.dumps({"rule_files": [str(rules)], "group_eval_order": order, "tests": [case]}))
    return subprocess.run([NEWER / "vmalert-tool", "unittest", f"--files={path}"], capture_output=True, text=True)


def _fires(firing: Firing, at: float) -> bool:
    return firing.start <= at < firing.end


def _sample(firing: Firing) -> Mapping[str, Any]:
    labels = ", ".join(f"{name}={json.dumps(value)}" for name, value in firing.key)
    return {"labels": f"{{{labels}}}", "value": 1}


def stores(history: History, folder: Path) -> None:
    """Write what one Prometheus has stored of a history to `folder/data`, as its database."""
    content = {**period(history.series, TICKS), "Aligned": True}
    _run(folder / "one", content, ROOT / "alerts/*.yaml", folder / "data")


def dumped(folder: Path) -> Iterator[tuple[Labels, Samples]]:
    """Yield all series of the database in `folder/data`, with the ends of series."""
    command = [str(tool("promtool")), "tsdb", "dump", str(folder / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for series, lines in groupby(map(str.rstrip, process.stdout), lambda line: line.rpartition("} ")[0]):
            labels = dict(_LABEL.findall(series))
            rows = [line.rpartition("} ")[2].split() for line in lines]
            yield labels, [(int(at), None if value == "NaN" else float(value)) for value, at in rows]


_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
