"""Reports of Nsight Systems and Nsight Compute as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces import kernel_reports
from gpu_exporter.traces.kernel_reports import KernelReport, read

SYSTEMS = """\
Generating SQLite file report.sqlite from report.nsys-rep
Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
25.0,250000,5,50000.0,50000.0,40000,60000,5000.0,void small<int>(int)
75.0,750000,3,250000.0,250000.0,240000,260000,5000.0,"void gemm<float, 2>(float*, int)"

Processing [report.sqlite] with [cuda_api_sum.py]...
"""
COMPUTE = """\
==PROF== Connected to process 4711
"ID","Process ID","Process Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","python","copy","GPU Speed Of Light Throughput","Duration","usecond","1,000"
"0","1","python","copy","GPU Speed Of Light Throughput","Memory Throughput","%","91.5"
"0","1","python","copy","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","12.0"
"0","1","python","copy","Occupancy","Achieved Occupancy","%","75"
"1","1","python","gemm","GPU Speed Of Light Throughput","Duration","usecond","3,000"
"1","1","python","gemm","GPU Speed Of Light Throughput","Memory Throughput","%","40"
"1","1","python","gemm","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","90"
"2","1","python","copy","GPU Speed Of Light Throughput","Duration","usecond","1,000"
"2","1","python","copy","GPU Speed Of Light Throughput","Memory Throughput","%","n/a"
"""
RAW = """\
"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
"","","ns","%","%","inst","inst"
"0","chase","2000","10","20","17.5","0.5"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "report.csv"
    path.write_text(text)
    return path


def test_times_of_nsys_stats(tmp_path: Path) -> None:
    found = read(written(tmp_path, SYSTEMS))
    assert found == (
        KernelReport("void gemm<float, 2>(float*, int)", 3, 750e-6),
        KernelReport("void small<int>(int)", 5, 250e-6),
    )
    assert {kernel.bound for kernel in found} == {""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Time(%),Total Time (us),Count,Name\n100,1500,2,k\n", [("k", 2, 1.5e-3)]),
        ("Total Time (ms),Name\n1.5,k\n", [("k", 0, 1.5e-3)]),
        ("Total Time (s),Instances,Category,Operation\n2,1,CUDA_KERNEL,k\n", [("k", 1, 2.0)]),
        ('Total Time,Instances,Symbol\n"1,500","1,200",k\n', [("k", 1200, 1.5e-6)]),  # ns, and the name is last
        ("Total Time (ns),Instances,Name\n5,n/a,k\n", [("k", 0, 5e-9)]),
        (
            "Total Time (ns),Instances,Name\n0,1,idle\n-1,1,bad\nx,1,bad\n1e18,1,bad\n7,1,k\n",
            [("k", 1, 7e-9), ("idle", 1, 0.0)],
        ),
        ("Total Time (ns),Instances,Name\n5,1,k\n\n6,1,next table\n", [("k", 1, 5e-9)]),
        ("Total Time (ns),Instances,Name\n5,1,b\n5,1,a\n", [("a", 1, 5e-9), ("b", 1, 5e-9)]),
    ],
)
def test_other_units_and_columns(tmp_path: Path, text: str, expected: Sequence[tuple[str, int, float]]) -> None:
    found = read(written(tmp_path, text))
    assert [(kernel.name, kernel.count) for kernel in found] == [(name, count) for name, count, _ in expected]
    assert [kernel.seconds for kernel in found] == pytest.approx([seconds for _, _, seconds in expected])


@pytest.mark.parametrize(
    ("unit", "seconds"), [("ns", 3e-9), ("usecond", 3e-6), ("ms", 3e-3), (" second ", 3.0), ("?", 3e-9)]
)
def test_units_of_nsight_compute(tmp_path: Path, unit: str, seconds: float) -> None:
    text = f"ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n0,k,Duration,{unit},3\n1,k,Duration,{unit},-5\n"
    (kernel,) = read(written(tmp_path, text))
    assert (kernel.count, kernel.seconds) == pytest.approx((2, seconds))


