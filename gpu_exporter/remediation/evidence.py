"""What an exporter says about its node, judged: faulty, clean, or unknown. Pure.

The absence of data is neither a fault nor a recovery: whatever is old, simulated, released or of another node or boot
is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from gpu_exporter.io.decoding import json_as
from gpu_exporter.model.verdict import Action, Health

VERSION = 1
# Faults with other actions concern the application, not the node.
REPAIRS = (Action.GPU_RESET, Action.NODE_REBOOT, Action.DRAIN, Action.REPLACE)
MOST_XIDS = 8
# The faults of a node that are considered; more would not fit into its annotations.
MOST_FAULTS = 32
MISSING = "missing"
# A collection older than this (seconds, by the exporter's own clock) says nothing about the node now.
MOST_AGE = 60.0


class NodeFinding(Enum):
    """What is known about the GPUs of a node."""

    FAULTY = "faulty"
    CLEAN = "clean"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReportedFault:
    """A fault of a GPU, or of the node if `uuid` is empty. `age` is for how long the exporter has seen it (seconds)."""

    uuid: str
    reason: str
    action: Action
    age: float
    words: str = ""
    serial: str = ""
    pci: str = ""
    xids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an exporter says. `why` explains an unknown, `clean_for` is for how long all GPUs have been healthy (s).

    `checked_at` is since when all GPUs have passed an active check on this boot (unix time); 0 if one has not.
    """

    finding: NodeFinding
    boot: str = ""
    faults: tuple[ReportedFault, ...] = ()
    clean_for: float = 0.0
    gpus: frozenset[str] = frozenset()
    expected: int = 0
    why: str = ""
    checked_at: float = 0.0

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """The UUID and the reason of each fault."""
        return tuple((fault.uuid, fault.reason) for fault in self.faults)

    @property
    def action(self) -> Action:
        """The most drastic action that the faults need."""
        return most_drastic(fault.action for fault in self.faults)

    @property
    def age(self) -> float:
        """For how long the oldest fault has been seen (seconds)."""
        return max((fault.age for fault in self.faults), default=0.0)


def unknown(why: str) -> Evidence:
    """Return evidence of nothing."""
    return Evidence(NodeFinding.UNKNOWN, why=why)


def most_drastic(actions: Iterator[Action]) -> Action:
    """Return the most drastic of some actions; NONE if there are none."""
    return max(actions, key=list(Action).index, default=Action.NONE)


@dataclass(slots=True)
class _Problem:
    reason: str
    health: Health
    action: Action
    what: str = ""
    since: float | None = None


@dataclass(slots=True)
class _Xid:
    xid: int


@dataclass(slots=True)
class _ActiveCheck:
    at: float
    health: Health
    boot_id: str = ""


@dataclass(slots=True)
class _Gpu:
    gpu: int
    health: Health
    UUID: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    since: float | None = None
    problems: list[_Problem] = field(default_factory=list)
    xids: list[_Xid] = field(default_factory=list)
    active_check: _ActiveCheck | None = None


@dataclass(slots=True)
class _Answer:
    apiVersion: int
    node: str
    boot_id: str
    at: float
    live: bool
    ready: bool
    expected: int
    missing: int
    gpus: list[_Gpu]
    age: float = 0.0
    problem: str = ""
    missing_since: float | None = None
    released_until: float | None = None


def judge(content: str, node: str, boot: str, *, degraded: bool) -> Evidence:
    """Return what the answer of `/api/v1/node` says about a node, whose present boot the API server knows.

    With `degraded`, degraded GPUs are faulty, too.
    """
    try:
        answer = json_as(_Answer, content)
    except ValueError as error:
        return unknown(f"the exporter's answer cannot be read: {error}")
    if why := _useless(answer, node, boot):
        return unknown(why)
    faults = tuple(islice(_faults(answer, degraded=degraded), MOST_FAULTS))
    gpus = frozenset(gpu.UUID for gpu in answer.gpus)
    expected = max(answer.expected, len(answer.gpus))
    if faults:
        return Evidence(NodeFinding.FAULTY, answer.boot_id, faults, gpus=gpus, expected=expected)
    unfit = next((gpu for gpu in answer.gpus if gpu.health is not Health.HEALTHY), None)
    if unfit:
        return unknown(f"GPU {unfit.gpu} is {unfit.health.value}")
    if not answer.ready or not answer.gpus or answer.missing:
        return unknown(answer.problem or "the exporter lists no GPU")
    clean = min(answer.at - gpu.since if gpu.since is not None else 0.0 for gpu in answer.gpus)
    checked = min(_checked_at(gpu, answer.boot_id) for gpu in answer.gpus)
    return Evidence(NodeFinding.CLEAN, answer.boot_id, (), max(0.0, clean), gpus, expected, checked_at=checked)


def _checked_at(gpu: _Gpu, boot: str) -> float:
    """Return when a GPU passed its last active check on this boot (unix time); 0 if it did not."""
    last = gpu.active_check
    return last.at if last is not None and last.health is Health.HEALTHY and last.boot_id == boot else 0.0


def _useless(answer: _Answer, node: str, boot: str) -> str:
    """Return why an answer says nothing about the node now; empty if it does."""
    if answer.apiVersion != VERSION:
        return f"the exporter speaks version {answer.apiVersion} of /api/v1/node, not {VERSION}: upgrade both together"
    if not answer.live:
        return "the exporter serves simulated GPUs or a recording"
    if answer.node != node:
        return f"the exporter calls its node {answer.node!r}: set GPU_EXPORTER_NODE_NAME to spec.nodeName"
    if not answer.boot_id:
        return "the exporter does not know its boot: it reads the GPUs of another machine"
    if answer.boot_id != boot:
        return "the exporter's answer is of another boot than the API server knows"
    if answer.age > MOST_AGE:
        return f"the exporter last collected {answer.age:.0f} s ago"
    if answer.released_until is not None:
        return "the driver is released for maintenance"
    return ""


def _faults(answer: _Answer, *, degraded: bool) -> Iterator[ReportedFault]:
    for gpu in answer.gpus:
        for problem in gpu.problems:
            serious = problem.health is Health.UNHEALTHY or (degraded and problem.health is Health.DEGRADED)
            if serious and problem.action in REPAIRS:
                age = answer.at - problem.since if problem.since is not None else 0.0
                xids = tuple(dict.fromkeys(each.xid for each in gpu.xids))[:MOST_XIDS]
                yield ReportedFault(
                    gpu.UUID or f"gpu{gpu.gpu}",
                    problem.reason,
                    problem.action,
                    max(0.0, age),
                    problem.what,
                    gpu.serial,
                    gpu.pci_bus_id,
                    xids,
                )
    if answer.missing:
        age = answer.at - answer.missing_since if answer.missing_since is not None else 0.0
        words = f"{answer.missing} of {answer.expected} GPUs are missing"
        yield ReportedFault("", MISSING, Action.NODE_REBOOT, max(0.0, age), words)
