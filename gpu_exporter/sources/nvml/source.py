"""NVML and its GPM counters -> readings: GPUs directly from the driver, without DCGM and without privileges.

Only this subpackage imports `pynvml` (from nvidia-ml-py). Every call here may block in the driver.
"""

from __future__ import annotations

import _ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

from gpu_exporter.catalogue.faults import pcie_capacity
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Chip, Gpu, detail
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.source import Source
from gpu_exporter.model.source_kind import NVML
from gpu_exporter.sources.nvml.device import NvmlDevice
from gpu_exporter.sources.nvml.driver import gpus_on_bus, pcie_port, reload_needed
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, outcome, raise_if_lost, source_lost

if TYPE_CHECKING:
    from gpu_exporter.model.finding import Finding

# The longest text of the driver that is kept, in characters.
LONGEST_DETAIL = 256


def load() -> None:
    """Load the library, or count another use of it. Raises NVMLError."""
    pynvml.nvmlInit()


def release(times: int) -> None:
    """Undo that many `load`s, then unload the library if nothing uses it any more. Never raises.

    No call may be inside the library. On an H200 (driver 580), nvmlShutdown closes every device file; after several
    nvmlInit, only the last nvmlShutdown does.
    """
    undone = failed = 0
    for _ in range(times):
        try:
            pynvml.nvmlShutdown()
            undone += 1
        except pynvml.NVMLError as error:
            # After this error the library has no state. After any other error it may have some, and must stay loaded.
            undone += error.value == pynvml.NVML_ERROR_UNINITIALIZED
            failed += 1
    if undone == times:
        _unload(failed)


def _unload(uncounted: int) -> None:
    """Close the library and clear it in the bindings, so that the next `load` reads the one that is then on disk.

    Does nothing if another user of the bindings in this process has the library loaded, or if the bindings lack what
    this relies on. The bindings do not count down when nvmlShutdown fails, which it did `uncounted` times.
    """
    lock = getattr(pynvml, "libLoadLock", None)
    cache = getattr(pynvml, "_nvmlGetFunctionPointer_cache", None)
    close = getattr(_ctypes, "dlclose", None)
    if lock is None or cache is None or close is None or not hasattr(pynvml, "_nvmlLib_refcount"):
        return
    with lock:
        library = getattr(pynvml, "nvmlLib", None)
        if library is None or pynvml._nvmlLib_refcount > uncounted:
            return
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = None, 0
        cache.clear()
    close(library._handle)


# Longer than any healthy call, shorter than the deadline of a read.
PATIENCE = 0.5


class DriverLock:
    """A lock around nvmlDeviceGetFieldValues and GPM that no thread holds for longer than PATIENCE.

    When such calls of four H200s (driver 580) overlapped, processes died of a segmentation fault in nvmlGpmMetricsGet.
    At that time, batches were also read past their end (`handle.LAST_FIELD`), which crashes without any overlap. Since
    that was fixed, no process has died on two H200s, with or without this lock. Other NVML clients serialise these
    calls, too. A holder that takes longer is stuck in the kernel, where it races with no other thread, so the next
    thread proceeds: a wedged GPU delays the others once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.Condition(self._lock)
        self._holder: int | None = None
        self._since = 0.0

    def __enter__(self) -> None:
        with self._lock:
            while self._holder is not None and (left := self._since + PATIENCE - time.monotonic()) > 0:
                self._free.wait(left)
            self._holder, self._since = threading.get_ident(), time.monotonic()

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            if self._holder == threading.get_ident():
                self._holder = None
                self._free.notify()


@contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise source_lost(error.value) from error


class NvmlSource(Source):
    """The NVIDIA driver's own library."""

    name, description, live = NVML

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        lock: AbstractContextManager[None] | None = None,
    ) -> None:
        self._sysfs, self._procfs = sysfs, procfs
        self._opened = 0
        self._system: Labels = ()
        self._count = 0
        self._lock = lock or DriverLock()

    def open(self) -> None:
        with _library():
            load()
            self._opened += 1
            system = {
                "driver_version": _optional(pynvml.nvmlSystemGetDriverVersion),
                "nvml_version": _optional(pynvml.nvmlSystemGetNVMLVersion),
                # not _v2: that needs libcuda, which a container with the `utility` capability alone lacks
                "cuda_version": _optional(lambda: _cuda(pynvml.nvmlSystemGetCudaDriverVersion())),
            }
        self._system = tuple((name, value) for name, value in system.items() if detail(value))

    def count(self) -> int:
        with _library():
            try:
                self._count = int(pynvml.nvmlDeviceGetCount())
            except pynvml.NVMLError as error:
                if error.value in LIBRARY_LOST or not self._count:
                    raise  # any other error is transient: the last count is still valid
        return self._count

    def bus(self) -> Sequence[PciGpu]:
        """Return the GPUs on the PCI bus that the driver should list."""
        return gpus_on_bus(self._sysfs)

    def reload_needed(self) -> bool | None:
        return reload_needed(self._sysfs, self._procfs)

    def attach(self, index: int, metrics: Sequence[Metric]) -> NvmlDevice:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _identify(handle, index, self._system)
            device = NvmlDevice(handle, gpu, metrics, self._lock, self._procfs)
            port = pcie_port(self._sysfs, self._procfs, gpu.pci_bus_id)
            device.pcie_port = port and pcie_capacity(*port)
            return device
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise GpuLost(f"GPU {index}: the driver no longer lists a GPU at this index", "gone") from error
            raise_if_lost(error.value, f"GPU {index}")
            raise GpuLost(f"GPU {index}: {error}", outcome(error.value)) from error

    def findings(self) -> Sequence[Finding]:
        """Return whether the Python module pynvml is NVIDIA's."""
        from gpu_exporter.sources.nvml.bindings import bindings

        return [bindings()]

    def close(self) -> None:
        opened, self._opened = self._opened, 0
        release(opened)


