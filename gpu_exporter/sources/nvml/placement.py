"""Where a GPU is: its NVLink fabric and its place in the rack, as the labels of one series."""

from __future__ import annotations

from collections.abc import Collection
from ctypes import byref
from struct import Struct
from typing import Any
from uuid import UUID

import pynvml

from gpu_exporter.catalogue.metrics import PLACEMENT
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Labels, Metric, Pace
from gpu_exporter.sources.nvml.errors import UNSUPPORTED, outcome, raise_if_lost

# NVML's state of a GPU that has joined a fabric.
JOINED = 3
# The members of `nvmlPlatformInfo_v2_t` that are read: the bindings take its numbers for text.
PLATFORM = Struct("=20x16s3Bx1B")


def fabric(handle: Any) -> Labels:
    """Return the cluster and the clique of a GPU; empty if it is in no fabric. Raises NVMLError.

    GPUs with the same cluster and clique reach each other over NVLink. The cluster of a single node has no UUID.
    """
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if info.state != JOINED or info.status:
        return ()
    cluster = bytes(info.clusterUuid)
    return (("cluster_uuid", str(UUID(bytes=cluster)) if any(cluster) else ""), ("clique_id", str(info.cliqueId)))


def platform(handle: Any) -> Labels:
    """Return the place of a GPU in its chassis. Raises NVMLError."""
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    pynvml.nvmlDeviceGetPlatformInfo(handle, byref(info))
    serial, slot, tray, host, module = PLATFORM.unpack_from(bytes(info))
    numbers = {"slot": slot, "tray": tray, "host": host, "module": module}
    text = printable(serial.rstrip(b"\0").decode("ascii", "replace"), len(serial))
    return (("chassis_serial", text), *((name, str(number)) for name, number in numbers.items()))


# Old bindings lack a structure.
ASKED = tuple(
    ask
    for ask, structure in ((fabric, "c_nvmlGpuFabricInfoV_t"), (platform, "c_nvmlPlatformInfo_v2_t"))
    if hasattr(pynvml, structure)
)


class Placement:
    """The series of one GPU. A GPU that joins another fabric has a new one."""

    def __init__(self, handle: Any, gpu: Gpu, metrics: Collection[Metric]) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._handle, self._gpu, self._wanted = handle, gpu, PLACEMENT in metrics
        self._series: Series | None = None

    def read(self, paces: frozenset[Pace], values: dict[Series, float], failed: dict[Series, str]) -> set[Series]:
        """Fill in what is due; return the series that has ended. Raises GpuLost, SourceLost."""
        if not self._wanted or Pace.RARE not in paces:
            return set()
        labels, last = list[tuple[str, str]](), self._series
        for ask in ASKED:
            try:
                labels += ask(self._handle)
            except pynvml.NVMLError as error:
                raise_if_lost(error.value, f"GPU {self._gpu.index}, {ask.__name__}")
                if error.value not in UNSUPPORTED:
                    failed.update({last: outcome(error.value)} if last else {})
                    return set()
        self._series = Series(PLACEMENT, self._gpu, tuple(labels)) if labels else None
        if self._series is None:
            self.unsupported[PLACEMENT] = "not_supported"
        else:
            self.unsupported.pop(PLACEMENT, None)
            values[self._series] = 1.0
        return {last} - {self._series} if last else set()
