"""dcgm-exporter's fields file: rows that Go's csv reader accepts are accepted, others are skipped with a warning."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.catalogue.selection import Family, Selection
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import EntityKind, Kind, Metric, MetricSet, Schema
from gpu_exporter.pipeline.fields_file import MOST_LINES, MOST_WARNINGS, FieldRow, FieldsFile, rows
from tests import ROOT

SHIPPED = ROOT / "deploy" / "dcgm-exporter"
TEMP = "DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C)."


def read(text: str | bytes, choice: MetricSet = MetricSet.DEFAULT) -> tuple[Selection, list[str]]:
    """Return the selection of a file, and its warnings."""
    return FieldsFile(Path("f.csv"), choice).select(text.encode() if isinstance(text, str) else text)


def classic(selection: Selection) -> dict[str, Family]:
    """Return the classic families that are exposed."""
    return {name: family for name, family in selection.families.items() if name.startswith("DCGM_")}


def only_in_dcgm(selection: Selection) -> list[Metric]:
    """Return what no source but DCGM can read or compute."""
    return [row for row in selection.read_rows if row.nvml is None and not row.sum_of]


def parsed(text: str) -> tuple[list[FieldRow], list[tuple[int, str]]]:
    """Return the rows of a text, and its warnings."""
    said: list[tuple[int, str]] = []
    return list(rows(text, lambda line, message: said.append((line, message)))), said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A,gauge,x", ("A", "gauge", "x")),
        ("  A ,  gauge ,  a help text.  ", ("A", "gauge", "a help text.")),
        ("A,gauge,x\r\n", ("A", "gauge", "x")),
        ("A,gauge,x\r", ("A", "gauge", "x")),
        ("\ufeffA,gauge,x", ("A", "gauge", "x")),
        ("\ufeff# comment\nA,gauge,x", ("A", "gauge", "x")),
        ('A,gauge,"one, two"', ("A", "gauge", "one, two")),
        ('A, gauge, "one, two"', ("A", "gauge", "one, two")),
        ('A,gauge,"say ""now"""', ("A", "gauge", 'say "now"')),
        ('"A","gauge","x"', ("A", "gauge", "x")),
        ('A,gauge,"one\ntwo"', ("A", "gauge", "one\ntwo")),
        ('A,gauge,"one\n# no comment\r\ntwo"\r\n', ("A", "gauge", "one\n# no comment\ntwo")),
        ('A,gauge,the 5" one', ("A", "gauge", 'the 5" one')),
        ("A,gauge,", ("A", "gauge", "")),
        ("\n   \n\r\n# c\n  # c\nA,gauge,x\n\n", ("A", "gauge", "x")),
        ("A,GAUGE,x", ("A", "gauge", "x")),
        ("A,gauge,# not a comment", ("A", "gauge", "# not a comment")),
    ],
)
def test_rows_are_read_as_by_go(text: str, expected: tuple[str, str, str]) -> None:
    """Comments, spaces, quotes, ends of lines, byte order marks."""
    found, said = parsed(text)

    assert [row[2:] for row in found] == [expected]
    assert said == []


@pytest.mark.parametrize(
    ("text", "id", "name"),
    [
        ("150,DCGM_FI_DEV_GPU_TEMP,gauge,x", 150, "DCGM_FI_DEV_GPU_TEMP"),
        ("150, gauge, x", 150, ""),
        ("150, DCGM_FI_DEV_GPU_TEMP, label, x", 150, "DCGM_FI_DEV_GPU_TEMP"),
    ],
)
def test_a_row_may_begin_with_an_id(text: str, id: int, name: str) -> None:
    """Followed by a name, or not."""
    found, said = parsed(text)

    assert [(row.id, row.name) for row in found] == [(id, name)]
    assert said == []


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("A", 1, "'A': 1 columns instead of name, type, help; the row is skipped"),
        ("A,gauge", 1, "'A': 2 columns instead of name, type, help; the row is skipped"),
        ("\n\nA,gauge,x,y", 3, "'A': 4 columns instead of name, type, help (quote a help text that has commas)"),
        ("A,gague,x", 1, "'A': 'gague' is not a type; did you mean gauge?; the row is skipped"),
        ("A,,x", 1, "'A': '' is not a type"),
        (",,", 1, "'': '' is not a type"),
        ('# c\nA,gauge,"x', 2, "a quote is not closed"),
        ('A,gauge,"x" y', 1, "a quote is not closed, or is followed by more text"),
        ("150", 1, "'150': 1 columns"),
        ("150,gauge", 1, "'150': 2 columns"),
        ("x" * 1000, 1, f"'{'x' * 60}…': 1 columns"),
    ],
)
def test_faulty_rows_are_named_with_their_line(text: str, line: int, message: str) -> None:
    """One warning each; the other rows count."""
    found, said = parsed(f"{text}\nB,gauge,y")

    assert [row.name for row in found] == ["B"]
    assert [(at, text[: len(message)]) for at, text in said] == [(line, message)]


