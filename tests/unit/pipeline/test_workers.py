"""Workers: which are woken and waited for, and what happens to one that is stuck in a driver call."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.pipeline import workers as workers_module
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.gpu_state import GpuStates
from gpu_exporter.pipeline.settings import CollectionPlan, CollectionSettings, make_plan
from gpu_exporter.pipeline.workers import Workers
from tests.support.tools import LIMIT, until
from tests.unit.pipeline.test_metrics_change import FakeDevice, FakeSource

PLAN = make_plan((m.GPU_TEMP,), CollectionSettings(), xids_reported=True)
NO_PATIENCE = CollectionPlan(PLAN.metrics, PLAN.histograms, PLAN.sums, PLAN.counts, 1.0, 0.0, False)


class GatedDevice(FakeDevice):
    """A GPU whose reads wait for a gate."""

    def __init__(self, index: int, gate: threading.Event) -> None:
        super().__init__((m.GPU_TEMP,))
        self.gpu = Gpu(index, f"GPU-{index}")
        self.gate = gate
        self.reading = threading.Event()
        self.series = Series(m.GPU_TEMP, self.gpu)

    def read(self, paces: frozenset[Pace]) -> Reading:
        self.reading.set()
        self.gate.wait()
        return Reading(0.0, {self.series: 40.0})


class GatedSource(FakeSource):
    """GPUs whose reads wait while their gate is closed. `gpus`: which GPU is at each index."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = [threading.Event() for _ in range(2)]

        self.gpus: Sequence[int] = range(3)
        self.latest: dict[int, GatedDevice] = {}

    def attach(self, index: int, metrics: Sequence[Metric]) -> GatedDevice:
        device = GatedDevice(index, self.gates[index])
        number = self.gpus[index]
        device.gpu = Gpu(index, f"GPU-{number}", f"00000000:0{number}:00.0")
        self.latest[index] = device
        return device


class Node:
    """Two GPUs with their workers, whose reads return at once."""

    def __init__(self) -> None:
        self.source = GatedSource()
        self.stopping = threading.Event()
        self.connection = DriverConnection(self.source, self.stopping)
        self.states = GpuStates(15.0)
        self.workers = Workers(self.connection, self.states, lambda: self.plan, None)
        self.plan = PLAN
        self.workers.ensure_workers(2)
        self.connection.opened()
        for gate in self.source.gates:
            gate.set()

    def tick(self) -> list[int]:
        """Tick once; return which workers were woken."""
        idle = self.workers.read_instant()
        self.workers.read_in_turn(idle, 0.0)
        self.workers._wait([worker for worker in idle if self.source.gates[worker.index].is_set()], 30)
        return [worker.index for worker in idle]

    def stop(self) -> None:
        """Open the gates, and end all threads."""
        for gate in self.source.gates:
            gate.set()
        self.stopping.set()
        self.workers.notify()
        self.workers.wake_all()
        for thread in self.workers.threads():
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.stop()


def test_a_gpu_is_unidentified_until_it_was_read(node: Node) -> None:
    """Until then, its worker has a state of its own."""
    assert [state.gpu for state in node.workers.unidentified()] == [Gpu(0), Gpu(1)]
    assert node.tick() == [0, 1]

    assert node.workers.unidentified() == []
    states = node.states.identified()
    assert [state.gpu.uuid for state in sorted(states, key=lambda state: state.gpu.index)] == ["GPU-0", "GPU-1"]
    assert all(node.workers.worker_of(state).state is state for state in states)


