"""`trace top` and `trace diff`: sums by operator, kernel, code and cause, and what got slower."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_exporter.cli.trace import trace_command
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.diff import (
    CAUSE,
    CLASS,
    FRAME,
    IDLE_FRAME,
    KERNEL,
    OPERATOR,
    TITLES,
    WAITING,
    Total,
    TraceTotals,
    diff,
    lines,
    main_cause,
    totals,
)
from gpu_exporter.traces.reader import read
from tests.support.simulated_jobs import Job
from tests.support.traces import SyntheticTrace

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
        assert tuple(found.by) == tuple(TITLES)


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
    assert text[0] == "A step took 570 us, and now takes 770 us (+35.1 %)."
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


def _totals(step: float, busy: float, steps: int = 2, **by: dict[str, float]) -> TraceTotals:
    """Return totals per step; each name was launched twice."""
    tables = {
        key: {name: Total(seconds, 2.0) for name, seconds in by.get(key.replace("-", "_"), {}).items()}
        for key in TITLES
    }
    return TraceTotals(steps, 1, step, busy, tables)


BEFORE = _totals(1.0, 0.5, operator={"a": 0.25, "b": 0.25}, cause={"python": 0.5})


def test_a_comparison_as_text() -> None:
    """Changes of less than half a percent of a step are left out."""
    after = _totals(
        2.0,
        0.75,
        operator={"a": 0.625, "b": 0.256},
        code={"t.py(3): f": 0.5},
        cause={"python": 0.75, "data_loading": 0.01},
    )
    assert list(lines(diff(BEFORE, after))) == [
        "A step took 1 s, and now takes 2 s (+100.0 %).",
        "The GPU works 250 ms more and is idle 750 ms more than before.",
        "Most of it: +375 ms in the operator a, launched by t.py(3): f.",
        "",
        "GPU time by operator, per step",
        "     +375 ms    250 ms ->   625 ms            2 -> 2 x  a",
        "",
        "GPU time by code that launched it, per step",
        "     +500 ms       0 s ->   500 ms            0 -> 2 x  t.py(3): f",
        "",
        "Idle time of the GPU by cause, per step",
        "     +250 ms    500 ms ->   750 ms                      running other code on the host",
        "      +10 ms       0 s ->    10 ms                      waiting for the data loader",
    ]


def test_equal_traces_as_text() -> None:
    assert list(lines(diff(BEFORE, BEFORE))) == [
        "A step took 1 s, and now takes 1 s (+0.0 %).",
        "The GPU works and is idle for exactly as long as before.",
    ]


def test_a_faster_trace_as_text() -> None:
    faster = _totals(0.5, 0.375, steps=0, operator={"a": 0.125, "b": 0.25}, cause={"python": 0.125})
    text = list(lines(diff(BEFORE, faster)))
    assert text[:3] == [
        "The trace took 2 s, and now takes 500 ms (-75.0 %).",
        "The GPU works 625 ms less and is idle 875 ms less than before.",
        "Most of it: -875 ms idle, running other code on the host.",
    ]
    assert text[-1].split() == [
        "-875",
        "ms",
        "1",
        "s",
        "->",
        "125",
        "ms",
        "running",
        "other",
        "code",
        "on",
        "the",
        "host",
    ]
    assert "     -375 ms    500 ms ->   125 ms            4 -> 2 x  a" in text


def test_the_five_slowest_and_the_five_fastest() -> None:
    names = [f"k{number:02}" for number in range(20)]
    before = _totals(1.0, 0.5, kernel={name: 0.5 for name in names})
    after = _totals(1.0, 0.5, kernel={name: 0.5 + (9 - at) / 100 for at, name in enumerate(names)})
    rows = [line.split()[-1] for line in lines(diff(before, after)) if " -> " in line]
    assert rows == [*names[:5], *names[-5:]]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (_totals(1.0, 0.5, operator={"a": 0.2549}, cause={"python": 0.5}), ""),
        (_totals(1.0, 0.5, operator={"a": 0.255}, cause={"python": 0.5}), "+5 ms in the operator a"),
        (_totals(1.0, 0.5, operator={"a": 0.3}, cause={"python": 0.56}), "+60 ms idle, running other code on the host"),
        (_totals(1.0, 0.5, cause={"python": 0.6}, code={"f": 0.1}, idle_code={"g": 0.1}),
         "+100 ms idle, running other code on the host, in g"),
        # A speed-up is not explained by what got slower, nor a slow-down by what got faster.
        (_totals(0.75, 0.5, operator={"a": 0.1, "b": 0.5}, cause={"python": 0.4}, code={"f": 0.1}),
         "-150 ms in the operator a"),
        (_totals(0.75, 0.5, operator={"a": 0.25, "b": 0.3}, cause={"python": 0.6}), ""),
        (_totals(1.5, 0.5, operator={"a": 0.01, "b": 0.35}, cause={"python": 0.5}), "+100 ms in the operator b"),
        (_totals(1.5, 0.5, operator={"a": 0.26}, cause={"python": 0.5}, waiting={"rank 3": 0.4}),
         "+400 ms of waiting in collectives for rank 3"),
    ],
)  # fmt: skip
def test_the_main_cause(after: TraceTotals, expected: str) -> None:
    assert main_cause(diff(BEFORE, after)) == expected


def test_nothing_to_compare() -> None:
    found = diff(_totals(0.0, 0.0), _totals(1.0, 0.5))
    assert main_cause(found) == ""
    assert next(lines(found)) == "A step took 0 s, and now takes 1 s."
    assert found.to_json()["before"] == {"steps": 2, "gpus": 1, "step_seconds": 0.0, "busy_seconds": 0.0}


def test_totals_are_the_mean_over_the_gpus(tmp_path: Path) -> None:
    made = SyntheticTrace()
    for device in (0, 1):
        made.device(0, 100, "gemm", device=device)
        made.device(200 + 100 * device, 100, "gemm", device=device, launched=190)
    made.device(100, 40, "softmax", device=0, correlation=-1)
    found = totals(read(made.write(tmp_path / "t.json")))
    assert (found.steps, found.gpus) == (0, 2)
    assert (found.step_seconds, found.busy_seconds) == pytest.approx((350e-6, 220e-6))
    for key, seconds, counts in (
        (KERNEL, {"gemm": 200e-6, "softmax": 20e-6}, {"gemm": 2.0, "softmax": 0.5}),
        (OPERATOR, {"(no operator)": 220e-6}, {"(no operator)": 2.5}),
        (FRAME, {"(no Python frame)": 220e-6}, {"(no Python frame)": 2.5}),
    ):
        assert {name: total.seconds for name, total in found.by[key].items()} == pytest.approx(seconds)
        assert {name: total.count for name, total in found.by[key].items()} == counts
    assert sum(total.seconds for total in found.by[CAUSE].values()) == pytest.approx((350 - 220) * 1e-6)
    assert list(found.by[IDLE_FRAME]) == ["(no Python frame)", "cudaLaunchKernel"]


@pytest.mark.parametrize(
    ("frames", "operator", "code"),
    [
        (["train.py(3): f", "aten::linear", "aten::addmm"], "aten::addmm", "train.py(3): f"),
        (["torch/nn/modules/linear.py(3): forward", "aten::mm"], "aten::mm", "torch/nn/modules/linear.py(3): forward"),
        (
            ["train.py(3): f", "torch/optim/adam.py(5): step", "Optimizer.step#Adam.step"],
            "(no operator)",
            "train.py(3): f",
        ),
        (["train.py(3): f", "<built-in method mm>"], "(no operator)", "train.py(3): f"),
        (["autograd::engine::evaluate_function: Mm", "MmBackward0"], "MmBackward0", "(no Python frame)"),
        (["train.py(3): f", "nccl:all_reduce"], "nccl:all_reduce", "train.py(3): f"),
        (["train.py(3): f", "cudaGraphLaunch"], "(no operator)", "train.py(3): f"),
    ],
)
def test_operator_and_code_of_a_launch(tmp_path: Path, frames: Sequence[str], operator: str, code: str) -> None:
    """The innermost of each: calls and the parts of the framework that contain all operators are none."""
    made = SyntheticTrace()
    for at, name in enumerate(frames):
        made.host(name, at, 100 - 2 * at, "python_function" if "(" in name else "cpu_op")
    made.device(60, 10, launched=50)
    found = totals(read(made.write(tmp_path / "t.json")))
    assert (list(found.by[OPERATOR]), list(found.by[FRAME])) == ([operator], [code])


def test_a_trace_without_gpu_events(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::mm", 1, 2)]}))
    for traces in ([path], [path, path], [trace(tmp_path / "gpu.json", 2), path]):
        with pytest.raises(GpuExporterError, match=r"cpu\.json: no GPU events"):
            totals(*map(read, traces))


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
    assert text.splitlines() == [
        "GPU time by operator, per step: 450 us in all",
        "  of all      time  launches  operator",
        "    89 %    400 us         1  aten::mm",
        "  and 1 more",
    ]
    _, text = run("top", before, "--by", "cause")
    analysis = run("analyze", before)[1]
    assert text.splitlines()[1] == " of span      time      gaps  cause"
    share = re.findall(r"(\S+ %) +\S+ us .*waiting for the data loader", text)
    assert share
    assert share == re.findall(r"(\S+ %) +\S+ us  waiting for the data loader", analysis)
    report = tmp_path / "kernels.csv"
    report.write_text("Time (%),Total Time (ns),Instances,Name\n100,2000,3,k\n")
    assert run("top", report)[1].splitlines()[2].split() == ["100", "%", "0.002", "ms", "3", "k"]
    report.write_text("nothing\n")
    result = CliRunner().invoke(trace_command, ["top", str(report)])
    assert "no report of kernels" in result.output


def _job(folder: Path, job: Job) -> Path:
    folder.mkdir()
    for rank, made in enumerate(job.traces()):
        made.write(folder / f"rank{rank}.json")
    return folder


def test_jobs_of_several_ranks(tmp_path: Path) -> None:
    """A GPU that becomes slow: the others wait for it, and their collectives transfer as fast as before."""
    before = _job(tmp_path / "before", Job(overlaps=False))
    after = _job(tmp_path / "after", Job(overlaps=False, gpu=lambda _, rank, step: 400.0 * (rank == 2)))
    result = CliRunner().invoke(trace_command, ["diff", str(before), str(after)])
    assert result.exit_code == 0
    assert "Most of it: +3 ms of waiting in collectives for rank 2." in result.stdout.splitlines()
    content = json.loads(CliRunner().invoke(trace_command, ["diff", str(before), str(after), "--json"]).stdout)
    assert (content["before"]["gpus"], content["after"]["gpus"]) == (4, 4)
    (waiting,) = content["changes"]["waiting"]
    assert (waiting["name"], waiting["before_seconds"]) == ("rank 2", 0)
    # 10 layers by 400 us, on three of four GPUs.
    assert waiting["seconds"] == pytest.approx(3000e-6)
    by_class = {row["name"]: row["seconds"] for row in content["changes"]["class"]}
    assert by_class == pytest.approx({"gemm": 1000e-6, "communication": 0, "optimizer": 0})
    patterns = [str(folder / "rank*.json") for folder in (after, before)]
    back = CliRunner().invoke(trace_command, ["diff", *patterns]).stdout
    assert "Most of it: -3 ms of waiting in collectives for rank 2." in back.splitlines()


def test_other_numbers_of_gpus_are_said(tmp_path: Path) -> None:
    found = [
        totals(*(read(path) for path in sorted(_job(tmp_path / f"{ranks}", Job(ranks=ranks)).iterdir())))
        for ranks in (1, 2)
    ]
    assert list(lines(diff(*found)))[1] == "The job had 1 GPUs, and now has 2: times are means over them."
    assert found[1].by[WAITING] == {}


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    """A folder with an older file of a rank would count it twice."""
    folder = _job(tmp_path / "job", Job())
    (folder / "rank1-old.json").write_bytes((folder / "rank1.json").read_bytes())
    result = CliRunner().invoke(trace_command, ["diff", str(folder), str(folder)])
    assert result.exit_code
    assert "are both of rank 1: give one file of each rank" in result.output


def test_a_folder_without_traces(tmp_path: Path) -> None:
    result = CliRunner().invoke(trace_command, ["diff", str(tmp_path), str(tmp_path)])
    assert result.exit_code == 2
    assert "has no file that ends in .json" in result.output


def test_totals_without_any_event_of_the_host(tmp_path: Path) -> None:
    made = SyntheticTrace()
    made.device(0, 50, correlation=1)
    found = totals(read(made.write(tmp_path / "t.json"))).by
    assert {key: list(found[key]) for key in ("operator", "kernel", "code")} == {
        "operator": ["(no operator)"],
        "kernel": ["sm90_gemm"],
        "code": ["(no Python frame)"],
    }