def _optional(ask: Callable[[], Any]) -> str:
    """Return a detail that may be missing. Raises NVMLError only if the library is lost."""
    try:
        return printable(str(ask()), LONGEST_DETAIL)
    except pynvml.NVMLError as error:
        if error.value in LIBRARY_LOST - {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}:
            raise
        return ""


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _identify(handle: Any, index: int, system: Labels) -> Gpu:
    """Return the identity of a GPU. Raises NVMLError if it has no UUID; all other details may be missing."""

    def ask(name: str, convert: Callable[[Any], str] = str, *args: int) -> str:
        try:
            return printable(convert(getattr(pynvml, f"nvmlDeviceGet{name}")(handle, *args)), LONGEST_DETAIL)
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, f"GPU {index}")
            return ""
        except (AttributeError, UnicodeDecodeError):  # bindings older than the call; bytes that are not text
            return ""

    info = {
        "serial": ask("Serial"),
        "vbios_version": ask("VbiosVersion"),
        "inforom_version": ask("InforomImageVersion"),
        "oem_inforom_version": ask("InforomVersion", str, pynvml.NVML_INFOROM_OEM),
        "ecc_inforom_version": ask("InforomVersion", str, pynvml.NVML_INFOROM_ECC),
        "power_inforom_version": ask("InforomVersion", str, pynvml.NVML_INFOROM_POWER),
        "brand": ask("Brand", _brand),
        "architecture": ask("Architecture", _architecture),
        "compute_capability": ask("CudaComputeCapability", lambda pair: f"{pair[0]}.{pair[1]}"),
    }
    capability = tuple(map(int, info["compute_capability"].split("."))) if info["compute_capability"] else (0, 0)
    chip = Chip(
        (capability[0], capability[1]),
        int(ask("NumGpuCores") or 0),
        float(ask("MaxClockInfo", str, pynvml.NVML_CLOCK_SM) or 0),
        float(ask("MaxClockInfo", str, pynvml.NVML_CLOCK_MEM) or 0),
        int(ask("MemoryBusWidth") or 0),
    )
    numa_node = ask("NumaNodeId")
    node = (("numa_node", numa_node),) if numa_node else ()
    return Gpu(
        index=index,
        uuid=printable(pynvml.nvmlDeviceGetUUID(handle), LONGEST_DETAIL),
        pci_bus_id=detail(ask("PciInfo", lambda pci: str(pci.busId))),
        model=ask("Name"),
        device=ask("MinorNumber", lambda minor: f"nvidia{minor}"),
        driver=dict(system).get("driver_version", ""),
        info=(*system, *((key, value) for key, value in info.items() if detail(value)), *node),
        chip=chip,
    )


# The names that DCGM uses, by NVML's number.
BRANDS = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NVIDIA Virtual Applications",
    8: "NVIDIA Virtual PC",
    9: "NVIDIA Virtual Compute Server",
    10: "NVIDIA RTX Virtual Workstation",
    11: "NVIDIA vGaming",
    12: "Quadro RTX",
    13: "NVIDIA RTX",
    14: "NVIDIA",
    15: "GeForce RTX",
    16: "Titan RTX",
}


def _brand(number: int) -> str:
    return BRANDS.get(number, "")


def _architecture(number: int) -> str:
    prefix = "NVML_DEVICE_ARCH_"
    names = {value: name for name, value in vars(pynvml).items() if name.startswith(prefix)}
    return str(names.get(number, str(number))).removeprefix(prefix).capitalize()
