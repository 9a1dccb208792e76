"""The gate of a build: conditions and baselines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_exporter.io.user_text import ratio
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import gate
from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult
from tests.support.traces import SyntheticTrace


def _result(folder: Path, *, step: float = 1000, kernel: float = 700, rank: int | None = None) -> AnalysisResult:
    """Return the result of five steps with one kernel each, us."""
    trace = SyntheticTrace(rank=rank)
    for number in range(5):
        trace.step(number, number * step, step)
        trace.device(number * step + 20, kernel, launched=number * step + 10)
    return analyze([read(trace.write(folder / "trace.json"))])


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("idle>20%", True),
        ("idle > 0.2", True),
        ("idle>30%", False),
        ("busy<80%", True),
        ("busy<70%", False),
        ("exposed_communication>15%", False),
        ("exposed_communication>=0%", True),
        ("python<=0", True),
    ],
)
def test_conditions(tmp_path: Path, text: str, fails: bool) -> None:
    failures = list(gate.condition(text).failures(_result(tmp_path)))
    assert bool(failures) is fails
    assert all("rank 0" in line for line in failures)


@pytest.mark.parametrize("text", ["", "idle", "idle>", "idel>20%", "idle>20", "idle=5%", "idle>-1%", "idle>nan%"])
def test_what_is_no_condition_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="idle>20%"):
        gate.condition(text)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("idle", 5),
        ("busy", 95),
        ("compute", 65),
        ("communication", 30),
        ("exposed_communication", 20),
        ("copy", 20),
        ("exposed_copy", 10),
        ("launch_overhead", 5),
        ("python", 0),
    ],
)
def test_names_of_conditions(tmp_path: Path, name: str, share: int) -> None:
    trace = SyntheticTrace(rank=3)
    trace.device(0, 60, device=1)
    trace.device(50, 30, "nccl", stream=8, launched=1, device=1)
    trace.device(70, 20, "Memcpy HtoD", category="gpu_memcpy", stream=9, launched=2, device=1)
    trace.device(95, 5, launched=94, device=1)
    result = analyze([read(trace.write(tmp_path / "trace.json"))])
    assert list(gate.condition(f"{name} < {share + 0.1:.1f} %").failures(result)) == [
        f"{name}<{share + 0.1:.1f}%: {name} is {share} % on rank 3, GPU 1"
    ]
    assert not list(gate.condition(f"{name}>{share + 0.1:.1f}%").failures(result))
    assert not list(gate.condition(f"{name}<{max(0, share - 0.1):.3f}%").failures(result))


def test_a_limit_of_all_of_the_time() -> None:
    assert (gate.condition("idle>=100%").limit, gate.condition("idle<=1").limit) == (1.0, 1.0)


def _baseline(folder: Path, result: AnalysisResult) -> gate.Baseline:
    path = folder / "old.json"
    path.write_text(json.dumps(result.to_json()))
    return gate.baseline(path)


def test_a_result_passes_its_own_baseline(tmp_path: Path) -> None:
    result = _result(tmp_path)
    assert gate.regressions(result, _baseline(tmp_path, result), 0.0) == []


def test_longer_steps_and_longer_kernels_are_regressions(tmp_path: Path) -> None:
    before = _baseline(tmp_path, _result(tmp_path))
    longer_step, *others = gate.regressions(_result(tmp_path, step=1100), before, 0.05)
    assert "a step of rank 0" in longer_step
    assert "+10.0 %" in longer_step
    assert others == []
    (longer_kernel,) = gate.regressions(_result(tmp_path, kernel=770), before, 0.05)
    assert "busy time" in longer_kernel
    assert gate.regressions(_result(tmp_path, step=1100), before, 0.2) == []


def test_without_steps_the_span_is_compared(tmp_path: Path) -> None:
    def result(end: float, kernel: float = 700) -> AnalysisResult:
        trace = SyntheticTrace(rank=5)
        trace.device(0, kernel)
        trace.device(end - 100, 100)
        return analyze([read(trace.write(tmp_path / "trace.json"))])

    before = _baseline(tmp_path, result(1000))
    assert gate.regressions(result(1110), before, 0.1) == ["a step of rank 5 takes 1.11 ms instead of 1 ms: +11.0 %"]
    assert gate.regressions(result(1000, 800), before, 0.1) == [
        "the busy time of the GPU in a step of rank 5 takes 900 us instead of 800 us: +12.5 %"
    ]
    assert gate.regressions(result(1000, 800), before, 0.125) == []


def test_a_number_of_steps_is_no_regression(tmp_path: Path) -> None:
    """The median step, and the busy time in a step, do not depend on how many steps were traced."""
    before = _baseline(tmp_path, _result(tmp_path))
    trace = SyntheticTrace()
    for number in range(20):
        trace.step(number, number * 1000, 1000)
        trace.device(number * 1000 + 20, 700, launched=number * 1000 + 10)
    assert gate.regressions(analyze([read(trace.write(tmp_path / "t.json"))]), before, 0.001) == []


def test_a_baseline_of_other_ranks_is_an_error(tmp_path: Path) -> None:
    before = _baseline(tmp_path, _result(tmp_path))
    with pytest.raises(GpuExporterError, match="compare the same job"):
        gate.regressions(_result(tmp_path, rank=1), before, 0.05)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"ranks": []}', '{"ranks": [{"rank": "x"}]}', '{"ranks": 5}'])
def test_what_is_no_baseline_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(content)
    with pytest.raises(GpuExporterError, match=r"old\.json"):
        gate.baseline(path)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0)])
def test_ratios(text: str, value: float) -> None:
    assert ratio(text) == value


@pytest.mark.parametrize("text", ["", "5 percent", "-1%", "101%", "nan", "1e9"])
def test_what_is_no_ratio_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="ratio"):
        ratio(text)
