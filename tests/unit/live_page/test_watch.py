"""What the live page is sent: entries of GPUs, the rhythm of diagnoses, and pages that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from gpu_exporter.app.endpoint import Endpoint, NodeHealth
from gpu_exporter.app.server import exporter_server
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.http import server as http_server
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.live_page import monitor as monitor_module
from gpu_exporter.live_page import stream as stream_module
from gpu_exporter.live_page.monitor import MOST_XIDS, SOURCES, TOO_MANY, LiveMonitor
from gpu_exporter.live_page.stream import MOST_PER_CLIENT, MOST_STREAMS, Stream, StreamListener
from gpu_exporter.live_page.thread import OPEN_JUDGED, QUIET_JUDGED, QUIET_SECONDS, QUIET_WATCHED, LiveNode
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.pipeline.pages import Pages
from tests import ROOT
from tests.support.tools import LIMIT, until

GPU = Gpu(0, "GPU-0", model="NVIDIA H200")
HOSTILE = '"><script>alert(1)</script>\u2028\x00\ud7ff'
SCHEMA = json.loads((ROOT / "gpu_exporter" / "live_page" / "schema.json").read_text())
NODE = "node-1"


def test_each_measurement_has_metrics() -> None:
    """The live page reads metrics, `top` and reports read signals: they show the same measurements."""
    assert SOURCES.keys() == BY_NAME.keys()


def snapshot(samples: Sequence[Sample] = (), at: float = 1000.0, *statuses: GpuStatus) -> Snapshot:
    """Return a snapshot of these GPUs, or of one that is up."""
    gpus = statuses or (GpuStatus(GPU, True),)
    return Snapshot(at, "nvml", tuple(samples), gpus, verdicts=tuple(Verdict(status.gpu, ()) for status in gpus))


def entries(taken: Snapshot, monitor: LiveMonitor | None = None) -> list[dict[str, Any]]:
    """Return the entries of the GPUs, which agree with the schema."""
    import jsonschema  # takes a second, which each run of fast tests would pay

    monitor = monitor or LiveMonitor(NODE, 1.0)
    monitor.take(taken)
    monitor.watch(taken)
    monitor.judge(taken)
    answer = json.loads(monitor.event(taken))
    jsonschema.validate(answer, {**SCHEMA, "$ref": "#/$defs/gpus"})
    found: list[dict[str, Any]] = answer["gpus"]
    return found


def process(pid: int, memory: float | None = None, **labels: str) -> Iterator[Sample]:
    """Yield the samples of a process."""
    named = (("pid", str(pid)), *labels.items())
    yield Sample(Series(m.PROCESS_SM, GPU, named), 0.5)
    if memory is not None:
        yield Sample(Series(m.PROCESS_MEMORY, GPU, named), memory)


@pytest.mark.slow
def test_measurements() -> None:
    """A sum of two directions needs both; memory is in bytes; what a GPU does not have is listed with the reason."""
    (entry,) = entries(
        snapshot(
            [
                Sample(Series(m.FB_USED, GPU), 3000.0),
                Sample(Series(m.PCIE_TX, GPU), 5e9),
                Sample(Series(m.NVLINK_TX, GPU), 1e9),
                Sample(Series(m.NVLINK_RX, GPU), 2e9),
                Sample(Series(m.POWER_LIMIT, GPU), 700.0),
                Sample(Series(m.SUPPORTED, GPU, (("metric", "x"), ("reason", "not_supported"))), 0.0),
            ]
        )
    )
    assert entry["measurements"] == {"memory_used": 3.1457e9, "nvlink": 3e9}
    assert entry["limits"] == {"power": 700.0}
    assert entry["not_supported"] == [{"name": "x", "why": "not_supported"}]
    assert entry["headline"]["severity"] == "unknown"


def test_processes_and_owner() -> None:
    """A process has what is known of it; names are passed on as they are, because the page escapes them."""
    samples = [*process(7, 1e9, process=HOSTILE, command=f"python {HOSTILE}"), *process(8, process="b")]
    (entry,) = entries(snapshot(samples))
    assert entry["processes"][0] == {
        "pid": "7",
        "process": HOSTILE,
        "command": f"python {HOSTILE}",
        "sm": 0.5,
        "memory": 1e9,
    }
    assert "memory" not in entry["processes"][1]
    assert entry["owner"] == f"{HOSTILE}, b"
    pod = Sample(Series(m.POD_INFO, GPU, (("namespace", "ml"), ("pod", "train-0"))), 1.0)
    assert entries(snapshot([*samples, pod]))[0]["owner"] == "ml/train-0"
    job = Sample(Series(m.JOB_INFO, GPU, (("job_id", "4711"), ("step", "0"))), 1.0)
    assert entries(snapshot([*samples, job]))[0]["owner"] == "4711"


@pytest.mark.parametrize(
    ("reason", "severity"),
    [("lost", "critical"), ("wedged", "critical"), ("released", "info"), ("something_new", "critical")],
)
def test_gpus_that_do_not_answer(reason: str, severity: str) -> None:
    """They have no class and no numbers of before, a headline, and since when."""
    monitor, before = LiveMonitor(NODE, 1.0), snapshot([Sample(Series(m.SM_ACTIVE, GPU), 0.9)])
    entries(before, monitor)
    (entry,) = entries(snapshot((), 1001.0, GpuStatus(GPU, False, reason)), monitor)
    assert entry["headline"]["severity"] == severity
    assert reason.split("_")[0] in entry["headline"]["words"].lower()
    assert (entry["class"], entry["measurements"], entry["findings"]) == (None, {}, [])
    assert not list(monitor.history.rows())


def test_gpus_that_were_never_identified() -> None:
    """Each has its own entry, although none has a UUID."""
    unknown = [GpuStatus(Gpu(index, ""), False, "unreachable") for index in (0, 1)]
    assert [entry["id"] for entry in entries(snapshot((), 1000.0, *unknown))] == ["gpu0", "gpu1"]


def test_instances() -> None:
    """An instance has its own numbers and owners, the whole GPU its processes and faults."""
    of_instance = (("GPU_I_ID", "7"),)
    whole, instance = entries(
        snapshot(
            [
                Sample(Series(m.SM_ACTIVE, GPU, of_instance), 0.25),
                Sample(Series(m.POWER, GPU), 400.0),
                Sample(Series(m.POD_INFO, GPU, (*of_instance, ("namespace", "a"), ("pod", "b"))), 1.0),
                *process(7),
            ]
        )
    )
    assert (whole["id"], instance["id"]) == ("GPU-0", "GPU-0/7")
    assert (whole["measurements"], instance["measurements"]) == ({"power": 400.0}, {"sm_active": 0.25})
    assert (len(whole["processes"]), instance["processes"], instance["owner"]) == (1, [], "a/b")


def test_a_huge_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to the pages without processes, and says so."""
    many = snapshot([sample for pid in range(1000) for sample in process(pid, 1.0, command="x" * 100)])
    assert len(entries(many)[0]["processes"]) == 1000
    monkeypatch.setattr(monitor_module, "MOST_EVENT_BYTES", 100_000)
    event = json.loads(LiveMonitor(NODE, 1.0).event(many, "old"))
    assert event["gpus"][0]["processes"] == []
    assert event["problem"] == f"old; {TOO_MANY}"


