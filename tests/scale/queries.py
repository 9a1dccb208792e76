"""Compares the answers of Prometheus and VictoriaMetrics to every rule and every query of the dashboards."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, TypeAlias
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


REFUSED = "refused"
Labels: TypeAlias = tuple[tuple[str, str], ...]
Answer: TypeAlias = Mapping[Labels, float]


class Store(Protocol):
    """What answers queries."""

    def api(self, path: str, **parameters: str) -> Any:
        """Return the `data` of a response."""


class Without:
    """A store whose answers lack some labels, such as external labels that a Prometheus does not give its own."""

    def __init__(self, store: Store, labels: Collection[str]) -> None:
        self._store, self._labels = store, labels

    def api(self, path: str, **parameters: str) -> Any:
        """Return the `data` of a response."""
        data = self._store.api(path, **parameters)
        for row in data["result"] if data["resultType"] in ("vector", "matrix") else ():
            for label in self._labels:
                row["metric"].pop(label, None)
        return data


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
        problem = next(differing(one, other, expression, at), None)
        if problem:
            problems.append(f"{where} at {at:.0f}: {problem}\n{expression}")
        else:
            full += bool(_answer(one, expression, at))
    return problems, full


def differing(one: Store, other: Store, expression: str, at: float) -> Iterator[str]:
    """Yield how the answers to an expression differ, except as their documentation says.

    `increase()` has a formula of its own in each store: what it reads is compared, and the expression with a formula
    that both have, whose windows begin at a sample. `topk()` may choose any of equal series.
    """
    chosen, increases = list(_calls_of_topk(expression)), _INCREASE.findall(expression)
    if "increase(" in expression and (chosen or len(increases) != expression.count("increase(")):
        raise ValueError(f"not known how to compare: {expression}")
    tolerance = OF_RATES if "rate(" in expression else SOME
    expected, found = _answer(one, expression, at), _answer(other, expression, at)
    if increases:
        yield from _refused(expected, found)
        yield from _of_increases(one, other, increases, at)
        expression = _INCREASE.sub(r"(\1 - \1 offset \2)", expression)
        expected, found = _answer(one, expression, at), _answer(other, expression, at)
    if "topk" in expression:
        yield from _refused(expected, found)
        yield from _of_topk(one, other, expression, at, tolerance)
    else:
        yield from _differing(expected, found, tolerance)


def _refused(*answers: Answer) -> Iterator[str]:
    for answer in answers:
        yield from (text for ((name, text), *_) in answer if name == REFUSED)


# The selector and the window of a call.
_INCREASE = re.compile(r"increase\(([\w:]+(?:\{[^}]*\})?)\[(\w+)\]\)")


def _of_increases(one: Store, other: Store, increases: Sequence[tuple[str, str]], at: float) -> Iterator[str]:
    """Yield where the samples differ that `increase()` reads, or where the other store has neither formula.

    Thanos extrapolates as Prometheus does. MetricsQL subtracts the sample before the window. If there is none, the
    series began in it: at 0, or at its first.
    """
    for selector, window in dict.fromkeys(increases):
        seconds = _longest(_WINDOW, f"[{window}]")
        expected, found = (_samples(store, selector, seconds + LOOK_BACK, at) for store in (one, other))
        for labels in expected.keys() | found.keys():
            if expected.get(labels) == found.get(labels):
                continue
            unequal = sorted(expected.get(labels, {}).items() ^ found.get(labels, {}).items())
            yield f"other samples of {selector} at {unequal[0][0] - at:.3f} s: {dict(labels)}"
        extrapolated, of_other = (_answer(store, f"increase({selector}[{window}])", at) for store in (one, other))
        for labels, value in of_other.items():
            known = found.get(labels, {})
            before = [number for time, number in known.items() if time <= at - seconds]
            inside = [number for time, number in known.items() if time > at - seconds]
            allowed = [_grown([*before[-1:], *inside])] if before else [_grown(inside), _grown([0.0, *inside])]
            if not any(_near(value, each, SOME) for each in (*allowed, extrapolated.get(labels, math.nan))):
                yield f"increase of {value}, not {' or '.join(map(str, allowed))}: {dict(labels)}"


def _grown(values: Sequence[float]) -> float:
    """Return by how much a counter grew, which may have begun again at 0."""
    return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(values))


def _calls_of_topk(expression: str) -> Iterator[tuple[str, str]]:
    """Yield the calls of `topk()`, with and without `by`, each as a whole and its vector."""
    for match in _TOPK.finditer(expression):
        depth, end = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(expression[end], 0)
            end += 1
        yield expression[match.start() : end], expression[match.end() : end - 1]


_TOPK = re.compile(r"topk (?:by|without) \([^)]*\) \(\d+, |topk\(\d+, ")


def _all_candidates(expression: str) -> str:
    """Return an expression that chooses all candidates, where it chooses the largest of all."""
    for call, vector in _calls_of_topk(expression):
        if call.startswith("topk("):
            return _all_candidates(expression.replace(call, f"({vector})"))
    return expression


def _of_topk(one: Store, other: Store, expression: str, at: float, tolerance: float) -> Iterator[str]:
    """Yield how answers differ beyond the choice among equal series.

    The values that each call chooses are equal, and each chosen series is a candidate with that value. So is each
    series of the whole answer. If that chooses in groups, only values are compared. If it excludes chosen series, there
    are no candidates.
    """
    for call, vector in dict(_calls_of_topk(expression)).items():
        chosen = [_answer(store, call, at) for store in (one, other)]
        for store, answer in zip((one, other), chosen, strict=True):
            yield from _not_among(answer, _answer(store, vector, at))
        yield from _other_values(chosen[0].values(), chosen[1].values(), tolerance)
    opened = _all_candidates(expression)
    answers = [(_answer(store, expression, at), _answer(store, opened, at)) for store in (one, other)]
    if "unless topk" in expression:
        expected, found = answers[0][0].values(), answers[1][0].values()
        yield from _unmatched(expected or found, found or expected, tolerance)
        return
    if "topk by" in opened:
        yield from _unmatched(answers[0][1].values(), answers[1][1].values(), tolerance)
        for answer, candidates in answers:
            for value in _lone(answer.values(), candidates.values(), SOME):
                yield f"{value} is not that of a candidate"
        return
    yield from _differing(answers[0][1], answers[1][1], tolerance)
    for answer, candidates in answers:
        yield from _not_among(answer, candidates)


def _not_among(answer: Answer, candidates: Answer) -> Iterator[str]:
    for labels, value in answer.items():
        if not _near(value, candidates.get(labels, math.nan), SOME):
            yield f"{value} is not that of a candidate: {dict(labels)}"


def _other_values(expected: Collection[float], found: Collection[float], tolerance: float) -> Iterator[str]:
    """Yield how sorted values differ."""
    if len(expected) != len(found):
        yield f"{len(expected)} and {len(found)} series chosen"
    for value, other in zip(sorted(expected), sorted(found), strict=False):
        if not _near(value, other, tolerance):
            yield f"{value} and {other} chosen"


def _answer(store: Store, expression: str, at: float) -> Answer:
    try:
        data = store.api("query", query=expression, time=f"{at:.3f}")
    except HTTPError as error:
        return {((REFUSED, error.read().decode()),): 1.0}
    found = data["result"] if data["resultType"] == "vector" else [{"metric": {}, "value": data["result"]}]
    return {_labels(each["metric"]): float(each["value"][1]) for each in found}


def _samples(store: Store, selector: str, seconds: float, at: float) -> Mapping[Labels, Mapping[float, float]]:
    """Return the samples of the last seconds by time, of each series that has some.

    VictoriaMetrics also returns the end of a series, as a sample without a value.
    """
    found = store.api("query", query=f"{selector}[{seconds:.0f}s]", time=f"{at:.3f}")["result"]
    return {
        _labels(each["metric"]): {float(time): float(value) for time, value in each["values"] if value != "NaN"}
        for each in found
    }


def _labels(metric: Mapping[str, str]) -> Labels:
    """Return labels but the name. Of values that `count_values()` made labels, the last digits are left out."""
    return tuple(sorted((name, _LONG.sub(_short, value)) for name, value in metric.items() if name != "__name__"))


_LONG = re.compile(r"-?\d+\.\d{8,}(?:e[+-]?\d+)?")


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.8g}"


def _longest(spans: re.Pattern[str], expression: str) -> float:
    """Return the longest of these spans of an expression in seconds."""
    return max((float(size) * _SECONDS[unit] for size, unit in spans.findall(expression)), default=0.0)


def _unmatched(expected: Collection[float], found: Collection[float], tolerance: float) -> Iterator[str]:
    for which, values, others in (("not in the second one", expected, found), ("in the second one", found, expected)):
        for value in _lone(values, others, tolerance):
            yield f"{which}: {value}"


def _lone(values: Collection[float], others: Collection[float], tolerance: float) -> Iterator[float]:
    """Yield the values that are near none of the others."""
    return (value for value in values if not any(_near(value, other, tolerance) for other in others))


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