def test_an_unterminated_quote_affects_only_its_row() -> None:
    """It hides only its own lines, and takes no time."""
    begin = time.process_time()
    found, said = parsed(('A,gauge,"x\n' + "B,gauge,y\n" * MOST_LINES) * 100 + 'C,gauge,"')

    assert [row.name for row in found] == ["B"] * MOST_LINES * 100
    assert [line for line, _ in said] == [1 + n * (MOST_LINES + 1) for n in range(101)]
    assert time.process_time() - begin < 10


def test_the_shipped_default_counters_load() -> None:
    """dcgm-exporter's own list: all fields are known; one is not in NVML."""
    selection, said = read((SHIPPED / "default-counters.csv").read_bytes())

    assert said == []
    families = classic(selection)
    assert len(families) == 25
    assert families["DCGM_FI_DEV_DEC_UTIL"] == Family("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).")
    assert families["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"].kind == "counter"
    foreign = {row.name: (row.dcgm, row.kind, row.entity) for row in only_in_dcgm(selection)}
    assert foreign == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS": (526, Kind.GAUGE, EntityKind.GPU)}
    assert selection.labels == (("DCGM_FI_DRIVER_VERSION", "driver"),)
    assert m.XID_ERRORS.name in families  # counted from events: exposed, not read
    assert m.XID_ERRORS not in selection.read_rows


def test_the_example_of_the_page_loads() -> None:
    """Every row is used."""
    _, _, rest = (ROOT / "docs" / "dcgm-exporter.md").read_text().partition("```csv\n")
    text, _, _ = rest.partition("```")
    selection, said = read(text)
    assert said == []
    assert len(classic(selection)) + len(selection.labels) == len(text.splitlines()) - 1


