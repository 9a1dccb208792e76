"""What the panels of dashboards contain, by Grafana's own code, and what is wrong with that."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests import ROOT
from tests.support.tools import tool

MODULES = ROOT / ".tools" / "boards" / "tables" / "node_modules"
PROGRAM = ROOT / "tests" / "boards" / "tables" / "contents.cjs"
Contents = Sequence[Mapping[str, Any]]
Key = tuple[str, ...]


def contents(
    prometheus: str, views: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]], begin: float, end: float
) -> Sequence[Contents]:
    """Return the panels of each view: a dashboard, and what is chosen there (`var-node`)."""
    request = {
        "prometheus": prometheus,
        "from": int(begin * 1000),
        "to": int(end * 1000),
        "views": [{"board": board, "parameters": parameters} for board, parameters in views],
    }
    command = [str(tool("node")), str(PROGRAM), str(MODULES)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer: Sequence[Contents] = json.loads(done.stdout)
    return answer


def problems(panels: Contents, empty: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is wrong with the panels of a dashboard; those whose titles are in `empty` may have no data."""
    for panel in panels:
        for query in panel["queries"]:
            if "error" in query:
                yield f"{panel['title']}: {query['error']}"
        has_data = any(frame["rows"] for frame in panel["frames"])
        if panel["visible"] and panel["queries"] and not has_data and panel["title"] not in empty:
            results = sum(query["series"] for query in panel["queries"])
            yield f"{panel['title']}: no data, although its queries have {results} results"
        if panel["type"] == "table" and has_data:
            yield from (f"{panel['title']}: {problem}" for problem in _of_table(panel))


def rows(panel: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the rows of a table as they are shown, by the names of its columns."""
    (frame,) = panel["frames"][:1]
    shown = [field for field in frame["fields"] if not field["hidden"]]
    return [{field["name"]: field["text"][row] for field in shown} for row in range(frame["rows"])]


def _of_table(panel: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a table: each combination of labels must have one row, with every value that it has."""
    if len(panel["frames"]) > 1:
        yield f"{len(panel['frames'])} tables, of which one is shown"
    frame = panel["frames"][0]
    labels = [field for field in frame["fields"] if field["type"] == "string"]
    values = [field for field in frame["fields"] if field["id"].startswith("Value")]
    keys = _keys([field["text"] for field in labels], frame["rows"])
    results = {query["refId"]: query["labels"] for query in panel["queries"]}
    known = {label for found in results.values() for series in found for label in series}
    answered = [of for of in results.values() if of]
    names = [field["id"] for field in labels if all(any(field["id"] in one for one in of) for of in answered)]
    wanted = {tuple(series.get(name, "") for name in names) for of in results.values() for series in of}
    if len(set(keys)) < len(keys):
        yield f"split rows: {len(keys)} rows for {len(set(keys))} combinations of {[field['name'] for field in labels]}"
    # Rows of one query may have labels that another query lacks: then each result of the largest one has a row.
    if len(keys) not in (len(wanted), max(map(len, answered), default=0)):
        yield f"{len(keys)} rows, but the queries have {len(wanted)} combinations of {names}"
    for field in labels:
        if field["id"] not in known:
            yield f"no query has the label {field['id']}"
    for field in frame["fields"]:
        if field["name"] in panel["sortedBy"] and True in field["absent"]:
            yield f"sorted by {field['name']}, which {field['absent'].count(True)} rows lack: their order is random"
    for field in values:
        series = results[field["id"].partition("#")[2] or panel["queries"][0]["refId"]]
        present = field["absent"].count(False)
        if present != len(series):
            missing = f", {field['absent'].count(True)} say {_said(field)!r}" if True in field["absent"] else ""
            yield f"column {field['name']}: {present} values{missing}, but the query has {len(series)}"


def _keys(columns: Sequence[Sequence[str]], count: int) -> Sequence[Key]:
    return [tuple(column[row] for column in columns) for row in range(count)]


def _said(field: Mapping[str, Any]) -> str:
    return str(field["text"][field["absent"].index(True)])
