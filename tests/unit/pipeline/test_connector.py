"""The connect thread: what it opens, closes and restarts, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.pipeline.connection import DriverConnection
from gpu_exporter.pipeline.connector import Connector
from gpu_exporter.pipeline.gpu_state import GpuStates
from gpu_exporter.pipeline.settings import CollectionSettings, make_plan
from gpu_exporter.pipeline.worker import Worker
from gpu_exporter.pipeline.workers import Workers
from gpu_exporter.sources.backoff import LONGEST_BACKOFF
from tests.support.tools import LIMIT, until
from tests.support.virtual_time import Clock, virtual
from tests.unit.pipeline.test_metrics_change import FakeDevice, FakeSource

PLAN = make_plan((m.GPU_TEMP,), CollectionSettings(), xids_reported=True)


def on_bus(*drivers: str) -> Sequence[PciGpu]:
    """Return GPUs on the PCI bus that are bound to these drivers."""
    return [PciGpu(f"00000000:{6 + place:02X}:00.0", driver) for place, driver in enumerate(drivers)]


class Library(FakeSource):
    """A library with some GPUs; `calls` are those that open and close it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.gpus = 1
        self.scans = 0
        self.on_bus: Sequence[PciGpu] = ()
        self.reload: bool | None = None
        self.error: SourceLost | None = None

    def open(self) -> None:
        self.calls.append("open")
        if self.error:
            raise self.error

    def close(self) -> None:
        self.calls.append("close")

    def count(self) -> int:
        self.scans += 1
        return self.gpus

    def bus(self) -> Sequence[PciGpu]:
        return self.on_bus

    def reload_needed(self) -> bool | None:
        return self.reload

    def attach(self, index: int, metrics: Sequence[Metric]) -> FakeDevice:
        return FakeDevice(metrics)


class Node:
    """A library with its connect thread, which is started by `run`."""

    def __init__(self) -> None:
        self.library = Library()
        self.stopping = threading.Event()
        self.connection = DriverConnection(self.library, self.stopping)
        self.workers = Workers(self.connection, GpuStates(15.0), lambda: PLAN, None)
        self.connector = Connector(self.connection, self.workers, 1.0)

    def run(self) -> None:
        """Start, and wait for the first attempt."""
        self.connector.start()
        assert self.connection.await_attempt(LIMIT)

    def stop(self) -> None:
        self.stopping.set()
        self.connection.wake()
        self.workers.notify()
        self.workers.wake_all()
        for thread in (self.connector, *self.workers.threads()):
            if thread.ident is not None:
                thread.join(LIMIT)
                assert not thread.is_alive()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.stop()


def test_each_gpu_gets_a_worker(node: Node) -> None:
    """Also one that is added later; the highest number of GPUs is remembered."""
    node.library.gpus, node.library.on_bus = 2, on_bus("nvidia", "nvidia", "")
    node.run()
    assert (node.connection.up, len(node.workers._workers), node.connector.most_gpus) == (True, 2, 3)
    node.library.gpus = 4
    node.connection.wake()
    until(lambda: len(node.workers._workers) == 4, 10, "workers for four GPUs")
    until(lambda: node.connector.most_gpus == 4, 10, "four GPUs")
    node.library.gpus = 1
    node.connection.wake()
    until(lambda: len(node.workers.unidentified()) == 1, 10, "one GPU")

    assert node.connector.most_gpus == 4


def test_a_library_without_gpus_is_down(node: Node) -> None:
    node.library.gpus = 0
    node.run()

    assert not node.connection.up
    assert node.connection.reason == "no_gpu"
    assert node.connection.problem() == (
        "source fake: the driver lists no GPU: check `lspci | grep -i nvidia` and NVIDIA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(
    ("reason", "reload", "needed"),
    [("", None, None), ("", False, False), ("", True, True), ("version_mismatch", None, True), ("gone", None, None)],
)
def test_reload_needed(node: Node, reason: str, reload: bool | None, needed: bool | None) -> None:
    """As the source reports, or because the library does not match the driver."""
    node.library.reload = reload
    node.library.error = SourceLost("driver: a test", reason) if reason else None
    node.run()

    assert node.connector.reload_needed is needed