def test_a_help_text_in_another_unit_is_not_kept() -> None:
    """dcgm-exporter's "(in mJ)" would be wrong for joules; a help text for the new name is kept."""
    text = (SHIPPED / "default-counters.csv").read_text() + "DCGM_FI_DEV_BAR1_USED_BYTES, gauge, Mine (in B).\n"
    selection, said = FieldsFile(Path("fields.csv"), schema=Schema.SI).select(text.encode())

    assert said == []
    families = classic(selection)
    assert families["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].name == "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"
    assert families["DCGM_FI_DEV_GPU_TEMP"].help == "GPU temperature (in C)."
    assert families["DCGM_FI_DEV_BAR1_USED"].help == "Mine (in B)."
    converted = {name: shown.help for name, shown in families.items() if shown.factor != 1.0}
    assert len(converted) > 8
    assert not [help for name, help in converted.items() if "(in " in help and name != "DCGM_FI_DEV_BAR1_USED"]


def test_the_shipped_list_with_profiling_loads() -> None:
    """The same fields; rows that are commented out are not selected."""
    selection, said = read((SHIPPED / "dcp-metrics-included.csv").read_bytes())

    assert said == []
    assert len(classic(selection)) == 25
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in selection.families
    assert "DCGM_FI_PROF_SM_ACTIVE" not in selection.families


def test_the_shipped_list_of_old_names_loads() -> None:
    """Exposed by the names in the file. Two fields are in it twice: the first row counts, as in dcgm-exporter."""
    selection, said = read((SHIPPED / "1.x-compatibility-metrics.csv").read_bytes())

    assert said == [
        "f.csv, line 65: dcgm_fi_prof_pcie_tx_bytes: line 18 already has this field; the row is skipped",
        "f.csv, line 66: dcgm_fi_prof_pcie_rx_bytes: line 19 already has this field; the row is skipped",
    ]
    assert selection.families["DCGM_FI_DEV_GPU_TEMP"].name == "dcgm_gpu_temp"
    assert {family.name for family in classic(selection).values() if family.name.startswith("DCGM_")} == set()
    assert len(classic(selection)) == 20
    assert selection.labels == ()


def test_every_commented_row_of_the_shipped_lists_can_be_switched_on() -> None:
    """Without the `#` of each row, all of them are selected."""
    text = (SHIPPED / "default-counters.csv").read_text().replace("# DCGM_FI", "DCGM_FI")
    selection, said = read(text)

    assert [line for line in said if "already has this field" not in line] == []
    assert len(said) == 2
    assert len(classic(selection)) == 48
    assert dict(selection.labels) == {
        "DCGM_FI_DRIVER_VERSION": "driver",
        "DCGM_FI_NVML_VERSION": "nvml_version",
        "DCGM_FI_DEV_BRAND": "brand",
        "DCGM_FI_DEV_SERIAL": "serial",
        "DCGM_FI_DEV_OEM_INFOROM_VER": "oem_inforom_version",
        "DCGM_FI_DEV_ECC_INFOROM_VER": "ecc_inforom_version",
        "DCGM_FI_DEV_POWER_INFOROM_VER": "power_inforom_version",
        "DCGM_FI_DEV_INFOROM_IMAGE_VER": "inforom_version",
        "DCGM_FI_DEV_VBIOS_VERSION": "vbios_version",
    }


@pytest.mark.parametrize(
    ("name", "metric", "value", "text"),
    [
        ("DCGM_FI_DEV_MIG_MODE", m.MIG_MODE, 1.0, "1"),
        ("DCGM_FI_DEV_COUNT", m.GPU_COUNT, 8.0, "8"),
        ("DCGM_FI_DEV_FB_TOTAL", m.FB_TOTAL, 143156.4, "143156"),
        ("DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", m.MAX_SM_CLOCK, 1980.0, "1980000000"),
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", m.POWER_LIMIT, 700.0, "700.000000"),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", m.GPU_UTIL, 57.0, "0.570000"),
    ],
)
def test_a_number_may_be_a_label(name: str, metric: Metric, value: float, text: str) -> None:
    """It is read and not exposed. Its text is what Go prints for an integer or a double."""
    selection, _ = read(f"{TEMP}\n{name}, label, x")
    (label,) = selection.value_labels

    assert (label.name, label.metric, label.text(value)) == (name, metric, text)
    assert metric in selection.read_rows
    assert list(classic(selection)) == ["DCGM_FI_DEV_GPU_TEMP"]


@pytest.mark.parametrize(
    ("name", "changes", "per_instance"),
    [
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", True, False),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", True, False),
        ("DCGM_FI_PROF_SM_ACTIVE", True, True),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", True, False),
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", True, False),
        ("DCGM_FI_DEV_FB_TOTAL", False, True),
        ("DCGM_FI_DEV_MIG_MODE", False, False),
        ("DCGM_FI_DEV_COUNT", False, False),
        ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", False, False),
    ],
)
def test_a_poor_label_is_honoured_with_a_warning(name: str, changes: bool, per_instance: bool) -> None:
    """A value that changes makes new series all the time; in MIG mode, values of instances are no labels."""
    selection, said = read(f"{TEMP}\n{name}, label, x")

    assert [label.name for label in selection.value_labels] == [name]
    assert len(said) == (changes or per_instance)
    assert all(text.startswith(f"f.csv, line 2: {name}: ") for text in said)
    assert ("every classic series" in "".join(said), "MIG mode" in "".join(said)) == (changes, per_instance)


