"""Watches the exporters of several nodes together, and joins their scrapes as those of a Prometheus are.

What is doubtful becomes a note: nodes that do not answer, other versions, clocks that differ.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from heapq import merge
from operator import attrgetter
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.conditions.averages import mean
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.gather import WatchedScrapes
from gpu_exporter.diagnosis.job_history import CLOCK_SECONDS
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.presence import OF_PRESENCE
from gpu_exporter.diagnosis.remote_scrapes import is_prometheus, is_read, scraped
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, node_of
from gpu_exporter.diagnosis.text_format import TextParser
from gpu_exporter.http.client import Remote, exporter_url
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.numbers import counted, first_of

AT_ONCE = 16
HANGS_SECONDS = 5.0
# A note names at most so many nodes.
MOST_NAMES = 4
_READ_BESIDES = frozenset((m.BUILD_INFO.name, m.NCCL_BUS.name))
_TIME = "_timestamp_seconds"
# An operation of NCCL, and the size of its messages.
Operation = tuple[str, str]


class NodeNote(NamedTuple):
    """What is doubtful about nodes. `{}` in `words` stands for their names; `exact` says more, with further names."""

    words: str
    nodes: tuple[str, ...]
    exact: str = ""

    def masked(self, names: DiagnosisNames) -> NodeNote:
        """Return it with other names."""
        if not names.mask:
            return self
        return NodeNote(self.words, tuple(names.name("node", node) for node in self.nodes))

    def __str__(self) -> str:
        return self.exact or self.words.format(first_of(self.nodes, MOST_NAMES))


@dataclass(frozen=True, slots=True)
class SeveralNodes:
    """What else is known of nodes that were watched together: what is doubtful, how many are missing at the end, and
    the bus bandwidth (bytes per second) of collectives across nodes, as NCCL's Inspector measures it, by node."""

    notes: Sequence[NodeNote] = ()
    missing: int = 0
    collectives: Mapping[str, Mapping[Operation, float]] = field(default_factory=dict)

    def masked(self, names: DiagnosisNames) -> SeveralNodes:
        """Return it with other names in its notes."""
        return replace(self, notes=[note.masked(names) for note in self.notes])


def watch_nodes(
    remotes: Sequence[Remote], seconds: float | None, stop: threading.Event
) -> tuple[WatchedScrapes, SeveralNodes]:
    """Scrape exporters about once a second for `seconds`, or until `stop`. Raises GpuExporterError if none answers."""
    seconds = seconds or gather.WATCH_SECONDS
    gather.watchable(seconds)
    nodes = [_WatchedNode(remote) for remote in remotes]
    with ThreadPoolExecutor(min(AT_ONCE, len(nodes))) as pool:
        list(pool.map(_WatchedNode.begin, nodes))
        watched = [node for node in nodes if node.scrapes]
        if not watched:
            others = len(nodes) - 1
            further = f" (and {others} more node{'s' * (others > 1)})" if others else ""
            raise GpuExporterError(f"no node answers: {nodes[0].problem}{further}")
        begin = time.monotonic()  # those that do not answer have taken their time
        while time.monotonic() < begin + seconds and not stop.wait(gather.TICK_SECONDS):
            list(pool.map(_WatchedNode.scrape, [node for node in watched if not node.hangs]))
    first: dict[frozenset[str], _WatchedNode] = {}
    for node in watched:
        first.setdefault(node.identity, node)
    distinct = list(first.values())
    scrapes = list(merge(*(node.aligned() for node in distinct), key=attrgetter("at")))
    notes = [*_notes(nodes, distinct), *(_same(node, first[node.identity]) for node in watched if node not in distinct)]
    missing = sum(bool(node.problem) for node in nodes)
    several = SeveralNodes(notes, missing, {node.name: found for node in distinct if (found := node.collectives())})
    exporters = counted(len(distinct), "exporter")
    return WatchedScrapes(scrapes, exporters, min(seconds, time.monotonic() - begin)), several


