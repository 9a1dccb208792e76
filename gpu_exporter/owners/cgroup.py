"""The cgroup of a process -> the pod, container or Slurm job that it runs in. Pure.

Paths are matched from the root, as kubelet, the container runtimes and Slurm create them, so that users who may create
cgroups further down, or elsewhere, cannot attribute a process to another owner. Forms follow the sources of kubelet
(`pkg/kubelet/cm`), containerd, CRI-O, Docker, podman (`libpod`), kind, and Slurm's documentation of `cgroup.conf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

_ID = "(?P<id>[0-9a-f]{64})"
# UIDs as Kubernetes writes them, with `_` instead of `-` under systemd; those of static pods have neither.
_UID = "(?P<uid>[0-9a-f]{8}(?P<dash>[-_]?)[0-9a-f]{4}(?:(?P=dash)[0-9a-f]{4}){2}(?P=dash)[0-9a-f]{12})"
# kind and the like run a kubelet in a container.
_OUTER = (
    r"(?:/docker/[0-9a-f]{64}|/system\.slice/docker-[0-9a-f]{64}\.scope"
    r"|/machine\.slice/libpod-[0-9a-f]{64}\.scope(?:/container)?|/libpod_parent/libpod-[0-9a-f]{64})?"
)
_QOS = ("", "burstable", "besteffort")
_RUNTIMES = "cri-containerd|crio|docker|containerd|isulad"
_ROOTLESS = r"/user\.slice/user-(?P<user>\d+)\.slice/user@(?P=user)\.service(?:/(?:user|app)\.slice)?"


def _pattern(parents: Iterable[str], leaf: str, outer: str = "") -> str:
    """Return a pattern that matches a path from the root on, with anything below it.

    A reader in a cgroup namespace, such as an exporter in a container, sees `..` for each cgroup from its own up to the
    nearest common one, and then only the parents below that one: `leaf` alone must identify the owner.
    """
    parents, visible = tuple(parents), ""
    for parent in parents:
        visible = f"(?:{visible}{parent})?"
    return rf"(?:(?:/\.\.)*{outer}{''.join(parents)}|(?:/\.\.)+{visible}){leaf}(?:/.*)?"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern when it is first tried: all of them take a tenth of the time of a start."""
    return re.compile(pattern, re.ASCII)


def _pods() -> Iterator[str]:
    for qos in _QOS:
        leaf = rf"/pod{_UID}/(?:(?:{_RUNTIMES})-)?{_ID}"
        yield _pattern(("(?:/kubelet)?/kubepods", *([f"/{qos}"] if qos else [])), leaf, _OUTER)
        # each slice carries the names of those above it
        for above, name in (("", "kubepods"), (r"/kubelet\.slice", "kubelet-kubepods")):
            of_class = f"{name}-{qos}" if qos else name
            parents = (rf"{above}/{name}\.slice", *([rf"/{of_class}\.slice"] if qos else []))
            yield _pattern(parents, rf"/{of_class}-pod{_UID}\.slice/(?:{_RUNTIMES})-{_ID}\.scope", _OUTER)
        # containerd's own cgroup driver under kubelet's systemd one
        leaf = rf"/kubepods{f'-{qos}' if qos else ''}-pod{_UID}\.slice:cri-containerd:{_ID}"
        yield _pattern((r"/system\.slice", r"/containerd\.service"), leaf)


_PODS = tuple(_pods())
_CONTAINERS = (
    ("docker", _pattern((), f"/docker/{_ID}")),
    ("docker", _pattern((r"/system\.slice",), rf"/docker-{_ID}\.scope")),
    ("docker", _pattern((), rf"{_ROOTLESS}/docker-{_ID}\.scope")),
    ("podman", _pattern((r"/machine\.slice",), rf"/libpod-{_ID}\.scope")),
    ("podman", _pattern(("/libpod_parent",), f"/libpod-{_ID}")),
    ("podman", _pattern((), rf"{_ROOTLESS}/libpod-{_ID}\.scope")),
    ("containerd", _pattern((r"/system\.slice",), rf"/nerdctl-{_ID}\.scope")),
    ("containerd", _pattern((), f"/default/{_ID}")),
)
_STEP = r"(?:/step_(?P<step>[0-9a-z_+.]+))?"
_JOBS = (
    _pattern((), rf"/slurm(?:_[\w.-]+)?/uid_(?P<uid>\d+)/job_(?P<job>\d+){_STEP}"),
    _pattern((r"/system\.slice",), rf"/(?:[\w.-]+_)?slurmstepd\.scope/job_(?P<job>\d+){_STEP}"),
)
_LINE = re.compile(r"\d+:[^:]*:(?P<path>/.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """The pod (by UID), container, or Slurm job (with step and user id) that a process runs in.

    The `name` of a container is not part of a cgroup: `processes.container_name` looks it up.
    """

    pod: str = ""
    container: str = ""
    runtime: str = ""
    name: str = ""
    job: str = ""
    step: str = ""
    user: str = ""


def process_owner(text: str) -> ProcessOwner | None:
    """Parse /proc/<pid>/cgroup; None if it names no owner, or its hierarchies name different ones."""
    paths = (line["path"] for line in map(_LINE.fullmatch, text.splitlines()) if line)
    owners = {owner for owner in map(_owner, paths) if owner}
    jobs = {owner for owner in owners if owner.job}
    if len({owner.job for owner in jobs}) == 1:  # only some hierarchies contain the step or the user
        owners = owners - jobs | {max(jobs, key=lambda owner: (bool(owner.step), bool(owner.user), owner.step))}
    return owners.pop() if len(owners) == 1 else None


def _owner(path: str) -> ProcessOwner | None:
    for pattern in _PODS:
        if match := _compiled(pattern).fullmatch(path):
            return ProcessOwner(pod=uid(match["uid"]), container=match["id"])
    for runtime, pattern in _CONTAINERS:
        if match := _compiled(pattern).fullmatch(path):
            return ProcessOwner(container=match["id"], runtime=runtime)
    for pattern in _JOBS:
        if match := _compiled(pattern).fullmatch(path):
            groups = match.groupdict()
            return ProcessOwner(job=match["job"], step=groups["step"] or "", user=groups.get("uid") or "")
    return None


def uid(text: str) -> str:
    """Normalise a pod's UID: lower case, no separators."""
    return text.replace("_", "").replace("-", "").lower()
