"""Which rows of the catalogue were seen on real hardware.

A row counts as seen if its NVML call returned a value on a real GPU. Add new calls here after running
`gpu-exporter once --metrics full` on that hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_exporter.model.metric import Buffered, Call, FieldValue, Gpm, LinkSum, Metric, PerProcess


@dataclass(frozen=True, slots=True)
class Answers:
    """What a GPU returned: getters with their arguments, field ids, GPM ids (for links, that of the first link), and
    the kinds of process data."""

    calls: frozenset[str]
    fields: frozenset[int]
    gpm: frozenset[int]
    processes: frozenset[str]


# One, two and four NVIDIA H200 SXM, driver 580.159.04, x86-64, passed through to a virtual machine.
H200_CALLS = """
UtilizationRates() EncoderUtilization() DecoderUtilization() PerformanceState() PersistenceMode() MigMode()
PowerUsage() EnforcedPowerLimit() PowerManagementLimit() PowerManagementDefaultLimit()
PowerManagementLimitConstraints() ClockInfo(1) ClockInfo(2) ClockInfo(3) MaxClockInfo(1) MaxClockInfo(2)
MaxClockInfo(3) CurrentClocksEventReasons() Temperature(0) TemperatureThreshold(0) TemperatureThreshold(1)
TemperatureThreshold(3) MarginTemperature() MemoryInfo() BAR1MemoryInfo() EccMode() RemappedRows()
RowRemapperHistogram() TotalEccErrors(0,0) TotalEccErrors(0,1) TotalEccErrors(1,0) TotalEccErrors(1,1)
MemoryErrorCounter(0,0,2) MemoryErrorCounter(0,1,2) MemoryErrorCounter(1,0,2) MemoryErrorCounter(1,1,2)
MemoryErrorCounter(0,0,7) MemoryErrorCounter(0,1,7) MemoryErrorCounter(1,0,7) MemoryErrorCounter(1,1,7)
CurrPcieLinkGeneration() CurrPcieLinkWidth() MaxPcieLinkGeneration() MaxPcieLinkWidth() PcieReplayCounter()
SramEccErrorStatus() RepairStatus() ValidateInforom() Samples(0) Count() MinorNumber()
"""
H200 = Answers(
    calls=frozenset(H200_CALLS.split()),
    fields=frozenset({*range(74, 80), 82, 83, 91, *range(161, 166), 169, *range(173, 184), 186, 230, *range(269, 272)}),
    gpm=frozenset(
        {*range(1, 8), *range(9, 14), 20, 21, *range(30, 38), *range(40, 48), 50, 51, *range(60, 64), *range(166, 170)}
    ),
    processes=frozenset({"memory", "sm", "listed", "unresolved"}),
)

SEEN_ON: Mapping[str, Answers] = {"H200": H200}


def seen_on(metric: Metric) -> tuple[str, ...]:
    """Return the hardware on which this row, or the rows that it is computed from, had a value."""
    rows = metric.sum_of or metric.peak_of or (metric.integral_of or metric.histogram_of or metric,)
    others = seen_on(metric.instead_of) if metric.instead_of else ()
    return tuple(
        name for name, answers in SEEN_ON.items() if name not in others and all(_answered(row, answers) for row in rows)
    )


def _answered(row: Metric, answers: Answers) -> bool:
    match row.nvml:
        case Call(name, args):
            return f"{name}({','.join(map(str, args))})" in answers.calls
        case Buffered(number):
            return f"Samples({number})" in answers.calls
        case FieldValue(number) | LinkSum(number):
            return number in answers.fields
        case Gpm(number):
            return number in answers.gpm
        case PerProcess(what):
            return what in answers.processes
    return False
