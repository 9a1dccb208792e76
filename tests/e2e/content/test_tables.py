"""What the panels of the dashboards contain, by Grafana's own code, on a fleet with six faults in a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from content.dashboards.tables import ZERO
from gpu_exporter.alerting.aggregates import TIME
from tests.boards import fleet, plan
from tests.boards.contents import Contents, contents, problems, rows
from tests.e2e.content.test_dashboards import at_once
from tests.support.panels import BOARDS
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

CLUSTER = {"cluster": "west"}
# Panels without data: alerts about jobs, hourly sums and what is usual need a longer past, a job that has ended makes
# no step, not every job is profiled, and there is no XID.
EMPTY = (
    *("Firing alerts", "XIDs", "Chargeback by namespace", "Cost per day", "What do the main threads do?"),
    *("Kernels by class", "Step time", "Last step", "Tokens per second", "MFU and goodput", "Cost of a million tokens"),
    *("Step without waiting", "Time to first token", "Time to the first token", "Recommended batch limit"),
)
NODES, WORKLOADS, NAMESPACES = 8, 6, 6
PRETRAIN = {"var-namespace": "nlp", "var-workload": "llm-pretrain"}
ENDED = {"var-namespace": "speech", "var-workload": "asr-train"}
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
    ("node", {"var-node": "node-005"}, {"GPUs": plan.GPUS}),
    ("node", {"var-node": "node-006"}, {"GPUs": plan.GPUS, "Network ports of each GPU": plan.GPUS}),
    (
        "gpu",
        {"var-node": "node-006", "var-gpu": "5"},
        {"Which GPU is it?": 1, "Who has it, and which line of code keeps it waiting?": 1},
    ),
    ("job", PRETRAIN, {"Ranks": 3 * plan.GPUS}),
    ("job", ENDED, {}),
    ("server", {"var-pod": "llm-serve-0"}, {"Output and latency by batch size": 1}),
    ("cost", {}, {"Workloads by waste": WORKLOADS}),
    # Of all jobs, one ends meanwhile.
    ("cost", {"var-namespace": "recsys", "var-workload": "ranker"}, {"Training jobs": 1}),
)
# Dashboard, what is chosen, table, and some cells of its first row: that of the GPU to blame. Stragglers and jobs that
# hang need a longer past.
FIRST: Sequence[tuple[str, Mapping[str, str], str, Mapping[str, str]]] = (
    ("fleet", {}, "Incidents by severity", {"alert": "GpuLost", "GPU": "6", "GPUs": "1", "nodes": "1"}),
    ("node", {"var-node": "node-005"}, "GPUs", {"GPU": "6", "health": "unhealthy", "throttled": "lost", "SM": "lost"}),
    ("node", {"var-node": "node-006"}, "GPUs", {"GPU": "5", "health": "degraded"}),
    ("job", ENDED, "Ranks", {"GPU": "6", "state": "does not answer"}),
)
# Those that need no long past.
ALERTS = ("GpuLost", "GpuAllocatedIdle")


# A failed scrape takes series away, and alerts, incidents and costs, which are recorded from each other by groups that
# are evaluated at other moments, come back one after the other for half a minute.
STEADY = " and on () ".join(
    [
        "min(min_over_time(up[40s])) == 1",
        *(
            f"max_over_time(count({series})[40s:2s]) == min_over_time(count({series})[40s:2s])"
            for series in ('ALERTS{alertstate="firing"}', "incident:open:usd_per_hour", TIME.record)
        ),
    ]
)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the fleet, with all its alerts."""
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
            folder, "2s", {"static_configs": targets}, rule_files=at_once(rules), evaluation_interval="6s"
        ) as running:
            firing = f'count(count by (alertname) (ALERTS{{alertname=~"{"|".join(ALERTS)}", alertstate="firing"}}))'
            until(lambda: running.query(firing) == [float(len(ALERTS))], 60, "the alerts", every=1)
            # Graphs have a point every 15 s.
            recorded = "min(count_over_time(workload:sm_active:ratio[1m]))"
            until(
                lambda: running.query(recorded) and running.query(recorded)[0] >= 4,
                60,
                "points for the graphs",
                every=1,
            )
            # Those of classes have one at each full minute.
            until(
                lambda: running.query("count(gpu:bottleneck:class offset 1m)"), 90, "classes of a minute ago", every=1
            )
            until(lambda: running.query(STEADY), 90, "series that stay as they are", every=1)
            with running.paused(folder / "prometheus.yml"):
                yield running


def wrong(prometheus: Prometheus, boards: Mapping[str, Any]) -> list[str]:
    """Return the problems of all dashboards."""
    at = prometheus.now()
    views = [(boards[name], chosen) for name, chosen, _ in VIEWS]
    found = []
    answer = contents(f"http://127.0.0.1:{prometheus.port}", views, at - 60, at)
    for (name, _, counts), panels in zip(VIEWS, answer, strict=True):
        found += [f"{name}: {problem}" for problem in problems(panels, EMPTY)]
        tables = {panel["title"]: len(rows(panel)) for panel in panels if panel["type"] == "table" and panel["frames"]}
        found += [
            f"{name}: {title}: {tables.get(title)} rows instead of {count}"
            for title, count in counts.items()
            if tables.get(title) != count
        ]
    return found


@pytest.mark.slowest
def test_tables_and_panels(prometheus: Prometheus) -> None:
    """Each table has a row for each key, with all its values; no visible panel is without data."""
    found = wrong(prometheus, BOARDS)
    assert not found, "\n".join(found)


def test_gpus_to_blame_come_first(prometheus: Prometheus) -> None:
    """The first row of a table is that of the GPU to blame, and says why; ranks have numbers."""
    at = prometheus.now()
    views = [(BOARDS[name], chosen) for name, chosen, *_ in FIRST] + [(BOARDS["job"], PRETRAIN)]
    *answers, job = contents(f"http://127.0.0.1:{prometheus.port}", views, at - 60, at)
    for (_, _, title, cells), panels in zip(FIRST, answers, strict=True):
        assert cells.items() <= rows(table(panels, title))[0].items()
    ranks = {(row["rank"], row["node"], row["GPU"]) for row in rows(table(job, "Ranks"))}
    assert ranks == {(f"{rank}", f"node-{rank // 8:03}", f"{rank % 8}") for rank in range(3 * plan.GPUS)}


def table(panels: Contents, title: str) -> Mapping[str, Any]:
    """Return a table by its title."""
    (found,) = (panel for panel in panels if panel["title"] == title)
    return found


def test_idle_gpus_have_an_owner_and_a_price(prometheus: Prometheus) -> None:
    """On the dashboards Fleet and Cost: the notebook holds eight idle GPUs, the job that trains none."""
    at = prometheus.now()
    views: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [(BOARDS["fleet"], {}), (BOARDS["cost"], {})]
    fleet_board, cost_board = contents(f"http://127.0.0.1:{prometheus.port}", views, at - 60, at)
    for board, title, label, idle, busy in (
        (fleet_board, "Namespaces by waste", "namespace", "research", "nlp"),
        (fleet_board, "Workloads", "workload", "notebook", "llm-pretrain"),
        (cost_board, "Workloads by waste", "workload", "notebook", "llm-pretrain"),
    ):
        found = {row[label]: row for row in rows(table(board, title))}
        assert (found[idle]["idle GPUs"], found[busy]["idle GPUs"]) == ("8", ZERO["0"][0])
        assert found[idle].get("idle/h", "$20.00") == "$20.00"
        assert found[busy].get("idle/h", ZERO["0"][0]) == ZERO["0"][0]


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
