"""What works with which exporter, and the lists of fields for dcgm-exporter."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.conditions import Over, terms
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Scope, Values, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.catalogue.xids import load
from gpu_exporter.diagnosis.judge import diagnose
from gpu_exporter.diagnosis.window import Scrape, ScrapedSample, seen
from gpu_exporter.model.metric import Kind
from gpu_exporter.render import coverage
from gpu_exporter.render.coverage import Detectability, Generation
from tests import ROOT

CORRECT_LIST = "fix: correct gpu_exporter/render/rules/dcgm_exporter_csv.py and run `make generate`"
CORRECT = "fix: correct its Inject or its limit in gpu_exporter/catalogue/failure_modes/*.py"
CORRECT_COVERAGE = "fix: correct `detectability` in gpu_exporter/render/coverage.py"
GENERATE = "fix: run `make generate`"
CORRECT_KIND = "fix: correct the kind of the row in gpu_exporter/catalogue/metrics.py and run `make generate`"

FILES = {Generation.DCGM_EXPORTER_4_8: "dcgm-exporter.csv", Generation.DCGM_EXPORTER_4_9: "dcgm-exporter-4.9.csv"}
KINDS = {row.name: row.kind for row in METRICS if row.dcgm is not None}
# dcgm-exporter has no counts of links, keeps no time of an Xid, and says nothing of its own reads.
OURS_ONLY = {"GpuAttributionDown", "GpuNvlinkDown", "GpuXidUnknown", "GpuXidApplication", "GpuTelemetryStale"}


def listed(which: Generation) -> list[list[str]]:
    """The rows of the committed file, read as dcgm-exporter does: three columns, no comment, blanks cut off."""
    lines = (ROOT / "alerts" / FILES[which]).read_text().splitlines()
    return [[cell.strip(" ") for cell in row] for row in csv.reader(line for line in lines if line[:1] != "#")]


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_the_lists_are_as_dcgm_exporter_reads_them(which: Generation) -> None:
    """Three columns, a type that it knows, each field once."""
    rows = listed(which)

    assert {len(row) for row in rows} == {3}, CORRECT_LIST
    assert {row[1] for row in rows} == {"gauge", "counter"}, CORRECT_LIST
    assert len({row[0] for row in rows}) == len(rows) > 40, CORRECT_LIST
    assert all(row[2].endswith(".") and "gauge window" not in row[2] for row in rows), CORRECT_LIST


@pytest.mark.drift
def test_the_classic_list_has_rows_of_the_catalogue() -> None:
    """Names of the catalogue that DCGM has a field for, of the kind that they are there."""
    assert {name: Kind(kind) for name, kind, _ in listed(Generation.DCGM_EXPORTER_4_8)} == {
        name: KINDS[name] for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)
    }, GENERATE


@pytest.mark.drift
def test_the_new_list_has_the_new_names() -> None:
    """The same fields in the same order, by the name that 4.9 gave them, else by their own."""
    renamed = [RENAMED.get(name, (name, 1))[0] for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)]

    assert [name for name, _, _ in listed(Generation.DCGM_EXPORTER_4_9)] == renamed, GENERATE
    assert [kind for _, kind, _ in listed(Generation.DCGM_EXPORTER_4_9)] == [
        kind for _, kind, _ in listed(Generation.DCGM_EXPORTER_4_8)
    ], GENERATE


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_only_what_is_counted_is_a_counter(which: Generation) -> None:
    """The rules take the rate of a field, or its growth, where it is a counter, and never where it is a gauge."""
    kinds = {name: kind for name, kind, _ in listed(which)}
    rated = {way.name for signal in SIGNALS for way in signal.definitions if isinstance(way, Read) and way.rate}

    assert {kinds[name] for name in rated & set(kinds)} == {"counter"}, CORRECT_KIND
    assert {kind for name, kind in kinds.items() if name.startswith("DCGM_FI_PROF_")} == {"gauge"}, CORRECT_KIND


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_with_our_list_all_that_dcgm_can_tell_works(which: Generation) -> None:
    """Every mode but those that need what DCGM has no field for."""
    names = {name for name, _, _ in listed(which)}

    assert {mode.name for mode in MODES if coverage.detectability(mode, names) is not Detectability.YES} == OURS_ONLY, (
        "fix: add the missing field to gpu_exporter/render/rules/dcgm_exporter_csv.py and run `make generate`,"
        " or add the mode to OURS_ONLY in tests/unit/render/test_coverage.py"
    )


def test_with_our_exporter_everything_works() -> None:
    """With the default set all but the histogram of spare rows, with the full set all."""
    default = {mode.name for mode in MODES if coverage.detectability(mode, coverage.exposed()) is not Detectability.YES}

    assert default == {"GpuSpareRowsLow"}
    assert {coverage.detectability(mode, coverage.exposed(full=True)) for mode in MODES} == {Detectability.YES}


@pytest.mark.parametrize(
    ("name", "works"),
    [
        ("GpuLost", Detectability.YES),  # counted
        ("GpuXidFatal", Detectability.YES),
        ("GpuMetricsMissing", Detectability.YES),  # it is made for that
        ("GpuHostBound", Detectability.PARTLY),  # the engine is known; PCIe, which would tell data loading, is not
        ("GpuMemoryBound", Detectability.PARTLY),  # bandwidth is known, idle pipes are not
        ("GpuFakeLoad", Detectability.NO),  # no SM activity
        ("GpuDataLoadingBound", Detectability.NO),  # traffic is known, the speed of the link is not
        ("GpuStragglerSlow", Detectability.NO),
        ("GpuEccUncorrectable", Detectability.NO),
    ],
)
def test_what_works_with_the_list_that_dcgm_exporter_comes_with(name: str, works: Detectability) -> None:
    """Known, known in part, not known."""
    (mode,) = (mode for mode in MODES if mode.name == name)

    assert coverage.detectability(mode, DEFAULT_FIELDS) is works


def test_generations() -> None:
    """Of each way its generation; a name that 4.9 kept is in both."""
    assert [coverage.generation(way) for way in s.SM_ACTIVE.definitions if isinstance(way, Read)] == [
        Generation.GPU_EXPORTER,
        Generation.DCGM_EXPORTER_4_8,
        Generation.DCGM_EXPORTER_4_9,
    ]
    assert [way.name for way in coverage.reads(s.PCIE_GEN, Generation.DCGM_EXPORTER_4_9)] == [
        "DCGM_FI_DEV_PCIE_LINK_GEN"
    ]
    assert [way.name for way in coverage.reads(s.NVLINK, Generation.DCGM_EXPORTER_4_9)] == [
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"
    ]
    assert [way.name for way in coverage.reads(s.NVLINK, Generation.DCGM_EXPORTER_4_8)] == [
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
    ]
    assert {coverage.generation(way) for sig in SIGNALS for way in sig.definitions if isinstance(way, Read)} == {
        Generation.GPU_EXPORTER,
        Generation.DCGM_EXPORTER_4_8,
        Generation.DCGM_EXPORTER_4_9,
    }


def sample(value: float | Ramp | Wave, tick: int) -> float:
    """What a value is at a tick, a minute after the one before."""
    match value:
        case Ramp(start, per_second):
            return start + per_second * 60 * tick
        case Wave(low, high):
            return high if tick % 2 else low
    return value


def rows(values: Values, xid: int | None, names: Collection[str], gpu: int, tick: int) -> Iterator[ScrapedSample]:
    """A page of one GPU of a job, from an exporter that has these names."""
    labels = {"UUID": f"GPU-{gpu}", "gpu": str(gpu), "modelName": "NVIDIA H200", "Hostname": "node-1"}
    known = {metric: sample(value, tick) for metric, value in values.items()}
    for metric, value in known.items():
        yield ScrapedSample(
            metric.name, {**labels, "namespace": "ml", "pod": f"llm-{gpu}", **dict(metric.labels)}, value
        )
    yield ScrapedSample("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", labels, (known[m.NVLINK_TX] + known[m.NVLINK_RX]) / 1e6)
    yield ScrapedSample(m.XID_ERRORS.name, labels, float(xid or 0))
    if xid is not None:
        own = {"xid": str(xid), "kind": load()[xid].kind.value}
        yield ScrapedSample(m.XID_LAST.name, {**labels, **own}, 60.0 * tick)
        if m.XID_EVENTS.name in names:
            yield ScrapedSample(m.XID_EVENTS.name, {**labels, **own}, 1.0)


def found(mode: FailureMode, names: Collection[str]) -> set[str]:
    """What is found of the GPU that the mode was injected into, by who scrapes these names long enough."""
    inject = mode.inject
    ranks: list[tuple[Values, int | None]] = [({**HEALTHY, **inject.values}, inject.xid)]
    ranks += [({**HEALTHY, **inject.peers}, None)] * (3 if mode.scope is Scope.JOB else 0)
    assert mode.condition
    # Memory that leaks takes more than an hour to become short.
    longest = max(term.window for term in terms(mode.condition) if isinstance(term, Over))
    pages = [
        Scrape(
            60.0 * tick,
            [row for gpu, rank in enumerate(ranks) for row in rows(*rank, names, gpu, tick) if row.name in names],
        )
        for tick in range(int(longest / 60) + 70)
    ]
    of = diagnose(seen(pages, {}), [mode])
    return {match.mode.name for each in of if each.device.uuid == "GPU-0" for match in each.matches}


@pytest.mark.parametrize(
    "names",
    [
        coverage.exposed(),
        coverage.exposed(full=True),
        DEFAULT_FIELDS,
        frozenset(name for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)),
    ],
    ids=["ours", "ours, full", "default list", "our list"],
)
@pytest.mark.parametrize(
    "mode",
    [mode for mode in MODES if mode.scope is not Scope.FLEET and not mode.inject.fault],
    ids=lambda mode: mode.name,
)
def test_what_is_said_to_work_does(mode: FailureMode, names: frozenset[str]) -> None:
    """What a mode injects is found with the names of an exporter that it is said to work with, and with no other."""
    works = coverage.detectability(mode, names)

    fires = works is Detectability.PARTLY or mode.name in found(mode, names)
    assert fires or works is Detectability.NO, f"{mode.name} does not fire on what it injects; {CORRECT}"
    assert works is not Detectability.NO or not fires, f"{mode.name} fires without what it needs; {CORRECT_COVERAGE}"
