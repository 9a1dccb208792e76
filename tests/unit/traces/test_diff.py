"""`trace top` and `trace diff`: sums by operator, kernel, code and cause, and what got slower."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_exporter.cli.trace import trace_command
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.diff import diff, lines, main_cause
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.totals import CAUSE, CLASS, FRAME, IDLE_FRAME, KERNEL, KEYS, OPERATOR, totals

PID, TID = 100, 100
# Operator, kernel, and microseconds of the kernel: what a step launches, one after another.
STEP = (
    ("aten::mm", "ampere_sgemm_128x64", 400),
    ("aten::add", "void at::native::vectorized_elementwise_kernel<4>", 50),
)


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": TID, "ts": start, "dur": length, "args": args}


def trace(path: Path, steps: int, work: Sequence[tuple[str, str, int]] = STEP, sleep: int = 100) -> Path:
    """Write a trace: in each step, Python sleeps, then each operator launches its kernel and waits for it."""
    events, at, correlation = [], 1_000.0, 0
    for step in range(steps):
        begin = at
        events.append(event("python_function", "train.py(7): load_batch", at, sleep))
        at += sleep
        for operator, kernel, length in work:
            correlation += 1
            events.append(event("python_function", "train.py(20): forward", at, length + 10))
            events.append(event("cpu_op", operator, at + 1, length + 8))
            events.append(event("cuda_runtime", "cudaLaunchKernel", at + 2, 3, correlation=correlation))
            kernel_args = {"correlation": correlation, "device": 0, "stream": 7}
            events.append(event("kernel", kernel, at + 5, length, **kernel_args))
            at += length + 10
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at - begin))
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_totals_are_per_step(tmp_path: Path) -> None:
    """However many steps there are."""
    for steps in (1, 4):
        found = totals(read(trace(tmp_path / f"{steps}.json", steps)))
        assert found.steps == steps
        assert found.step_seconds == pytest.approx(570e-6)
        assert found.busy_seconds == pytest.approx(450e-6)
        by_operator = {name: total.seconds for name, total in found.by[OPERATOR].items()}
        assert by_operator == pytest.approx({"aten::mm": 400e-6, "aten::add": 50e-6})
        assert {total.count for total in found.by[OPERATOR].values()} == {1.0}
        assert list(found.by[CLASS]) == ["gemm", "elementwise"]
        assert list(found.by[KERNEL]) == ["ampere_sgemm_128x64", "at::native::vectorized_elementwise_kernel"]
        assert list(found.by[FRAME]) == ["train.py(20): forward"]
        assert tuple(found.by) == KEYS


def test_the_slower_operator_is_named(tmp_path: Path) -> None:
    slow = (STEP[0], ("aten::add", STEP[1][1], 250))
    found = diff(totals(read(trace(tmp_path / "a.json", 3))), totals(read(trace(tmp_path / "b.json", 5, slow))))
    assert found.unit == "step"
    first = found.changes[OPERATOR][0]
    assert first.name == "aten::add"
    assert first.seconds == pytest.approx(200e-6)
    assert found.changes[OPERATOR][-1].seconds == pytest.approx(0)
    assert main_cause(found) == "+200 us in the operator aten::add, launched by train.py(20): forward"
    text = list(lines(found))
    assert text[0] == "A step took 570 us, and now takes 770 us (+35.1%)."
    assert text[1].startswith("The GPU works 200 us more and is idle ")


def test_the_cause_of_idle_time_is_named(tmp_path: Path) -> None:
    """The host sleeps longer before each step; all kernels are as fast as before."""
    before, after = trace(tmp_path / "a.json", 4), trace(tmp_path / "b.json", 4, sleep=2_100)
    found = diff(totals(read(before)), totals(read(after)))
    assert found.changes[CAUSE][0].name == "data_loading"
    assert "train.py(7): load_batch" in found.changes[IDLE_FRAME][0].name
    assert main_cause(found).endswith("waiting for the data loader, in train.py(7): load_batch")


def test_without_steps_the_whole_traces_are_compared(tmp_path: Path) -> None:
    path = trace(tmp_path / "a.json", 2)
    path.write_text(path.read_text().replace("ProfilerStep#", "phase"))
    found = diff(totals(read(path)), totals(read(trace(tmp_path / "b.json", 2))))
    assert found.unit == "trace"
    assert found.changes[OPERATOR][0].seconds == pytest.approx(0)


def test_new_and_gone_names(tmp_path: Path) -> None:
    other = (STEP[0], ("aten::mul", STEP[1][1], 50))
    found = diff(totals(read(trace(tmp_path / "a.json", 2))), totals(read(trace(tmp_path / "b.json", 2, other))))
    by_name = {row.name: row for row in found.changes[OPERATOR]}
    assert (by_name["aten::mul"].before_count, by_name["aten::mul"].after_count) == (0.0, 1.0)
    assert (by_name["aten::add"].before_count, by_name["aten::add"].after_count) == (1.0, 0.0)
    assert "Most of it" in "\n".join(lines(found))


def test_a_trace_without_gpu_events(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::mm", 1, 2)]}))
    with pytest.raises(GpuExporterError, match="no GPU events"):
        totals(read(path))


def test_on_the_command_line(tmp_path: Path) -> None:
    before, after = trace(tmp_path / "a.json", 2), trace(tmp_path / "b.json", 2, sleep=500)

    def run(*arguments: str | Path) -> tuple[int, str]:
        result = CliRunner().invoke(trace_command, [str(each) for each in arguments])
        return result.exit_code, result.stdout

    code, text = run("diff", before, after, "--json")
    content = json.loads(text)
    assert (code, content["unit"], content["after"]["steps"]) == (0, "step", 2)
    assert content["changes"]["cause"][0]["name"] == "data_loading"
    code, text = run("top", before, "--by", "operator", "--limit", "1")
    assert code == 0
    assert text.splitlines()[0] == "GPU time by operator, per step of 570 us"
    assert text.splitlines()[1].split() == ["70.2%", "400", "us", "1", "x", "aten::mm"]
    assert text.splitlines()[2] == "  and 1 more"
    report = tmp_path / "kernels.csv"
    report.write_text("Time (%),Total Time (ns),Instances,Name\n100,2000,3,k\n")
    assert run("top", report)[1].splitlines()[1].split() == ["100.0%", "0.002", "ms", "3", "x", "k"]
    report.write_text("nothing\n")
    result = CliRunner().invoke(trace_command, ["top", str(report)])
    assert "no report of kernels" in result.output