@pytest.mark.slow
def test_a_lost_library_is_closed_and_opened(node: Node) -> None:
    """At once when a worker reports it, not at the next scan."""
    node.run()
    node.connection.lost(node.connection.generation, SourceLost("driver: gone"))
    until(lambda: node.connection.up, 10, "a library that is open again")

    assert node.library.calls == ["close", "open"] * 2


@pytest.mark.slow
def test_a_library_that_is_lost_at_once_is_reopened_with_back_off(node: Node) -> None:
    """It opens without an error, and every read then finds it dead: it is reopened once at most until time passes."""
    with virtual(clock := Clock()):
        node.run()

        def opened() -> int:
            node.connection.lost(node.connection.generation, SourceLost("driver: gone"))
            return node.library.calls.count("open")

        for _ in range(50):
            time.sleep(0.01)  # the connector's chance to do it again
            before = opened()
        assert before <= 2
        clock.pass_by(LONGEST_BACKOFF)
        until(lambda: opened() > before, what="a library that is open again")


@pytest.mark.parametrize("drivers", [("nvidia", "nvidia"), ("",)])
def test_a_change_of_the_bus_restarts_the_library(node: Node, drivers: Sequence[str]) -> None:
    """Only a library that is opened again finds a GPU that was added, or bound to another driver."""
    node.library.on_bus = on_bus("nvidia")
    node.run()
    generation = node.connection.generation
    node.library.on_bus = on_bus(*drivers)
    node.connection.wake()
    until(lambda: node.connection.generation > generation and node.connection.up, 10, "a library that is open again")

    assert node.library.calls == ["close", "open"] * 2
    assert node.connector.most_gpus >= 1


def test_a_change_of_the_bus_does_not_pause_gpus_beside_a_stuck_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library could not be reopened anyway: a call is inside it."""
    node.library.on_bus = on_bus("nvidia")
    node.run()
    monkeypatch.setattr(Worker, "late", 5.0)
    monkeypatch.setattr(Worker, "busy", True)
    waits: list[float] = []
    monkeypatch.setattr(node.workers, "wait_idle", waits.append)
    node.library.on_bus = on_bus("nvidia", "nvidia")
    scans = node.library.scans
    node.connection.wake()
    until(lambda: node.library.scans > scans, 10, "a scan")

    assert waits == []


def test_a_release_closes_the_library_until_it_ends(node: Node) -> None:
    """A resume opens it again at once."""
    node.run()
    node.connection.hand_over_state.begin(600)
    release = node.connection.hand_over_state.hand_over
    assert release is not None
    until(lambda: release.closed, 10, "a closed library")
    assert node.library.calls == ["close", "open", "close"]
    assert not node.connection.up
    assert node.connection.hand_over_state.end()
    until(lambda: node.connection.up, 10, "an open library")

    assert node.library.calls[-1] == "open"


def test_a_release_is_complete_when_the_last_file_is_closed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host engine in this process stops later than the library closes."""
    files = ["/dev/nvidiactl"]
    monkeypatch.setattr("gpu_exporter.pipeline.hand_over.device_files", lambda: tuple(files))
    node.run()
    node.connection.hand_over_state.begin(600)
    release = node.connection.hand_over_state.hand_over
    assert release is not None
    until(lambda: release.closed, 10, "a closed library")
    assert release.problem([]) == "still open: /dev/nvidiactl"
    files.clear()

    until(lambda: release.done, 10, "a complete release")


@pytest.mark.slow
def test_an_unexpected_error_is_logged_and_tried_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """A bug must not end the thread that opens the library."""
    node.library.error = RuntimeError("a bug")  # type: ignore[assignment]
    node.run()
    assert "source fake: unexpected error, please report it" in caplog.text
    node.library.error = None
    node.connection.wake()
    until(lambda: node.connection.up, 10, "an open library")
