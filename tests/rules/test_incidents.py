"""Incidents of random sets of alerts are the same in Python, in Prometheus, and for Alertmanager's inhibitions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.alerting import incidents as recorded
from gpu_exporter.alerting import rules
from gpu_exporter.alerting.alertmanager import alertmanager
from gpu_exporter.alerting.groups import as_text
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.diagnosis.incidents import PlacedMode, incidents
from tests.rules.promtool import Expect, check

SETS = 200
# promtool refuses to load many more alerts into one query.
AT_ONCE = 25
# As they are where they are only info.
LESSER = [mode.as_info for mode in MODES if mode.lesser]
WHERE = ("cluster", "node", "UUID", "namespace", "workload")


def labels(finding: PlacedMode) -> Mapping[str, str]:
    """Return the labels of the alert of a finding."""
    mode = finding.mode
    return {"alertname": mode.name, "severity": mode.severity.value, "domain": mode.domain.value, **finding.labels}


def drawn(number: int) -> Sequence[PlacedMode]:
    """Draw alerts on the GPUs of two nodes, on which two jobs run; some lack the GPU, the node or the job."""
    chance = random.Random(number)
    found = {}
    for mode in chance.sample([*MODES, *LESSER], chance.randint(2, 12)):
        for gpu in chance.sample(range(4), chance.randint(1, 2)):
            where = {
                "cluster": f"c{number}",
                "node": f"n{gpu // 2}",
                "UUID": f"GPU-{gpu}",
                "namespace": "ml",
                "workload": f"job-{gpu % 2}",
            }
            missing = chance.choice(((), (), ("workload", "namespace"), ("UUID",), ("node",), ("UUID", "node")))
            known = {name: text for name, text in where.items() if name not in missing}
            found[(mode.name, *known.values())] = PlacedMode(mode, known)
    return list(found.values())


class Alerts:
    """The alerts of all sets, each in a cluster of its own, and the causes that Python finds among them."""

    name = "incidents"

    def __init__(self, sets: Sequence[Sequence[PlacedMode]]) -> None:
        self._sets = sets

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        firing = [{**labels(each), "alertstate": "firing"} for findings in self._sets for each in findings]
        causes = [
            {**labels(cause), "alertstate": "firing"}
            for findings in self._sets
            for incident in incidents(findings)
            for cause in incident.causes
        ]
        expected = Expect(f"group without (none) ({recorded.CAUSES.record})", [(each, 1.0) for each in causes])
        inputs = [{"series": f"ALERTS{{{_text(each)}}}", "values": "1 1"} for each in firing]
        return {
            "name": self.name,
            "interval": "1m",
            "input_series": inputs,
            "promql_expr_test": [expected.rendered(60)],
        }


def _text(labels: Mapping[str, str]) -> str:
    return ", ".join(f'{name}="{text}"' for name, text in labels.items())


def test_prometheus_finds_the_same_causes(tmp_path: Path) -> None:
    """Whatever labels alerts lack."""
    only = tmp_path / "rules.yaml"
    only.write_text(as_text(group for group in rules.groups({}) if group.name in ("gpu-alerts", "gpu-incidents")))
    parts = [range(start, start + AT_ONCE) for start in range(0, SETS, AT_ONCE)]
    check(tmp_path, [Alerts([drawn(number) for number in part]) for part in parts], rules=[only])


def test_alertmanager_silences_what_an_incident_explains() -> None:
    """Except for what only info explains; and never the cause of an incident."""
    inhibitions = yaml.safe_load(alertmanager())["inhibit_rules"]
    for number in range(SETS):
        findings = drawn(number)
        silenced = {id(each) for each in findings if any(inhibits(rule, findings, each) for rule in inhibitions)}
        for incident in incidents(findings):
            assert not silenced.intersection(map(id, incident.causes))
        loud = [each for each in findings if each.mode.severity is not Severity.INFO]
        explained = {id(each) for incident in incidents(loud) for each in incident.effects}
        assert {id(each) for each in loud} & silenced == explained, f"set {number}"


def inhibits(rule: Mapping[str, Any], findings: Sequence[PlacedMode], target: PlacedMode) -> bool:
    """Return whether a rule silences an alert; labels that both lack are equal for Alertmanager."""
    if not _matches(rule["target_matchers"], target):
        return False
    return any(
        _matches(rule["source_matchers"], source)
        and all(labels(source).get(name, "") == labels(target).get(name, "") for name in rule["equal"])
        for source in findings
    )


def _matches(matchers: Sequence[str], finding: PlacedMode) -> bool:
    return all(bool(re.fullmatch(wanted, labels(finding).get(name, ""))) for name, wanted in map(_parsed, matchers))


def _parsed(matcher: str) -> tuple[str, str]:
    name, _, wanted = matcher.partition("=")
    return name, wanted.lstrip("~").strip('"')


def test_every_finding_is_in_an_incident() -> None:
    """And each incident has a cause that no other finding explains."""
    for number in range(SETS):
        findings = drawn(number)
        found = incidents(findings)
        assert {id(each) for each in _members(found)} == set(map(id, findings))
        causes = [id(cause) for incident in found for cause in incident.causes]
        assert len(causes) == len(set(causes))


def _members(found: Sequence[Any]) -> Iterator[PlacedMode]:
    for incident in found:
        yield from (*incident.causes, *incident.effects)
