"""An API server with strange answers, and broken service accounts: one line says what is wrong, without a traceback."""

from __future__ import annotations

import gzip
import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from gpu_exporter.io import file_access
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api, in_cluster
from gpu_exporter.kubernetes.objects import Object, ObjectList, WatchEvent
from gpu_exporter.kubernetes.watch import ListWatch
from gpu_exporter.model.lookup import Lookup, LookupFailed
from gpu_exporter.owners import pods, resource_slices
from gpu_exporter.owners.choice import Poller
from tests.support.fakes.apiserver import PODS, FakeApiServer, pod_object
from tests.support.gate import Gate
from tests.support.tools import LIMIT


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    """A running API server."""
    running = FakeApiServer(tmp_path)
    yield running
    running.stop()
    while CLIENTS:
        CLIENTS.pop().close()


# Those of the present test.
CLIENTS: list[Api] = []


def api(server: FakeApiServer, patience: float = 1.0) -> Api:
    """Return a client with this timeout."""
    CLIENTS.append(in_cluster(server.account, server.environment, patience=patience))
    return CLIENTS[-1]


def answer(body: bytes, head: str = "200 OK", length: int | None = None) -> bytes:
    """Return an HTTP response."""
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
        (answer(b'{"items":5}'), "malformed"),
        (answer(b'{"metadata": {}}'), "malformed"),
        (answer(b'{"metadata": {}, "items": [5]}'), "malformed"),
        (answer(b'{"metadata": {}, "items": [{"metadata": {"name": "a", "labels": {"x": []}}}]}'), "malformed"),
    ],
    ids=["HTML", "gzip", "deep", "no object", "no UTF-8", "stops in the middle", "redirect", "no HTTP",
         "no list", "no items", "other items", "other labels"],
)  # fmt: skip
def test_strange_answer(server: FakeApiServer, raw: bytes, reason: str) -> None:
    """A redirect is not followed, an incomplete response not awaited, and the error names the problem."""
    server.raw = raw
    with pytest.raises(LookupFailed) as raised:
        api(server, 1.0 if reason == "timeout" else LIMIT).get(PODS, ObjectList)
    assert raised.value.reason == reason
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400
    assert len(server.asked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("body", [b'{"items":5}', b"{}", b'{"items":[{"metadata":"?"}]}'], ids=bytes.decode)
def test_malformed_list_keeps_the_last_owners(server: FakeApiServer, body: bytes) -> None:
    """The lookup fails and is counted; the last good list still counts."""
    server.put(PODS, pod_object("p", "u", {"job-name": "bert"}))
    lookup: Lookup[Mapping[str, pods.PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, api(server), pods.path, pods.PodReader(), {}, seconds=1.0)
    watch.start()
    try:
        until(lambda: "team/p" in lookup.value)
        server.raw = answer(body)
        server.forget()
        until(lambda: lookup.errors["malformed"] >= 2)
        assert lookup.value["team/p"].workload == "bert"
        assert not lookup.up
    finally:
        watch.stop()
        server.stop()
        watch.join(LIMIT)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def error_of(ask: Callable[[], object]) -> LookupFailed:
    """Return the error of a request that must end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except LookupFailed as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive(), "the request has no end"
    (failure,) = failures
    assert isinstance(failure, LookupFailed)
    return failure


@pytest.mark.slow
def test_list_without_an_end(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that always has another page gets a limited number of requests."""
    page = {"metadata": {"continue": "1", "resourceVersion": "1"}, "items": [pod_object("p", "u")]}
    monkeypatch.setattr(server, "page", lambda *_: page)
    failure = error_of(lambda: api(server, LIMIT).list_objects(PODS))
    assert failure.reason == "too_large"
    assert len(server.asked) == limits.MOST_PAGES


def test_list_with_too_many_objects(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = {"metadata": {}, "items": [{"metadata": {"name": "p"}}] * (limits.MOST_OBJECTS + 1)}
    monkeypatch.setattr(server, "page", lambda *_: page)
    assert error_of(lambda: api(server, LIMIT).list_objects(PODS)).reason == "too_large"


def test_pages_that_are_too_large_together(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_LIST_BYTES", 1 << 20)
    server.page_size = 2
    for number in range(4):
        server.put(PODS, pod_object(f"p{number}", "u", {"filler": "x" * 300_000}))
    assert error_of(lambda: api(server, LIMIT).list_objects(PODS)).reason == "too_large"


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [answer(b" " * 1000, length=1000), b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 1000],
    ids=["body", "headers"],
)
def test_answer_that_drips(server: FakeApiServer, raw: bytes) -> None:
    """Each byte comes in time, but the whole response has a deadline."""
    server.raw, server.drip = raw, 0.1
    client = api(server, 0.5)
    assert error_of(lambda: client.get(PODS, ObjectList)).reason == "timeout"


def test_event_without_an_end(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_EVENT_BYTES", 1 << 20)
    server.raw = answer(b'{"type": "' + b"A" * (3 << 20), length=1 << 30)
    assert error_of(lambda: list(api(server, LIMIT).watch(PODS, 10.0, resourceVersion="1"))).reason == "too_large"


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_service_account_that_hangs(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A volume that does not answer fails the request by a deadline, and no request is made."""
    released = threading.Event()
    real = file_access.read

    def hang(path: Path, most: int) -> bytes:
        if path.name == name:
            released.wait()
        return real(path, most)

    monkeypatch.setattr("gpu_exporter.kubernetes.client.read", hang)
    monkeypatch.setattr("gpu_exporter.io.file_access.FileWorker.call.__defaults__", (0.3,))
    client = api(server)
    try:
        for _ in range(2):
            failure = error_of(lambda: client.get(PODS, ObjectList))
            assert failure.reason == "timeout"
            assert str(server.account) in str(failure)
        assert server.asked == []
    finally:
        released.set()


def no_file(account: Path) -> None:
    """Remove the token."""
    (account / "token").unlink()


def no_ca(account: Path) -> None:
    """Remove the CA."""
    (account / "ca.crt").unlink()


def empty_ca(account: Path) -> None:
    """A CA that is not written yet."""
    (account / "ca.crt").write_text("")


def directory(account: Path) -> None:
    """Make a directory, as Docker does for a mount whose source does not exist."""
    (account / "token").unlink()
    (account / "token").mkdir()


def pipe(account: Path) -> None:
    """Make a FIFO, on which an open would hang."""
    (account / "token").unlink()
    os.mkfifo(account / "token")


@pytest.mark.parametrize(
    ("spoil", "reason", "says"),
    [
        (no_file, "no_token", "/token does not exist: the pod needs a service account"),
        (no_ca, "no_token", "/ca.crt does not exist: the pod needs a service account"),
        (empty_ca, "tls", "/ca.crt has no certificate"),
        (directory, "no_token", "/token: a directory, not a regular file"),
        (pipe, "no_token", "/token: not a regular file"),
        (lambda account: (account / "token").write_text("x" * (2 << 20)), "no_token", "/token: larger than 1 MiB"),
        (lambda account: (account / "ca.crt").write_text("x" * (2 << 20)), "no_token", "/ca.crt: larger than 1 MiB"),
        (lambda account: (account / "ca.crt").write_text("no PEM"), "tls", "/ca.crt has no certificate"),
        (lambda account: (account / "token").write_text(""), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_text("top\nsecret"), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_text("top secret"), "no_token", "/token has no token"),
        (lambda account: (account / "token").write_bytes(b"top\xffsecret"), "no_token", "/token has no token"),
    ],
    ids=["no token", "no CA", "empty CA", "a directory", "a FIFO", "huge token", "huge CA", "CA without a certificate",
         "empty token", "two lines", "two words", "not ASCII"],
)  # fmt: skip
def test_a_broken_service_account(
    server: FakeApiServer, spoil: Callable[[Path], object], reason: str, says: str
) -> None:
    """The error names the file, no request is made, and no message contains a part of the token."""
    spoil(server.account)
    with pytest.raises(LookupFailed) as raised:
        api(server, LIMIT).get(PODS, ObjectList)
    assert raised.value.reason == reason
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)
    assert server.asked == []


def test_server_that_closes_connections_at_once(server: FakeApiServer) -> None:
    """A load balancer without a server does; the CA is not to blame."""
    gate = Gate(int(server.environment["KUBERNETES_SERVICE_PORT"]))
    gate.shut()
    client = in_cluster(server.account, {**server.environment, "KUBERNETES_SERVICE_PORT": str(gate.port)})
    with pytest.raises(LookupFailed) as raised:
        client.get(PODS, ObjectList)
    gate.close()
    assert raised.value.reason == "unavailable"
    assert "CA" not in str(raised.value)


def test_list_is_read_from_the_servers_cache(server: FakeApiServer) -> None:
    """Version 0 means the cache instead of etcd. Where a server sends pages, those after the first must not have it."""
    server.page_size = 2
    for number in range(5):
        server.put(PODS, pod_object(f"p{number}", "u"))
    items, _ = api(server, LIMIT).list_objects(PODS, fieldSelector="spec.nodeName=node")
    assert len(items) == 5
    assert ["resourceVersion=0" in path for path in server.asked] == [True, False, False]
    assert ["continue=" in path for path in server.asked] == [False, True, True]


@contextmanager
def following(server: FakeApiServer, seconds: float) -> Iterator[Lookup[Mapping[str, pods.PodDetails]]]:
    """The lookup of a watch that is renewed after about this time."""
    lookup: Lookup[Mapping[str, pods.PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, api(server), pods.path, pods.PodReader(), {}, seconds)
    watch.start()
    yield lookup
    watch.stop()
    server.stop()
    watch.join(LIMIT)


def test_restored_server(server: FakeApiServer) -> None:
    """Its versions are lower than before, and its labels are shown nevertheless."""
    server.put(PODS, pod_object("p", "u", {"job-name": "before"}))
    with following(server, 60) as lookup:
        # A watch that began afterwards would only end after its time.
        until(lambda: bool(server.watches) and lookup.up and lookup.value["team/p"].workload == "before")
        server.restore(PODS, [pod_object("p", "u", {"job-name": "restored"})], version=7)
        until(lambda: lookup.value["team/p"].workload == "restored")
        server.put(PODS, pod_object("p", "u", {"job-name": "changed"}))
        until(lambda: lookup.value["team/p"].workload == "changed")
        assert lookup.errors == {}  # the server is back at once, so that a watch that is cut off is no failure


@pytest.mark.slow
def test_restored_server_between_list_and_watch(server: FakeApiServer) -> None:
    """A watch never continues at the version of a list that another server sent."""
    server.put(PODS, pod_object("p", "u", {"job-name": "before"}))
    gate = Gate(int(server.environment["KUBERNETES_SERVICE_PORT"]))
    gate.hold(2)  # the end of the handshake, and the list
    environment = {**server.environment, "KUBERNETES_SERVICE_PORT": str(gate.port)}
    lookup: Lookup[Mapping[str, pods.PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, in_cluster(server.account, environment), pods.path, pods.PodReader(), {}, 60)
    watch.start()
    try:
        assert gate.holding.wait(LIMIT)
        server.restore(PODS, [pod_object("p", "u", {"job-name": "restored"})], version=7)
        gate.cut()
        gate.release()
        until(lambda: lookup.up and lookup.value["team/p"].workload == "restored")
    finally:
        watch.stop()
        gate.close()
        watch.join(LIMIT)


@pytest.mark.slow
def test_list_is_read_again_and_again_on_one_connection(server: FakeApiServer) -> None:
    server.put(PODS, pod_object("p", "u"))
    with following(server, 1) as lookup:
        until(lambda: sum("watch" not in path for path in server.asked) >= 3)
        assert server.connections == 1
        assert lookup.up
        server.account.joinpath("ca.crt").write_text((server.account / "ca.crt").read_text() + "# rotated é\n")
        until(lambda: server.connections == 2)


def test_version_that_is_too_old_at_first(server: FakeApiServer) -> None:
    """The server's cache is older than its oldest event: that costs one more list, not an outage."""
    server.put(PODS, pod_object("p", "u"))
    with following(server, 60) as lookup:
        until(lambda: lookup.up)
        asked = len(server.asked)
        server.forget()
        until(lambda: len(server.asked) >= asked + 2)
        assert lookup.errors == {"gone": 1}
        assert lookup.up


@pytest.mark.slow
def test_watch_that_is_forbidden(server: FakeApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """With `list` alone the lookup has values, but is never up; it is logged once."""
    server.may_watch = False
    server.put(PODS, pod_object("p", "u", {"job-name": "bert"}))
    with following(server, 60) as lookup:
        until(lambda: lookup.errors["forbidden"] >= 3)
        assert lookup.value["team/p"].workload == "bert"
        assert not lookup.up
        assert len([message for message in caplog.messages if "pods" in message]) == 1


def test_retry_after(server: FakeApiServer) -> None:
    server.status, server.retry_after = 429, 7
    with pytest.raises(LookupFailed) as raised:
        api(server, LIMIT).get(PODS, ObjectList)
    assert raised.value.retry_after == 7


def test_ca_without_key_identifiers(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on, a default context refuses it, although it is common in clusters."""
    real = ssl.create_default_context

    def strict(cadata: str) -> ssl.SSLContext:
        context = real(cadata=cadata)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    _, _, context = api(server)._credentials()
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT


def test_server_without_resource_claims(server: FakeApiServer) -> None:
    server.versions = ()
    with pytest.raises(LookupFailed, match="switch --kubernetes-dra off"):
        resource_slices.path(api(server))


class Stumbling:
    """A scripted API server whose first two watches fail if they continue at version 1."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.versions: list[str] = []
        self.listed = 0
        self.done = threading.Event()

    def close(self) -> None:
        """There is no connection."""

    def list_objects(self, path: str, **query: str) -> tuple[Sequence[Object], str]:
        """Return an empty list, at a version beyond the failure from the second time on."""
        self.listed += 1
        return [], str(self.listed)

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[WatchEvent | None]:
        """Fail after version 1."""
        self.versions.append(query["resourceVersion"])
        yield None
        if query["resourceVersion"] == "1" and len(self.versions) < 3:
            raise self.failure
        self.done.set()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(LookupFailed("malformed", "?"), "malformed"), (LookupFailed("refused", "?"), "refused"),
     (KeyError("metadata"), "internal_error")],
    ids=["malformed", "refused", "a bug"],
)  # fmt: skip
def test_watch_lists_again_after_an_event_that_it_cannot_read(
    failure: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not request the same event again."""
    monkeypatch.setattr("gpu_exporter.kubernetes.watch.LONGEST_WAIT", 0.1)
    script = Stumbling(failure)
    lookup: Lookup[Mapping[str, pods.PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, cast(Api, script), pods.path, pods.PodReader(), {})
    watch.start()
    assert script.done.wait(LIMIT)
    watch.stop()
    watch.join(LIMIT)
    assert script.versions[:2] == ["1", "2"]
    assert lookup.errors == {reason: 1}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"type": "ADDED"}, "malformed"),
        ({"type": "ADDED", "object": []}, "malformed"),
        ({"type": "MODIFIED", "object": {"metadata": "?"}}, "malformed"),
        ({"object": {}}, "malformed"),
        ({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410}}, "gone"),
        ({"type": "ERROR", "object": {"code": 500, "message": "etcd\nis \033[31mslow"}}, "refused"),
    ],
    ids=["no object", "a list", "no metadata", "no type", "gone", "refused"],
)
def test_event_that_is_an_error(server: FakeApiServer, event: Mapping[str, object], reason: str) -> None:
    server.raw = answer(json.dumps(event).encode() + b"\n")
    failure = error_of(lambda: list(api(server, LIMIT).watch(PODS, 1.0, resourceVersion="1")))
    assert failure.reason == reason
    assert str(failure).isprintable()


def test_bug_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, however often it happens."""
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
        patch.setattr("gpu_exporter.owners.choice.LONGEST_WAIT", 0.05)
        asker = Poller(lookup, ask, 0.01)
        asker.start()
        assert asked.wait(LIMIT)
        asker.stop()
        asker.join(LIMIT)
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info
    assert (lookup.up, lookup.errors["internal_error"]) == (False, count)
