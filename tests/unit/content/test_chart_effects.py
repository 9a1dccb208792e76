"""Every value of the chart has a test that shows its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from content.chart.values import values
from tests.support.chart import Object, objects
from tests.support.chart_effects import ABSENT, EFFECTS, at, nested
from tests.unit.content import test_chart_rules as rules

# Values, or the beginning of their paths, whose effect another test shows.
SHOWN_BY: Mapping[str, Callable[..., None]] = {
    "prometheusRule.limits.": rules.test_every_limit_is_in_the_rules,
    "prometheusRule.modes.": rules.test_every_mode_can_be_changed,
    "prometheusRule.level": rules.test_rules_of_a_level,
    "prometheusRule.domains": rules.test_rules_of_some_domains,
    "prometheusRule.toleratedTaints": rules.test_tolerated_taints_reach_the_rules,
    "prometheusRule.runbookUrl": rules.test_settings_of_all_alerts,
    "prometheusRule.grafanaUrl": rules.test_settings_of_all_alerts,
    "prometheusRule.pageUrl": rules.test_settings_of_all_alerts,
}


def test_every_value_has_an_effect() -> None:
    """A new value without an entry has no test."""
    paths = {value.path for value in values()}
    missing = sorted(path for path in paths - EFFECTS.keys() if not path.startswith(tuple(SHOWN_BY)))

    assert missing == [], (
        f"no test shows the effect of {missing}; fix: add them to EFFECTS in tests/support/chart_effects.py"
    )
    assert sorted(EFFECTS.keys() - paths) == [], "not a value; fix: remove them from EFFECTS"


@cache
def rendered(path: str, *, changed: bool) -> list[Object]:
    """Return the objects with the value of an entry, or without it."""
    effect = EFFECTS[path]
    if changed:
        return objects(nested(path, effect.value, effect.beside))
    return objects(effect.beside if effect.before is None else effect.before)


@pytest.mark.slow
@pytest.mark.parametrize("path", EFFECTS)
def test_a_value_has_its_effect(path: str) -> None:
    effect = EFFECTS[path]
    before, after = (at(rendered(path, changed=changed), effect.place) for changed in (False, True))

    assert after == effect.rendered
    assert before != effect.rendered


def test_places() -> None:
    """They lead into objects, lists and text, and nothing is absent."""
    found: list[Object] = [
        {"kind": "A", "metadata": {"name": "one"}, "data": {"text": "x: [{name: b, y: 0}]"}},
        {"kind": "A", "metadata": {"name": "two"}, "list": [7]},
    ]
    places = ("A data text x b y", "A:two list 0", "A:two list 1", "A:two list c", "A:three kind", "B kind", "A kind")
    assert [at(found, place) for place in places] == [0, 7, ABSENT, ABSENT, ABSENT, ABSENT, "A"]
