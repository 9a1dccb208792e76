"""Who holds the Lease and for how long, what is written to it, and what is read from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation.leader import Leader
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.settings import Exporters, Settings
from tests.support.json_patch import patched
from tests.support.remediation_world import World

STAMP = "2023-11-14T22:13:20.000000Z"  # when the world begins


class Site:
    """Two controllers and their Lease."""

    def __init__(self) -> None:
        self.world = World(Settings("gpu", Exporters("gpu"), ()), {}, 1, 0.0)
        self.first, self.second = (controller.leader for controller in self.world.controllers)

    @property
    def version(self) -> str:
        version: str = self.world.lease["metadata"]["resourceVersion"]
        return version

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.world.lease["spec"]
        return spec

    def annotation(self, name: str) -> Any:
        return json.loads(self.world.lease["metadata"]["annotations"][name])

    def writes(self, leader: Leader, method: str, *arguments: Any) -> bool:
        """Call a method; return whether it has written the Lease."""
        before = self.version
        getattr(leader, method)(*arguments)
        return self.version != before


@pytest.fixture
def site() -> Site:
    """Two controllers, of which the first one leads."""
    made = Site()
    assert made.first.take() is not None
    return made


def test_the_first_controller_creates_the_lease(site: Site) -> None:
    assert (site.first.leads, site.second.leads) == (True, False)
    assert site.world.lease == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "gpu-exporter-remediation",
            "namespace": "gpu",
            "annotations": {lease.CLAIMS: "{}"},
            "resourceVersion": site.version,
        },
        "spec": {
            "holderIdentity": "pod-1",
            "leaseDurationSeconds": 30,
            "acquireTime": STAMP,
            "renewTime": STAMP,
            "leaseTransitions": 0,
        },
    }


def test_nobody_leads_before_the_lease_is_read() -> None:
    made = Site()
    assert not made.first.leads
    made.first.renew()  # nothing is held
    assert made.world.lease is None


@pytest.mark.parametrize("seconds", [30, 60])
def test_a_lease_that_does_not_change_for_its_duration_is_taken(site: Site, seconds: int) -> None:
    """By the follower's own clock: what the holder wrote into it is not compared with anything."""
    site.spec["leaseDurationSeconds"] = seconds
    site.spec["renewTime"] = "1999-01-01T00:00:00.000000Z"
    site.spec["leaseTransitions"] = 6
    assert site.second.take() is None
    site.world.now += seconds - 0.5
    assert site.second.take() is None
    assert not site.second.leads
    site.world.now += 0.5
    taken = site.second.take()
    assert taken is not None
    assert taken.transitions == 7
    assert site.second.leads
    at = lease.stamp(site.world.now)
    assert site.spec == {
        "holderIdentity": "pod-2",
        "leaseDurationSeconds": 30,
        "acquireTime": at,
        "renewTime": at,
        "leaseTransitions": 7,
    }


def test_a_lease_that_changes_is_not_taken(site: Site) -> None:
    for _ in range(5):
        assert site.second.take() is None
        site.world.now += 25
        assert site.first.take() is not None
    assert site.spec["acquireTime"] == STAMP
    assert site.spec["renewTime"] == lease.stamp(site.world.now)
    assert site.spec["leaseTransitions"] == 0
    site.world.now += 25
    assert site.second.take() is None, "it has seen the last change only now"


def test_a_holder_that_does_not_renew_does_not_lead(site: Site) -> None:
    site.world.now += 29.5
    assert site.first.leads
    site.world.now += 0.5
    assert not site.first.leads
    assert not site.writes(site.first, "renew")
    with pytest.raises(LookupFailed, match="has expired during a cycle"):
        site.first.keep()


def test_a_released_lease_is_taken_at_once(site: Site) -> None:
    site.first.stop()
    assert site.spec["holderIdentity"] == ""
    assert not site.first.leads
    assert site.second.take() is not None
    assert site.spec["holderIdentity"] == "pod-2"
    assert not site.writes(site.first, "stop"), "it is of the other one now"
    assert site.second.leads


