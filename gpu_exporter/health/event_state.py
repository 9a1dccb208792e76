"""The content of `events.json`: what the next process needs to continue the counts. Times are unix times.

Whatever the file contains, a state that was decoded is bounded in size and has times and counts that can be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypedDict

from gpu_exporter.health.kernel_log_entry import XidLine
from gpu_exporter.health.xid_counts import ELSEWHERE, EPOCHS
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.pci import pci_bus_id

# What the limits on counts and events allow at most is about 5 MiB.
LARGEST_STATE = 8 << 20
MOST_GPUS = 32
KEPT = 256
# Longest texts of an event, in characters. A message of the kernel has 1024 bytes at most.
MESSAGE_LENGTH, TEXT_LENGTH = 1024, 256
MOST_EVIDENCE = 64
# The year 5138. A time in the future is clamped; one beyond this is not a time.
LATEST = 1e11
LARGEST_COUNT = 1 << 53
LARGEST_CODE = 999_999

XID_SOURCES = ("nvml", "kernel")


@dataclass(slots=True)
class Event:
    """One XID: when (unix time), where, what it means, who reported it, which process caused it, the GPU's values then.

    `clamped`: its time was in the future, and the time at which gpu-exporter read it is used instead. Internal fields:
    `epoch` is that of its tally, `happened` the monotonic time, `written` whether the history file contains it.
    """

    epoch: float
    at: float
    pci_bus_id: str
    xid: int
    name: str
    kind: str
    action: str
    meaning: str
    gpu: int | None = None
    uuid: str = ""
    instance: int | None = None
    pid: int | None = None
    process: str = ""
    message: str = ""
    witnesses: list[str] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=dict)
    clamped: bool = False
    written: bool = False
    happened: float = 0.0

    def shown(self) -> dict[str, Any]:
        """Return the event for JSON, without internal fields."""
        values = {name: getattr(self, name) for name in SHOWN}
        return {**values, "witnesses": [*self.witnesses], "evidence": {**self.evidence}}

    def take(self, line: XidLine) -> None:
        """Take what the kernel log says of the event."""
        self.pid, self.process, self.message = line.pid, line.name, line.message
        self.shorten()
        if line.detail:
            self.meaning += f"; {line.detail}"
        if line.recovery_action is not None:  # what the driver asks for outranks the table
            self.action = line.recovery_action.value
        if self.instance is None:
            self.instance = line.instance

    def shorten(self) -> None:
        """Bound the length of every text, and leave out what a terminal would obey."""
        self.message = printable(self.message, MESSAGE_LENGTH)
        self.process = printable(self.process, TEXT_LENGTH)


SHOWN = tuple(each.name for each in fields(Event) if each.name not in ("epoch", "happened", "written"))


class TallyState(NamedTuple):
    """The counts of one code on one GPU: those of merged epochs, and of each epoch by NVML and by the kernel log."""

    pci: str
    code: int
    earlier: int
    last: float
    epochs: list[tuple[float, int, int]]


class SxidState(NamedTuple):
    """The count of one code on one switch."""

    pci: str
    code: int
    fatal: str
    number: int
    last: float


class State(TypedDict):
    """Everything: how far the kernel log was read, registrations with NVML by GPU, counts, and the last events."""

    position: tuple[str, int] | None
    since: dict[str, list[float]]
    tallies: list[TallyState]
    sxids: list[SxidState]
    recent: list[Event]


class _File(TypedDict):
    events: State


def decode(content: bytes) -> State:
    """Decode a state file. Raises ValueError with one line that says what is wrong."""
    state = json_as(_File, content)["events"]
    if not all(0 <= at < LATEST for at in _times(state)):
        raise ValueError("a time is out of range")
    if not all(0 <= count <= LARGEST_COUNT for count in _counts(state)):
        raise ValueError("a count is out of range")
    if not all(0 <= code <= LARGEST_CODE for code in _codes(state)):
        raise ValueError("an XID code is out of range")
    if not all(pci in ("", ELSEWHERE, pci_bus_id(pci)) for pci in _addresses(state)):
        raise ValueError("a PCI address is malformed")
    if any(len(tally.epochs) > EPOCHS for tally in state["tallies"]):
        raise ValueError(f"an XID has counts of more than {EPOCHS} registrations")
    if any(sxid.fatal not in ("", "true", "false") for sxid in state["sxids"]):
        raise ValueError("the severity of an SXid is neither fatal nor non-fatal")
    if state["position"] and len(state["position"][0]) > TEXT_LENGTH:
        raise ValueError("the position in the kernel log is malformed")
    if any(
        len(event.witnesses) > len(XID_SOURCES) or not {*event.witnesses} <= {*XID_SOURCES} for event in state["recent"]
    ):
        raise ValueError("an event has a witness that is neither nvml nor kernel")
    state["since"] = {pci: sorted(times)[-EPOCHS:] for pci, times in list(state["since"].items())[-MOST_GPUS:]}
    state["recent"] = [_bounded(event) for event in state["recent"][-KEPT:]]
    return state


def _times(state: State) -> Iterator[float]:
    for times in state["since"].values():
        yield from times
    for tally in state["tallies"]:
        yield tally.last
        yield from (since for since, _, _ in tally.epochs)
    yield from (sxid.last for sxid in state["sxids"])
    for event in state["recent"]:
        yield from (event.at, event.epoch)


def _counts(state: State) -> Iterator[int]:
    if state["position"]:
        yield state["position"][1]
    for tally in state["tallies"]:
        yield tally.earlier
        for _, nvml, kernel in tally.epochs:
            yield from (nvml, kernel)
    yield from (sxid.number for sxid in state["sxids"])


def _codes(state: State) -> Iterator[int]:
    yield from (tally.code for tally in state["tallies"])
    yield from (sxid.code for sxid in state["sxids"])
    yield from (event.xid for event in state["recent"])


def _addresses(state: State) -> Iterator[str]:
    yield from state["since"]
    yield from (tally.pci for tally in state["tallies"])
    yield from (sxid.pci for sxid in state["sxids"])
    yield from (event.pci_bus_id for event in state["recent"])


def _bounded(event: Event) -> Event:
    event.shorten()
    for name in ("name", "kind", "action", "meaning", "uuid"):
        setattr(event, name, printable(getattr(event, name), TEXT_LENGTH))
    evidence = list(event.evidence.items())[:MOST_EVIDENCE]
    event.evidence = {printable(name, TEXT_LENGTH): value for name, value in evidence}
    return event
