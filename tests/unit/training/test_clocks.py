"""Times of the GPU from CUDA events: never waited for, shared where nothing ran between, none during a capture."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from gpu_exporter.training import StepTimer, clocks
from tests.unit.training.conftest import Time


class Gpu:
    """A GPU whose queue runs behind the CPU. An event passes when the GPU arrives at it; times in seconds."""

    def __init__(self) -> None:
        self.queued, self.arrived = 0.0, 0.0
        self.events: list[Event] = []
        self.capturing = self.failed = False

    def launch(self, seconds: float) -> None:
        """Queue work, which takes the CPU no time."""
        self.queued += seconds


class Event:
    """`torch.cuda.Event`, without `synchronize`, so that to wait would raise."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.at = gpu, -1.0
        gpu.events.append(self)

    def record(self, stream: str) -> None:
        self._check()
        assert stream == "default", "an event with time is illegal during a capture"
        self.at = self._gpu.queued

    def query(self) -> bool:
        self._check()
        assert not self._gpu.capturing, "a query breaks the capture"
        return self._gpu.arrived >= self.at

    def _check(self) -> None:
        if self._gpu.failed:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def elapsed_time(self, other: Event) -> float:
        if not (self.query() and other.query()):
            raise RuntimeError("device not ready")
        return (other.at - self.at) * 1000


