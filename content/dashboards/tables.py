"""Tables, such as those of nodes and workloads. Cells link to the dashboard or the runbook of what they name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from content.dashboards import grafana
from content.dashboards import queries as q
from content.dashboards.frame import (
    ABSENT,
    ORANGE,
    RED,
    About,
    ColourStep,
    common,
    extra,
    link_to,
    ref,
    steps_of,
    targets,
)
from content.dashboards.queries import Query
from gpu_exporter.alerting.boards import COST, GPU, JOB, NODE, RUNBOOKS
from gpu_exporter.catalogue.time_shares import LABEL

# What a cell of a table of workloads shows if its row has no such label.
NAMELESS = {"workload": "no owner"}
LINKED_COLUMNS = {
    "gpu": link_to(GPU, "node", "gpu", table=True),
    "node": link_to(NODE, "node", table=True),
    "workload": link_to(JOB, "namespace", "workload", table=True),
    "namespace": link_to(COST, "namespace", table=True),
    "instance": {"title": "Live page", "url": "http://${__data.fields.instance}/", "targetBlank": True},
    "alertname": {
        "title": "Runbook",
        "url": f"{RUNBOOKS.link()}?viewPanel=${{__data.fields.runbook}}",
        "targetBlank": True,
    },
}
TITLES = {"alertname": "alert", "gpu": "GPU", "batch": "batch size", "job_id": "job", "first": "what to do first"}
TITLES |= {"usd": "cost/h", "line": "line of code"}
# The label that `queries.with_cluster` adds if there are several clusters, in place of that of the row.
TITLES |= {q.NAME_OF_CLUSTER: "cluster"}
TITLES |= {"driver_version": "driver", "pci_bus_id": "PCI address", "message_size": "message size"}
# Labels that are numbers. An empty one becomes 0.
NUMBERS = ("batch", "usd")
# Labels that a row needs for its links and its place, but that have no column.
HIDDEN = ("runbook", "order")
# Since when something is so: a clock time, as on the axes of graphs beside it.
SINCE = "time:MM-DD HH:mm"
TIMES = (SINCE, "dateTimeFromNow")
# Labels by which rows of alerts are sorted, the first one last.
URGENT = ("role", "order")
# Labels by which rows are sorted that are otherwise alike, the first one last.
NATURAL = ("batch", "gpu", "node", LABEL)
# Pixels. Without these, the last columns would be outside of the panel; columns with none share the rest, and are as
# wide as `LEAST` at least.
WIDTHS = {
    **{"severity": 66, "alertname": 190, "cluster": 70, "gpu": 50, "rank": 50, "batch": 80, "usd": 70},
    **{"nodes": 56, "symptoms": 78, "GPUs": 50, "firing": 56, "active since": 112, "role": 84},
    **{"model": 120, "serial": 110, "driver_version": 96, "pci_bus_id": 130, "link": 74, "slot": 74, "instance": 116},
    **{"last": 88, "power limit": 86, "xid": 56, "kind": 96, "message_size": 96},
    **{"health": 84, "state": 248, "hottest GPU": 92, "throttled": 76, "for": 80},
    **{"wasted/h": 76, "cost/h": 70, "idle/h": 62, "idle GPUs": 78, "of its cost": 86},
}
LEAST = {
    "namespace": 84,
    "workload": 104,
    "node": 104,
    "first": 128,
    "cause": 150,
    "UUID": 300,
    "line": 154,
    "pod": 110,
    "action": 110,
    "operation": 96,
    "scope": 90,
}
# Where a table says what to do, that takes the rest.
BESIDE_TEXT = {"node": 110, "namespace": 84, "workload": 116}
BESIDE_LINE = {"node": 104}
NONE = "-"
# The wasted share of a cost, orange from half upwards. By the amount, whoever has most GPUs would always be orange.
SHARE_OF_COST, WASTEFUL = "of its cost", (ColourStep(None, "text"), ColourStep(0.5, ORANGE))
# The colours of a number that should be 0, by how severe it is otherwise.
SOME, FEW = ((ColourStep(None, "text"), ColourStep(1, colour)) for colour in (RED, ORANGE))
# Shares are numbers without decimals, not bars: Grafana draws a bar as if its cell had no padding, and shows 47 % as
# 59 % of the track.
NUMBER_WIDTH, SHARE_WIDTH, LETTER_WIDTH = 72, 60, 8
CENTS = 2
# Beside numbers above 0, a column of zeros is easier to read as dots.
ZERO = {"0": ("\N{MIDDLE DOT}", "text")}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table: the labels of its rows, and what the cells of some columns look like.

    Only some queries have the labels `added`. Columns in `shares` have no decimals.
    `words` are the texts and colours of the values 0, 1, … of a column, `texts` those of the values of a label. With
    `steps`, a cell has the colour of its value. In columns in `optional`, rows without a value are usual. Columns in
    `answers` say of a GPU that it does not answer. `clusters` has series of each cluster of the rows; the column
    "GPUs", or the first one, has values in all rows.
    """

    labels: Sequence[str]
    added: Sequence[str] = ()
    shares: Collection[str] = ()
    words: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    texts: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    steps: Mapping[str, Sequence[ColourStep]] = field(default_factory=dict)
    optional: Collection[str] = ()
    answers: Collection[str] = ()
    clusters: str = q.CLUSTERS


