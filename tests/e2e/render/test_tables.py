"""What the panels of the dashboards contain, by Grafana's own code, on a fleet with six faults in a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.boards import fleet, plan
from tests.boards.contents import contents, problems, rows
from tests.e2e.render.test_dashboards import at_once
from tests.support.panels import BOARDS
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

CLUSTER = {"cluster": "west"}
# By the chosen workload: panels without data, because alerts about jobs need a longer past, or nothing is wrong.
EMPTY = dict.fromkeys(("llm-pretrain", "llm-serve"), ("Firing alerts: distributed, health",))
NODES, WORKLOADS, NAMESPACES = 8, 6, 6
# Dashboard, what is chosen, and the number of rows of some tables.
VIEWS: Sequence[tuple[str, Mapping[str, str], Mapping[str, int]]] = (
    (
        "fleet",
        {},
        {
            "Nodes": NODES,
            "Workloads": WORKLOADS,
            "Namespaces by waste": NAMESPACES,
            "Node pools": len({job.pool for job in plan.JOBS}),
            "Who waits for GPUs": len({team for team, *_ in plan.PENDING}),
        },
    ),
    ("node", {"var-node": "node-006"}, {"GPUs": plan.GPUS}),
    ("gpu", {"var-node": "node-006"}, {}),
    ("job", {"var-namespace": "nlp", "var-workload": "llm-pretrain"}, {"Ranks": 3 * plan.GPUS}),
    ("job", {"var-namespace": "speech", "var-workload": "asr-train"}, {}),
    ("job", {"var-namespace": "chat", "var-workload": "llm-serve"}, {"Output and latency by batch size": 1}),
    ("cost", {}, {"Workloads by waste": WORKLOADS}),
    # Of all jobs, one ends meanwhile.
    ("cost", {"var-namespace": "recsys", "var-workload": "ranker"}, {"Training jobs": 1}),
)
# Those that need no long past.
ALERTS = ("GpuLost", "GpuAllocatedIdle")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the fleet, with all its alerts."""
    folder = tmp_path_factory.mktemp("prometheus")
    rules = folder / "rules"
    rules.mkdir()
    with fleet.serving(interval=1.0) as port:
        paths = {f"/{node}": "gpu" for node in plan.placed()} | {"/kube": "kube-state-metrics", "/server": "vllm"}
        targets = [
            {
                "targets": [f"127.0.0.1:{port}"],
                "labels": {"__metrics_path__": path, "instance": path[1:], "job": job, **CLUSTER},
            }
            for path, job in paths.items()
        ]
        with scraping(
            folder, "2s", {"static_configs": targets}, rule_files=at_once(rules), evaluation_interval="3s"
        ) as running:
            firing = f'count(count by (alertname) (ALERTS{{alertname=~"{"|".join(ALERTS)}", alertstate="firing"}}))'
            until(lambda: running.query(firing) == [float(len(ALERTS))], 60, "the alerts")
            # Graphs have a point every 15 s.
            recorded = "min(count_over_time(workload:sm_active:ratio[1m]))"
            until(lambda: running.query(recorded) and running.query(recorded)[0] >= 7, 60, "points for the graphs")
            yield running


def wrong(prometheus: Prometheus, boards: Mapping[str, Any]) -> list[str]:
    """Return the problems of all dashboards."""
    at = prometheus.now()
    views = [(boards[name], chosen) for name, chosen, _ in VIEWS]
    found = []
    answer = contents(f"http://127.0.0.1:{prometheus.port}", views, at - 60, at)
    for (name, chosen, counts), panels in zip(VIEWS, answer, strict=True):
        found += [f"{name}: {problem}" for problem in problems(panels, EMPTY.get(chosen.get("var-workload", ""), ()))]
        tables = {panel["title"]: len(rows(panel)) for panel in panels if panel["type"] == "table" and panel["frames"]}
        found += [
            f"{name}: {title}: {tables.get(title)} rows instead of {count}"
            for title, count in counts.items()
            if tables.get(title) != count
        ]
    return found


def test_tables_and_panels(prometheus: Prometheus) -> None:
    """Each table has a row for each key, with all its values; no visible panel is without data."""
    for _ in range(3):  # after a late scrape, series are missing for a moment
        if not (found := wrong(prometheus, BOARDS)):
            break
        until(lambda: min(prometheus.query("count_over_time(up[16s])")) >= 7, 60, "scrapes in time")
    assert not found, "\n".join(found)


def test_split_rows_are_detected(prometheus: Prometheus) -> None:
    """A table that merges recorded series as they are has a row for each of their names."""
    queries = [
        {"refId": name, "expr": expr, "format": "table", "instant": True}
        for name, expr in (("A", "node:gpus:count"), ("B", "node:power:watts"))
    ]
    panel = {
        "title": "Nodes",
        "type": "table",
        "targets": queries,
        "fieldConfig": {"defaults": {"noValue": "not collected"}, "overrides": []},
        "transformations": [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"includeByName": {"node": True, "Value #A": True, "Value #B": True}}},
        ],
    }
    at = prometheus.now()
    (panels,) = contents(f"http://127.0.0.1:{prometheus.port}", [({"panels": [panel]}, {})], at - 60, at)
    assert len(rows(panels[0])) == 2 * NODES
    assert any("split rows: 16 rows for 8" in problem for problem in problems(panels))
