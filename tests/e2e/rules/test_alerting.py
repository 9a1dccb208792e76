"""From an injected fault to the notification, through a real Prometheus and a real Alertmanager."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.render.boards import panel_link
from tests.conftest import Serve
from tests.support.alerting import CONFIG, Hook, alertmanager, rules
from tests.support.prometheus import scraping
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


def test_inhibitions_require_uuid_or_node() -> None:
    """Alertmanager treats two missing labels as equal, so both sides must have the compared label."""
    inhibitions = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
    assert len(inhibitions) > 4
    for each in inhibitions:
        cluster, same = each["equal"]
        assert cluster == "cluster"
        assert same in ("UUID", "node")
        for side in ("source_matchers", "target_matchers"):
            assert f'{same}=~".+"' in each[side]


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
    """Only on the same GPU or node. Alerts without UUID or node are never inhibited for lacking them."""
    with alertmanager(tmp_path, hook) as running:
        running.send(
            [
                {"alertname": "KubeNodeNotReady", "severity": "warning", "node": "dead"},
                labels("GpuThermalThrottling", node="dead", UUID="GPU-on-dead"),
                labels("GpuThermalThrottling", node="well", UUID="GPU-hot"),
                labels("GpuStragglerSlow", node="well", UUID="GPU-hot"),
                labels("GpuStragglerSlow", node="well", UUID="GPU-cold"),
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


def test_a_fault_pages_and_its_end_resolves(serve: Serve, hook: Hook, tmp_path: Path) -> None:
    """The page names GPU and action and links the runbook; when the GPU is healthy again, it is resolved."""
    simulated = ("--source", "simulated", "--gpus", "2", "--interval", "200ms")
    sick = serve(*simulated, "--inject", "GpuRowRemapFailed:1")
    targets = tmp_path / "targets.json"
    targets.write_text(f'[{{"targets": ["127.0.0.1:{sick.port}"], "labels": {{"instance": "node-000"}}}}]')
    found = {"file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
    with (
        alertmanager(tmp_path, hook) as running,
        scraping(
            tmp_path, "1s", found, rule_files=rules(tmp_path, "1s"), alertmanagers=[running.address]
        ) as prometheus,
    ):
        until(lambda: hook.received("GpuRowRemapFailed", "firing"), 30, "the page")
        assert {path for path, _ in hook.received("GpuRowRemapFailed", "firing")} == {"/page"}
        _, page = hook.received("GpuRowRemapFailed", "firing")[0]
        assert (
            page["annotations"]["summary"]
            == "GPU 1 on node node-000 could not replace a bad memory row: replace the GPU"
        )
        assert page["annotations"]["runbook_url"] == panel_link("gpurowremapfailed")
        assert page["labels"]["action"] == "replace"
        assert {each["labels"]["gpu"] for _, each in hook.received("GpuRowRemapFailed", "firing")} == {"1"}

        sick.stop()
        well = serve(*simulated)
        targets.write_text(f'[{{"targets": ["127.0.0.1:{well.port}"], "labels": {{"instance": "node-000"}}}}]')
        until(lambda: hook.received("GpuRowRemapFailed", "resolved"), 45, "the resolve")
        assert prometheus.query('count(ALERTS{severity="critical"})') == []
