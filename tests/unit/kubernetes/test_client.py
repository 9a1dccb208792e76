"""An API server that is not what it ought to be, and a service account that is broken: one line, and no traceback."""

from __future__ import annotations

import gzip
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from gpu_exporter.attribution import pods
from gpu_exporter.attribution.poller import Poller
from gpu_exporter.kubernetes.client import Api, Object, in_cluster
from gpu_exporter.kubernetes.watch import Watch
from gpu_exporter.model.lookup import Lookup, LookupFailed
from tests.support.fakes.apiserver import PODS, FakeApiServer, pod_object


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    """One that runs."""
    running = FakeApiServer(tmp_path)
    yield running
    running.stop()


def api(server: FakeApiServer) -> Api:
    """A client without much patience."""
    return in_cluster(server.account, server.environment, patience=1.0)


def answer(body: bytes, head: str = "200 OK", length: int | None = None) -> bytes:
    """What a server sends."""
    length = len(body) if length is None else length
    return f"HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (answer(b"<html><body>captive portal</body></html>"), "malformed"),
        (answer(gzip.compress(b"{}"), "200 OK\r\nContent-Encoding: gzip"), "malformed"),
        (answer(b"[" * 200_000), "malformed"),
        (answer(b"[]"), "malformed"),
        (answer(b"\xff\xfe{}"), "malformed"),
        (answer(b'{"items": [', length=100), "timeout"),
        (answer(b"", "302 Found\r\nLocation: https://example.com/"), "http_302"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "unavailable"),
    ],
    ids=["HTML", "gzip", "deep", "no object", "no UTF-8", "stops in the middle", "redirect", "no HTTP"],
)
def test_a_strange_answer(server: FakeApiServer, raw: bytes, reason: str) -> None:
    """It is not followed, not waited for, and says what it was."""
    server.raw = raw
    with pytest.raises(LookupFailed) as raised:
        api(server).get(PODS)
    assert raised.value.reason == reason
    assert "\n" not in str(raised.value)
    assert len(server.asked) == 1


def no_file(account: Path) -> None:
    """Neither token nor CA."""
    (account / "token").unlink()


def no_ca(account: Path) -> None:
    """A token alone."""
    (account / "ca.crt").unlink()


def empty_ca(account: Path) -> None:
    """Not written yet."""
    (account / "ca.crt").write_text("")


def directory(account: Path) -> None:
    """What Docker makes of a mount that is not there."""
    (account / "token").unlink()
    (account / "token").mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason", "says"),
    [
        (no_file, "no_token", "/token: the pod needs a service account"),
        (no_ca, "no_token", "/ca.crt: the pod needs a service account"),
        (empty_ca, "tls", "/ca.crt has no certificate"),
        (directory, "no_token", "/token: Is a directory"),
        (lambda account: (account / "token").write_text(""), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_text("top\nsecret"), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_text("top secret"), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_bytes(b"top\xffsecret"), "no_token", "/token has no token"),
    ],
    ids=["no token", "no CA", "empty CA", "a directory", "empty token", "two lines", "two words", "no text"],
)
def test_a_broken_service_account(
    server: FakeApiServer, spoil: Callable[[Path], object], reason: str, says: str
) -> None:
    """The file is named, and nobody is asked. What is in a token is in no message."""
    spoil(server.account)
    with pytest.raises(LookupFailed) as raised:
        api(server).get(PODS)
    assert raised.value.reason == reason
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)
    assert server.asked == []


def test_a_list_is_what_the_server_has_at_hand(server: FakeApiServer) -> None:
    """Version 0 spares etcd; a page after the first must not say it again."""
    for number in range(5):
        server.put(PODS, pod_object(f"p{number}", "u"))
    items, _ = api(server).pages(PODS, fieldSelector="spec.nodeName=node")
    assert len(items) == 5
    assert ["resourceVersion=0" in path for path in server.asked] == [True, False, False]
    assert ["continue=" in path for path in server.asked] == [False, True, True]


class Stumbling:
    """After version 1 comes an event that nobody can read, each time that it is asked for."""

    def __init__(self, event: Object) -> None:
        self.event = event
        self.versions: list[str] = []
        self.listed = 0
        self.done = threading.Event()

    def pages(self, path: str, **query: str) -> tuple[Sequence[Object], str]:
        """The event is behind the second list."""
        self.listed += 1
        return [], str(self.listed)

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[Object]:
        """From a version on."""
        self.versions.append(query["resourceVersion"])
        yield {}
        if query["resourceVersion"] == "1" and len(self.versions) < 3:
            yield self.event
        self.done.set()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "ADDED"}, "malformed"),
        ({"type": "ERROR", "object": {"code": 500, "message": "etcd\nis slow"}}, "refused"),
        ({"type": "MODIFIED", "object": {"metadata": "?"}}, "internal_error"),
    ],
    ids=["no object", "an error", "no metadata"],
)
def test_nobody_stumbles_twice(event: Object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who can't read an event lists anew, instead of asking for it again."""
    monkeypatch.setattr("gpu_exporter.kubernetes.watch.LONGEST_WAIT", 0.1)
    script = Stumbling(event)
    lookup: Lookup[Mapping[str, pods.Pod]] = Lookup("pods", {})
    watch = Watch(lookup, cast(Api, script), pods.path, pods.Reader(), {})
    watch.start()
    assert script.done.wait(30)
    watch.stop()
    watch.join(10)
    assert script.versions[:2] == ["1", "2"]
    assert lookup.errors == {reason: 1}


def test_an_error_of_ours_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """With where it was, however often it happens."""
    asked = threading.Event()
    count = 0

    def ask() -> str:
        nonlocal count
        count += 1
        if count == 3:
            asked.set()
        raise KeyError("token")

    lookup = Lookup("kubelet", "")
    with caplog.at_level(logging.WARNING), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_exporter.attribution.poller.LONGEST_WAIT", 0.05)
        asker = Poller(lookup, ask, 0.01)
        asker.start()
        assert asked.wait(30)
        asker.stop()
        asker.join(10)
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info
    assert (lookup.up, lookup.errors["internal_error"]) == (False, count)
