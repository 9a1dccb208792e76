"""The catalogue of metrics is consistent with itself and the bindings."""

import re
from dataclasses import replace

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue.metrics import METRICS, MILLI, NANO, PERCENT, by_key, selected
from gpu_exporter.model.metric import Call, Gpm, Kind, Metric, MetricSet, scaled
from gpu_exporter.sources.nvml.handle import ADAPTERS
from tests.support.table import table_test

FULL = selected(MetricSet.FULL)


def test_duplicate_keys_are_an_error() -> None:
    """The module checks its own rows when it is imported; rows of one name differ in their labels."""
    row, labelled = (Metric("gpu_x", Kind.GAUGE, "ratio", "X.", labels=labels) for labels in ((), (("part", "1"),)))

    assert list(by_key([("ROW", row), ("LABELLED", (labelled,)), ("OTHER", 1)])) == ["gpu_x", 'gpu_x{part="1"}']
    for again in (row, (labelled, replace(row))):
        message = (
            "catalogue/metrics.py: ROW and AGAIN are both gpu_x: remove one, or give it another name or other labels"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            by_key([("ROW", row), ("AGAIN", again)])


@table_test("metric", METRICS, lambda metric: metric.key)
def test_a_row_is_well_formed(metric: Metric) -> None:
    """Ranges are valid, `gpu_*` names follow Prometheus, and a family has one kind, unit and label set."""
    assert metric.low < metric.high
    assert metric.help.endswith(".")
    if not metric.classic:
        assert metric.name == metric.name.lower()
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
    family = [row for row in METRICS if row.name == metric.name]
    assert {(row.kind, row.unit, tuple(dict(row.labels))) for row in family} == {
        (metric.kind, metric.unit, tuple(dict(metric.labels)))
    }


def test_every_profiling_ratio_and_rate_has_an_integral() -> None:
    """Counters can be evaluated over any window, unlike GPM's ratios."""
    integrated = {row.integral_of for row in METRICS}

    assert [row.key for row in FULL if isinstance(row.nvml, Gpm) and row not in integrated] == []


def test_dcgm_ids_are_not_shared_by_different_fields() -> None:
    """A DCGM field id has one NVML source, whatever is computed from it."""
    sources: dict[int, set[object]] = {}
    for row in FULL:
        if row.dcgm is not None:
            sources.setdefault(row.dcgm, set()).add(row.nvml)

    assert {field: found for field, found in sources.items() if len(found) > 1} == {}


@pytest.mark.drift
@pytest.mark.parametrize("name", sorted({row.nvml.name for row in FULL if isinstance(row.nvml, Call)} - set(ADAPTERS)))
def test_the_bindings_have_every_call(name: str) -> None:
    """Every call of the catalogue is a function of the oldest supported bindings, unless an adapter makes it."""
    assert hasattr(pynvml, f"nvmlDeviceGet{name}"), (
        "fix: rename the call in gpu_exporter/catalogue/metrics.py, or add an adapter to gpu_exporter/sources/nvml/"
    )


def test_one_gpm_call_is_enough() -> None:
    """A request of the oldest supported bindings has room for 98 ids; a GPU has at most 18 links today."""
    ids = sum(18 if row.nvml.stride else 1 for row in FULL if isinstance(row.nvml, Gpm))

    assert ids <= 98


@given(st.integers(0, 2**50), st.sampled_from(((PERCENT, 2), (MILLI, 3), (NANO, 9))))
def test_a_decimal_fraction_of_a_unit_keeps_its_digits(raw: int, unit: tuple[float, int]) -> None:
    """Computed from the decimal text of the number: 689.199 W, not 689.1990000000001."""
    scale, places = unit
    assert scaled(raw, scale) == float(f"{raw}e-{places}")
