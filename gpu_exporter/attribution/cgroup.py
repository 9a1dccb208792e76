"""What the kernel says of a process's cgroup -> the pod, container or Slurm job that it runs in. Pure.

A path is read from its root on, as kubelet, the container runtimes and Slurm make it: whoever may make cgroups of their
own further down, or beside, can't place a process where it is not. Forms after the sources of kubelet
(`pkg/kubelet/cm`), containerd, CRI-O, Docker, podman (`libpod`), kind, and Slurm's documentation of `cgroup.conf`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = "[0-9a-f]{64}"
# As Kubernetes writes UIDs, with `_` for `-` under systemd; those of static pods have neither.
_UID = "(?P<uid>[0-9a-f]{8}(?P<dash>[-_]?)[0-9a-f]{4}(?:(?P=dash)[0-9a-f]{4}){2}(?P=dash)[0-9a-f]{12})"
# A cgroup namespace shows what is above its root as `..`
_ABOVE = r"(?:/\.\.)*"
# kind and the like run a kubelet in a container.
_OUTER = (
    rf"(?:/docker/{_ID}|/system\.slice/docker-{_ID}\.scope"
    rf"|/machine\.slice/libpod-{_ID}\.scope(?:/container)?|/libpod_parent/libpod-{_ID})"
)
_QOS = "burstable|besteffort"
_RUNTIMES = "cri-containerd|crio|docker|containerd|isulad"
_INSIDE = "(?:/.*)?"

_CGROUPFS = rf"/kubepods(?:/(?:{_QOS}))?/pod{_UID}/(?:(?:{_RUNTIMES})-)?(?P<id>{_ID})"


def _systemd(parent: str) -> str:
    """Each slice carries the names of those above it."""
    name = f"{parent}kubepods"
    return (
        rf"/{name}\.slice(?:/{name}-(?P<qos>{_QOS})\.slice)?/{name}(?(qos)-(?P=qos))-pod{_UID}\.slice"
        rf"/(?:{_RUNTIMES})-(?P<id>{_ID})\.scope"
    )


# containerd's own cgroup driver under kubelet's systemd one
_MIXED = rf"/system\.slice/containerd\.service/kubepods(?:-(?:{_QOS}))?-pod{_UID}\.slice:cri-containerd:(?P<id>{_ID})"
_ROOTLESS = r"/user\.slice/user-(?P<user>\d+)\.slice/user@(?P=user)\.service(?:/(?:user|app)\.slice)?"

_PODS = tuple(
    re.compile(_ABOVE + pattern + _INSIDE, re.ASCII)
    for pattern in (
        rf"{_OUTER}?(?:/kubelet)?{_CGROUPFS}",
        rf"{_OUTER}?{_systemd('')}",
        rf"{_OUTER}?/kubelet\.slice{_systemd('kubelet-')}",
        _MIXED,
    )
)
_CONTAINERS = tuple(
    (runtime, re.compile(_ABOVE + pattern + _INSIDE, re.ASCII))
    for runtime, pattern in (
        ("docker", rf"/docker/(?P<id>{_ID})"),
        ("docker", rf"/system\.slice/docker-(?P<id>{_ID})\.scope"),
        ("docker", rf"{_ROOTLESS}/docker-(?P<id>{_ID})\.scope"),
        ("podman", rf"/machine\.slice/libpod-(?P<id>{_ID})\.scope"),
        ("podman", rf"/libpod_parent/libpod-(?P<id>{_ID})"),
        ("podman", rf"{_ROOTLESS}/libpod-(?P<id>{_ID})\.scope"),
        ("containerd", rf"/system\.slice/nerdctl-(?P<id>{_ID})\.scope"),
        ("containerd", rf"/default/(?P<id>{_ID})"),
    )
)
_STEP = r"(?:/step_(?P<step>[0-9a-z_+.]+))?"
_JOBS = tuple(
    re.compile(_ABOVE + pattern + _INSIDE, re.ASCII)
    for pattern in (
        rf"/slurm(?:_[\w.-]+)?/uid_(?P<uid>\d+)/job_(?P<job>\d+){_STEP}",
        rf"/system\.slice/(?:[\w.-]+_)?slurmstepd\.scope/job_(?P<job>\d+){_STEP}",
    )
)
_LINE = re.compile(r"\d+:[^:]*:(?P<path>/.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Whose:
    """Where a process runs: in a pod by UID, in a container, in a job of Slurm with its step and the user's number.

    The `name` of a container is in no cgroup; `names` may know it.
    """

    pod: str = ""
    container: str = ""
    runtime: str = ""
    name: str = ""
    job: str = ""
    step: str = ""
    user: str = ""


def whose(text: str) -> Whose | None:
    """Read /proc/<pid>/cgroup; None if it names none, or in its hierarchies not the same."""
    paths = (line["path"] for line in map(_LINE.fullmatch, text.splitlines()) if line)
    found = {each for each in map(_of, paths) if each}
    jobs = {each for each in found if each.job}
    if len({each.job for each in jobs}) == 1:  # some hierarchies go down to the step, or the user, and others not
        found = found - jobs | {max(jobs, key=lambda each: (bool(each.step), bool(each.user), each.step))}
    return found.pop() if len(found) == 1 else None


def _of(path: str) -> Whose | None:
    for pattern in _PODS:
        if found := pattern.fullmatch(path):
            return Whose(pod=uid(found["uid"]), container=found["id"])
    for runtime, pattern in _CONTAINERS:
        if found := pattern.fullmatch(path):
            return Whose(container=found["id"], runtime=runtime)
    for pattern in _JOBS:
        if found := pattern.fullmatch(path):
            known = found.groupdict()
            return Whose(job=found["job"], step=known["step"] or "", user=known.get("uid") or "")
    return None


def uid(text: str) -> str:
    """A pod's UID in one way of writing it, whichever it came in."""
    return text.replace("_", "").replace("-", "").lower()
