"""The Lease: who leads, which nodes are claimed, and what stops the controller. Pure: an object -> JSON patches.

A node is cordoned only after it is claimed, and a claim is a write to the Lease that fails if anything in it has
changed since it was read. So two leaders cannot exceed the budget together, whatever their clocks and caches say.
`fleet.py` counts claims, and `controller.py` gives one back only after a write to the node that makes an older leader's
write fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.kubernetes.objects import LeaseObject
from gpu_exporter.kubernetes.writer import Operation
from gpu_exporter.remediation.state import PREFIX

CLAIMS = f"{PREFIX}/claims"
BREAKER = f"{PREFIX}/breaker"
# Written by people.
PAUSED = f"{PREFIX}/paused"
BREAKER_RESET = f"{PREFIX}/breaker-reset"
# For how long the Lease is valid after its last renewal (seconds).
LEASE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the Lease says. `claims` maps nodes to pools, `breaker` a reason to when it last tripped (unix seconds).

    `paused` is why a person has paused the controller, `reset` when a person has closed the breaker (unix seconds).
    `problem` says what cannot be read; nothing new is done then.
    """

    holder: str = ""
    version: str = ""
    transitions: int = 0
    seconds: int = LEASE_SECONDS
    annotated: bool = False
    claims: Mapping[str, str] = field(default_factory=dict)
    breaker: Mapping[str, float] = field(default_factory=dict)
    paused: str = ""
    reset: float = 0.0
    problem: str = ""


def read(item: LeaseObject) -> Ledger:
    """Return what a Lease says."""
    metadata, spec = item.get("metadata", {}), item.get("spec", {})
    annotations = metadata.get("annotations")
    texts = annotations or {}
    claims: Mapping[str, str] = {}
    breaker: Mapping[str, float] = {}
    reset, problem = 0.0, ""
    try:
        claims = json_as(dict[str, str], texts.get(CLAIMS, "{}"))
        breaker = json_as(dict[str, float], texts.get(BREAKER, "{}"))
        reset = _unix(texts[BREAKER_RESET]) if BREAKER_RESET in texts else 0.0
    except ValueError as error:
        problem = f"an annotation of the Lease cannot be read: {printable(str(error), 200)}"
    return Ledger(
        spec.get("holderIdentity") or "",
        metadata.get("resourceVersion", ""),
        spec.get("leaseTransitions") or 0,
        spec.get("leaseDurationSeconds") or LEASE_SECONDS,
        annotations is not None,
        claims,
        breaker,
        texts.get(PAUSED, ""),
        reset,
        problem,
    )


def _unix(text: str) -> float:
    """Return RFC 3339 as unix time. Raises ValueError."""
    return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()


def stamp(now: float) -> str:
    """Return a unix time in the form of `renewTime`."""
    return datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_lease(namespace: str, name: str, identity: str, now: float) -> LeaseObject:
    """Return a Lease that this controller holds."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace, "annotations": {CLAIMS: "{}"}},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "acquireTime": stamp(now),
            "renewTime": stamp(now),
            "leaseTransitions": 0,
        },
    }  # type: ignore[typeddict-unknown-key]


def held_by(ledger: Ledger, identity: str, now: float) -> list[Operation]:
    """Return the patch that renews the Lease, or takes it from another holder."""
    operations: list[Operation] = [_unchanged(ledger), add("/spec/renewTime", stamp(now))]
    if ledger.holder != identity:
        operations += [
            add("/spec/holderIdentity", identity),
            add("/spec/leaseDurationSeconds", LEASE_SECONDS),
            add("/spec/acquireTime", stamp(now)),
            add("/spec/leaseTransitions", ledger.transitions + 1),
        ]
    return operations


def released(ledger: Ledger) -> list[Operation]:
    """Return the patch that gives up the Lease, so that another controller need not wait."""
    return [_unchanged(ledger), add("/spec/holderIdentity", "")]


def claimed(ledger: Ledger, claims: Mapping[str, str], now: float) -> list[Operation]:
    """Return the patch that replaces the claims, and renews the Lease."""
    return _annotated(ledger, CLAIMS, json.dumps(claims, sort_keys=True), now)


def tripped(ledger: Ledger, breaker: Mapping[str, float], now: float) -> list[Operation]:
    """Return the patch that replaces the state of the breaker, and renews the Lease."""
    return _annotated(ledger, BREAKER, json.dumps(breaker, sort_keys=True), now)


def _annotated(ledger: Ledger, name: str, text: str, now: float) -> list[Operation]:
    parent: list[Operation] = [] if ledger.annotated else [add("/metadata/annotations", {})]
    value = add(f"/metadata/annotations/{escaped(name)}", text)
    return [_unchanged(ledger), *parent, value, add("/spec/renewTime", stamp(now))]


def _unchanged(ledger: Ledger) -> Operation:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": ledger.version}


def add(path: str, value: object) -> Operation:
    """Return the operation that sets a member of an object, also of one that is there."""
    return {"op": "add", "path": path, "value": value}


def escaped(key: str) -> str:
    """Return a key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
