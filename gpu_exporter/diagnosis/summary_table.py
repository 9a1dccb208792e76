"""One line per GPU: its class, the means of its values, what it lost, its worst finding and its owner. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.causes import WORDS
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.conditions.evaluate import value
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.loss import lost
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import ABSENT, narrow

HEAD = ("GPU", "MODEL", "CLASS", "SM", "TENSOR", "DRAM", "POWER", "TEMP", "LOSS", "MOSTLY", "FINDING", "OWNER")
RIGHT = frozenset(("SM", "TENSOR", "DRAM", "POWER", "TEMP", "LOSS"))
# What is left out first where a line has no room.
LEAST = ("MOSTLY", "MODEL", "TEMP", "POWER", "DRAM", "OWNER", "TENSOR", "SM", "LOSS")
LONGEST = 60
_SIGNALS = {
    "SM": s.SM_ACTIVE,
    "TENSOR": s.TENSOR_ACTIVE,
    "DRAM": s.DRAM_ACTIVE,
    "POWER": s.POWER,
    "TEMP": s.GPU_TEMP,
}
Cells = Mapping[str, str]


def cells(window: Window, diagnosis: Diagnosis, hit_by: str = "") -> Cells:
    """Return the cells of a GPU by their titles. A dash means that a value is unknown.

    What hits a GPU says more than a finding that is only info.
    """
    finding, severity = worst(diagnosis)
    device, identity, shares, largest = diagnosis.device, diagnosis.identity, diagnosis.shares, diagnosis.largest
    name = printable(identity.gpu or device.uuid, LONGEST)
    return {
        "GPU": f"{name}/{printable(device.instance, 20)}" if device.instance else name,
        "MODEL": printable(identity.model, LONGEST) or ABSENT,
        "CLASS": "down" if diagnosis.is_down else diagnosis.class_name or ABSENT,
        **{title: narrow(value(mean(signal), window, device), signal.unit) for title, signal in _SIGNALS.items()},
        "LOSS": narrow(lost(shares) if shares else None, "ratio"),
        "MOSTLY": WORDS[largest] if largest else ABSENT,
        "FINDING": hit_by if hit_by and severity in (None, Severity.INFO) else finding,
        "OWNER": printable(identity.owner, LONGEST) or ABSENT,
    }


def worst(diagnosis: Diagnosis) -> tuple[str, Severity | None]:
    """Return the name of the worst finding and how many more there are, and its severity; a dash if there is none."""
    match = diagnosis.worst
    if match is None:
        return ABSENT, None
    others = f" +{len(diagnosis.matches) - 1}" if len(diagnosis.matches) > 1 else ""
    return match.mode.name + others, match.mode.severity


def aligned(rows: Sequence[Cells], width: int | None = None) -> Iterator[str]:
    """Yield the titles and a line per GPU; of a limited width without the columns that do not fit."""
    table = [dict(zip(HEAD, HEAD, strict=True)), *rows]
    widths = {title: max(len(row[title]) for row in table) for title in HEAD}
    for title in LEAST:
        if width is not None and sum(widths.values()) + 2 * (len(widths) - 1) > width:
            del widths[title]
    for row in table:
        texts = (row[title].rjust(size) if title in RIGHT else row[title].ljust(size) for title, size in widths.items())
        yield "  ".join(texts).rstrip()