def table(
    title: str,
    about: About,
    queries: Sequence[Query],
    columns: Columns,
    *,
    width: int = 12,
    height: int = 8,
    sort: str | Sequence[str] = "",
    empty: str = ABSENT,
    links: Sequence[Mapping[str, Any]] = (),
) -> Any:
    """Return a table with one row per combination of the labels of `columns`, and one further column per query.

    The rows with the highest value of the query named `sort` come first.
    """
    by = ", ".join(name for name in columns.labels if name not in columns.added)
    of_rows = [
        each if _has(each, columns.added) else replace(each, expr=f"max by ({by}) ({each.expr})") for each in queries
    ]
    if "cluster" in columns.labels:
        complete = next((place for place, each in enumerate(queries) if each.name == "GPUs"), 0)
        of_rows[complete] = replace(of_rows[complete], expr=q.with_cluster(of_rows[complete].expr, columns.clusters))
    overrides = [
        numeric(each, share=each.name in columns.shares, optional=each.name in columns.optional) for each in queries
    ]
    overrides += [override(name, texts({str(q.NO_ANSWER): ("lost", RED)} | ZERO)) for name in columns.answers]
    for name, states in columns.words.items():
        overrides.append(override(name, words(states), coloured_text()))
    for name, of_label in columns.texts.items():
        overrides.append(override(name, texts(of_label), coloured_text()))
    plain = dict.fromkeys(columns.answers, (ColourStep(None, "text"),))
    for name, colours in {**plain, **columns.steps}.items():
        thresholds = {"id": "thresholds", "value": {"mode": "absolute", "steps": steps_of(colours)}}
        overrides.append(override(name, thresholds, coloured_text()))
    made = merged(title, about, of_rows, columns.labels, (width, height), overrides, sort, empty)
    made.links = list(links)
    return made


def _has(query: Query, added: Collection[str]) -> bool:
    """Return whether a query is grouped by the labels that only some queries of a table have."""
    grouping = query.expr.partition(")")[0] if query.expr.startswith("max by (") else ""
    return any(re.search(rf"\b{name}\b", grouping) for name in added)


def numeric(query: Query, *, share: bool = False, optional: bool = False) -> dict[str, Any]:
    # A time is that of an alert, and most rows have none.
    absent = NONE if optional or query.unit in ("s", *TIMES) else ABSENT
    least = max(SHARE_WIDTH if share else NUMBER_WIDTH, (len(query.name) + 2) * LETTER_WIDTH)
    width = WIDTHS.get(query.name, least)
    properties: list[dict[str, Any]] = [
        {"id": "unit", "value": query.unit},
        {"id": "noValue", "value": absent},
        {"id": "custom.width", "value": width},
    ]
    if share or query.unit == "currencyUSD":
        properties.append({"id": "decimals", "value": 0 if share else CENTS})
    if query.unit in ("short", "currencyUSD", "percentunit", "watt"):
        properties.append(texts(ZERO))
    return override(query.name, *properties)


def override(name: str, *properties: dict[str, Any]) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": TITLES.get(name, name)}, "properties": list(properties)}


def words(words: Iterable[tuple[str, str]]) -> dict[str, Any]:
    return texts({str(place): each for place, each in enumerate(words)})


