"""The controller's own metrics, and everything that reads them by name."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.alerting.remediation import REMEDIATION
from gpu_exporter.catalogue.failure_modes import remediation as modes
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.reconcile import Reason
from gpu_exporter.remediation.state import DrainPhase, DrainProgress, DrainState
from tests import ROOT
from tests.support.remediation_metrics import BEGAN, STATE, full, node, planned

NAME = re.compile(r"gpu_remediation_\w+")


def samples(of: ControllerMetrics) -> dict[str, float]:
    """Return the samples as Prometheus parses them, by name and labels."""
    return {
        f"{sample.name}{dict(sorted(sample.labels.items()))}": sample.value
        for family in text_string_to_metric_families(of.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


NAMES = {name.partition("{")[0] for name in samples(full())}


def test_rules_and_alerts_read_what_there_is() -> None:
    """A series that does not exist would make them silent."""
    read = {name for each in REMEDIATION for name in NAME.findall(each.expression)}
    read |= {name for mode in modes.MODES for name in NAME.findall(f"{mode.fleet} {' '.join(mode.inject.series)}")}
    assert read <= NAMES, "fix: correct the names in the rules and failure modes of remediation"


@pytest.mark.drift
def test_every_metric_is_documented() -> None:
    listed = set(NAME.findall((ROOT / "docs/remediation.md").read_text()))
    assert listed >= NAMES, "fix: add a row to the table of metrics in docs/remediation.md"
    assert listed <= NAMES, "fix: remove what does not exist from docs/remediation.md"


@pytest.mark.drift
def test_every_reason_is_documented() -> None:
    """People see it in the log, on the dashboard and in Events."""
    text = (ROOT / "docs/remediation.md").read_text()
    missing = [reason.value for reason in Reason if f"`{reason.value}`" not in text]
    assert not missing, "fix: add them to the table of reasons in docs/remediation.md"


@pytest.mark.drift
def test_every_alert_is_documented() -> None:
    text = (ROOT / "docs/remediation.md").read_text()
    missing = [mode.name for mode in modes.MODES if f"runbooks/{mode.name.lower()}.md" not in text]
    assert not missing, "fix: add them to the table of alerts in docs/remediation.md"


def test_only_the_leader_knows_nodes() -> None:
    """Otherwise two replicas would contradict each other."""
    metrics = full()
    assert any("draining" in name for name in samples(metrics))
    metrics.lead(leads=False)
    assert not any("training" in name and "_total" not in name for name in samples(metrics))


def test_a_state_lasts_until_the_decision_changes() -> None:
    """Healthy nodes have no series; one that is gone has none, either."""
    now = [BEGAN]
    metrics = ControllerMetrics(lambda: now[0])
    name = "gpu_remediation_node_state_since_timestamp_seconds" + str(
        {"node": "n", "pool": "training", "reason": "unknown"}
    )
    metrics.set(*planned([node("n", STATE)], BEGAN))
    now[0] += 60
    metrics.set(*planned([node("n", STATE)], BEGAN))
    assert samples(metrics)[name] == BEGAN
    metrics.set(*planned([node("n", STATE)], BEGAN, Ledger(paused="rollout")))
    metrics.set(*planned([], BEGAN))
    assert not any("'n'" in each for each in samples(metrics))
    metrics.set(*planned([node("n", STATE)], BEGAN))
    assert samples(metrics)[name] == BEGAN + 60


def test_values() -> None:
    """Counts by pool and reason, times in unix seconds, and nothing about nodes that are gone."""
    metrics = ControllerMetrics(lambda: BEGAN + 90)
    held = replace(STATE, phase=DrainPhase.HELD)
    drained = replace(STATE, drain=DrainState(BEGAN + 60, DrainProgress.DRAINED))
    given_up = replace(STATE, drain=DrainState(BEGAN + 50, DrainProgress.TIMEOUT))
    nodes = [
        *(node(name) for name in ("a", "b")),
        node("drains", STATE),
        node("drained", drained),
        node("stuck", given_up),
        node("held", held),
        node("alone", replace(STATE, drain=None)),
        replace(node("off"), labels={"gpu-exporter.io/remediation": "disabled"}),
    ]
    metrics.set(*planned(nodes, BEGAN, Ledger(breaker={"lost": BEGAN})))
    found = {name: value for name, value in samples(metrics).items() if "pool" in name or "fault" in name}

    def name(suffix: str, **labels: str) -> str:
        return f"gpu_remediation_{suffix}{dict(sorted(labels.items()))}"

    pool = {"pool": "training"}
    since = "timestamp_seconds"
    unknown = ("a", "b", "drains", "drained", "stuck", "held", "alone")
    assert found == {
        name("nodes", **pool, reason="unknown"): 7,
        name("nodes", **pool, reason="opted_out"): 1,
        name("budget_remaining", **pool): 0,
        name("breaker_open", fault="lost"): 1,
        name("breaker_open", fault="stalled"): 1,
        **{name(f"node_state_since_{since}", **pool, node=each, reason="unknown"): BEGAN + 90 for each in unknown},
        **{
            name(f"cordoned_since_{since}", **pool, node=each): BEGAN
            for each in ("drains", "drained", "stuck", "alone")
        },
        name(f"draining_since_{since}", **pool, node="drains"): BEGAN + 60,
        name(f"draining_since_{since}", **pool, node="stuck"): BEGAN + 50,
    }
    metrics.set(*planned([node(str(number)) for number in range(20)], BEGAN))
    assert samples(metrics)[name("budget_remaining", **pool)] == 1
    assert not any("drain" in each or "breaker" in each for each in samples(metrics) if "{" in each and "'" in each)


@pytest.mark.parametrize("leads", [True, False])
def test_who_leads(leads: bool) -> None:
    metrics = ControllerMetrics()
    assert not metrics.leads
    metrics.lead(leads=leads)
    assert metrics.leads is leads
    assert samples(metrics)["gpu_remediation_leader{}"] == leads
