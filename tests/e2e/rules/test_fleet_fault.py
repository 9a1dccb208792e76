"""The same fault on many nodes is one page, from two Prometheus replicas that scrape two clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from gpu_exporter.alerting import incidents
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import Values
from tests.rules.needed import write_read
from tests.support import alerting
from tests.support.alerting import Hook, alertmanager
from tests.support.fakes.dcgm_exporter import DEFAULT, FakeGpu, page, serving
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

NODES: Mapping[str, int] = {"east": 8, "west": 4}
# Enough for a fault of the fleet.
FIRST = range(3)
XID: Values = {m.XID_ERRORS: 79.0}
UNRELATED: Values = {m.REMAP_FAILURE: 1.0}
ALERTS = ("GpuFleetFault", "GpuXidFatal", "GpuRowRemapFailed")
RECORDS = (incidents.OPEN_NODES.record, incidents.OPEN_EXPLAINED.record)
# Each replica has a label of its own, without which Alertmanager takes its alerts and those of the other for the same.
SAME_ALERTS = {"alert_relabel_configs": [{"regex": "replica", "action": "labeldrop"}]}
Row = tuple[str, str, str, float]


def node(number: int, first: Values | None = None, second: Values | None = None) -> str:
    """Return the page of a node of dcgm-exporter with its default fields, whose two GPUs have these values."""
    gpus = [FakeGpu(f"n{number}", gpu, values or {}) for gpu, values in enumerate((first, second))]
    return page(gpus, DEFAULT, new=False)


def targets(port: int) -> Iterator[Mapping[str, object]]:
    """Yield the target of each node."""
    for cluster, count in NODES.items():
        for number in range(count):
            name = f"{cluster}-n{number}"
            labels = {"__metrics_path__": f"/{name}", "instance": name, "cluster": cluster}
            yield {"targets": [f"127.0.0.1:{port}"], "labels": labels}


def rows(prometheus: Prometheus, record: str) -> set[Row]:
    """Return the cluster, the alert, the node and the value of each incident."""
    found = prometheus.api("query", query=record)["result"]
    names = ("cluster", "alertname", "node")
    return {(*(each["metric"].get(name, "") for name in names), float(each["value"][1])) for each in found}


def paged(hook: Hook, alert: str) -> set[tuple[str, str]]:
    """Return the cluster and the node of each alert of this name that paged someone."""
    found = [(path, each["labels"]) for path, each in hook.received(alert, "firing")]
    assert {path for path, _ in found} <= {"/page"}
    assert not any("replica" in labels for _, labels in found)
    return {(labels["cluster"], labels.get("node", "")) for _, labels in found}


def test_the_same_fault_on_many_nodes_is_one_page(tmp_path: Path) -> None:
    """Nodes that fail after three others page nobody; another fault does, and so do two nodes of the other cluster."""
    pages = {f"{cluster}-n{number}": node(number) for cluster, count in NODES.items() for number in range(count)}
    rules = tmp_path / "needed.yaml"
    write_read(alerting.rules(tmp_path, "0s"), rules, RECORDS, ALERTS)
    with ExitStack() as stack:
        hook = stack.enter_context(Hook())
        port = stack.enter_context(serving(pages))
        running = stack.enter_context(alertmanager(tmp_path, hook))
        send = {**SAME_ALERTS, "alertmanagers": [{"static_configs": [{"targets": [running.address]}]}]}
        replicas = []
        for name in ("a", "b"):
            (folder := tmp_path / name).mkdir()
            settings = {"static_configs": list(targets(port))}
            replicas.append(
                stack.enter_context(
                    scraping(
                        folder,
                        "1s",
                        settings,
                        rule_files=[rules],
                        external_labels={"replica": name},
                        more={"alerting": send},
                    )
                )
            )
        scraped = f"count({m.GPU_UTIL.name})"
        until(lambda: [each.query(scraped) for each in replicas] == [[24.0]] * len(replicas), 30, "all GPUs")

        pages.update({f"west-n{number}": node(number, XID) for number in range(2)})
        pages.update({f"east-n{number}": node(number, XID, UNRELATED if number == 1 else None) for number in FIRST})
        until(lambda: paged(hook, "GpuFleetFault"), 60, "the page about the fleet")
        pages.update({f"east-n{number}": node(number, XID) for number in range(len(FIRST), NODES["east"])})

        silent = {("GpuXidFatal", f"GPU-n{number}-0") for number in range(NODES["east"])}
        until(lambda: running.inhibited() >= silent, 60, "the inhibition of its nodes")
        wanted = {("east", "GpuFleetFault", "", 8.0), ("east", "GpuRowRemapFailed", "n1", 1.0)}
        wanted |= {("west", "GpuXidFatal", f"n{number}", 1.0) for number in range(2)}
        explained = {(*row[:3], 8.0 if row[1] == "GpuFleetFault" else 0.0) for row in wanted}
        expected = [[wanted, explained]] * len(replicas)
        until(lambda: [[rows(each, of) for of in RECORDS] for each in replicas] == expected, 60, f"{expected}")
        until(lambda: paged(hook, "GpuRowRemapFailed"), 60, "the page about another fault")
        until(lambda: {each for each in paged(hook, "GpuXidFatal") if each[0] == "west"}, 60, "the pages of the west")

        assert paged(hook, "GpuFleetFault") == {("east", "")}
        assert paged(hook, "GpuRowRemapFailed") == {("east", "n1")}
        before = {each for each in paged(hook, "GpuXidFatal") if each[0] == "east"}
        assert before <= {("east", f"n{number}") for number in FIRST}
        assert paged(hook, "GpuXidFatal") - before == {("west", "n0"), ("west", "n1")}
