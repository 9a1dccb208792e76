"""What the colours, the bars and the order of rows on the dashboards mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from grafanalib.core import GridPos

from content.dashboards import alert_table, fleet, grafana, job, queries
from content.dashboards.frame import GREEN, GREY, ORANGE, RED
from gpu_exporter.catalogue.bottlenecks import BY_NAME
from gpu_exporter.catalogue.causes import COLOURS, SHARES, Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Severity
from tests.support.panels import BOARDS, UNITS, panels


def properties(name: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield panel, column and properties of each override of the tables of a dashboard."""
    for panel in panels(BOARDS[name]):
        if panel["type"] == "table":
            for override in panel["fieldConfig"]["overrides"]:
                yield (
                    panel["title"],
                    override["matcher"]["options"],
                    {each["id"]: each["value"] for each in override["properties"]},
                )


@pytest.mark.parametrize("name", BOARDS)
def test_shares_are_numbers_of_one_form(name: str) -> None:
    """Without decimals, so that they can be compared; not bars, which Grafana does not draw to scale in a cell."""
    found = list(properties(name))
    shares = [(title, column, each) for title, column, each in found if each.get("unit") == "percentunit"]
    assert shares or name == "gpu"
    for title, column, each in shares:
        assert each.get("decimals") == 0, f"{title}: {column}"
    assert "gauge" not in {each.get("custom.cellOptions", {}).get("type") for _, _, each in found}


def test_red_is_a_culprit_and_orange_a_victim() -> None:
    """Ranks, causes and classes; green is only for working SMs."""
    colours = {text: colour for text, colour in job.STATES}
    assert {colour for text, colour in colours.items() if text.startswith("holds up the job: ")} == {RED}
    assert {colour for text, colour in colours.items() if text.startswith("waits")} == {ORANGE}
    assert not {GREEN, GREY} & set(colours.values())
    assert (COLOURS[Cause.PEERS], COLOURS[Cause.USEFUL]) == (ORANGE, GREEN)
    assert BY_NAME["throttled"].colour == COLOURS[Cause.THROTTLED]
    assert RED not in COLOURS.values(), "no cause is critical by itself"
    assert [cause for cause in SHARES if COLOURS[cause] == GREEN] == [Cause.USEFUL]
    assert [name for name, bottleneck in BY_NAME.items() if bottleneck.colour == ORANGE] == ["waiting"]
    assert GREY not in {*COLOURS.values(), *(bottleneck.colour for bottleneck in BY_NAME.values())}, "grey is unknown"


def test_throttled_is_orange_and_a_missing_gpu_red() -> None:
    """As severe as their alerts: a warning and a critical one."""
    fleet_board = {panel["title"]: panel for panel in panels(BOARDS["fleet"])}
    tile = fleet_board["Throttled GPUs"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert tile[-1]["color"] == ORANGE
    steps = {
        (title, column): found["thresholds"]["steps"][-1]["color"]
        for name in ("fleet", "node")
        for title, column, found in properties(name)
        if "thresholds" in found
    }
    assert steps["Nodes", "throttled"] == steps["GPUs", "throttled"] == ORANGE
    assert steps["Nodes", "critical"] == steps["Nodes", "unhealthy"] == RED
    assert steps["Nodes", "hottest GPU"] == steps["GPUs", "temperature"] == ORANGE
    (fewer,) = fleet_board["Reachable GPUs"]["fieldConfig"]["overrides"]
    assert {"id": "color", "value": {"mode": "fixed", "fixedColor": RED}} in fewer["properties"]
    assert fewer["matcher"]["options"] == "reachable, not all"
    assert '"fewer", ", not all"' in fleet_board["Reachable GPUs"]["targets"][0]["expr"]


def test_what_does_not_answer_is_red() -> None:
    """In each column of a GPU's values."""
    for name, title in (("node", "GPUs"), ("job", "Ranks")):
        lost = {
            column: found["mappings"][0]["options"]["-1"]
            for panel, column, found in properties(name)
            if panel == title and "-1" in found.get("mappings", [{"options": {}}])[0]["options"]
        }
        assert {"engine", "SM"} <= lost.keys()
        assert {(each["text"], each["color"]) for each in lost.values()} == {("lost", RED)}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("GpuLost", "Drain the node"),
        ("GpuThermalThrottling", "Cordon the node"),
        ("GpuHostSwapping", "Use fewer loader workers or less caching, or give the job more memory"),
        ("GpuXidUnknown", "Read the kernel log around the event, which often explains it in words"),
        ("GpuStragglerSlow", "Compare the power limits of the ranks"),
        ("GpuNicFlapping", "Replace cable or transceiver before the link fails"),
        ("GpuMetricsMissing", "With dcgm-exporter up to 4.8, start it with --collectors …"),
        ("GpuNicSlowLink", "Reseat or replace cable and transceiver, then bring the link up again"),
    ],
)
def test_the_first_step_is_no_condition(name: str, step: str) -> None:
    """It ends with a clause, unless the first one says nothing to do."""
    (mode,) = (each for each in MODES if each.name == name)
    assert alert_table.first_step(mode) == step


