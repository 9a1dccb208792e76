"""What is no kubelet, or one that says strange things: one line that names the socket, and nothing is kept open."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.attribution.kubelet import LARGEST_REPLY, Kubelet
from gpu_exporter.attribution.listing import Listing
from gpu_exporter.model.lookup import LookupFailed
from tests.support.fakes.kubelet import FakeKubelet, field, given


@pytest.fixture
def path() -> Iterator[Path]:
    """Short enough for a socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory) / "kubelet.sock"


def dead(path: Path) -> None:
    """A socket whose owner was killed."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))


@pytest.mark.parametrize(
    ("make", "reason", "says"),
    [
        (lambda path: None, "no_socket", "mount the folder"),
        (lambda path: path.write_text(""), "no_socket", "is no socket"),
        (Path.mkdir, "no_socket", "is no socket"),
        (os.mkfifo, "no_socket", "is no socket"),
        (lambda path: path.symlink_to(path), "no_socket", "symbolic links"),
        (lambda path: path.symlink_to(path.with_name("nowhere")), "no_socket", "mount the folder"),
        (dead, "unavailable", "is kubelet running?"),
    ],
    ids=["nothing", "a file", "a directory", "a pipe", "a circle", "a dangling link", "a dead socket"],
)
def test_what_is_no_kubelet(path: Path, make: Callable[[Path], object], reason: str, says: str) -> None:
    """The cure fits what is there."""
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
        (b"\0" * (LARGEST_REPLY + 1), "resource_exhausted"),
    ],
    ids=["no UTF-8", "cut off", "huge"],
)
def test_strange_answers(path: Path, raw: bytes, reason: str) -> None:
    """They are none, and the next one counts."""
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
    """What kubelet answers; the end of the connection to the one before may still have to be noticed."""
    try:
        return client.ask()
    except LookupFailed:
        return client.ask()


def test_a_kubelet_that_starts_again_and_again(path: Path) -> None:
    """Each time its new socket is found, and the old one is let go."""
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
