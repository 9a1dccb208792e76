"""Counts of XIDs by GPU and code, and of SXids by switch and code, with a limit on the number of series.

A text log can be forged, so it may name any number of codes and PCI addresses. Beyond the limits below, further ones
share a series: with the code `OTHER` of the same GPU, or with the address `ELSEWHERE`.

When something happened is known in unix time for people, and by the monotonic clock for every decision: the wall clock
can be set, and a log may contain any date, but the monotonic clock only ever advances.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.catalogue.xids import Catalogue

# A time that is less than this in the future is now: the kernel's clock drifts, and logs round.
SLACK_SECONDS = 1.0


class Now(NamedTuple):
    """Both clocks, read together: unix time and monotonic seconds."""

    unix: float
    monotonic: float


class Moment(NamedTuple):
    """A time by both clocks. `clamped`: it was given as a time in the future, and the present is used instead."""

    at: float
    monotonic: float
    clamped: bool = False


NEVER = Moment(0.0, float("-inf"))
Clocks = Callable[[], Now]


def read_clocks() -> Now:
    """Return the present time."""
    return Now(time.time(), time.monotonic())


def moment(at: float, now: Now) -> Moment:
    """Return the moment of the unix time `at`; that of a time in the future is `now`."""
    if at - now.unix > SLACK_SECONDS:
        return Moment(now.unix, now.monotonic, clamped=True)
    return Moment(min(at, now.unix), now.monotonic - max(0.0, now.unix - at))


log = logging.getLogger(__name__)

# The most registrations of a GPU that have counts of their own; the counts of older ones are merged.
EPOCHS = 32
# The most codes of a GPU that the catalogue does not have. At an address without a GPU, this limits all codes that do
# not require a drain.
MOST_CODES = 16
# The most PCI addresses without a GPU. A GPU that was lost before the exporter started has such an address.
MOST_ADDRESSES = 32
MOST_SXIDS = 256

OTHER = 0  # no XID has this code
ELSEWHERE = "other"

Key = tuple[str, int]
SxidKey = tuple[str, int, str]


def label(code: int) -> str:
    """Return the value of the label `xid` or `sxid`."""
    return "other" if code == OTHER else str(code)


@dataclass(slots=True)
class Tally:
    """The number of XIDs of one code on a GPU, by NVML and by the kernel log, for each epoch; and the last of them.

    An epoch begins when gpu-exporter registers for NVML's events (monotonic seconds; 0: before any registration). Each
    source reports an event at most once, so the higher of the two counts is used, whatever the order and the delay of
    the reports.
    """

    earlier: int = 0
    epochs: dict[float, list[int]] = field(default_factory=dict)
    last: Moment = NEVER

    @property
    def total(self) -> int:
        return self.earlier + sum(max(seen) for seen in self.epochs.values())

    def add(self, since: float, source: int, moment: Moment) -> bool:
        """Count one report; return whether it is of an event that the other source has not reported yet."""
        seen = self.epochs.setdefault(since, [0, 0])
        seen[source] += 1
        self.seen_at(moment)
        self._merge_oldest()
        return seen[source] > seen[1 - source]

    def add_all(self, earlier: int, epochs: Mapping[float, tuple[int, int]], last: Moment) -> None:
        """Add the counts of another tally."""
        self.earlier += earlier
        for since, counts in epochs.items():
            seen = self.epochs.setdefault(since, [0, 0])
            for source, count in enumerate(counts):
                seen[source] += count
        self.seen_at(last)
        self._merge_oldest()

    def seen_at(self, moment: Moment) -> None:
        """Keep the later moment."""
        if moment.monotonic >= self.last.monotonic:
            self.last = moment

    def _merge_oldest(self) -> None:
        while len(self.epochs) > EPOCHS:
            self.earlier += max(self.epochs.pop(min(self.epochs)))


@dataclass(slots=True)
class SxidTally:
    """The number of SXids of one code on a switch, and the last of them."""

    count: int = 0
    last: Moment = NEVER


class XidCounts:
    """All tallies. `tallies` and `sxids` are for reading: only the methods add keys. Not thread-safe."""

    def __init__(self, xids: Catalogue) -> None:
        self.tallies: dict[Key, Tally] = {}
        self.sxids: dict[SxidKey, SxidTally] = {}
        self._documented, self._drain = frozenset(xids.rows), frozenset(xids.drain_codes)
        self._addresses: set[str] = set()
        self._codes: Counter[str] = Counter()
        self._reported: set[str] = set()

    def tally(self, pci: str, code: int, *, has_gpu: bool) -> tuple[Key, Tally]:
        """Return where XIDs of this code on this GPU are counted. `has_gpu`: this node has a GPU at this address."""
        key = self.key(pci, code, has_gpu=has_gpu)
        return key, self.tallies.setdefault(key, Tally())

    def key(self, pci: str, code: int, *, has_gpu: bool) -> Key:
        """Return the key of the tally that counts this code on this GPU."""
        if (pci, code) in self.tallies:
            return pci, code
        if not has_gpu and pci not in self._addresses:
            if len(self._addresses) >= MOST_ADDRESSES:
                self._report(ELSEWHERE, f'more than {MOST_ADDRESSES} PCI addresses without a GPU, pci_bus_id="other"')
                pci = ELSEWHERE
            else:
                self._addresses.add(pci)
        if code in (self._documented if has_gpu else self._drain) or (pci, code) in self.tallies:
            return pci, code
        if self._codes[pci] >= MOST_CODES:
            self._report(pci, f'more than {MOST_CODES} undocumented codes at PCI address {pci}, xid="other"')
            return pci, OTHER
        self._codes[pci] += 1
        return pci, code

    def sxid(self, key: SxidKey) -> SxidTally:
        """Return where SXids of this switch, code and severity are counted."""
        if key not in self.sxids and len(self.sxids) >= MOST_SXIDS:
            self._report("sxids", f'more than {MOST_SXIDS} kinds of SXids, pci_bus_id="other" and sxid="other"')
            key = (ELSEWHERE, OTHER, key[2])
        return self.sxids.setdefault(key, SxidTally())

    def _report(self, subject: str, what: str) -> None:
        """Say once that a limit is reached. A kernel log with so many is probably forged."""
        if subject not in self._reported:
            self._reported.add(subject)
            log.warning("kernel log: %s for all further ones; was it written by something else than the driver?", what)