def test_a_symptom_has_no_first_step_of_its_own() -> None:
    """It could contradict that of its cause: less evaluation ends no job that hangs."""
    for board in ("job", "node", "gpu"):
        (panel,) = (panel for panel in BOARDS[board]["panels"] if panel["title"] == "Firing alerts")
        assert any('"first", "symptom", "role", "symptom"' in target["expr"] for target in panel["targets"])
        (steps,) = (
            found["mappings"][0]["options"]
            for title, column, found in properties(board)
            if (title, column) == ("Firing alerts", "what to do first") and "mappings" in found
        )
        assert steps["symptom"]["text"] == alert_table.BEGIN_WITH_CAUSE


def test_each_alert_of_a_node_is_a_problem() -> None:
    """On the map of nodes: of a critical alert the worst one, of info at most that it waits."""
    problems = {mode.name: fleet.problem(mode) for mode in MODES}
    assert set(problems.values()) == set(range(1, len(fleet.PROBLEMS)))
    assert {problems[mode.name] for mode in MODES if mode.severity is Severity.CRITICAL} == {len(fleet.PROBLEMS) - 1}
    assert {problems[mode.name] for mode in MODES if mode.severity is Severity.INFO} == {1, 2}
    named = {"GpuStragglerSlow": 6, "GpuThermalThrottling": 5, "GpuNicSlowLink": 4, "GpuAllocatedIdle": 3}
    assert named.items() <= problems.items()


@pytest.mark.parametrize(
    ("board", "title", "key"),
    [
        ("fleet", "Incidents by severity", ["active since", "cost/h", "order"]),
        ("cost", "Incidents by cost", ["active since", "cost/h"]),
        *((board, "Firing alerts", ["active since", "cost/h", "role", "order"]) for board in ("job", "node", "gpu")),
    ],
)
def test_alerts_are_in_the_order_of_incidents(board: str, title: str, key: Sequence[str]) -> None:
    """By severity, then root causes before symptoms, then what costs more, then what began earlier. Cost is by cost."""
    (panel,) = (panel for panel in BOARDS[board]["panels"] if panel["title"] == title)
    sorts = [each["options"]["sort"][0] for each in panel["transformations"] if each["id"] == "sortBy"]
    assert [each["field"] for each in sorts[-len(key) :]] == key
    assert [each["field"] for each in sorts if each.get("desc")] == ["cost/h"]


def test_named_alerts_exist() -> None:
    assert set(queries.IDLE) <= {mode.name for mode in MODES}


def test_the_first_screen_of_fleet_ends_with_its_tables() -> None:
    """The table of incidents is as wide as the map and the namespaces below it, and all are in view to the end."""
    grids = {panel["title"]: panel["gridPos"] for panel in BOARDS["fleet"]["panels"]}
    alerts = grids["Incidents by severity"]
    teams, nodes = grids["Namespaces by waste"], grids["Nodes over time"]
    assert (alerts["x"], alerts["w"]) == (nodes["x"], teams["w"] + nodes["w"])
    assert teams["y"] == nodes["y"] == alerts["y"] + alerts["h"]
    assert nodes["y"] + nodes["h"] == teams["y"] + teams["h"] == 1 + fleet.TILES + fleet.FIRST_SCREEN
    assert nodes["y"] + nodes["h"] < UNITS + 0.5


def test_panels_fill_the_place_beside_a_higher_one() -> None:
    """The next panel goes where the highest free place is, and a row below all of them."""
    sizes = ((13, 9), (11, 4), (11, 5), (24, 1))
    found = [grafana.TextPanel(gridPos=GridPos(h=height, w=width, x=0, y=0)) for width, height in sizes]
    grafana.placed(found, 1)
    places = [(each.gridPos.x, each.gridPos.y) for each in found]
    assert places == [(0, 1), (13, 1), (13, 5), (0, 10)]


def test_the_first_screen_of_cost_says_who_pays() -> None:
    """The chargeback is in view to its end, and what the waste costs per day is above it."""
    grids = {panel["title"]: panel["gridPos"] for panel in BOARDS["cost"]["panels"]}
    chargeback = grids["Chargeback by namespace"]
    assert grids["Wasted per day"]["y"] < chargeback["y"] + chargeback["h"] < UNITS
