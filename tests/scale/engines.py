"""Runs a history through rules: in one Prometheus, in two levels of Prometheus, and in VictoriaMetrics with vmalert."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.render.rules import levels, rules
from tests import ROOT
from tests.operation.encode import ABSENT, CONSTANT_RATE, LINE, REBOOTS, SEQUENCE, period
from tests.operation.run import PROGRAM
from tests.operation.verdict import Firing, firings
from tests.rules.needed import write_needed
from tests.rules.shapes import STEP
from tests.scale.histories import SHARDS, TICKS, History
from tests.support.tools import tool
from tests.support.victoria import Labels, Samples, Victoria

# vmalert writes results every so often, and VictoriaMetrics shows them within a second.
WRITTEN, VISIBLE = "200ms", "1500ms"


@dataclass(frozen=True, slots=True)
class Shard:
    """How a shard differs from a good one: seconds that its clock is ahead and its samples late; when it is down."""

    ahead: int = 0
    late: int = 0
    stopped: Sequence[tuple[int, int]] = field(default=())

    def encoded(self) -> Mapping[str, Any]:
        """Return it as virtual_clock reads it."""
        return {"Ahead": self.ahead, "Late": self.late, "Stopped": self.stopped}


def one(history: History, folder: Path, *, aligned: bool = False, keep: bool = True) -> list[Firing]:
    """Return what one Prometheus with all rules reports. `aligned`, `keep`: see `rule_file` and virtual_clock."""
    content = {**period(history.series, TICKS), "Aligned": aligned}
    return _run(folder / "one", content, rule_file(folder, keep=keep))


def two(history: History, folder: Path, shards: Sequence[Shard] = (Shard(),) * SHARDS) -> list[Firing]:
    """Return what two levels of Prometheus report: shards with their rules, and one above them with the others."""
    below = ROOT / "alerts/levels/shard.yaml"
    forwarded = levels.split(rules.groups({})).forwarded
    content = {
        **period(history.series, TICKS, history.shard_of),
        "Levels": {"Rules": str(below), "Forwarded": forwarded, "Shards": [each.encoded() for each in shards]},
    }
    return _run(folder / "two", content, ROOT / "alerts/levels/global.yaml")


def _run(folder: Path, content: Mapping[str, Any], rule_files: Path) -> list[Firing]:
    folder.mkdir()
    (folder / "period.json").write_text(json.dumps(content))
    command = [str(PROGRAM), str(folder / "period.json"), str(rule_files), str(folder / "data")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return firings(done.stdout.splitlines(), TICKS * STEP)


def rule_file(folder: Path, *, keep: bool) -> Path:
    """Write all alerts and what they read to one file. Without `keep`, alerts end at once, as in vmalert before 1.92."""
    path = folder / "rules.yaml"
    write_needed(ROOT / "alerts", path)
    if not keep:
        content = yaml.safe_load(path.read_text())
        for group in content["groups"]:
            for rule in group["rules"]:
                rule.pop("keep_firing_for", None)
        path.write_text(yaml.safe_dump(content))
    return path


def samples(content: Mapping[str, Any]) -> Iterator[tuple[Labels, Samples]]:
    """Yield every series of an aligned period as virtual_clock scrapes it, with the ends of series."""
    for series in content["Series"]:
        found: list[tuple[int, float | None]] = []
        for tick, value in enumerate(_values(series["Parts"], content["Loads"])):
            if value is not None or (found and found[-1][1] is not None):
                found.append((tick * STEP * 1000, value))
        yield series["Labels"], found


def _values(parts: Sequence[Sequence[float]], loads: Sequence[Sequence[float]]) -> Iterator[float | None]:
    total = 0.0
    for ticks, kind, first, second in parts:
        for n in range(int(ticks)):
            if kind in (ABSENT, REBOOTS):
                total = 0.0 if kind == REBOOTS else total
                yield None
            elif kind == LINE:
                yield first + second * n
            elif kind == CONSTANT_RATE:
                total += first
                yield total
            else:
                load = second * loads[int(first)][n % len(loads[int(first)])]
                total += load
                yield load if kind == SEQUENCE else total


def replayed(history: History, folder: Path, store: Victoria) -> list[Firing]:
    """Return what vmalert reports, without `keep_firing_for`."""
    store.write(samples(period(history.series, TICKS)))
    replay(store, rule_file(folder, keep=False), TICKS * STEP)
    return list(_reported(store, TICKS * STEP))


def replay(store: Victoria, rule_files: Path, seconds: int) -> None:
    """Let vmalert evaluate rules over the samples of a store, from time 0 on; results are written to the store."""
    command = [
        str(tool("vmalert")),
        f"-rule={rule_files}",
        f"-datasource.url={store.url}",
        f"-remoteWrite.url={store.url}",
        f"-remoteWrite.flushInterval={WRITTEN}",
        f"-replay.rulesDelay={VISIBLE}",
        "-replay.timeFrom=1970-01-01T00:00:00Z",
        f"-replay.timeTo=1970-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}Z",
        "-replay.disableProgressBar",
        "-evaluationInterval=1m",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    store.flush()


def _reported(store: Victoria, seconds: int) -> Iterator[Firing]:
    """Yield the firings that vmalert wrote as ALERTS, whose samples are a minute apart at most."""
    found = store.api("query", query=f'ALERTS{{alertstate="firing"}}[{seconds + 60}s]', time=str(seconds))["result"]
    for series in found:
        labels = {name: value for name, value in series["metric"].items() if name not in _OF_ALERTS}
        times = sorted(at for at, _ in series["values"])
        start = before = times[0]
        for at in (*times[1:], float("inf")):
            if at - before > 60:
                yield _firing(labels, start, before)
                start = at
            before = at


_OF_ALERTS = ("__name__", "alertstate", "alertgroup")


def _firing(labels: Labels, start: float, end: float) -> Firing:
    key = tuple(sorted(labels.items()))
    return Firing(
        labels["alertname"], labels["severity"], labels.get("node", ""), labels.get("gpu", ""), start, end, key
    )
