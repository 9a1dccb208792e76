"""One cycle of the controller, against a cluster in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation import ledger as lease
from gpu_exporter.remediation.settings import Breaker, Budget, Exporters, Mode, Pool, Settings
from tests.support.remediation_world import Proxy, World

POOL = Pool("a", "pool=a", Mode.CORDON, Budget(2, 1.0), confirm="1s")
SETTINGS = Settings("gpu", Exporters("gpu"), (POOL,), breaker=Breaker(9))


def world() -> World:
    """Return a cluster of four nodes in which nothing goes wrong by itself."""
    return World(SETTINGS, {f"n{place}": {"pool": "a"} for place in range(4)}, 1, 0.0)


def test_a_node_whose_change_is_refused_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission webhook may refuse one node for ever; another one still is cordoned, and the cycle is complete."""
    of = world()
    write = Proxy.patch_node

    def refuse(of: Proxy, name: str, operations: Sequence[Operation], *, dry_run: bool) -> None:
        if name == "n0":
            raise LookupFailed("http_400", "admission webhook denied the request")
        write(of, name, operations, dry_run=dry_run)

    monkeypatch.setattr(Proxy, "patch_node", refuse)
    of.fail("n0", "stalled")
    of.fail("n1", "stalled")
    of.now += 60
    assert of.controllers[0].cycle().plan is not None
    assert cordoned(of) == ["n1"]


def cordoned(of: World) -> list[str]:
    return [name for name, item in of.objects.items() if item["spec"].get("unschedulable")]


@pytest.mark.parametrize("annotation", [lease.CLAIMS, lease.BREAKER, lease.BREAKER_RESET])
def test_what_cannot_be_read_is_not_overwritten(annotation: str) -> None:
    """An unreadable Lease stops everything until a person repairs it: it may have the claims of another leader."""
    of = world()
    of.fail("n0", "stalled")
    of.now += 60
    of.cycle(0)
    assert cordoned(of) == ["n0"]
    annotations = of.lease["metadata"]["annotations"]
    before, annotations[annotation] = annotations.get(annotation), "broken"
    of.fail("n1", "stalled")
    for _ in range(3):
        of.now += 60
        of.cycle(0)
    assert of.lease["metadata"]["annotations"][annotation] == "broken"
    assert cordoned(of) == ["n0"]
    of.lease["metadata"]["annotations"][annotation] = before
    if before is None:
        del of.lease["metadata"]["annotations"][annotation]
    of.now += 60
    of.cycle(0)
    assert cordoned(of) == ["n0", "n1"]
