"""NVML and its GPM counters -> readings: GPUs straight from the driver, without DCGM and without privileges.

The only module that imports `pynvml` (from nvidia-ml-py). Every call here may block in the driver.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pynvml

from gpu_exporter.model import (
    Call,
    EntityKind,
    FieldValue,
    Gpm,
    Gpu,
    GpuLost,
    Labels,
    LinkSum,
    Metric,
    Pace,
    Reading,
    Series,
    SourceLost,
)

# A GPM window under 100 ms gives a wrong value without an error (nvml.h, and measured on an H200).
GPM_MIN_SPAN = 0.1
# A window that lacks no more than this is waited for; else an interval of 100 ms would lose every second one.
GPM_PATIENCE = 0.02

UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not_supported",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: "not_supported",
    pynvml.NVML_ERROR_NOT_FOUND: "not_supported",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not_supported",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "not_supported",
    26: "not_supported",  # NVML_ERROR_DEPRECATED: older bindings lack the name
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
}
LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
    28: "lost",  # NVML_ERROR_GPU_NOT_FOUND
}
LIBRARY_LOST = {
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
}
CURES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 not found: install the NVIDIA driver, or give the"
    " container the NVIDIA runtime (NVIDIA_DRIVER_CAPABILITIES=utility)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: `modprobe nvidia`, and look at"
    " `dmesg | grep NVRM`",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA library and kernel driver differ in version (an upgrade"
    " without a reboot): reload the driver or reboot",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to open the NVIDIA devices: check the modes of /dev/nvidia*",
}


def outcome(code: int) -> str:
    """One of the outcomes that stay apart: not_supported, no_permission, lost, reset_required, unknown."""
    return UNSUPPORTED.get(code) or LOST.get(code) or "unknown"


def _raise_if_lost(code: int, what: str) -> None:
    if code in LIBRARY_LOST:
        raise SourceLost(_explain(code))
    if code in LOST:
        raise GpuLost(f"{what}: {pynvml.NVMLError(code)}", LOST[code])


def _explain(code: int) -> str:
    return f"NVML: {CURES.get(code) or pynvml.NVMLError(code)}"


@contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise SourceLost(_explain(error.value)) from error


class NvmlSource:
    """The NVIDIA driver's own library."""

    name = "nvml"
    live = True

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs
        self._open = False
        self._system: Labels = ()

    def open(self) -> None:
        self.close()
        with _library():
            pynvml.nvmlInit()
            self._open = True
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            self._system = (
                ("driver_version", pynvml.nvmlSystemGetDriverVersion()),
                ("nvml_version", pynvml.nvmlSystemGetNVMLVersion()),
                ("cuda_version", f"{cuda // 1000}.{cuda % 1000 // 10}"),
            )

    def count(self) -> int:
        with _library():
            return int(pynvml.nvmlDeviceGetCount())

    def expected(self) -> int | None:
        """PCI functions of display class that are bound to the `nvidia` kernel driver; in a container that was given
        some of the GPUs, unknown."""
        if os.environ.get("NVIDIA_VISIBLE_DEVICES", "all") != "all":
            return None
        bound = self._sysfs / "bus/pci/drivers/nvidia"
        if not bound.is_dir():
            return None
        found = 0
        for function in bound.glob("*:*:*.*"):
            with suppress(OSError):
                found += (function / "class").read_text().startswith("0x03")
        return found or None

    def attach(self, index: int, metrics: Sequence[Metric]) -> NvmlDevice:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return NvmlDevice(handle, _identify(handle, index, self._system), metrics)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise GpuLost(f"GPU {index}: the driver has no GPU of this index any more", "gone") from error
            _raise_if_lost(error.value, f"GPU {index}")
            raise GpuLost(f"GPU {index}: {error}", outcome(error.value)) from error

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _identify(handle: Any, index: int, system: Labels) -> Gpu:
    """What a GPU is. Only the UUID is needed; the rest is left out where the driver has no answer."""

    def ask(name: str, convert: Callable[[Any], str] = str) -> str:
        try:
            return convert(getattr(pynvml, f"nvmlDeviceGet{name}")(handle))
        except pynvml.NVMLError as error:
            _raise_if_lost(error.value, f"GPU {index}")
            return ""

    info = {
        "serial": ask("Serial"),
        "vbios_version": ask("VbiosVersion"),
        "inforom_version": ask("InforomImageVersion"),
        "architecture": ask("Architecture", _architecture),
        "compute_capability": ask("CudaComputeCapability", lambda pair: f"{pair[0]}.{pair[1]}"),
        "numa_node": ask("NumaNodeId"),
    }
    return Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        pci_bus_id=ask("PciInfo", lambda pci: str(pci.busId)),
        model=ask("Name"),
        device=ask("MinorNumber", lambda minor: f"nvidia{minor}"),
        driver=dict(system)["driver_version"],
        info=(*system, *((key, value) for key, value in info.items() if value)),
    )


