"""`--inject`: every failure mode at once in a fleet, through the committed rules in a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_exporter.alerting.boards import board_of
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.diagnosis.gather import stamped
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import seen
from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.pipeline.test_prometheus import SERIES_A_GPU
from tests.support import panels
from tests.support.alerting import rules
from tests.support.incidents import in_incident_of
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import is_long, settled, until

SIMULATED = ("--source", "simulated")
GPU, GPUS = 3, 4
# Their windows or thresholds take minutes to hours: `tests/unit/sources/test_inject.py` tests them in virtual time.
PATIENT = {
    "GpuTelemetryStale",
    "GpuEccCorrectableStorm",
    "GpuPcieReplayStorm",
    "GpuAllocatedIdle",
    "GpuMemoryHoarded",
    "GpuMemoryExhaustionPredicted",
}
SHOWN = [mode for mode in MODES if mode.name not in PATIENT and not mode.requires]
# One mode of each kind. `tests/rules/test_modes.py` has all of them, without an exporter.
KINDS = {(mode.scope, mode.domain, mode.inject.fault): mode for mode in SHOWN}

# Faults of a whole node, which then shows no values of its GPUs.
OF_NODE = ("down", "reload")

# A busy machine may need several seconds for each collection of the fleet. Counters then grow in steps, and over a
# shorter window a rate is 0, or limited to 1, in turn: its mean is too low, and a share of it comes and goes.
RATE = "30s"

Alert = tuple[str, str, str]


def alerts(prometheus: Prometheus) -> set[Alert]:
    """Return name, node and GPU of each alert whose expression is true."""
    found = prometheus.api("query", query="ALERTS")["result"]
    return {
        (each["metric"]["alertname"], each["metric"].get("node", ""), each["metric"].get("gpu", "")) for each in found
    }


@pytest.mark.slowest
def test_modes_in_a_fleet(serve: Serve, tmp_path: Path) -> None:
    """One failure mode per node: its alert has the injected GPU, or all of its job, and no other GPU has one."""
    modes = SHOWN if is_long() else list(KINDS.values())
    injected = {f"node-{number:03}": mode for number, mode in enumerate(modes)}
    untouched, nameless = (f"node-{len(injected) + more:03}" for more in range(2))
    inject = [f"--inject={mode.name}:{node}/{GPU}" for node, mode in injected.items()]
    size = ("--nodes", str(len(injected) + 2), "--gpus", str(GPUS), "--metrics", "full", "--host-evidence")
    # A GPU without a UUID counts as missing from its node.
    exporter = serve(*SIMULATED, *size, *inject, "--faults", f"lost {nameless}/0 at 0s for 1h")
    wanted, allowed = {("GpuLost", nameless, "")}, set[Alert]()
    for node, mode in injected.items():
        wanted.add((mode.name, node, "" if mode.inject.fault in OF_NODE else str(GPU)))
        gpus = range(GPUS) if mode.scope is Scope.JOB else [GPU]
        allowed |= {(name, node, str(gpu)) for name in in_incident_of(mode) for gpu in gpus}
    # As in Kubernetes: pod and namespace of the target move the exporter's labels to `exported_*`.
    of_target = {"pod": "gpu-exporter-x2x4z", "namespace": "monitoring"}
    settings = {
        "http_sd_configs": [{"url": f"http://127.0.0.1:{exporter.port}/sd"}],
        "relabel_configs": [{"target_label": name, "replacement": text} for name, text in of_target.items()],
    }
    with scraping(
        tmp_path, "2s", settings, rule_files=rules(tmp_path, "10m", RATE), evaluation_interval="4s"
    ) as prometheus:
        alive = {node for node, mode in injected.items() if mode.inject.fault not in OF_NODE}
        workloads = {node: f"injected-{node}" for node in alive}

        def wrong() -> set[str]:
            """Return what is wrong with alerts and labels."""
            # Nodes without an injection follow their schedule, which may be host-bound and the like.
            now = {each for each in alerts(prometheus) if each[1] in (*injected, nameless)}
            found = {f"missing: {each}" for each in wanted - now}
            found |= {f"unexpected: {each}" for each in now - wanted - allowed if each[1] in injected}
            jobs = prometheus.api("query", query="count by (node, workload, namespace) (gpu:gr_active:ratio)")["result"]
            of_node = {each["metric"]["node"]: each["metric"] for each in jobs}
            found |= {f"no job on {node}" for node in {untouched, nameless, *alive} - of_node.keys()}
            found |= {
                f"wrong labels: {labels}"
                for node, labels in of_node.items()
                if labels.get("namespace") != "simulated"
                or not labels.get("workload", "").startswith(workloads.get(node, "train-" if node == untouched else ""))
            }
            return found

        settled(wrong, 135)
        failing = [
            each for each in prometheus.api("rules")["groups"] if any(rule.get("lastError") for rule in each["rules"])
        ]
        assert failing == []
        # Kept from one look to the next: the rate of the energy, which is read every 15 s, needs two such reads.
        pages: list[Scrape] = []
        settled(lambda: panels_of(prometheus, exporter, {node: injected[node] for node in alive}, pages), 60)


def panels_of(
    prometheus: Prometheus, exporter: Exporter, injected: Mapping[str, FailureMode], pages: list[Scrape]
) -> list[str]:
    """Return the problems of the dashboard of each failure mode, narrowed down to its node. Adds to the pages."""
    for pause in (6, 2):  # network cards are read every 5 s, and rates need two values
        pages += [stamped(parsed(exporter.get(f"/nodes/{node}/metrics")[1].decode())) for node in injected]
        time.sleep(pause)
    shown, found = seen(sorted(pages, key=lambda page: page.at), {}), []
    for node, mode in injected.items():
        name = board_of(mode).name
        variables = {"cluster": "", "node": node, "workload": f"injected-{node}"}
        complaints = panels.problems(prometheus, {name: panels.BOARDS[name]}, shown, variables)
        # Variables list the whole fleet, and are not checked here.
        found += [f"{mode.name}: {each}" for each in complaints if ": $" not in each]
    return found


def test_a_recording_is_one_job(serve: Serve, tmp_path: Path) -> None:
    """Signals of a replayed exporter have it as their workload, so that its ranks are compared."""
    exporter = serve("--source", "replay", "--recording", "h200_x2_ddp", "--interval", "200ms")
    settings = {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}
    with scraping(tmp_path, "1s", settings, rule_files=rules(tmp_path, "10m")) as prometheus:
        until(lambda: prometheus.query('gpu:sm_active:ratio{workload="h200_x2_ddp"}'), 20, "the workload")
        assert prometheus.query("count(gpu:sm_active:ratio)") == [2.0]
        assert prometheus.query('count(gpu:sm_active:ratio{workload="h200_x2_ddp"})') == [2.0]
        until(lambda: prometheus.query("gpu:waits:others_ratio"), 20, "a comparison with the other rank")


def test_injected_gpus_stay_within_the_budget(serve: Serve) -> None:
    """With owner, verdict and XIDs, a GPU has no more series than the limit that is documented."""
    exporter = serve(*SIMULATED, "--interval", "200ms", "--inject", "GpuXidFatal")
    page = exporter.until(lambda page: len(page.values("gpu_sm_active_seconds_total")) == 8)
    each = [sum(labels.get("gpu") == str(gpu) for _, labels, _ in page.samples) for gpu in range(8)]
    assert min(each) > 90
    assert max(each) <= SERIES_A_GPU
    assert {labels.get("source") for _, labels, _ in page.samples} == {"simulated"}
    status, body = exporter.ask("GET", "/api/v1/events")
    assert status == 200
    assert {(event["gpu"], event["xid"]) for event in json.loads(body)["events"]} == {(0, 79)}


def test_catalogue_is_loaded_only_for_injection() -> None:
    """A healthy fleet does not load the catalogue of failure modes."""
    code = (
        "import sys; from gpu_exporter.sources.choice import make_sources; from gpu_exporter.config import Config;"
        "make_sources(Config(source='simulated'));"
        "sys.exit(any('failure_modes' in name or 'inject' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_once_with_injection(tmp_path: Path) -> None:
    """`once` shows the values. Repeated flags, lists, environment and file are equivalent."""
    expected = {"0": 0.887, "1": 0.34}
    config = tmp_path / "config.yaml"
    config.write_text("source: simulated\ngpus: 2\ninject: GpuMemoryBound, GpuXidFatal:1\n")
    small = (*SIMULATED, "--gpus", "2")
    for arguments, environment in (
        ((*small, "--inject", "GpuMemoryBound", "--inject", "GpuXidFatal:1"), {}),
        ((*small, "--inject", "GpuMemoryBound,GpuXidFatal:1"), {}),
        (small, {"GPU_EXPORTER_INJECT": "GpuMemoryBound,GpuXidFatal:1"}),
        (("--config", str(config)), {}),
    ):
        page = Page(run("once", *arguments, env=environment).stdout)
        assert {gpu: page.value("DCGM_FI_PROF_DRAM_ACTIVE", gpu=gpu) for gpu in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--inject", "GpuMemoryBound"), "--inject needs --source simulated"),
        ((*SIMULATED, "--inject", "GpuMemoryBond"), "did you mean GpuMemoryBound?"),
        ((*SIMULATED, "--inject", "GpuMemoryBound:8"), "node-000 has no GPU 8; use 0 to 7"),
        ((*SIMULATED, "--gpus", "1", "--inject", "GpuStragglerSlow"), "use --gpus 2 or more"),
    ],
)
def test_bad_injections_are_one_line(arguments: tuple[str, ...], line: str) -> None:
    """They are refused before the start, with the fix."""
    ended = run("serve", "--address", "127.0.0.1:0", *arguments)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert line in ended.stderr
