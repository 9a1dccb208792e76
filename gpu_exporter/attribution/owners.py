"""What was told of pods, claims, jobs and processes -> the owners of each device. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.attribution.cgroup import Whose
from gpu_exporter.attribution.devices import Devices, Place, parse
from gpu_exporter.attribution.jobs import Jobs
from gpu_exporter.attribution.listing import DOMAIN, Listing
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import OwnerLabels, Row

# Resources whose device ids must be of a known form; of others below nvidia.com/ they may be no GPUs.
_GPU_RESOURCES = (f"{DOMAIN}gpu", f"{DOMAIN}mig-")
NO_POD: Labels = (("container", ""), ("namespace", ""), ("pod", ""))


class Facts(NamedTuple):
    """All that was told. None: nobody is asked for it."""

    devices: Devices
    listing: Listing | None = None
    pods: Mapping[str, Pod] = {}
    claims: Mapping[tuple[str, str], str] = {}
    jobs: Jobs | None = None
    running: Mapping[Place, AbstractSet[Whose]] | None = None


class Container(NamedTuple):
    """A container of a pod that has a device."""

    namespace: str
    pod: str
    name: str


class Unresolved(NamedTuple):
    """A device that a container has, and that is none of this node's, or can't be told which."""

    container: Container
    resource: str
    device: str
    reason: str


@dataclass(slots=True)
class _Pods:
    """Containers by device, with the number of shares that each has (0: it is not shared)."""

    on: dict[Place, Counter[Container]] = field(default_factory=lambda: defaultdict(Counter))
    unresolved: list[Unresolved] = field(default_factory=list)

    def add(self, container: Container, place: Place, *, share: bool) -> None:
        self.on[place][container] += share


def owners(facts: Facts) -> tuple[OwnerLabels, Sequence[Row]]:
    """The labels of the classic families, and the rows that say whose each device is."""
    pods = _pods(facts)
    jobs = _jobs(facts)
    rows = [*_pod_rows(facts, pods), *_job_rows(facts, jobs), *_container_rows(facts)]
    taken: dict[tuple[str, str], Labels] = {}
    for place in {*pods.on, *jobs}:
        labels = () if facts.listing is None else _one_pod(pods.on.get(place, ()))
        ids = {job.job for job in jobs.get(place, ())}
        taken[place] = (*labels, *((("hpc_job", each) for each in ids) if len(ids) == 1 else ()))
    return OwnerLabels(() if facts.listing is None else NO_POD, taken), rows


def _one_pod(containers: Iterable[Container]) -> Labels:
    """The pod that has all of a device. One that is shared is nobody's; of several containers of a pod, none's."""
    containers = list(containers)
    if len({(each.namespace, each.pod) for each in containers}) != 1:
        return NO_POD
    name = containers[0].name if len(containers) == 1 else ""
    return (("container", name), ("namespace", containers[0].namespace), ("pod", containers[0].pod))


def _pods(facts: Facts) -> _Pods:
    found = _Pods()
    if facts.listing is None:
        return found
    for held in facts.listing.held:
        container = Container(held.namespace, held.pod, held.container)
        if _finished(facts, container):
            continue
        device = parse(held.device)
        if device is None:
            if not held.resource.startswith(DOMAIN) or held.resource.startswith(_GPU_RESOURCES):
                found.unresolved.append(Unresolved(container, held.resource, held.device, "unknown_form"))
        elif place := facts.devices.place(device):
            found.add(container, place, share=bool(device.replica))
        else:
            found.unresolved.append(Unresolved(container, held.resource, held.device, "unknown_device"))
    for claimed in facts.listing.claimed:
        container = Container(claimed.namespace, claimed.pod, claimed.container)
        if _finished(facts, container):
            continue
        place, reason = _claimed(facts, claimed.pool, claimed.device)
        if place:
            found.add(container, place, share=False)
        else:
            found.unresolved.append(Unresolved(container, claimed.pool, claimed.device, reason))
    return found


def _claimed(facts: Facts, pool: str, name: str) -> tuple[Place | None, str]:
    uuid = facts.claims.get((pool, name))
    if uuid is None:
        return None, "no_slice"
    if not uuid:  # made when it is claimed: the slice was written before there was one
        return None, "no_uuid"
    device = parse(uuid)
    return (facts.devices.place(device), "unknown_device") if device else (None, "unknown_form")


def _finished(facts: Facts, container: Container) -> bool:
    """Older kubelets list pods that ended, with devices that others may have since."""
    pod = facts.pods.get(f"{container.namespace}/{container.pod}")
    return pod is not None and pod.finished


def _jobs(facts: Facts) -> Mapping[Place, Sequence[Whose]]:
    """Jobs by device. What a cgroup tells of a job is more than what a file tells."""
    found: dict[Place, list[Whose]] = defaultdict(list)
    for place, running in (facts.running or {}).items():
        for each in sorted(running, key=lambda each: (each.job, each.step, each.user)):
            if each.job:
                found[place].append(each)
    for name, ids in (facts.jobs or {}).items():
        device = parse(name)
        place_of = device and facts.devices.place(device)
        if place_of:
            known = {each.job for each in found[place_of]}
            found[place_of] += [Whose(job=each) for each in ids if each not in known]
    return {place: jobs for place, jobs in found.items() if jobs}


def _pod_rows(facts: Facts, pods: _Pods) -> Iterator[Row]:
    for place, containers in sorted(pods.on.items()):
        for container, shares in sorted(containers.items()):
            pod = facts.pods.get(f"{container.namespace}/{container.pod}", Pod())
            own = (
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
            yield Row(m.POD_INFO, facts.devices.gpus[place.uuid], 1, tuple(pair for pair in own if pair[1]))
    for container, resource, device, reason in sorted(set(pods.unresolved)):
        named = (("namespace", container.namespace), ("pod", container.pod), ("container", container.name))
        yield Row(m.POD_UNRESOLVED, None, 1, (*named, ("resource", resource), ("device", device), ("reason", reason)))


def _job_rows(facts: Facts, jobs: Mapping[Place, Sequence[Whose]]) -> Iterator[Row]:
    for place, running in sorted(jobs.items()):
        for job in running:
            own = (*_instance(place), ("job_id", job.job), ("step", job.step), ("uid", job.user))
            yield Row(m.JOB_INFO, facts.devices.gpus[place.uuid], 1, tuple(pair for pair in own if pair[1]))


def _container_rows(facts: Facts) -> Iterator[Row]:
    for place, running in sorted((facts.running or {}).items()):
        for each in sorted(running, key=lambda each: each.container):
            if each.runtime:
                own = (("runtime", each.runtime), ("container_id", each.container), ("container", each.name))
                labels = (*_instance(place), *(pair for pair in own if pair[1]))
                yield Row(m.CONTAINER_INFO, facts.devices.gpus[place.uuid], 1, labels)


def _instance(place: Place) -> Labels:
    return (("GPU_I_ID", place.instance),) if place.instance else ()