def _architecture(number: int) -> str:
    prefix = "NVML_DEVICE_ARCH_"
    names = {value: name for name, value in vars(pynvml).items() if name.startswith(prefix)}
    return str(names.get(number, str(number))).removeprefix(prefix).capitalize()


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


# Where one binding call is not the whole story; every other Call goes straight to `nvmlDeviceGet<name>`.
ADAPTERS: Mapping[str, Callable[..., Any]] = {
    "Temperature": _temperature,
    "CurrentClocksEventReasons": _clock_events,
    "MemoryInfo": _memory,
    "RetiredPages": lambda handle, cause: len(pynvml.nvmlDeviceGetRetiredPages(handle, cause)),
}


def _pick(result: Any, member: str | int | None) -> float | None:
    if member is None:
        return float(result)
    if isinstance(result, dict):
        return result.get(member)
    return float(result[member] if isinstance(member, int) else getattr(result, member))


FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NvmlDevice:
    """One GPU. What it can't answer is found out at the first read, once, and not asked again."""

    def __init__(self, handle: Any, gpu: Gpu, metrics: Sequence[Metric]) -> None:
        self.gpu = gpu
        self._handle = handle
        self._unsupported: dict[Metric, str] = {}
        self._answered: set[Series] = set()
        self._calls: dict[Pace, dict[Call, list[Series]]] = defaultdict(lambda: defaultdict(list))
        self._fields: dict[Pace, list[tuple[int, int, Series]]] = defaultdict(list)
        gpm: list[tuple[int, Series]] = []
        links = range(self._link_count())
        for metric in metrics:
            for link, series in self._series(metric, links):
                match metric.nvml:
                    case Call(name, args):
                        self._calls[metric.pace][Call(name, args)].append(series)
                    case FieldValue(field):
                        self._fields[metric.pace].append((field, link, series))
                    case LinkSum(field):
                        self._fields[metric.pace] += [(field, each, series) for each in links]
                        if not links:
                            self._unsupported[metric] = "not_supported"
                    case Gpm(first, stride):
                        gpm.append((first + link * stride, series))
        self._gpm = _GpmWindow(handle, gpm) if self._has_gpm() else None
        if self._gpm is None:
            self._unsupported.update((series.metric, "not_supported") for _, series in gpm)

    def _series(self, metric: Metric, links: range) -> Iterable[tuple[int, Series]]:
        if metric.entity is not EntityKind.NVLINK:
            return [(0, Series(metric, self.gpu))]
        if not links:
            self._unsupported[metric] = "not_supported"
        return [(link, Series(metric, self.gpu, (("nvlink", str(link)),))) for link in links]

    def _link_count(self) -> int:
        try:
            count = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0]
        except pynvml.NVMLError as error:
            _raise_if_lost(error.value, f"GPU {self.gpu.index}")
            return 0
        return int(count.value.uiVal) if count.nvmlReturn == pynvml.NVML_SUCCESS else 0

    def _has_gpm(self) -> bool:
        try:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except pynvml.NVMLError as error:
            _raise_if_lost(error.value, f"GPU {self.gpu.index}")
            return False

    def read(self, paces: frozenset[Pace]) -> Reading:
        values: dict[Series, float] = {}
        failed: dict[Series, str] = {}
        span = None
        if Pace.FAST in paces and self._gpm:
            span = self._gpm.read(values, failed)
        for pace in sorted(paces, key=lambda pace: pace.value):
            self._read_calls(self._calls[pace], values, failed)
            self._read_fields(self._fields[pace], values, failed)
        self._answered.update(values)
        self._prune(failed)
        return Reading(time.monotonic(), values, span, failed, dict(self._unsupported))

    def _read_calls(
        self, calls: Mapping[Call, list[Series]], values: dict[Series, float], failed: dict[Series, str]
    ) -> None:
        for call, wanted in calls.items():
            try:
                getter = ADAPTERS.get(call.name) or getattr(pynvml, f"nvmlDeviceGet{call.name}")
                result = getter(self._handle, *call.args)
            except AttributeError:  # bindings older than the call
                failed.update((series, "not_supported") for series in wanted)
                continue
            except pynvml.NVMLError as error:
                _raise_if_lost(error.value, f"GPU {self.gpu.index}, {call.name}")
                failed.update((series, outcome(error.value)) for series in wanted)
                continue
            for series in wanted:
                metric = series.metric
                assert isinstance(metric.nvml, Call)
                value = _pick(result, metric.nvml.pick)
                if value is None:
                    failed[series] = "not_supported"
                else:
                    values[series] = (int(value) >> metric.bit) & 1 if metric.bit is not None else value * metric.scale

    def _read_fields(
        self, fields: Sequence[tuple[int, int, Series]], values: dict[Series, float], failed: dict[Series, str]
    ) -> None:
        """One batch. A field of a link sum adds up; a link without an answer adds nothing."""
        if not fields:
            return
        try:
            answers = pynvml.nvmlDeviceGetFieldValues(self._handle, [(field, scope) for field, scope, _ in fields])
        except pynvml.NVMLError as error:
            _raise_if_lost(error.value, f"GPU {self.gpu.index}, field values")
            if len(fields) == 1:
                failed[fields[0][2]] = outcome(error.value)
            else:  # one bad id can fail a whole batch: find it by halves
                half = len(fields) // 2
                self._read_fields(fields[:half], values, failed)
                self._read_fields(fields[half:], values, failed)
            return
        for (field, _, series), answer in zip(fields, answers, strict=True):
            if answer.nvmlReturn == pynvml.NVML_SUCCESS:
                value = float(getattr(answer.value, FIELD_MEMBERS[answer.valueType])) * series.metric.scale
                values[series] = values.get(series, 0.0) + value
                failed.pop(series, None)
            else:
                _raise_if_lost(answer.nvmlReturn, f"GPU {self.gpu.index}, field {field}")
                if series not in values:
                    failed[series] = outcome(answer.nvmlReturn)

    def _prune(self, failed: dict[Series, str]) -> None:
        """A series that never answered and is not supported or not permitted is not asked again."""
        gone = {
            series: reason
            for series, reason in failed.items()
            if series not in self._answered and reason in ("not_supported", "no_permission")
        }
        if not gone:
            return
        for series in gone:
            del failed[series]
        for calls in self._calls.values():
            for call in list(calls):
                calls[call] = [series for series in calls[call] if series not in gone]
                if not calls[call]:
                    del calls[call]
        for pace, fields in self._fields.items():
            self._fields[pace] = [entry for entry in fields if entry[2] not in gone]
        if self._gpm:
            self._gpm.drop(gone)
        answered = {series.metric for series in self._answered}
        self._unsupported.update(
            (series.metric, reason) for series, reason in gone.items() if series.metric not in answered
        )

    def close(self) -> None:
        if self._gpm:
            self._gpm.close()


