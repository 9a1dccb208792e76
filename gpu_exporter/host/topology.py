"""Where a GPU is: its NUMA node, and the CPUs next to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_exporter.host.procfs import cpu_list
from gpu_exporter.model.pci import pci_bus_id


@dataclass(frozen=True, slots=True)
class Topology:
    """The NUMA nodes of the machine that have CPUs, and the CPUs that are local to a GPU."""

    nodes: int
    local_cpus: frozenset[int]

    @property
    def has_remote(self) -> bool:
        """Whether a process can run on a node other than that of the GPU."""
        return self.nodes > 1 and bool(self.local_cpus)


def topology(pci: str, read: Callable[[str], bytes]) -> Topology:
    """Return the place of the GPU at a PCI address. `read` returns a file below /sys, and raises OSError.

    The kernel lists the local CPUs by the PCIe root port, so they are right on machines with several roots per node. On
    virtual machines the node is often -1, and all CPUs count as local.
    """
    try:
        nodes = len(cpu_list(read("devices/system/node/has_cpu")))
        device = f"bus/pci/devices/{pci_bus_id(pci)[4:].lower()}"  # the kernel writes four digits of the domain
        node = read(f"{device}/numa_node").strip()
        local = cpu_list(read(f"{device}/local_cpulist")) if node.isdigit() else frozenset[int]()
    except OSError:
        return Topology(0, frozenset())
    return Topology(nodes, local)
