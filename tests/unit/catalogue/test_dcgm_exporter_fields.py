"""The table of DCGM's fields agrees with the catalogue and with itself."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gpu_exporter.catalogue.dcgm_exporter import fields as dcgm_fields
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.pipeline.fields_file import LEVELS

CORRECT_TABLE = "fix: correct the row in gpu_exporter/catalogue/dcgm_exporter/fields.csv"
CORRECT_ID = (
    "fix: correct the row in gpu_exporter/catalogue/metrics.py or gpu_exporter/catalogue/dcgm_exporter/fields.csv"
)
CORRECT_NAMES = "fix: correct the row of the file in gpu_exporter/catalogue/dcgm_exporter/ that has the name"

FIELDS = dcgm_fields.load()


@pytest.mark.drift
def test_names_and_ids_are_unique() -> None:
    """Otherwise a file could select another field than it names."""
    names = Counter(name for field in FIELDS.by_id.values() for name in (field.name, *field.also))

    assert {name: n for name, n in names.items() if n > 1} == {}, CORRECT_TABLE
    assert len(names) == len(FIELDS.by_name) > 1000, CORRECT_TABLE
    assert len(FIELDS.by_id) > 600, CORRECT_TABLE


@pytest.mark.drift
def test_every_classic_metric_is_a_field_of_its_name_and_id() -> None:
    """Catalogue and table were written independently."""
    for row in METRICS:
        if row.classic and row.name in FIELDS.by_name:
            assert (row.name, FIELDS.by_name[row.name].id) == (row.name, row.dcgm), CORRECT_ID
    read = {row.name for row in METRICS if row.dcgm is not None and row.classic and row.nvml is not None}
    assert read <= FIELDS.by_name.keys(), CORRECT_ID


@pytest.mark.drift
def test_names_of_all_versions_resolve() -> None:
    """A field's names in DCGM 1.x, up to 4.5, and since 4.6."""
    for names in (
        ("dcgm_gpu_temp", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("dcgm_nvlink_bandwidth_total", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL"),
        ("dcgm_fi_prof_pipe_tensor_active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    ):
        assert len({FIELDS.by_name[name].id for name in names}) == 1, CORRECT_NAMES
    assert [name for name in DEFAULT_FIELDS if name not in FIELDS.by_name] == [], CORRECT_NAMES
    same_unit = {old: new for old, (new, factor) in RENAMED.items() if factor == 1.0 and new in FIELDS.by_name}
    assert len(same_unit) > 40, CORRECT_NAMES
    for old, new in same_unit.items():
        assert FIELDS.by_name[old].id == FIELDS.by_name[new].id, CORRECT_NAMES


@pytest.mark.drift
def test_types_and_levels_are_known() -> None:
    """A source depends on them; with examples of each kind."""
    types = Counter(field.type for field in FIELDS.by_id.values())
    levels = Counter(field.level for field in FIELDS.by_id.values())

    assert types.keys() == {"int", "double", "string", "binary"}, CORRECT_TABLE
    assert levels.keys() == {*LEVELS, "connectx"}, CORRECT_TABLE
    for name, type, level in (
        ("DCGM_FI_DRIVER_VERSION", "string", "none"),
        ("DCGM_FI_PROF_SM_ACTIVE", "double", "instance"),
        ("DCGM_FI_DEV_GPU_TEMP", "int", "gpu"),
        ("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", "int", "switch"),
        ("DCGM_FI_DEV_CPU_UTIL_TOTAL", "double", "cpu_core"),
        ("DCGM_FI_DEV_NVLINK_PPRM_OPER_RECOVERY", "int", "link"),
    ):
        assert (name, FIELDS.by_name[name].type, FIELDS.by_name[name].level) == (name, type, level), CORRECT_TABLE


def test_suggestion_for_a_misspelt_name() -> None:
    """In any case, too."""
    assert FIELDS.nearest("DCGM_FI_DEV_GPU_TMEP") == "; did you mean DCGM_FI_DEV_GPU_TEMP?"
    assert FIELDS.nearest("dcgm_fi_dev_fb_used") == "; did you mean DCGM_FI_DEV_FB_USED?"
    assert FIELDS.nearest("temperature of the coffee") == ""


@pytest.mark.drift
def test_the_table_names_its_sources() -> None:
    """With versions and dates."""
    head = dcgm_fields.PACKAGED.read_text().splitlines()[0]

    assert re.fullmatch(
        r"# .*DCGM 4\.5\.3 \(20\d\d-\d\d-\d\d\) and 4\.6\.0 \(20\d\d-\d\d-\d\d\).*go-dcgm \(20.*\)", head
    ), "fix: name the versions and dates in the first line of gpu_exporter/catalogue/dcgm_exporter/fields.csv"
