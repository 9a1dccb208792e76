"""Which failure modes work with which exporter, and the lists of fields for dcgm-exporter."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator

import pytest

from gpu_exporter.alerting import coverage
from gpu_exporter.alerting.coverage import Detectability, Generation
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.failure_modes import MODES, host, loops, network
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Scope, Values, Wave
from gpu_exporter.catalogue.failure_modes.profiles import HEALTHY
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.catalogue.xids import load
from gpu_exporter.conditions.signal import Read
from gpu_exporter.conditions.tree import Over, terms
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.metric import Kind
from tests import ROOT
from tests.support.table import table_test

CORRECT_LIST = "fix: correct gpu_exporter/alerting/coverage.py and run `make generate`"
CORRECT = "fix: correct its Inject or its limit in gpu_exporter/catalogue/failure_modes/*.py"
CORRECT_COVERAGE = "fix: correct `detectability` in gpu_exporter/alerting/coverage.py"
GENERATE = "fix: run `make generate`"
CORRECT_KIND = "fix: correct the kind of the row in gpu_exporter/catalogue/metrics.py and run `make generate`"

FILES = {Generation.DCGM_EXPORTER_4_8: "dcgm-exporter.csv", Generation.DCGM_EXPORTER_4_9: "dcgm-exporter-4.9.csv"}
KINDS = {row.name: row.kind for row in METRICS if row.dcgm is not None}
# dcgm-exporter has no counts of links, no times of XIDs, and no metrics about its own reads. It does not know what a
# PCIe slot allows, and what a link had before two hours ago.
GPU_EXPORTER_ONLY = {
    *(
        "GpuAttributionDown",
        "GpuJobAcrossCliques",
        "GpuMemoryBrieflyFull",
        "GpuNvlinkDown",
        "GpuPcieLinkDegraded",
        "GpuXidUnknown",
        "GpuXidApplication",
        "GpuTelemetryStale",
    ),
    *(mode.name for mode in (*network.MODES, *host.MODES, *loops.MODES)),
}
XIDS = load()


def listed(which: Generation) -> list[list[str]]:
    """Return the rows of the committed file, read as by dcgm-exporter: three columns, no comments, stripped."""
    lines = (ROOT / "alerts" / FILES[which]).read_text().splitlines()
    return [[cell.strip(" ") for cell in row] for row in csv.reader(line for line in lines if line[:1] != "#")]


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_the_lists_are_valid_for_dcgm_exporter(which: Generation) -> None:
    """Three columns, a known type, each field once."""
    rows = listed(which)

    assert {len(row) for row in rows} == {3}, CORRECT_LIST
    assert {row[1] for row in rows} == {"gauge", "counter"}, CORRECT_LIST
    assert len({row[0] for row in rows}) == len(rows) > 40, CORRECT_LIST
    assert all(row[2].endswith(".") and "gauge window" not in row[2] for row in rows), CORRECT_LIST


@pytest.mark.drift
def test_the_classic_list_has_rows_of_the_catalogue() -> None:
    """Names of the catalogue that have a DCGM field, with the catalogue's kind."""
    assert {name: Kind(kind) for name, kind, _ in listed(Generation.DCGM_EXPORTER_4_8)} == {
        name: KINDS[name] for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)
    }, GENERATE


@pytest.mark.drift
def test_the_new_list_has_the_new_names() -> None:
    """The same fields in the same order, with the names of 4.9."""
    renamed = [RENAMED.get(name, (name, 1))[0] for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)]

    assert [name for name, _, _ in listed(Generation.DCGM_EXPORTER_4_9)] == renamed, GENERATE
    assert [kind for _, kind, _ in listed(Generation.DCGM_EXPORTER_4_9)] == [
        kind for _, kind, _ in listed(Generation.DCGM_EXPORTER_4_8)
    ], GENERATE


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_rates_are_of_counters(which: Generation) -> None:
    """The rules use the rate or increase of counters, never of gauges."""
    kinds = {name: kind for name, kind, _ in listed(which)}
    rated = {way.name for signal in SIGNALS for way in signal.definitions if isinstance(way, Read) and way.rate}

    assert {kinds[name] for name in rated & set(kinds)} == {"counter"}, CORRECT_KIND
    assert {kind for name, kind in kinds.items() if name.startswith("DCGM_FI_PROF_")} == {"gauge"}, CORRECT_KIND


@pytest.mark.drift
@pytest.mark.parametrize("which", FILES)
def test_all_modes_with_dcgm_fields_work_with_our_list(which: Generation) -> None:
    """All failure modes except those that need values without a DCGM field."""
    names = {name for name, _, _ in listed(which)}

    assert {
        mode.name for mode in MODES if coverage.detectability(mode, names) is not Detectability.YES
    } == GPU_EXPORTER_ONLY, (
        "fix: add the missing field to gpu_exporter/alerting/coverage.py and run `make generate`,"
        " or add the mode to GPU_EXPORTER_ONLY in tests/unit/alerting/test_coverage.py"
    )


