"""Input series for promtool: what exporters of each generation expose of the same GPUs.

A GPU is a `Device` with a story of stretches, each with one profile. The same story exposed by gpu-exporter and by
every dcgm-exporter must result in the same signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import xids
from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.catalogue.failure_modes.mode import Inject, Ramp, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.catalogue.signals import DRAIN_CODES, SIGNALS
from gpu_exporter.conditions.signal import Read, Within
from gpu_exporter.model.metric import Metric
from tests.rules.shapes import REBOOT, STEP, Integral, Part, Shape, notation, scaled

MODEL = "NVIDIA H200"


class Generation(Enum):
    """An exporter, with the version at which names or labels changed."""

    GPU_EXPORTER = "gpu-exporter"
    DCGM_4_8_2 = "dcgm-4.8.2"
    DCGM_4_8_3 = "dcgm-4.8.3"
    DCGM_4_9 = "dcgm-4.9"

    @property
    def hostname(self) -> str:
        """Return the label that names the node."""
        return "Hostname" if self in (Generation.GPU_EXPORTER, Generation.DCGM_4_8_2) else "hostname"

    @property
    def exporter(self) -> str:
        """Return Prometheus' job."""
        return "gpu-exporter" if self is Generation.GPU_EXPORTER else "dcgm-exporter"


# The label `reason` of `gpu_down_reason`, where it differs from the name of the fault.
REASONS = {"wedged": "stalled", "reload": "source_lost"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """`steps` scrapes. `xid` repeats all the time. `owner` is the owner of the GPU if that is not the device's owner.

    `fault`: the GPU is "lost" or "wedged", its source is down ("reload"), its exporter is "down", its node reboots
    ("reboot": counters start again at 0) or Prometheus has no such target ("absent").
    """

    steps: int
    values: Mapping[Metric, Shape | Integral]
    fault: str = ""
    xid: int | None = None
    owner: Mapping[str, str] | None = None


def minutes(count: float, values: Mapping[Metric, Shape] = HEALTHY, fault: str = "", xid: int | None = None) -> Stretch:
    """Return a stretch of this many minutes."""
    return Stretch(round(count * 60 / STEP), values, fault, xid)


def injected(count: float, inject: Inject) -> Stretch:
    """Return a stretch in which a failure mode is injected."""
    values = {row: value for row, value in {**HEALTHY, **inject.values}.items() if row not in inject.absent}
    return minutes(count, values, inject.fault, inject.xid)


def of_peers(count: float, inject: Inject) -> Stretch:
    """Return the same stretch on another rank of the job. An exporter that is down shows none of its GPUs."""
    return minutes(count, {**HEALTHY, **inject.peers}, inject.fault if inject.fault == "down" else "")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as one exporter shows it. `owner` are the labels of its owner, `target` those of the scrape.

    `full`: gpu-exporter exposes its histograms, too. `model` is what the driver calls it.
    """

    node: str
    gpu: int
    story: Sequence[Stretch]
    generation: Generation = Generation.GPU_EXPORTER
    owner: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""
    full: bool = True
    model: str = MODEL

    @property
    def uuid(self) -> str:
        """Return a UUID that is unique in the fleet."""
        return f"GPU-{self.node}-{self.gpu}"

    @property
    def scrape(self) -> Mapping[str, str]:
        """Return the labels that Prometheus adds to every series."""
        return {"job": self.generation.exporter, "instance": f"{self.node}:9400", **self.target}


def rank(job: str, number: int = 0) -> Mapping[str, str]:
    """Return the owner labels of one rank of a job."""
    return {"namespace": "research", "pod": f"{job}-worker-{number}", "container": "main"}


# Only inputs of signals are written: others would take time and change nothing.
READ = {way.name for signal in SIGNALS for way in signal.definitions if isinstance(way, Read)}
BY_NAME = {row.name: row for row in m.METRICS}
# The edges that signals read of each histogram, and its observations per second: milliseconds, or 50 samples.
BUCKETS = {
    BY_NAME[way.name]: (*((way.shape.edge,) if isinstance(way.shape, Within) else BY_NAME[way.name].edges), inf)
    for signal in SIGNALS
    for way in signal.definitions
    if isinstance(way, Read) and way.shape
}
OBSERVED = {m.SM_SHARES: 1000.0, m.POWER_SAMPLES: 50.0}


# Faults during which nothing is scraped from an exporter.
SILENT = {"down", "reboot", "absent"}


def exposed(generation: Generation, metric: Metric) -> tuple[str, float] | None:
    """Return the name of a row in a generation, and the factor of its classic value; None if it is not exposed."""
    if generation is Generation.GPU_EXPORTER:
        return metric.name, 1.0
    if not metric.classic or metric.dcgm is None:
        return None
    return RENAMED.get(metric.name, (metric.name, 1.0)) if generation is Generation.DCGM_4_9 else (metric.name, 1.0)


Key = tuple[str, tuple[tuple[str, str], ...]]


def input_series(devices: Iterable[Device]) -> list[dict[str, str]]:
    """Return the `input_series` of a promtool test."""
    return [{"series": selector(*key), "values": notation(parts)} for key, parts in parts_of(devices).items()]


def parts_of(devices: Iterable[Device]) -> Mapping[Key, Sequence[Part]]:
    """Return every series of these devices and their exporters: its name and labels, and its values over time."""
    found: dict[Key, Sequence[Part]] = {}
    nodes: dict[tuple[tuple[str, str], ...], list[Device]] = {}
    for device in devices:
        for (name, labels), parts in _of_device(device).items():
            found.setdefault(_key(name, {**dict(labels), **device.scrape}), parts)
        nodes.setdefault(tuple(device.scrape.items()), []).append(device)
    for scrape, members in nodes.items():
        for name, parts in _of_exporter(members):
            found.setdefault(_key(name, dict(scrape)), parts)
    return found


def selector(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the selector of one series."""
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}"


