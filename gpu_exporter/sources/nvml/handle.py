"""One NVML handle, of a GPU or a MIG instance -> values: getters, batched field values, GPM."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import byref
from typing import Any
from zlib import crc32

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
    """Return sizes in bytes; only version 2 separates reserved from used. The ratio is used / (total - reserved)."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        sizes = {"total": memory.total, "free": memory.free, "used": memory.used, "reserved": memory.reserved}
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_NotSupported):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        sizes = {"total": memory.total, "free": memory.free, "used": memory.used}
    usable = sizes["total"] - sizes.get("reserved", 0)
    return {**sizes, "used_ratio": sizes["used"] / usable} if usable > 0 else sizes


# These bindings take a pointer to a structure. Given the structure itself, the driver would write to a stray address.


def _sram(handle: Any) -> Any:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return status


FABRIC_COMPLETED, FABRIC_FAILED = 3, 4
# The position of a fault's two bits in the health mask: 0 unknown, 1 yes, 2 no.
FABRIC_FAULTS = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6}


def _fabric(handle: Any) -> dict[str, float]:
    """Return the fabric's status as DCGM has it, the error, each fault, and its code; empty without a fabric.

    The status is NVML's state, or 4 if joining the fabric ended with an error. Only a fabric of several nodes has a
    code, because that of a single node has no cluster, and would look the same on each node.
    """
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if not info.state:
        return {}
    error = int(info.status) if info.state == FABRIC_COMPLETED else 0  # in other states, it has no meaning
    faults = {fault: (info.healthMask >> shift) & 3 for fault, shift in FABRIC_FAULTS.items()}
    cluster = bytes(info.clusterUuid)
    joined = info.state == FABRIC_COMPLETED and not error and any(cluster)
    return {
        "status": FABRIC_FAILED if error else int(info.state),
        "error": error,
        **({"code": crc32(cluster + int(info.cliqueId).to_bytes(4, "big"))} if joined else {}),
        **{fault: float(bits == 1) for fault, bits in faults.items() if bits},
    }


def _inforom(handle: Any) -> bool:
    try:
        pynvml.nvmlDeviceValidateInforom(handle)
    except pynvml.NVMLError_CorruptedInforom:
        return False
    return True


# Calls that need more than one function of the bindings; every other Call is `nvmlDeviceGet<name>`.
ADAPTERS: Mapping[str, Callable[..., Any]] = {
    "Temperature": _temperature,
    "CurrentClocksEventReasons": _clock_events,
    "MemoryInfo": _memory,
    "SramEccErrorStatus": _sram,
    "GpuFabricInfoV": _fabric,
    "ValidateInforom": _inforom,
    "Count": lambda _: pynvml.nvmlDeviceGetCount(),
    "RetiredPages": lambda handle, cause: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)),
}


def _pick(result: Any, member: str | int | None) -> float | None:
    if member is None:
        return float(result)
    if isinstance(result, dict):
        return result.get(member)
    return float(result[member] if isinstance(member, int) else getattr(result, member))


# The last field of each batch; its value is not used. If a batch ends in an NVLink error counter, the driver (580,
# H200) looks for further counters behind its end, and writes into the memory that it finds there, which corrupts the
# heap.
LAST_FIELD = pynvml.NVML_FI_DEV_ECC_CURRENT
# Seconds that a mean covers, by series.
Spans = Mapping[Series, float]
FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# Reads members of a result without the bindings' Python code for each access: NVLinks have a hundred results.
_code, _type, _value = (
    getattr(pynvml.c_nvmlFieldValue_t, member).__get__ for member in ("nvmlReturn", "valueType", "value")
)


