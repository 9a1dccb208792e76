"""From an injected fault to the notification, through a real Prometheus and a real Alertmanager."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from tests.support.alerting import CONFIG, Hook, alertmanager
from tests.support.tools import tool, until

BY_NAME = {mode.name: mode for mode in MODES}
# Receivers of warnings, if not tickets.
RECEIVERS = {Domain.COST: "gpu-digest"}


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Alertmanager's own tool."""
    return subprocess.run([tool("amtool"), *arguments], capture_output=True, text=True)


def test_amtool_accepts_the_example() -> None:
    """Every route, receiver and matcher is valid."""
    checked = amtool("check-config", str(CONFIG))
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS" in checked.stdout


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_alerts_reach_their_receivers(mode: FailureMode) -> None:
    """Critical alerts page, warnings make a ticket or are in the cost digest, info never notifies."""
    labels = {"alertname": mode.name, "severity": mode.severity.value, "domain": mode.domain.value}
    routed = amtool(
        "config", "routes", "test", f"--config.file={CONFIG}", *(f"{name}={value}" for name, value in labels.items())
    )
    expected = {
        Severity.CRITICAL: "gpu-page",
        Severity.WARNING: RECEIVERS.get(mode.domain, "gpu-ticket"),
        Severity.INFO: "gpu-nobody",
    }
    assert routed.stdout.split() == [expected[mode.severity]]


def test_inhibitions_require_a_place() -> None:
    """Alertmanager treats two missing labels as equal, so both sides must have the compared label.

    A fault of a fleet, and the remediation controller, concern a whole cluster.
    """
    inhibitions = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
    assert len(inhibitions) > 4
    for each in inhibitions:
        cluster, *same = each["equal"]
        assert cluster == "cluster"
        source = each["source_matchers"][0]
        if "GpuFleetFault" in source or "GpuRemediation" in source:
            continue
        assert tuple(same) in (("UUID",), ("node",), ("namespace", "workload"))
        for side in ("source_matchers", "target_matchers"):
            assert f'{same[-1]}=~".+"' in each[side]


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook receiver."""
    with Hook() as found:
        yield found


def labels(name: str, **more: str) -> dict[str, str]:
    """Return the labels of the alert of a failure mode."""
    mode = BY_NAME[name]
    return {"alertname": name, "severity": mode.severity.value, "domain": mode.domain.value, **more}


def test_causes_inhibit_their_effects(tmp_path: Path, hook: Hook) -> None:
    """Only on the same GPU or node, or in the same job. Alerts are never inhibited for lacking these labels."""
    with alertmanager(tmp_path, hook) as running:
        running.send(
            [
                {"alertname": "KubeNodeNotReady", "severity": "warning", "node": "dead"},
                labels("GpuThermalThrottling", node="dead", UUID="GPU-on-dead"),
                labels("GpuThermalThrottling", node="well", UUID="GPU-hot"),
                labels("GpuStragglerSlow", node="well", UUID="GPU-hot"),
                labels("GpuStragglerSlow", node="well", UUID="GPU-cold"),
                labels("GpuJobStalled", namespace="ml", workload="train"),
                labels("GpuCollectiveStall", node="well", UUID="GPU-waits", namespace="ml", workload="train"),
                labels("GpuCollectiveStall", node="well", UUID="GPU-elsewhere", namespace="ml", workload="other"),
                labels("GpuExporterDown", node="silent"),
                labels("GpuLost", node="silent", UUID="GPU-silent"),
                labels("GpuTelemetryStale", node="well", UUID="GPU-stale"),
                labels("GpuEccUncorrectable", node="well", UUID="GPU-broken"),
                labels("GpuRowRemapPending", node="well", UUID="GPU-broken"),
                labels("GpuRowRemapPending", node="well", UUID="GPU-old"),
                labels("GpuAllocatedIdle", node="well", UUID="GPU-idle"),
                labels("GpuMemoryHoarded", node="well", UUID="GPU-idle"),
                # Alerts without a GPU or a node.
                labels("GpuLost", node="well"),
                labels("GpuExporterDown", instance="a"),
                labels("GpuTelemetryStale", instance="b"),
                {"alertname": "NodeDown", "severity": "critical", "instance": "c"},
            ]
        )
        expected = {
            ("GpuThermalThrottling", "GPU-on-dead"),
            ("GpuStragglerSlow", "GPU-hot"),
            ("GpuCollectiveStall", "GPU-waits"),
            ("GpuLost", "GPU-silent"),
            ("GpuRowRemapPending", "GPU-broken"),
            ("GpuMemoryHoarded", "GPU-idle"),
        }
        until(lambda: running.inhibited() == expected, what=f"the inhibition of {expected}")
        until(lambda: hook.received("GpuRowRemapPending", "firing"), what="the ticket")
        until(lambda: hook.received("GpuEccUncorrectable", "firing"), what="the page")
        assert {path for path, _ in hook.received("GpuEccUncorrectable", "firing")} == {"/page"}
        notified = [each["labels"]["UUID"] for _, each in hook.received("GpuRowRemapPending", "firing")]
        assert set(notified) == {"GPU-old"}


def test_a_fault_of_the_fleet_is_one_message(tmp_path: Path, hook: Hook) -> None:
    """Its nodes are silent, but not for another fault, and not in another cluster."""
    fault = {"node": "n1", "xid": "79"}
    with alertmanager(tmp_path, hook) as running:
        running.send([labels("GpuFleetFault", cluster="c", cause="GpuXidFatal", xid="79")])
        until(lambda: hook.received("GpuFleetFault", "firing"), what="the page about the fleet")
        nodes = [labels("GpuXidFatal", cluster="c", node=f"n{n}", UUID=f"GPU-{n}", xid="79") for n in range(40)]
        others = [
            labels("GpuXidFatal", **fault, cluster="d", UUID="GPU-of-d"),
            labels("GpuXidFatal", **fault, UUID="GPU-of-none"),
            labels("GpuXidFatal", cluster="c", node="n1", UUID="GPU-1b", xid="119"),
            labels("GpuRowRemapFailed", cluster="c", node="n2", UUID="GPU-2b"),
        ]
        running.send([*nodes, *others])
        uuids = {each["UUID"] for each in others}

        def paged() -> set[str]:
            found = hook.received("GpuXidFatal", "firing") + hook.received("GpuRowRemapFailed", "firing")
            return {alert["labels"]["UUID"] for _, alert in found}

        until(lambda: paged() >= uuids, what="the pages about other faults")
        assert paged() == uuids
        assert running.inhibited() == {("GpuXidFatal", each["UUID"]) for each in nodes}
