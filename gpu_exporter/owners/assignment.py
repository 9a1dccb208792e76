"""Pods, claims, jobs and processes -> the owners of each device, and what each pod uses of a shared one. Pure.

The memory and SM time of the pods and of the rest add up to the whole device, so that a bill adds up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.kubernetes import limits
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.snapshot import OwnerLabels, Row
from gpu_exporter.owners.cgroup import ProcessOwner, uid
from gpu_exporter.owners.devices import Allocated, DeviceId, DeviceRef, Listing, NodeDevices, parse, parse_job_file
from gpu_exporter.owners.jobs import Jobs
from gpu_exporter.owners.pods import PodDetails

NO_POD: Labels = (("container", ""), ("namespace", ""), ("pod", ""))


class LookupAnswers(NamedTuple):
    """The answers of all lookups, from which the owners follow. None, or an empty
    mapping for `pods` and `claims`, where a lookup is not configured."""

    devices: NodeDevices
    listing: Listing | None = None
    pods: Mapping[str, PodDetails] = {}
    claims: Mapping[tuple[str, str], str] = {}
    jobs: Jobs | None = None
    running: Mapping[DeviceRef, AbstractSet[ProcessOwner]] | None = None


class OwningContainer(NamedTuple):
    """A container of a pod that has a device."""

    namespace: str
    pod: str
    name: str


class Unresolved(NamedTuple):
    """A device of a container that could not be matched with a device of this node, and why."""

    container: OwningContainer
    resource: str
    device: str
    reason: str


@dataclass(slots=True)
class _Pods:
    """Containers by device, each with its number of shares (0: the device is not shared)."""

    by_ref: dict[DeviceRef, Counter[OwningContainer]] = field(default_factory=lambda: defaultdict(Counter))
    unresolved: list[Unresolved] = field(default_factory=list)

    def add(self, container: OwningContainer, ref: DeviceRef, *, share: bool) -> None:
        self.by_ref[ref][container] += share


def owners(answers: LookupAnswers) -> tuple[OwnerLabels, Sequence[Row]]:
    """Return the owner labels of classic families, and the rows about the owners of each device."""
    pods = _pods(answers)
    jobs = _jobs(answers)
    rows = [
        *_pod_rows(answers, pods),
        *_unresolved_rows(pods.unresolved),
        *_job_rows(answers, jobs),
        *_container_rows(answers),
    ]
    by_device: dict[tuple[str, str], Labels] = {}
    for ref in {*pods.by_ref, *jobs}:
        labels = () if answers.listing is None else _one_pod(pods.by_ref.get(ref, ()))
        ids = {job.job for job in jobs.get(ref, ())}
        by_device[ref] = (*labels, *((("hpc_job", job) for job in ids) if len(ids) == 1 else ()))
    return OwnerLabels(() if answers.listing is None else NO_POD, by_device), rows


def _one_pod(containers: Iterable[OwningContainer]) -> Labels:
    """Return the labels of the pod that uses a device; empty if several pods share it.

    Several containers of one pod: the container is empty.
    """
    containers = list(containers)
    if len({(container.namespace, container.pod) for container in containers}) != 1:
        return NO_POD
    name = containers[0].name if len(containers) == 1 else ""
    return (("container", name), ("namespace", containers[0].namespace), ("pod", containers[0].pod))


def _pods(answers: LookupAnswers) -> _Pods:
    pods = _Pods()
    if answers.listing is None:
        return pods
    scheduled: dict[str, dict[OwningContainer, str]] = defaultdict(dict)
    for allocated in answers.listing.allocated:
        container = OwningContainer(allocated.namespace, allocated.pod, allocated.container)
        if _finished(answers, container):
            continue
        device = parse(allocated.device)
        if _is_scheduled(answers, allocated, device):
            scheduled[f"{allocated.namespace}/{allocated.pod}"][container] = allocated.resource
        elif device is None:
            pods.unresolved.append(Unresolved(container, allocated.resource, allocated.device, "unknown_form"))
        elif ref := answers.devices.find(device):
            pods.add(container, ref, share=bool(device.replica))
        else:
            pods.unresolved.append(Unresolved(container, allocated.resource, allocated.device, "unknown_device"))
    for pod, resources in scheduled.items():
        container, resource = min(resources.items())
        if len(resources) > 1:
            container = container._replace(name="")
        for uuid in answers.pods[pod].gpus:
            if ref := answers.devices.find(DeviceId(uuid=uuid)):
                pods.add(container, ref, share=True)
            else:
                pods.unresolved.append(Unresolved(container, resource, uuid, "unknown_device"))
    for claimed in answers.listing.claimed:
        container = OwningContainer(claimed.namespace, claimed.pod, claimed.container)
        if _finished(answers, container):
            continue
        ref, reason = _claimed(answers, claimed.pool, claimed.device)
        if ref:
            pods.add(container, ref, share=False)
        else:
            pods.unresolved.append(Unresolved(container, claimed.pool, claimed.device, reason))
    return pods


def _is_scheduled(answers: LookupAnswers, allocated: Allocated, device: DeviceId | None) -> bool:
    """Return whether an annotation of the pod says which GPU this share is of, whatever its id.

    Only plugins whose ids are `GPU-<uuid>-<n>` obey it; elsewhere, a user could claim any GPU with it.
    """
    pod = answers.pods.get(f"{allocated.namespace}/{allocated.pod}")
    return bool(pod and pod.gpus and device and device.uuid and allocated.device.startswith(f"{device.uuid}-"))


def _claimed(answers: LookupAnswers, pool: str, name: str) -> tuple[DeviceRef | None, str]:
    uuid = answers.claims.get((pool, name))
    if uuid is None:
        return None, "no_slice"
    if not uuid:  # the device is created when it is claimed, after the slice was written
        return None, "no_uuid"
    device = parse(uuid)
    return (answers.devices.find(device), "unknown_device") if device else (None, "unknown_form")


def _finished(answers: LookupAnswers, container: OwningContainer) -> bool:
    """Return whether the pod has ended: older kubelets still list it, with devices that other pods may use now."""
    pod = answers.pods.get(f"{container.namespace}/{container.pod}")
    return pod is not None and pod.finished


def _jobs(answers: LookupAnswers) -> Mapping[DeviceRef, Sequence[ProcessOwner]]:
    """Return the jobs by device. Those from cgroups come before those from files, because they have step and user."""
    by_ref: dict[DeviceRef, list[ProcessOwner]] = defaultdict(list)
    for ref, running in (answers.running or {}).items():
        for owner in sorted(running, key=lambda owner: (owner.job, owner.step, owner.user)):
            if owner.job:
                by_ref[ref].append(owner)
    for name, ids in (answers.jobs or {}).items():
        device = parse_job_file(name)
        device_ref = device and answers.devices.find(device)
        if device_ref:
            from_cgroups = {owner.job for owner in by_ref[device_ref]}
            by_ref[device_ref] += [ProcessOwner(job=job) for job in ids if job not in from_cgroups]
    return {ref: jobs for ref, jobs in by_ref.items() if jobs}


def _pod_rows(answers: LookupAnswers, pods: _Pods) -> Iterator[Row]:
    for ref, containers in sorted(pods.by_ref.items()):
        for container, shares in sorted(containers.items()):
            pod = answers.pods.get(f"{container.namespace}/{container.pod}", PodDetails())
            labels = (
                *_instance(ref),
                ("namespace", container.namespace),
                ("pod", container.pod),
                ("container", container.name),
                ("shares", str(shares or "")),
                ("pod_uid", pod.uid),
                ("workload", pod.workload),
                ("rank", pod.rank),
                *pod.labels,
            )
            yield Row(m.POD_INFO, answers.devices.gpus[ref.uuid], 1, tuple(pair for pair in labels if pair[1]))


def _unresolved_rows(devices: Iterable[Unresolved]) -> Iterator[Row]:
    """Return a row for each device, up to a limit, and one with the number of the others."""
    distinct = sorted(set(devices))
    for container, resource, device, reason in distinct[: limits.MOST_UNRESOLVED]:
        named = (("namespace", container.namespace), ("pod", container.pod), ("container", container.name))
        yield Row(m.POD_UNRESOLVED, None, 1, (*named, ("resource", resource), ("device", device), ("reason", reason)))
    if (others := len(distinct) - limits.MOST_UNRESOLVED) > 0:
        yield Row(m.POD_UNRESOLVED, None, others, (("reason", "too_many"),))


def _job_rows(answers: LookupAnswers, jobs: Mapping[DeviceRef, Sequence[ProcessOwner]]) -> Iterator[Row]:
    for ref, running in sorted(jobs.items()):
        for job in running:
            labels = (*_instance(ref), ("job_id", job.job), ("step", job.step), ("uid", job.user))
            yield Row(m.JOB_INFO, answers.devices.gpus[ref.uuid], 1, tuple(pair for pair in labels if pair[1]))


def _container_rows(answers: LookupAnswers) -> Iterator[Row]:
    for ref, running in sorted((answers.running or {}).items()):
        for owner in sorted(running, key=lambda owner: owner.container):
            if owner.runtime:
                named = (("runtime", owner.runtime), ("container_id", owner.container), ("container", owner.name))
                labels = (*_instance(ref), *(pair for pair in named if pair[1]))
                yield Row(m.CONTAINER_INFO, answers.devices.gpus[ref.uuid], 1, labels)


def _instance(ref: DeviceRef) -> Labels:
    return (("GPU_I_ID", ref.instance),) if ref.instance else ()


@dataclass(slots=True)
class DeviceLoad:
    """The use of a device: bytes in use as the driver counts them, and bytes and SM share (0-1) by PID."""

    used: float | None = None
    memory: dict[int, float] = field(default_factory=dict)
    sm: dict[int, float] = field(default_factory=dict)
    sampled: bool = False


def shares(
    devices: NodeDevices,
    loads: Mapping[DeviceRef, DeviceLoad],
    running: Mapping[int, ProcessOwner],
    pods: Mapping[str, PodDetails],
) -> Iterator[Row]:
    """Return the rows of every device."""
    by_uid = {uid(text): (name, pod) for name, pod in pods.items() for text in pod.uids}
    named = {pod: _pod_labels(pod, by_uid) for pod in {owner.pod for owner in running.values()}}
    for ref, load in loads.items():
        gpu = devices.gpus.get(ref.uuid)
        if gpu is None:
            continue
        instance: Labels = (("GPU_I_ID", ref.instance),) if ref.instance else ()
        if load.used is not None:
            memory = _by_pod(load.memory, running)
            yield from _rows(m.POD_MEMORY, gpu, instance, memory, named)
            yield Row(m.POD_MEMORY_REST, gpu, max(0.0, load.used - sum(memory.values())), instance)
        if load.sampled:
            # Under MPS processes run at the same time, so their shares may add up to more than 1.
            whole = max(1.0, sum(load.sm.values()))
            sm = _by_pod({pid: value / whole for pid, value in load.sm.items()}, running)
            total, busy = sum(load.sm.values()) / whole, sum(sm.values())
            yield from _rows(m.POD_SM, gpu, instance, {pod: round(value, 6) for pod, value in sm.items()}, named)
            yield Row(m.POD_SM_REST, gpu, round(max(0.0, total - busy), 6), instance)
            yield Row(m.POD_SM_IDLE, gpu, round(max(0.0, 1 - total), 6), instance)


def _rows(
    metric: Metric, gpu: Gpu, instance: Labels, values: Mapping[str, float], named: Mapping[str, Labels]
) -> Iterator[Row]:
    for pod, value in sorted(values.items()):
        yield Row(metric, gpu, value, (*instance, *named[pod]))


def _by_pod(values: Mapping[int, float], running: Mapping[int, ProcessOwner]) -> Mapping[str, float]:
    by_pod: dict[str, float] = defaultdict(float)
    for pid, value in values.items():
        owner = running.get(pid)
        if owner and owner.pod:
            by_pod[owner.pod] += value
    return by_pod


def _pod_labels(pod: str, by_uid: Mapping[str, tuple[str, PodDetails]]) -> Labels:
    """Return the labels of a pod by name and UID; by UID alone if pods are not looked up at the API server."""
    name, about = by_uid.get(pod, ("", PodDetails()))
    namespace, _, short = name.partition("/")
    labels = (("namespace", namespace), ("pod", short), ("pod_uid", about.uid or _dashed(pod)))
    return tuple(pair for pair in labels if pair[1])


def _dashed(pod: str) -> str:
    return "-".join((pod[:8], pod[8:12], pod[12:16], pod[16:20], pod[20:]))
