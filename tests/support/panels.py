"""Runs every query of a dashboard in a real Prometheus, and compares the result with the scraped pages.

Call `problems`. The expected results are computed in Python (`diagnosis/window.py` and the evaluation of conditions),
so a query whose result is empty because of a wrong label or name is detected.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import promql_parser

from content.dashboards.alert_table import ALERT_COLUMNS, SINGLE
from gpu_exporter.alerting import (
    aggregates,
    allocation,
    hourly_sums,
    remediation,
    roofline,
    rules,
    serving,
    training_jobs,
)
from gpu_exporter.alerting import incidents as recorded_incidents
from gpu_exporter.alerting.boards import RUNBOOKS
from gpu_exporter.catalogue import bottlenecks, job_signals, nic_signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import LEAST_LOSS, Cause
from gpu_exporter.catalogue.failure_modes import HOLD_UP, LINKS, MODES, STALLS, STOPS
from gpu_exporter.catalogue.failure_modes.mode import INTERRUPTION
from gpu_exporter.catalogue.roofline import ROOFS
from gpu_exporter.catalogue.time_shares import LABEL, RECORD, time_shares
from gpu_exporter.conditions import evaluate
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Mark, Over, PeerMedian, PeerShare, duration, terms
from gpu_exporter.diagnosis.incidents import PlacedMode, incidents
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import Window
from tests import ROOT
from tests.rules.needed import rule_groups
from tests.support.classes import classify
from tests.support.prometheus import Prometheus

# Those that show data.
BOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "dashboards").glob("*.json"))
    if path.stem != RUNBOOKS.name
}
# A browser's window on a display of 1080 lines has 950; Grafana's header and the variables take 120, and a unit of the
# grid 38.
UNITS = (950 - 120) / 38
ALL = ".*"
ALERTS = ("ALERTS", "ALERTS_FOR_STATE")
INCIDENTS = {
    each.record
    for each in (*recorded_incidents.INCIDENTS, *recorded_incidents.COSTS)
    if each.record.startswith("incident:open:")
}
PATIENT = {training_jobs.SPEED_USUAL.record, *(each.record for each in hourly_sums.REPORTS)}
ALL_ALERTS = {each.record for each in (recorded_incidents.ALL, recorded_incidents.CAUSES, recorded_incidents.NAMES)}
BY_NAME = {mode.name: mode for mode in MODES}
# Metrics of gpu-exporter, and of inference servers, that panels read without a rule. Which devices have them is not
# computed here: their queries must only be answered by numbers.
DIRECT = {row.name for row in m.METRICS} - {m.NIC_INFO.name, m.WAITING_LINE.name}
SERVED = {*serving.CACHE, *(f"{name}_bucket" for name in serving.FIRST_TOKEN)}
SET_OPERATORS = ("and", "or", "unless")
IDENTITY = ("node", "gpu", "namespace", "pod", "workload")
# Labels that a query makes of others, or of values.
MADE = ("first", "role", "nodes", "symptoms", "Cluster", "number")
# Labels of what no page has: the line of code in a profile.
PROFILED = ("line", "cause")
# Labels of parts or events, which not every series has.
SOMETIMES = ("GPU_I_ID", "namespace", "workload", "cluster", "rank", "Rank", "activity", "fewer")
Devices = frozenset[DeviceKey]
# The histograms that panels read directly, each with a signal that only devices with it have.
HISTOGRAMS = {
    f"{row}_bucket": s.POWER_SWING if row is m.POWER_SAMPLES else s.SM_IDLE
    for row in (m.SM_SHARES, m.POWER_SAMPLES, m.IDLE_GAPS)
}
LOOPS = {each.record for each in (*training_jobs.JOBS, *training_jobs.PROMPT, training_jobs.TOKEN_COST)}
# From kube-state-metrics, the remediation controller and inference servers.
OF_CLUSTER = {each.record for each in (*allocation.ALLOCATION, *remediation.REMEDIATION, *serving.SERVING)}
# How the pod of the failure mode GpuWaitsForRequests begins.
SERVER = "gpuwaitsforrequests"
# The pod of the simulated GPUs that is scraped as an inference server, too.
SIMULATED_SERVER = "train-000-0"
# The signals of a device from which its achieved rates are computed, if its model is known.
ACHIEVED = {roofline.TENSOR.record: (s.TENSOR_ACTIVE, s.SM_CLOCK), roofline.MEMORY.record: (s.DRAM_ACTIVE,)}


@dataclass(frozen=True)
class Panel:
    """A panel with a query, anywhere on the board."""

    board: str
    content: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.board}: {self.content['title']}"


def is_in_view(panel: Mapping[str, Any]) -> bool:
    """Return whether a panel is at least partly on the first screen: only then does Grafana run its queries."""
    return panel["type"] != "row" and bool(panel["gridPos"]["y"] < UNITS)


def panels(board: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield all panels except rows, with those of collapsed rows."""
    for panel in board["panels"]:
        yield from panel.get("panels", ()) if panel["type"] == "row" else (panel,)


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it."""
    text = _substituted(text, variables)
    assert not re.search(r"\$(?!\d)", text), f"a variable is left in {text}"
    return text


def _substituted(text: str, variables: Mapping[str, str]) -> str:
    for name, value in {"__rate_interval": "15s", "__range_s": "3600", "__range": "1h", **variables}.items():
        text = text.replace(f"${name}", value)
    return text


def _records() -> Mapping[str, Any]:
    """Return the recorded terms and marks by name."""
    conditions = [each.condition for each in bottlenecks.BOTTLENECKS] + [
        mode.condition for mode in MODES if mode.condition
    ]
    leaves = [term for condition in conditions for term in terms(condition)]
    found: dict[str, Any] = {}
    for term in leaves:
        match term:
            case Over():
                over = Over(term.signal, term.fn, term.window)
                found[over.record] = over
            case PeerShare():
                found.update({term.record: term, term.mark.record: term.mark})
            case PeerMedian():
                found.update({term.record: term, term.of.record: term.of, term.mark.record: term.mark})
    found.pop("", None)
    return {**found, **{signal.record: signal for signal in s.SIGNALS}}


RECORDS = _records()
SHARED = rules.shared_conditions()


@cache
def _recording_rules() -> Mapping[str, str]:
    groups = rule_groups((ROOT / "alerts/recording.yaml",))
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


@dataclass
class Truth:
    """The true values from the pages of some exporters, narrowed down by variables; `rules` are by recorded name.

    `allocated`: kube-state-metrics and the controller are scraped, too, and have a series for every query.
    """

    seen: Window
    variables: Mapping[str, str]
    firing: Sequence[Mapping[str, str]] = ()
    allocated: bool = False
    rules: Mapping[str, str] = field(default_factory=_recording_rules)

    @cached_property
    def chosen(self) -> Devices:
        """Return the devices that the variables select."""
        return frozenset(part for part, known in self.seen.devices.items() if self._matches(known))

    def _matches(self, known: object) -> bool:
        return all(
            re.fullmatch(self.variables[label], getattr(known, label)) for label in IDENTITY if label in self.variables
        )

    def labels(self, label: str) -> set[str]:
        """Return the values of an identity label."""
        return {str(getattr(self.seen.devices[part], label)) for part in self.chosen} - {""}

    def has(self, label: str, text: str) -> bool:
        """Return whether the result of a query must have this label."""
        if label in MADE or label in PROFILED or (label == "rank" and text.startswith("sum without (rank)")):
            return False
        if any(name in text for name in INCIDENTS):
            if label in ("runbook", "urgency", "order"):
                return f'"{label}"' in text
            return label in ("severity", "alertname") or (label == "cluster" and bool(self.variables["cluster"]))
        if label == "rank" and "ALERTS" not in text:
            return bool(re.search(r"\brank\b", text)) and bool(self._trained())
        if "ALERTS" in text:
            if label in ("runbook", "urgency", "order"):  # which the query adds
                return f'"{label}"' in text
            alerts = [alert for alert in self.firing if any(_matching(alert, each) for each in _shown_alerts(text))]
            if label == "rank" and "rank" not in text:
                return False
            if label in SINGLE and "== 1" in text:  # rows of several GPUs do not name one
                rows = Counter(tuple(alert.get(name, "") for name in ALERT_COLUMNS) for alert in alerts)
                return any(
                    alert.get(label) and rows[tuple(alert.get(name, "") for name in ALERT_COLUMNS)] == 1
                    for alert in alerts
                )
            return any(alert.get(label) for alert in alerts)
        if label == LABEL:
            return bool(re.search(rf"\b{LABEL}\b", text))
        if label in ("pool", "resource", "reason") or any(name in text for name in OF_CLUSTER):
            return self.allocated and (label != "cluster" or bool(self.variables["cluster"]))
        if label == "job_id":
            return bool(self._trained())
        if label in ("device", "port", "distance"):
            return m.NIC_INFO.name in text
        return bool(self.variables["cluster"]) if label == "cluster" else bool(self.labels(label))

    def _trained(self) -> Devices:
        """Return the devices whose training loops say something."""
        return self._where(lambda part: self._known(job_signals.DATA, part))

    def of(self, text: str) -> Devices | bool:
        """Return the devices that a query must return; for an aggregate, whether it returns any."""
        node: Any = _parsed(text)
        return self._of(node.lhs if _drops_values(node) else node)

    def _of(self, node: Any) -> Devices | bool:
        match type(node).__name__:
            case "VectorSelector":
                return self._series(node.name, _matchers(node))
            case "MatrixSelector":
                return self._of(node.vector_selector)
            case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
                return self._of(node.expr)
            case "NumberLiteral":
                return True
            case "Call" if node.func.name == "histogram_quantile":
                return self._of(node.args[1])
            case "Call":
                return self._of(node.args[0]) if node.args else True
            case "AggregateExpr":
                found = self._of(node.expr)
                without = node.modifier is not None and str(node.modifier.type).endswith("Without")
                return found if without else bool(found)
            case "BinaryExpr" if str(node.op) == "and" and getattr(node.lhs, "name", "") in ALERTS:
                return self._alerts(node.lhs, self._of(node.rhs))
            case "BinaryExpr" if label := re.fullmatch(r"ALERTS\{.*\} unless on \((\w+)\) vector\(0\)", str(node)):
                return replace(self, firing=[alert for alert in self.firing if alert.get(label[1])])._of(node.lhs)
            case "BinaryExpr" if str(node.op) == "and" and any(
                each.record in str(node.lhs) for each in serving.SERVING
            ):
                return bool(self._of(node.lhs)) and self._has_server()
            case "BinaryExpr" if str(node.op) == "==" and s.UP.record in str(node.lhs):  # GPUs that do not answer
                return self._where(lambda part: [value for _, value in self.seen.points(part, s.UP)][-1:] == [0.0])
            case "BinaryExpr":
                return self._binary(str(node.op), self._of(node.lhs), self._of(node.rhs))
        raise AssertionError(f"{type(node).__name__} is new in a dashboard: teach this test what it finds")

    def _binary(self, operator: str, left: Devices | bool, right: Devices | bool) -> Devices | bool:
        if operator in ("==", ">", "<", ">=", "<="):  # a filter; what it drops comes back after `or`
            return left
        if operator not in (*SET_OPERATORS, *"+-*/%^"):
            raise AssertionError(f"a dashboard compares with {operator}: its result is not known")
        if operator == "unless":
            return left - right if isinstance(left, frozenset) and isinstance(right, frozenset) else left
        if isinstance(left, frozenset) and isinstance(right, frozenset):
            return (
                left | right if operator == "or" else left & right if operator != "and" else self._same_gpu(left, right)
            )
        if operator == "or":
            return bool(left) or bool(right)
        for one, other in ((left, right), (right, left)):
            if isinstance(one, frozenset) and other is True:
                return one
        return bool(left) and bool(right)

    def _alerts(self, alerts: Any, others: Devices | bool) -> bool:
        """Return whether alerts fire that there are others of, or that are about the devices `others`."""
        found = [alert for alert in self.firing if _matching(alert, _matchers(alerts))]
        if isinstance(others, bool):
            return bool(found) and others
        return bool({alert.get("UUID") for alert in found} & {part.uuid for part in others})

    def _same_gpu(self, left: Devices, right: Devices) -> Devices:
        gpus = {part.uuid for part in right}
        return frozenset(part for part in left if part.uuid in gpus)

    def _series(self, name: str, matchers: Mapping[str, str]) -> Devices | bool:
        if name in INCIDENTS or name == recorded_incidents.PLACES.record:
            return self._incidents(matchers)
        if name == recorded_incidents.HELD.record:
            return self._holds_up()
        if name == recorded_incidents.UNEXPLAINED_COST.record:  # also 0
            return self._series(aggregates.WASTED_COST.record, matchers)
        if name == aggregates.WAITING.record:
            return bool(self._where(self._waits))
        if name in ALERTS:
            return any(_matching(alert, matchers) for alert in self.firing)
        if name == serving.KNEE.record:  # it needs several batch sizes
            return False
        if name in ALL_ALERTS:
            return bool(self.firing)
        if name in (serving.BATCH.record, allocation.POD_REQUESTS.record):
            return self.allocated or self._serves()
        if name in OF_CLUSTER:
            return self.allocated
        if name in ACHIEVED:
            return self._where(
                lambda part: (
                    self.seen.devices[part].model in ROOFS
                    and all(self._measured(signal, part) for signal in ACHIEVED[name])
                )
            )
        if name in LOOPS:
            return bool(self._trained())
        if name == m.WAITING_LINE.name:
            return frozenset()
        if name == m.NIC_INFO.name:
            return self._where(lambda part: self._known(nic_signals.UP, part))
        if name in HISTOGRAMS:
            return self._where(lambda part: self._known(HISTOGRAMS[name], part))
        if name == RECORD:
            return self._where(lambda part: bool(time_shares(self.seen, part)))
        if name == bottlenecks.CLASS:
            only = matchers.get("class", ALL)
            return self._where(lambda part: (its := classify(self.seen, part)) and re.fullmatch(only, its.name))
        if name in RECORDS:
            return self._where(lambda part: self._known(RECORDS[name], part))
        if name in SHARED:
            return self._where(lambda part: evaluate.holds(SHARED[name], self.seen, part))
        if name in ("gpu:device:info", "gpu:device_identity:info"):
            return self.chosen
        if name == aggregates.SHARE.record:
            return self._where(lambda part: not self.seen.devices[part].has_instances)
        assert name in self.rules, f"{name} is neither recorded nor a signal"
        return self._of(_parsed(self.rules[name]))

    def _incidents(self, matchers: Mapping[str, str]) -> bool:
        """Return whether there are incidents: alerts that no other one of the cluster explains."""
        found = [alert for alert in self.firing if _matching(alert, {"cluster": matchers.get("cluster", ALL)})]
        causes = [
            cause.labels
            for incident in incidents([PlacedMode(BY_NAME[alert["alertname"]], alert) for alert in found])
            for cause in incident.causes
        ]
        return any(_matching(cause, matchers) for cause in causes)

    def _waits(self, part: DeviceKey) -> bool:
        """Return whether a rank is seen to wait for others."""
        shares, its = time_shares(self.seen, part), classify(self.seen, part)
        share = shares.get(Cause.PEERS, 0.0)
        waits = its is not None and its.name in bottlenecks.WAITING_CLASSES
        return share >= LEAST_LOSS and (waits or share == max(shares.values()))

    def _holds_up(self) -> bool:
        """Return whether an incident holds up a job: its GPU does not wait itself, or its link is slow."""
        waiting = {
            part.uuid
            for part in self.seen.devices
            if (its := classify(self.seen, part)) and its.name in bottlenecks.WAITING_CLASSES
        }
        return any(
            self._incidents({"alertname": name, "workload": ".+", "UUID": f"(?!({'|'.join(waiting)})\\Z).*"})
            if BY_NAME[name].cause is not Cause.PEERS and name not in LINKS and waiting
            else self._incidents({"alertname": name, "workload": ".+"})
            for name in HOLD_UP
            if name not in STOPS or any(alert["alertname"] in STALLS for alert in self.firing)
        )

    def _where(self, holds: Any) -> Devices:
        return frozenset(part for part in self.chosen if holds(part))

    def _serves(self) -> bool:
        """Return whether a pod of the selected namespaces is the inference server that has only its requests."""
        namespace = self.variables.get("namespace", ALL)
        known = self.seen.devices.values()
        return any(each.pod.startswith(SERVER) and re.fullmatch(namespace, each.namespace) for each in known)

    def _has_server(self) -> bool:
        """Return whether the pod of a selected GPU is an inference server."""
        return any(self.seen.devices[part].pod.startswith((SERVER, SIMULATED_SERVER)) for part in self.chosen)

    def _measured(self, signal: Signal, part: DeviceKey) -> bool:
        """Return whether a device, or for what instances lack its GPU, has a signal."""
        return self._known(signal, part if signal.per_instance else part._replace(instance=""))

    def _known(self, what: Any, part: DeviceKey) -> bool:
        match what:
            case Signal():
                return bool(self.seen.points(part, what))
            case Mark():
                return bool(self.seen.points(part, s.GR_ACTIVE))
        return evaluate.value(what, self.seen, part) is not None


@cache
def _parsed(text: str) -> Any:
    return promql_parser.parse(text)


@cache
def _shown_alerts(text: str) -> Sequence[Mapping[str, str]]:
    """Return the matchers of each selector of alerts in a query."""
    return [_matchers(each) for each in _selectors(_parsed(text)) if each.name == "ALERTS"]


@cache
def is_direct(text: str) -> bool:
    """Return whether a query, as Grafana sends it or with variables, reads metrics without a rule."""
    return bool({each.name for each in _selectors(_parsed(_substituted(text, {})))} & (DIRECT | SERVED))


def _drops_values(node: Any) -> bool:
    """Return whether a query drops NaN and negative numbers."""
    return type(node).__name__ == "BinaryExpr" and (str(node.op), str(node.rhs)) == (">=", "0")


def is_patient(text: str) -> bool:
    """Return whether a query needs a past of an hour."""
    return any(name in text for name in PATIENT)


def _may_be_empty(node: Any) -> bool:
    """Return whether a query may have no result although its series exist.

    All are dropped, none has that rank, or they need an hour.
    """
    text = str(node)
    return _drops_values(node) or is_of_rank(text) or is_patient(text)


def is_of_rank(text: str) -> bool:
    """Return whether a query is for series of a rank, such as the third, or for those of lower ranks."""
    return " unless " in text and "topk(" in text


def _matching(labels: Mapping[str, str], matchers: Mapping[str, str]) -> bool:
    return all(bool(re.fullmatch(value, labels.get(label, ""))) for label, value in matchers.items())


def _selectors(node: Any) -> Iterator[Any]:
    """Yield every selector of an expression."""
    if type(node).__name__ == "VectorSelector":
        yield node
    inner = [getattr(node, name, None) for name in ("lhs", "rhs", "expr", "vector_selector")]
    for each in (*inner, *(getattr(node, "args", None) or ())):
        if each is not None and each.__class__.__module__ == node.__class__.__module__:
            yield from _selectors(each)


def _matchers(selector: Any) -> Mapping[str, str]:
    matchers = selector.matchers.matchers
    known = {"MatchOp.Equal", "MatchOp.Re", "MatchOp.NotEqual"}
    assert {str(each.op) for each in matchers} <= known, "teach this test other matchers"
    return {
        each.name: rf"(?!{re.escape(each.value)}\Z).*" if str(each.op) == "MatchOp.NotEqual" else each.value
        for each in matchers
    }


def problems(
    prometheus: Prometheus,
    boards: Mapping[str, Any],
    seen: Window,
    variables: Mapping[str, str],
    answered: set[str] | None = None,
    *,
    allocated: bool = False,
) -> list[str]:
    """Return the problems of the results of panels, variables and annotations of some dashboards; none if all is well.

    `seen` has the pages of the exporters in `variables["cluster"]`; the other variables narrow it down. Queries with a
    result are added to `answered`. `allocated` is that of `Truth`.
    """
    at = prometheus.now()
    alerts = prometheus.api("query", query='ALERTS{alertstate="firing"}', time=f"{at}")["result"]
    checked, found = 0, []
    for name, board in boards.items():
        names = [each["name"] for each in board["templating"]["list"] if each["type"] == "query"]
        mine = {label: variables.get(label, ALL) for label in names}
        truth = Truth(seen, mine, [each["metric"] for each in alerts], allocated)
        for panel in panels(board):
            for target in panel["targets"]:
                checked += 1
                found += [
                    f"{name}: {panel['title']}: {each}"
                    for each in _target(prometheus, truth, panel, target, at, answered)
                ]
        for annotation in board["annotations"]["list"]:
            checked += 1
            series = _range(prometheus, filled(annotation["expr"], mine), at)
            _note(answered, annotation["expr"], series)
            found += [f"{name}: {annotation['name']}: {each}" for each in _answer(truth, annotation["expr"], series)]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                checked += 1
                found += [f"{name}: ${variable['name']}: {each}" for each in _variable(prometheus, truth, variable)]
    assert checked > len(boards) * 5, "too few queries were checked"
    return found


def _target(
    prometheus: Prometheus,
    truth: Truth,
    panel: Mapping[str, Any],
    target: Mapping[str, Any],
    at: float,
    answered: set[str] | None,
) -> list[str]:
    # What once held, in the first scrapes, is long over for the pages that the answers are compared with.
    text = filled(target["expr"], truth.variables).replace(f"[{duration(INTERRUPTION)}]", "[10s]")
    if target["instant"]:
        answer = prometheus.api("query", query=text, time=f"{at}")["result"]
        series = [(each["metric"], each["value"][1]) for each in answer]
    else:
        series = _range(prometheus, text, at)
    _note(answered, target["expr"], series)
    wrong = _answer(truth, target["expr"], series)
    if wrong or not series or is_direct(text) or text.startswith("max by (UUID, "):  # merged with another by UUID
        return wrong
    all_of = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))) - set(SOMETIMES)
    some_of = {label for label in _columns(panel) if truth.has(label, text)}
    wrong += [f"not every answer has {label}: {text}" for label in all_of if not all(x.get(label) for x, _ in series)]
    wrong += [f"no answer has {label}: {text}" for label in some_of if not any(x.get(label) for x, _ in series)]
    return wrong


def _note(answered: set[str] | None, expr: str, series: Sequence[object]) -> None:
    if answered is not None and series:
        answered.add(expr)


def expressions(board: Mapping[str, Any]) -> Iterator[str]:
    """Yield all queries of panels and annotations, as they are written."""
    yield from (target["expr"] for panel in panels(board) for target in panel["targets"])
    yield from (each["expr"] for each in board["annotations"]["list"])


def _columns(panel: Mapping[str, Any]) -> set[str]:
    """Return the labels that a table shows."""
    shown: set[str] = set()
    for each in panel.get("transformations", ()):
        shown |= set(each["options"].get("includeByName", ()))
    return {name for name in shown if not name.startswith("Value")}


def _range(prometheus: Prometheus, text: str, at: float) -> list[tuple[Mapping[str, str], str]]:
    """Return the last value of each series in a graph that ends at `at`."""
    answer = prometheus.api("query_range", query=text, start=f"{at - 10}", end=f"{at}", step="5")["result"]
    return [(each["metric"], each["values"][-1][1]) for each in answer if float(each["values"][-1][0]) >= at - 0.01]


def _answer(truth: Truth, expr: str, series: Sequence[tuple[Mapping[str, str], str]]) -> list[str]:
    text = filled(expr, truth.variables)
    wrong = [f"{value} in {labels} from {text}" for labels, value in series if not math.isfinite(float(value))]
    if is_direct(text):
        return wrong
    expected = truth.of(text)
    if isinstance(expected, frozenset):
        have = {(labels["UUID"], labels.get("GPU_I_ID", "")) for labels, _ in series}
        if have != (want := {(part.uuid, part.instance) for part in expected}):
            wrong.append(f"finds {sorted(have)} and not {sorted(want)}: {text}")
    elif bool(series) is not expected and not (expected and _may_be_empty(_parsed(text))):
        wrong.append(f"{'finds nothing' if expected else 'finds what is not there'}: {text}")
    return wrong


def _variable(prometheus: Prometheus, truth: Truth, variable: Mapping[str, Any]) -> list[str]:
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
    assert found, f"{variable['query']} is no query of label values"
    selector, label = found.groups()
    have = set(prometheus.api(f"label/{label}/values", **{"match[]": filled(selector, truth.variables)}))
    before = {name: value for name, value in truth.variables.items() if f"${name}" in selector}
    if label == "cluster":  # other clusters are scraped as well
        wrong = not {truth.variables["cluster"]} - {""} <= have
    elif any(name in selector for name in OF_CLUSTER):  # of pods that no page of an exporter need have
        wrong = truth.allocated and not have
    elif label == "instance":  # pages do not say how they are scraped; those of dcgm-exporters come from one address
        wrong = not 1 <= len(have) <= len(Truth(truth.seen, before).labels("node"))
    else:
        wrong = have != Truth(truth.seen, before).labels(label)
    return [f"offers {sorted(have)}, which is not what there is"] if wrong else []
