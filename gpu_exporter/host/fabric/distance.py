"""How far a network card is from a GPU, in the classes of `nvidia-smi topo -m`. Pure, but for `place`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.procfs import cpu_list

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# Of more ports that are equally near, none is the GPU's own: the topology is not shown, as in many virtual machines.
MOST_NEAREST = 4


class Distance(IntEnum):
    """What lies between a GPU and a network card, nearest first."""

    PIX = 1  # one PCIe switch
    PXB = 2  # several PCIe switches
    PHB = 3  # the host bridge of the CPU
    NODE = 4  # two host bridges of one NUMA node
    SYS = 5  # the link between two NUMA nodes


class PciPlace(NamedTuple):
    """Where a PCIe device is: its address, the path from the host bridge to it, its NUMA node (None: unknown)."""

    pci: str
    path: tuple[str, ...]
    node: int | None


def place(files: HostFiles, path: str) -> PciPlace | None:
    """Return the place of the PCIe device to which a path below /sys leads; None if it is no such device."""
    parts = files.sys_target(path).split("/")
    roots = [index for index, part in enumerate(parts) if _ROOT.fullmatch(part)]
    if not roots or not _ADDRESS.fullmatch(parts[-1]):
        return None
    return PciPlace(parts[-1], tuple(parts[roots[0] :]), _node(files, f"{path}/numa_node"))


def numa_nodes(files: HostFiles) -> int:
    """Return the number of NUMA nodes with CPUs; 0 if it is unknown."""
    try:
        return len(cpu_list(files.sys("devices/system/node/has_cpu")))
    except OSError:
        return 0


def distance(gpu: PciPlace, nic: PciPlace, nodes: int) -> Distance | None:
    """Return how far two devices are apart; None if they have different host bridges and a node is unknown.

    A path goes through two bridges for each PCIe switch: its upstream port and its downstream port. So two devices
    below one switch have at most their downstream port and themselves of their own.
    """
    if gpu.path[0] == nic.path[0]:
        common = sum(1 for _ in _common(gpu.path, nic.path))
        own = max(len(gpu.path), len(nic.path)) - common
        if common == 1:
            return Distance.PHB
        return Distance.PIX if own <= 2 else Distance.PXB
    if nodes == 1:
        return Distance.NODE
    if gpu.node is None or nic.node is None:
        return None
    return Distance.NODE if gpu.node == nic.node else Distance.SYS


def nearest(gpu: PciPlace, places: Sequence[PciPlace | None], nodes: int) -> tuple[Distance | None, tuple[int, ...]]:
    """Return how far the nearest of some network cards are from a GPU, and which these are, by their positions.

    The distance is None if it is unknown. If too many are equally near, none is the GPU's own.
    """
    apart = {index: distance(gpu, there, nodes) for index, there in enumerate(places) if there}
    if not apart:
        return None, ()
    best = min(apart.values(), key=_unknown_last)
    found = tuple(index for index, each in apart.items() if each == best)
    return (best, found) if len(found) <= MOST_NEAREST else (None, ())


def _unknown_last(apart: Distance | None) -> int:
    return Distance.SYS + 1 if apart is None else apart


def _common(left: Iterable[str], right: Iterable[str]) -> Iterable[str]:
    for one, other in zip(left, right, strict=False):
        if one != other:
            return
        yield one


def _node(files: HostFiles, path: str) -> int | None:
    try:
        text = files.sys(path).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) <= 4 else None