DETAILS = "ID,Kernel Name,Metric Name,Metric Unit,Metric Value\n"
SPEED = (
    DETAILS
    + """\
0,k,Duration,us,1
0,k,Memory Throughput,%,40
1,k,Duration,us,3
1,k,Memory Throughput,%,80
1,k,Memory Throughput,%,99
"""
)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (SPEED, 0.7),  # weighted by time; the first value of a metric counts
        (SPEED.replace("us,1", "us,0").replace("us,3", "us,0"), 0.6),  # all weigh the same without times
        (SPEED.replace("Memory Throughput", "Memory [%]"), 0.7),
        (SPEED.replace("0,k,Memory Throughput,%,40", "0,k"), 0.8),  # a line that is cut off
        (DETAILS + "0,k,Duration,us,1\n", None),
    ],
)
def test_means_of_several_launches(tmp_path: Path, text: str, memory: float | None) -> None:
    (kernel,) = read(written(tmp_path, text))
    assert kernel.memory == (None if memory is None else pytest.approx(memory))
    assert kernel.bound == ""


def test_a_page_without_numbers_of_launches(tmp_path: Path) -> None:
    """Each line is a launch then."""
    text = "Kernel Name,Metric Name,Metric Unit,Metric Value\na,Duration,us,3\nb,Duration,us,1\nb,Duration,us,1\n"
    found = read(written(tmp_path, text))
    assert [(kernel.name, kernel.count) for kernel in found] == [("a", 1), ("b", 2)]
    assert [kernel.seconds for kernel in found] == pytest.approx([3e-6, 2e-6])


def test_a_raw_page_without_units(tmp_path: Path) -> None:
    (kernel,) = read(written(tmp_path, RAW.replace('"","","ns","%","%","inst","inst"\n', "")))
    assert (kernel.seconds, kernel.memory) == pytest.approx((2e-6, 0.2))


def test_limits_of_nsight_compute(tmp_path: Path) -> None:
    """Launches of one kernel together, weighted by time; a value that is missing counts nowhere."""
    gemm, copy = read(written(tmp_path, COMPUTE))
    assert (gemm.name, gemm.count, gemm.bound) == ("gemm", 1, kernel_reports.COMPUTE_BOUND)
    assert (copy.name, copy.count, copy.bound) == ("copy", 2, kernel_reports.MEMORY_BOUND)
    assert (copy.seconds, copy.memory, copy.occupancy) == pytest.approx((2e-3, 0.915, 0.75))


def test_stall_reasons_of_raw_pages(tmp_path: Path) -> None:
    (kernel,) = read(written(tmp_path, RAW))
    assert kernel.bound == kernel_reports.LATENCY_BOUND
    assert list(kernel.stalls.items()) == [("long scoreboard", 17.5), ("barrier", 0.5)]
    assert (kernel.compute, kernel.memory, kernel.occupancy) == (0.1, 0.2, None)
    assert kernel.seconds == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("compute", "memory", "bound"),
    [
        (0.95, 0.9, "balanced"),
        (0.9, 0.95, "balanced"),
        (0.7, 0.6, "balanced"),
        (0.7, 0.5999, "compute-bound"),
        (0.59, 0.2, "latency-bound"),
        (0.2, 0.59, "latency-bound"),
        (0.6, 0.2, "compute-bound"),
        (0.3, 0.6, "memory-bound"),
        (None, 0.9, ""),
        (0.9, None, ""),
    ],
)
def test_what_limits_a_kernel(compute: float | None, memory: float | None, bound: str) -> None:
    assert KernelReport("k", 1, 1.0, compute, memory).bound == bound


@given(st.text(alphabet='",\n\r0123456789 .%abc', max_size=200))
def test_any_text_is_one_line_or_a_report(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Behind each head, too."""
    path = tmp_path_factory.mktemp("csv") / "report.csv"
    for head in ("", SYSTEMS.split("25.0")[0], COMPUTE.split('"0"')[0], RAW.split('"0"')[0]):
        path.write_text(head + text)
        try:
            kernels = read(path)
        except GpuExporterError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert all(kernel.seconds >= 0 for kernel in kernels)
