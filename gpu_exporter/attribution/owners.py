"""Pods, claims, jobs and processes -> the owners of each device. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.attribution.cgroup import ProcessOwner
from gpu_exporter.attribution.devices import Devices, Place, parse
from gpu_exporter.attribution.jobs import Jobs
from gpu_exporter.attribution.listing import DOMAIN, Listing
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.kubernetes import limits
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import OwnerLabels, Row

# Resources whose device ids must have a known form; other resources below nvidia.com/ may not be GPUs.
_GPU_RESOURCES = (f"{DOMAIN}gpu", f"{DOMAIN}mig-")
NO_POD: Labels = (("container", ""), ("namespace", ""), ("pod", ""))


class Facts(NamedTuple):
    """The answers of all lookups, from which the owners follow. None where a lookup is not configured."""

    devices: Devices
    listing: Listing | None = None
    pods: Mapping[str, Pod] = {}
    claims: Mapping[tuple[str, str], str] = {}
    jobs: Jobs | None = None
    running: Mapping[Place, AbstractSet[ProcessOwner]] | None = None


class Container(NamedTuple):
    """A container of a pod that has a device."""

    namespace: str
    pod: str
    name: str


class Unresolved(NamedTuple):
    """A device of a container that could not be matched with a device of this node, and why."""

    container: Container
    resource: str
    device: str
    reason: str


@dataclass(slots=True)
class _Pods:
    """Containers by device, each with its number of shares (0: the device is not shared)."""

    by_place: dict[Place, Counter[Container]] = field(default_factory=lambda: defaultdict(Counter))
    unresolved: list[Unresolved] = field(default_factory=list)

    def add(self, container: Container, place: Place, *, share: bool) -> None:
        self.by_place[place][container] += share


def owners(facts: Facts) -> tuple[OwnerLabels, Sequence[Row]]:
    """Return the owner labels of classic families, and the rows about the owners of each device."""
    pods = _pods(facts)
    jobs = _jobs(facts)
    rows = [
        *_pod_rows(facts, pods),
        *_unresolved_rows(pods.unresolved),
        *_job_rows(facts, jobs),
        *_container_rows(facts),
    ]
    by_device: dict[tuple[str, str], Labels] = {}
    for place in {*pods.by_place, *jobs}:
        labels = () if facts.listing is None else _one_pod(pods.by_place.get(place, ()))
        ids = {job.job for job in jobs.get(place, ())}
        by_device[place] = (*labels, *((("hpc_job", job) for job in ids) if len(ids) == 1 else ()))
    return OwnerLabels(() if facts.listing is None else NO_POD, by_device), rows


def _one_pod(containers: Iterable[Container]) -> Labels:
    """Return the labels of the pod that uses a device; empty if several pods share it.

    Several containers of one pod: the container is empty.
    """
    containers = list(containers)
    if len({(container.namespace, container.pod) for container in containers}) != 1:
        return NO_POD
    name = containers[0].name if len(containers) == 1 else ""
    return (("container", name), ("namespace", containers[0].namespace), ("pod", containers[0].pod))


def _pods(facts: Facts) -> _Pods:
    pods = _Pods()
    if facts.listing is None:
        return pods
    for allocated in facts.listing.allocated:
        container = Container(allocated.namespace, allocated.pod, allocated.container)
        if _finished(facts, container):
            continue
        device = parse(allocated.device)
        if device is None:
            if not allocated.resource.startswith(DOMAIN) or allocated.resource.startswith(_GPU_RESOURCES):
                pods.unresolved.append(Unresolved(container, allocated.resource, allocated.device, "unknown_form"))
        elif place := facts.devices.place(device):
            pods.add(container, place, share=bool(device.replica))
        else:
            pods.unresolved.append(Unresolved(container, allocated.resource, allocated.device, "unknown_device"))
    for claimed in facts.listing.claimed:
        container = Container(claimed.namespace, claimed.pod, claimed.container)
        if _finished(facts, container):
            continue
        place, reason = _claimed(facts, claimed.pool, claimed.device)
        if place:
            pods.add(container, place, share=False)
        else:
            pods.unresolved.append(Unresolved(container, claimed.pool, claimed.device, reason))
    return pods


def _claimed(facts: Facts, pool: str, name: str) -> tuple[Place | None, str]:
    uuid = facts.claims.get((pool, name))
    if uuid is None:
        return None, "no_slice"
    if not uuid:  # the device is created when it is claimed, after the slice was written
        return None, "no_uuid"
    device = parse(uuid)
    return (facts.devices.place(device), "unknown_device") if device else (None, "unknown_form")


def _finished(facts: Facts, container: Container) -> bool:
    """Return whether the pod has ended: older kubelets still list it, with devices that other pods may use now."""
    pod = facts.pods.get(f"{container.namespace}/{container.pod}")
    return pod is not None and pod.finished


def _jobs(facts: Facts) -> Mapping[Place, Sequence[ProcessOwner]]:
    """Return the jobs by device. Those from cgroups come before those from files, because they have step and user."""
    by_place: dict[Place, list[ProcessOwner]] = defaultdict(list)
    for place, running in (facts.running or {}).items():
        for owner in sorted(running, key=lambda owner: (owner.job, owner.step, owner.user)):
            if owner.job:
                by_place[place].append(owner)
    for name, ids in (facts.jobs or {}).items():
        device = parse(name)
        place_of = device and facts.devices.place(device)
        if place_of:
            from_cgroups = {owner.job for owner in by_place[place_of]}
            by_place[place_of] += [ProcessOwner(job=job) for job in ids if job not in from_cgroups]
    return {place: jobs for place, jobs in by_place.items() if jobs}


def _pod_rows(facts: Facts, pods: _Pods) -> Iterator[Row]:
    for place, containers in sorted(pods.by_place.items()):
        for container, shares in sorted(containers.items()):
            pod = facts.pods.get(f"{container.namespace}/{container.pod}", Pod())
            labels = (
                *_instance(place),
                ("namespace", container.namespace),
                ("pod", container.pod),
                ("container", container.name),
                ("shares", str(shares or "")),
                ("pod_uid", pod.uid),
                ("workload", pod.workload),
                ("rank", pod.rank),
                *pod.labels,
            )
            yield Row(m.POD_INFO, facts.devices.gpus[place.uuid], 1, tuple(pair for pair in labels if pair[1]))


def _unresolved_rows(devices: Iterable[Unresolved]) -> Iterator[Row]:
    """Return a row for each device, up to a limit, and one with the number of the others."""
    distinct = sorted(set(devices))
    for container, resource, device, reason in distinct[: limits.MOST_UNRESOLVED]:
        named = (("namespace", container.namespace), ("pod", container.pod), ("container", container.name))
        yield Row(m.POD_UNRESOLVED, None, 1, (*named, ("resource", resource), ("device", device), ("reason", reason)))
    if (others := len(distinct) - limits.MOST_UNRESOLVED) > 0:
        yield Row(m.POD_UNRESOLVED, None, others, (("reason", "too_many"),))


def _job_rows(facts: Facts, jobs: Mapping[Place, Sequence[ProcessOwner]]) -> Iterator[Row]:
    for place, running in sorted(jobs.items()):
        for job in running:
            labels = (*_instance(place), ("job_id", job.job), ("step", job.step), ("uid", job.user))
            yield Row(m.JOB_INFO, facts.devices.gpus[place.uuid], 1, tuple(pair for pair in labels if pair[1]))


def _container_rows(facts: Facts) -> Iterator[Row]:
    for place, running in sorted((facts.running or {}).items()):
        for owner in sorted(running, key=lambda owner: owner.container):
            if owner.runtime:
                named = (("runtime", owner.runtime), ("container_id", owner.container), ("container", owner.name))
                labels = (*_instance(place), *(pair for pair in named if pair[1]))
                yield Row(m.CONTAINER_INFO, facts.devices.gpus[place.uuid], 1, labels)


def _instance(place: Place) -> Labels:
    return (("GPU_I_ID", place.instance),) if place.instance else ()
