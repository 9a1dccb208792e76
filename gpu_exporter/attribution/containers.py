"""Names of containers, from the files of the container runtime, which can only be read with privileges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_exporter.attribution import files
from gpu_exporter.attribution.cgroup import ProcessOwner

LARGEST_FILE = 16 << 20
DOCKER = "var/lib/docker/containers/{}/config.v2.json"
PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"


def container_name(owner: ProcessOwner, root: Path) -> str:
    """Return the name of a container; empty if it cannot be determined."""
    if owner.runtime == "docker":
        content = _json(root / DOCKER.format(owner.container))
        return str(content.get("Name", "")).removeprefix("/") if isinstance(content, dict) else ""
    if owner.runtime == "podman":
        listed = _json(root / PODMAN)
        for container in listed if isinstance(listed, list) else ():
            if isinstance(container, dict) and container.get("id") == owner.container:
                names = container.get("names")
                return str(names[0]) if isinstance(names, list) and names else ""
    return ""


def _json(path: Path) -> Any:
    try:
        read = files.read(path, LARGEST_FILE)
        return json.loads(read[0]) if read else None
    except (OSError, ValueError, RecursionError):
        return None