def test_all_modes_work_with_gpu_exporter() -> None:
    """The histogram of spare rows needs the full set, causes on the host need host evidence, and jobs their loops."""
    missing = [
        {mode.name for mode in MODES if coverage.detectability(mode, names) is not Detectability.YES}
        for names in (
            coverage.exposed(),
            coverage.exposed(full=True),
            coverage.exposed(full=True, host=True),
            coverage.exposed(full=True, host=True, jobs=True),
        )
    ]
    of_host, of_jobs = ({mode.name for mode in file.MODES} for file in (host, loops))

    assert missing == [{"GpuSpareRowsLow", *of_host, *of_jobs}, of_host | of_jobs, of_jobs, set()]


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
def test_modes_with_dcgm_exporters_default_list(name: str, works: Detectability) -> None:
    """Some work, some work partly, some do not."""
    (mode,) = (mode for mode in MODES if mode.name == name)

    assert coverage.detectability(mode, DEFAULT_FIELDS) is works


def test_generations() -> None:
    """Each name belongs to its generation; a name that 4.9 kept belongs to both."""
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
    """Return a value at a tick, with one tick per minute."""
    match value:
        case Ramp(start, per_second):
            return start + per_second * 60 * tick
        case Wave(low, high):
            return high if tick % 2 else low
    return value


def rows(values: Values, xid: int | None, names: Collection[str], gpu: int, tick: int) -> Iterator[ScrapedSample]:
    """Yield the samples of one GPU of a job, from an exporter with these names."""
    labels = {"UUID": f"GPU-{gpu}", "gpu": str(gpu), "modelName": "NVIDIA H200", "Hostname": "node-1"}
    known = {metric: sample(value, tick) for metric, value in values.items()}
    for metric, value in known.items():
        yield ScrapedSample(
            metric.name, {**labels, "namespace": "ml", "pod": f"llm-worker-{gpu}", **dict(metric.labels)}, value
        )
    yield ScrapedSample("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", labels, (known[m.NVLINK_TX] + known[m.NVLINK_RX]) / 1e6)
    yield ScrapedSample(m.XID_ERRORS.name, labels, float(xid or 0))
    if xid is not None:
        own = {"xid": str(xid), "kind": XIDS[xid].kind.value}
        yield ScrapedSample(m.XID_LAST.name, {**labels, **own}, 60.0 * tick)
        yield ScrapedSample(m.RENDERED_AT.name, {}, 60.0 * tick)
        yield ScrapedSample(m.HEALTH_REASON.name, {**labels, "reason": f"xid_{xid}"}, 1.0)
        if m.XID_EVENTS.name in names:
            yield ScrapedSample(m.XID_EVENTS.name, {**labels, **own}, 1.0)


def matched_modes(mode: FailureMode, names: Collection[str]) -> set[str]:
    """Return the failure modes that `diagnose` finds on the injected GPU, with these names for long enough."""
    inject = mode.inject
    ranks: list[tuple[Values, int | None]] = [({**HEALTHY, **inject.values}, inject.xid)]
    ranks += [({**HEALTHY, **inject.peers}, None)] * (3 if mode.scope is Scope.JOB else 0)
    assert mode.condition
    longest = max(term.window for term in terms(mode.condition) if isinstance(term, Over))
    # A memory leak takes more than an hour to fill the memory; what stands still needs no past.
    before = 70 if any(isinstance(value, Ramp) for value in inject.values.values()) else 2
    pages = [
        Scrape(
            60.0 * tick,
            [row for gpu, rank in enumerate(ranks) for row in rows(*rank, names, gpu, tick) if row.name in names],
        )
        for tick in range(int(longest / 60) + before)
    ]
    of = diagnose(seen(pages, {}), [mode])
    return {match.mode.name for each in of if each.device.uuid == "GPU-0" for match in each.matches}


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        coverage.exposed(),
        coverage.exposed(full=True, host=True, jobs=True),
        DEFAULT_FIELDS,
        frozenset(name for name, _, _ in listed(Generation.DCGM_EXPORTER_4_8)),
    ],
    ids=["gpu-exporter", "gpu-exporter, full", "default list", "own list"],
)
@table_test(
    "mode", [mode for mode in MODES if mode.scope is not Scope.FLEET and not mode.inject.fault], lambda mode: mode.name
)
def test_coverage_equals_results(mode: FailureMode, names: frozenset[str]) -> None:
    """An injected failure mode is found exactly if coverage says that it works with these names."""
    works = coverage.detectability(mode, names)

    fires = works is Detectability.PARTLY or mode.name in matched_modes(mode, names)
    assert fires or works is Detectability.NO, f"{mode.name} does not fire on what it injects; {CORRECT}"
    assert works is not Detectability.NO or not fires, f"{mode.name} fires without what it needs; {CORRECT_COVERAGE}"
