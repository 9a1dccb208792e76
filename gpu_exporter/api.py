"""Snapshot -> the JSON of `/api/v1`. Pure."""

from __future__ import annotations

import json

from gpu_exporter import health
from gpu_exporter.model import Snapshot


def gpus(snapshot: Snapshot) -> str:
    """What each GPU is, whether it answers, and the verdict on it."""
    found = [
        {
            **health.as_dict(verdict),
            "up": status.up,
            "reason": status.reason,
            "info": {"pci_bus_id": status.gpu.pci_bus_id, "device": status.gpu.device, **dict(status.gpu.info)},
        }
        for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True)
    ]
    return json.dumps({"at": snapshot.at, "source": snapshot.source, "live": snapshot.live, "gpus": found})