class Events:
    """An event log with more XIDs than an entry shows."""

    def recent(self) -> list[dict[str, Any]]:
        """Return them, the newest first."""
        names = {"name": "", "kind": "fatal", "action": "drain", "meaning": "fell off the bus"}
        return [{"uuid": "GPU-0", "at": 2000.0 - n, "xid": 79, **names} for n in range(MOST_XIDS + 5)]


def test_xids() -> None:
    """The newest ones of each GPU."""
    other = Gpu(1, "GPU-1")
    first, second = entries(
        snapshot((), 1000.0, GpuStatus(GPU, True), GpuStatus(other, True)),
        LiveMonitor(NODE, 1.0, Events()),  # type: ignore[arg-type]
    )
    assert [event["at"] for event in first["xids"]] == [2000.0 - n for n in range(MOST_XIDS)]
    assert second["xids"] == []


def test_the_history_is_composed_once_per_point() -> None:
    """Until there is a new point, or the clock is set back."""
    monitor = LiveMonitor(NODE, 1.0)

    def at(when: float) -> dict[str, Any]:
        import jsonschema  # takes a second, which each run of fast tests would pay

        monitor.take(snapshot([Sample(Series(m.SM_ACTIVE, GPU), 0.5)], when))
        body = monitor.history_json()
        assert monitor.history_json() is body
        found: dict[str, Any] = json.loads(body)
        jsonschema.validate(found, {**SCHEMA, "$ref": "#/$defs/history"})
        return found

    for when in (1000.0, 1005.0, 1009.0):
        assert at(when)["gpus"] == {}
    for number, when in enumerate((1010.0, 1020.0), start=1):
        (row,) = (rows["sm_active"] for rows in at(when)["gpus"].values())
        assert [value is not None for value in row[-3:]] == [place + number >= 3 for place in range(3)]
    assert at(500.0)["gpus"] == {}


# --- how often ------------------------------------------------------------------------------------------------------