class _GpmWindow:
    """Two GPM samples of one GPU and the exact means between them (nvmlGpmMetricsGet costs by call, not by id)."""

    def __init__(self, handle: Any, wanted: Sequence[tuple[int, Series]]) -> None:
        self._handle = handle
        self._wanted = list(wanted)
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._old, self._new = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._old_at: float | None = None
        self._prepare()

    def _prepare(self) -> None:
        self._request.numMetrics = len(self._wanted)
        metrics = self._request.metrics
        for slot, (gpm, _) in enumerate(self._wanted):
            metrics[slot].metricId = gpm
        self._slots = [(metrics[slot], series) for slot, (_, series) in enumerate(self._wanted)]

    def read(self, values: dict[Series, float], failed: dict[Series, str]) -> float | None:
        """Fill in the means since the sample before; return the seconds they cover, None if there are none yet.

        After a late tick the next window may be too short: then the old sample is kept and nothing is lost. A sample is
        dated by the return of its call, which may take long: so a window is never shorter than it seems.
        """
        lacks = 0.0 if self._old_at is None else GPM_MIN_SPAN - (time.monotonic() - self._old_at)
        if not self._wanted or lacks > GPM_PATIENCE:
            return None
        if lacks > 0:
            time.sleep(lacks)
        try:
            pynvml.nvmlGpmSampleGet(self._handle, self._new)
            now = time.monotonic()
            span = None if self._old_at is None else now - self._old_at
            if span is not None:
                self._request.sample1, self._request.sample2 = self._old, self._new
                pynvml.nvmlGpmMetricsGet(self._request)
        except pynvml.NVMLError as error:
            _raise_if_lost(error.value, "GPM")
            failed.update((series, outcome(error.value)) for _, series in self._wanted)
            return None
        self._old, self._new, self._old_at = self._new, self._old, now
        if span is None:
            return None
        for slot, series in self._slots:
            code = slot.nvmlReturn
            if code == pynvml.NVML_SUCCESS:
                values[series] = slot.value * series.metric.scale
            else:
                _raise_if_lost(code, "GPM")
                failed[series] = outcome(code)
        return span

    def drop(self, gone: Mapping[Series, str]) -> None:
        self._wanted = [entry for entry in self._wanted if entry[1] not in gone]
        self._prepare()

    def close(self) -> None:
        for sample in (self._old, self._new):
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
