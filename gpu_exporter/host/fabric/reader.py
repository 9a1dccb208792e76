"""Reads the RDMA ports of a machine from sysfs: what they are, their state, and their counters.

A file that does not exist has no value, because drivers and kernels differ. Any other problem has no value, either, and
one warning that names the file.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.host.fabric.counters import DETAILS, DOWNED, KIND_OF, TRAFFIC
from gpu_exporter.host.fabric.distance import PciPlace, place
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable

log = logging.getLogger(__name__)

DEVICES = "class/infiniband"
MOST_PORTS, MOST_WARNINGS, MOST_LABEL = 128, 20, 64
MOST_COUNT, MOST_GIGABITS = 2**64 - 1, 1e5
ACTIVE = "4"
# A driver that has no such counter, such as hfi1.
NOT_AVAILABLE = b"N/A"
# What the kernel says when a device vanishes while it is read.
GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)
# A name is part of a path and a label.
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")
_STATE = re.compile(r"([0-9]{1,2}): ?(.{1,40})")


class Nic(NamedTuple):
    """A port of an RDMA device, and where it is. `board` identifies the kind of card, `layer` is its link layer."""

    device: str
    port: str
    layer: str
    driver: str
    board: str
    place: PciPlace | None

    @property
    def name(self) -> str:
        """Return device and port, as NCCL writes them."""
        return f"{self.device}:{self.port}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """Return what ports have in common that are meant to have the same rate."""
        return self.layer, self.driver, self.board


class Link(NamedTuple):
    """The state of a port: whether it is active, and its rate in bytes per second. What cannot be read is None."""

    up: bool | None
    rate: float | None


@dataclass(slots=True)
class FabricReader:
    """Reads ports. Warns once about each file, and not about more than a few."""

    files: HostFiles
    _warned: set[str] = field(default_factory=set)

    def nics(self) -> list[Nic]:
        """Return the ports of all devices, in order; none if there are no RDMA devices."""
        devices = [name for name in self._names(DEVICES) if _NAME.fullmatch(name)]
        nics = [nic for device in devices for nic in self._ports(device)]
        if len(nics) > MOST_PORTS:
            self._warn(DEVICES, f"{len(nics)} ports; only the first {MOST_PORTS} are read")
        return nics[:MOST_PORTS]

    def link(self, nic: Nic) -> Link:
        """Return the present state of a port."""
        base = _base(nic.device, nic.port)
        number = self._state(f"{base}/state")
        return Link(number == ACTIVE if number else None, self._rate(f"{base}/rate"))

    def traffic(self, nic: Nic) -> dict[str, int]:
        """Return the counters of bytes of a port."""
        return self._counters(nic, TRAFFIC)

    def errors(self, nic: Nic, *, details: bool) -> dict[str, int]:
        """Return the counters of errors, and with `details` further ones. On mlx5 each costs a command of the card."""
        return self._counters(nic, {*KIND_OF, DOWNED, *(DETAILS if details else ())})

    def has_module(self, *names: str) -> bool:
        """Return whether one of these kernel modules is loaded."""
        return any(name in self._names("module") for name in names)

    def _ports(self, device: str) -> Iterable[Nic]:
        base = f"{DEVICES}/{device}"
        ports = [port for port in self._names(f"{base}/ports") if port.isdecimal() and len(port) <= 3]
        if not ports:
            return
        where = place(self.files, f"{base}/device")
        driver = self.files.sys_target(f"{base}/device/driver").rpartition("/")[2]
        board = self._text(f"{base}/board_id") or self._text(f"{base}/hca_type")
        for port in sorted(ports, key=int):
            layer = self._text(f"{_base(device, port)}/link_layer")
            yield Nic(device, port, layer, printable(driver, MOST_LABEL), board, where)

    def _counters(self, nic: Nic, wanted: Iterable[str]) -> dict[str, int]:
        values, wanted = {}, frozenset(wanted)
        for folder in ("counters", "hw_counters"):
            base = f"{_base(nic.device, nic.port)}/{folder}"
            for name in self._names(base):
                if name in wanted and (value := self._number(f"{base}/{name}")) is not None:
                    values[name] = value
        return values

    def _number(self, path: str) -> int | None:
        content = self._read(path)
        if content is None or content.startswith(NOT_AVAILABLE):
            return None
        if content.isdigit() and int(content[:21]) <= MOST_COUNT:
            return int(content)
        self._warn(path, f"not a counter: {content!r:.40}")
        return None

    def _state(self, path: str) -> str:
        """Return the number of a state; empty if it cannot be read."""
        text = self._text(path)
        matched = _STATE.fullmatch(text)
        if text and not matched:
            self._warn(path, f"not a state: {text!r:.40}")
        return matched[1] if matched else ""

    def _rate(self, path: str) -> float | None:
        text = self._text(path)
        matched = _RATE.match(text)
        if text and not matched:
            self._warn(path, f"not a rate: {text!r:.40}")
        gigabits = float(matched[1]) if matched else 0.0
        return gigabits * 1e9 / 8 if 0 < gigabits <= MOST_GIGABITS else None

    def _text(self, path: str) -> str:
        content = self._read(path)
        return "" if content is None else printable(content.decode("utf-8", "replace"), MOST_LABEL)

    def _read(self, path: str) -> bytes | None:
        try:
            return self.files.sys(path).strip()
        except GONE:
            return None
        except OSError as error:
            self._warn(path, error.strerror or "cannot be read")
            return None

    def _names(self, path: str) -> list[str]:
        try:
            return self.files.sys_names(path)
        except GONE:
            return []
        except OSError as error:
            self._warn(path, error.strerror or "cannot be listed")
            return []

    def _warn(self, path: str, why: str) -> None:
        if path not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(path)
            where = printable(self.files.sys_path(path), 300)
            log.warning("network cards: %s: %s; the value is left out", where, printable(why, 120))


def _base(device: str, port: str) -> str:
    return f"{DEVICES}/{device}/ports/{port}"