def texts(words: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the property that shows a value as a text in a colour."""
    options = {
        value: {"text": text, "color": colour, "index": place}
        for place, (value, (text, colour)) in enumerate(words.items())
    }
    return {"id": "mappings", "value": [{"type": "value", "options": options}]}


def coloured_text() -> dict[str, Any]:
    return {"id": "custom.cellOptions", "value": {"type": "color-text"}}


def _labels(columns: Sequence[str], nameless: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return overrides that show labels as text, name their columns and link them."""
    overrides = []
    widths = WIDTHS | (BESIDE_TEXT if "first" in columns else BESIDE_LINE if "line" in columns else {})
    for name in columns:
        properties: list[dict[str, Any]] = [
            {"id": "unit", "value": "string"},
            {"id": "noValue", "value": nameless.get(name, NONE)},
        ]
        if name in LINKED_COLUMNS:
            properties.append({"id": "links", "value": [LINKED_COLUMNS[name]]})
        if name in widths:
            properties.append({"id": "custom.width", "value": widths[name]})
        elif name in LEAST:
            properties.append({"id": "custom.minWidth", "value": LEAST[name]})
        overrides.append(override(name, *properties))
    return overrides


def merged(
    title: str,
    about: About,
    queries: Sequence[Query],
    labels: Sequence[str],
    size: tuple[int, int],
    overrides: Sequence[Any],
    sort: str | Sequence[str] = "",
    empty: str = ABSENT,
) -> Any:
    """Return a table of queries with these labels, so that Grafana merges their rows."""
    text = " ".join(each.expr for each in queries)
    hidden = tuple(name for name in HIDDEN if f'"{name}"' in text)
    # By its names in old and in new versions of Grafana.
    unseen = [
        override(name, *({"id": each, "value": True} for each in ("custom.hidden", "custom.hideFrom.viz")))
        for name in hidden
    ]
    names = [sort] if isinstance(sort, str) else sort
    names = [*names, *(TITLES[name] for name in labels if name == "usd")]
    last = [_sorted_by(each.name) for each in queries if each.unit in TIMES]
    last += [_sorted_by(name, desc=True) for name in reversed(names) if name]
    last += [_sorted_by(name) for name in URGENT if name in (*hidden, *labels)]
    # Rows with the same value are in the order of their names.
    order = [*(_sorted_by(TITLES.get(name, name)) for name in NATURAL if name in labels), *last]
    return grafana.TablePanel(
        **common(title, about, *size),
        targets=targets(queries, instant=True, table=True),
        overrides=[*_labels(labels, {} if hidden else NAMELESS), *overrides, *unseen],
        transformations=[
            {"id": "merge", "options": {}},
            _organised(queries, labels, hidden),
            *_numbers(labels),
            *order,
        ],
        extraJson=extra({"unit": "string", "noValue": empty}),
    )


def _numbers(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return the transformation that makes numbers of labels that are sorted as such."""
    numbers = [TITLES.get(name, name) for name in labels if name in NUMBERS]
    conversions = [{"targetField": name, "destinationType": "number"} for name in numbers]
    return [{"id": "convertFieldType", "options": {"conversions": conversions, "fields": {}}}] if conversions else []


def _organised(queries: Sequence[Query], labels: Sequence[str], hidden: Sequence[str]) -> dict[str, Any]:
    """Return the transformation that puts the columns of a table in order and names them.

    A query without a name has only labels.
    """
    several = len(queries) > 1
    values = {f"Value #{ref(place)}" if several else "Value": each for place, each in enumerate(queries) if each.name}
    labels = [q.NAME_OF_CLUSTER if name == "cluster" else name for name in labels]
    fields = (*labels, *values, *hidden)
    renamed = {name: TITLES[name] for name in labels if name in TITLES}
    options = {
        "includeByName": dict.fromkeys(fields, True),
        "indexByName": {name: place for place, name in enumerate(fields)},
        "renameByName": renamed | {name: each.name for name, each in values.items()},
    }
    return {"id": "organize", "options": options}


def _sorted_by(name: str, *, desc: bool = False) -> dict[str, Any]:
    """Return the transformation that sorts the rows of a table by a column."""
    order = {"field": name, "desc": True} if desc else {"field": name}
    return {"id": "sortBy", "options": {"sort": [order]}}