def test_a_number_that_only_dcgm_has_may_be_a_label() -> None:
    """As it may be a gauge."""
    selection, said = read("DCGM_FI_DEV_CPU_AFFINITY_0, label, x")

    assert said == []
    assert [row.name for row in only_in_dcgm(selection)] == ["DCGM_FI_DEV_CPU_AFFINITY_0"]
    assert [label.name for label in selection.value_labels] == ["DCGM_FI_DEV_CPU_AFFINITY_0"]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("DCGM_FI_PROCESS_NAME", sys.argv[0]),
        ("DCGM_FI_SYSTEM_PROCESS_NAME", sys.argv[0]),
        ("DCGM_FI_CUDA_DRIVER_VERSION", "13010"),
        ("DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", str(9 << 16)),
        ("DCGM_FI_DEV_MINOR_NUMBER", "3"),
    ],
)
def test_constants_as_labels(row: str, text: str) -> None:
    """The path of this process, as that of dcgm-exporter or nv-hostengine; versions as DCGM's numbers."""
    gpu = Gpu(0, device="nvidia3", info=(("cuda_version", "13.1"), ("compute_capability", "9.0")))

    assert read(f"{row}, label, x")[0].label_rows(gpu) == ((row, text),)
    assert read("DCGM_FI_CUDA_DRIVER_VERSION, label, x")[0].label_rows(Gpu(0))[0][1] == ""


@pytest.mark.parametrize("name", ["dcgm-exporter.csv", "dcgm-exporter-4.9.csv"])
def test_own_lists_for_dcgm_exporter_load(name: str) -> None:
    """With the names and units of the file."""
    content = (ROOT / "alerts" / name).read_bytes()
    selection, said = read(content)

    assert said == []
    listed = {row.name for row in rows(content.decode(), lambda *_: None)}
    assert {family.name for family in classic(selection).values()} == listed
    assert len(listed) > 30


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "DCGM_FI_DEV_GPU_TMEP, gauge, x",
            "is not a field of DCGM; did you mean DCGM_FI_DEV_GPU_TEMP?; the row is skipped",
        ),
        ("DCGM_EXP_NONE_SUCH, counter, x", "'DCGM_EXP_NONE_SUCH' is not a field of DCGM"),
        ("99999, gauge, x", "'99999' is not a field of DCGM"),
        ("151, DCGM_FI_DEV_FB_USED, gauge, x", "DCGM_FI_DEV_FB_USED is field 252, not 151; its name is used"),
        ("DCGM_FI_DEV_SERIAL, gauge, x", "DCGM_FI_DEV_SERIAL is text; only a row of type label can expose it"),
        ("DCGM_FI_SYNC_BOOST, label, x", "DCGM_FI_SYNC_BOOST cannot be a label; the row is skipped"),
        ("DCGM_FI_DEV_XID_ERRORS, label, x", "DCGM_FI_DEV_XID_ERRORS cannot be a label"),
        ("DCGM_EXP_P2P_STATUS, label, x", "DCGM_EXP_P2P_STATUS cannot be a label"),
        ("DCGM_FI_DEV_CPU_UTIL_TOTAL, label, x", "DCGM_FI_DEV_CPU_UTIL_TOTAL cannot be a label"),
        ("DCGM_FI_DEV_SUPPORTED_TYPE_INFO, gauge, x", "DCGM_FI_DEV_SUPPORTED_TYPE_INFO is not a number"),
        ("DCGM_FI_DEV_FB_USED, histogram, x", "exposed as a gauge, not as a histogram"),
        ("DCGM_FI_DEV_GPU_TEMP, counter, x", "line 1 already has this field"),
        ("dcgm_gpu_temp, gauge, x", "line 1 already has this field"),
        ("gpu_energy_joules_total, counter, x", "only names that begin with DCGM_ belong here; use --metrics"),
        ("DCGM_FI_DEV_CONNECTX_HEALTH, gauge, x", "is a field of an unsupported entity"),
    ],
)
def test_a_row_that_selects_nothing_is_one_warning(row: str, message: str) -> None:
    """It names the line, and is never fatal."""
    selection, said = read(f"{TEMP}\n\n{row}\n")

    assert selection.families["DCGM_FI_DEV_GPU_TEMP"].help == "GPU temperature (in C)."
    assert len(said) == 1
    assert said[0].startswith("f.csv, line 3: ")
    assert message in said[0]


