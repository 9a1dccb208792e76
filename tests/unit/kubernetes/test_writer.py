"""Writes to the API server: refused if the object has changed, checked alone in a dry run, never repeated by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.kubernetes.client import server_address
from gpu_exporter.kubernetes.objects import LeaseObject, NodeList, NodeObject
from gpu_exporter.kubernetes.writer import FIELD_MANAGER, KubernetesWriter, Operation, RequestLimit
from gpu_exporter.model.lookup import LookupFailed
from tests.support.fakes.apiserver import FakeApiServer

NODES = "/api/v1/nodes"
NODE = f"{NODES}/n"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases"


class Counted(RequestLimit):
    """Counts the requests, and delays none."""

    def __init__(self) -> None:
        super().__init__(1.0, 1)
        self.taken = 0

    def take(self) -> None:
        self.taken += 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeApiServer]:
    """A running API server with a node."""
    running = FakeApiServer(tmp_path)
    running.put(NODES, {"metadata": {"name": "n", "uid": "u", "annotations": {}}, "spec": {}})
    yield running
    running.stop()


@pytest.fixture
def rate() -> Counted:
    return Counted()


@pytest.fixture
def writer(server: FakeApiServer, rate: Counted) -> Iterator[KubernetesWriter]:
    """A client of it."""
    client = KubernetesWriter(*server_address(server.environment, "this test runs"), server.account, 5.0, rate)
    yield client
    client.close()


def cordon(version: str) -> list[Operation]:
    """Return a patch of a node as it was read at this version."""
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [test, {"op": "add", "path": "/spec/unschedulable", "value": True}]


def version(server: FakeApiServer) -> str:
    return str((server.item(NODE) or {})["metadata"]["resourceVersion"])


def cordoned(server: FakeApiServer) -> Any:
    return (server.item(NODE) or {})["spec"].get("unschedulable")


def test_a_patch_returns_the_new_object(server: FakeApiServer, writer: KubernetesWriter) -> None:
    """It has a new version, and this client is the owner of what it set."""
    before = version(server)
    after = writer.patch(NODE, cordon(before), NodeObject)
    assert after["spec"]["unschedulable"] is True
    assert after["metadata"]["resourceVersion"] == version(server) != before
    assert [each["manager"] for each in after["metadata"]["managedFields"] or ()] == [FIELD_MANAGER]


def test_an_object_that_has_changed_is_a_conflict(server: FakeApiServer, writer: KubernetesWriter) -> None:
    """The version of the read is tested, so another client's change in between is not overwritten."""
    old = version(server)
    server.put(NODES, {**(server.item(NODE) or {}), "spec": {"taints": [{"key": "other"}]}})
    with pytest.raises(LookupFailed, match="422: the object has changed since it was read") as raised:
        writer.patch(NODE, cordon(old), NodeObject)
    assert raised.value.reason == "conflict"
    assert cordoned(server) is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [(409, "conflict"), (403, "forbidden"), (404, "not_found"), (429, "too_many_requests"), (500, "http_500")],
)
def test_a_refused_write_is_sent_once(
    server: FakeApiServer, writer: KubernetesWriter, status: int, reason: str
) -> None:
    """The caller reads again and decides anew."""
    server.refusals.append(status)
    with pytest.raises(LookupFailed) as raised:
        writer.patch(NODE, cordon(version(server)), NodeObject)
    assert raised.value.reason == reason
    assert len(server.written) == 1
    assert cordoned(server) is None


def test_a_missing_right_is_named(server: FakeApiServer, writer: KubernetesWriter) -> None:
    server.refusals.append(403)
    with pytest.raises(LookupFailed, match="the service account needs the verb patch"):
        writer.patch(NODE, cordon(version(server)), NodeObject)


@pytest.mark.parametrize(("after", "seconds"), [(7, 7.0), (None, 0.0)])
def test_how_long_a_server_asks_to_wait(
    server: FakeApiServer, writer: KubernetesWriter, after: int | None, seconds: float
) -> None:
    """A 429 of priority and fairness has a Retry-After, that of a disruption budget often none."""
    server.refusals.append(429)
    server.retry_after = after
    with pytest.raises(LookupFailed) as raised:
        writer.patch(NODE, cordon(version(server)), NodeObject)
    assert raised.value.retry_after == seconds


def test_a_dry_run_stores_nothing(server: FakeApiServer, writer: KubernetesWriter) -> None:
    """The server checks it like a write: a test that fails is a conflict."""
    before = version(server)
    after = writer.patch(NODE, cordon(before), NodeObject, dry_run=True)
    assert after["spec"]["unschedulable"] is True
    assert (version(server), cordoned(server)) == (before, None)
    with pytest.raises(LookupFailed, match="changed since it was read"):
        writer.patch(NODE, cordon("1"), NodeObject, dry_run=True)
    assert server.written == [("PATCH", NODE, True)] * 2


def test_an_object_of_this_name_is_a_conflict(server: FakeApiServer, writer: KubernetesWriter) -> None:
    """Two controllers may create the Lease at once: one of them fails."""
    lease = {"metadata": {"name": "a", "namespace": "gpu"}, "spec": {"holderIdentity": "one"}}
    assert writer.create(LEASES, lease, LeaseObject)["spec"]["holderIdentity"] == "one"
    with pytest.raises(LookupFailed) as raised:
        writer.create(LEASES, {**lease, "spec": {"holderIdentity": "two"}}, LeaseObject)
    assert raised.value.reason == "conflict"
    assert (server.item(f"{LEASES}/a") or {})["spec"]["holderIdentity"] == "one"


def test_a_write_whose_answer_is_lost_is_not_repeated(server: FakeApiServer, writer: KubernetesWriter) -> None:
    """It may have been carried out: the caller reads the object again."""
    writer.get(NODE, NodeObject)
    server.loses_answers = True
    with pytest.raises(LookupFailed) as raised:
        writer.patch(NODE, cordon(version(server)), NodeObject)
    assert raised.value.reason == "unavailable"
    assert len(server.written) == 1
    assert writer.get(NODE, NodeObject)["spec"]["unschedulable"] is True


def test_every_request_is_limited_in_rate(server: FakeApiServer, writer: KubernetesWriter, rate: Counted) -> None:
    """Each page of a list is a request."""
    for number in range(5):
        server.put(NODES, {"metadata": {"name": f"n{number}"}})
    server.page_size = 2
    names = [item["metadata"]["name"] for page in writer.pages(NODES, NodeList) for item in page["items"] or ()]
    assert sorted(names) == ["n", "n0", "n1", "n2", "n3", "n4"]
    assert rate.taken == 3
    writer.get(NODE, NodeObject)
    writer.patch(NODE, cordon(version(server)), NodeObject, dry_run=True)
    assert rate.taken == 5
