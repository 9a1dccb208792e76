"""The value of CUDA_VISIBLE_DEVICES -> the GPUs and MIG instances that CUDA shows, as driver 580 reads it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_exporter.owners.devices import DeviceRef, NodeDevices, parse

_NUMBER = re.compile(r"\s*\+?(\d+)", re.ASCII)
_KINDS = ("GPU-", "MIG-")


class Repeated(ValueError):
    """A device is named twice. CUDA shows none then."""


def entries(text: str) -> tuple[int | str, ...]:
    """Return the indices, or the UUIDs or beginnings of UUIDs, up to the first entry that CUDA rejects.

    All are of the kind of the first one. A number is read as by C's `strtoul`, so that `1gpu` is 1; spaces before a
    UUID are not skipped.
    """
    kind = next((kind for kind in _KINDS if text.startswith(kind)), "")
    accepted: list[int | str] = []
    for entry in text.split(","):
        number = _NUMBER.match(entry)
        if kind and entry.startswith(kind):
            accepted.append(entry.rstrip())
        elif not kind and number:
            accepted.append(int(number[1]))
        else:
            break
    return tuple(accepted)


def shown(names: Sequence[str], devices: NodeDevices) -> tuple[tuple[DeviceRef, ...], str]:
    """Return the devices with these UUIDs, and the first name that is not of exactly one device; "" if there is none.

    That name hides itself and all that follow. Raises Repeated.
    """
    refs: dict[str, DeviceRef] = {}
    for name in names:
        uuid = _uuid(name, devices)
        if not uuid:
            return tuple(refs.values()), name
        if uuid in refs:
            raise Repeated(uuid)
        refs[uuid] = devices.migs.get(uuid) or DeviceRef(uuid)
    return tuple(refs.values()), ""


def _uuid(name: str, devices: NodeDevices) -> str:
    """Return the UUID of the only device that a name refers to; "" if there is none or several."""
    device = parse(name)
    if device and device.instance:  # MIG-GPU-<uuid>/<gi>/<ci>, as drivers before 470 name MIG devices
        ref = devices.find(device)
        matches = [uuid for uuid, found in devices.migs.items() if found == ref]
        return next(iter(matches), "")
    matches = [uuid for uuid in (*devices.gpus, *devices.migs) if uuid.lower().startswith(name.lower())]
    return matches[0] if len(matches) == 1 else ""
