"""Which NVLinks a finding is about. Links are known by number only with `--metrics full`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.health import HOUR, NVLINK_ERRORS
from gpu_exporter.catalogue.faults import NVLINK
from gpu_exporter.diagnosis.scrape import ByName, DeviceKey, SampleColumn, ScrapedSample, key_of, natural, plausible

_UP, _ERRORS = m.LINK_UP.name, m.LINK_ERRORS[0].name
_EXPECTED, _COUNT = m.NVLINK_EXPECTED.name, m.NVLINK_COUNT.name
FAMILIES = (_UP, _EXPECTED, _COUNT, _ERRORS)
_BUCKET_SECONDS = 60.0


class NvlinkReader:
    """Reads scrapes in order of time."""

    def __init__(self) -> None:
        self._errors = SampleColumn(_ERRORS, (), ())
        self._counts: dict[tuple[DeviceKey, str, str], float] = {}
        # By GPU and link, the errors of each minute of the last hour that had any.
        self._grown: dict[DeviceKey, dict[int, Counter[str]]] = defaultdict(dict)

    def take(self, at: float, by_name: ByName) -> Mapping[DeviceKey, Mapping[str, Sequence[str]]]:
        """Add a scrape. Return the numbers of the links that a failure mode is about, by GPU and name of the mode."""
        found: dict[DeviceKey, dict[str, Sequence[str]]] = defaultdict(dict)
        for gpu, links in _down(by_name).items():
            found[gpu][NVLINK.mode] = links
        self._count(at, by_name.get(_ERRORS, self._errors))
        for gpu, minutes in self._grown.items():
            for minute in [minute for minute in minutes if minute <= (at - HOUR) // _BUCKET_SECONDS]:
                del minutes[minute]
            if total := sum(minutes.values(), Counter[str]()):
                found[gpu][NVLINK_ERRORS] = [min(total, key=lambda link: (-total[link], natural(link)))]
        return found

    def _count(self, at: float, errors: SampleColumn) -> None:
        # Most often: errors are rare, and the labels are then the same object. Another GPU may have the same counts.
        if (errors.labels, errors.values) == (self._errors.labels, self._errors.values):
            return
        self._errors = errors
        for sample in errors:
            if not plausible(sample.value):
                continue
            gpu, link = _link(sample)
            key = gpu, link, sample.labels.get("type", "")
            before = self._counts.get(key, sample.value)
            self._counts[key] = sample.value
            grown = sample.value - before if sample.value >= before else sample.value
            if grown:
                minutes = self._grown[gpu]
                minutes.setdefault(int(at // _BUCKET_SECONDS), Counter())[link] += int(grown)


def _link(sample: ScrapedSample) -> tuple[DeviceKey, str]:
    """Return the GPU of a sample of an NVLink, and the number of the link."""
    labels = sample.labels
    # On a page, NVLinks have the label of DCGM's links; in a snapshot, that of all other series.
    uuid = labels.get("gpu_uuid") or labels.get("UUID", "")
    return DeviceKey(labels.get("cluster", ""), uuid, ""), labels.get("nvlink", "")


def _down(by_name: ByName) -> Mapping[DeviceKey, Sequence[str]]:
    """Return the NVLinks that are down, by GPU, of GPUs all of whose NVLinks should be up."""
    down: dict[DeviceKey, list[str]] = defaultdict(list)
    for sample in by_name.get(_UP, ()):
        if sample.value == 0:
            gpu, link = _link(sample)
            down[gpu].append(link)
    if not down:
        return down
    expected, there = (_of_gpus(by_name, name) for name in (_EXPECTED, _COUNT))
    whole = {gpu for gpu, links in there.items() if expected.get(gpu) == links}
    return {gpu: sorted(links, key=natural) for gpu, links in down.items() if gpu in whole}


def _of_gpus(by_name: ByName, name: str) -> Mapping[DeviceKey, float]:
    samples = by_name.get(name, ())
    return {key_of(labels, per_instance=False): value for _, labels, value in samples if labels.get("UUID")}
