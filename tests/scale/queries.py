"""Compares the answers of Prometheus and VictoriaMetrics to every rule and every query of the dashboards."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.error import HTTPError

import yaml

from tests import ROOT
from tests.support.panels import ALL, BOARDS, filled, panels

_WINDOW, _OFFSET = re.compile(r"\[(\d+)([smhd])"), re.compile(r"offset (\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# By how much rates may differ: Prometheus extrapolates to the window, MetricsQL takes the sample before it.
OF_RATES = 0.25
# In seconds.
LOOK_BACK = 300
SOME = 1e-6


class Store(Protocol):
    """What answers queries."""

    def api(self, path: str, **parameters: str) -> Any:
        """Return the `data` of a response."""


def expressions(rate_interval: str) -> Mapping[str, str]:
    """Return all expressions, and where each is from. `rate_interval`: Grafana's, four times that of scrapes."""
    found = {}
    for path in sorted((ROOT / "alerts").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                found[rule["expr"]] = rule.get("record") or rule["alert"]
    for name, content in BOARDS.items():
        variables = {each["name"]: ALL for each in content["templating"]["list"] if each["type"] == "query"}
        variables["__rate_interval"] = rate_interval
        for panel in panels(content):
            for target in panel.get("targets", ()):
                found.setdefault(filled(target["expr"], variables), f"{name}: {panel['title']}")
    return found


def differences(one: Store, other: Store, at: float, rate_interval: str = "15s") -> tuple[Sequence[str], int]:
    """Return how the answers at a time differ, and how many of the equal ones have content.

    Not at a time at which a window ends at a sample exactly: Prometheus 2 counts the sample at its beginning, too. What
    reads a window that begins before 1970 is left out: VictoriaMetrics has no samples then.
    """
    problems, full = [], 0
    for expression, where in expressions(rate_interval).items():
        if _longest(_WINDOW, expression) + _longest(_OFFSET, expression) + LOOK_BACK > at:
            continue
        expected, found = _answer(one, expression, at), _answer(other, expression, at)
        tolerance = OF_RATES if "rate(" in expression else SOME
        if "topk(" in expression:  # of equal values, any may be chosen, so that a rank may have none or two
            compared = _unmatched((expected or found).values(), (found or expected).values(), tolerance)
        else:
            compared = _differing(expected, found, tolerance)
        problem = next(compared, None)
        if problem:
            problems.append(f"{where} at {at:.0f}: {problem}\n{expression}")
        else:
            full += bool(expected)
    return problems, full


Answer = Mapping[tuple[tuple[str, str], ...], float]


def _answer(store: Store, expression: str, at: float) -> Answer:
    try:
        data = store.api("query", query=expression, time=f"{at:.3f}")
    except HTTPError as error:
        return {(("refused", error.read().decode()),): 1.0}
    found = data["result"] if data["resultType"] == "vector" else [{"metric": {}, "value": data["result"]}]
    return {
        tuple(sorted((name, value) for name, value in each["metric"].items() if name != "__name__")): float(
            each["value"][1]
        )
        for each in found
    }


def _longest(spans: re.Pattern[str], expression: str) -> float:
    """Return the longest of these spans of an expression in seconds."""
    return max((float(size) * _SECONDS[unit] for size, unit in spans.findall(expression)), default=0.0)


def _unmatched(expected: Collection[float], found: Collection[float], tolerance: float) -> Iterator[str]:
    for which, values, others in (("not in the second one", expected, found), ("in the second one", found, expected)):
        for value in values:
            if not any(_near(value, other, tolerance) for other in others):
                yield f"{which}: {value}"


def _differing(expected: Answer, found: Answer, tolerance: float) -> Iterator[str]:
    for labels in expected.keys() ^ found.keys():
        yield f"{'not ' if labels in expected else ''}in the second one: {dict(labels)}"
    for labels, value in expected.items():
        other = found.get(labels, math.nan)
        if not (_near(value, other, tolerance) or math.isnan(value + other)):
            yield f"{value} and {other}: {dict(labels)}"


def _near(value: float, other: float, tolerance: float) -> bool:
    both_undefined = math.isnan(value) and math.isnan(other)
    return both_undefined or math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance / 10)
