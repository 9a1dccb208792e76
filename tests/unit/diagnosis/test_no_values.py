"""Pages of dcgm-exporter that people showed in issues: blanks, texts instead of numbers, impossible utilisation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.conditions.signal import STOPPED_INFO, Read
from gpu_exporter.diagnosis.gather import WatchedScrapes
from gpu_exporter.diagnosis.no_values import values_of, with_values
from gpu_exporter.diagnosis.remote_scrapes import QueryAnswer, scrapes_of
from gpu_exporter.diagnosis.report import as_json
from gpu_exporter.diagnosis.result import diagnose_scrapes
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.text_format import TextParser, parsed
from gpu_exporter.io.decoding import json_as

LABELS = 'gpu="0",UUID="GPU-1",modelName="NVIDIA A800-SXM4-80GB"'
INT_BLANK, DOUBLE_BLANK = "9223372036854775794", "140737488355328.000000"
IDLE = f"""# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 0
DCGM_FI_DEV_FB_USED{{{LABELS}}} 2
"""


def values(page: str) -> list[tuple[str, float]]:
    return [(sample.name, float(sample.value)) for sample in values_of(page, TextParser(), StoppedCounters())]


def diagnosed(page: str) -> dict[str, object]:
    samples = values_of(page, TextParser(), StoppedCounters())
    watched = WatchedScrapes([Scrape(1000.0, samples), Scrape(1020.0, samples)], "", 20.0)
    (gpu,) = as_json(diagnose_scrapes(watched))["gpus"]
    assert isinstance(gpu, dict)
    return gpu


@pytest.mark.parametrize(
    "text", ["ERROR - FAILED TO CONVERT TO STRING", "", "N/A", "<<<NOT_SUPPORTED>>>", "NOT_FOUND # comment"]
)
def test_a_text_is_no_value(text: str) -> None:
    """One field that dcgm-exporter cannot convert does not hide all GPUs."""
    page = (
        f"{IDLE}DCGM_FI_DEV_VGPU_PER_PROCESS_UTILIZATION{{{LABELS}}} {text}\nDCGM_FI_DEV_FB_FREE{{{LABELS}}} 7 1700\n"
    )
    assert values(page) == [*values(IDLE), ("DCGM_FI_DEV_FB_FREE", 7)]


@pytest.mark.parametrize(
    "page",
    [
        "<html>\n<body>{gpu}</body>",
        '{"status": "success"}',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0" 1\n',
        'a{b="c} 1\n',
        "a b c\n",
    ],
)
def test_what_is_no_page_is_refused(page: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - as prometheus_client says it
        values_of(page, TextParser(), StoppedCounters())


@pytest.mark.parametrize(
    "blank", [INT_BLANK, "9223372036854775792", "9.223372036854776e+18", DOUBLE_BLANK, "2147483633"]
)
def test_blanks_are_no_values(blank: str) -> None:
    page = f"{IDLE}DCGM_FI_DEV_MEMORY_TEMP{{{LABELS}}} {blank}\nnode_memory_bytes {blank}\n"
    assert values(page) == [*values(IDLE), ("node_memory_bytes", float(blank))]


@pytest.mark.parametrize("value", ["2147483631", "2147483636", "140737488355332", "1e18", "NaN"])
def test_other_large_values_are_kept(value: str) -> None:
    name, number = values(f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS}}} {value}\n")[0]
    assert name == "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    assert number == float(value) or math.isnan(number)


def test_a_page_with_values_is_not_copied() -> None:
    samples = parsed(IDLE)
    assert values_of(IDLE, lambda page: samples, StoppedCounters()) is samples


def test_blanks_make_no_gpu_busy() -> None:
    names = "GR_ENGINE_ACTIVE", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE", "DRAM_ACTIVE"
    blanks = "".join(f"DCGM_FI_PROF_{name}{{{LABELS}}} {DOUBLE_BLANK}\n" for name in names)
    traffic = f"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{{{LABELS}}} {INT_BLANK}\n"
    assert diagnosed(IDLE + blanks + traffic)["class"] == diagnosed(IDLE)["class"] == "idle"


@pytest.mark.parametrize("value", [4294967295, 131072, 151])
def test_an_impossible_utilisation_is_no_value(value: int) -> None:
    """DCGM sometimes reports one of idle GPUs, too."""
    gpu = diagnosed(IDLE.replace("} 0\n", f"}} {value}\n", 1))
    assert gpu["class"] is None


def test_of_an_impossible_value_the_others_count() -> None:
    name = "DCGM_FI_DEV_GPU_UTIL"
    labels = {"gpu": "0", "UUID": "GPU-1"}
    scrapes = [Scrape(1000.0 + t, [ScrapedSample(name, labels, 4294967295.0 if t == 5 else 0.0)]) for t in range(20)]
    (gpu,) = as_json(diagnose_scrapes(WatchedScrapes(scrapes, "", 20.0)))["gpus"]
    assert gpu["class"] == "idle"


BUSY = f"""DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 99
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS}}} 0.000000
DCGM_FI_PROF_DRAM_ACTIVE{{{LABELS}}} 0.000000
DCGM_FI_PROF_PCIE_TX_BYTES{{{LABELS}}} 0
"""


def test_counters_that_have_stopped() -> None:
    """After an XID, DCGM reports 0 of a busy GPU. What it reports of others counts."""
    other = BUSY.replace("GPU-1", "GPU-2").replace("0.000000", "0.9")
    names = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    assert values(BUSY) == [(names[0], 99), (STOPPED_INFO, 1.0)]
    assert [
        sample.labels["UUID"]
        for sample in values_of(BUSY + other, TextParser(), StoppedCounters())
        if sample.name == names[1]
    ] == ["GPU-2"]
    gpu = diagnosed(BUSY)
    assert (gpu["class"], gpu["quality"]) == (None, "approximate")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("} 99", "} 9"),
        ("} 99", "} 4294967295"),
        ("ENGINE_ACTIVE", "ENGINE_OTHER"),
        ("DRAM_ACTIVE", "DRAM_OTHER"),
        ("TX_BYTES", "TX_BYTES"),
    ],
)
def test_counters_that_may_be_right(old: str, new: str) -> None:
    """The GPU is hardly used, how much is unknown, or it is only known that no kernel runs, or data moves."""
    page = BUSY.replace(old, new)
    page = page.replace("} 0\n", "} 7\n") if old == new else page
    assert len(values(page)) == 4


def test_counters_of_the_new_names() -> None:
    names = {
        "DCGM_FI_DEV_GPU_UTIL": "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "GR_ENGINE_ACTIVE": "GR_ENGINE_UTIL_RATIO",
        "DRAM_ACTIVE": "DRAM_UTIL_RATIO",
        "} 99": "} 0.99",
    }
    page = BUSY
    for old, new in names.items():
        page = page.replace(old, new)
    assert values(page) == [("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.99), (STOPPED_INFO, 1.0)]


def test_the_samples_of_a_prometheus() -> None:
    """They are read in the same way."""
    series = [
        {"metric": {"__name__": sample.name} | dict(sample.labels), "values": [[1000.0, repr(float(sample.value))]]}
        for sample in parsed(f"{BUSY}DCGM_FI_DEV_MEMORY_TEMP{{{LABELS}}} {INT_BLANK}\n")
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    (scrape,) = scrapes_of(json_as(QueryAnswer, json.dumps(answer)))
    assert [sample.name for sample in scrape.samples] == ["DCGM_FI_DEV_GPU_UTIL", STOPPED_INFO]


KEPT = f"""DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 0
DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 120.5
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS}}} 0.95
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{LABELS}}} 0.9
DCGM_FI_PROF_PCIE_RX_BYTES{{{LABELS}}} 7000000
DCGM_FI_PROF_PCIE_TX_BYTES{{{LABELS}}} 7000000
"""


def minute(step: int) -> Sequence[ScrapedSample]:
    """Return the samples of an idle GPU that keeps the counters of a busy one, and of one that is busy."""
    kept = KEPT.replace("120.5", f"12{step}.5")
    return parsed(kept + kept.replace("GPU-1", "GPU-2").replace("} 7000000", f"}} 700000{step}"))


def test_counters_that_keep_their_values() -> None:
    """From four minutes on, while power changes. What other GPUs report counts."""
    stopped = StoppedCounters()
    for step in range(4):
        samples = minute(step)
        assert with_values(samples, 60.0 * step, stopped) is samples
    found = with_values(minute(4), 240.0, stopped)
    names = [sample.name for sample in found if sample.labels["UUID"] == "GPU-1"]
    assert names == ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", STOPPED_INFO]
    assert len(found) == len(names) + 6


def test_a_prometheus_shows_since_when_they_keep_their_values() -> None:
    """Its samples of the minutes before count no more than those of now."""
    series = [
        {
            "metric": {"__name__": sample.name} | dict(sample.labels),
            "values": [[1000.0 + 60 * step, repr(float(minute(step)[number].value))] for step in range(5)],
        }
        for number, sample in enumerate(minute(0))
    ]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    scrapes = scrapes_of(json_as(QueryAnswer, json.dumps(answer)))
    assert [len(scrape.samples) for scrape in scrapes] == [9] * 5
    one, other = as_json(diagnose_scrapes(WatchedScrapes(scrapes, "", 240.0)))["gpus"]
    assert (one["class"], one["quality"], other["class"]) == ("idle", "approximate", "compute-bound")


def test_busy_tensor_cores_need_no_sm_activity() -> None:
    """The own list of dcgm-exporter lacks it, but a tensor core is never busier than its SM."""
    page = f"""DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS}}} 0.99
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{LABELS}}} 0.92
DCGM_FI_PROF_DRAM_ACTIVE{{{LABELS}}} 0.69
"""
    assert diagnosed(page)["class"] == "compute-bound"
    assert diagnosed(page.replace("0.92", "0.5"))["class"] is None


@pytest.mark.parametrize(
    ("read", "promql"),
    [
        (Read("x"), "x"),
        (Read("x", 1e-2), "x * 0.01"),
        (Read("x", most=1.0), "x <= 1.5"),
        (Read("x", 1e-2, most=1.0), "(x <= 150) * 0.01"),
        (
            Read("x", rate=True, most=1.0),
            "clamp_max((x - x offset 2m >= 0) / (timestamp(x) - timestamp(x offset 2m) > 0), 1)",
        ),
    ],
)
def test_rules_leave_out_the_same(read: Read, promql: str) -> None:
    assert read.promql() == promql
