"""Which GPUs are there at the end of some scrapes, and which do not answer, are gone, or were never identified. Pure.

A series that its target no longer exposes is over, as in Prometheus; otherwise a GPU would be judged by the values that
it had before it was lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.averages import median
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, plausible
from gpu_exporter.diagnosis.window import UNIDENTIFIED, node_of
from gpu_exporter.model.snapshot import SOURCE_LOST, UNREAD

# A series is over when so many scrapes of its target in a row lack it: one of them may have come too early for a mean.
SCRAPES = 3
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


class _Key(NamedTuple):
    """All series of a family and device."""

    target: _Target
    name: str
    uuid: str
    instance: str


def present(scrapes: Sequence[Scrape]) -> Present:
    """Return what is present at the end of scrapes, which are in order of time. Each may be of several targets."""
    times: dict[_Target, list[float]] = defaultdict(list)
    last: dict[_Key, ScrapedSample] = {}
    ends: dict[_Key, float] = {}
    for scrape in scrapes:
        for sample in scrape.samples:
            key = _key(sample)
            of_target = times[key.target]
            if not of_target or of_target[-1] != scrape.at:
                of_target.append(scrape.at)
            last[key], ends[key] = sample, scrape.at
    now = scrapes[-1].at if scrapes else 0.0
    since = {target: _since(of_target, now) for target, of_target in times.items()}
    over = {key for key, end in ends.items() if end < since[key.target]}
    newest = {target: of_target[-1] for target, of_target in times.items()}
    kept = [Scrape(scrape.at, list(_kept(scrape, over, newest))) for scrape in scrapes]
    of_newest = [sample for scrape in kept for sample in scrape.samples if newest[_key(sample).target] == scrape.at]
    dark = _dark(of_newest)
    absent = [*_down(of_newest, dark), *_gone(over, last, ends, now), *_missing(of_newest, dark)]
    return Present([Scrape(scrape.at, list(_judged(scrape, dark))) for scrape in kept] if dark.gpus else kept, absent)


def _key(sample: ScrapedSample) -> _Key:
    labels = sample.labels
    target = _Target(labels.get("cluster", ""), labels.get("instance", ""), labels.get("job", ""))
    return _Key(target, sample.name, labels.get("UUID", ""), labels.get("GPU_I_ID", ""))


def _since(times: Sequence[float], now: float) -> float:
    """Return from which time on a series of a target must have been seen to be still there."""
    usual = median([later - earlier for earlier, later in pairwise(times)]) if len(times) > 1 else float("inf")
    if now - times[-1] > SCRAPES * usual:
        return float("inf")
    return times[-min(SCRAPES, len(times))]


def _kept(scrape: Scrape, over: set[_Key], newest: Mapping[_Target, float]) -> Iterator[ScrapedSample]:
    """Yield the samples of series that are still there. A GPU without a UUID gets a name from its index and target."""
    for sample in scrape.samples:
        key = _key(sample)
        if key in over:
            continue
        if key.uuid or "gpu" not in sample.labels:
            yield sample
        elif newest[key.target] == scrape.at:  # it may have been identified since an earlier scrape
            of_target = f" of {key.target.instance}" if key.target.instance else ""
            name = f"{UNIDENTIFIED}{sample.labels['gpu']}{of_target}"
            node = sample.labels.get("node") or key.target.instance
            yield ScrapedSample(sample.name, {**sample.labels, "UUID": name, "node": node}, sample.value)


def _node(labels: Mapping[str, str]) -> str:
    return node_of(labels) or labels.get("instance", "")


def explain(reason: str) -> str:
    """Return why a GPU is down, from a value of the label `reason`."""
    if reason in faults.TELEMETRY:
        return faults.TELEMETRY[reason]
    return f"{reason}: {faults.DOWN[reason].words}" if reason in faults.DOWN else reason.replace("_", " ")


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
        _key(sample).target: sample.labels
        for sample in newest
        if sample.name == m.SOURCE_DOWN.name and sample.value == 1 and sample.labels.get("reason") != RELEASED
    }
    gpus = set()
    for sample in newest:
        key, reason = _key(sample), sample.labels.get("reason", "")
        if sample.name == m.DOWN.name and sample.value == 1:
            of_node = reason in faults.OF_NODE and sources.get(key.target, {}).get("reason") == reason
            if of_node or reason in faults.TELEMETRY:
                gpus.add((key.target, key.uuid))
    return _Dark(sources, gpus)


def _judged(scrape: Scrape, dark: _Dark) -> Iterator[ScrapedSample]:
    """Yield the samples without those of GPUs of which nothing is known."""
    for sample in scrape.samples:
        key = _key(sample)
        if (key.target, key.uuid) not in dark.gpus:
            yield sample


def _down(newest: Sequence[ScrapedSample], dark: _Dark) -> Iterator[Absent]:
    listed = Counter(_key(sample).target for sample in newest if sample.name == m.UP.name)
    together: dict[tuple[_Target, str], list[ScrapedSample]] = defaultdict(list)
    for sample in newest:
        if sample.name != m.DOWN.name or sample.value != 1:
            continue
        key, reason = _key(sample), sample.labels.get("reason", "")
        if (key.target, key.uuid) in dark.gpus:
            together[key.target, reason].append(sample)
        else:
            name = f"GPU {sample.labels.get('gpu', '')}"
            yield Absent(_node(sample.labels), name, explain(reason), reason == RELEASED)
    for (target, reason), samples in together.items():
        every = len(samples) == listed[target] > 1
        name = "every GPU" if every else f"GPU {', '.join(sample.labels.get('gpu', '') for sample in samples)}"
        yield Absent(_node(samples[0].labels), name, dark.why(target, reason), reason == UNREAD)


def _gone(
    over: set[_Key], last: Mapping[_Key, ScrapedSample], ends: Mapping[_Key, float], now: float
) -> Iterator[Absent]:
    """Yield the GPUs of which every series is over."""
    there = {key.uuid for key in last.keys() - over}
    gone: dict[str, _Key] = {}
    for key in over:
        if key.uuid not in there and (key.uuid not in gone or ends[key] > ends[gone[key.uuid]]):
            gone[key.uuid] = key
    for key in sorted(gone.values()):
        labels = last[key].labels
        name = labels.get("gpu") or key.uuid
        why = f"no data for {now - ends[key]:.0f} s: it is gone, or its exporter or node is down"
        yield Absent(_node(labels), f"GPU {name}", why)


def _missing(newest: Iterable[ScrapedSample], dark: _Dark) -> Iterator[Absent]:
    """Yield for each node how many of the GPUs that it should have are not listed, or why there is no list."""
    expected: dict[_Target, ScrapedSample] = {}
    listed: dict[_Target, int] = defaultdict(int)
    on_bus: dict[_Target, list[str]] = defaultdict(list)
    for sample in newest:
        target = _key(sample).target
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
