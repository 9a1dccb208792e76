"""What the links of each GPU should reach: what they reached before, or what the board and the slot allow.

The highest rate in a data sheet is no such thing. Many slots and virtual machines have fewer lanes than the GPU, and
boards with NVLink bridges have links that lead nowhere. A link is degraded only if there is evidence that it can do
more: it did before, the port above the GPU can, or the links of another GPU of the same model on this node do.

What was reached is kept in `links.json` of `--state-dir`, by UUID and PCI address: a GPU in another slot starts anew.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import FABRIC_DONE, pcie_capacity
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import RETRY_SECONDS, FileWorker, ProblemLog, cause, open_regular, read
from gpu_exporter.io.state_version import NewerStateError, check_version
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric

log = logging.getLogger(__name__)

FILE = "links.json"
# Of the file: see `io.state_version`.
VERSION = 1
MOST_BYTES, MOST_GPUS = 1 << 20, 256
# On boards of this form, every NVLink leads to an NVSwitch or to another GPU of the baseboard.
SXM = re.compile(r"\bSXM")

Values = Mapping[Metric, float]
# What the expectation depends on.
READ = (
    *(m.PCIE_GEN, m.PCIE_WIDTH, m.PCIE_MAX_GEN, m.PCIE_MAX_WIDTH),
    *(m.NVLINK_COUNT, m.NVLINK_UP, m.FABRIC, m.MIG_MODE),
)


def pcie_link(values: Values) -> float | None:
    """Return the capacity of the PCIe link in bytes per second and direction; None if it is unknown."""
    return _capacity(values.get(m.PCIE_GEN), values.get(m.PCIE_WIDTH))


def full_link(values: Values) -> float | None:
    """Return the capacity that the PCIe link of an idle GPU has under load: its present lanes, or what is expected."""
    now = _capacity(values.get(m.PCIE_MAX_GEN), values.get(m.PCIE_WIDTH))
    return None if now is None else max(now, values.get(m.PCIE_EXPECTED, 0.0))


def pcie_maximum(values: Values) -> float | None:
    """Return the highest capacity that the driver names for the GPU and its slot."""
    return _capacity(values.get(m.PCIE_MAX_GEN), values.get(m.PCIE_MAX_WIDTH))


def _capacity(generation: float | None, lanes: float | None) -> float | None:
    return None if generation is None or lanes is None else pcie_capacity(generation, lanes)


@dataclass(slots=True)
class ReachedLinks:
    """The highest capacity of the PCIe link of a GPU, and the most active NVLinks, at a PCI address."""

    address: str = ""
    pcie: float = 0.0
    nvlinks: float = 0.0


@dataclass(frozen=True, slots=True)
class SavedLinks:
    """The content of the file: what the links of each GPU reached, by UUID."""

    version: int = VERSION
    gpus: dict[str, ReachedLinks] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """A GPU, its values, and what the port above it allows (bytes/s), if that is known."""

    gpu: Gpu
    values: Values
    port: float | None = None


class LinkHistory:
    """What links reached since the start, and before if there is a directory.

    `save` writes there, unless `keeps` is False.
    """

    def __init__(self, directory: Path | None = None, *, keeps: bool = True) -> None:
        self._path = directory / FILE if directory else None
        self._keeps = keeps
        self._reached: dict[str, ReachedLinks] = {}
        self._judged: Sequence[object] = ()
        self._expected: Sequence[dict[Metric, float]] = ()
        self._changed = False
        self._writing: threading.Thread | None = None
        self._retry_at = 0.0
        self.problems = ProblemLog(log)
        if self._path:
            self._load(self._path)

    def expected(self, gpus: Sequence[GpuLinks]) -> Iterator[dict[Metric, float]]:
        """Yield what is expected of the links of each GPU, after taking note of what they reach now."""
        now = [(each.gpu, each.port, [each.values.get(metric) for metric in READ]) for each in gpus]
        if now != self._judged:  # links rarely change
            self._judged, self._expected = now, list(self._expectations(gpus))
        yield from self._expected

    def _expectations(self, gpus: Sequence[GpuLinks]) -> Iterator[dict[Metric, float]]:
        reached = [self._take(each) for each in gpus]
        best: dict[str, ReachedLinks] = {}
        for each, own in zip(gpus, reached, strict=True):
            of_model = best.setdefault(each.gpu.model, ReachedLinks())
            of_model.pcie, of_model.nvlinks = max(of_model.pcie, own.pcie), max(of_model.nvlinks, own.nvlinks)
        for each, own in zip(gpus, reached, strict=True):
            yield dict(_expected(each, own, best[each.gpu.model]))

    def _take(self, links: GpuLinks) -> ReachedLinks:
        gpu, values = links.gpu, links.values
        own = self._reached.get(gpu.uuid)
        if own is None or own.address != gpu.pci_bus_id:
            own = ReachedLinks(gpu.pci_bus_id)
        pcie = max(own.pcie, pcie_link(values) or 0.0)
        nvlinks = max(own.nvlinks, values.get(m.NVLINK_UP, 0.0))
        if gpu.uuid and (pcie, nvlinks) != (own.pcie, own.nvlinks):
            own = self._reached[gpu.uuid] = ReachedLinks(gpu.pci_bus_id, pcie, nvlinks)
            self._changed = True
        return own

    def save(self) -> None:
        """Start to write what has changed, on its own thread. A directory that cannot be written is logged once, and
        tried again after RETRY_SECONDS."""
        if not (self._path and self._keeps and self._changed) or (self._writing and self._writing.is_alive()):
            return
        if time.monotonic() < self._retry_at:
            return
        self._changed = False
        kept = dict(list(self._reached.items())[-MOST_GPUS:])
        content = json.dumps(asdict(SavedLinks(VERSION, kept))).encode()
        self._writing = threading.Thread(target=self._write, args=(self._path, content), name="links", daemon=True)
        self._writing.start()

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing:
            self._writing.join()

    def _write(self, path: Path, content: bytes) -> None:
        draft = path.with_suffix(".draft")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._refuse_newer(path)
            with os.fdopen(open_regular(draft, flags), "wb") as file:
                file.write(content)
            os.replace(draft, path)
        except NewerStateError as error:
            self.problems.report(f"{path}: {error}")
        except OSError as error:
            self._changed, self._retry_at = True, time.monotonic() + RETRY_SECONDS
            self.problems.report(f"{path}: {cause(error)}; what links reached is not kept over a restart (--state-dir)")

    def _refuse_newer(self, path: Path) -> None:
        """Raise NewerStateError if a newer gpu-exporter wrote the file, perhaps since the start of this one."""
        try:
            check_version(read(path, MOST_BYTES), VERSION)
        except NewerStateError:
            raise
        except (FileNotFoundError, ValueError):  # a damaged file is replaced
            pass

    def _load(self, path: Path) -> None:
        try:
            content = FileWorker("links").call(lambda: read(path, MOST_BYTES))
            check_version(content, VERSION)
            self._reached = json_as(SavedLinks, content).gpus
        except FileNotFoundError:
            return
        except NewerStateError as error:
            self.problems.report(f"{path}: {error}")
        except (OSError, ValueError) as error:
            self.problems.report(f"{path}: {cause(error)}; what links reached before is not known (--state-dir)")


def _expected(links: GpuLinks, own: ReachedLinks, best: ReachedLinks) -> Iterable[tuple[Metric, float]]:
    """Yield what is expected of the links that the GPU has. What its port allows outranks the slots of its peers."""
    values = links.values
    if pcie_link(values) is not None:
        allowed = best.pcie if links.port is None else links.port
        most = pcie_maximum(values)
        yield m.PCIE_EXPECTED, max(own.pcie, allowed if most is None else min(allowed, most))
    count = values.get(m.NVLINK_COUNT, 0.0)
    if count and m.NVLINK_UP in values and not values.get(m.MIG_MODE):
        wired = values.get(m.FABRIC) == FABRIC_DONE or SXM.search(links.gpu.model)
        yield m.NVLINK_EXPECTED, count if wired else min(count, max(own.nvlinks, best.nvlinks))
