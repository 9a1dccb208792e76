"""A fault becomes a page: exporter, the committed rules in a real Prometheus, and a real Alertmanager."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from gpu_exporter.alerting.boards import panel_link
from tests import ROOT
from tests.conftest import Serve
from tests.support.alerting import Hook, alertmanager, rules
from tests.support.prometheus import scraping
from tests.support.tools import tool, until

FAULT = "GpuRowRemapFailed"


def test_promtool_accepts_the_rules() -> None:
    """Every committed file."""
    files = sorted((ROOT / "alerts").glob("*.yaml"))
    assert files
    subprocess.run([tool("promtool"), "check", "rules", *files], check=True, capture_output=True)


def test_a_fault_pages_and_its_end_resolves(serve: Serve, tmp_path: Path) -> None:
    """The page names GPU and action and links the runbook; when the GPU is healthy again, it is resolved.

    Meanwhile, Prometheus evaluates every rule without an error.
    """
    simulated = ("--source", "simulated", "--gpus", "2", "--interval", "200ms")
    targets = tmp_path / "targets.json"

    def scrape(port: int) -> None:
        targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "node-000"}}]))

    sick = serve(*simulated, "--inject", f"{FAULT}:1")
    scrape(sick.port)
    found = {"file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
    with (
        Hook() as hook,
        alertmanager(tmp_path, hook) as running,
        scraping(
            tmp_path, "1s", found, rule_files=rules(tmp_path, "1s"), alertmanagers=[running.address]
        ) as prometheus,
    ):
        until(lambda: hook.received(FAULT, "firing"), 30, "the page")
        assert {path for path, _ in hook.received(FAULT, "firing")} == {"/page"}
        _, page = hook.received(FAULT, "firing")[0]
        assert (
            page["annotations"]["summary"]
            == "GPU 1 on node node-000 could not replace a bad memory row: replace the GPU"
        )
        assert page["annotations"]["runbook_url"] == panel_link(FAULT.lower())
        assert page["labels"]["action"] == "replace"
        assert {each["labels"]["gpu"] for _, each in hook.received(FAULT, "firing")} == {"1"}

        sick.stop()
        scrape(serve(*simulated).port)
        until(lambda: hook.received(FAULT, "resolved"), 45, "the resolve")
        assert prometheus.query('count(ALERTS{severity="critical"})') == []
        evaluated = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in evaluated} == {"ok"}, [r["lastError"] for r in evaluated if "lastError" in r]
