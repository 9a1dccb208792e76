"""Doctor's line about the network cards for RDMA: how many ports, how fast, how near to the GPUs, with GPUDirect?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpu_exporter.host.fabric.distance import Distance, nearest, numa_nodes, place
from gpu_exporter.host.fabric.reader import DEVICES, FabricReader, Link, Nic
from gpu_exporter.host.fabric.watch import gpudirect
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.reports.numbers import first_of

TOPIC = "network"
# The GPUs of the driver, by their PCI addresses.
DRIVER = "bus/pci/drivers/nvidia"
BYTES_PER_GIGABIT = 1e9 / 8


def checks(procfs: Path, sysfs: Path) -> list[Finding]:
    """Return one finding about the network cards."""
    files = HostFiles(procfs, sysfs)
    reader = FabricReader(files)
    nics = reader.nics()
    if not nics:
        return [Finding(TOPIC, FindingLevel.OK, f"no network cards for RDMA in {sysfs}/{DEVICES}")]
    links = [reader.link(nic) for nic in nics]
    methods = [method for method, available in gpudirect(files, reader).items() if available]
    parts = [_ports(nics, links), *_distances(files, nics), f"GPUDirect: {', '.join(methods) or 'not available'}"]
    down = [nic.name for nic, link in zip(nics, links, strict=True) if link.up is False]
    if down:
        parts.append(f"not active: {first_of(down, 8)}")
    cure = "load the module nvidia_peermem, or use NVIDIA's open kernel modules on Linux 5.12 or newer"
    return [
        Finding(TOPIC, FindingLevel.OK, "; ".join(parts))
        if methods
        else Finding(TOPIC, FindingLevel.NOTE, "; ".join(parts), cure)
    ]


def _ports(nics: Sequence[Nic], links: Sequence[Link]) -> str:
    kinds = Counter((nic.driver, nic.layer, link.rate) for nic, link in zip(nics, links, strict=True))
    texts = [f"{count} x {_kind(*kind)}" for kind, count in kinds.most_common()]
    active = sum(1 for link in links if link.up)
    return f"{active} of {len(nics)} ports active ({', '.join(texts)})"


def _kind(driver: str, layer: str, rate: float | None) -> str:
    speed = f"{rate / BYTES_PER_GIGABIT:g} Gb/s" if rate else ""
    return " ".join(filter(None, (driver or "unknown driver", layer, speed)))


def _distances(files: HostFiles, nics: Sequence[Nic]) -> Iterator[str]:
    """Yield in words how far the GPUs are from their nearest ports; nothing if there is no GPU."""
    counted = Counter(_of_gpus(files, nics))
    if counted:
        texts = (f"{apart.name} for {count}" if apart else f"unknown for {count}" for apart, count in counted.items())
        yield f"nearest port of the GPUs: {', '.join(texts)}"


def _of_gpus(files: HostFiles, nics: Sequence[Nic]) -> Iterable[Distance | None]:
    try:
        addresses = [name for name in files.sys_names(DRIVER) if ":" in name]
    except OSError:
        return
    nodes = numa_nodes(files)
    for address in addresses:
        there = place(files, f"bus/pci/devices/{address}")
        if there:
            yield nearest(there, [nic.place for nic in nics], nodes)[0]
