"""Waiting in collectives that Python calls: what counts as waiting, in which steps, and what is left alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from gpu_exporter.training import StepTimer, clocks
from tests.unit.training.conftest import Time
from tests.unit.training.test_clocks import Event, Gpu


class Module:
    """`torch.nn.Module` with parameters, whose placements are those of a DTensor, `S` for a shard."""

    placements: ClassVar[tuple[str, ...]] = ("",)

    def modules(self) -> list[Any]:
        return [self]

    def parameters(self) -> list[Any]:
        shards = [SimpleNamespace(is_shard=lambda kind=kind: kind == "S") for kind in self.placements[0]]
        return [SimpleNamespace(placements=shards)] if shards else [SimpleNamespace()]


class FSDPLinear(Module):
    """A layer that FSDP2 shards."""

    placements = ("S",)


class FSDPHybrid(Module):
    """A layer that FSDP2 shards within nodes, with replicas on other nodes."""

    placements = ("RS",)


class FSDPAndTensor(Module):
    """The same, sharded by FSDP2 as well."""

    placements = ("SS",)


class DTensorOnly(Module):
    """A layer of tensor parallelism with DTensor."""

    placements = ("S",)


class DeepSpeedEngine(Module):
    """Collectives on streams of its own."""

    __module__ = "deepspeed.runtime.engine"


class Work:
    """`torch.distributed.Work`."""

    def wait(self) -> str:
        Work.time.pass_(0.25)
        return "waited"

    time: ClassVar[Time]


class ProcessGroup:
    """`torch.distributed.ProcessGroup`."""

    def allreduce(self, tensors: list[Any], options: Any = None) -> Work:
        Work.time.pass_(0.5)
        return Work()


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch, time: Time) -> Iterator[ModuleType]:
    """PyTorch with a process group of two ranks, in which a collective takes half a second, and its end a quarter."""
    Work.time = time
    modules = {
        name: ModuleType(name)
        for name in ("torch", "torch.autograd", "torch.nn", "torch.nn.parallel", "torch.distributed")
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    fake = modules["torch.distributed"]
    fake.__dict__["torch"] = modules["torch"]
    fake.__dict__.update(
        ProcessGroup=ProcessGroup,
        Work=Work,
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 0,
        get_world_size=lambda: 2,
    )
    modules["torch.autograd"].__dict__["Variable"] = None
    modules["torch.nn.parallel"].__dict__["DistributedDataParallel"] = type("Parallel", (), {})
    modules["torch.nn"].__dict__["Module"] = Module
    modules["torch"].__dict__.update(
        _C=SimpleNamespace(), nn=modules["torch.nn"], distributed=fake, Tensor=type("Tensor", (), {})
    )
    names = [f"gpu_exporter.training.{name}" for name in ("ddp", "collectives")]
    for name in names:
        sys.modules.pop(name, None)
    yield fake
    for name in names:
        sys.modules.pop(name, None)


def reduce() -> str:
    return ProcessGroup().allreduce([]).wait()


def test_a_collective_and_its_end_are_waiting(distributed: ModuleType, time: Time) -> None:
    originals = ProcessGroup.allreduce, Work.wait
    timer = StepTimer("job")
    timer.watch(Module())
    for _ in range(2):
        with timer.step(), timer.phase("forward"):
            time.pass_(1.0)
            assert reduce() == "waited"
    message = timer.message()
    assert message["phase_seconds"] == pytest.approx({"forward": 2.0, "waiting": 1.5})
    assert message["self"]["sum"] == pytest.approx(2.0)
    timer.close()
    assert (ProcessGroup.allreduce, Work.wait) == originals


def test_collectives_beside_those_of_ddp(distributed: ModuleType, time: Time) -> None:
    """Of a loop that reduces its loss, or of SyncBatchNorm. A step without one has a self time all the same."""
    parallel: Any = sys.modules["torch.nn.parallel"].DistributedDataParallel
    parallel.register_forward_hook = lambda model, hook: None
    originals = ProcessGroup.allreduce, Work.wait
    timer = StepTimer("job")
    for model in (parallel(), parallel(), Module()):  # the latter may be a part that each rank has for itself
        timer.watch(model)
    for reduces in (True, False):
        with timer.step(), timer.phase("forward"):
            time.pass_(1.0)
            if reduces:
                assert reduce() == "waited"
    message = timer.message()
    assert message["phase_seconds"] == pytest.approx({"forward": 2.0, "waiting": 0.75})
    assert message["self"]["sum"] == pytest.approx(2.0)
    timer.close()
    assert (ProcessGroup.allreduce, Work.wait) == originals


def test_a_step_without_a_collective_has_no_self_time(distributed: ModuleType, time: Time) -> None:
    """Its collectives are those of compiled code, or it only accumulates gradients."""
    with StepTimer("job") as timer:
        timer.watch(Module())
        for number in range(3):
            with timer.step():
                time.pass_(1.0)
                if number == 1:
                    reduce()
        assert timer.message()["self"]["sum"] == pytest.approx(1.0)
        assert timer.message()["step"]["sum"] == pytest.approx(3.75)


def test_other_threads_do_not_wait_for_the_loop(distributed: ModuleType, time: Time) -> None:
    with StepTimer("job") as timer:
        timer.watch(Module())
        with timer.step():
            thread = Thread(target=reduce)
            thread.start()
            thread.join()
        assert timer.message()["phase_seconds"] == {}


def test_a_collective_that_fails_ends_the_waiting(
    distributed: ModuleType, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(work: Work) -> None:
        raise RuntimeError("timed out")

    monkeypatch.setattr(Work, "wait", fail)
    with StepTimer("job") as timer:
        timer.watch(Module())
        with timer.step():
            with pytest.raises(RuntimeError, match="timed out"):
                reduce()
            time.pass_(1.0)
        assert timer.message()["phase_seconds"] == pytest.approx({"waiting": 0.5})


def test_a_library_that_replaces_a_method_meanwhile_keeps_its_own(
    distributed: ModuleType, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Work, "wait", Work.wait)  # restored at the end
    with StepTimer("job") as timer:
        timer.watch(Module())
        with timer.step():
            inner = Work.wait

            def theirs(work: Work) -> str:
                return inner(work)

            Work.wait = theirs  # type: ignore[assignment, method-assign]
    assert Work.wait is theirs
    assert reduce() == "waited"


@pytest.mark.parametrize(
    ("model", "is_known"),
    [
        (Module, True),
        (FSDPLinear, True),
        (FSDPHybrid, True),
        (FSDPAndTensor, False),
        (DTensorOnly, False),
        (DeepSpeedEngine, False),
        (SimpleNamespace, False),
    ],
)
def test_models_whose_collectives_are_seen(
    distributed: ModuleType, time: Time, model: type[Any], is_known: bool
) -> None:
    with StepTimer("job") as timer:
        timer.watch(model())
        with timer.step():
            reduce()
        assert ("self" in timer.message()) == is_known


@pytest.mark.parametrize("sampled_first", [True, False])
def test_profiled_steps_take_precedence(distributed: ModuleType, time: Time, sampled_first: bool) -> None:
    timer = StepTimer("job")
    if sampled_first:
        timer.sample_every(2)
    timer.watch(Module())
    if not sampled_first:
        timer.sample_every(2)
    assert timer.recorder.watch is None
    assert timer.recorder.beside is None
    with timer.step():
        reduce()
    assert "self" not in timer.message()


class StreamedEvent(Event):
    """`torch.cuda.Event`; the stream that waits for it waits a tenth of a second."""

    def wait(self, stream: str | None = None) -> None:
        self._gpu.launch(0.1)


class Cuda:
    """The parts of PyTorch that wait for events, by the module in which they are, and the current stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, torch: ModuleType) -> None:
        self.gpu, self.stream = Gpu(), "main"
        module: Any = ModuleType("torch.cuda")
        module.is_initialized = lambda: True
        module.is_current_stream_capturing = lambda: False
        module.current_device = lambda: 0
        module.current_stream = lambda: self.stream
        module.get_device_properties = lambda index: SimpleNamespace(uuid="0000")
        module.Event = type("Event", (StreamedEvent,), {"__init__": lambda event, **_: Event.__init__(event, self.gpu)})
        torch.__dict__["cuda"] = module
        monkeypatch.setattr(Event, "record", lambda event, stream: setattr(event, "at", self.gpu.queued))
        self.event = module.Event
        streams: dict[str, Any] = {"__name__": "torch.cuda.streams"}
        exec("def wait_event(stream, event):\n    event.wait(stream)", streams)
        self._wait_event = streams["wait_event"]

    def wait(self, module: str, stream: str) -> None:
        """Let code of a module tell a stream to wait for an event."""
        caller: dict[str, Any] = {"__name__": module, "wait_event": self._wait_event}
        exec("def wait(stream, event):\n    wait_event(stream, event)", caller)
        caller["wait"](stream, self.event())