class _WatchedNode:
    """The scrapes of one exporter. `ahead` is by how many seconds its clock differs: its newest page is as old as the
    time since the collection before, which is short in one of many scrapes."""

    def __init__(self, remote: Remote) -> None:
        self.remote = replace(remote, url=exporter_url(remote.url))
        self.instance = re.sub(r"^https?://", "", self.remote.url).rstrip("/")
        self.name, self.version, self.problem = "", "", ""
        self.ahead, self.scrapes, self.identity = -math.inf, list[Scrape](), frozenset({self.instance})
        self.hangs = False
        self._parse = TextParser(lambda name: is_read(name) or name in _READ_BESIDES)
        self._stopped = StoppedCounters()

    def begin(self) -> None:
        """Scrape it for the first time. If that fails, or there is no GPU, `problem` says why."""
        self.scrape()
        if not self.scrapes:
            return
        samples = self.scrapes[0].samples
        uuids = frozenset(sample.labels.get("UUID", "") for sample in samples) - {""}
        self.identity = uuids or self.identity
        self.name = next(filter(None, (node_of(sample.labels) for sample in samples)), "") or self.instance
        self.version = next(
            (sample.labels.get("version", "") for sample in samples if sample.name == m.BUILD_INFO.name), ""
        )
        if not uuids and not any(sample.name in OF_PRESENCE for sample in samples):
            self.scrapes.clear()
            self.problem = f"{self.remote.url}: no GPU found; `gpu-exporter doctor` on the node says why"
            if self._is_prometheus():
                self.problem = f"{self.remote.url} is a Prometheus: give it alone"

    def _is_prometheus(self) -> bool:
        try:
            return is_prometheus(self.remote)
        except GpuExporterError:
            return False

    def scrape(self) -> None:
        """Scrape it once more. One that hangs delays all others, and is not asked again."""
        begin = time.monotonic()
        try:
            scrape = scraped(self.remote, self._parse, self._stopped)
        except GpuExporterError as error:
            self.problem, self.hangs = str(error), time.monotonic() > begin + HANGS_SECONDS
            return
        self.problem, self.ahead = "", max(self.ahead, scrape.at - time.time())
        if not self.scrapes or scrape.at > self.scrapes[-1].at:
            self.scrapes.append(scrape)

    def aligned(self) -> Iterator[Scrape]:
        """Yield the scrapes with times by the clock of this machine, and with labels that say where they are from."""
        placed: dict[int, tuple[Mapping[str, str], Mapping[str, str]]] = {}
        for at, samples in self.scrapes:
            own = []
            for name, labels, value in samples:
                known = placed.get(id(labels))
                if known is None or known[0] is not labels:
                    where = {"instance": self.instance} | ({} if node_of(labels) else {"node": self.name})
                    known = placed[id(labels)] = labels, {**labels, **where}
                own.append(ScrapedSample(name, known[1], value - self.ahead if name.endswith(_TIME) else value))
            yield Scrape(at - self.ahead, own)

    def collectives(self) -> dict[Operation, float]:
        """Return the bus bandwidth of collectives across nodes, mean of the GPUs."""
        found: dict[Operation, list[float]] = defaultdict(list)
        for name, labels, value in self.scrapes[-1].samples:
            if name == m.NCCL_BUS.name and labels.get("scope") == "inter_node":
                found[labels.get("operation", ""), labels.get("message_size", "")].append(value)
        return {operation: mean(values) for operation, values in found.items()}


def _notes(nodes: Sequence[_WatchedNode], watched: Sequence[_WatchedNode]) -> Iterator[NodeNote]:
    for node in nodes:
        if not node.scrapes:
            yield NodeNote("missing: {}", (node.instance,), f"missing: {node.problem}")
        elif node.problem:
            yield NodeNote("{} stopped answering", (node.name,), f"{node.name} stopped answering: {node.problem}")
    by_version: dict[str, list[str]] = defaultdict(list)
    for node in watched:
        by_version[node.version].append(node.name)
    if len(by_version) > 1:
        for version, names in sorted(by_version.items()):
            safe = printable(version, 40).replace("{", "{{").replace("}", "}}")
            what = f"gpu-exporter {safe}" if version else "another exporter than gpu-exporter"
            yield NodeNote(f"versions differ, and others may lack signals: {what} on {{}}", tuple(names))
    for node in watched:
        if abs(node.ahead) > CLOCK_SECONDS:
            side = "ahead of" if node.ahead > 0 else "behind"
            words = f"the clock of {{}} is {abs(node.ahead):.0f} s {side} this machine's: its times are corrected"
            yield NodeNote(words, (node.name,))


def _same(node: _WatchedNode, first: _WatchedNode) -> NodeNote:
    return NodeNote("{} have the same GPUs, and count once", (first.instance, node.instance))
