"""Names of containers, where the runtime's own files can be read: without privileges they can't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_exporter.attribution import files
from gpu_exporter.attribution.cgroup import Whose

LARGEST_FILE = 16 << 20
DOCKER = "var/lib/docker/containers/{}/config.v2.json"
PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"


def container_name(whose: Whose, root: Path) -> str:
    """The name its user gave the container; empty if it can't be told."""
    if whose.runtime == "docker":
        content = _json(root / DOCKER.format(whose.container))
        return str(content.get("Name", "")).removeprefix("/") if isinstance(content, dict) else ""
    if whose.runtime == "podman":
        listed = _json(root / PODMAN)
        for each in listed if isinstance(listed, list) else ():
            if isinstance(each, dict) and each.get("id") == whose.container:
                names = each.get("names")
                return str(names[0]) if isinstance(names, list) and names else ""
    return ""


def _json(path: Path) -> Any:
    try:
        read = files.read(path, LARGEST_FILE)
        return json.loads(read[0]) if read else None
    except (OSError, ValueError, RecursionError):
        return None
