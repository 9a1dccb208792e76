"""NVML and its GPM counters -> readings: GPUs directly from the driver, without DCGM and without privileges.

Only this subpackage imports `pynvml` (from nvidia-ml-py). Every call here may block in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pynvml

from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Owner, Sample, detail
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.source_kind import NVML
from gpu_exporter.sources.nvml.device import NvmlDevice
from gpu_exporter.sources.nvml.driver import gpus_on_bus, reload_needed
from gpu_exporter.sources.nvml.errors import LIBRARY_LOST, outcome, raise_if_lost, source_lost
from gpu_exporter.sources.nvml.library import load, release
from gpu_exporter.sources.nvml.lock import BRIEF, DriverLock


@contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        raise source_lost(error.value) from error


class NvmlSource:
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
        self._lock, self._read_lock = lock or DriverLock(), lock or DriverLock(BRIEF)

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

    def expected(self) -> int | None:
        return len(self.bus()) or None

    def bus(self) -> Sequence[PciGpu]:
        """Return the GPUs on the PCI bus that the driver should list."""
        return gpus_on_bus(self._sysfs)

    def reload_needed(self) -> bool | None:
        return reload_needed(self._sysfs, self._procfs)

    def attach(self, index: int, metrics: Sequence[Metric]) -> NvmlDevice:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = _identify(handle, index, self._system)
            return NvmlDevice(handle, gpu, metrics, self._lock, self._read_lock, self._procfs)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise GpuLost(f"GPU {index}: the driver no longer lists a GPU at this index", "gone") from error
            raise_if_lost(error.value, f"GPU {index}")
            raise GpuLost(f"GPU {index}: {error}", outcome(error.value)) from error

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Return none: the driver knows processes, not pods."""
        return ()

    def non_gpu_samples(self) -> Sequence[Sample]:
        """Return none: NVML has only GPUs."""
        return ()

    def close(self) -> None:
        opened, self._opened = self._opened, 0
        release(opened)


def _optional(ask: Callable[[], Any]) -> str:
    """Return a detail that may be missing. Raises NVMLError only if the library is lost."""
    try:
        return str(ask())
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
            return convert(getattr(pynvml, f"nvmlDeviceGet{name}")(handle, *args))
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
    numa_node = ask("NumaNodeId")
    node = (("numa_node", numa_node),) if numa_node else ()
    return Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        pci_bus_id=detail(ask("PciInfo", lambda pci: str(pci.busId))),
        model=ask("Name"),
        device=ask("MinorNumber", lambda minor: f"nvidia{minor}"),
        driver=dict(system).get("driver_version", ""),
        info=(*system, *((key, value) for key, value in info.items() if detail(value)), *node),
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
