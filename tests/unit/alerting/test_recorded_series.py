"""Each recorded series is read by somebody, and terms that only one rule reads are not recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pytest

from gpu_exporter.alerting import rules
from gpu_exporter.alerting.groups import RuleGroup
from gpu_exporter.alerting.levels import names_read, recorded_names
from gpu_exporter.alerting.selection import groups_of_domains
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.conditions import tree
from tests import ROOT

GROUPS = rules.groups({})
RULES = [rule for group in GROUPS for rule in group.rules]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
DASHBOARDS = recorded_names("".join(path.read_text() for path in (ROOT / "dashboards").glob("*.json")))
# The queries of reports on a year.
PAGE = (ROOT / "docs/scale.md").read_text()
REPORTS = recorded_names(PAGE)


def readers(name: str) -> Iterator[str]:
    """Yield the rules that read a series."""
    for rule in RULES:
        own = rule.get("record") or rule["alert"]
        if own != name and name in names_read(rule):
            yield own


@pytest.mark.drift
def test_every_series_is_read() -> None:
    """By an alert, another rule, a dashboard or a report; otherwise it costs memory and is of no use."""
    unread = [name for name in RECORDED - DASHBOARDS - REPORTS if not any(readers(name))]
    assert not unread, (
        "fix: read the signal in a condition of gpu_exporter/catalogue/failure_modes/ or in a panel of"
        " content/dashboards/, or remove its row from gpu_exporter/catalogue/signals.py"
    )


def test_dashboards_read_what_is_recorded() -> None:
    """No dashboard reads a term that is not recorded any more."""
    assert {name for name in DASHBOARDS if name.startswith(("gpu:", "rank:"))} <= RECORDED
    assert not tree.READ_ONCE & RECORDED


@pytest.mark.drift
def test_terms_of_a_single_rule_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of that rule. A series is recorded for each GPU, so it has to have two readers."""
    listed = tree.READ_ONCE
    monkeypatch.setattr(tree, "READ_ONCE", frozenset())
    expressions: dict[str, str] = defaultdict(str)
    # They only need to know whether a term has a value, which the signal tells as well.
    bridges = {mode.bridge for mode in MODES}
    for rule in (rule for group in rules.groups({}) for rule in group.rules if rule.get("record") not in bridges):
        expressions[rule.get("record") or rule["alert"]] += f"{rule['expr']}\n"
    terms = {term.record for term in rules.terms_of_all() if term.record}
    reads = {
        term: [text.count(term) for name, text in expressions.items() if name != term and term in recorded_names(text)]
        for term in terms
    }
    # A term that is read with a selector must be a series.
    selected = {term for term in terms for bracket in "{[" if f"{term}{bracket}" in "".join(expressions.values())}
    missing = {term for term in terms - DASHBOARDS - selected if reads[term] == [1]} - listed
    wrong = {term for term in listed if term in selected or len(reads.get(term, ())) != 1}

    assert missing == set(), "one rule reads it, once; fix: add it to READ_ONCE of gpu_exporter/conditions/tree.py"
    assert wrong == set(), (
        "no term, or read by several rules; fix: remove it from READ_ONCE of gpu_exporter/conditions/tree.py"
    )


def test_a_domain_that_is_off_needs_no_rules() -> None:
    """Its alerts and what only they need are gone; all rules that are left have what they read."""
    before = _records(GROUPS)
    for off in Domain:
        chosen = groups_of_domains(GROUPS, [domain for domain in Domain if domain is not off])
        assert not [
            rule for group in chosen for rule in group.rules if rule.get("labels", {}).get("domain") == off.value
        ]
        kept = _records(chosen)
        for group in chosen:
            for rule in group.rules:
                assert recorded_names(rule["expr"]) & before.keys() <= kept.keys(), rule
    health = _records(groups_of_domains(GROUPS, [Domain.HEALTH]))
    assert not any(name.startswith(("job:", "rank:", "pool:")) for name in health)
    assert len(health) < len(before) / 3, "docs/scale.md promises this"
    assert groups_of_domains(GROUPS, tuple(Domain)) == GROUPS


def _records(groups: Sequence[RuleGroup]) -> Mapping[str, str]:
    return {rule["record"]: rule["expr"] for group in groups for rule in group.rules if "record" in rule}
