"""A snapshot as the JSON of `/api/v1`. Pure."""

from __future__ import annotations

import json
from collections import defaultdict

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health import judge
from gpu_exporter.model.snapshot import Snapshot

OWNERS = frozenset({m.POD_INFO, m.JOB_INFO, m.CONTAINER_INFO})


def gpus(snapshot: Snapshot) -> str:
    """Return the identity, state, verdict and owners of each GPU; owners only if attribution is configured."""
    owners: dict[str, list[dict[str, str]]] = defaultdict(list)
    for series, _ in snapshot.samples:
        if series.metric in OWNERS and series.gpu is not None:
            owners[series.gpu.uuid].append(dict(series.labels))
    entries = [
        {
            **judge.as_dict(verdict),
            "up": status.up,
            "reason": status.reason,
            "owners": owners[status.gpu.uuid],
            "info": {"pci_bus_id": status.gpu.pci_bus_id, "device": status.gpu.device, **dict(status.gpu.info)},
        }
        for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True)
    ]
    return json.dumps({"at": snapshot.at, "source": snapshot.source, "live": snapshot.live, "gpus": entries})
