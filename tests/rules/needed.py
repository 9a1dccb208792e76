"""The rules that some alerts or expressions need: all others only take time."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Rule = Mapping[str, Any]
_ALERTS, _NAMED_ALERT = re.compile(r"ALERTS\{"), re.compile(r'ALERTS\{[^}]*alertname="([^"]+)"')


def write_needed(rules: Path, target: Path, alerts: Collection[str] = ()) -> None:
    """Write the alerts of a folder of rules, or only these, and the recorded series that they read directly or not."""
    every = list(_rules(rules))
    _write(rules, target, [rule for rule in every if "alert" in rule and (rule["alert"] in alerts or not alerts)])


def write_read(rules: Path, target: Path, expressions: Sequence[str], alerts: Collection[str]) -> None:
    """Write the rules of a folder that expressions read directly or not, and these alerts with what they read.

    An expression that reads ALERTS without the name of one alert reads all.
    """
    text = " ".join(expressions)
    named = _NAMED_ALERT.findall(text)
    all_alerts = len(named) < len(_ALERTS.findall(text))
    kept = [
        rule
        for rule in _rules(rules)
        if (all_alerts or rule["alert"] in {*named, *alerts} if "alert" in rule else rule["record"] in text)
    ]
    _write(rules, target, kept)


def _write(rules: Path, target: Path, kept: list[Rule]) -> None:
    """Write rules, and those that they read directly or not, in their groups."""
    others = [rule for rule in _rules(rules) if "record" in rule and rule not in kept]
    for rule in kept:  # grows meanwhile
        read = [other for other in others if other["record"] in rule["expr"]]
        others = [other for other in others if other not in read]
        kept += read
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if any(rule is each for each in kept)]}
        for group in _groups(rules)
    ]
    target.write_text(json.dumps({"groups": [group for group in groups if group["rules"]]}))


def _rules(rules: Path) -> Iterator[Rule]:
    return (rule for group in _groups(rules) for rule in group["rules"])


@cache
def _groups(rules: Path) -> Sequence[Mapping[str, Any]]:
    texts = (path.read_text() for path in sorted(rules.glob("*.yaml")))
    return [group for text in texts for group in yaml.load(text, Loader=yaml.CSafeLoader)["groups"]]
