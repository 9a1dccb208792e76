"""How far network cards are from GPUs, as `nvidia-smi topo -m` says it."""

import pytest

from gpu_exporter.host.fabric.distance import Distance, PciPlace, distance, nearest

SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
GPU = f"{SWITCH}/0000:17:00.0/0000:18:00.0"


def at(path: str, node: int | None = 0) -> PciPlace:
    parts = tuple(path.split("/"))
    return PciPlace(parts[-1], parts, node)


@pytest.mark.parametrize(
    ("gpu", "nic", "nodes", "expected"),
    [
        (at(GPU), at(f"{SWITCH}/0000:17:01.0/0000:19:00.0"), 2, Distance.PIX),
        (at(GPU), at(f"{SWITCH}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0"), 2, Distance.PXB),
        (at(GPU), at("pci0000:15/0000:15:03.0/0000:20:00.0"), 2, Distance.PHB),
        (at(GPU), at("pci0000:25/0000:25:01.0/0000:26:00.0"), 2, Distance.NODE),
        (at(GPU), at("pci0000:97/0000:97:01.0/0000:98:00.0", 1), 2, Distance.SYS),
        (at(GPU, None), at("pci0000:97/0000:97:01.0/0000:98:00.0", None), 1, Distance.NODE),
        (at(GPU, None), at("pci0000:97/0000:97:01.0/0000:98:00.0", 1), 2, None),
    ],
    ids=["switch", "switches", "host-bridge", "node", "other-node", "one-node", "unknown"],
)
def test_distance(gpu: PciPlace, nic: PciPlace, nodes: int, expected: Distance | None) -> None:
    """It is the same in both directions."""
    assert distance(gpu, nic, nodes) is distance(nic, gpu, nodes) is expected


def test_nearest() -> None:
    """A port whose distance is unknown comes last, and one without a place does not count."""
    unknown, same_switch = at("pci0000:97/0000:97:01.0/0000:98:00.0", None), at(GPU.replace(":18:", ":19:"))
    assert nearest(at(GPU), [None, unknown, same_switch], 2) == (Distance.PIX, (2,))
    other_node = at("pci0000:97/0000:97:01.0/0000:98:00.0", 1)
    assert nearest(at(GPU), [unknown, other_node], 2) == (Distance.SYS, (1,))
    assert nearest(at(GPU), [None, unknown], 2) == (None, (1,))
    assert nearest(at(GPU), [None], 2) == (None, ())
    assert nearest(at(GPU), [same_switch] * 5, 2) == (None, ())
