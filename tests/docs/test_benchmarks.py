"""Evaluation and reports of benchmarks: the confidence bound, the page, the result files."""

from __future__ import annotations

import copy
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import comparison_page, cost, harness, report, sections
from benchmarks.paired import quantile, slowdown
from benchmarks.stalls import board, busy, modes

FIX = "fix: delete the result from benchmarks/results/ if it is unused, or give it a section in benchmarks/report.py"

FOUND = report.results()
# As in results of earlier versions, and of peers.
LATER = ("idle_cpu", "start_seconds", "floor", "memory", "threads")
ROWS = [{key: value for key, value in row.items() if key not in LATER} for row in FOUND["cost"]["numbers"]["rows"]]


@pytest.mark.parametrize(("freedom", "table"), [(3, 2.3534), (4, 2.1318), (9, 1.8331), (30, 1.6973), (200, 1.6525)])
def test_student(freedom: int, table: float) -> None:
    """Values of printed tables."""
    assert quantile(freedom) == pytest.approx(table, abs=0.003)


def test_true_slowdown_is_below_the_bound_in_95_percent() -> None:
    """Of many measurements of one true value, 95 % have a bound above it."""
    draw, truth, times = random.Random(1), 0.004, 3000

    def measured() -> float:
        clocks = [draw.uniform(0.9, 1.1) for _ in range(8)]  # drift, which cancels within a pair
        with_it = [clock * (1 + draw.gauss(truth, 0.01)) for clock in clocks]
        return slowdown(list(zip(clocks, with_it, strict=True))).upper

    assert sum(measured() >= truth for _ in range(times)) / times == pytest.approx(0.95, abs=0.012)


def test_few_pairs_have_no_bound() -> None:
    """Three pairs are refused."""
    with pytest.raises(ValueError, match="3 pairs are too few"):
        slowdown([(1, 1)] * 3)


@pytest.mark.drift
def test_page_is_up_to_date() -> None:
    """The committed page and plots are rendered from the committed results."""
    assert report.differing(FOUND) == [], "fix: run `python -m benchmarks.report`"


@pytest.mark.parametrize("name", [known.name for known in report.SECTIONS if known.name in FOUND])
def test_every_section_and_plot_depends_on_its_numbers(name: str) -> None:
    """Other numbers in a result change the page and every plot of its section."""
    other = copy.deepcopy(FOUND)
    for each in (other[name], *other[name].get("more", ())):
        each["numbers"] = grown(each["numbers"])

    assert report.PAGE in report.differing(other)
    assert {path for path in report.rendered(FOUND) if path.startswith(f"{report.PLOTS}/{name}-")} <= {
        *report.differing(other)
    }


def grown(found: Any) -> Any:
    """Return a copy in which every float is 30 % larger."""
    if isinstance(found, dict):
        return {key: grown(value) for key, value in found.items()}
    if isinstance(found, list):
        return [grown(value) for value in found]
    return found * 1.3 if isinstance(found, float) else found


def test_cost_of_eight_gpus_is_extrapolated() -> None:
    """Linearly from one and two GPUs, and the page says so."""
    rows = copy.deepcopy(FOUND["cost"]["numbers"]["rows"][:2])
    for row, boards, cpu, mib in zip(rows, (1, 2), (0.01, 0.014), (50.0, 51.5), strict=True):
        row.update(name="everything", gpus=boards, cpu=cpu, rss_mib=mib)

    shown = sections.cost({"rows": rows}).text

    assert "everything, 1 s, 1 of these GPUs | 1.00 %" in shown
    assert "| gpu-exporter, everything, 1 s | 0.40 % | 1.5 MiB | 3.8 % | 60 MiB |" in shown
    assert "extrapolated" not in sections.cost({"rows": rows[1:]}).text
    rows[1]["name"] = "default"
    assert "extrapolated" not in sections.cost({"rows": rows}).text


def test_rows_of_peers_have_idle_cpu_and_start_or_why_they_were_not_measured() -> None:
    """Results from before they were measured have neither."""
    rows = [{**row, "idle_cpu": 0.0123, "start_seconds": 2.5} for row in ROWS]
    failed = [{"name": "dcgm-exporter, 1 s", "why": "does not answer on port 1, exit code 3: no GPU"}]
    shown = sections.cost({"rows": rows, "not_measured": failed}).text

    assert "| exporter | CPU of a core | CPU without a scrape | start | memory |" in shown
    assert "| 1.23 % | 2.5 s |" in shown
    assert "| dcgm-exporter, 1 s | not measured: does not answer on port 1, exit code 3: no GPU |" in shown
    assert sections.ACCOUNTING in shown
    assert sections.ACCOUNTING not in sections.cost({"rows": ROWS}).text


