"""Labels of DCGM's families, by schema: those of dcgm-exporter, as the golden files say, and in its order."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import FACTORS, RENAMED, converter
from gpu_exporter.catalogue.selection import everything
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import EntityKind, Kind, Labels, Metric, Schema
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer, labels_of, number
from tests import ROOT

GOLDEN = ROOT / "tests" / "golden"
FILES = {Schema.CLASSIC: "dcgm_exporter_4.8.2.prom", Schema.SI: "dcgm_exporter_4.9.prom"}
GPU = Gpu(1, "GPU-1", "00000000:07:00.0", "NVIDIA H200", "nvidia1", "580.159.04", (("serial", "1"),))
WINDOW = ("window_size_in_ms", "300000")


def row(name: str, entity: EntityKind) -> Metric:
    """Return a row that only DCGM has."""
    return Metric(f"DCGM_FI_DEV_{name}_ROW", Kind.GAUGE, "", "A field of DCGM.", entity=entity)


LINK, SWITCH = row("LINK", EntityKind.NVLINK), row("SWITCH", EntityKind.NVSWITCH)
CPU, CORE = row("CPU", EntityKind.CPU), row("CORE", EntityKind.CPU_CORE)
# In the order of the files; the labels of a series in whatever order its source gives them.
SERIES: list[tuple[Metric, Gpu | None, Labels, float]] = [
    (m.SM_CLOCK, GPU, (), 1980),
    (m.SM_ACTIVE, GPU, (("GPU_I_ID", "7"), ("GPU_I_PROFILE", "1g.18gb")), 0.57),
    (m.XID_ERRORS, GPU, (("err_msg", "No Error"), ("err_code", "0")), 0),
    (m.EXP_XID_COUNT, GPU, (("xid", "31"), WINDOW), 2),
    (m.EXP_XID_COUNT, GPU, (WINDOW,), 0),
    (m.EXP_CLOCK_COUNT, GPU, (WINDOW, ("clock_event", "power_cap")), 10),
    (m.EXP_HEALTH, GPU, (("health_watch", "PCIE"), ("health_error_code", "DCGM_FR_OK")), 0),
    (m.EXP_P2P, GPU, (("peer_gpu", "0"), ("link_status", "OK")), 0),
    (LINK, GPU, (("nvlink", "3"),), 5),
    (LINK, None, (("nvswitch", "2"), ("nvlink", "3")), 6),
    (m.SWITCH_LINK, None, (("nvswitch", "nvswitch2"), ("nvlink", "3")), 2),
    (SWITCH, None, (("nvswitch", "2"), ("DCGM_FI_DRIVER_VERSION", "580.159.04")), 41),
    (CPU, None, (("cpu", "0"),), 39.5),
    (CORE, None, (("cpu", "0"), ("cpucore", "17")), 0.25),
]


def golden(schema: Schema) -> list[str]:
    """Return the sample lines."""
    return [line for line in (GOLDEN / FILES[schema]).read_text().splitlines() if not line.startswith("#")]


def name(metric: Metric, schema: Schema) -> str:
    """Return the id of a test."""
    return RENAMED.get(metric.name, (metric.name, 1.0))[0] if schema is Schema.SI else metric.name


@pytest.mark.parametrize("schema", Schema)
def test_labels_are_those_of_dcgm_exporter(schema: Schema) -> None:
    """Names, values and order, for every kind of entity."""
    lines = []
    for metric, gpu, own, _ in SERIES:
        pairs = (f'{key}="{text}"' for key, text in labels_of(Series(metric, gpu, own), "node-1", schema))
        lines.append(f"{name(metric, schema)}{{{','.join(pairs)}}}")

    assert lines == [line.rpartition(" ")[0] for line in golden(schema)]


@pytest.mark.parametrize("schema", Schema)
def test_a_page_has_the_same_lines(schema: Schema) -> None:
    """Rendered with values in the schema's unit, in the catalogue's order of families."""
    known = [each for each in SERIES if each[0] in m.METRICS]
    samples = tuple(Sample(Series(metric, gpu, own), value) for metric, gpu, own, value in known)
    page = (
        Renderer("node-1", selection=everything(schema=schema))
        .render(Snapshot(0, "nvml", samples))
        .body(Variant(False, False))
        .decode()
    )

    assert sorted(line for line in page.splitlines() if not line.startswith("#")) == sorted(
        line for line in golden(schema) if "_ROW" not in line
    )


def test_other_rows_of_type_label_take_their_place() -> None:
    """By name among the others, before dcgm-exporter's attributes; none if none are selected."""
    xid = Series(m.XID_ERRORS, GPU, (("err_code", "0"), ("err_msg", "No Error")))
    chosen = labels_of(xid, "node-1", rows=lambda gpu: (("DCGM_FI_DEV_SERIAL", "1"), ("DCGM_FI_DEV_BRAND", "x")))

    assert chosen[5:] == (
        ("Hostname", "node-1"),
        ("DCGM_FI_DEV_BRAND", "x"),
        ("DCGM_FI_DEV_SERIAL", "1"),
        ("err_code", "0"),
        ("err_msg", "No Error"),
    )
    assert "DCGM_FI_DRIVER_VERSION" not in dict(labels_of(xid, "node-1", rows=lambda gpu: ()))


