"""Why a GPU was idle: single gaps between two kernels, by what the host did before the launch that ended them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.traces.analysis import analyze
from gpu_exporter.traces.reader import read
from gpu_exporter.traces.result import AnalysisResult
from tests.support.traces import AUTOGRAD, MAIN, SyntheticTrace

COPY = "Memcpy HtoD (Pinned -> Device)"
Causes = dict[str, float]  # cause -> us


def _result(folder: Path, trace: SyntheticTrace) -> AnalysisResult:
    return analyze([read(trace.write(folder / "trace.json"))], details=True)


def _gap(
    gap: float,
    launch: float,
    call: float = 5,
    host: Callable[[SyntheticTrace], None] = lambda _: None,
    thread: int = MAIN,
    **second: Any,
) -> SyntheticTrace:
    """Return a kernel from 0 to 100 us, and another after a gap. Its launch begins at a time, and takes `call` us."""
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    host(trace)
    trace.device(100 + gap, 100, correlation=trace.launch(launch, call, thread=thread), **second)
    return trace


def _sync(*spans: tuple[float, float], name: str = "cudaStreamSynchronize") -> Callable[[SyntheticTrace], None]:
    def add(trace: SyntheticTrace) -> None:
        for start, end in spans:
            trace.host(name, start, end - start, "cuda_runtime")

    return add


def _frame(name: str, start: float, end: float) -> Callable[[SyntheticTrace], None]:
    return lambda trace: trace.host(name, start, end - start)


def _both(*parts: Callable[[SyntheticTrace], None]) -> Callable[[SyntheticTrace], None]:
    def add(trace: SyntheticTrace) -> None:
        for part in parts:
            part(trace)

    return add


def _unlaunched() -> SyntheticTrace:
    trace = SyntheticTrace()
    for start in (0, 300):
        trace.device(start, 100, correlation=-1)
    return trace


def _graph() -> SyntheticTrace:
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.device(6200, 100, correlation=trace.launch(140, 6050, "cudaGraphLaunch"))
    return trace


CASES: dict[str, tuple[SyntheticTrace, Causes]] = {
    # The work was launched before the gap began.
    "launched long before": (_gap(50, 10), {"dependency": 50}),
    "launched long before, and a GPU needs so long between kernels": (_gap(10, 10), {"launch_overhead": 10}),
    "a little longer": (_gap(10.001, 10), {"dependency": 10.001}),
    "launched just before, the call takes the first half": (
        _gap(50, 90, 35), {"launch_overhead": 25, "dependency": 25}
    ),
    # The rest of the call, and what comes after, is launch overhead; what comes before belongs to the host.
    "launched late, and started at once": (_gap(500, 600), {"launch_overhead": 500}),
    "launched late, and started late": (_gap(500, 500, 20), {"launch_overhead": 420, "dependency": 80}),
    "launched late, and started soon": (_gap(500, 570, 20), {"launch_overhead": 500}),
    "a call that outlives the gap": (_gap(500, 550, 90), {"launch_overhead": 500}),
    # Launching does not take so long: other code does.
    "a long time without frames": (_gap(1100.001, 1100.001, 100), {"launch_overhead": 100, "unknown": 1000.001}),
    "just not as long": (_gap(1100, 1100, 100), {"launch_overhead": 1100}),
    "a long time with a frame": (
        _gap(2000, 2095, host=_frame("train.py(3): main", 100, 1500)),
        {"launch_overhead": 5, "python": 1400, "unknown": 595},
    ),
    "a frame that names its cause": (
        _gap(500, 600, host=_frame("train.py(3): load_batch", 200, 500)), {"data_loading": 300, "launch_overhead": 200}
    ),
    "a launch by a frame that names its cause": (
        _gap(50, 120, 5, _frame("train.py(3): load_batch", 50, 160)), {"data_loading": 25, "dependency": 25}
    ),
    # Another thread launches, which has no frames: those of the main thread count.
    "launched by another thread": (
        _gap(2000, 2100, host=_frame("train.py(3): main", 50, 1500), thread=AUTOGRAD), {"python": 1400, "unknown": 600}
    ),
    "launched by a thread without any other event, in no time": (
        _gap(500, 600, call=0, thread=AUTOGRAD), {"launch_overhead": 500}
    ),
    # The first launch of a kernel loads it.
    "a launch of a millisecond": (_gap(1000, 100, 1000), {"launch_overhead": 1000}),
    "pool, managed memory, segments, and XLA's allocator": (
        _gap(
            5000,
            4100,
            host=_both(
                _sync((100, 1100), name="cudaMallocAsync"),
                _sync((1100, 2100), name="cuMemAllocManaged"),
                _sync((2100, 3100), name="cuMemCreate"),
                _frame("Build buffer allocations", 3100, 4100),
            ),
        ),
        {"launch_overhead": 5, "dependency": 995, "allocation": 4000},
    ),
    "a call that loads kernels first": (
        _gap(
            5000,
            5095,
            host=_both(
                _sync((100, 2100), name="cudaStreamCreateWithFlags"),
                _sync((2100, 5095), name="cudaOccupancyMaxActiveBlocksPerMultiprocessor"),
            ),
        ),
        {"launch_overhead": 5, "compilation": 4995},
    ),
    "the same where it is short": (
        _gap(500, 595, host=_sync((100, 595), name="cudaOccupancyMaxActiveBlocksPerMultiprocessor")),
        {"launch_overhead": 500},
    ),
    "arrays of JAX, while the GPU is idle": (
        _gap(5000, 5095, host=_frame("jax/_src/api.py(3165): try_to_block", 100, 5095)),
        {"launch_overhead": 5, "unknown": 4995},
    ),
    "a launch that takes longer": (_gap(6100, 140, 6050), {"launch_overhead": 40, "compilation": 6060}),
    "a launch that takes longer, after a wait": (
        _gap(6100, 140, 6050, host=_sync((10, 102))), {"synchronisation": 40, "compilation": 6060}
    ),
    "a large graph": (_graph(), {"launch_overhead": 6100}),
    "copies": (_gap(50, 90, 60, name=COPY, category="gpu_memcpy"), {"copies": 50}),
    # A wait that leaves the GPU without work causes what follows.
    "a wait": (_gap(500, 595, host=_sync((10, 102))), {"synchronisation": 500}),
    "a wait of an operator of the framework": (
        _gap(500, 595, host=_both(lambda trace: trace.host("aten::item", 5, 100, "cpu_op"), _sync((10, 102)))),
        {"synchronisation": 500},
    ),
    "a wait that ended while the GPU had work": (_gap(500, 595, host=_sync((10, 70))), {"launch_overhead": 500}),
    # Allocations wait only if the GPU works meanwhile.
    "an allocation while the GPU is idle": (
        _gap(500, 595, host=_sync((110, 120), name="cuMemAlloc")), {"allocation": 10, "launch_overhead": 490}
    ),
    "an allocation that waits": (_gap(500, 595, host=_sync((10, 102), name="cudaFree")), {"allocation": 500}),
    "a wait during the gap": (
        _gap(500, 595, host=_sync((200, 400))), {"launch_overhead": 0, "synchronisation": 500}
    ),
    "a wait, then a frame that names its cause": (
        _gap(500, 595, host=_both(_sync((10, 102)), _frame("train.py(3): load_batch", 200, 500))),
        {"data_loading": 300, "synchronisation": 200},
    ),
    "a wait in a frame that names its cause": (
        _gap(500, 595, host=_both(_frame("train.py(3): load_batch", 5, 300), _sync((10, 102)))),
        {"data_loading": 500},
    ),
    "a long time after a wait": (_gap(2000, 2095, host=_sync((10, 102))), {"synchronisation": 7, "unknown": 1993}),
    "a wait of another thread": (
        _gap(500, 595, host=lambda trace: trace.host("cudaStreamSynchronize", 10, 92, "cuda_runtime", AUTOGRAD)),
        {"launch_overhead": 500},
    ),
    "another call": (_gap(500, 595, host=_sync((10, 102), name="cudaEventRecord")), {"launch_overhead": 500}),
    "no launch in the file": (_unlaunched(), {"unknown": 200}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_gap(tmp_path: Path, case: str) -> None:
    trace, expected = CASES[case]
    (rank,) = _result(tmp_path, trace).ranks
    found = {cause.cause: cause.seconds * 1e6 for cause in rank.idle_causes}
    assert found == pytest.approx({cause: spent for cause, spent in expected.items() if spent})
    assert sum(found.values()) == pytest.approx(rank.idle_ratio * rank.span_seconds * 1e6)


@pytest.mark.parametrize(
    ("launches", "expected"), [(8, {"synchronisation": 230}), (9, {"synchronisation": 30, "launch_overhead": 200})]
)
def test_a_wait_causes_the_gaps_before_eight_launches(tmp_path: Path, launches: int, expected: Causes) -> None:
    """The host is ahead of the GPU again then, or it is too slow without waits, too."""
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    trace.host("cudaStreamSynchronize", 10, 92, "cuda_runtime")
    for number in range(launches - 1):
        trace.device(130 + 10 * number, 10, launched=125 + number)
    end = 130 + 10 * (launches - 1)
    trace.device(end + 200, 10, launched=end + 195)
    (rank,) = _result(tmp_path, trace).ranks
    assert {one.cause: one.seconds * 1e6 for one in rank.idle_causes} == pytest.approx(expected)


def test_folded_stacks_of_idle_time(tmp_path: Path) -> None:
    """Cause, then frames from the outermost to the innermost; several GPUs of a file are added."""
    trace = _gap(500, 600, 0, _both(_frame("a.py(1): f;g", 50, 650), _frame("a.py(2): load_batch", 200, 500)))
    trace.device(0, 100, launched=-20, device=1)
    trace.device(600, 100, correlation=trace.launch(600, 0), device=1)
    found = _result(tmp_path, trace).idle_stacks[0]
    assert found == pytest.approx({
        "launch_overhead;a.py(1): f:g": 400e-6,
        "data_loading;a.py(1): f:g;a.py(2): load_batch": 600e-6,
    })  # fmt: skip
    assert _result(tmp_path, _unlaunched()).idle_stacks == {0: {"unknown;(no frames)": pytest.approx(200e-6)}}
    assert _result(tmp_path, _gap(50, 10)).idle_stacks == {0: {"dependency;(no frames)": pytest.approx(50e-6)}}


def test_the_most_costly_frames_come_first_and_five_are_named(tmp_path: Path) -> None:
    trace = SyntheticTrace()
    trace.device(0, 100, launched=-20)
    for number in range(7):
        trace.host(f"a.py({number}): load_batch", 100 + 100 * number, 20 + 10 * number)
    trace.device(900, 100, launched=900)
    (rank,) = _result(tmp_path, trace).ranks
    frames = next(cause.frames for cause in rank.idle_causes if cause.cause == "data_loading")
    assert frames == tuple(f"a.py({number}): load_batch" for number in (6, 5, 4, 3, 2))
