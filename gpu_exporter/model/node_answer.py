"""The JSON of `/api/v1/node`, which the exporter composes and the remediation controller decodes.

Either may be older than the other. Keys that are required are those that a reader cannot do without; an older exporter
may lack others, and a newer one may have further keys, states, actions and reasons, which are therefore plain text.
"""

from __future__ import annotations

from typing import TypedDict

# A change that is not an addition gets a new number.
VERSION = 1


class UnknownAnswer(TypedDict):
    """What could not be read of a GPU, and why."""

    what: str
    why: str
    harmless: bool


class _LeastProblem(TypedDict):
    reason: str
    health: str
    action: str


class ProblemAnswer(_LeastProblem, total=False):
    """What is wrong with a GPU, and since when the exporter has seen it (unix time; null if it has not yet)."""

    what: str
    metric: str
    value: float
    since: float | None


class _LeastVerdict(TypedDict):
    gpu: int
    health: str


class VerdictAnswer(_LeastVerdict, total=False):
    """The verdict on a GPU, also in `/api/v1/gpus` and in the JSON of `check`."""

    UUID: str
    modelName: str
    action: str
    problems: list[ProblemAnswer]
    unknown: list[UnknownAnswer]


class _LeastXid(TypedDict):
    xid: int


class XidAnswer(_LeastXid, total=False):
    """An XID of a GPU."""

    at: float
    name: str
    kind: str
    action: str


class _LeastActiveCheck(TypedDict):
    at: float
    health: str


class ActiveCheckAnswer(_LeastActiveCheck, total=False):
    """The last active check of a GPU. `rates` are bytes/s or FLOP/s."""

    level: int
    boot_id: str
    rates: dict[str, float]
    problems: list[ProblemAnswer]


class GpuAnswer(VerdictAnswer, total=False):
    """One GPU. `since` is when the exporter first saw its verdict."""

    up: bool
    reason: str
    since: float | None
    serial: str
    pci_bus_id: str
    xids: list[XidAnswer]
    active_check: ActiveCheckAnswer | None


class _LeastNode(TypedDict):
    apiVersion: int
    node: str
    boot_id: str
    at: float
    live: bool
    ready: bool
    expected: int
    missing: int
    gpus: list[GpuAnswer]


class NodeAnswer(_LeastNode, total=False):
    """The state of a node. Times are unix seconds; `age` is that of the collection, by the exporter's own clock."""

    version: str
    age: float
    source: str
    problem: str
    missing_since: float | None
    released_until: float | None
