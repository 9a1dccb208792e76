"""A kernel log that is forged, or floods: the numbers of series, events and bytes stay bounded, and real XIDs show."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog, GpuEvidence
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.model.gpu import Gpu
from tests.support.tools import LIMIT

PCI = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", PCI, "NVIDIA H200")
XID = "[ 12.345678] NVRM: Xid (PCI:{}): {}, {}\n"
SXID = "[ 12.345678] nvidia-nvswitch0: SXid (PCI:{}): {:05}, Fatal, Link 46 LTSSM Fault Up\n"
HERE = "0000:06:00"
XIDS = load()


def event_log() -> EventLog:
    return EventLog(XIDS, lambda pci: GpuEvidence(GPU, {}) if pci == PCI else None)


class Watched:
    """A text log with lines from before the start, and lines that are written later."""

    def __init__(self, folder: Path) -> None:
        self.log, self.events, self.store = folder / "kern.log", event_log(), EventStore(folder)
        self.log.touch()
        self._watch = KernelWatch(self.events, self.log, self.store)
        self._watch.poll()

    def write(self, *lines: str) -> Watched:
        with self.log.open("a") as file:
            file.writelines(lines)
        end = time.monotonic() + LIMIT
        while self._watch._log.position.number < self.log.stat().st_size:  # type: ignore[union-attr]
            assert time.monotonic() < end
            self._watch.poll()
        return self


def series(events: EventLog, name: object = m.XID_EVENTS) -> dict[tuple[str, str], float]:
    """Return the counts by PCI address and code, without zeros."""
    rows = events.samples([GPU], nvml_up=True)
    return {
        (labels["pci_bus_id"], labels.get("xid") or labels["sxid"]): value
        for metric, _, value, labels in rows
        if metric is name and value
    }


@pytest.mark.slow
def test_forged_codes(tmp_path: Path) -> None:
    """The first unknown codes have their own series; all further ones share one, on which the same alert fires."""
    codes = [code for code in range(1000, 21_000) if code not in XIDS.rows]
    watched = Watched(tmp_path).write(*(XID.format(HERE, code, "x") for code in codes))
    watched.write(XID.format(HERE, 79, "lost"), XID.format(HERE, 31, "fault"))

    counts = series(watched.events)
    assert len(counts) == 16 + 1 + 2
    assert counts[PCI, "1000"] == counts[PCI, "79"] == counts[PCI, "31"] == 1
    assert counts[PCI, "other"] == len(codes) - 16
    assert sum(counts.values()) == len(codes) + 2
    (labels,) = [
        labels
        for metric, _, _, labels in watched.events.samples([GPU], nvml_up=True)
        if metric is m.XID_LAST and labels["xid"] == "other"
    ]
    assert labels == {"pci_bus_id": PCI, "xid": "other", "kind": "unknown", "action": "none"}
    assert "xid_79" in {problem.reason for problem in watched.events.problems()[PCI]}
    assert (tmp_path / "events.json").stat().st_size < 300_000


def test_forged_addresses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """GPUs that this node does not have share one series per code beyond a limit; its own GPU still counts."""
    forged = [f"{domain:04x}:{bus:02x}:00" for domain in range(1, 21) for bus in range(250)]
    watched = Watched(tmp_path).write(*(XID.format(pci, code, "x") for pci in forged for code in (31, 79, 4711)))
    watched.write(XID.format(HERE, 48, "DBE"))

    counts = series(watched.events)
    assert counts[PCI, "48"] == 1
    assert counts["other", "79"] == len(forged) - 32
    assert counts["0000" + forged[0].upper() + ".0", "79"] == 1
    assert len(counts) == 1 + 33 * 3
    assert sum("PCI addresses" in record.message for record in caplog.records) == 1


def test_forged_codes_of_an_unknown_address(tmp_path: Path) -> None:
    """A GPU that was lost before the start is at such an address: codes that require a drain are never merged."""
    watched = Watched(tmp_path).write(*(XID.format("0000:aa:00", code, "x") for code in range(500, 600)))
    watched.write(XID.format("0000:aa:00", 79, "lost"))
    counts = series(watched.events)
    assert counts["00000000:AA:00.0", "79"] == 1
    assert len(counts) == 16 + 1 + 1


def test_forged_sxids(tmp_path: Path) -> None:
    watched = Watched(tmp_path).write(*(SXID.format("0000:c1:00", code) for code in range(10_000, 20_000)))
    counts = series(watched.events, m.SXID_EVENTS)
    assert counts["other", "other"] == 10_000 - 256
    assert len(counts) == 257


def test_long_messages(tmp_path: Path) -> None:
    """Lines that are longer than the kernel's are skipped; others are cut."""
    watched = Watched(tmp_path).write(*(XID.format(HERE, 79, "x" * 60_000) for _ in range(300)))
    assert series(watched.events) == {}
    name = "n" * 4000
    watched.write(*(XID.format(HERE, 79, f"pid=1, name={name}, " + "\x1b[31m" * 1000) for _ in range(300)))
    assert series(watched.events) == {(PCI, "79"): 300}
    assert len(json.dumps(watched.events.recent())) < 1_000_000
    assert "\\u001b" not in json.dumps(watched.events.recent())
    watched.store.save(watched.events, 0)
    assert (tmp_path / "events.jsonl").stat().st_size < 1_100_000


@pytest.mark.slow
def test_a_state_from_before_the_limits(tmp_path: Path) -> None:
    """Known codes keep their counts."""
    tallies = [[PCI, code, 0, 1.0, [[0.0, 0, 1]]] for code in range(1, 40_001)]
    state = {"position": None, "since": {PCI: [100.0]}, "tallies": tallies, "sxids": [], "recent": []}
    (tmp_path / "events.json").write_text(json.dumps({"events": state}))
    events, store = event_log(), EventStore(tmp_path)
    store.load(events)
    counts = series(events)
    documented = len(XIDS.rows)
    assert len(counts) == documented + 16 + 1
    assert counts[PCI, "other"] == 40_000 - documented - 16
    store.save(events, 0)
    assert (tmp_path / "events.json").stat().st_size < 20_000


def test_a_flood_before_the_start_is_not_new(tmp_path: Path) -> None:
    """Even if several reads are needed for it."""
    (tmp_path / "kern.log").write_text("".join(XID.format(HERE, 79, "undated") for _ in range(12_000)))
    watched = Watched(tmp_path)
    assert series(watched.events) == {}
    watched.write(XID.format(HERE, 79, "new"))
    assert series(watched.events) == {(PCI, "79"): 1}
