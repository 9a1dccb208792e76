"""`top --once`: a whole recording as one table, with the classes that `diagnose` finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import WORDS
from gpu_exporter.catalogue.evaluate import value
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.decoding import printable
from gpu_exporter.diagnosis.gather import RecordedScrapes
from gpu_exporter.diagnosis.judge import Diagnosis, diagnose
from gpu_exporter.diagnosis.loss import lost
from gpu_exporter.diagnosis.report import is_reported
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import Window, seen
from gpu_exporter.model.source_kind import REPLAY, SIMULATED
from gpu_exporter.top.numbers import ABSENT
from gpu_exporter.top.state import GpuRow
from gpu_exporter.top.table import worst
from gpu_exporter.top.tracker import BANNERS

HEAD = ("GPU", "MODEL", "CLASS", "SM", "TENSOR", "DRAM", "POWER", "TEMP", "LOST", "MOSTLY", "FINDING")
RIGHT = frozenset(("SM", "TENSOR", "DRAM", "POWER", "TEMP", "LOST"))


def table(recorded: RecordedScrapes, job: str) -> Iterator[str]:
    """Yield a banner, then one line per GPU. Raises GpuExporterError for a damaged recording."""
    window = seen(recorded, {}, job=job)
    found = [diagnosis for diagnosis in diagnose(window) if is_reported(diagnosis)]
    rows = [HEAD, *(_cells(window, diagnosis) for diagnosis in found)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEAD))]
    yield f"{BANNERS[SIMULATED.name if recorded.simulated else REPLAY.name]}, {recorded.seconds:.0f} s"
    for row in rows:
        cells = zip(HEAD, row, widths, strict=True)
        yield "  ".join(
            cell.rjust(width) if title in RIGHT else cell.ljust(width) for title, cell, width in cells
        ).rstrip()


def _cells(window: Window, diagnosis: Diagnosis) -> Sequence[str]:
    device, identity, shares = diagnosis.device, diagnosis.identity, diagnosis.shares
    name = printable(identity.gpu or device.uuid, 40)
    finding, _ = worst(GpuRow(device, name, diagnosis=diagnosis))
    return (
        f"{name}/{printable(device.instance, 20)}" if device.instance else name,
        printable(identity.model, 40) or ABSENT,
        diagnosis.bottleneck.name if diagnosis.bottleneck else ABSENT,
        *(_share(window, device, signal) for signal in (s.SM_ACTIVE, s.TENSOR_ACTIVE, s.DRAM_ACTIVE)),
        _amount(window, device, s.POWER, "W"),
        _amount(window, device, s.GPU_TEMP, "C"),
        f"{lost(shares):.0%}" if shares else ABSENT,
        WORDS[max(shares, key=lambda cause: shares[cause])] if shares else ABSENT,
        finding,
    )


def _share(window: Window, device: DeviceKey, signal: Signal) -> str:
    number = value(mean(signal), window, device)
    return ABSENT if number is None else f"{number:.0%}"


def _amount(window: Window, device: DeviceKey, signal: Signal, unit: str) -> str:
    number = value(mean(signal), window, device)
    return ABSENT if number is None else f"{number:.0f}{unit}"