def _of_exporter(members: Sequence[Device]) -> Iterator[tuple[str, list[Part]]]:
    story = members[0].story
    up: list[Part] = [
        (each.steps, None if each.fault == "absent" else 0.0 if each.fault in SILENT else 1.0) for each in story
    ]
    yield "up", up
    if members[0].generation is not Generation.GPU_EXPORTER:
        return
    gpus = {member.gpu: member for member in members}
    there: list[Part] = [(each.steps, None if each.fault in SILENT else 1.0) for each in story]
    yield m.BUILD_INFO.name, there
    for name, value in ((m.RELEASED.name, 0.0), (m.EXPECTED.name, float(len(gpus)))):
        yield name, [(steps, None if shape is None else value) for steps, shape in there]
    ticks = [[each.fault == "" for each in member.story for _ in range(each.steps)] for member in gpus.values()]
    gone = [each.fault in SILENT for each in story for _ in range(each.steps)]
    starts = [sum(each.steps for each in story[:number]) for number in range(len(story))]
    clock: list[Part] = [
        (each.steps, None if each.fault in SILENT else Ramp(float(at * STEP), 1.0))
        for at, each in zip(starts, story, strict=True)
    ]
    yield m.RENDERED_AT.name, clock
    visible: list[Part] = [(1, None if down else float(sum(now))) for down, *now in zip(gone, *ticks, strict=True)]
    yield m.VISIBLE.name, visible


def _of_device(device: Device) -> Mapping[Key, list[Part]]:
    found: dict[Key, list[Part]] = {}
    ends: dict[Key, int] = {}
    done = 0
    for stretch in device.story:
        for key, shape in _stretch(device, stretch, done):
            parts = found.setdefault(key, [])
            if ends.get(key, 0) < done:
                parts.append((done - ends.get(key, 0), None))
            parts.append((stretch.steps, shape))
            ends[key] = done + stretch.steps
        done += stretch.steps
        if stretch.fault == "reboot":
            for key, parts in found.items():
                parts += [(done - ends[key], REBOOT)] if ends[key] < done else []
                ends[key] = done
    for key, parts in found.items():
        parts += [(done - ends[key], None)] if ends[key] < done else []
    return found