def test_a_wrong_id_is_only_a_warning() -> None:
    """It is ignored if there is a name; an id alone is enough."""
    assert "DCGM_FI_DEV_FB_USED" in read("151, DCGM_FI_DEV_FB_USED, gauge, x")[0].families
    assert read("252, DCGM_FI_DEV_FB_USED, gauge, x")[1] == []
    assert classic(read("252, gauge, x")[0]) == {"DCGM_FI_DEV_FB_USED": Family("DCGM_FI_DEV_FB_USED", "gauge", "x")}


def test_type_and_help_are_those_of_the_file() -> None:
    """Even if wrong: dashboards may depend on them."""
    (family,) = classic(read('DCGM_FI_PROF_PCIE_TX_BYTES,counter,"All, of ""it"""')[0]).values()

    assert family == Family("DCGM_FI_PROF_PCIE_TX_BYTES", "counter", 'All, of "it"')
    assert classic(read("DCGM_FI_DEV_GPU_TEMP,gauge,")[0])["DCGM_FI_DEV_GPU_TEMP"].help == m.GPU_TEMP.help


@pytest.mark.parametrize(
    ("name", "metric", "factor"),
    [
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "DCGM_FI_DEV_GPU_TEMP", 1.0),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", "DCGM_FI_DEV_SM_CLOCK", 1e6),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL", 0.01),
        ("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_USED", 2.0**20),
        ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),
    ],
)
def test_a_newer_name_is_shown_in_its_own_unit(name: str, metric: str, factor: float) -> None:
    """From the same reading: no field is read twice because it is exposed under two names."""
    selection, said = read(f"{name}, gauge, x")

    assert said == []
    assert classic(selection) == {metric: Family(name, "gauge", "x", factor)}


def test_a_field_of_the_full_set_is_read() -> None:
    """It is exposed, while its integral depends on `--metrics`."""
    selection, _ = read("DCGM_FI_PROF_NVDEC0_ACTIVE, gauge, x")
    nvdec = m.BY_KEY["DCGM_FI_PROF_NVDEC0_ACTIVE"]

    assert nvdec not in selected(MetricSet.DEFAULT)
    assert nvdec in selection.read_rows
    assert "gpu_nvdec_active_seconds_total" not in selection.families
    assert "gpu_nvdec_active_seconds_total" in read(TEMP, choice=MetricSet.FULL)[0].families


def test_hidden_gauges_are_read_for_own_families() -> None:
    """Integrals, health and diagnosis work with any file."""
    selection, _ = read(TEMP)

    assert set(selected(MetricSet.DEFAULT)) <= set(selection.read_rows)
    assert list(classic(selection)) == ["DCGM_FI_DEV_GPU_TEMP"]
    assert {"gpu_sm_active_seconds_total", "gpu_up", "gpu_health_state"} <= selection.families.keys()


@pytest.mark.parametrize(
    ("text", "hidden", "shown"),
    [
        ("DCGM_FI_DEV_GPU_TEMP,gauge,x", {m.SM_CLOCK, m.SM_ACTIVE, m.CLOCK_EVENTS}, {m.GPU_TEMP, m.ENERGY_JOULES}),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL,gauge,x", {m.SM_CLOCK}, {m.NVLINK_TX, m.NVLINK_RX}),  # its parts
        ("DCGM_FI_DEV_GPU_TEMP,gauge,x\nDCGM_FI_DEV_SM_CLOCK,label,x", {m.MEM_CLOCK}, {m.SM_CLOCK}),
        ("DCGM_EXP_CLOCK_EVENTS_COUNT,gauge,x", {m.SM_CLOCK}, {m.CLOCK_EVENTS}),
    ],
)
def test_rows_that_need_not_be_read_at_each_collection(text: str, hidden: set[Metric], shown: set[Metric]) -> None:
    """They are not exposed, and neither is what is made of each of their values."""
    selection, _ = read(text)
    assert hidden <= selection.hidden_rows
    assert shown.isdisjoint(selection.hidden_rows)