def test_rows_are_compared_with_the_floor() -> None:
    """On both pages; results from before it was measured have no such columns."""
    result = copy.deepcopy(COMPARED["1_h100"])
    for row in result["numbers"]["rows"]:
        row["floor"] = None
    assert sections.FLOOR not in comparison_page.costs({"1_h100": result})
    first, *others = result["numbers"]["rows"]
    first |= {"cpu": 0.006, "rss_mib": 63.0, "wakeups": 8.4, "floor": {"cpu": 0.002, "rss_mib": 42.0, "calls": 30.0}}
    for row in others:
        row |= {"wakeups": 3.0, "floor": None}
    found = comparison_page.costs({"1_h100": result})
    assert "| CPU by the floor | memory by the floor | wake-ups a second |" in found
    assert "| 3.0 times 0.20 % | 1.50 times 42.0 MiB | 8 |" in found
    assert "|  |  | 3 |" in found
    assert sections.FLOOR in found
    measured = {name: first[name] for name in ("cpu", "rss_mib", "wakeups", "floor", "idle_cpu", "start_seconds")}
    rows = {"rows": [{**ROWS[0], **measured}]}
    assert "memory in MiB" not in sections.cost(rows).text
    rows["rows"][0]["memory"] = {"Python": 11.0, "ssl": 4.26, **{f"part{n}": 1.0 for n in range(30)}}
    text = sections.cost(rows).text
    assert "| memory in MiB, of | gpu-exporter, default, 1 s |\n" in text
    assert "| Python | 11.0 |\n| ssl | 4.3 |\n" in text
    assert "| other modules | 8.0 |\n" in text
    assert sections.THREADS not in text
    first_row = rows["rows"][0]
    first_row["threads"] = {"log": [0.0, 0.0], "reader": [0.002, 4.25], "clock": [0.0031, 5.0], "nics": [0.0, 0.2]}
    first_row["floor"]["functions"] = {"nvmlGpmSampleGet": 0.0004, "nvmlDeviceGetSamples": 0.0016}
    less = {"threads": {"clock": [0.004, 6.0], "attribution-processes": [0.0001, 3.0]}, "floor": None}
    text = sections.cost({"rows": [first_row, {**first_row, **less}]}).text
    assert sections.THREADS in text
    assert text.partition("| --- | ---: | ---: |\n")[2].startswith(
        "| `clock` | 0.31 %, 5.0 | 0.40 %, 6.0 |\n"
        "| `reader` | 0.20 %, 4.2 |  |\n"
        "| `attribution-processes` |  | 0.01 %, 3.0 |\n"
        "| `nics` | 0.00 %, 0.2 |  |\n"
        "| all threads | 0.51 %, 9.4 | 0.41 %, 9.0 |\n"
        "| the floor | 0.20 % |  |\n"
        "| `nvmlDeviceGetSamples` | 0.16 % |  |\n"
        "| `nvmlGpmSampleGet` | 0.04 % |  |\n"
    )
    for shown in (sections.cost(rows), sections.cost_stand_in(rows)):
        assert "| 3.0 times 0.20 % | 1.50 times 42.0 MiB | 8 |" in shown.text
        assert sections.FLOOR in shown.text


def test_page_without_results_has_no_measured_number() -> None:
    """Every measured number on the page comes from a result file."""
    assert re.findall(r"\d[\d.]* ?(?:m?s\b|%|[KM]iB|W\b)", report.rendered({})[report.PAGE]) == []


@pytest.mark.drift
def test_every_result_has_a_section_and_a_benchmark() -> None:
    """Except results of `benchmarks.scale`, which are in docs/scale.md."""
    names = {known.name for known in report.SECTIONS}

    assert {name for name in FOUND if not name.startswith("scale")} <= names, FIX
    assert names == {benchmark.name for benchmark in harness.BENCHMARKS}, FIX


