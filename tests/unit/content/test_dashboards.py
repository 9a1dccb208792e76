"""The committed dashboards: the rules of grafana/dashboard-linter and more, on their JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.models import units

from content import artifacts
from content.dashboards import build as dashboards
from content.dashboards import grafana, queries, server, tables
from content.dashboards.frame import DARK_RED, GREY, LIVE_PAGE
from content.dashboards.mode_panels import shown
from gpu_exporter.alerting import boards, rules, serving
from gpu_exporter.alerting.aggregates import SHARE
from gpu_exporter.alerting.incidents import RANKS, SINCE
from gpu_exporter.catalogue import bottlenecks, failure_modes, project
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.conditions.tree import record_of
from gpu_exporter.model.metric import Kind
from tests import ROOT
from tests.support.grafana_sdk import through_sdk
from tests.support.panels import BOARDS, expressions, filled, panels
from tests.support.table import table_test

FIX = "fix: run `make generate`, and delete the boards in dashboards/ that nothing renders"

Board = Mapping[str, Any]
UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
DRAWN = {"stat", "gauge", "table", "timeseries", "state-timeline", "heatmap"}
# Panels that are usually empty for another reason than that nothing is collected.
OTHERWISE_EMPTY = {
    "Incidents by cost": "no incidents",
    "Incidents by severity": "no incidents",
    **dict.fromkeys(
        (
            *("Requests running and waiting", "Time to the first token", "Output, and time per token"),
            *("Output and latency by batch size", "Batch size and its recommended limit"),
        ),
        server.NO_SERVER,
    ),
    "Pods on the GPU": "not shared, or not collected",
    "XIDs": "none reported",
    "Phases that take longer than on other ranks": "no difference, or not collected",
    "Idle gaps": "no gap, or not collected",
    "Stopped by the CPU limit": "no CPU limit, or not collected",
}
VARIABLES = {"cluster": "c", "node": "n", "gpu": "0", "namespace": "ns", "workload": "w", "pod": "p"}
# What panels read that no rule records, by what it is for; and the dashboards with each.
HISTOGRAMS = {f"{row}_bucket" for row in m.METRICS if row.kind is Kind.HISTOGRAM}
IDENTITY = {m.INFO.name, m.POD_INFO.name, m.XID_LAST.name}
PROFILES = {m.IDLE_CAUSE.name, m.KERNEL_CLASS.name}
LINES = {m.WAITING_LINE.name}
FABRIC = {m.NIC_INFO.name, m.NVLINK_SPEED.name, m.NCCL_BUS.name}
SHARING = {row.name for row in (m.POD_MEMORY, m.POD_SM, m.DURATION, m.RENDER_TIME, m.FAILURES, m.MISSED)}
SHARING |= {row.name for row in (m.CHECK_PASSED, m.CHECK_AT, m.CHECK_RATE, m.CHECK_BANDWIDTH)}
SERVERS = {*(f"{name}_bucket" for name in serving.FIRST_TOKEN), *serving.CACHE}
DIRECT = {
    "gpu": HISTOGRAMS | IDENTITY | PROFILES | LINES | SHARING,
    "job": HISTOGRAMS | PROFILES | LINES | FABRIC,
    "node": FABRIC | SHARING - {m.POD_MEMORY.name, m.POD_SM.name},
    "server": SERVERS | PROFILES,
}


def variables(board: Board, kind: str = "query") -> list[Mapping[str, Any]]:
    """Return the variables of a kind."""
    return [each for each in board["templating"]["list"] if each["type"] == kind]


def nodes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every node of an expression, with its parent."""
    inner = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for each in (*inner, *(getattr(node, "args", None) or ())):
        if each is not None and each.__class__.__module__ == node.__class__.__module__:
            yield each, node
            yield from nodes(each)


def parsed(board: Board) -> Iterator[Any]:
    """Return the syntax tree of each query. Raises ValueError."""
    for text in expressions(board):
        yield promql_parser.parse(filled(text, VARIABLES))