@pytest.fixture(params=["public", "c"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, time: Time) -> Gpu:
    """A GPU that is used through PyTorch's public API, or through the functions in C below it."""
    gpu = Gpu()
    cuda: Any = ModuleType("torch.cuda")
    cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: gpu.capturing
    cuda.current_device = lambda: 0
    cuda.current_stream = lambda: "side" if gpu.capturing else "default"
    cuda.get_device_properties = lambda index: type("Properties", (), {"uuid": "0000"})
    cuda.Event = lambda enable_timing: Event(gpu)
    torch: Any = ModuleType("torch")
    torch.cuda = cuda
    torch._C = ModuleType("torch._C")
    if request.param == "c":
        torch._C._CudaEventBase = Event
        torch._C._cuda_getDevice = lambda: 0
        torch._C._cuda_getCurrentRawStream = lambda device: 0x7F00 if gpu.capturing else 0
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(clocks, "perf_counter", time)
    return gpu


def step(timer: StepTimer, gpu: Gpu, time: Time, forward: float = 0.2) -> None:
    """A step of the GPU that the CPU queues within 0.4 ms."""
    with timer.step():
        with timer.phase("forward"):
            gpu.launch(forward)
            time.pass_(1e-4)
        with timer.phase("backward"):
            gpu.launch(0.5)
            time.pass_(1e-4)
        time.pass_(1e-4)
        with timer.waiting():
            gpu.launch(0.1)
            time.pass_(1e-4)


def test_times_are_those_of_the_gpu(gpu: Gpu, time: Time) -> None:
    timer = StepTimer("job")
    for forward in (0.2, 0.4):
        step(timer, gpu, time, forward)
    assert timer.message()["steps"] == 2
    assert sum(timer.message()["step"]["counts"]) == 0  # the GPU has not done anything yet
    gpu.arrived = 0.8
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(0.8)
    gpu.arrived = 10.0
    timer.recorder.collect()
    message = timer.message()
    assert message["step"]["sum"] == pytest.approx(1.8)
    assert message["self"]["sum"] == pytest.approx(1.6)
    assert message["phase_seconds"] == pytest.approx({"forward": 0.6, "backward": 1.0, "waiting": 0.2})


def test_events_are_reused_and_shared(gpu: Gpu, time: Time) -> None:
    """The end of a phase is the begin of the next: five events for three phases and a step."""
    timer = StepTimer("job")
    for _ in range(50):
        step(timer, gpu, time)
        gpu.arrived = gpu.queued
    assert len(gpu.events) <= 12
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(50 * 0.8)


def test_a_gpu_far_behind(gpu: Gpu, time: Time) -> None:
    """Memory stays bounded if the GPU hangs."""
    timer = StepTimer("job")
    for _ in range(1000):
        step(timer, gpu, time)
    assert len(timer.recorder._pending) <= 256
    assert timer.message()["steps"] == 1000


def test_the_capture_of_a_graph(gpu: Gpu, time: Time) -> None:
    timer = StepTimer("job")
    step(timer, gpu, time)
    gpu.capturing = True
    step(timer, gpu, time)
    gpu.capturing = False
    step(timer, gpu, time)
    step(timer, gpu, time)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert timer.message()["steps"] == 4
    assert timer.message()["step"]["sum"] == pytest.approx(3 * 0.8)  # all but the captured one


def test_a_capture_within_a_step(gpu: Gpu, time: Time) -> None:
    """The step has its time, and so have the phases before and after."""
    timer = StepTimer("job")
    with timer.step(), timer.phase("whole"):
        for name, captured in (("forward", False), ("capture", True), ("backward", False)):
            gpu.capturing = captured
            with timer.phase(name):
                gpu.launch(0.25)
                time.pass_(1e-4)
            gpu.capturing = False
            time.pass_(1e-4)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    message = timer.message()
    assert message["step"]["sum"] == pytest.approx(0.75)
    assert message["phase_seconds"] == pytest.approx({"whole": 0, "forward": 0.25, "capture": 0, "backward": 0.25})


def short_steps(gpu: Gpu, time: Time, count: int) -> StepTimer:
    timer = StepTimer("job", rank=0, world_size=2)
    for _ in range(count):
        with timer.step():
            with timer.phase("forward"):
                gpu.launch(0.010)
                time.pass_(1e-4)
            with timer.waiting():
                gpu.launch(0.004)
                time.pass_(1e-4)
        gpu.arrived = gpu.queued
    timer.recorder.collect()
    return timer


def test_phases_of_short_steps_are_those_of_one_in_eight(gpu: Gpu, time: Time) -> None:
    """They stand for the others. All steps are timed and counted."""
    message = short_steps(gpu, time, 8 * 25 + 1).message()
    assert sum(message["step"]["counts"]) == 201
    assert message["step"]["sum"] == pytest.approx(201 * 0.014)
    assert 25 <= sum(message["self"]["counts"]) <= 27
    assert message["self"]["sum"] / sum(message["self"]["counts"]) == pytest.approx(0.010)
    assert message["phase_seconds"] == pytest.approx({"forward": 201 * 0.010, "waiting": 201 * 0.004}, rel=0.04)


def test_short_steps_need_few_calls_of_the_driver(gpu: Gpu, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three phases took five events and six times each."""
    calls: Counter[str] = Counter()
    for name in ("record", "query", "elapsed_time"):
        monkeypatch.setattr(Event, name, _counting(calls, name, getattr(Event, name)))
    short_steps(gpu, time, 101)
    assert calls["record"] <= 1.4 * 101
    assert calls["elapsed_time"] <= 1.4 * 101


def _counting(calls: Counter[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return call(*arguments)

    return counted


def test_a_pause_in_a_step_whose_phases_are_not_measured(gpu: Gpu, time: Time) -> None:
    timer = short_steps(gpu, time, 5)
    with timer.step(), timer.phase("forward"):
        gpu.launch(0.010)
        time.pass_(1e-4)
        with timer.checkpoint(), timer.phase("forward"):
            gpu.launch(5.0)
            time.pass_(5.0)
        gpu.launch(0.004)
        time.pass_(1e-4)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(6 * 0.014)
    with timer.step():
        gpu.launch(0.014)
        time.pass_(1e-4)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(7 * 0.014)


def test_an_evaluation_on_the_gpu(gpu: Gpu, time: Time) -> None:
    timer = StepTimer("job")
    step(timer, gpu, time)
    with timer.evaluation():
        gpu.launch(30.0)
        time.pass_(30.0)
    step(timer, gpu, time)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(1.6)
    assert timer.message()["activity_seconds"]["evaluation"] == pytest.approx(30.0)


def test_the_uuid_is_that_of_the_current_gpu(gpu: Gpu, time: Time, tmp_path: Any) -> None:
    with StepTimer("job", socket=tmp_path / "absent.sock") as timer, timer.step():
        pass
    assert timer.message()["uuid"] == "GPU-0000"


def test_without_events(gpu: Gpu, time: Time) -> None:
    timer = StepTimer("job", gpu=False)
    step(timer, gpu, time)
    assert gpu.events == []
    assert timer.message()["step"]["sum"] == pytest.approx(4e-4)


def test_an_error_of_the_gpu_is_left_to_the_loop(gpu: Gpu, time: Time) -> None:
    """Every call raises it from then on; a loop that ends with it must see its own traceback."""
    timer = StepTimer("job")
    step(timer, gpu, time)
    gpu.failed = True
    step(timer, gpu, time)
    assert timer.message()["steps"] == 2
    assert sum(timer.message()["step"]["counts"]) == 0


def test_cuda_that_starts_later(gpu: Gpu, time: Time) -> None:
    """Also during the warm-up: marks of both clocks are never compared."""
    cuda: Any = sys.modules["torch"].cuda
    cuda.is_initialized = lambda: False
    timer = StepTimer("job")
    with timer.step():
        time.pass_(1.0)
    with timer.compile():
        cuda.is_initialized = lambda: True
        with timer.phase("forward"):
            timer.begin_step()
    for _ in range(2):
        step(timer, gpu, time)
    gpu.arrived = gpu.queued
    timer.recorder.collect()
    assert timer.message()["step"]["sum"] == pytest.approx(1.0 + 2 * 0.8)
