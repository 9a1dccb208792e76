"""A simulated fleet: several nodes of one process, each with labels; faults affect only their GPU or node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import measure
from gpu_exporter.sources.simulated.device import CODES
from tests.conftest import Exporter, Page, Serve, run
from tests.e2e.pipeline.test_prometheus import SERIES_A_GPU
from tests.support.prometheus import scraping
from tests.support.tools import until

SIMULATED = ("--source", "simulated")
# A counter and a time for each code of a program that a simulated GPU can have.
SERIES_OF_XIDS = 2 * len(set(CODES))


def page(exporter: Exporter, node: str) -> Page:
    """Scrape a node once."""
    return Page(exporter.get(f"/nodes/{node}/metrics")[1].decode())


def seen(exporter: Exporter, node: str, holds: Callable[[Page], bool], timeout: float = 20) -> Page:
    """Scrape a node until a condition is true."""
    found: list[Page] = []

    def ask() -> bool:
        found[:] = [page(exporter, node)]
        return holds(found[0])

    until(ask, timeout, f"what is awaited of {node}")
    return found[0]


def down(gpu: int, reason: str) -> Callable[[Page], bool]:
    """Return a condition: this GPU is down for this reason."""
    return lambda page: (
        page.values("gpu_up", gpu=str(gpu)) == [0.0]
        and page.values("gpu_down_reason", gpu=str(gpu), reason=reason) == [1.0]
    )


def all_up(page: Page) -> bool:
    """Return whether every GPU of a node is up and read."""
    return bool(page.values("gpu_up")) and min(page.values("gpu_up")) == 1.0


def test_every_series_is_marked_as_simulated(serve: Serve) -> None:
    """No sample of GPUs, exporter or process can be mistaken for one of a real GPU; each node has its own."""
    exporter = serve(*SIMULATED, "--nodes", "3", "--gpus", "2", "--interval", "200ms", "--metrics", "full")
    uuids = set()
    for node in ("node-000", "node-001", "node-002"):
        found = seen(exporter, node, lambda page: len(page.values("gpu_sm_active_seconds_total")) == 2)
        assert {labels.get("source") for _, labels, _ in found.samples} == {"simulated"}
        assert {labels["Hostname"] for _, labels, _ in found.samples if "Hostname" in labels} == {node}
        assert found.values("process_resident_memory_bytes")
        uuids |= {labels["UUID"] for _, labels, _ in found.samples if "UUID" in labels}
        reasons = {labels["reason"] for name, labels, _ in found.samples if name == "gpu_metric_supported"}
        assert reasons == {"not_simulated"}
    assert len(uuids) == 6
    assert "THESE ARE NOT YOUR GPUS: simulated GPUs" in exporter.log.read_text()


def test_paths(serve: Serve) -> None:
    """Each of several nodes has its own pages, which the root links to."""
    exporter = serve(*SIMULATED, "--nodes", "12", "--gpus", "1", "--interval", "200ms")
    seen(exporter, "node-011", all_up)

    def ask(path: str) -> tuple[int, str]:
        answer, body = exporter.get(path)
        return answer.status, body.decode()

    assert ask("/metrics") == (
        404,
        "404 Not Found: nodes are at /nodes/node-000/metrics, /nodes/node-001/metrics …; /sd lists them all\n",
    )
    for path in ("/nodes/node-999/metrics", "/nodes/node-999/", "/nodes/node-0000/readyz", "/nodes", "/x/metrics"):
        assert ask(path)[0] == 404
    for path in ("/nodes//metrics", "/nodes/node-003/nodes/node-003/metrics", "/nodes/node-003/sd", "/api/v1/health"):
        assert ask(path)[0] == 404
    for path in ("/healthz", "/nodes/node-003/healthz", "/nodes/node-003/readyz"):
        assert ask(path) == (200, "ok\n")
    until(lambda: ask("/readyz") == (200, "ok\n"))
    status, body = ask("/")
    assert status == 200
    assert all(f'<a href="nodes/node-{number:03}/">' in body for number in range(12))
    assert "simulated GPUs, without hardware" in body
    assert ask("/nodes/node-003/")[0] == 200
    listed = json.loads(ask("/nodes/node-003/api/v1/gpus")[1])
    assert (listed["source"], [gpu["modelName"] for gpu in listed["gpus"]]) == ("simulated", ["NVIDIA H200"])


def test_prometheus_discovers_the_nodes(serve: Serve, tmp_path: Path) -> None:
    """A real Prometheus finds every node through /sd, under its own name, and keeps their series apart."""
    exporter = serve(*SIMULATED, "--nodes", "3", "--gpus", "2", "--interval", "200ms")
    answer, body = exporter.get("/sd")
    assert answer.headers["Content-Type"] == "application/json"
    found: list[dict[str, Any]] = json.loads(body)
    assert found[1] == {
        "targets": [f"127.0.0.1:{exporter.port}"],
        "labels": {"__scheme__": "http", "__metrics_path__": "/nodes/node-001/metrics", "instance": "node-001"},
    }
    with scraping(tmp_path, "1s", {"http_sd_configs": [{"url": f"http://127.0.0.1:{exporter.port}/sd"}]}) as prometheus:
        until(lambda: prometheus.query("count(count_over_time(up[30s]) >= 4)") == [3.0], 30, "the fourth scrape")
        assert prometheus.query("min(min_over_time(up[30s]))") == [1.0]
        assert prometheus.stored("gpu_devices_visible[2s]").keys() == {"node-000", "node-001", "node-002"}
        assert prometheus.query("count(gpu_up == 1)") == [6.0]
        assert prometheus.query('count({job="gpu",source!="simulated",__name__!~"up|scrape_.*"})') == []
        assert 0 < prometheus.query("max(rate(gpu_gr_engine_active_seconds_total[10s]))")[0] <= 1.01


def test_a_fleet_is_measured(tmp_path: Path) -> None:
    """A short `python -m benchmarks.fleet`: what it finds depends on what else the machine does."""
    result = measure(tmp_path, nodes=10, gpus=8, seconds=10, interval=5)
    assert 0 < result.targets <= 10
    assert result.scrapes >= result.targets
    assert result.samples > 0


def test_faults_affect_only_their_target(serve: Serve) -> None:
    """Each kind of fault affects its GPU or node and no other, and ends."""
    # From the start on, however long that takes: only the node that reloads its driver must start without a fault.
    faults = (
        "lost node-000/0 at 0s for 1h; wedged node-001/1 at 0s for 1h; slow node-002/0 at 0s for 1h; "
        "reload node-003 at 2s for 10s; lost node-004/* at 0s for 5s; wedged node-005/* at 0s for 5s"
    )
    exporter = serve(*SIMULATED, "--nodes", "7", "--gpus", "2", "--interval", "200ms", "--faults", faults)
    for node, gpu, reason in (("node-000", 0, "lost"), ("node-001", 1, "stalled"), ("node-002", 0, "stalled")):
        faulty = down(gpu, reason)
        seen(exporter, node, lambda page: faulty(page) and page.value("gpu_up", gpu=str(1 - gpu)) == 1)  # noqa: B023
    assert page(exporter, "node-001").value("gpu_read_stalled_seconds", gpu="1") >= 1
    until(lambda: "node-003: the driver is being reloaded" in exporter.log.read_text(), what="the reload")
    for node in ("node-003", "node-004", "node-005", "node-006"):
        seen(exporter, node, all_up, 40)
    assert page(exporter, "node-006").values("gpu_exporter_collection_failures_total") == [0.0, 0.0]


def test_one_node_is_served_as_a_real_one_is(serve: Serve) -> None:
    """At /metrics, under its own or the given name; SIGTERM ends it, even during a read that hangs."""
    exporter = serve(*SIMULATED, "--interval", "200ms", "--node-name", "mine")
    found = exporter.until(lambda page: len(page.values("gpu_sm_active_seconds_total")) == 8)
    assert {labels["Hostname"] for _, labels, _ in found.samples if "Hostname" in labels} == {"mine"}
    assert exporter.get("/sd")[0].status == 404
    exporter = serve(*SIMULATED, "--interval", "200ms", "--faults", "wedged node-000/* at 0s for 1h")
    exporter.until(lambda page: page.values("gpu_down_reason", reason="stalled") == [1.0] * 8)
    assert exporter.stop() == 0


def test_pods_are_labels_of_classic_families(serve: Serve) -> None:
    """As with attribution: a free GPU has empty labels. All stays within the documented limit on series."""
    exporter = serve(*SIMULATED, "--interval", "200ms")
    found = exporter.until(lambda page: len(page.values("gpu_sm_active_seconds_total")) == 8)
    shown = {
        labels["gpu"]: (labels["namespace"], labels["pod"], labels["container"])
        for name, labels, _ in found.samples
        if name == "DCGM_FI_PROF_SM_ACTIVE"
    }
    assert shown["0"] == shown["1"] == ("simulated", "train-000-0", "train")
    assert (shown["6"], shown["7"]) == (("simulated", "notebook-000-0", "notebook"), ("", "", ""))
    infos = {labels["gpu"] for name, labels, _ in found.samples if name == "gpu_pod_info"}
    assert infos == set("0123456")
    most = max(sum(labels.get("gpu") == str(gpu) for _, labels, _ in found.samples) for gpu in range(8))
    assert most + SERIES_OF_XIDS <= SERIES_A_GPU


def test_once_and_doctor_read_one_node() -> None:
    """They say which node it is."""
    ended = run("once", *SIMULATED, "--gpus", "3", "--json")
    found = json.loads(ended.stdout)
    assert (found["source"], found["live"], len(found["gpus"])) == ("simulated", False, 3)
    ended = run("once", *SIMULATED, "--gpus", "1")
    samples = Page(ended.stdout).samples
    assert samples
    assert all(labels.get("source") == "simulated" for _, labels, _ in samples)
    ended = run("doctor", *SIMULATED)
    assert ended.returncode == 0
    assert "source simulated: simulated GPUs, without hardware; these are not the GPUs of this machine" in ended.stdout
    assert "not simulated, because no packaged recording has it" in ended.stdout


def test_a_recording_of_it_can_be_played(tmp_path: Path) -> None:
    """A recorded simulation is a recording like any other."""
    path = tmp_path / "fleet.jsonl.gz"
    assert run("record", *SIMULATED, "--gpus", "2", "--duration", "1", "--out", str(path)).returncode == 0
    ended = run("once", "--source", "replay", "--recording", str(path), "--json")
    assert [gpu["modelName"] for gpu in json.loads(ended.stdout)["gpus"]] == ["NVIDIA H200"] * 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--nodes", "2"), "--nodes needs --source simulated"),
        (("--gpus", "2"), "--gpus needs --source simulated"),
        (("--seed", "7"), "--seed needs --source simulated"),
        (("--faults", "lost *"), "--faults needs --source simulated"),
        (("--source", "replay", "--recording", "h200_workloads", "--nodes", "2"), "--nodes needs --source simulated"),
        ((*SIMULATED, "--recording", "h200_workloads"), "--recording needs --source replay"),
        ((*SIMULATED, "--nodes", "0"), "'0' is not a number from 1 to 9999"),
        ((*SIMULATED, "--gpus", "many"), "'many' is not a number from 1 to 9999"),
        ((*SIMULATED, "--seed", "1.5"), "'1.5' is not a whole number"),
        ((*SIMULATED, "--nodes", "2", "--node-name", "mine"), "--node-name names one node"),
        ((*SIMULATED, "--faults", "los node-000/1 at 3s for 2s"), "did you mean lost?"),
        ((*SIMULATED, "--faults", "lost node-001/1 at 3s for 2s"), "there is no node-001; use node-000"),
    ],
)
def test_bad_settings_are_one_line(arguments: tuple[str, ...], line: str) -> None:
    """They are refused before the start, with the fix."""
    ended = run("serve", "--address", "127.0.0.1:0", *arguments)
    assert ended.returncode in (1, 2)
    assert ended.stderr.startswith("gpu-exporter: ")
    assert len(ended.stderr.splitlines()) == 1
    assert line in ended.stderr
