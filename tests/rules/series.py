"""Input series for promtool: what exporters of each generation expose of the same GPUs.

A GPU is a `Device` with a story of stretches, each with one profile. The same story exposed by gpu-exporter and by
every dcgm-exporter must result in the same signals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import cycle, islice
from math import inf

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import xids
from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.catalogue.distributions import Within
from gpu_exporter.catalogue.failure_modes.mode import Inject, Ramp, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.signals import DRAIN_CODES, SIGNALS
from gpu_exporter.model.metric import Metric

STEP = 30  # seconds between two scrapes
MODEL = "NVIDIA H200"

# A value at each scrape; a sequence is repeated.
Shape = float | Ramp | Wave | Sequence[float]


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


@dataclass(frozen=True, slots=True)
class Stretch:
    """`steps` scrapes. `fault`: the GPU is lost or wedged, or its exporter is down; `xid` repeats all the time.

    `owner` is the owner of the GPU during the stretch, if that is not the device's owner.
    """

    steps: int
    values: Mapping[Metric, Shape]
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

    `full`: gpu-exporter exposes its histograms, too.
    """

    node: str
    gpu: int
    story: Sequence[Stretch]
    generation: Generation = Generation.GPU_EXPORTER
    owner: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""
    full: bool = True

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


class Integral(tuple[Shape, float]):
    """A counter that grows by a shape times a factor each second."""


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
    found: dict[str, str] = {}
    nodes: dict[tuple[tuple[str, str], ...], list[Device]] = {}
    for device in devices:
        for (name, labels), parts in _of_device(device).items():
            found.setdefault(_selector(name, {**dict(labels), **device.scrape}), _values(parts))
        nodes.setdefault(tuple(device.scrape.items()), []).append(device)
    for scrape, members in nodes.items():
        for name, parts in _of_exporter(members):
            found.setdefault(_selector(name, dict(scrape)), _values(parts))
    return [{"series": series, "values": values} for series, values in found.items()]


def _selector(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items() if value) + "}"


Part = tuple[int, "Shape | Integral | None"]


def _of_exporter(members: Sequence[Device]) -> Iterator[tuple[str, list[Part]]]:
    story = members[0].story
    up: list[Part] = [(each.steps, 0.0 if each.fault == "down" else 1.0) for each in story]
    yield "up", up
    if members[0].generation is not Generation.GPU_EXPORTER:
        return
    gpus = {member.gpu: member for member in members}
    there: list[Part] = [(each.steps, None if each.fault == "down" else 1.0) for each in story]
    yield m.BUILD_INFO.name, there
    for name, value in ((m.RELEASED.name, 0.0), (m.EXPECTED.name, float(len(gpus)))):
        yield name, [(steps, None if shape is None else value) for steps, shape in there]
    ticks = [[each.fault == "" for each in member.story for _ in range(each.steps)] for member in gpus.values()]
    gone = [each.fault == "down" for each in story for _ in range(each.steps)]
    visible: list[Part] = [(1, None if down else float(sum(now))) for down, *now in zip(gone, *ticks, strict=True)]
    yield m.VISIBLE.name, visible


def _of_device(device: Device) -> Mapping[Key, list[Part]]:
    found: dict[Key, list[Part]] = {}
    done = 0
    for stretch in device.story:
        for key, shape in _stretch(device, stretch, done):
            parts = found.setdefault(key, [(done, None)] if done else [])
            parts.append((stretch.steps, shape))
        done += stretch.steps
        for parts in found.values():
            missing = done - sum(steps for steps, _ in parts)
            if missing:
                parts.append((missing, None))
    return found