@pytest.mark.parametrize("method", ["renew", "keep"])
def test_the_lease_is_renewed_every_ten_seconds(site: Site, method: str) -> None:
    site.world.now += 9.5
    assert not site.writes(site.first, method)
    site.world.now += 0.5
    assert site.writes(site.first, method)
    assert site.spec["renewTime"] == lease.stamp(site.world.now)
    site.world.now += 9.5
    assert not site.writes(site.first, method)


def test_claims_are_kept_beside_each_other(site: Site) -> None:
    """A claim is written even if it exists, so that it fails if another leader has changed the Lease."""
    site.world.now += 5
    assert site.writes(site.first, "claim", "n1", "b")
    assert site.writes(site.first, "claim", "n0", "a")
    assert site.writes(site.first, "claim", "n0", "a")
    assert site.annotation(lease.CLAIMS) == {"n0": "a", "n1": "b"}
    assert site.spec["renewTime"] == lease.stamp(site.world.now)
    assert site.writes(site.first, "unclaim", "n1")
    assert site.annotation(lease.CLAIMS) == {"n0": "a"}
    assert not site.writes(site.first, "unclaim", "n1")
    assert site.first.ledger is not None
    assert site.first.ledger.claims == {"n0": "a"}


def test_the_breaker_is_written_when_it_changes(site: Site) -> None:
    assert not site.writes(site.first, "set_breaker", {})
    assert site.writes(site.first, "set_breaker", {"stalled": 7.0})
    assert site.annotation(lease.BREAKER) == {"stalled": 7.0}
    assert not site.writes(site.first, "set_breaker", {"stalled": 7.0})
    assert site.writes(site.first, "set_breaker", {})
    assert site.annotation(lease.BREAKER) == {}


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("claim", ("n0", "a")), ("unclaim", ("n9",)), ("set_breaker", ({"lost": 1.0},)), ("renew", ()), ("stop", ())],
)
def test_a_write_to_a_lease_that_has_changed_fails(site: Site, method: str, arguments: Any) -> None:
    """Whoever changed it, this controller must read it again before it writes anything."""
    site.first.claim("n9", "a")
    site.world.pause("x")
    site.world.now += 10
    with pytest.raises(LookupFailed, match="resourceVersion"):
        getattr(site.first, method)(*arguments)
    assert not site.first.leads
    assert site.first.take() is not None
    assert site.first.leads


def test_what_a_lease_says() -> None:
    assert lease.read({}) == Ledger()
    texts = {
        lease.CLAIMS: '{"n0": "a"}',
        lease.BREAKER: '{"lost": 5}',
        lease.PAUSED: "rollout",
        lease.BREAKER_RESET: " 2023-11-14T22:13:20Z\n",
    }
    spec: Any = {"holderIdentity": "me", "renewTime": STAMP, "leaseTransitions": 3, "leaseDurationSeconds": 15}
    assert lease.read({"metadata": {"resourceVersion": "7", "annotations": texts}, "spec": spec}) == Ledger(
        "me", "7", 3, 15, True, {"n0": "a"}, {"lost": 5.0}, "rollout", 1_700_000_000.0
    )


@pytest.mark.parametrize("name", [lease.CLAIMS, lease.BREAKER, lease.BREAKER_RESET])
def test_what_cannot_be_read_is_named(name: str) -> None:
    found = lease.read({"metadata": {"annotations": {name: "broken"}}})
    assert found.problem.startswith("an annotation of the Lease cannot be read: ")
    assert (found.claims, found.breaker) == ({}, {})


@pytest.mark.parametrize("present", [{}, {"annotations": {"a/b~c": "x"}}])
def test_annotations_are_added_to_those_of_others(present: Any) -> None:
    """People may have removed all of them."""
    item: Any = {"metadata": {"resourceVersion": "7", **present}, "spec": {"renewTime": ""}}
    new = patched(item, lease.claimed(lease.read(item), {"n0": "a"}, 1_700_000_000.0))
    assert new["metadata"]["annotations"] == {**present.get("annotations", {}), lease.CLAIMS: '{"n0": "a"}'}
    assert new["spec"] == {"renewTime": STAMP}
    assert lease.escaped("a/b~c") == "a~1b~0c"
