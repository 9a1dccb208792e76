"""How long the queries of a dashboard's first screen take, run as Grafana runs them when the dashboard is opened."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.support.panels import ALL, BOARDS, filled, is_in_view
from tests.support.prometheus import Prometheus

# A browser opens this many connections to a server.
CONNECTIONS = 6
SHOWN_SECONDS, STEP_SECONDS = 3 * 3600, 15


def queries(board: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the API's path and parameters for each query of the panels in view."""
    content, end = BOARDS[board], time.time()
    variables = {each["name"]: ALL for each in content["templating"]["list"] if each["type"] == "query"}
    for panel in filter(is_in_view, content["panels"]):
        for target in panel["targets"]:
            text = filled(target["expr"], variables)
            if target["instant"]:
                yield "query", {"query": text, "time": f"{end:.3f}"}
            else:
                begin = {"start": f"{end - SHOWN_SECONDS:.3f}", "end": f"{end:.3f}"}
                yield "query_range", {"query": text, "step": str(STEP_SECONDS), **begin}


def answered(prometheus: Prometheus, board: str) -> tuple[int, float]:
    """Return the number of queries, and the seconds until the last one is answered."""
    asked = list(queries(board))
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        begin = time.monotonic()
        for answer in [pool.submit(prometheus.api, path, **parameters) for path, parameters in asked]:
            answer.result()
        return len(asked), time.monotonic() - begin
