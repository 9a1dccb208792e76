"""Sockets that are not kubelet's, and kubelets with strange answers: one line names the socket; nothing leaks."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.kubernetes import limits
from gpu_exporter.model.lookup import Incomplete, Lookup, LookupFailed
from gpu_exporter.owners.choice import Poller
from gpu_exporter.owners.devices import Listing
from gpu_exporter.owners.kubelet import Kubelet
from tests.support.fakes.kubelet import Claim, FakeKubelet, Given, field, given, pod
from tests.support.fakes.stuck_socket import StuckSocket
from tests.support.tools import LIMIT, until


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "kubelet.sock"


def dead(path: Path) -> None:
    """Return a socket whose owner was killed."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason", "says"),
    [
        (lambda path: None, "no_socket", "mount the folder"),
        (lambda path: path.write_text(""), "no_socket", "is not a socket"),
        (Path.mkdir, "no_socket", "is not a socket"),
        (os.mkfifo, "no_socket", "is not a socket"),
        (lambda path: path.symlink_to(path), "no_socket", "symbolic links"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "no_socket", "mount the folder"),
        (dead, "unavailable", "is kubelet running?"),
    ],
    ids=["nothing", "a file", "a directory", "a pipe", "a circle", "a dangling link", "a dead socket"],
)
def test_path_is_not_a_kubelet_socket(path: Path, make: Callable[[Path], object], reason: str, says: str) -> None:
    """The error names the path and the fix."""
    make(path)
    client = Kubelet(path, (), 5.0)
    with pytest.raises(LookupFailed, match=says.replace("?", "[?]")) as raised:
        client.ask()
    client.close()
    assert raised.value.reason == reason
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (field(1, field(1, b"\xff\xfe")), "malformed"),
        (field(1, b"\x0a\xff"), "malformed"),
        (b"\0" * (limits.MOST_KUBELET_BYTES + 1), "resource_exhausted"),
    ],
    ids=["no UTF-8", "cut off", "huge"],
)
def test_malformed_answer_fails_and_the_next_one_counts(path: Path, raw: bytes, reason: str) -> None:
    kubelet, client = FakeKubelet(path), Kubelet(path, (), 10.0)
    kubelet.start()
    try:
        kubelet.raw = raw
        with pytest.raises(LookupFailed) as raised:
            client.ask()
        assert raised.value.reason == reason
        kubelet.raw, kubelet.pods = None, [given("a", "GPU-1"), given("a", "GPU-1"), given("", "")]
        assert [each.pod for each in client.ask().allocated] == ["", "a", "a"]
    finally:
        client.close()
        kubelet.stop()


def answer(client: Kubelet) -> Listing:
    """Query again if the client has not noticed yet that the connection to the previous kubelet has ended."""
    try:
        return client.ask()
    except LookupFailed:
        return client.ask()


def test_kubelet_that_restarts_often_leaks_no_files(path: Path) -> None:
    """The client finds each new socket, and closes the old one."""
    kubelet, client = FakeKubelet(path), Kubelet(path, (), 10.0)
    open_files = []
    try:
        for number in range(30):
            kubelet.pods = [given(f"pod-{number}", "GPU-1")]
            kubelet.start()
            assert [each.pod for each in answer(client).allocated] == [f"pod-{number}"]
            kubelet.stop()
            open_files.append(len(os.listdir("/proc/self/fd")))
    finally:
        client.close()
        kubelet.stop()
    assert max(open_files[15:]) <= max(open_files[:15]) + 2


# --- limits ----------------------------------------------------------------------------------------------------------


def kept_and_dropped(path: Path, *pods: bytes) -> tuple[list[str], LookupFailed | None]:
    """Return the pods that remain of a response, and the reasons why others were dropped."""
    kubelet, client = FakeKubelet(path), Kubelet(path, (), 30.0)
    kubelet.pods = pods
    kubelet.start()
    try:
        return pods_of(client.ask()), None
    except Incomplete as error:
        return pods_of(error.rest), error
    finally:
        client.close()
        kubelet.stop()