class Clock:
    """A node whose time the test sets; counts what the monitor does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, always: bool = True) -> None:
        self.now, self.taken, self.watched, self.judged = 10_000.0, 0, 0, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monitor = LiveMonitor(NODE, 1.0)
        take, watch, judge = monitor.take, monitor.watch, monitor.judge
        self.node = LiveNode(monitor, lambda: snapshot((), self.now), str, always=always)

        def counted_take(taken: Snapshot) -> bool:
            self.taken += 1
            return take(taken)

        def counted_watch(taken: Snapshot) -> None:
            self.watched += 1
            watch(taken)

        def counted_judge(taken: Snapshot) -> None:
            self.judged += 1
            judge(taken)

        monkeypatch.setattr(monitor, "take", counted_take)
        monkeypatch.setattr(monitor, "watch", counted_watch)
        monkeypatch.setattr(monitor, "judge", counted_judge)

    def run(self, seconds: int, *, asked: bool = False) -> tuple[int, int, int]:
        """Follow once a second; return how many snapshots were taken, watched and judged."""
        self.taken = self.watched = self.judged = 0
        for _ in range(seconds):
            self.now += 1
            if asked:
                self.node.asked()
            self.node.follow()
        return self.taken, self.watched, self.judged


def test_how_often_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rarely while nobody looks, often at the start and while somebody asks."""
    clock = Clock(monkeypatch)
    young = QUIET_JUDGED / QUIET_SECONDS
    assert clock.run(int(QUIET_JUDGED)) == (young, young, QUIET_JUDGED / OPEN_JUDGED)
    assert clock.run(300) == (300 / QUIET_SECONDS, 300 / QUIET_WATCHED, 300 / QUIET_JUDGED)
    assert clock.run(100, asked=True) == (100, 100, 100 / OPEN_JUDGED)


def test_one_of_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is followed only while somebody looks at it."""
    clock = Clock(monkeypatch, always=False)
    assert clock.run(100) == (0, 0, 0)
    assert clock.run(10, asked=True)[0] == 10
    clock.run(200)
    assert clock.run(100) == (0, 0, 0)


# --- the stream -----------------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, LiveNode]]:
    """A server with the live page of a node. A client that does not read is cut off after some seconds."""
    monkeypatch.setattr(http_server, "CLIENT_SECONDS", 6.0)
    pages, taken = Pages(), snapshot()
    node = LiveNode(LiveMonitor(NODE, 1.0), lambda: taken, str)
    server = exporter_server(Address("127.0.0.1", 0), [Endpoint(NODE, NodeHealth(1.0, pages), live=node)])
    server.start()
    yield server, node
    server.stop()


def opened(server: Server, small: int = 0, address: str = "127.0.0.1") -> socket.socket:
    """Open the stream without reading it, with a small buffer if that is given."""
    client = socket.socket()
    if small:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, small)
    client.settimeout(LIMIT)
    client.bind((address, 0))
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    return client


@pytest.mark.slow
def test_a_page_that_does_not_read_is_cut_off(served: tuple[Server, LiveNode]) -> None:
    """It has one event in memory, however many are posted, and another page gets the newest one meanwhile."""
    server, node = served
    with opened(server, 4096) as silent:
        until(lambda: node.stream.is_open, what="the page")
        first = set(node.stream._listeners)
        big = b'"%s"' % (b"x" * (2 << 20))
        for number in range(20):
            node.stream.post("gpus", big, float(number))
        with opened(server) as reader, reader.makefile("rb") as lines:
            until(lambda: node.stream._listeners.keys() - first, what="another page")
            node.stream.post("point", b'"new"', 21.0)
            assert any(line == b'data: "new"\n' for line in lines)
            until(lambda: not node.stream._listeners.keys() & first, what="the end of the silent one")
        received = 0
        with suppress(ConnectionError):
            while part := silent.recv(1 << 20):
                received += len(part)
        assert received < 2 * len(big)


def test_pages_get_an_event_one_by_one() -> None:
    """A scrape can be answered between two of them."""

    async def order() -> list[set[int]]:
        stream, received, steps = Stream(), set[int](), list[set[int]]()

        async def read(number: int, listener: StreamListener) -> None:
            assert await listener.next(30)
            received.add(number)

        readers = []
        for number in range(3):
            listener = stream.add("a")
            assert isinstance(listener, StreamListener)
            readers.append(asyncio.create_task(read(number, listener)))
        await asyncio.sleep(0)
        stream.post("gpus", b"{}", 1.0)
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0)
            if len(received) > len(steps):
                steps.append(set(received))
        return steps

    assert [len(received) for received in asyncio.run(order())] == [1, 2, 3]


def test_too_many_pages(served: tuple[Server, LiveNode]) -> None:
    """A client that has its share is refused, until another of its pages is closed."""
    server, node = served
    clients = [opened(server) for _ in range(MOST_PER_CLIENT)]
    try:
        until(lambda: len(node.stream._listeners) == MOST_PER_CLIENT, what="all pages")
        with opened(server) as refused, refused.makefile("rb") as lines:
            assert lines.readline().startswith(b"HTTP/1.1 503 ")
            assert any(line.startswith(b"too many open pages of your address: 16 at a time") for line in lines)
        clients.pop().close()
        until(lambda: len(node.stream._listeners) < MOST_PER_CLIENT, what="a closed page")
        with opened(server) as accepted:
            assert accepted.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        for client in clients:
            client.close()


def test_a_page_that_gives_way_ends(served: tuple[Server, LiveNode], monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is complete, so that the browser opens it again."""
    server, node = served
    monkeypatch.setattr(stream_module, "MOST_STREAMS", 2)
    with opened(server) as first, first.makefile("rb") as lines:
        until(lambda: len(node.stream._listeners) == 1, what="the oldest page")
        with opened(server):
            until(lambda: len(node.stream._listeners) == 2, what="both pages")
            with opened(server, address="127.0.0.2") as other:
                assert other.recv(100).startswith(b"HTTP/1.1 200 ")
                assert b"0\r\n" in list(lines)


