"""Memory and SM time of the processes on a device -> those of each pod, and the rest. Pure.

The pods and the rest add up to the whole device, so that a bill adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_exporter.attribution.cgroup import ProcessOwner, uid
from gpu_exporter.attribution.devices import DeviceRef, Devices
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.snapshot import Row


@dataclass(slots=True)
class Load:
    """The use of a device: bytes in use as the driver counts them, and bytes and SM share (0-1) by PID."""

    used: float | None = None
    memory: dict[int, float] = field(default_factory=dict)
    sm: dict[int, float] = field(default_factory=dict)
    sampled: bool = False


def shares(
    devices: Devices, loads: Mapping[DeviceRef, Load], running: Mapping[int, ProcessOwner], pods: Mapping[str, Pod]
) -> Iterator[Row]:
    """Return the rows of every device."""
    by_uid = {uid(text): (name, pod) for name, pod in pods.items() for text in pod.uids}
    named = {pod: _named(pod, by_uid) for pod in {owner.pod for owner in running.values()}}
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


def _named(pod: str, by_uid: Mapping[str, tuple[str, Pod]]) -> Labels:
    """Return the labels of a pod by name and UID; by UID alone if pods are not looked up at the API server."""
    name, about = by_uid.get(pod, ("", Pod()))
    namespace, _, short = name.partition("/")
    labels = (("namespace", namespace), ("pod", short), ("pod_uid", about.uid or _dashed(pod)))
    return tuple(pair for pair in labels if pair[1])


def _dashed(pod: str) -> str:
    return "-".join((pod[:8], pod[8:12], pod[12:16], pod[16:20], pod[20:]))