def _stretch(device: Device, stretch: Stretch, done: int) -> Iterator[tuple[Key, Shape | Integral]]:
    is_gpu_exporter, gpu = device.generation is Generation.GPU_EXPORTER, {"gpu": str(device.gpu), "UUID": device.uuid}
    if stretch.fault in SILENT or (stretch.fault == "lost" and not is_gpu_exporter):
        return
    owner = device.owner if stretch.owner is None else stretch.owner
    part = {"GPU_I_ID": device.instance, "GPU_I_PROFILE": "1g.18gb" if device.instance else ""}
    classic = {
        **gpu,
        "pci_bus_id": f"00000000:0{device.gpu}:00.0",
        "device": f"nvidia{device.gpu}",
        "modelName": device.model,
        device.generation.hostname: device.node,
        **part,
        **owner,
    }
    if is_gpu_exporter and not device.instance:
        yield from _gpu_exporter_series(device, stretch, gpu, done)
    if is_gpu_exporter and owner:
        yield _key(m.POD_INFO.name, {**gpu, **part, **owner}), 1.0
    if stretch.fault and is_gpu_exporter:  # dcgm-exporter keeps showing the last values of a wedged GPU
        return
    for buckets, edge, counter in histograms(stretch.values) if is_gpu_exporter and device.full else ():
        yield _key(buckets, {**gpu, **part, "le": edge}), counter
    for metric, shape in _rows(device.generation, stretch):
        name = exposed(device.generation, metric)
        if name and name[0] in READ:
            labels = classic if metric.classic else {**gpu, **part}
            yield _key(name[0], {**labels, **dict(metric.labels)}), scaled(shape, name[1])


def histograms(values: Mapping[Metric, Shape | Integral]) -> Iterator[tuple[str, str, Integral]]:
    """Return the buckets of gpu-exporter's histograms by name and `le`, from the rows or from their own shape."""
    for row, edges in BUCKETS.items():
        shape = values.get(row, values.get(row.histogram_of or m.POWER_INSTANT))
        for edge in edges if shape is not None else ():
            text = "+Inf" if edge == inf else repr(edge)
            yield f"{row.name}_bucket", text, Integral((_not_above(shape, edge), OBSERVED[row]))


def _not_above(shape: Shape | Integral | None, edge: float) -> Shape:
    """Return the share of observations up to an edge between two scrapes; a wave is much faster than these."""
    match shape:
        case Wave(low, high):
            return ((low <= edge) + (high <= edge)) / 2
        case Ramp() | Integral() | None:
            raise ValueError("the histogram of a ramp or a counter is not needed")
        case int() | float():
            return float(shape <= edge)
    return [float(value <= edge) for value in shape]


def _rows(generation: Generation, stretch: Stretch) -> Iterator[tuple[Metric, Shape | Integral]]:
    yield from stretch.values.items()
    power = stretch.values.get(m.POWER)
    if power is not None and not isinstance(power, Integral):
        yield m.ENERGY, Integral((power, 1e3))
        yield m.ENERGY_JOULES, Integral((power, 1.0))
    if m.XID_ERRORS not in stretch.values:
        yield m.XID_ERRORS, float(stretch.xid or 0)
    for row in m.METRICS:
        mean = stretch.values.get(row.integral_of) if row.integral_of else None
        if mean is not None and not isinstance(mean, Integral):
            yield row, Integral((mean, 1.0))


def _gpu_exporter_series(
    device: Device, stretch: Stretch, gpu: Mapping[str, str], done: int
) -> Iterator[tuple[Key, Shape | Integral]]:
    """Return the series that only gpu-exporter has, also while it cannot read the GPU."""
    yield _key(m.INFO.name, {**gpu, "model": device.model, "node": device.node}), 1.0
    yield _key(m.UP.name, gpu), 0.0 if stretch.fault else 1.0
    now = Ramp(float(done * STEP), 1.0)
    yield _key(m.READ_AT.name, gpu), float(done * STEP - STEP) if stretch.fault else now
    yield _key(m.READ_AGE.name, gpu), Ramp(float(STEP), 1.0) if stretch.fault else 0.5
    if stretch.fault:
        yield _key(m.DOWN.name, {**gpu, "reason": REASONS.get(stretch.fault, stretch.fault)}), 1.0
    for code in {DRAIN_CODES[0], *({stretch.xid} if stretch.xid else ())}:
        xid = {**gpu, "xid": str(code), "kind": xids.load()[code].kind.value}
        happens = code == stretch.xid
        yield _key(m.XID_EVENTS.name, xid), Ramp(1.0, 1 / STEP) if happens else 0.0
        if happens:
            yield _key(m.XID_LAST.name, xid), now
        if happens and code in DRAIN_CODES:
            reason = {"reason": f"xid_{code}", "action": xids.load()[code].action.value}
            yield _key(m.HEALTH_REASON.name, {**gpu, **reason}), 1.0


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple((key, value) for key, value in labels.items() if value)