def selectors(board: Board) -> Iterator[Any]:
    """Yield every vector selector."""
    for tree in parsed(board):
        for node in (tree, *(each for each, _ in nodes(tree))):
            if type(node).__name__ == "VectorSelector":
                yield node


def datasource_variable(board: Board) -> bool:
    return [(each["name"], each["label"]) for each in variables(board, "datasource")] == [("datasource", "Data source")]


def named_variable(name: str, label: str) -> Callable[[Board], bool]:
    return lambda board: any(
        (each["name"], each["label"], each["multi"], each["allValue"]) == (name, label, True, ".+")
        for each in variables(board)
    )


def variables_parse(board: Board) -> bool:
    for each in variables(board):
        found = re.fullmatch(r"label_values\((.+), \w+\)", each["query"])
        if not found or not promql_parser.parse(filled(found[1], VARIABLES)):
            return False
    return True


def rates_are_of_the_interval(board: Board) -> bool:
    return all(
        set(re.findall(r"\b(?:i?rate)\([^\[]*\[([^\]]+)\]", text)) <= {"$__rate_interval"}
        for text in expressions(board)
    )


def counters_are_rated(board: Board) -> bool:
    for tree in parsed(board):
        for node, around in [(tree, None), *nodes(tree)]:
            counter = type(node).__name__ == "VectorSelector" and re.search(r"_total$", node.name or "", re.I)
            if counter and type(around).__name__ != "MatrixSelector":
                return False
    return True


def matched_everywhere(label: str) -> Callable[[Board], bool]:
    return lambda board: all(
        any(each.name == label and each.value == f"${label}" for each in selector.matchers.matchers)
        for selector in selectors(board)
    )


RULES: Mapping[str, Callable[[Board], bool]] = {
    "template-datasource-rule": datasource_variable,
    "template-job-rule": named_variable("job", "Job"),
    "template-instance-rule": named_variable("instance", "Instance"),
    "template-label-promql-rule": variables_parse,
    "template-on-time-change-reload-rule": lambda board: all(each["refresh"] == 2 for each in variables(board)),
    "panel-datasource-rule": lambda board: all(
        source == {"type": "prometheus", "uid": "${datasource}"}
        for panel in panels(board)
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"]))
    ),
    "panel-title-description-rule": lambda board: all(p["title"] and p["description"] for p in panels(board)),
    "panel-units-rule": lambda board: all(p["fieldConfig"]["defaults"]["unit"] in UNITS for p in panels(board)),
    "panel-no-targets-rule": lambda board: all(panel["targets"] for panel in panels(board)),
    "target-logql-rule": lambda board: all(p["datasource"]["type"] != "loki" for p in panels(board)),
    "target-logql-auto-rule": lambda board: not any("$__auto" in text for text in expressions(board)),
    "target-promql-rule": lambda board: all(tree is not None for tree in parsed(board)),
    "target-rate-interval-rule": rates_are_of_the_interval,
    "target-job-rule": matched_everywhere("job"),
    "target-instance-rule": matched_everywhere("instance"),
    "target-counter-agg-rule": counters_are_rated,
    "uneditable-dashboard": lambda board: board["editable"] is False,
}
EXCLUDED = yaml.safe_load((ROOT / "dashboards/.lint").read_text())["exclusions"]


def test_all_rules_of_the_linter_are_here() -> None:
    """All seventeen; each excluded one has a reason, and would fail."""
    assert len(RULES) == 17
    assert EXCLUDED.keys() < RULES.keys()
    assert all(len(each["reason"]) > 40 for each in EXCLUDED.values())
    assert not any(RULES[name](board) for name in EXCLUDED for board in BOARDS.values()), "no need to exclude it"


@pytest.mark.parametrize("name", BOARDS)
@pytest.mark.parametrize("rule", sorted(RULES.keys() - EXCLUDED.keys()))
def test_the_linter_has_no_complaint(name: str, rule: str) -> None:
    """Each rule that is not excluded passes."""
    assert RULES[rule](BOARDS[name])


