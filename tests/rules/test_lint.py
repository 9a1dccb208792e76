"""The rules in promtool's linter."""

from __future__ import annotations

import subprocess

from tests.rules.needed import rule_groups
from tests.rules.promtool import RULES, promtools


def test_promtool_has_no_complaint() -> None:
    for promtool in promtools():
        arguments = ["check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES)]
        found = subprocess.run([promtool, *arguments], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def test_two_versions_of_prometheus() -> None:
    """Otherwise newer versions would not be tested."""
    said = [subprocess.run([each, "--version"], capture_output=True, text=True).stdout for each in promtools()]
    older, newer = (int(text.split()[2].split(".")[0]) for text in said)
    assert older < newer, said


def test_group_names_are_unique() -> None:
    """So that one PrometheusRule can have the groups of all files."""
    names = [group["name"] for group in rule_groups(tuple(RULES))]
    assert len(names) == len(set(names))
