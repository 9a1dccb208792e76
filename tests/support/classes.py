"""The class of one device of a window."""

from __future__ import annotations

from gpu_exporter.catalogue.bottlenecks import Bottleneck, classified
from gpu_exporter.conditions.evaluate import Device, SignalWindow


def classify(window: SignalWindow, device: Device) -> Bottleneck | None:
    """Return the first bottleneck that is known to match a device."""
    return dict(zip(window.devices, classified(window), strict=True))[device]
