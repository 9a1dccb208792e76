"""The rules that some alerts or expressions need: all others only take time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from gpu_exporter.alerting import bundle

Rule = Mapping[str, Any]
Group = Mapping[str, Any]
_ALERTS = re.compile(r"ALERTS\{([^}]*)\}")
# What narrows alerts down. Matchers of other labels, and those that leave out some alerts, are ignored.
_MATCHER = re.compile(r'\b(alertname|domain)(=~?)"([^"]*)"')


def write_needed(rules: Path, target: Path, alerts: Collection[str] = ()) -> None:
    """Write the alerts of a folder of rules, or only these, and the recorded series that they read directly or not."""
    groups = rule_groups(tuple(sorted(rules.glob("*.yaml"))))
    _write(groups, target, lambda rule: "alert" in rule and (rule["alert"] in alerts or not alerts))


def bundled(folder: Path, part: str) -> Path:
    """Write the rules of the two levels (`levels`) or for vmalert (`vmalert`), and return their new folder."""
    for path, text in _of_bundle():
        if path.startswith(f"{part}/"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder / part


@cache
def _of_bundle() -> Sequence[tuple[str, str]]:
    return tuple(bundle.PARTS["alerts"](bundle.BundleChoice()))


def write_read(rules: Sequence[Path], target: Path, expressions: Sequence[str], alerts: Collection[str]) -> None:
    """Write the rules of files that expressions read directly or not, and these alerts with what they read.

    An expression that reads ALERTS without names or a domain reads all alerts, one without a name all rules.
    """
    text = " ".join(expressions)
    selectors = [_MATCHER.findall(matchers) for matchers in set(_ALERTS.findall(text))]

    def is_read(rule: Rule) -> bool:
        if "__name__" in text:
            return True
        if "alert" in rule:
            has = {"alertname": rule["alert"], "domain": rule["labels"]["domain"]}
            return rule["alert"] in alerts or any(_selects(matchers, has) for matchers in selectors)
        return rule["record"] in text

    _write(rule_groups(tuple(rules)), target, is_read)


def _selects(matchers: Sequence[tuple[str, str, str]], labels: Mapping[str, str]) -> bool:
    return all(
        re.fullmatch(value, labels[name]) if operator == "=~" else value == labels[name]
        for name, operator, value in matchers
    )


def _write(groups: Sequence[Group], target: Path, asked: Callable[[Rule], bool]) -> None:
    """Write the rules that are asked for, and those that they read directly or not, in their groups."""
    rules = [rule for group in groups for rule in group["rules"]]
    kept = [rule for rule in rules if asked(rule)]
    others = [rule for rule in rules if "record" in rule and not asked(rule)]
    for rule in kept:  # grows meanwhile
        read = [other for other in others if other["record"] in rule["expr"]]
        others = [other for other in others if other not in read]
        kept += read
    written = [
        {**group, "rules": [rule for rule in group["rules"] if any(rule is each for each in kept)]} for group in groups
    ]
    target.write_text(json.dumps({"groups": [group for group in written if group["rules"]]}))


@lru_cache(maxsize=4)
def rule_groups(files: tuple[Path, ...]) -> Sequence[Group]:
    """Return the groups of rules in files, which are read once. Change none of them."""
    return [group for path in files for group in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["groups"]]