def test_a_reload_keeps_metric_objects() -> None:
    """A series is identified by its metric, and must not end because a file was read again."""
    file, text = FieldsFile(Path("f.csv")), "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0, gauge, x"
    (first,) = only_in_dcgm(file.select(text.encode())[0])
    (second,) = only_in_dcgm(file.select(f"{TEMP}\n{text} y".encode())[0])

    assert first is second
    assert (first.dcgm, first.entity, first.unit) == (440, EntityKind.GPU, "MB/s")


@pytest.mark.parametrize(
    ("name", "entity", "per_instance"),
    [
        ("DCGM_FI_DEV_NVSWITCH_VOLTAGE_MVOLT", EntityKind.NVSWITCH, False),
        ("DCGM_FI_DEV_CPU_TEMP_CURRENT", EntityKind.CPU, False),
        ("DCGM_FI_DEV_CPU_UTIL_USER", EntityKind.CPU_CORE, False),
        ("DCGM_FI_DEV_NVLINK_PPRM_OPER_RECOVERY", EntityKind.NVLINK, False),
        ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", EntityKind.GPU, False),
        ("DCGM_FI_BIND_UNBIND_EVENT", EntityKind.GPU, False),
    ],
)
def test_other_fields_become_metrics_of_their_entity(name: str, entity: EntityKind, per_instance: bool) -> None:
    """The entity is that of the level in DCGM's table."""
    (row,) = only_in_dcgm(read(f"{name}, gauge, help")[0])

    assert (row.name, row.entity, row.per_instance) == (name, entity, per_instance)
    assert row.low < 0 < row.high


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f.csv selects no field: it is empty; add a row"),
        (b"\xef\xbb\xbf\n# only a comment\n", "f.csv selects no field: it is empty; add a row"),
        (b"\x02\x01\x02", "f.csv selects no field: line 1: '\\x02\\x01\\x02': 1 columns instead of"),
        (b"nonsense, gauge, x", "f.csv selects no field: line 1: 'nonsense' is not a field of DCGM"),
    ],
)
def test_a_file_that_selects_nothing_is_refused(content: bytes, message: str) -> None:
    """A truncated file must not remove all metrics."""
    with pytest.raises(GpuExporterError) as error:
        read(content)

    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_invalid_utf8_is_replaced_with_one_warning() -> None:
    """A help text in another encoding loses only its invalid bytes."""
    selection, said = read(b"# \xfcber\n" + TEMP.encode() + b" \xb0C\n")

    assert said == ["f.csv, line 1: not UTF-8; the invalid bytes are replaced"]
    assert selection.families["DCGM_FI_DEV_GPU_TEMP"].help == "GPU temperature (in C). \ufffdC"


def test_file_in_another_format_causes_few_warnings() -> None:
    """Thousands of faulty rows cause a few warnings, the number of the others, and no delay."""
    begin = time.process_time()
    selection, said = read(f"{TEMP}\n" + "".join(f"DCGM_FI_DEV_GPU_THING_{n}, gauge, x\n" for n in range(20_000)))

    assert list(classic(selection)) == ["DCGM_FI_DEV_GPU_TEMP"]
    assert len(said) == MOST_WARNINGS + 1
    assert said[-1] == f"f.csv: {20_000 - MOST_WARNINGS} more faulty rows"
    assert time.process_time() - begin < 10


NAMES = (
    "DCGM_FI_DEV_GPU_TEMP",
    "150",
    "DCGM_EXP_XID_ERRORS_COUNT",
    "dcgm_fb_used",
    "gauge",
    "counter",
    "label",
    "summary",
)
MARKS = (",", ",", " ", '"', '""', "\n", "\r\n", "\r", "#", "\x00", "\ufeff", "x", "é")
PIECES = st.sampled_from((*NAMES, *MARKS))


@given(st.lists(PIECES, max_size=40).map("".join).map(str.encode) | st.binary(max_size=200))
@example(b'"')
@example(b'150,,"')
@example(b"0,label,")
@example(b"000000000,gauge,")
def test_no_content_causes_a_traceback(content: bytes) -> None:
    """Any content results in a selection or an error of one line."""
    said: list[str] = []
    try:
        said += read(content)[1]
    except GpuExporterError as error:
        said.append(str(error))

    assert not any("\n" in line for line in said)
