"""One NVML handle -> values: getters, batched field values, GPM."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import byref
from typing import Any

import pynvml

from gpu_exporter.catalogue.metrics import OBSERVED
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Call, EntityKind, FieldValue, Gpm, Kind, Labels, LinkSum, Metric, Pace, scaled
from gpu_exporter.sources.nvml.errors import outcome, raise_if_lost
from gpu_exporter.sources.nvml.gpm import GpmWindow


def _temperature(handle: Any, sensor: int) -> int:
    try:
        return int(pynvml.nvmlDeviceGetTemperatureV(handle, sensor))
    except (AttributeError, pynvml.NVMLError_FunctionNotFound):
        return int(pynvml.nvmlDeviceGetTemperature(handle, sensor))


def _clock_events(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, pynvml.NVMLError_FunctionNotFound):
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _memory(handle: Any) -> dict[str, float]:
    """Bytes; version 2 alone tells reserved from used. The ratio is used / (total - reserved)."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        found = {"total": memory.total, "free": memory.free, "used": memory.used, "reserved": memory.reserved}
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        found = {"total": memory.total, "free": memory.free, "used": memory.used}
    usable = found["total"] - found.get("reserved", 0)
    return {**found, "used_ratio": found["used"] / usable} if usable > 0 else found


# A structure goes to these bindings as a pointer: given one by value, the driver writes to a stray address.


def _sram(handle: Any) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return status


FABRIC_COMPLETED, FABRIC_FAILED = 3, 4
# Where each fault has its two bits of the health mask: 0 not known, 1 yes, 2 no.
FABRIC_FAULTS = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6}


def _fabric(handle: Any) -> dict[str, float]:
    """DCGM's status: NVML's state, and 4 if the way into the fabric ended with an error. Empty without a fabric."""
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if not info.state:
        return {}
    error = int(info.status) if info.state == FABRIC_COMPLETED else 0  # before, it means nothing
    faults = {fault: (info.healthMask >> shift) & 3 for fault, shift in FABRIC_FAULTS.items()}
    return {
        "status": FABRIC_FAILED if error else int(info.state),
        "error": error,
        **{fault: float(bits == 1) for fault, bits in faults.items() if bits},
    }


def _inforom(handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceValidateInforom(handle)
    except pynvml.NVMLError_CorruptedInforom:
        return False
    return True


# Where one binding call is not the whole story; every other Call goes straight to `nvmlDeviceGet<name>`.
ADAPTERS: Mapping[str, Callable[..., Any]] = {
    "Temperature": _temperature,
    "CurrentClocksEventReasons": _clock_events,
    "MemoryInfo": _memory,
    "SramEccErrorStatus": _sram,
    "GpuFabricInfoV": _fabric,
    "ValidateInforom": _inforom,
    "RetiredPages": lambda handle, cause: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)),
}


def _pick(result: Any, member: str | int | None) -> float | None:
    if member is None:
        return float(result)
    if isinstance(result, dict):
        return result.get(member)
    return float(result[member] if isinstance(member, int) else getattr(result, member))


# What each batch of field values ends with, only to end it. Where its last field is an error counter of NVLinks, the
# driver (580, H200) looks past the end for more of them, and writes to what it takes for one: a corrupt heap.
LAST_FIELD = pynvml.NVML_FI_DEV_ECC_CURRENT
# Seconds that a mean covers, by series.
Spans = Mapping[Series, float]
FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# Members of an answer, past the Python code that these bindings put before each: NVLinks have a hundred of them.
_code, _type, _value = (
    getattr(pynvml.c_nvmlFieldValue_t, member).__get__ for member in ("nvmlReturn", "valueType", "value")
)


