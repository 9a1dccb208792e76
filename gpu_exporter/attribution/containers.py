"""Names of containers, from the files of the container runtime, which only privileged users can read."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, TypeVar

from gpu_exporter.attribution import files
from gpu_exporter.attribution.cgroup import ProcessOwner
from gpu_exporter.io.decoding import json_as
from gpu_exporter.kubernetes import limits

T = TypeVar("T")

LARGEST_FILE = 16 << 20
DOCKER = "var/lib/docker/containers/{}/config.v2.json"
PODMAN = "var/lib/containers/storage/overlay-containers/containers.json"


class _DockerContainer(TypedDict, total=False):
    Name: str


class _PodmanContainer(TypedDict, total=False):
    id: str
    names: list[str] | None


def container_name(owner: ProcessOwner, root: Path) -> str:
    """Return the name of a container; empty if it cannot be determined, or is too long."""
    name = ""
    if owner.runtime == "docker":
        container = _json(root / DOCKER.format(owner.container), _DockerContainer)
        name = container.get("Name", "").removeprefix("/") if container else ""
    elif owner.runtime == "podman":
        for listed in _json(root / PODMAN, list[_PodmanContainer]) or ():
            names = listed.get("names")
            if listed.get("id") == owner.container and names:
                name = names[0]
    return name if len(name) <= limits.LONGEST_POD else ""


def _json(path: Path, kind: type[T]) -> T | None:
    try:
        answer = files.read(path, LARGEST_FILE)
        return json_as(kind, answer[0]) if answer else None
    except (OSError, ValueError):
        return None