def test_an_unidentified_gpu_has_the_index_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a source has only some of the GPUs."""

    def fail(source: GatedSource, index: int, metrics: Sequence[Metric]) -> GatedDevice:
        raise GpuLost("it fell off the bus", "lost")

    monkeypatch.setattr(GatedSource, "gpu_index", lambda source, position: position + 5)
    monkeypatch.setattr(GatedSource, "attach", fail)
    node = Node()
    node.tick()
    gpus = [state.gpu for state in node.workers.unidentified()]
    node.stop()

    assert gpus == [Gpu(5), Gpu(6)]
    assert sorted(caplog.messages) == [f"GPU {n} (not identified) is down: it fell off the bus" for n in (5, 6)]


def test_a_thread_that_cannot_start(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """GPUs are not read, and none is blamed for that. The next tick tries again."""
    with monkeypatch.context() as refusing:
        refusing.setattr(threading.Thread, "start", _refuse)
        refusing.setattr(workers_module, "BRIEF", 0.0)
        idle = node.workers.read_instant()
        node.workers.read_in_turn(idle, 0.01)
        assert node.workers.read_instant() == []
        node.plan = NO_PATIENCE
        assert [(worker.busy, worker.late > 0, worker.stalled) for worker in idle] == [(True, True, 0.0)] * 2
    assert caplog.messages == [
        "GPUs are not read: can't start new thread; raise the limit on processes (ulimit -u, pids.max) or on memory"
    ]
    node.plan = PLAN
    assert node.workers.wait_idle(LIMIT)

    assert node.tick() == [0, 1]


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.slow
def test_two_workers_never_read_the_same_gpu(node: Node) -> None:
    """GPUs swap indices without an error: the first worker that notices makes the other one attach again, too."""
    node.tick()
    node.source.gpus = (1, 0)
    node.workers._workers[0]._detach()
    node.tick()
    states = {state.gpu.uuid: state for state in node.states.identified()}
    assert node.states.worker_index(states["GPU-1"]) == 0
    until(lambda: node.tick() and node.states.worker_index(states["GPU-0"]) == 1, 10, "GPU 0 at its new index")

    assert {state.gpu.uuid: state.gpu.index for state in node.states.identified()} == {"GPU-0": 1, "GPU-1": 0}


@pytest.mark.parametrize("state", ["down", "paused"])
def test_no_worker_is_woken_without_a_library(node: Node, state: str) -> None:
    node.connection.paused = state == "paused"
    if state == "down":
        node.connection.invalidate()

    assert node.tick() == []


def test_a_stuck_worker_affects_only_its_gpu(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """It is not woken again; skipped ticks are counted, and after its deadline the GPU is stalled."""
    node.tick()
    reading = node.source.latest[1].reading
    reading.clear()
    node.source.gates[1].clear()
    assert node.tick() == [0, 1]
    assert reading.wait(LIMIT)

    assert not node.workers.wait_idle(0)
    assert node.tick() == [0]
    stuck = node.states.claim(Gpu(1, "GPU-1"), 1)
    assert (stuck.reason, stuck.skipped) == ("", 1)
    node.plan = NO_PATIENCE
    assert node.tick() == [0]
    assert (node.workers.worker_of(stuck).stalled > 0, stuck.skipped) == (True, 2)
    assert caplog.messages == [
        "GPU 1 (GPU-1) is stuck in a driver call; see `dmesg | grep -i nvrm`, usually only a reboot helps"
    ]
    node.plan = PLAN
    node.source.gates[1].set()
    assert node.workers.wait_idle(30)
    assert stuck.reason == ""


def test_one_thread_reads_all_gpus(node: Node) -> None:
    """A GPU that hangs keeps its thread, and one other thread reads the rest; once it answers, one thread ends."""
    for _ in range(3):
        node.tick()
    (first,) = node.workers.threads()

    node.source.gates[0].clear()
    for _ in range(3):
        node.tick()
    assert len(node.workers.threads()) == 2
    assert first in node.workers.threads()
    node.source.gates[0].set()
    until(lambda: len(node.workers.threads()) == 1, LIMIT, "the end of a thread")

    assert node.tick() == [0, 1]
    assert len(node.workers.threads()) == 1


def test_gpus_are_read_one_after_another(node: Node) -> None:
    """The second read waits for the first, unless that takes longer than BRIEF; the clock does not wait for ever."""
    node.tick()
    first, second = (node.source.latest[index].reading for index in range(2))

    def read(timeout: float) -> threading.Thread:
        first.clear()
        second.clear()
        node.source.gates[0].clear()
        thread = threading.Thread(target=node.workers.read_in_turn, args=(node.workers.read_instant(), timeout))
        thread.start()
        assert first.wait(LIMIT)
        return thread

    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(workers_module, "BRIEF", LIMIT)
        reading = read(LIMIT)
        assert not second.wait(0.1)
        node.source.gates[0].set()
        reading.join(LIMIT)
        assert second.is_set()

    read(0.1).join(LIMIT)
    assert second.wait(LIMIT)
    node.source.gates[0].set()
    assert node.workers.wait_idle(30)


def test_a_late_reading_of_a_gpu_that_moved_is_dropped(node: Node) -> None:
    """A worker is still reading a GPU when another one attaches it at its new index: nothing is exposed twice."""
    node.tick()
    (state,) = [state for state in node.states.identified() if state.gpu.uuid == "GPU-1"]
    late = node.source.latest[1]
    late.reading.clear()
    node.source.gates[1].clear()
    assert node.tick() == [0, 1]
    assert late.reading.wait(LIMIT)
    node.source.gpus = (1, 0)
    node.workers._workers[0]._detach()
    assert node.tick() == [0]
    assert node.states.worker_index(state) == 0
    before = state.samples
    assert [sample.series.metric for sample in before] == [m.GPU_TEMP, m.TEMP_PEAK]
    node.source.gates[1].set()
    assert node.workers.wait_idle(30)

    assert state.samples == before
    assert [state.reason, state.gpu.index] == ["", 0]


def test_a_gpu_that_moved_ends_its_series(node: Node) -> None:
    """The worker at its new index attaches it before the one at its old index has noticed."""
    node.tick()
    (state,) = [state for state in node.states.identified() if state.gpu.uuid == "GPU-1"]
    old, old_peak = state.samples
    node.source.gpus = (1, 0)
    node.workers._workers[0]._detach()
    node.workers.read_in_turn(node.workers._workers[:1], 0.0)
    assert node.workers.wait_idle(30)
    new, new_peak = state.samples

    assert new.series is not old.series
    assert new_peak.series is not old_peak.series
