"""The rules that some alerts need: all others only take time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml


def write_needed(rules: Path, target: Path, alerts: Collection[str] = ()) -> None:
    """Write the alerts of a folder of rules, or only these, and the recorded series that they read directly or not."""
    groups = [group for path in sorted(rules.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]
    every = [rule for group in groups for rule in group["rules"]]
    kept: list[Mapping[str, Any]] = [rule for rule in every if rule.get("alert") in alerts or not alerts]
    kept = [rule for rule in kept if "alert" in rule]
    recorded = {rule["record"]: rule for rule in every if "record" in rule}
    for rule in kept:  # grows meanwhile
        for name in [name for name in recorded if name in rule["expr"]]:
            kept.append(recorded.pop(name))
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule in kept]
    target.write_text(yaml.safe_dump({"groups": [group for group in groups if group["rules"]]}))