BAD: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "template-datasource-rule": lambda board: board["templating"]["list"][0].update(name="ds"),
    "template-label-promql-rule": lambda board: board["templating"]["list"][1].update(query="up"),
    "template-on-time-change-reload-rule": lambda board: board["templating"]["list"][1].update(refresh=1),
    "panel-datasource-rule": lambda board: board["panels"][1]["targets"][0].update(datasource="prometheus"),
    "panel-title-description-rule": lambda board: board["panels"][1].update(description=""),
    "panel-units-rule": lambda board: board["panels"][1]["fieldConfig"]["defaults"].update(unit="gpus"),
    "panel-no-targets-rule": lambda board: board["panels"][1].update(targets=[]),
    "target-logql-rule": lambda board: board["panels"][1].update(datasource={"type": "loki"}),
    "target-logql-auto-rule": lambda board: board["panels"][1]["targets"][0].update(expr="rate(a_total[$__auto])"),
    "target-rate-interval-rule": lambda board: board["panels"][1]["targets"][0].update(expr="rate(a_total[5m])"),
    "target-counter-agg-rule": lambda board: board["panels"][1]["targets"][0].update(expr='sum(a_TOTAL{b="c"})'),
    "uneditable-dashboard": lambda board: board.update(editable=True),
}


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_can_fail(rule: str) -> None:
    """A rule that never fails would be useless."""
    board = json.loads(json.dumps(BOARDS["fleet"]))
    BAD[rule](board)
    assert not RULES[rule](board)


def test_the_linter_parses() -> None:
    """A query that is not PromQL is an error."""
    board = {**BOARDS["fleet"], "panels": [{"type": "stat", "targets": [{"expr": "sum by (a"}]}]}
    with pytest.raises(ValueError, match="unclosed"):
        RULES["target-promql-rule"](board)


@pytest.mark.parametrize(
    "board", [board for board in boards.BOARDS if board.name in BOARDS], ids=lambda board: str(board.name)
)
def test_layout(board: boards.Board) -> None:
    """Ids are unique, nothing overlaps, no row is wider than the grid, at most 20 panels are visible at once."""
    content = BOARDS[board.name]
    everything = [each for top in content["panels"] for each in (top, *top.get("panels", ()))]
    assert len({each["id"] for each in everything}) == len(everything)
    assert content["uid"] == board.uid
    assert re.fullmatch(r"[a-z0-9-]{8,40}", board.uid) or board.uid in ("gpu-gpu", "gpu-job")
    assert content["schemaVersion"] == grafana.SCHEMA
    assert 5 < sum(panel["type"] != "row" for panel in content["panels"]) <= 20
    for level in (content["panels"], *(top.get("panels", ()) for top in content["panels"])):
        taken: set[tuple[int, int]] = set()
        for panel in level:
            grid = panel["gridPos"]
            cells = {(x, y) for x in _span(grid, "x", "w") for y in _span(grid, "y", "h")}
            assert not cells & taken, f"{panel['title']} overlaps"
            assert grid["x"] + grid["w"] <= grafana.GRID
            taken |= cells


def _span(grid: Mapping[str, int], start: str, size: str) -> range:
    return range(grid[start], grid[start] + grid[size])


