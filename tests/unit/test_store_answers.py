"""The comparison of the answers of two stores: what is a difference, and what their documentation allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.scale.queries import differing

AT = 10_000.0
Series = Mapping[str, float]  # by the value of the label `x`
Samples = Mapping[str, Sequence[tuple[float, float]]]


class Answers:
    """A store with these answers by query, and these samples by selector."""

    def __init__(self, answers: Mapping[str, Series], samples: Mapping[str, Samples] | None = None) -> None:
        self._answers, self._samples = answers, samples or {}

    def api(self, path: str, **parameters: str) -> Any:
        query = parameters["query"]
        if query in self._answers:
            rows = [{"metric": {"x": x}, "value": [AT, str(value)]} for x, value in self._answers[query].items()]
            return {"resultType": "vector", "result": rows}
        samples = self._samples[query]
        rows = [{"metric": {"x": x}, "values": [[t, _text(v)] for t, v in of.items()]} for x, of in _items(samples)]
        return {"resultType": "matrix", "result": rows}


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else str(value)


def _items(samples: Samples) -> list[tuple[str, dict[float, float]]]:
    return [(x, dict(of)) for x, of in samples.items()]


INCREASE, NEUTRAL, READ = "sum(increase(errors_total[15m]))", "sum((errors_total - errors_total offset 15m))", "1200s"
# The window begins at 9100: one sample is before it.
COUNTER = [(9000.0, 2.0), (9200.0, 3.0), (9900.0, 7.0)]


def _counting(whole: float, of_formula: float, samples: Sequence[tuple[float, float]], neutral: float = 4.0) -> Answers:
    return Answers(
        {INCREASE: {"": whole}, "increase(errors_total[15m])": {"a": of_formula}, NEUTRAL: {"": neutral}},
        {f"errors_total[{READ}]": {"a": samples}},
    )


ONE = _counting(4.6, 4.6, COUNTER)  # which extrapolates
BORN = [(9200.0, 3.0), (9900.0, 7.0)]
INCREASES: dict[str, tuple[Answers, Answers, list[str]]] = {
    "the sample before the window counts": (ONE, _counting(5, 5, COUNTER), []),
    "any other value is wrong": (ONE, _counting(5.1, 5.1, COUNTER), ["increase of 5.1, not 5.0: {'x': 'a'}"]),
    "a series that begins in the window at its first": (_counting(5, 5, BORN), _counting(4, 4, BORN), []),
    "a series that begins in the window at 0": (_counting(5, 5, BORN), _counting(7, 7, BORN), []),
    "a counter that begins again": (
        _counting(5, 5, [(9000.0, 9.0), (9200.0, 1.0)]), _counting(1, 1, [(9000.0, 9.0), (9200.0, 1.0)]), []
    ),
    "the same formula": (ONE, ONE, []),
    "other samples": (
        ONE,
        _counting(4, 4, [(9000.0, 3.0), (9900.0, 7.0)]),
        ["other samples of errors_total at -1000.000 s: {'x': 'a'}"],
    ),
    "the end of a series": (ONE, _counting(5, 5, [*COUNTER, (9950.0, math.nan)]), []),
    "another sum": (ONE, _counting(5, 5, COUNTER, neutral=4.1), ["4.0 and 4.1: {'x': ''}"]),
}  # fmt: skip


@pytest.mark.parametrize("case", INCREASES)
def test_increase_has_the_formula_of_its_store(case: str) -> None:
    one, other, expected = INCREASES[case]
    assert list(differing(one, other, INCREASE, AT)) == expected


TOP, OF_RANKS = "topk(2, time)", "load and on (x) topk(2, time)"
TIMES, LOADS = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 1.0}, {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}


def _choosing(*chosen: str, times: Series = TIMES, loads: Series = LOADS) -> Answers:
    return Answers(
        {
            TOP: {x: times.get(x, 2.0) for x in chosen},
            "time": times,
            "(time)": times,
            OF_RANKS: {x: loads.get(x, 0.9) for x in chosen},
            "load and on (x) (time)": loads,
        }
    )


CHOICES: dict[str, tuple[Answers, Answers, bool]] = {
    "the same": (_choosing("a", "b"), _choosing("a", "b"), True),
    "another one of equal series": (_choosing("a", "b"), _choosing("a", "c"), True),
    "a smaller one": (_choosing("a", "b"), _choosing("a", "d"), False),
    "fewer": (_choosing("a", "b"), _choosing("a"), False),
    "one that is not a candidate": (_choosing("a", "b"), _choosing("a", "e"), False),
    "other candidates": (_choosing("a", "b"), _choosing("a", "b", times={**TIMES, "d": 1.5}), False),
}


@pytest.mark.parametrize("expression", [TOP, OF_RANKS])
@pytest.mark.parametrize("case", CHOICES)
def test_topk_may_choose_any_of_equal_series(case: str, expression: str) -> None:
    one, other, is_equal = CHOICES[case]
    if (case, expression) == ("other candidates", OF_RANKS):
        other = _choosing("a", "b", loads={**LOADS, "d": 0.5})
    assert (list(differing(one, other, expression, AT)) == []) is is_equal


IN_GROUPS = "load and on (x) topk(1, topk by (y) (1, time))"
OPENED = "load and on (x) (topk by (y) (1, time))"


def _choosing_in_groups(chosen: str, loads: Series = LOADS) -> Answers:
    return Answers(
        {
            "topk(1, topk by (y) (1, time))": {chosen: 2.0},
            "topk by (y) (1, time)": {"b": 2.0, "c": 2.0},
            "time": TIMES,
            IN_GROUPS: {chosen: loads[chosen]},
            OPENED: {"b": loads["b"], "c": loads["c"]},
        }
    )


def test_what_is_chosen_in_groups_has_the_value_of_any_candidate() -> None:
    one = _choosing_in_groups("b")
    assert list(differing(one, _choosing_in_groups("c"), IN_GROUPS, AT)) == []
    other = _choosing_in_groups("c", {**LOADS, "c": 0.5})
    assert list(differing(one, other, IN_GROUPS, AT)) == ["not in the second one: 0.3", "in the second one: 0.5"]


def test_other_expressions_are_equal_to_the_last_digit() -> None:
    one, other = Answers({"up": {"a": 1.0}}), Answers({"up": {"a": 1.001}})
    assert list(differing(one, one, "up", AT)) == []
    assert list(differing(one, other, "up", AT)) == ["1.0 and 1.001: {'x': 'a'}"]


def test_the_last_digits_of_a_number_in_a_label_may_differ() -> None:
    one, other, third = (Answers({"up": {x: 1.0}}) for x in ("1.6386811584", "1.6386811583999", "1.6386"))
    assert list(differing(one, other, "up", AT)) == []
    assert list(differing(one, third, "up", AT)) != []


def test_what_nobody_knows_how_to_compare_is_refused() -> None:
    expression = "topk(2, increase(errors_total[15m]))"
    with pytest.raises(ValueError, match="not known how to compare"):
        list(differing(ONE, ONE, expression, AT))