def test_own_families_do_not_change() -> None:
    """A `gpu_*` family has the same labels in both schemas, whatever it belongs to."""
    own = [metric for metric in m.METRICS if not metric.classic]
    for metric in own:
        series = Series(metric, GPU, (("x", "y"),))
        assert labels_of(series, "node-1", Schema.SI) == labels_of(series, "node-1")
        assert {"hostname", "Hostname"}.isdisjoint(dict(labels_of(series, "node-1")))


def test_in_base_units_no_old_name_is_left() -> None:
    """Every family of the catalogue, once: what 4.9 renamed has its new name in headers and lines; types stay."""
    samples = tuple(Sample(Series(metric, GPU), 1.0) for metric in m.METRICS)
    pages = {
        schema: Renderer("node-1", selection=everything(schema=schema))
        .render(Snapshot(0, "nvml", samples))
        .body(Variant(False, False))
        for schema in Schema
    }
    words = set(pages[Schema.SI].decode().replace("{", " ").split())
    types = {
        schema: [line.split()[2:] for line in page.decode().splitlines() if line.startswith("# TYPE")]
        for schema, page in pages.items()
    }

    assert words & set(RENAMED) == set()
    assert [[RENAMED.get(family, (family, 1))[0], kind] for family, kind in types[Schema.CLASSIC]] == types[Schema.SI]
    assert len(pages[Schema.SI].splitlines()) == len(pages[Schema.CLASSIC].splitlines())


@given(st.sampled_from(sorted(FACTORS.values())), st.decimals(0, 10**9, places=3))
def test_values_are_converted_exactly(factor: float, value: Decimal) -> None:
    """Exact as decimal numbers: moved by a power of ten, or times 2^20."""
    expected = value * (Decimal(2) ** 20 if factor == 2.0**20 else Decimal(repr(factor)))

    assert converter(factor)(float(value)) == pytest.approx(float(expected), rel=1e-15)
    if factor != 2.0**20:
        assert converter(factor)(float(value)) == float(expected)


@pytest.mark.parametrize(
    ("factor", "value", "written"),
    [
        (1e-2, 57.0, "0.57"),
        (1e-2, 29, "0.29"),
        (1e6, 1980, "1980000000"),
        (1e6, 1125.3, "1125300000"),
        (1e-3, 2455539.0, "2455.539"),
        (2.0**20, 143770.0, "150753771520"),
        (1e-2, 1e-07, "1e-09"),
        (1e-2, 0.0, "0"),
        (1.0, 0.1, "0.1"),
    ],
)
def test_numbers_are_clean(factor: float, value: float, written: str) -> None:
    """A value with a short decimal form is written in that form."""
    assert number(converter(factor)(value)) == written