def _links(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield from (each for key, each in value.items() if key == "url" and each)
            yield from (link for each in value.values() for link in _links(each))
        case list():
            yield from (link for each in value for link in _links(each))


@pytest.mark.parametrize("name", BOARDS)
def test_link_targets_exist(name: str) -> None:
    """A dashboard with the variables of the link, a runbook, or the live page of a node of which the dashboard is."""
    by_uid = {board["uid"]: {each["name"] for each in board["templating"]["list"]} for board in BOARDS.values()}
    found = list(_links(BOARDS[name]["panels"]))
    assert found
    for link in found:
        if link.startswith(boards.RUNBOOKS.link()) or link == tables.LINKED_COLUMNS["instance"]["url"]:
            continue
        if link == LIVE_PAGE:
            assert "instance" in by_uid[BOARDS[name]["uid"]]
            continue
        uid = re.match(r"/d/([a-z-]+)\?", link)
        assert uid, link
        assert set(re.findall(r"var-(\w+)=", link)) <= by_uid[uid[1]]
        assert "${__url_time_range}" in link
        assert "${cluster:queryparam}" in link
    dropdown, *pages = BOARDS[name]["links"]
    assert [page["url"] for page in pages] == ([LIVE_PAGE] if name in ("node", "gpu") else [])
    assert (dropdown["asDropdown"], dropdown["includeVars"], dropdown["keepTime"]) == (True, True, True)
    assert all(set(dropdown["tags"]) <= set(board["tags"]) for board in BOARDS.values())
    text = json.dumps(BOARDS[name])
    assert "inControlsMenu" not in text
    assert "](.." not in text, "a link to a file of the repository leads nowhere in Grafana"


@table_test("mode", MODES, lambda mode: str(mode.name))
def test_alerts_link_to_their_board(mode: Any) -> None:
    """The dashboard of an alert has a panel with its name, and the variables of the link."""
    url = rules.alert(mode, {})["annotations"]["dashboard_url"]
    content = BOARDS[boards.board_of(mode).name]
    assert url.startswith(f"/d/{content['uid']}?var-cluster={{{{ or $labels.cluster")
    assert set(re.findall(r"var-(\w+)=", url)) <= {each["name"] for each in content["templating"]["list"]}
    (panel,) = [each for each in panels(content) if each["title"] == mode.name]
    asked = " ".join(target["expr"] for target in panel["targets"])
    assert all(signal.record in asked for signal in shown(mode))
    assert [link["url"] for link in panel["links"]] == [rules.alert(mode, {})["annotations"]["runbook_url"]]


def test_a_new_mode_gets_a_panel() -> None:
    """In the row of its domain; the table of alerts links to its runbook."""
    new = replace(failure_modes.health.MODES[0], name="GpuOnFire")
    content = json.loads(dashboards.render(boards.GPU, (*MODES, new)))
    (row,) = [each for each in content["panels"] if each["title"] == f"Signals behind the alerts: {new.domain.value}"]
    assert row["panels"][-1]["title"] == "GpuOnFire"
    assert f'"runbook", "{boards.panel_id("gpuonfire")}"' in " ".join(expressions(content))


def test_runbooks() -> None:
    """Each alert has a panel, whose links lead to another panel or to the web; nothing overlaps."""
    board = json.loads((ROOT / "dashboards/runbooks.json").read_text())
    titles = {panel["id"]: panel["title"] for panel in board["panels"]}
    assert sorted(titles.values()) == sorted(["Runbooks", *(mode.name for mode in MODES)]), FIX
    assert [panel["gridPos"]["y"] for panel in board["panels"]] == [20 * n for n in range(len(titles))]
    linked = set()
    for panel in board["panels"]:
        content = panel["options"]["content"]
        assert panel["title"] == "Runbooks" or content.index("## What to do first") < content.index("## Fix")
        for text, target in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", content):
            found = re.fullmatch(r"/d/gpu-runbooks\?viewPanel=(\d+)", target)
            assert found or target.startswith("https://"), target
            linked |= {(text, titles[int(found[1])])} if found else set()
    assert ("GpuTelemetryStale", "GpuTelemetryStale") in linked
    assert all(text == title for text, title in linked if text.startswith("Gpu"))
    contents = {panel["title"]: panel["options"]["content"] for panel in board["panels"]}
    assert "failure modes (`docs/failure-modes.md`)" in contents["Runbooks"]
    assert "in the example for Alertmanager (`alerts/examples/alertmanager.yaml`) |" in contents["GpuLost"]


def test_published_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the project has an address, alerts and runbooks link to it."""
    monkeypatch.setattr(project, "DOCS", "https://git.example/docs")
    runbook = f"https://git.example/docs/runbooks/{MODES[0].name.lower()}.md"
    assert rules.alert(MODES[0], {})["annotations"]["runbook_url"] == runbook
    assert "(https://git.example/docs/xids.md)" in dashboards.render(boards.RUNBOOKS)


@pytest.mark.parametrize("name", BOARDS)
def test_queries_read_only_recorded_series(name: str) -> None:
    """Signals, aggregates, ALERTS, histograms, names of ports; the fleet dashboard reads no signals of single GPUs."""
    recorded = {rule["record"] for group in yaml.safe_load(rules.recording())["groups"] for rule in group["rules"]}
    board = BOARDS[name]
    found = {selector.name for selector in selectors(board)} - {"ALERTS", "ALERTS_FOR_STATE"}
    assert found <= recorded | DIRECT.get(name, set())
    if name == "fleet":
        found |= {re.split(r"[({,]", each["query"])[1] for each in variables(board)}
        # Annotations: they exist only for GPUs that had an XID.
        xids = {signal.record for signal in (s.XID_APPLICATION, s.XID_FATAL, s.XID_UNKNOWN)}
        # And what share of a GPU an idle MIG instance is, the ranks of GPUs with an alert, and those that hold up a job
        # that hangs.
        assert {text for text in found if text.startswith("gpu:")} == {
            *xids,
            SHARE.record,
            SINCE.record,
            RANKS.record,
            record_of(bottlenecks.SPINNING),
        }


@pytest.mark.parametrize("name", BOARDS)
def test_empty_panels_have_a_text(name: str) -> None:
    """It says that there is no data, or another reason; only an empty list of alerts is good."""
    for panel in panels(BOARDS[name]):
        text = panel["fieldConfig"]["defaults"]["noValue"].replace("\N{NO-BREAK SPACE}", " ").strip()
        alerts = (
            all("ALERTS" in target["expr"] for target in panel["targets"]) and panel["title"] not in OTHERWISE_EMPTY
        )
        xids = re.fullmatch("GpuXid(Fatal|Application|Unknown)", panel["title"])
        expected = {"table": "no firing alerts", "timeseries": "not firing"}.get(panel["type"], "") if alerts else ""
        expected = expected or ("none reported" if xids else OTHERWISE_EMPTY.get(panel["title"], "not collected"))
        assert text == expected, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_missing_number_is_grey(name: str) -> None:
    """Neither good nor bad: a background has a colour from zero upwards."""
    for panel in panels(BOARDS[name]):
        if panel["type"] == "stat" and panel["options"]["colorMode"] == "background":
            first, *others = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            words = panel["fieldConfig"]["defaults"].get("mappings")
            assert (first["color"], first["value"]) == (GREY, None), panel["title"]
            assert words or others[0]["value"] == 0, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_limits_are_drawn_on_one_axis(name: str) -> None:
    """On the right axis, whose unit is another one, a limit would be wrong."""
    limited = 0
    for panel in panels(BOARDS[name]):
        if panel["fieldConfig"]["defaults"].get("custom", {}).get("thresholdsStyle", {}).get("mode") == "dashed":
            for override in panel["fieldConfig"]["overrides"]:
                found = {each["id"]: each.get("value") for each in override["properties"]}
                if found.get("custom.axisPlacement") == "right":
                    limited += 1
                    assert found["custom.thresholdsStyle"] == {"mode": "off"}, panel["title"]
                    assert "custom.axisSoftMax" in found, f"{panel['title']}: the range of the left axis"
    assert limited or name in ("fleet", "cost", "server"), "no panel has limits and two axes"


def test_recorded_counters_have_two_values_in_a_window() -> None:
    """They are recorded when Prometheus evaluates rules, usually once a minute: four scrapes can be too short."""
    found = [
        target
        for board in BOARDS.values()
        for panel in panels(board)
        for target in panel["targets"]
        if re.search(r"(?:rate|increase)\((?:\w+:)", target["expr"])
    ]
    assert found
    assert {target.get("interval") for target in found} == {"1m"}


def test_alerts_without_a_gpu_have_no_number_of_gpus() -> None:
    """Those about a node or a job have a time only."""
    for board in BOARDS.values():
        for panel in panels(board):
            if panel["title"] == "Firing alerts" and panel["type"] == "table":
                number, since = (target["expr"] for target in panel["targets"])
                without = " unless on (UUID) vector(0)"
                assert without in number
                assert without not in since


@pytest.mark.parametrize("name", BOARDS)
def test_queries_are_short(name: str) -> None:
    """VictoriaMetrics refuses longer ones by default (`-search.maxQueryLen`)."""
    assert max(map(len, expressions(BOARDS[name]))) < 16 << 10


def test_queries_on_servers_are_those_of_the_pod() -> None:
    """What no rule records has the labels of the pod only after its rewriting: it is joined with recorded series."""
    found = [text for text in expressions(BOARDS["server"]) if any(name in text for name in SERVERS)]
    assert len(found) == 4
    assert all(
        re.search(r'and on \(cluster, namespace, pod\) pod:requests:count{.*pod=~"\$pod"', each) for each in found
    )


def test_the_classes_have_their_colours() -> None:
    """Colours and names in the timeline are those of the catalogue; a GPU that does not answer has no class."""
    (panel,) = [each for each in panels(BOARDS["gpu"]) if each["title"] == "Bottleneck"]
    options = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    assert {(number, each["text"], each["color"]) for number, each in options.items()} == {
        *((str(place), each.name, each.colour) for place, each in enumerate(bottlenecks.BOTTLENECKS)),
        (str(queries.LOST), "does not answer", DARK_RED),
    }


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: str(board.name))
def test_grafana_knows_each_key(board: boards.Board) -> None:
    """Its SDK, whose types are its schema, drops no key and changes no value."""
    content = json.loads((ROOT / f"dashboards/{board.name}.json").read_text())
    assert list(_lost(content, through_sdk(content))) == []


def test_an_old_key_is_lost() -> None:
    """Such as one that grafanalib writes, and the schema no longer has."""
    content = {**BOARDS["gpu"], "sharedCrosshair": True}
    assert list(_lost(content, through_sdk(content))) == [".sharedCrosshair"]


def _lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield what is in `before` and not the same in `after`, where additions are defaults."""
    match before:
        case dict():
            for key, value in before.items():
                if not isinstance(after, dict) or key not in after:
                    yield f"{path}.{key}"
                else:
                    yield from _lost(value, after[key], f"{path}.{key}")
        case list():
            if not isinstance(after, list) or len(before) != len(after):
                yield path
            else:
                for place, value in enumerate(before):
                    yield from _lost(value, after[place], f"{path}[{place}]")
        case _ if before != after:
            yield f"{path}: {before!r} became {after!r}"


@pytest.mark.slow
def test_without_the_extra_one_line_names_it() -> None:
    """It is what to install."""
    block = "import sys; sys.modules['grafanalib'] = None; from content.__main__ import generate; generate()"
    found = subprocess.run([sys.executable, "-c", block, "--check"], capture_output=True, text=True)
    assert found.returncode != 0
    assert len(found.stderr.strip().splitlines()) == 1
    assert ".[dashboards]" in found.stderr
    assert "grafanalib" in found.stderr


@pytest.mark.slow
@pytest.mark.drift
def test_committed_dashboards_are_rendered() -> None:
    """No dashboard is outdated, and there are no others."""
    files: Sequence[str] = sorted(f"dashboards/{path.name}" for path in (ROOT / "dashboards").glob("*.json"))
    assert files == sorted(name for name in artifacts.ARTIFACTS if name.startswith("dashboards/")), FIX
    assert not [name for name in artifacts.stale(ROOT) if name in files], FIX
