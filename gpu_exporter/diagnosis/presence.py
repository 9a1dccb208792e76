"""Which GPUs are there at the end of some scrapes, and which do not answer, are gone, or were never identified. Pure.

A series that its target no longer exposes is over, as in Prometheus; otherwise a GPU would be judged by the values that
it had before it was lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.averages import median
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, node_of, plausible, samples_by_name
from gpu_exporter.diagnosis.window import UNIDENTIFIED
from gpu_exporter.model.snapshot import SOURCE_LOST, UNREAD
from gpu_exporter.reports.numbers import whole_duration

# A series is over when so many scrapes of its target in a row lack it: one of them may have come too early for a mean.
SCRAPES = 3
# What says which GPUs are absent.
OF_PRESENCE = frozenset(metric.name for metric in (m.UP, m.DOWN, m.SOURCE_DOWN, m.EXPECTED, m.MISSING))
# Why a GPU cannot be read although nothing is wrong with it.
RELEASED = "released"


class Absent(NamedTuple):
    """GPUs that cannot be judged: their names and why. `expected` if the driver was released on purpose, or if they are
    being attached."""

    node: str
    gpus: str
    why: str
    expected: bool = False


class Present(NamedTuple):
    """The scrapes, from which the series that are over were removed, and the GPUs that are absent."""

    scrapes: list[Scrape]
    absent: list[Absent]


class _Target(NamedTuple):
    cluster: str
    instance: str
    job: str


class _Device:
    """A device of a target: when each of its series was last seen, by name, and the sample of then."""

    __slots__ = ("last", "target", "uuid")

    def __init__(self, target: _Target, uuid: str) -> None:
        self.target, self.uuid = target, uuid
        self.last: dict[str, tuple[float, ScrapedSample]] = {}


class _Devices:
    """The devices of samples. Many samples have the same labels, so these are read only once."""

    def __init__(self) -> None:
        self.by_labels: dict[int, _Device] = {}  # by the identity of the labels
        self.unidentified = False  # whether a GPU has no UUID
        self._known: dict[tuple[str, ...], _Device] = {}

    def __iter__(self) -> Iterator[_Device]:
        return iter(self._known.values())

    def add(self, labels: Mapping[str, str]) -> _Device:
        """Return the device of labels that are new."""
        get = labels.get
        key = (get("cluster", ""), get("instance", ""), get("job", ""), get("UUID", ""), get("GPU_I_ID", ""))
        device = self._known.get(key)
        if device is None:
            device = self._known[key] = _Device(_target(labels), labels.get("UUID", ""))
        self.unidentified = self.unidentified or is_unidentified(labels)
        self.by_labels[id(labels)] = device
        return device

    def look(self, scrapes: Iterable[Scrape]) -> None:
        """Note when each series of the devices was last seen."""
        for scrape in scrapes:
            at = scrape.at
            for sample in scrape.samples:
                self.by_labels[id(sample.labels)].last[sample.name] = at, sample


def present(scrapes: Sequence[Scrape]) -> Present:
    """Return what is present at the end of scrapes, which are in order of time. Each may be of several targets."""
    times: dict[_Target, list[float]] = defaultdict(list)
    devices = _Devices()
    by_labels = devices.by_labels
    # The targets of the labels of a column, by their identity, and of the scrape before.
    known: dict[int, tuple[Sequence[Mapping[str, str]], set[_Target]]] = {}
    for scrape in scrapes:
        # Many samples have the same labels.
        columns = {id(column.labels): column.labels for column in samples_by_name(scrape.samples).values()}
        before, known = known, {}
        for key, column in columns.items():
            same, targets = before.get(key, (None, set()))
            if same is not column:
                of_column = {by_labels.get(id(labels)) or devices.add(labels) for labels in column}
                targets = {device.target for device in of_column}
            known[key] = column, targets
        for target in set().union(*(targets for _, targets in known.values())):
            times[target].append(scrape.at)
    now = scrapes[-1].at if scrapes else 0.0
    since = {target: _since(of_target, now) for target, of_target in times.items()}
    newest = {target: of_target[-1] for target, of_target in times.items()}
    over: dict[_Device, set[str]] = {}
    # In the first scrapes of a target, no series can be over.
    if any(since[target] > of_target[0] for target, of_target in times.items()):
        devices.look(scrapes)
        for device in devices:
            names = {name for name, (end, _) in device.last.items() if end < since[device.target]}
            if names:
                over[device] = names
    kept = list(scrapes)
    if over or devices.unidentified:
        kept = [Scrape(scrape.at, list(_kept(scrape, by_labels, over, newest))) for scrape in scrapes]
    ends = set(newest.values())
    of_newest = [
        sample
        for scrape in kept
        if scrape.at in ends
        for name, column in samples_by_name(scrape.samples).items()
        if name in OF_PRESENCE
        for sample in column
        if newest[_target(sample.labels)] == scrape.at
    ]
    dark = _dark(of_newest)
    absent = [*_down(of_newest, dark), *_gone(devices, over, now), *_missing(of_newest, dark)]
    return Present([Scrape(scrape.at, list(_judged(scrape, dark))) for scrape in kept] if dark.gpus else kept, absent)


def _target(labels: Mapping[str, str]) -> _Target:
    return _Target(labels.get("cluster", ""), labels.get("instance", ""), labels.get("job", ""))


def _since(times: Sequence[float], now: float) -> float:
    """Return from which time on a series of a target must have been seen to be still there."""
    usual = median([later - earlier for earlier, later in pairwise(times)]) if len(times) > 1 else float("inf")
    if now - times[-1] > SCRAPES * usual:
        return float("inf")
    return times[-min(SCRAPES, len(times))]


def _kept(
    scrape: Scrape,
    by_labels: Mapping[int, _Device],
    over: Mapping[_Device, Collection[str]],
    newest: Mapping[_Target, float],
) -> Iterator[ScrapedSample]:
    """Yield the samples of series that are still there. A GPU without a UUID gets a name from its index and target."""
    for sample in scrape.samples:
        device = by_labels[id(sample.labels)]
        if sample.name in over.get(device, ()):
            continue
        if not is_unidentified(sample.labels):
            yield sample
        elif newest[device.target] == scrape.at:  # it may have been identified since an earlier scrape
            of_target = f" of {device.target.instance}" if device.target.instance else ""
            name = f"{UNIDENTIFIED}{sample.labels['gpu']}{of_target}"
            node = sample.labels.get("node") or device.target.instance
            yield ScrapedSample(sample.name, {**sample.labels, "UUID": name, "node": node}, sample.value)


def is_unidentified(labels: Mapping[str, str]) -> bool:
    """Whether labels are those of a GPU without a UUID. Those of an NVLink have the UUID in another label."""
    return not labels.get("UUID") and "gpu" in labels and "nvlink" not in labels


def _node(labels: Mapping[str, str]) -> str:
    return node_of(labels) or labels.get("instance", "")


def explain(reason: str) -> str:
    """Return why a GPU is down, from a value of the label `reason`."""
    if reason in faults.TELEMETRY:
        return faults.TELEMETRY[reason]
    return f"{reason}: {faults.DOWN[reason].words}" if reason in faults.DOWN else reason.replace("_", " ")


def no_data(seconds: float) -> str:
    """Return why a GPU has no data any more."""
    return f"no data for {whole_duration(seconds)}: it is gone, or its exporter or node is down"


class _Dark(NamedTuple):
    """Exporters whose source is down, with the labels that say why, and their GPUs, of which nothing is known."""

    sources: Mapping[_Target, Mapping[str, str]]
    gpus: set[tuple[_Target, str]]

    def why(self, target: _Target, reason: str) -> str:
        """Return why nothing is known of a GPU that is down for this reason."""
        source = self.sources.get(target, {})
        of_source = source and reason not in faults.TELEMETRY.keys() - {SOURCE_LOST}
        return faults.silent(source.get("source", ""), source.get("reason", "")) if of_source else explain(reason)


def _dark(newest: Sequence[ScrapedSample]) -> _Dark:
    """Return the exporters and GPUs with a fault of telemetry, the container or the driver."""
    sources = {
        _target(sample.labels): sample.labels
        for sample in newest
        if sample.name == m.SOURCE_DOWN.name and sample.value == 1 and sample.labels.get("reason") != RELEASED
    }
    gpus = set()
    for sample in newest:
        target, reason = _target(sample.labels), sample.labels.get("reason", "")
        if sample.name == m.DOWN.name and sample.value == 1:
            of_node = reason in faults.OF_NODE and sources.get(target, {}).get("reason") == reason
            if of_node or reason in faults.TELEMETRY:
                gpus.add((target, sample.labels.get("UUID", "")))
    return _Dark(sources, gpus)


def _judged(scrape: Scrape, dark: _Dark) -> Iterator[ScrapedSample]:
    """Yield the samples without those of GPUs of which nothing is known."""
    for sample in scrape.samples:
        if (_target(sample.labels), sample.labels.get("UUID", "")) not in dark.gpus:
            yield sample


def _down(newest: Sequence[ScrapedSample], dark: _Dark) -> Iterator[Absent]:
    listed = Counter(_target(sample.labels) for sample in newest if sample.name == m.UP.name)
    together: dict[tuple[_Target, str], list[ScrapedSample]] = defaultdict(list)
    for sample in newest:
        if sample.name != m.DOWN.name or sample.value != 1:
            continue
        target, reason = _target(sample.labels), sample.labels.get("reason", "")
        if (target, sample.labels.get("UUID", "")) in dark.gpus:
            together[target, reason].append(sample)
        else:
            name = f"GPU {sample.labels.get('gpu', '')}"
            yield Absent(_node(sample.labels), name, explain(reason), reason == RELEASED)
    for (target, reason), samples in together.items():
        every = len(samples) == listed[target] > 1
        gpus = [sample.labels.get("gpu", "") for sample in samples]
        name = "every GPU" if every else f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
        yield Absent(_node(samples[0].labels), name, dark.why(target, reason), reason == UNREAD)


def _gone(devices: Iterable[_Device], over: Mapping[_Device, Collection[str]], now: float) -> Iterator[Absent]:
    """Yield the GPUs of which every series is over."""
    there = {device.uuid for device in devices if device not in over or len(over[device]) < len(device.last)}
    gone: dict[str, tuple[float, _Target, ScrapedSample]] = {}
    for device in over:
        if device.uuid not in there:
            end, sample = max(device.last.values(), key=itemgetter(0))
            if device.uuid not in gone or end > gone[device.uuid][0]:
                gone[device.uuid] = end, device.target, sample
    for uuid, (end, _, sample) in sorted(gone.items(), key=lambda item: (item[1][1], item[0])):
        name = sample.labels.get("gpu") or uuid
        yield Absent(_node(sample.labels), f"GPU {name}", no_data(now - end))


def _missing(newest: Iterable[ScrapedSample], dark: _Dark) -> Iterator[Absent]:
    """Yield for each node how many of the GPUs that it should have are not listed, or why there is no list."""
    expected: dict[_Target, ScrapedSample] = {}
    listed: dict[_Target, int] = defaultdict(int)
    on_bus: dict[_Target, list[str]] = defaultdict(list)
    for sample in newest:
        target = _target(sample.labels)
        if sample.name == m.EXPECTED.name and plausible(sample.value):
            expected[target] = sample
        if sample.name == m.MISSING.name:
            on_bus[target].append(faults.missing_gpu(sample.labels))
        listed[target] += sample.name == m.UP.name
    for target, sample in expected.items():
        number = faults.missing(int(sample.value), listed[target])
        source = dark.sources.get(target)
        if source and faults.lists_nothing(source):
            if not listed[target]:
                yield Absent(_node(sample.labels), "every GPU", dark.why(target, SOURCE_LOST))
        elif number > 0:
            what = f"{number} of {sample.value:.0f} GPUs"
            where = f": {'; '.join(on_bus[target])}" if on_bus[target] else ""
            yield Absent(_node(sample.labels), what, f"expected, but the driver does not list them{where}")