class Handle:
    """One handle of NVML: a GPU, or a MIG instance, whose series have `labels`.

    The first read detects which metrics are not supported; these are not read again. `take_sample` fills a GPM
    sample; without GPM, it is the reason why there is none. With `beside`, the GPU has another handle, and is not lost
    if this one has no values.
    """

    def __init__(
        self,
        nvml_handle: Any,
        gpu: Gpu,
        metrics: Iterable[Metric],
        lock: AbstractContextManager[None],
        *,
        take_sample: Callable[[Any], Any] | str,
        links: range = range(0),
        labels: Labels = (),
        beside: bool = False,
    ) -> None:
        self._beside = beside or bool(labels)
        self.nvml_handle = nvml_handle
        self.labels = labels
        self.answered: set[Series] = set()
        self.unsupported: dict[Metric, str] = {}
        self._gpu = gpu
        self._lock = lock
        self._parts: dict[Series, int] = {}
        self._calls: dict[Pace, dict[Call, list[Series]]] = defaultdict(lambda: defaultdict(list))
        self._fields: dict[Pace, dict[tuple[int, int], list[Series]]] = defaultdict(lambda: defaultdict(list))
        self._gpm: dict[Pace, GpmWindow] = {}
        self._histogram_window: GpmWindow | None = None
        gpm: dict[Pace, list[tuple[int, Series]]] = defaultdict(list)
        for metric in metrics:
            for link, series in self._series(metric, links):
                match metric.nvml:
                    case Call(name, args):
                        self._calls[metric.pace][Call(name, args)].append(series)
                    case FieldValue(field):
                        self._fields[metric.pace][field, link].append(series)
                    case LinkSum(field):
                        for number in links:
                            self._fields[metric.pace][field, number].append(series)
                        if not links:
                            self.unsupported[metric] = "not_supported"
                    case Gpm(first, stride, pace):
                        gpm[pace].append((first + link * stride, series))
        if isinstance(take_sample, str):
            self.unsupported.update((series.metric, take_sample) for wanted in gpm.values() for _, series in wanted)
        else:
            self._gpm = {pace: GpmWindow(take_sample, wanted, lock) for pace, wanted in gpm.items()}

    def _series(self, metric: Metric, links: range) -> Iterable[tuple[int, Series]]:
        if metric.entity is not EntityKind.NVLINK:
            return [(0, Series(metric, self._gpu, self.labels))]
        if not links:
            self.unsupported[metric] = "not_supported"
        return [(link, Series(metric, self._gpu, (("nvlink", str(link)),))) for link in links]

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> Spans:
        """Fill in the values of these paces; return the seconds that the profiling means cover.

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
        if fresh or self._beside:  # a GPU without any value is lost, and read in full when it is back
            self._prune(missing)
        values.update(fresh)
        failed.update(missing)
        return spans

    def read_means(self, values: dict[Series, float], failed: dict[Series, str]) -> Spans:
        """Fill in the profiling means that histograms are made of; return the seconds that they cover.

        From the first call on, these have GPM samples of their own. A mean is exact over any time, so the others need
        not be read more often than they are shown.
        """
        if self._histogram_window is None and Pace.FAST in self._gpm and self.answered:
            self._histogram_window = self._gpm[Pace.FAST].split(lambda series: series.metric in OBSERVED)
        return _means(self._histogram_window, values, failed) if self._histogram_window else {}

    def _windows(self) -> Sequence[tuple[Pace, GpmWindow]]:
        fine = [(Pace.FAST, self._histogram_window)] if self._histogram_window else []
        return [*fine, *self._gpm.items()]

    def _read_calls(
        self, calls: Mapping[Call, list[Series]], values: dict[Series, float], failed: dict[Series, str]
    ) -> None:
        for call, wanted in calls.items():
            try:
                getter = ADAPTERS.get(call.name) or getattr(pynvml, f"nvmlDeviceGet{call.name}")
                result = getter(self.nvml_handle, *call.args)
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
        """Read one batch, each (field, scope) once. Add up the values of a link sum."""
        if not fields:
            return
        try:
            with self._lock:
                answers = pynvml.nvmlDeviceGetFieldValues(
                    self.nvml_handle, [*(field for field, _ in fields), LAST_FIELD]
                )
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {self._gpu.index}, field values")
            if len(fields) == 1:
                failed.update((series, outcome(error.value)) for series in fields[0][1])
            else:  # one bad id can fail a whole batch: find it by bisection
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
            else:  # a sum without one of its links would fall and later jump back
                del values[series]
        self._parts.update((series, links) for series, links in parts.items() if series in values)

    def _prune(self, failed: dict[Series, str]) -> None:
        """Stop reading series that never had a value, and are not supported or not permitted."""
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
        """Free the GPM samples."""
        for _, window in self._windows():
            window.close()


def _means(window: GpmWindow, values: dict[Series, float], failed: dict[Series, str]) -> Spans:
    """Fill in the means of a window; return the seconds that they cover."""
    means: dict[Series, float] = {}
    span = window.read(means, failed)
    values.update(means)
    return {} if span is None else dict.fromkeys(means, span)


def _drop(wanted: dict[Any, list[Series]], gone: Mapping[Series, str]) -> None:
    """Remove series, and calls or fields that are left without any."""
    for key in list(wanted):
        wanted[key] = [series for series in wanted[key] if series not in gone]
        if not wanted[key]:
            del wanted[key]
