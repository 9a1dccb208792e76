"""Runs rule tests in two versions of promtool: the bundled and the newest."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import promql_parser

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from tests import ROOT
from tests.rules.needed import write_read
from tests.rules.series import Device, input_series
from tests.rules.shapes import STEP
from tests.support.tools import NEWER, is_long, tool

RULES = sorted((ROOT / "alerts").glob("*.yaml"))
BY_NAME = {mode.name: mode for mode in MODES}
# The interval of what lasts for hours; only with `--long` that of the committed groups.
COARSE = "1m" if is_long() else "2m"
# A brace, or a string that may have some.
BRACE = re.compile(r'"(?:[^"\\]|\\.)*"|\{')
WHAT = "alertname, node, gpu, severity, domain, action"

Sample = tuple[Mapping[str, str], float]


def promtools() -> Sequence[Path]:
    """Return the bundled and the newest promtool."""
    newest = NEWER / "promtool"
    assert newest.is_file(), f"{newest} is not there: run `make tools`"
    return tool("promtool"), newest


@dataclass(frozen=True, slots=True)
class Expect:
    """The samples that an expression returns at the end of the test."""

    expression: str
    samples: Sequence[Sample] = ()

    def rendered(self, at: int) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        samples = [{"labels": _labels(labels), "value": value} for labels, value in self.samples]
        return {"expr": self.expression, "eval_time": f"{at}s", "exp_samples": samples}


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items() if value) + "}"


@dataclass(frozen=True, slots=True)
class Case:
    """Devices, and the expected results at the end of their stories."""

    name: str
    devices: Sequence[Device]
    expected: Sequence[Expect]
    alerts: Sequence[Mapping[str, Any]] = field(default=())
    more: Sequence[Mapping[str, str]] = field(default=())

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format. All stories must have the same length."""
        (steps,) = {sum(stretch.steps for stretch in device.story) for device in self.devices}
        end = (steps - 1) * STEP
        return {
            "name": self.name,
            "interval": f"{STEP}s",
            "input_series": [*input_series(self.devices), *self.more],
            "promql_expr_test": [each.rendered(end) for each in self.expected],
            "alert_rule_test": [{"eval_time": f"{end}s", **each} for each in self.alerts],
        }


class Rendered(Protocol):
    """A test in promtool's format."""

    @property
    def name(self) -> str:
        """Return its name."""

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""


def check(
    folder: Path,
    cases: Iterable[Rendered],
    programs: Sequence[Path] | None = None,
    rules: Sequence[Path] | None = None,
    interval: str = "1m",
) -> None:
    """Run every case; a failure shows each expression with its actual result.

    By default in the newest promtool, with `--long` in both. The bundled one takes most of the time; it always runs
    the comparison with Python, and the bundled Prometheus the e2e tests. promtool evaluates all groups at one interval.
    Of the files of rules, it evaluates those that a case reads.
    """
    programs = programs or promtools()[0 if is_long() else 1 :]
    runs = []
    for number, case in enumerate(cases):
        path, test = folder / f"{number}.yaml", case.rendered()
        read = folder / f"rules-{number}.yaml"
        _write_read(rules or RULES, read, test)
        content = {"rule_files": [str(read)], "evaluation_interval": interval, "tests": [test]}
        path.write_text(json.dumps(content))
        runs += [(program, path, case.name) for program in programs]
    with ThreadPoolExecutor(2) as pool:
        failures = [failure for failure in pool.map(_run, runs) if failure]
    assert not failures, "\n\n".join(failures)


def check_together(
    folder: Path, cases: Iterable[Rendered], rules: Sequence[Path] | None = None, interval: str = "1m"
) -> None:
    """Check cases as one, each in a cluster of its own: rules take most of the time, with or without series.

    A failure shows the name of the case as the cluster of its expression. No alert may be without a cluster.
    """
    check(folder, [Together(tuple(cases))], rules=rules, interval=interval)


@dataclass(frozen=True, slots=True)
class Together:
    """Cases of any length as one test, each in the cluster of its name."""

    cases: Sequence[Rendered]
    name: str = "together"

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        tests = {case.name: case.rendered() for case in self.cases}
        assert len(tests) == len(self.cases), "two cases have the same name"
        assert not any(test.get("alert_rule_test") for test in tests.values()), "alerts of all clusters are compared"
        (interval,) = {test["interval"] for test in tests.values()}
        series, expected = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
        for name, test in tests.items():
            own = f'{{cluster="{name}",'
            series += [{**each, "series": each["series"].replace("{", own, 1)} for each in test["input_series"]]
            expected += [{**each, "expr": _in_cluster(each["expr"], own)} for each in test["promql_expr_test"]]
        last = max(expected, key=lambda each: int(each["eval_time"].removesuffix("s")))
        nowhere = {"expr": 'last_over_time(ALERTS{cluster=""}[1d])', "eval_time": last["eval_time"], "exp_samples": []}
        return {"interval": interval, "input_series": series, "promql_expr_test": [*expected, nowhere]}


def _in_cluster(expression: str, begin: str) -> str:
    """Return an expression whose selectors begin so, and whose results have no cluster."""
    # As the parser writes it, each selector has braces.
    text = str(promql_parser.parse(expression))
    inner = BRACE.sub(lambda found: begin if found[0] == "{" else found[0], text)
    return f'label_replace({inner}, "cluster", "", "cluster", ".*")'


def _write_read(rules: Sequence[Path], target: Path, test: Mapping[str, Any]) -> None:
    """Write the rules that a test reads."""
    expressions = [each["expr"] for each in test["promql_expr_test"]]
    write_read(rules, target, expressions, {each["alertname"] for each in test.get("alert_rule_test", ())})


def _run(run: tuple[Path, Path, str]) -> str:
    program, path, name = run
    found = subprocess.run([program, "test", "rules", path], capture_output=True, text=True, timeout=300)
    if found.returncode == 0:
        return ""
    return f"{name}, {program}:\n{found.stdout[-6000:]}{found.stderr[-6000:]}"


def firing(node: str, names: Iterable[str], gpus: Iterable[int | None] = (0,)) -> list[Sample]:
    """Return these alerts on these GPUs of a node; None means the whole node."""
    return [(_alert(BY_NAME[name], node, gpu), 1.0) for name in names for gpu in gpus]


def _alert(mode: FailureMode, node: str, gpu: int | None) -> Mapping[str, str]:
    return {
        "alertname": mode.name,
        "node": node,
        "gpu": "" if gpu is None else str(gpu),
        "severity": mode.severity.value,
        "domain": mode.domain.value,
        "action": mode.action.value,
    }


def now_firing(node: str, where: str, samples: Sequence[Sample]) -> Expect:
    """Expect exactly these alerts of a node, narrowed down by `where`, to fire at the end."""
    return Expect(f'group by ({WHAT}) (ALERTS{{alertstate="firing", node="{node}"{where}}})', samples)


def never_fired(node: str, but: Iterable[str] = ()) -> Expect:
    """Expect that no alert of a node fired at any time, except for `but`."""
    allowed = f', alertname!~"{"|".join(but)}"' if but else ""
    return Expect(f'group by ({WHAT}) (last_over_time(ALERTS{{alertstate="firing", node="{node}"{allowed}}}[1d]))')


def no_other_node(nodes: Iterable[str]) -> Expect:
    """Expect that no alert fired on other nodes or without a node."""
    known = "|".join(nodes)
    return Expect(f'group by ({WHAT}) (last_over_time(ALERTS{{alertstate="firing", node!~"{known}"}}[1d]))')