class Questions:
    """What one handle is asked: a GPU, or a MIG instance of it, whose series have `labels`.

    What it can't answer is found out at the first read, once, and not asked again. `take_sample` fills a GPM buffer;
    None where there is no GPM, for the reason `without_gpm`.
    """

    def __init__(
        self,
        handle: Any,
        gpu: Gpu,
        metrics: Iterable[Metric],
        turn: AbstractContextManager[None],
        *,
        links: range = range(0),
        take_sample: Callable[[Any], Any] | None = None,
        without_gpm: str = "not_supported",
        labels: Labels = (),
    ) -> None:
        self.labels = labels
        self.answered: set[Series] = set()
        self.unsupported: dict[Metric, str] = {}
        self._gpu = gpu
        self._turn = turn
        self.handle = handle
        self._parts: dict[Series, int] = {}
        self._calls: dict[Pace, dict[Call, list[Series]]] = defaultdict(lambda: defaultdict(list))
        self._fields: dict[Pace, dict[tuple[int, int], list[Series]]] = defaultdict(lambda: defaultdict(list))
        gpm: dict[Pace, list[tuple[int, Series]]] = defaultdict(list)
        for metric in metrics:
            for link, series in self._series(metric, links):
                match metric.nvml:
                    case Call(name, args):
                        self._calls[metric.pace][Call(name, args)].append(series)
                    case FieldValue(field):
                        self._fields[metric.pace][field, link].append(series)
                    case LinkSum(field):
                        for each in links:
                            self._fields[metric.pace][field, each].append(series)
                        if not links:
                            self.unsupported[metric] = "not_supported"
                    case Gpm(first, stride, pace):
                        gpm[pace].append((first + link * stride, series))
        self._gpm = {pace: GpmWindow(take_sample, asked, turn) for pace, asked in gpm.items()} if take_sample else {}
        self._fine: GpmWindow | None = None
        if not take_sample:
            self.unsupported.update((series.metric, without_gpm) for asked in gpm.values() for _, series in asked)

    def _series(self, metric: Metric, links: range) -> Iterable[tuple[int, Series]]:
        if metric.entity is not EntityKind.NVLINK:
            return [(0, Series(metric, self._gpu, self.labels))]
        if not links:
            self.unsupported[metric] = "not_supported"
        return [(link, Series(metric, self._gpu, (("nvlink", str(link)),))) for link in links]

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> Spans:
        """Fill in what the fields of these paces answer; return the seconds that the profiling means cover.

        Raises GpuLost, SourceLost.
        """
        fresh: dict[Series, float] = {}
        missing: dict[Series, str] = {}
        spans: dict[Series, float] = {}
        for pace, window in self._windows():
            if pace in paces or window.begun:
                spans.update(_means(window, fresh, missing))
        for pace in sorted(paces, key=lambda pace: pace.value):
            self._read_calls(self._calls[pace], fresh, missing)
            self._read_fields(list(self._fields[pace].items()), fresh, missing)
        self.answered.update(fresh)
        if fresh or self.labels:  # a GPU that answers nothing is lost, and asked anew when it is back
            self._prune(missing)
        values.update(fresh)
        failed.update(missing)
        return spans

    def glance(self, values: dict[Series, float], failed: dict[Series, str]) -> Spans:
        """Fill in the profiling means that histograms are made of; return the seconds that they cover.

        From the first time on these have samples of their own: a mean is exact over any time, so that nothing is gained
        by reading the others more often than they are shown.
        """
        if self._fine is None and Pace.FAST in self._gpm and self.answered:
            self._fine = self._gpm[Pace.FAST].split(lambda series: series.metric in OBSERVED)
        return _means(self._fine, values, failed) if self._fine else {}

    def _windows(self) -> Sequence[tuple[Pace, GpmWindow]]:
        fine = [(Pace.FAST, self._fine)] if self._fine else []
        return [*fine, *self._gpm.items()]

    def _read_calls(
        self, calls: Mapping[Call, list[Series]], values: dict[Series, float], failed: dict[Series, str]
    ) -> None:
        for call, wanted in calls.items():
            try:
                getter = ADAPTERS.get(call.name) or getattr(pynvml, f"nvmlDeviceGet{call.name}")
                result = getter(self.handle, *call.args)
            except AttributeError:  # bindings older than the call
                failed.update((series, "not_supported") for series in wanted)
                continue
            except pynvml.NVMLError as error:
                raise_if_lost(error.value, f"GPU {self._gpu.index}, {call.name}")
                failed.update((series, outcome(error.value)) for series in wanted)
                continue
            for series in wanted:
                metric = series.metric
                assert isinstance(metric.nvml, Call)
                value = _pick(result, metric.nvml.pick)
                if value is None:
                    failed[series] = "not_supported"
                else:
                    bit, scale = metric.bit, metric.scale
                    values[series] = scaled(value, scale) if bit is None else (int(value) >> bit) & 1

    def _read_fields(
        self,
        fields: Sequence[tuple[tuple[int, int], list[Series]]],
        values: dict[Series, float],
        failed: dict[Series, str],
    ) -> None:
        """One batch, each (field, scope) once. The links of a link sum add up."""
        if not fields:
            return
        try:
            with self._turn:
                answers = pynvml.nvmlDeviceGetFieldValues(self.handle, [*(field for field, _ in fields), LAST_FIELD])
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {self._gpu.index}, field values")
            if len(fields) == 1:
                failed.update((series, outcome(error.value)) for series in fields[0][1])
            else:  # one bad id can fail a whole batch: find it by halves
                half = len(fields) // 2
                self._read_fields(fields[:half], values, failed)
                self._read_fields(fields[half:], values, failed)
            return
        parts: Counter[Series] = Counter()
        for (field, wanted), answer in zip(fields, answers, strict=False):
            code = _code(answer)
            if code == pynvml.NVML_SUCCESS:
                value = float(getattr(_value(answer), FIELD_MEMBERS[_type(answer)]))
                for series in wanted:
                    values[series] = values.get(series, 0.0) + scaled(value, series.metric.scale)
                    parts[series] += 1
            else:
                raise_if_lost(code, f"GPU {self._gpu.index}, field {field[0]}")
                failed.update((s, outcome(code)) for s in wanted if failed.get(s) != "unknown")
        for series in failed.keys() & values.keys():
            whole = failed[series] != "unknown" and parts[series] >= self._parts.get(series, 0)
            if whole or series.metric.kind is Kind.GAUGE:
                del failed[series]
            else:  # a sum without one of its links would fall, and jump back
                del values[series]
        self._parts.update((series, links) for series, links in parts.items() if series in values)

    def _prune(self, failed: dict[Series, str]) -> None:
        """A series that never answered and is not supported or not permitted is not asked again."""
        gone = {
            series: reason
            for series, reason in failed.items()
            if series not in self.answered and reason in ("not_supported", "no_permission")
        }
        if not gone:
            return
        for series in gone:
            del failed[series]
        for pace in Pace:
            _drop(self._calls[pace], gone)
            _drop(self._fields[pace], gone)
        for _, window in self._windows():
            window.drop(gone)
        answered = {series.metric for series in self.answered}
        self.unsupported.update(
            (series.metric, reason) for series, reason in gone.items() if series.metric not in answered
        )

    def close(self) -> None:
        """Give the GPM buffers back."""
        for _, window in self._windows():
            window.close()


def _means(window: GpmWindow, values: dict[Series, float], failed: dict[Series, str]) -> Spans:
    """Fill in what a window answers; return the seconds that each of it covers."""
    found: dict[Series, float] = {}
    span = window.read(found, failed)
    values.update(found)
    return {} if span is None else dict.fromkeys(found, span)


def _drop(asked: dict[Any, list[Series]], gone: Mapping[Series, str]) -> None:
    """Take series out of what is asked for, and questions that nobody asks any more."""
    for question in list(asked):
        asked[question] = [series for series in asked[question] if series not in gone]
        if not asked[question]:
            del asked[question]