def pods_of(listing: Listing) -> list[str]:
    """Return the pods of all devices."""
    return [device.pod for device in listing.allocated] + [device.pod for device in listing.claimed]


@pytest.mark.parametrize(
    "strange",
    [
        given("x" * 254, "GPU-1"),
        given("x" * (1 << 20), "GPU-1"),
        given("x", "GPU-1", namespace="n" * 64),
        given("x", "GPU-1", container="c" * 64),
        given("x", "GPU-1", "nvidia.com/mig-" + "r" * 310),
        given("x", "G" * 254),
        pod("x", Claim("p" * 254, "gpu-0")),
        pod("x", Claim("p", "d" * 254)),
    ],
    ids=["pod", "pod of 1 MiB", "namespace", "container", "resource", "device", "pool", "claimed device"],
)
def test_overlong_name_drops_only_its_device(path: Path, strange: bytes) -> None:
    pods, error = kept_and_dropped(path, given("first", "GPU-0"), strange, given("last", "GPU-2"))
    assert pods == ["first", "last"]
    assert error
    assert error.reason == "too_long"
    assert len(str(error)) < 400


def test_longest_names_of_kubernetes_are_kept(path: Path) -> None:
    assert kept_and_dropped(path, given("p" * 253, "D" * 253, namespace="n" * 63, container="c" * 63)) == (
        ["p" * 253],
        None,
    )


def test_number_of_devices_is_limited(path: Path) -> None:
    many = pod("many", Given("nvidia.com/gpu", [f"GPU-{number}" for number in range(50_000)]))
    pods, error = kept_and_dropped(path, given("first", "GPU-0"), many)
    assert len(pods) == limits.MOST_DEVICES
    assert "first" in pods
    assert error
    assert error.reason == "too_many"


def test_dropped_entries_are_counted_and_logged_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest of the response counts: the lookup is up, and queries stay as frequent."""
    kubelet, client = FakeKubelet(path), Kubelet(path, (), 10.0)
    kubelet.pods = [given("a", "GPU-1"), given("x" * 300, "GPU-2")]
    kubelet.start()
    lookup = Lookup("kubelet", Listing())
    poller = Poller(lookup, client.ask, 0.01, client.close)
    with caplog.at_level("WARNING"):
        poller.start()
        try:
            until(lambda: lookup.errors["too_long"] >= 5)
        finally:
            poller.stop()
            poller.join(LIMIT)
            kubelet.stop()
    assert lookup.up
    assert [device.pod for device in lookup.value.allocated] == ["a"]
    assert [record.getMessage() for record in caplog.records] == [
        f"attribution: kubelet: {path}: the pod {'x' * 39}… has 300 characters, more than 253: it is left out"
    ]


# --- sockets that hang ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "pause"),
    [(b"", 0.1), (b"\0", 0.1), (b"HTTP/1.1 200 OK\r\n\r\n", 0.05), (b"\xff" * 65536, 0.001)],
    ids=["nothing", "drips", "HTTP/1", "garbage"],
)
def test_socket_that_never_completes_an_answer(path: Path, data: bytes, pause: float) -> None:
    """A request ends by its deadline."""
    listener, client = StuckSocket(path, data, pause), Kubelet(path, (), 1.0)
    try:
        with pytest.raises(LookupFailed) as raised:
            client.ask()
        assert raised.value.reason in ("deadline_exceeded", "unavailable")
        assert str(path) in str(raised.value)
    finally:
        client.close()
        listener.close()


def test_folder_of_the_socket_that_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup in a mount that does not answer ends by the deadline, and the next one at once."""
    released = threading.Event()
    real = os.stat

    def hang(target: object, *args: object, **kwargs: object) -> os.stat_result:
        if target == path:
            released.wait()
        return real(target, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", hang)
    client = Kubelet(path, (), 0.3)
    try:
        for patience in (0.3, threading.TIMEOUT_MAX):
            client._patience = patience
            with pytest.raises(LookupFailed, match="check its mount") as raised:
                client.ask()
            assert raised.value.reason == "timeout"
    finally:
        released.set()
        client.close()