def _stretch(device: Device, stretch: Stretch, done: int) -> Iterator[tuple[Key, Shape | Integral]]:
    is_gpu_exporter, gpu = device.generation is Generation.GPU_EXPORTER, {"gpu": str(device.gpu), "UUID": device.uuid}
    if stretch.fault == "down" or (stretch.fault == "lost" and not is_gpu_exporter):
        return
    owner = device.owner if stretch.owner is None else stretch.owner
    part = {"GPU_I_ID": device.instance, "GPU_I_PROFILE": "1g.18gb" if device.instance else ""}
    classic = {
        **gpu,
        "pci_bus_id": f"00000000:0{device.gpu}:00.0",
        "device": f"nvidia{device.gpu}",
        "modelName": MODEL,
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
            yield _key(name[0], {**labels, **dict(metric.labels)}), _scaled(shape, name[1])


def histograms(values: Mapping[Metric, Shape]) -> Iterator[tuple[str, str, Integral]]:
    """Return the buckets of gpu-exporter's histograms by name and `le`, from the rows or from their own shape."""
    for row, edges in BUCKETS.items():
        shape = values.get(row, values.get(row.histogram_of or m.POWER_INSTANT))
        for edge in edges if shape is not None else ():
            text = "+Inf" if edge == inf else repr(edge)
            yield f"{row.name}_bucket", text, Integral((_not_above(shape, edge), OBSERVED[row]))


def _not_above(shape: Shape | None, edge: float) -> Shape:
    """Return the share of observations up to an edge between two scrapes; a wave is much faster than these."""
    match shape:
        case Wave(low, high):
            return ((low <= edge) + (high <= edge)) / 2
        case Ramp() | None:
            raise ValueError("the histogram of a ramp is not needed")
        case int() | float():
            return float(shape <= edge)
    return [float(value <= edge) for value in shape]


def _rows(generation: Generation, stretch: Stretch) -> Iterator[tuple[Metric, Shape | Integral]]:
    yield from stretch.values.items()
    power = stretch.values.get(m.POWER)
    if power is not None:
        yield m.ENERGY, Integral((power, 1e3))
        yield m.ENERGY_JOULES, Integral((power, 1.0))
    if m.XID_ERRORS not in stretch.values:
        yield m.XID_ERRORS, float(stretch.xid or 0)
    for row in m.METRICS:
        if row.integral_of in stretch.values and row.integral_of is not None:
            yield row, Integral((stretch.values[row.integral_of], 1.0))


def _gpu_exporter_series(
    device: Device, stretch: Stretch, gpu: Mapping[str, str], done: int
) -> Iterator[tuple[Key, Shape | Integral]]:
    """Return the series that only gpu-exporter has, also while it cannot read the GPU."""
    yield _key(m.INFO.name, {**gpu, "model": MODEL, "node": device.node}), 1.0
    yield _key(m.UP.name, gpu), 0.0 if stretch.fault else 1.0
    now = Ramp(float(done * STEP), 1.0)
    yield _key(m.READ_AT.name, gpu), float(done * STEP - STEP) if stretch.fault else now
    if stretch.fault:
        yield _key(m.DOWN.name, {**gpu, "reason": {"wedged": "stalled"}.get(stretch.fault, stretch.fault)}), 1.0
    for code in {DRAIN_CODES[0], *({stretch.xid} if stretch.xid else ())}:
        xid = {**gpu, "xid": str(code), "kind": xids.load()[code].kind.value}
        happens = code == stretch.xid
        yield _key(m.XID_EVENTS.name, xid), Ramp(1.0, 1 / STEP) if happens else 0.0
        if happens:
            yield _key(m.XID_LAST.name, xid), now


def _key(name: str, labels: Mapping[str, str]) -> Key:
    return name, tuple((key, value) for key, value in labels.items() if value)


def _scaled(shape: Shape | Integral, by: float) -> Shape | Integral:
    match shape:
        case Integral():
            return Integral((shape[0], shape[1] * by))
        case Ramp(start, slope):
            return Ramp(start * by, slope * by)
        case Wave(low, high, seconds):
            return Wave(low * by, high * by, seconds)
        case int() | float():
            return shape * by
    return [value * by for value in shape]


def _values(parts: Iterable[Part]) -> str:
    """Return values in promtool's notation; a counter continues from its last value."""
    texts, total, there = [], 0.0, False
    for steps, shape in parts:
        match shape:
            case None:
                texts.append(f"stale _x{steps - 1}" if there and steps > 1 else "stale" if there else f"_x{steps}")
            case Integral():
                text, total = _integral(*shape, steps, total)
                texts.append(text)
            case Ramp(start, slope):
                texts.append(_line(start, slope * STEP, steps))
            case int() | float():
                texts.append(_line(shape, 0.0, steps))
            case _:
                texts.append(" ".join(f"{value:.12g}" for value in _each(shape, steps)))
        there = shape is not None
    return " ".join(texts)


def _line(start: float, step: float, steps: int) -> str:
    return f"{start:.12g}{step:+.12g}x{steps - 1}"


def _each(shape: Wave | Sequence[float], steps: int) -> Iterator[float]:
    """A wave is much faster than scrapes and evaluations (every second scrape), which see both of its halves."""
    return islice(cycle((shape.low, shape.low, shape.high, shape.high) if isinstance(shape, Wave) else shape), steps)


def _integral(shape: Shape, factor: float, steps: int, total: float) -> tuple[str, float]:
    match shape:
        case int() | float():
            grown = shape * factor * STEP
            return _line(total + grown, grown, steps), total + grown * steps
        case Ramp():
            raise ValueError("the integral of a ramp is not needed")
    sums = []
    for value in _each(shape, steps):
        total += value * factor * STEP
        sums.append(total)
    return " ".join(f"{value:.12g}" for value in sums), total
