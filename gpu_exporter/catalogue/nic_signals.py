"""Signals of the network ports nearest to a GPU, which carry its traffic to other nodes. Only gpu-exporter has them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import Derived, Read, Signal


def _signal(name: str, unit: str, help: str, plain: str, made: Read | Derived) -> Signal:
    return Signal(f"nic_{name}", unit, help, (made,), plain=plain)


UP = _signal("up", "bool", m.NIC_UP.help.rstrip("."), "network ports active: {}", Read(m.NIC_UP.name))
RATE_SHARE = _signal(
    "rate_share",
    "ratio",
    "Rate of the slowest link of the nearest ports, as a share of what it should be",
    "network link at {} of its rate",
    Read(m.NIC_RATE_SHARE.name),
)
DISTANCE = _signal(
    "distance",
    "level",
    m.NIC_DISTANCE.help.rstrip("."),
    "distance of the nearest network port: {}",
    Read(m.NIC_DISTANCE.name),
)
TX = _signal(
    "tx",
    "bytes_per_second",
    "Traffic sent by the nearest network ports",
    "network traffic sent {}",
    Read(m.NIC_TX.name, rate=True),
)
RX = _signal(
    "rx",
    "bytes_per_second",
    "Traffic received by the nearest network ports",
    "network traffic received {}",
    Read(m.NIC_RX.name, rate=True),
)
TRAFFIC = _signal(
    "traffic",
    "bytes_per_second",
    "Traffic of the nearest network ports in both directions",
    "network traffic {}",
    Derived(TX, "+", RX),
)
DOWNED = _signal(
    "link_downed", "total", "How often the nearest network links went down", "{} times down", Read(m.NIC_DOWNED.name)
)
ERRORS = _signal(
    "link_errors", "total", "Link errors of the nearest network ports", "{} link errors", Read(m.NIC_ERRORS.name)
)
RETRANSMITS = _signal(
    "retransmits",
    "per_second",
    "Retransmitted packets of the nearest network ports",
    "{} retransmitted packets per second",
    Read(m.NIC_RETRANSMITS.name, rate=True),
)


def _signals() -> Iterator[Signal]:
    return (value for value in tuple(globals().values()) if isinstance(value, Signal))


# In the order in which they are recorded.
SIGNALS: tuple[Signal, ...] = tuple(_signals())
