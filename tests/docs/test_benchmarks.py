"""What benchmarks make of what they measured: the bound, the page, and what is written to a file."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import pytest

from benchmarks import harness, report, sections
from benchmarks.paired import quantile, slowdown
from benchmarks.stalls import board, busy, modes

FIX = "fix: delete the result from benchmarks/results/ if nobody reads it, or give it a section in benchmarks/report.py"

FOUND = report.results()


@pytest.mark.parametrize(("freedom", "table"), [(3, 2.3534), (4, 2.1318), (9, 1.8331), (30, 1.6973), (200, 1.6525)])
def test_student(freedom: int, table: float) -> None:
    """As printed tables have it."""
    assert quantile(freedom) == pytest.approx(table, abs=0.003)


def test_the_bound_holds_as_often_as_it_says() -> None:
    """Of many measurements of one truth, 95 % have it below their bound."""
    draw, truth, times = random.Random(1), 0.004, 3000

    def measured() -> float:
        clocks = [draw.uniform(0.9, 1.1) for _ in range(8)]  # the drift, which pairs don't see
        with_it = [clock * (1 + draw.gauss(truth, 0.01)) for clock in clocks]
        return slowdown(list(zip(clocks, with_it, strict=True))).upper

    assert sum(measured() >= truth for _ in range(times)) / times == pytest.approx(0.95, abs=0.012)


def test_few_pairs_have_no_bound() -> None:
    """Three of them prove nothing."""
    with pytest.raises(ValueError, match="3 pairs are too few"):
        slowdown([(1, 1)] * 3)


@pytest.mark.drift
def test_the_page_is_what_was_measured() -> None:
    """The page and its plots are what the report makes of the results."""
    assert report.differing(FOUND) == [], "fix: run `python -m benchmarks.report`"


@pytest.mark.parametrize("name", [known.name for known in report.SECTIONS if known.name in FOUND])
def test_another_number_is_another_page(name: str) -> None:
    """A section and each of its plots show what is in the file: with other numbers they are others."""
    other = copy.deepcopy(FOUND)
    other[name]["numbers"] = grown(other[name]["numbers"])

    assert report.PAGE in report.differing(other)
    assert {path for path in report.rendered(FOUND) if path.startswith(f"{report.PLOTS}/{name}-")} <= {
        *report.differing(other)
    }


def grown(found: Any) -> Any:
    """The same, every number by three tenths larger."""
    if isinstance(found, dict):
        return {key: grown(value) for key, value in found.items()}
    if isinstance(found, list):
        return [grown(value) for value in found]
    return found * 1.3 if isinstance(found, float) else found


def test_eight_gpus_are_extrapolated_and_said_to_be() -> None:
    """From one and two of them: a line through both."""
    rows = copy.deepcopy(FOUND["cost"]["numbers"]["rows"][:2])
    for row, boards, cpu, mib in zip(rows, (1, 2), (0.01, 0.014), (50.0, 51.5), strict=True):
        row.update(name="everything", gpus=boards, cpu=cpu, rss_mib=mib)

    shown = sections.cost({"rows": rows}).text

    assert "everything, 1 s, 1 of these GPUs | 1.00 %" in shown
    assert "| gpu-exporter, everything, 1 s | 0.40 % | 1.5 MiB | 3.8 % | 60 MiB |" in shown
    assert "extrapolated" not in sections.cost({"rows": rows[1:]}).text
    rows[1]["name"] = "default"
    assert "extrapolated" not in sections.cost({"rows": rows}).text


def test_nothing_measured_is_no_number() -> None:
    """The page's own words have no figure: each comes from a file."""
    assert re.findall(r"\d[\d.]* ?(?:m?s\b|%|[KM]iB|W\b)", report.rendered({})[report.PAGE]) == []


@pytest.mark.drift
def test_each_result_is_shown_and_each_section_can_be_measured() -> None:
    """What `benchmarks.scale` wrote is in docs/scale.md."""
    names = {known.name for known in report.SECTIONS}

    assert {name for name in FOUND if not name.startswith("scale")} <= names, FIX
    assert names == {benchmark.name for benchmark in harness.BENCHMARKS}, FIX


@pytest.mark.parametrize("name", FOUND)
def test_a_result_says_how_and_where(name: str) -> None:
    """Command, day, commit, machine; and nothing of where its files were."""
    found = FOUND[name]

    assert found["command"].startswith("python -m benchmarks.")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert not re.search(r'"/', json.dumps(found)), "a path"
    assert found["machine"].keys() >= {"cpu", "cores", "load_average", "python"}


def test_what_was_typed_less_the_place() -> None:
    """Where files are on this machine is in no command."""
    typed = ["--seconds", "3", "--json", "/x/y.json", "--prometheus=/z/prometheus", "--commit", "a b", "gemm"]

    assert harness.typed(typed) == ["--seconds", "3", "gemm"]


def test_time_at_work() -> None:
    """Phases count as far as they are in the window."""
    assert busy([(0, 1), (2, 3), (4, 5)], 0.5, 4.5) == pytest.approx(2 / 4)


def test_modes_of_power() -> None:
    """The fullest bucket on each side of the mean, and the highest that is not empty."""
    buckets = [(100.0, 0.1), (150.0, 0.4), (600.0, 0.1), (700.0, 0.3), (950.0, 0.1)]

    assert modes(buckets, 400) == {"low": 150, "high": 700, "highest": 950}


def test_the_boards_own_power() -> None:
    """Samples within the window, and joules by time."""
    lines = [
        json.dumps({"time": float(t), "joules": 500.0 * t, "samples": [[t - 0.5, 100.0], [t, 900.0]]}) + "\n"
        for t in range(20)
    ]
    found = board([*lines, '{"time": 20'], 5, 15, 700)

    assert (found["samples"], found["highest"], found["by_energy_counter"]) == (21, 900, 500)
    assert found["share_above_limit"] == pytest.approx(11 / 21)
