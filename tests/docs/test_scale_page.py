"""The measured section of docs/scale.md, and the options of a cluster."""

from __future__ import annotations

import json
import shlex

import pytest

from benchmarks.scale_page import PAGE, known, known_stores, page
from tests.scale import thanos, victoria_cluster

FIX = "fix: run `python -m benchmarks.scale --json benchmarks/results/scale.json`"


@pytest.mark.drift
def test_page_is_up_to_date() -> None:
    """It is rendered from the committed results; other results change it."""
    text, found, clusters = PAGE.read_text(), known(), known_stores()
    assert page(text, found, clusters) == text, FIX
    other = json.loads(json.dumps(found))
    other[0]["load"]["rule_seconds"]["gpu-signals"] = 4711.0
    assert "4711.00 s" in page(text, other, clusters), FIX
    assert "store of tomorrow" in page(text, found, [{**clusters[0], "name": "store of tomorrow"}]), FIX


# Their values are those of one store or installation.
LOCAL = ("--receive.local-endpoint", "--tsdb.path", "--data-dir", "--rule-file", "--alertmanagers.url")


def documented(program: str) -> list[str]:
    """Return the words of the first command that begins with a program's name."""
    commands = PAGE.read_text().replace(" \\\n ", "").splitlines()
    return next(shlex.split(line) for line in commands if line.startswith(f"{program} "))


def test_the_options_of_a_cluster_are_those_that_are_tried() -> None:
    """By `python -m tests.scale.run cluster`."""
    stores = [{"vminsert": f"store-{number}:8400", "vmselect": f"store-{number}:8401"} for number in (1, 2, 3)]

    for name, options in victoria_cluster.setup(stores).items():
        assert documented(name) == [name, *options], "fix: correct the options in docs/scale.md"


def test_the_options_of_thanos_are_those_that_are_tried() -> None:
    """By `python -m tests.scale.run thanos`."""
    stores = [f"store-{number}:10901" for number in (1, 2, 3)]

    for name, options in thanos.setup(stores, "ruler:10901", "query:10902").items():
        found = [word for word in documented(f"thanos {name}") if not word.startswith(LOCAL)]
        store = ['--label=replica="store-1"'] if name == "receive" else []
        assert found == ["thanos", name, *options, *store], "fix: correct the options in docs/scale.md"
