"""Each recording judged twice, with all counters and without the profiling counters, and how well the two agree.

The driver has no profiling counters of most GPUs, but every GPU here has them: the judgement with all counters is what
the one without them is compared with. Where the truth of a phase allows several classes, each of them is right.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import LOW_POWER_CLASS, LOW_POWER_CLASSES
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import seen
from tests.support import phases
from tests.support.truth import MORE, PHASES, TRUTH

PROFILING = frozenset(f"{row.name}{part}" for part in ("", "_bucket", "_sum", "_count") for row in m.PROFILING)
# What NVML measures for 20 ms instead of the mean: twenty samples, as in the five minutes that a class is the mean of.
SAMPLED = {m.PCIE_RX.name: m.PCIE_RX_SAMPLED.name, m.PCIE_TX.name: m.PCIE_TX_SAMPLED.name}
SAMPLES = 20
# What the links of Volta and Ampere count.
COUNTED = {m.NVLINK_RX.name: m.NVLINK_RX_COUNTED.name, m.NVLINK_TX.name: m.NVLINK_TX_COUNTED.name}
OF_HOSTS = sorted(path for folder in ("host", "host_h100") for path in (MORE / folder).glob("*.jsonl.gz"))


@dataclass(frozen=True, slots=True)
class Judged:
    """A recorded GPU, judged with and without profiling counters. `right` are its true classes, if they are known."""

    recording: str
    phase: str
    exact: Diagnosis
    approximate: Diagnosis
    right: frozenset[str]


def without_profiling(scrapes: Sequence[Scrape], *, pcie: bool, nvlink: bool) -> Iterator[Scrape]:
    """Yield the scrapes as those of a GPU without profiling counters.

    With `pcie`, its driver samples PCIe traffic, and with `nvlink`, its links count their traffic.
    """
    every = max(1, len(scrapes) // (SAMPLES * len({_uuids(scrape) for scrape in scrapes})))
    seen_of: Counter[frozenset[str]] = Counter()
    totals: dict[tuple[str, str], tuple[float, float]] = {}
    for scrape in scrapes:
        seen_of[_uuids(scrape)] += 1
        sampled = pcie and not seen_of[_uuids(scrape)] % every
        samples = [sample for sample in scrape.samples if sample.name not in PROFILING]
        if sampled:
            samples += [sample._replace(name=name) for sample in scrape.samples if (name := SAMPLED.get(sample.name))]
        for sample in scrape.samples if nvlink else ():
            if name := COUNTED.get(sample.name):
                total, before = totals.get((name, sample.labels["UUID"]), (0.0, scrape.at))
                total += sample.value * (scrape.at - before)
                totals[name, sample.labels["UUID"]] = total, scrape.at
                samples.append(sample._replace(name=name, value=total))
        yield Scrape(scrape.at, samples)


def _uuids(scrape: Scrape) -> frozenset[str]:
    return frozenset(sample.labels["UUID"] for sample in scrape.samples if "UUID" in sample.labels)


def judged(*, pcie: bool = True, nvlink: bool = False) -> Iterator[Judged]:
    """Yield every GPU of every phase of every recording."""
    for path, phase in PHASES:
        approximate = _approximate(phases.scrapes(path, phase), "job", pcie=pcie, nvlink=nvlink)
        for exact, judged_so, truth in zip(phases.diagnoses(path, phase), approximate, TRUTH[path][phase], strict=True):
            yield Judged(path.name.partition(".")[0], phase, exact, judged_so, truth[0])
    for path in OF_HOSTS:
        scrapes = list(RecordedScrapes(path))
        approximate = _approximate(scrapes, "", pcie=pcie, nvlink=nvlink)
        for exact, judged_so in zip(diagnose(seen(scrapes, {}, job="")), approximate, strict=True):
            yield Judged(f"{path.parent.name}/{path.name.partition('.')[0]}", "", exact, judged_so, frozenset())


def _approximate(scrapes: Sequence[Scrape], job: str, *, pcie: bool, nvlink: bool) -> Sequence[Diagnosis]:
    return diagnose(seen(without_profiling(scrapes, pcie=pcie, nvlink=nvlink), {}, job=job))


@dataclass(frozen=True, slots=True)
class Score:
    """How often something was judged with all counters, without profiling counters, and in both."""

    exact: int
    approximate: int
    both: int

    @property
    def precision(self) -> float:
        """The share of what is judged without profiling counters that is also judged with all; 1 if it never is."""
        return self.both / self.approximate if self.approximate else 1.0

    @property
    def recall(self) -> float:
        """The share of what is judged with all counters that is also judged without; 1 if it never is."""
        return self.both / self.exact if self.exact else 1.0


def stands_for(name: str) -> frozenset[str]:
    """Return the classes with all counters that a class without profiling counters stands for."""
    return LOW_POWER_CLASSES if name == LOW_POWER_CLASS else frozenset({name})


def class_of(diagnosis: Diagnosis) -> str:
    """Return the name of the class of a GPU; empty if it has none."""
    return diagnosis.bottleneck.name if diagnosis.bottleneck else ""


def modes_of(diagnosis: Diagnosis) -> frozenset[str]:
    """Return the names of the failure modes of a GPU."""
    return frozenset(match.mode.name for match in diagnosis.matches)


def scores(of: Sequence[Judged]) -> tuple[Mapping[str, Score], Mapping[str, Score]]:
    """Return the score of each class and of each failure mode."""
    counts: Mapping[bool, Mapping[str, Counter[str]]] = {is_class: defaultdict(Counter) for is_class in (True, False)}
    for each in of:
        for is_class, exact, approximate in (
            (True, frozenset({class_of(each.exact)}), frozenset({class_of(each.approximate)})),
            (False, modes_of(each.exact), modes_of(each.approximate)),
        ):
            both = frozenset(name for name in approximate if stands_for(name) & exact)
            if LOW_POWER_CLASSES & exact:
                exact |= {LOW_POWER_CLASS}
            for kind, names in (("exact", exact), ("approximate", approximate), ("both", both)):
                for name in names - {""}:
                    counts[is_class][name][kind] += 1
    of_classes, of_modes = (
        {name: Score(count["exact"], count["approximate"], count["both"]) for name, count in sorted(found.items())}
        for found in counts.values()
    )
    return of_classes, of_modes


def coverage(of: Sequence[Judged]) -> float:
    """Return the share of busy GPUs, those whose class is not idle with all counters, that have a class without."""
    busy = [each for each in of if class_of(each.exact) not in ("", "idle")]
    return sum(bool(class_of(each.approximate)) for each in busy) / len(busy)


def rows(of: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Return a row for each class and failure mode that is given without profiling counters."""
    return [
        (name, str(score.exact), str(score.approximate), f"{score.precision:.2f}", f"{score.recall:.2f}")
        for of_kind in scores(of)
        for name, score in of_kind.items()
        if score.approximate
    ]
