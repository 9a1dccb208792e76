"""All series of a fleet: those of its exporters, with its XIDs and clocks, and those of kube-state-metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import xids
from gpu_exporter.catalogue.failure_modes.mode import Ramp, Wave
from gpu_exporter.catalogue.signals import DRAIN_CODES
from tests.operation.fleet import Fleet, Timeline
from tests.rules.series import SILENT, Generation, parts_of
from tests.rules.shapes import STEP, Integral, Part, Reboot, Shape, each_value

Key = tuple[str, tuple[tuple[str, str], ...]]
All = Mapping[Key, Sequence[Part]]
# A value from a scrape on.
Change = tuple[int, "Shape | None"]
ABSENT, LINE, SEQUENCE, CONSTANT_RATE, SEQUENCE_RATE, REBOOTS = range(6)


def series(fleet: Fleet) -> All:
    """Return every series of a period."""
    found: dict[Key, Sequence[Part]] = {key: parts for key, parts in parts_of(fleet.devices()).items()}
    for timeline in fleet.timelines:
        if timeline.device.generation is Generation.GPU_EXPORTER and not timeline.device.instance:
            found |= _of_gpu(fleet, timeline)
    for node in fleet.nodes:
        found |= _of_node(fleet, node)
    return {**found, **fleet.series}


def _parts(changes: Sequence[Change], total: int, silent: Sequence[tuple[int, int]] = ()) -> list[Part]:
    """Return the values between changes as parts, without those of a silent exporter."""
    parts: list[Part] = []
    ends = [*(at for at, _ in changes[1:]), total]
    if changes and changes[0][0]:
        parts.append((changes[0][0], None))
    for (start, shape), end in zip(changes, ends, strict=True):
        if end > start:
            parts += _without(start, end, shape, silent)
    return parts


def _without(start: int, end: int, shape: Shape | None, silent: Sequence[tuple[int, int]]) -> Iterator[Part]:
    for first, last in silent:
        if start < last and first < end:
            if first > start:
                yield first - start, shape
            yield min(end, last) - max(first, start), None
            shape = _after(shape, min(end, last) - start)
            start = min(end, last)
    if end > start:
        yield end - start, shape


def _after(shape: Shape | None, scrapes: int) -> Shape | None:
    return Ramp(shape.start + shape.per_second * scrapes * STEP, shape.per_second) if isinstance(shape, Ramp) else shape


def _silent(timeline: Timeline) -> list[tuple[int, int]]:
    """Return when nothing is scraped from the exporter of a device."""
    found, place = [], 0
    for stretch in timeline.story:
        if stretch.fault in SILENT:
            found.append((place, place + stretch.steps))
        place += stretch.steps
    return found


def _of_gpu(fleet: Fleet, timeline: Timeline) -> Mapping[Key, Sequence[Part]]:
    """Return what gpu-exporter says about times and XIDs, by the clock of the node."""
    device, silent = timeline.device, _silent(timeline)
    gpu = {"gpu": str(device.gpu), "UUID": device.uuid}
    events = fleet.xids.get((device.node, device.gpu), [])
    found: dict[Key, Sequence[Part]] = {
        _key(m.READ_AT.name, {**gpu, **device.scrape}): _parts(list(_reads(fleet, timeline)), fleet.total, silent)
    }
    for code in {*DRAIN_CODES, *(event.code for event in events)}:
        happened = sorted(event.at for event in events if event.code == code)
        labels = {**gpu, "xid": str(code), "kind": xids.load()[code].kind.value, **device.scrape}
        start: list[Change] = [(0, 0.0)] if code in DRAIN_CODES else []
        counts = [*start, *((at, float(number)) for number, at in enumerate(happened, 1))]
        found[_key(m.XID_EVENTS.name, labels)] = _parts(counts, fleet.total, silent)
        if happened:
            lasts: list[Change] = [(at, at * STEP + _ahead(fleet, device.node, at)) for at in happened]
            found[_key(m.XID_LAST.name, labels)] = _parts(lasts, fleet.total, silent)
        if code in DRAIN_CODES and happened:
            reasons: list[Change] = []
            for event in sorted((each for each in events if each.code == code), key=lambda each: each.at):
                reasons += [(event.at, 1.0), (event.until, None)]
            why = {**gpu, "reason": f"xid_{code}", "action": xids.load()[code].action.value, **device.scrape}
            found[_key(m.HEALTH_REASON.name, why)] = _parts(reasons, fleet.total, silent)
    return found


def _reads(fleet: Fleet, timeline: Timeline) -> Iterator[Change]:
    """Yield the time of the last read, by the clock of the node; it stands still while the GPU does not answer."""
    node, place, last = timeline.device.node, 0, 0.0
    steps = [at for at, _ in fleet.clocks.get(node, [])]
    for stretch in timeline.story:
        end = place + stretch.steps
        for start in [place, *(at for at in steps if place < at < end)]:
            now = start * STEP + _ahead(fleet, node, start)
            yield (start, last) if stretch.fault else (start, Ramp(now, 1.0))
        last = last if stretch.fault else (end - 1) * STEP + _ahead(fleet, node, end - 1)
        place = end


def _ahead(fleet: Fleet, node: str, at: int) -> float:
    return next((ahead for since, ahead in reversed(fleet.clocks.get(node, [])) if since <= at), 0.0)


def _of_node(fleet: Fleet, node: str) -> Mapping[Key, Sequence[Part]]:
    """Return the time of the node, and what kube-state-metrics says about it."""
    first, silent = fleet.of(node)[0], _silent(fleet.of(node)[0])
    found: dict[Key, Sequence[Part]] = {}
    if first.device.generation is Generation.GPU_EXPORTER:
        clock = [(0, 0.0), *fleet.clocks.get(node, [])]
        now: list[Change] = [(at, Ramp(at * STEP + ahead, 1.0)) for at, ahead in clock]
        found[_key(m.RENDERED_AT.name, first.device.scrape)] = _parts(now, fleet.total, silent)
    scrape = {"job": "kube-state-metrics", "instance": "0"}
    gpus = len({each.device.gpu for each in fleet.of(node)})
    # One pod per node stands for all that run there.
    pod = {"namespace": "research", "pod": f"all-of-{node}"}
    resource = {"resource": "nvidia_com_gpu"}
    constant: Mapping[Key, float] = {
        _key("kube_node_status_allocatable", {"node": node, **resource, **scrape}): float(gpus),
        _key("kube_node_labels", {"node": node, "label_cloud_google_com_gke_nodepool": node, **scrape}): 1.0,
        _key(
            "kube_pod_container_resource_requests", {**pod, "container": "main", "node": node, **resource, **scrape}
        ): float(gpus),
        _key("kube_pod_status_phase", {**pod, "phase": "Running", **scrape}): 1.0,
    }
    found |= {key: [(fleet.total, value)] for key, value in constant.items()}
    changes: list[Change] = [(0, 0.0)]
    for start, end in sorted(fleet.cordoned.get(node, [])):
        changes += [(max(start, changes[-1][0]), 1.0), (end, 0.0)]
    found[_key("kube_node_spec_unschedulable", {"node": node, **scrape})] = _parts(changes, fleet.total)
    return found


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple((key, value) for key, value in labels.items() if value)


def write(fleet: Fleet, path: Path) -> None:
    """Write the period of a fleet for virtual_clock."""
    path.write_text(json.dumps({**period(series(fleet), fleet.total), "Stopped": fleet.stopped}))


def period(
    of: Mapping[Key, Sequence[Part]], ticks: int, shard_of: Callable[[Key], int] = lambda key: 0
) -> Mapping[str, Any]:
    """Return a period as virtual_clock reads it, from all series and the number of the shard that scrapes each."""
    loads: dict[tuple[float, ...], int] = {}
    content = [
        {
            "Labels": {"__name__": key[0], **dict(key[1])},
            "Parts": list(_encoded(parts, loads)),
            "Shard": shard_of(key),
        }
        for key, parts in of.items()
    ]
    return {"Step": STEP, "Ticks": ticks, "Loads": list(loads), "Series": content}


def _encoded(parts: Sequence[Part], loads: dict[tuple[float, ...], int]) -> Iterator[list[float]]:
    """Yield parts as virtual_clock reads them; equal constants in sequence are one part."""
    last: list[float] = []
    for steps, shape in parts:
        now = [steps, *_code(shape, loads)]
        if last and last[1:] == now[1:] and now[1] in (ABSENT, LINE, CONSTANT_RATE) and not (now[1] == LINE and now[3]):
            last[0] += steps
            continue
        if last:
            yield last
        last = now
    if last:
        yield last


def _code(shape: Shape | Integral | Reboot | None, loads: dict[tuple[float, ...], int]) -> tuple[int, float, float]:
    match shape:
        case None:
            return ABSENT, 0, 0
        case Reboot():
            return REBOOTS, 0, 0
        case Integral():
            inner, factor = shape
            if isinstance(inner, float | int):
                return CONSTANT_RATE, inner * factor * STEP, 0
            return SEQUENCE_RATE, _load(inner, loads), factor * STEP
        case Ramp(start, slope):
            return LINE, start, slope * STEP
        case float() | int():
            return LINE, shape, 0
    return SEQUENCE, _load(shape, loads), 1


def _load(shape: Shape, loads: dict[tuple[float, ...], int]) -> int:
    assert not isinstance(shape, Ramp | float | int), shape
    values = tuple(each_value(shape, 4)) if isinstance(shape, Wave) else tuple(shape)
    return loads.setdefault(values, len(loads))
