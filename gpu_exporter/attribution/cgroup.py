"""What the kernel says of a process's cgroup -> the pod, container or Slurm job that it runs in. Pure.

A path is read from its root on, as kubelet, the container runtimes and Slurm make it: whoever may make cgroups of their
own further down, or beside, can't place a process where it is not. Forms after the sources of kubelet
(`pkg/kubelet/cm`), containerd, CRI-O, Docker, podman (`libpod`), kind, and Slurm's documentation of `cgroup.conf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ID = "(?P<id>[0-9a-f]{64})"
# As Kubernetes writes UIDs, with `_` for `-` under systemd; those of static pods have neither.
_UID = "(?P<uid>[0-9a-f]{8}(?P<dash>[-_]?)[0-9a-f]{4}(?:(?P=dash)[0-9a-f]{4}){2}(?P=dash)[0-9a-f]{12})"
# kind and the like run a kubelet in a container.
_OUTER = (
    r"(?:/docker/[0-9a-f]{64}|/system\.slice/docker-[0-9a-f]{64}\.scope"
    r"|/machine\.slice/libpod-[0-9a-f]{64}\.scope(?:/container)?|/libpod_parent/libpod-[0-9a-f]{64})?"
)
_QOS = ("", "burstable", "besteffort")
_RUNTIMES = "cri-containerd|crio|docker|containerd|isulad"
_ROOTLESS = r"/user\.slice/user-(?P<user>\d+)\.slice/user@(?P=user)\.service(?:/(?:user|app)\.slice)?"


def _pattern(parents: Iterable[str], own: str, outer: str = "") -> re.Pattern[str]:
    """A path from its root on; anything may come below.

    Who reads it in a cgroup namespace, as an exporter in a container does, sees `..` for each cgroup from its own up to
    the nearest that both are in, and of the parents those below that one: `own` has to tell enough.
    """
    parents, seen = tuple(parents), ""
    for parent in parents:
        seen = f"(?:{seen}{parent})?"
    return re.compile(rf"(?:(?:/\.\.)*{outer}{''.join(parents)}|(?:/\.\.)+{seen}){own}(?:/.*)?", re.ASCII)


def _pods() -> Iterator[re.Pattern[str]]:
    for qos in _QOS:
        own = rf"/pod{_UID}/(?:(?:{_RUNTIMES})-)?{_ID}"
        yield _pattern(("(?:/kubelet)?/kubepods", *([f"/{qos}"] if qos else [])), own, _OUTER)
        # each slice carries the names of those above it
        for above, name in (("", "kubepods"), (r"/kubelet\.slice", "kubelet-kubepods")):
            of_class = f"{name}-{qos}" if qos else name
            parents = (rf"{above}/{name}\.slice", *([rf"/{of_class}\.slice"] if qos else []))
            yield _pattern(parents, rf"/{of_class}-pod{_UID}\.slice/(?:{_RUNTIMES})-{_ID}\.scope", _OUTER)
        # containerd's own cgroup driver under kubelet's systemd one
        own = rf"/kubepods{f'-{qos}' if qos else ''}-pod{_UID}\.slice:cri-containerd:{_ID}"
        yield _pattern((r"/system\.slice", r"/containerd\.service"), own)


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
