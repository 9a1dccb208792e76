"""Memory and SM time of the processes on a device -> those of each pod, and what is left. Pure.

What the pods have and what is left is together what the device has, so that a bill adds up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_exporter.attribution.cgroup import Whose, uid
from gpu_exporter.attribution.devices import Devices, Place
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.snapshot import Row


@dataclass(slots=True)
class Load:
    """What is on a device: bytes in use as the driver counts them, and bytes and SM share (0-1) by PID."""

    used: float | None = None
    memory: dict[int, float] = field(default_factory=dict)
    sm: dict[int, float] = field(default_factory=dict)
    sampled: bool = False


def shares(
    devices: Devices, loads: Mapping[Place, Load], running: Mapping[int, Whose], pods: Mapping[str, Pod]
) -> Iterator[Row]:
    """The rows of every device."""
    known = {uid(each): (name, pod) for name, pod in pods.items() for each in pod.uids}
    named = {pod: _named(pod, known) for pod in {each.pod for each in running.values()}}
    for place, load in loads.items():
        gpu = devices.gpus.get(place.uuid)
        if gpu is None:
            continue
        instance: Labels = (("GPU_I_ID", place.instance),) if place.instance else ()
        if load.used is not None:
            memory = _by_pod(load.memory, running)
            yield from _rows(m.POD_MEMORY, gpu, instance, memory, named)
            yield Row(m.POD_MEMORY_REST, gpu, max(0.0, load.used - sum(memory.values())), instance)
        if load.sampled:
            # Under MPS processes run at the same time, and their shares may add up to more than all.
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


def _by_pod(values: Mapping[int, float], running: Mapping[int, Whose]) -> Mapping[str, float]:
    found: dict[str, float] = defaultdict(float)
    for pid, value in values.items():
        whose = running.get(pid)
        if whose and whose.pod:
            found[whose.pod] += value
    return found


def _named(pod: str, known: Mapping[str, tuple[str, Pod]]) -> Labels:
    """The pod by name and UID; by UID alone if the API server is not asked for pods."""
    name, about = known.get(pod, ("", Pod()))
    namespace, _, short = name.partition("/")
    own = (("namespace", namespace), ("pod", short), ("pod_uid", about.uid or _dashed(pod)))
    return tuple(pair for pair in own if pair[1])


def _dashed(pod: str) -> str:
    return "-".join((pod[:8], pod[8:12], pod[12:16], pod[16:20], pod[20:]))
