"""The rules as promtool's linter sees them."""

from __future__ import annotations

import subprocess

import yaml

from tests.rules.promtool import RULES, promtools


def test_promtool_finds_nothing_to_say() -> None:
    for promtool in promtools():
        arguments = ["check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES)]
        found = subprocess.run([promtool, *arguments], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def test_the_newest_prometheus_is_another_one() -> None:
    """Else nothing would be shown of the versions to come."""
    said = [subprocess.run([each, "--version"], capture_output=True, text=True).stdout for each in promtools()]
    older, newer = (int(text.split()[2].split(".")[0]) for text in said)
    assert older < newer, said


def test_groups_have_names_of_their_own() -> None:
    """All files fit into one PrometheusRule."""
    names = [group["name"] for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    assert len(names) == len(set(names))
