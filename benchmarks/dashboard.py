"""How long a dashboard's first screen takes, queried as Grafana does when it is opened, and which series it reads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import promql_parser

from tests.support.panels import ALL, BOARDS, filled, is_in_view
from tests.support.prometheus import Prometheus
from tests.support.promql import nodes
from tests.support.victoria import Victoria

# A browser opens this many connections to a server.
CONNECTIONS = 6
SHOWN_SECONDS, STEP_SECONDS = 3 * 3600, 15
# The least steps of some queries.
SECONDS = {"1m": 60, "1d": 86_400}
LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")
Chosen = Mapping[str, str]
EVERYTHING: Chosen = {}
Query = tuple[str, Mapping[str, str]]


def queries(board: str, chosen: Chosen = EVERYTHING, end: float | None = None) -> Iterator[Query]:
    """Yield the API's path and parameters for each query of annotations that are on, and of the panels in view.

    `end` is that of the time range in Unix seconds, or now.
    """
    content, end = BOARDS[board], end or time.time()
    begin = {"start": f"{end - SHOWN_SECONDS:.3f}", "end": f"{end:.3f}", "step": str(STEP_SECONDS)}
    for each in content["annotations"]["list"]:
        if each["enable"] and "expr" in each:
            yield "query_range", {"query": filled(each["expr"], _values(board, chosen)), **begin}
    for panel in filter(is_in_view, content["panels"]):
        for target in panel["targets"]:
            text = filled(target["expr"], _values(board, chosen))
            if target["instant"]:
                yield "query", {"query": text, "time": f"{end:.3f}"}
            else:
                finest = SECONDS[target["interval"]] if "interval" in target else STEP_SECONDS
                yield "query_range", {"query": text, **begin, "step": str(finest)}


def lookups(board: str, chosen: Chosen = EVERYTHING, end: float | None = None) -> Iterator[Query]:
    """Yield the API's path and parameters for the values of each variable, in order. `end` is as in `queries`."""
    end = end or time.time()
    shown = {"start": f"{end - SHOWN_SECONDS:.3f}", "end": f"{end:.3f}"}
    for each in BOARDS[board]["templating"]["list"]:
        if each["type"] == "query":
            found = LABEL_VALUES.fullmatch(each["query"]["query"] if isinstance(each["query"], dict) else each["query"])
            assert found, each
            yield (
                f"label/{found['label']}/values",
                {
                    "match[]": filled(found["selector"], _values(board, chosen)),
                    **shown,
                },
            )


def _values(board: str, chosen: Chosen) -> Mapping[str, str]:
    variables = [each["name"] for each in BOARDS[board]["templating"]["list"] if each["type"] == "query"]
    return {name: chosen.get(name, ALL) for name in variables}


def read(board: str, chosen: Chosen = EVERYTHING) -> set[str]:
    """Return the selectors of the first screen's variables and queries, without their windows and offsets."""
    asked = [parameters["query"] for _, parameters in queries(board, chosen)]
    trees = map(promql_parser.parse, [*asked, *(parameters["match[]"] for _, parameters in lookups(board, chosen))])
    return {
        re.split(r" (?:offset|@) ", node.prettify())[0]
        for tree in trees
        for node in nodes(tree)
        if isinstance(node, promql_parser.VectorSelector)
    }


def answered(
    store: Prometheus | Victoria, board: str, chosen: Chosen = EVERYTHING, end: float | None = None
) -> tuple[int, float]:
    """Return the number of queries, and the seconds until the last one is answered. Values of variables come first,
    because the queries need them."""
    asked, begin = list(queries(board, chosen, end)), time.monotonic()
    for path, parameters in lookups(board, chosen, end):
        store.api(path, **parameters)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for answer in [pool.submit(store.api, path, **parameters) for path, parameters in asked]:
            answer.result()
        return len(asked), time.monotonic() - begin
