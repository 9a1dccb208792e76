"""Self time from profiled steps: from kernels, and through the loop with a profiler that gives them."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from gpu_exporter.training import StepTimer
from gpu_exporter.training.profiled import kernels, own_seconds
from tests.support import torch_python
from tests.unit.training.conftest import Time
from tests.unit.training.test_clocks import Gpu, gpu, step  # noqa: F401  (a fixture)

GATHER, MATMUL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "sm90_xmma_gemm_bf16bf16"


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        ([], None),
        ([(MATMUL, 1.0, 2.0)], 1.0),
        ([(GATHER, 0.0, 1.0), (MATMUL, 1.0, 2.0)], 1.0),
        ([(GATHER, 0.0, 1.5), (MATMUL, 1.0, 2.0)], 1.0),  # the hidden half of the transfer counts for the kernel
        ([(MATMUL, 0.0, 1.0), (GATHER, 0.2, 0.8), (MATMUL, 1.0, 1.5)], 1.5),
        ([(MATMUL, 0.0, 1.0), (MATMUL, 3.0, 4.0)], 4.0),  # idle: the CPU is late
        ([(MATMUL, 0.0, 1.0), (GATHER, 1.0, 2.0), (GATHER, 1.5, 2.5), (MATMUL, 3.0, 4.0)], 2.5),
    ],
)
def test_time_in_which_only_collectives_run_is_waiting(
    found: list[tuple[str, float, float]], seconds: float | None
) -> None:
    assert own_seconds(found) == (None if seconds is None else pytest.approx(seconds))


class Event:
    """An event of the profiler, of PyTorch 2.4 or later."""

    def __init__(self, name: str, begin: float, end: float, device: str = "CUDA") -> None:
        self._name, self._begin, self._end, self._device = name, begin, end, device

    def name(self) -> str:
        return self._name

    def device_type(self) -> Any:
        return type("DeviceType", (), {"name": self._device})

    def start_ns(self) -> int:
        return round(self._begin * 1e9)

    def duration_ns(self) -> int:
        return round((self._end - self._begin) * 1e9)


class Profile:
    """`torch.profiler.profile` that has seen 0.5 s of waiting and 0.3 s of computing."""

    started = 0

    def __init__(self, activities: Any) -> None:
        events = [Event(GATHER, 0.0, 0.5), Event(MATMUL, 0.5, 0.8), Event("aten::mm", 0.0, 9.0, "CPU")]
        self.profiler = type("P", (), {"kineto_results": type("K", (), {"events": lambda: events})})

    def start(self) -> None:
        Profile.started += 1

    def stop(self) -> None:
        pass


@pytest.fixture
def torch(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    torch: Any = sys.modules["torch"]
    torch.cuda.synchronize = lambda: setattr(gpu, "arrived", gpu.queued)
    torch.profiler = type("Profiler", (), {"profile": Profile, "ProfilerActivity": type("A", (), {"CUDA": 1})})
    monkeypatch.setattr(Profile, "started", 0)
    return torch


def sampling(steps: int) -> StepTimer:
    timer = StepTimer("job", rank=0, world_size=2)
    timer.sample_every(steps)
    return timer


def test_one_step_in_many_is_sampled(torch: Any, gpu: Gpu, time: Time) -> None:  # noqa: F811
    timer = sampling(10)
    for _ in range(25):
        for _ in timer.data([1]):
            with timer.step():
                gpu.launch(0.8)
                time.pass_(1e-3)
        gpu.arrived = gpu.queued
    timer.recorder.collect()
    message = timer.message()
    assert message["steps"] == 25
    assert sum(message["step"]["counts"]) == 23  # a profiled step is slower than others
    assert message["step"]["sum"] == pytest.approx(23 * 0.8)
    assert sum(message["self"]["counts"]) == 1  # the first profile also sets up CUPTI
    assert message["self"]["sum"] == pytest.approx(0.3)


def test_the_time_in_the_loader_is_self_time(torch: Any, gpu: Gpu, time: Time) -> None:  # noqa: F811
    def slow_loader() -> Any:
        for _ in range(5):
            time.pass_(0.2)
            yield 1

    timer = sampling(2)
    for _ in timer.data(slow_loader()):
        with timer.step():
            gpu.launch(0.8)
    assert timer.message()["self"]["sum"] == pytest.approx(0.2 + 0.3)


def test_a_profiler_that_is_in_use(torch: Any, gpu: Gpu, time: Time) -> None:  # noqa: F811
    class Busy(Profile):
        def start(self) -> None:
            super().start()
            raise RuntimeError("Profiler is already enabled on this thread")

    torch.profiler.profile = Busy
    timer = sampling(2)
    for _ in range(10):
        step(timer, gpu, time)
    assert Profile.started == 1
    assert timer.message()["steps"] == 10


def test_a_step_that_fails_stops_the_profiler(torch: Any, gpu: Gpu, time: Time) -> None:  # noqa: F811
    timer = sampling(2)
    for _ in range(2):
        step(timer, gpu, time)
    with pytest.raises(RuntimeError), timer.step():
        raise RuntimeError
    step(timer, gpu, time)
    assert Profile.started == 2
    assert sum(timer.message()["self"]["counts"]) == 1


def test_wrong_interval() -> None:
    with pytest.raises(ValueError, match=re.escape("sample_every(1): use 2 or more")):
        sampling(1)


@pytest.mark.parametrize("is_first", [True, False])
def test_samples_take_precedence(torch: Any, gpu: Gpu, time: Time, is_first: bool) -> None:  # noqa: F811
    """Phases with collectives do not matter where steps are profiled, whichever is called first."""
    timer = StepTimer("job", rank=0, world_size=4)
    if is_first:
        timer.sample_every(2)
    timer.mark_collectives("forward")
    timer.know_waiting()
    timer.sample_every(2)
    for _ in range(5):
        step(timer, gpu, time)
    assert sum(timer.message()["self"]["counts"]) == 1


def test_a_single_rank_is_not_profiled(torch: Any, gpu: Gpu, time: Time) -> None:  # noqa: F811
    timer = StepTimer("job")
    timer.sample_every(2)
    for _ in range(5):
        step(timer, gpu, time)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert Profile.started == 0
    assert sum(timer.message()["self"]["counts"]) == 5


def test_old_and_annotated_events() -> None:
    class Old(Event):
        start_ns = property()

        def start_us(self) -> int:
            return round(self._begin * 1e6)

        def duration_us(self) -> int:
            return round((self._end - self._begin) * 1e6)

    class Annotation(Event):
        def is_user_annotation(self) -> bool:
            return True

    found = kernels([Old(MATMUL, 1.0, 2.0), Annotation("nccl:all_gather", 0.0, 9.0)], "CUDA")
    assert [(name, round(begin, 6), round(end, 6)) for name, begin, end in found] == [(MATMUL, 1.0, 2.0)]


@pytest.mark.slow
def test_events_of_the_real_profiler() -> None:
    """Of the CPU, because CI has no GPU; the events have the same methods."""
    program = (
        "import torch; from torch.profiler import profile, ProfilerActivity as A\n"
        "from gpu_exporter.training.profiled import kernels, own_seconds\n"
        "with profile(activities=[A.CPU]) as p: torch.ones(64, 64) @ torch.ones(64, 64)\n"
        "found = kernels(p.profiler.kineto_results.events(), 'CPU')\n"
        "assert any('mm' in name for name, *_ in found), found\n"
        "assert 0 < own_seconds(found) < 60"
    )
    torch_python.run("-c", program)
