"""What an exporter says about its node, judged: faulty, clean, or unknown. Pure.

The absence of data is neither a fault nor a recovery: whatever is old, simulated, released or of another node or boot
is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.node_answer import VERSION, GpuAnswer, NodeAnswer
from gpu_exporter.model.verdict import Action, Health, most_drastic

# Faults with other actions concern the application, not the node, or are only known to a newer exporter.
REPAIRS = {action.value: action for action in (Action.GPU_RESET, Action.NODE_REBOOT, Action.DRAIN, Action.REPLACE)}
# The length of a word that only a newer exporter knows.
MOST_WORD = 40
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


def judge(content: str, node: str, boot: str, *, degraded: bool) -> Evidence:
    """Return what the answer of `/api/v1/node` says about a node, whose present boot the API server knows.

    With `degraded`, degraded GPUs are faulty, too.
    """
    try:
        answer = json_as(NodeAnswer, content)
    except ValueError as error:
        return unknown(f"the exporter's answer cannot be read: {error}")
    if why := _useless(answer, node, boot):
        return unknown(why)
    gpus = answer["gpus"]
    faults = tuple(islice(_faults(answer, degraded=degraded), MOST_FAULTS))
    uuids = frozenset(gpu.get("UUID", "") for gpu in gpus)
    expected = max(answer["expected"], len(gpus))
    if faults:
        return Evidence(NodeFinding.FAULTY, answer["boot_id"], faults, gpus=uuids, expected=expected)
    unfit = next((gpu for gpu in gpus if gpu["health"] != Health.HEALTHY.value), None)
    if unfit:
        return unknown(f"GPU {unfit['gpu']} is {printable(unfit['health'], MOST_WORD)}")
    if not answer["ready"] or not gpus or answer["missing"]:
        return unknown(answer.get("problem") or "the exporter lists no GPU")
    clean = min(_seconds_since(gpu.get("since"), answer) for gpu in gpus)
    checked = min(_checked_at(gpu, answer["boot_id"]) for gpu in gpus)
    return Evidence(NodeFinding.CLEAN, answer["boot_id"], (), clean, uuids, expected, checked_at=checked)


def _seconds_since(since: float | None, answer: NodeAnswer) -> float:
    """Return how long a state had lasted at the collection; 0 if the exporter does not know it."""
    return max(0.0, answer["at"] - since) if since is not None else 0.0


def _checked_at(gpu: GpuAnswer, boot: str) -> float:
    """Return when a GPU passed its last active check on this boot (unix time); 0 if it did not."""
    last = gpu.get("active_check")
    if last is None or last["health"] != Health.HEALTHY.value or last.get("boot_id", "") != boot:
        return 0.0
    return last["at"]


def _useless(answer: NodeAnswer, node: str, boot: str) -> str:
    """Return why an answer says nothing about the node now; empty if it does."""
    if (version := answer["apiVersion"]) != VERSION:
        return f"the exporter speaks version {version} of /api/v1/node, not {VERSION}: upgrade both together"
    if not answer["live"]:
        return "the exporter serves simulated GPUs or a recording"
    if answer["node"] != node:
        return f"the exporter calls its node {answer['node']!r}: set GPU_EXPORTER_NODE_NAME to spec.nodeName"
    if not answer["boot_id"]:
        return "the exporter does not know its boot: it reads the GPUs of another machine"
    if answer["boot_id"] != boot:
        return "the exporter's answer is of another boot than the API server knows"
    if (age := answer.get("age", 0.0)) > MOST_AGE:
        return f"the exporter last collected {age:.0f} s ago"
    if answer.get("released_until") is not None:
        return "the driver is released for maintenance"
    return ""


def _faults(answer: NodeAnswer, *, degraded: bool) -> Iterator[ReportedFault]:
    serious = {Health.UNHEALTHY.value, *([Health.DEGRADED.value] if degraded else [])}
    for gpu in answer["gpus"]:
        for problem in gpu.get("problems", ()):
            action = REPAIRS.get(problem["action"])
            if action and problem["health"] in serious:
                xids = tuple(dict.fromkeys(event["xid"] for event in gpu.get("xids", ())))[:MOST_XIDS]
                yield ReportedFault(
                    gpu.get("UUID") or f"gpu{gpu['gpu']}",
                    problem["reason"],
                    action,
                    _seconds_since(problem.get("since"), answer),
                    problem.get("what", ""),
                    gpu.get("serial", ""),
                    gpu.get("pci_bus_id", ""),
                    xids,
                )
    if missing := answer["missing"]:
        words = f"{missing} of {answer['expected']} GPUs are missing"
        yield ReportedFault("", MISSING, Action.NODE_REBOOT, _seconds_since(answer.get("missing_since"), answer), words)