FSDP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


@pytest.mark.parametrize(
    ("module", "target", "current", "waiting"),
    [
        (FSDP, "main", "main", 0.2),
        (FSDP, "side", "main", 0.1),
        ("apex.prefetcher", "main", "main", 0.1),
        (FSDP, "main", "side", 0.0),
    ],
)
def test_waits_of_the_gpu(
    distributed: ModuleType,
    time: Time,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    target: str,
    current: str,
    waiting: float,
) -> None:
    """The stream of the loop waits in its own collectives, and for those that PyTorch queues on other streams."""
    cuda = Cuda(monkeypatch, distributed.__dict__["torch"])
    monkeypatch.setattr(ProcessGroup, "allreduce", lambda group, tensors: cuda.gpu.launch(0.1))
    monkeypatch.setattr(clocks, "perf_counter", time)
    timer = StepTimer("job")
    timer.watch(Module())
    with timer.step():
        cuda.gpu.launch(1.0)
        time.pass_(1e-4)
        cuda.stream = current
        ProcessGroup().allreduce([])
        time.pass_(1e-4)
        cuda.wait(module, target)
        cuda.stream = "main"
        time.pass_(1e-4)
        cuda.gpu.launch(1.0)
    cuda.gpu.arrived = 10.0
    timer.recorder.collect()
    timer.close()
    message = timer.message()
    assert message["step"]["sum"] == pytest.approx(2.2)
    assert message["phase_seconds"].get("waiting", 0.0) == pytest.approx(waiting)
    if waiting:
        assert message["self"]["sum"] == pytest.approx(2.2 - waiting)
    else:
        assert "self" not in message