def test_shares_of_streams() -> None:
    """`a*3` opens three pages of client a; the numbers are the pages of each client then."""

    async def pages(opening: str) -> tuple[str, list[str]]:
        stream, refused = Stream(), []
        for client, count in (word.split("*") for word in opening.split()):
            answers = [stream.add(client) for _ in range(int(count))]
            refused += [client for answer in answers if isinstance(answer, str)]
        kept = Counter(listener.client for listener in stream._listeners)
        return " ".join(f"{client}*{kept[client]}" for client in sorted(kept)), refused

    for opening, kept, refused in (
        ("a*16", "a*16", []),
        ("a*18", "a*16", ["a", "a"]),
        ("a*16 b*16 c*16 d*16 e*1", "a*15 b*16 c*16 d*16 e*1", []),
        ("a*16 b*16 c*16 d*16 e*13", "a*13 b*13 c*13 d*13 e*12", ["e"]),
        ("a*16 b*16 c*16 d*15 e*1 b*1", "a*16 b*16 c*16 d*15 e*1", ["b"]),
    ):
        assert asyncio.run(pages(opening)) == (kept, refused), opening
    alone = " ".join(f"{number:02}*1" for number in range(MOST_STREAMS))
    assert asyncio.run(pages(f"{alone} x*1")) == (alone, ["x"])


def test_the_oldest_page_gives_way() -> None:
    async def replaced() -> list[bool]:
        stream = Stream()
        pages = [stream.add(client) for client in "abcd" for _ in range(MOST_PER_CLIENT)]
        stream.add("e")
        return [page.replaced for page in pages if isinstance(page, StreamListener)]

    assert asyncio.run(replaced()) == [True, *[False] * (MOST_STREAMS - 1)]


def test_the_first_page_need_not_wait(served: tuple[Server, LiveNode]) -> None:
    """It gets the GPUs although there is no new snapshot, and a second page gets them at once."""
    server, node = served
    node.follow()
    with opened(server) as client, client.makefile("rb") as lines:
        until(lambda: node.stream.is_open, what="the page")
        node.follow()
        assert any(line == b"event: gpus\n" for line in lines)
        with opened(server) as second, second.makefile("rb") as of_second:
            assert any(line == b"event: gpus\n" for line in of_second)


def test_an_old_snapshot(served: tuple[Server, LiveNode], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is told why there is no newer one, once a second."""
    server, node = served
    monkeypatch.setattr(node, "_problem", lambda: "the collection loop hangs")
    node.follow()
    with opened(server) as client, client.makefile("rb") as lines:
        until(lambda: node.stream.is_open, what="the page")
        for _ in range(2):
            node.follow()
            data = next(line for line in lines if line.startswith(b"data: "))
            assert json.loads(data.removeprefix(b"data: "))["problem"] == "the collection loop hangs"


def test_a_server_stops_while_pages_are_open(served: tuple[Server, LiveNode]) -> None:
    """It does not wait for them; what is posted later goes nowhere."""
    server, node = served
    with opened(server) as client:
        until(lambda: node.stream.is_open, what="the page")
        server.stop()
        node.stream.post("gpus", b"1", 1.0)
        assert client.recv(10)