COMPARED = comparison_page.known()


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_depend_on_their_numbers(name: str) -> None:
    """Of the sentence in README.md, on the machine with most GPUs on which all exporters were measured."""
    other = {**COMPARED, name: {**COMPARED[name], "numbers": grown(COMPARED[name]["numbers"])}}
    pages = comparison_page.rendered(COMPARED)
    changed = {path for path, text in comparison_page.rendered(other).items() if text != pages[path]}
    assert changed == {
        "4_h200": {"docs/comparison.md", "README.md"},
        "dcgm_engine_2_h200": {"docs/dcgm.md"},
        "dcgm_engine_4_h100": {"docs/dcgm.md"},
    }.get(name, {"docs/comparison.md"})


def test_what_was_not_measured_is_an_empty_cell_or_a_reason() -> None:
    row = {"name": "dcgm-exporter, 30 s", "gpus": 1, "seconds": 5, "rss_mib": 108.4, "samples": 23}
    row |= {"alone": {"p50": 1.31, "p99": 4.26}, "start_seconds": 30.3}
    failed = {"name": "nvidia_gpu_exporter, NVML", "why": "nvidia_gpu_exporter is not in PATH"}
    machine = {"gpus": {"NVIDIA H100": 1}, "driver": "580.1"}
    numbers = {"rows": [row], "not_measured": [failed]}
    shown = comparison_page.cost({"machine": machine, "date": "2026-11-27", "commit": None, "numbers": numbers})
    assert shown.startswith("1 NVIDIA H100, driver 580.1, 2026-11-27, measured for 5 s:\n")
    assert "| dcgm-exporter, 30 s |  |  | 108 MiB | 23 | 1.3 ms | 4.3 ms | 30.3 s |\n" in shown
    assert "| nvidia_gpu_exporter, NVML | not measured: nvidia_gpu_exporter is not in PATH |\n" in shown


def test_an_interrupted_run_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = cost.NotMeasured("first", "because")

    def interrupted(*_: object) -> Iterator[cost.NotMeasured]:
        yield row
        raise KeyboardInterrupt

    monkeypatch.setattr(cost, "on_fake_driver", interrupted)
    monkeypatch.setattr(sys, "argv", ["cost", "--fake-driver", "1", "--json", str(tmp_path / "cost.json")])
    with pytest.raises(KeyboardInterrupt):
        cost.main()
    written = json.loads((tmp_path / "cost.json").read_text())
    assert written["numbers"]["not_measured"] == [{"name": "first", "why": "because"}]
    assert [path.name for path in tmp_path.iterdir()] == ["cost.json"]


@pytest.mark.parametrize("name", FOUND)
def test_result_names_command_date_and_machine(name: str) -> None:
    """But no paths of that machine."""
    found = FOUND[name]

    assert found["command"].startswith("python -m benchmarks.")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert not re.search(r'"/', json.dumps(found)), "a path"
    assert found["machine"].keys() >= {"cpu", "cores", "load_average", "python"}


def test_recorded_command_has_no_paths() -> None:
    """Options that name files of this machine are left out."""
    arguments = ["--seconds", "3", "--json", "/x/y.json", "--prometheus=/z/prometheus", "--commit", "a b", "gemm"]

    assert harness.portable_arguments(arguments) == ["--seconds", "3", "gemm"]


def test_busy_share() -> None:
    """Only the part of a phase within the window counts."""
    assert busy([(0, 1), (2, 3), (4, 5)], 0.5, 4.5) == pytest.approx(2 / 4)


def test_modes_of_power() -> None:
    """The fullest bucket on each side of the mean, and the highest bucket."""
    buckets = [(100.0, 0.1), (150.0, 0.4), (600.0, 0.1), (700.0, 0.3), (950.0, 0.1)]

    assert modes(buckets, 400) == {"low": 150, "high": 700, "highest": 950}


def test_power_reference() -> None:
    """Only samples within the window count; energy is divided by time."""
    lines = [
        json.dumps({"time": float(t), "joules": 500.0 * t, "samples": [[t - 0.5, 100.0], [t, 900.0]]}) + "\n"
        for t in range(20)
    ]
    found = board([*lines, '{"time": 20'], 5, 15, 700)

    assert (found["samples"], found["highest"], found["by_energy_counter"]) == (21, 900, 500)
    assert found["share_above_limit"] == pytest.approx(11 / 21)