@pytest.mark.parametrize(
    ("seconds", "collectives", "one_of"), [(0.02, 1, 32), (0.02, 80, 128), (0.2, 1, 8), (0.2, 80, 8), (2.0, 1, 1)]
)
def test_collectives_are_measured_in_some_steps(
    distributed: ModuleType, time: Time, monkeypatch: pytest.MonkeyPatch, seconds: float, collectives: int, one_of: int
) -> None:
    cuda = Cuda(monkeypatch, distributed.__dict__["torch"])
    monkeypatch.setattr(clocks, "perf_counter", time)
    original, replaced = cuda.event.wait, []
    timer = StepTimer("job")
    timer.watch(Module())
    for _ in range(400):
        with timer.step():
            replaced.append(cuda.event.wait is not original)
            cuda.gpu.launch(seconds / 2)
            for _ in range(collectives):
                time.pass_(1e-4)
                cuda.wait(FSDP, "main")
                cuda.gpu.queued -= 0.1
            cuda.gpu.queued += seconds / 2
            time.pass_(1e-4)
        cuda.gpu.arrived = cuda.gpu.queued
    timer.close()
    assert [number for number, was in enumerate(replaced) if was and number >= 8] == [
        number for number in range(8, 400) if number % one_of == 0
    ]
    assert cuda.event.wait is original
