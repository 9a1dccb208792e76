"""From scrapes to class, failure modes and text, compared with the true behaviour of recorded GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.catalogue.workloads import owner, workload_of
from gpu_exporter.conditions import evaluate
from gpu_exporter.conditions.evaluate import value
from gpu_exporter.conditions.signal import Read, Signal
from gpu_exporter.conditions.tree import And, Compare, Fn, Or, Over, Unless
from gpu_exporter.diagnosis import gather
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.report import as_dict, exit_code, lines
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import seen
from tests.support import phases
from tests.support.truth import PHASES, TRUTH

MODES_BY_NAME = {mode.name: mode for mode in MODES}
LONG_BYTES = 70_000
QUICK_AND_SLOW = [
    pytest.param(path, phase, marks=[pytest.mark.slow] if path.stat().st_size > LONG_BYTES else [])
    for path, phase in PHASES
]
GPU = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA H200", "Hostname": "n1"}


@pytest.mark.parametrize(("path", "phase"), QUICK_AND_SLOW, ids=lambda value: getattr(value, "name", value))
def test_a_recorded_phase(path: Path, phase: str) -> None:
    found = phases.diagnoses(path, phase)

    truth = TRUTH[path][phase]
    for each, (bottlenecks, must, may) in zip(found, truth, strict=True):
        assert each.bottleneck
        assert each.bottleneck.name in bottlenecks
        modes = {match.mode.name for match in each.matches}
        assert must <= modes <= must | may


@pytest.mark.slow
def test_every_recorded_phase_has_true_modes() -> None:
    for path, names in TRUTH.items():
        recorded = gather.RecordedScrapes(path)
        assert list(recorded)
        assert set(recorded.phases) == set(names)


def test_without_a_job_no_rank_is_compared() -> None:
    path, phase = next(each for each in PHASES if each[1] == "ddp_straggler_slow_gpu")

    found = diagnose(seen(gather.RecordedScrapes(path, phase), {}))

    assert not [m.mode.name for each in found for m in each.matches if m.mode.name.startswith("GpuStraggler")]
    assert "GpuStragglerSlow" in found[1].unknown


def test_recorded_idle_gaps_count() -> None:
    """Half a second busy, half idle: mean engine activity alone would equal that of small gaps everywhere."""
    path, phase = next(each for each in PHASES if each[1] == "half_duty")
    shown = seen(gather.RecordedScrapes(path, phase), {})
    (part,) = shown.devices

    assert value(Over(s.SM_IDLE), shown, part) == pytest.approx(0.43, abs=0.05)
    assert value(Over(s.POWER_SWING), shown, part) == pytest.approx(0.45 * 700, abs=30)


def test_a_limit_can_be_changed() -> None:
    path, phase = next(each for each in PHASES if each[1] == "memory_bound_copy")
    pages = gather.RecordedScrapes(path, phase)

    (found,) = diagnose(seen(pages, {"busyDram": 0.95}))

    assert found.bottleneck
    assert found.bottleneck.name == "memory-bound"  # every pipe is idle: still memory-bound, for the other reason
    (found,) = diagnose(seen(pages, {"busyDram": 0.95, "someDram": 0.95}))
    assert found.bottleneck
    assert found.bottleneck.name == "mixed"


def _page(*rows: tuple[str, float], at: float = 1000.0, **labels: str) -> Scrape:
    return Scrape(at, [ScrapedSample(name, {**GPU, **labels}, value) for name, value in rows])


def test_a_mig_instance_has_a_class_and_its_gpu_power() -> None:
    page = Scrape(
        1000.0,
        [
            ScrapedSample("DCGM_FI_PROF_GR_ENGINE_ACTIVE", {**GPU, "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.18gb"}, 0.99),
            ScrapedSample("DCGM_FI_PROF_SM_ACTIVE", {**GPU, "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.18gb"}, 0.01),
            ScrapedSample("DCGM_FI_PROF_DRAM_ACTIVE", {**GPU, "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.18gb"}, 0.0),
            ScrapedSample("DCGM_FI_DEV_POWER_USAGE", {**GPU, "GPU_I_ID": "3", "GPU_I_PROFILE": "1g.18gb"}, 150.0),
        ],
    )

    evidence_of_it = seen([page], {})
    whole, instance = diagnose(evidence_of_it)

    assert evidence_of_it.points(whole.device, s.POWER) == [(1000.0, 150.0)]
    assert not evidence_of_it.points(instance.device, s.POWER)
    assert instance.bottleneck
    assert instance.bottleneck.name == "fake-load"
    assert [gpu["GPU_I_ID"] for gpu in as_dict((whole, instance))["gpus"]] == ["3"]


@pytest.mark.parametrize(("slices", "shares"), [({"3": 4.0, "9": 1.0}, (0.8, 0.2)), ({}, (0.5, 0.5))])
def test_a_mig_instance_costs_as_the_share_of_its_gpu_that_it_is(
    slices: Mapping[str, float], shares: tuple[float, float]
) -> None:
    """As `gpu:share:ratio` of the rules: by compute slices, and in equal parts if these are unknown."""
    page = Scrape(
        1000.0,
        [
            ScrapedSample(f"DCGM_FI_PROF_{name}_ACTIVE", {**GPU, "GPU_I_ID": instance}, value)
            for instance in ("3", "9")
            for name, value in (("GR_ENGINE", 0.99), ("SM", 0.01), ("DRAM", 0.0))
        ]
        + [
            ScrapedSample("gpu_instance_slices", {"UUID": GPU["UUID"], "GPU_I_ID": instance}, number)
            for instance, number in slices.items()
        ],
    )

    whole, *instances = diagnose(seen([page], {}))

    assert tuple(of_diagnoses([instance])[0].lost_gpus for instance in instances) == pytest.approx(shares)
    assert [each.lost_gpus for each in of_diagnoses([whole, *instances])] == pytest.approx([1.0])


@pytest.mark.parametrize("blank", [float("nan"), float("inf"), float("-inf"), 9223372036854775794.0])
def test_a_blank_is_no_value(blank: float) -> None:
    """In pages of other exporters: NaN, infinity, or DCGM's number for "not supported"."""
    names = dict.fromkeys(way.series for signal in SIGNALS for way in signal.definitions if isinstance(way, Read))
    pages = [_page(*((name, blank) for name in names), at=at, le=le) for at, le in ((1000.0, "+Inf"), (1010.0, "x"))]
    working = [_page(("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.3), ("DCGM_FI_DEV_PCIE_LINK_GEN", blank), at=1000.0)]

    diagnose(seen(pages, {}))
    (found,) = diagnose(seen(working, {}))

    assert found.bottleneck
    assert found.bottleneck.name == "host-bound"


def test_generations_agree() -> None:
    """Names of gpu-exporter, dcgm-exporter <= 4.8 and >= 4.9 with the same value give the same signal."""
    found = []
    for pages in (
        [_page(("gpu_sm_active_seconds_total", count), at=1000 + count) for count in (0.0, 10.0)],
        [_page(("DCGM_FI_PROF_SM_ACTIVE", 1.0), at=1010.0)],
        [_page(("DCGM_FI_PROF_SM_UTIL_RATIO", 1.0), at=1010.0)],
    ):
        shown = seen(pages, {})
        (part,) = shown.devices
        found.append(shown.points(part, s.SM_ACTIVE))
    assert found == [[(1010.0, 1.0)]] * 3


def test_units_are_converted() -> None:
    classic, modern = (
        seen([_page(*rows)], {})
        for rows in (
            [("DCGM_FI_DEV_GPU_UTIL", 50), ("DCGM_FI_DEV_FB_USED", 1), ("DCGM_FI_DEV_SM_CLOCK", 1980)],
            [
                ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.5),
                ("DCGM_FI_DEV_FB_USED_BYTES", 2**20),
                ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.98e9),
            ],
        )
    )
    for signal in (s.UTIL, s.FB_USED, s.SM_CLOCK):
        (part,) = classic.devices
        assert classic.points(part, signal) == modern.points(part, signal) != ()


def test_dcgm_exporters_last_xid_is_a_fallback() -> None:
    without = seen([_page(("DCGM_FI_DEV_XID_ERRORS", 79.0))], {})
    counted = seen([_page(("DCGM_FI_DEV_XID_ERRORS", 79.0), ("gpu_xid_events_total", 1.0))], {})

    assert [m.mode.name for m in diagnose(without)[0].matches] == ["GpuXidFatal"]
    assert not diagnose(counted)[0].matches


@pytest.mark.parametrize(
    ("further", "power", "shown"),
    [
        ((), 690.0, {s.POWER_USE: 690 / 700, s.SM_CLOCK: 1.2e9}),
        ((), 500.0, {}),
        ((("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 4.0),), 690.0, {}),
    ],
    ids=["at the limit", "below it", "with reasons"],
)
def test_power_at_its_limit_without_reasons_is_shown(
    further: tuple[tuple[str, float], ...], power: float, shown: Mapping[Signal, float]
) -> None:
    """Beside a low clock, whose reason is unknown: it is neither called throttled nor called fine."""
    rows = (
        ("DCGM_FI_DEV_POWER_USAGE", power),
        ("DCGM_FI_DEV_POWER_MGMT_LIMIT", 700.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1200.0),
    )
    active = [(f"DCGM_FI_PROF_{name}", 0.95) for name in ("GR_ENGINE_ACTIVE", "SM_ACTIVE", "PIPE_TENSOR_ACTIVE")]
    (found,) = diagnose(seen([_page(*active, ("DCGM_FI_PROF_DRAM_ACTIVE", 0.2), *rows, *further)], {}))

    numbers = {term.signal: number for term, number in found.numbers.items() if isinstance(term, Over)}
    assert {signal: numbers[signal] for signal in (s.POWER_USE, s.SM_CLOCK) if signal in numbers} == shown
    assert found.bottleneck is not None
    assert found.bottleneck.name == "compute-bound"
    assert ("GpuPowerBrake" in found.unknown) == (not further)


@pytest.mark.parametrize(
    ("xid", "count", "found"),
    [("79", 1.0, ["GpuXidFatal"]), ("79", 0.0, []), ("31", 2.0, ["GpuXidApplication"]), ("63", 1.0, [])],
)
def test_dcgm_exporters_count_of_recent_xids_is_a_fallback(xid: str, count: float, found: list[str]) -> None:
    """Also without its gauge of the last code."""

    def names(*further: tuple[str, float]) -> list[str]:
        window = seen([_page(("DCGM_EXP_XID_ERRORS_COUNT", count), *further, xid=xid)], {})
        return [match.mode.name for match in diagnose(window)[0].matches]

    assert names() == found
    assert names(("gpu_xid_events_total", 1.0)) == []


def test_a_shared_gpu_has_no_owner() -> None:
    rows = [("DCGM_FI_DEV_GPU_UTIL", 50.0)]
    pages = [
        Scrape(1.0, [*_page(*rows, pod="a-0", namespace="x").samples, *_page(*rows, pod="b-0", namespace="x").samples])
    ]
    (known,) = seen(pages, {}).devices.values()
    assert (known.pod, known.workload) == ("", "")
    (known,) = seen([_page(*rows, pod="a-0", namespace="x")], {}).devices.values()
    assert (known.namespace, known.pod, known.workload) == ("x", "a-0", "a-0")


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("llm-worker-0", "llm"),
        ("resnet-master-0", "resnet"),
        ("jobset-workers-0-3-bcdfg", "jobset"),
        ("mpi-launcher-x2x4z", "mpi"),
        ("notebook-0", "notebook-0"),
        ("gpt-2", "gpt-2"),
        ("exp-2025-01", "exp-2025-01"),
        ("bert-3-x2x4z", "bert"),
        ("night-x2x4z", "night"),
        ("vllm-7d9f8c6b5d-x2x4z", "vllm"),
        ("bert-large", "bert-large"),
        ("train", "train"),
    ],
)
def test_the_workload_of_a_pod(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


def test_owners_by_label() -> None:
    family = "DCGM_FI_DEV_GPU_UTIL"
    exporter = "nvidia-dcgm-exporter-x2x4z"
    assert owner(family, {"pod": exporter, "namespace": "gpu"}) is None
    assert owner(family, {"pod": exporter, "exported_pod": "a-0", "exported_namespace": "x"}) == ("x", "a-0", "a-0")
    assert owner(family, {"hpc_job": "4711"}) == ("", "", "4711")
    assert owner(family, {"pod": "a-0", "batch_kubernetes_io_job_name": "night"}) == ("", "a-0", "night")
    assert owner(family, {"source": "replay"}) == ("", "", "replay")
    assert owner("gpu_up", {"pod": "scraped-by-prometheus"}) is None


def test_unknown_is_neither_true_nor_false() -> None:
    shown = seen([_page(("DCGM_FI_PROF_SM_ACTIVE", 0.5))], {})
    (part,) = shown.devices
    true, false = Compare(Over(s.SM_ACTIVE), ">", 0.1), Compare(Over(s.SM_ACTIVE), ">", 0.9)
    unknown = Compare(Over(s.DRAM_ACTIVE), ">", 0.1)

    def holds(condition: And | Or | Unless | Compare) -> bool | None:
        return evaluate.holds(condition, shown, part)

    assert [holds(each) for each in (true, false, unknown)] == [True, False, None]
    assert [holds(each) for each in (And(true, unknown), And(false, unknown))] == [None, False]
    assert [holds(each) for each in (Or(true, unknown), Or(false, unknown))] == [True, None]
    assert [holds(each) for each in (Unless(true, unknown), Unless(unknown, false), Unless(true, true))] == [
        True,
        None,
        False,
    ]


def test_a_whole_window_needs_samples_of_all_of_it() -> None:
    hour = Over(s.SM_ACTIVE, Fn.MAX, 3600, whole=True)
    long = seen([_page(("DCGM_FI_PROF_SM_ACTIVE", 0.5), at=t) for t in range(0, 3700, 60)], {})
    short = seen([_page(("DCGM_FI_PROF_SM_ACTIVE", 0.5), at=t) for t in range(0, 600, 60)], {})
    assert value(hour, long, next(iter(long.devices))) == 0.5
    assert value(hour, short, next(iter(short.devices))) is None


def test_words_and_numbers() -> None:
    path, phase = next(each for each in PHASES if each[1] == "ddp_straggler_cpu_delay")
    found = phases.diagnoses(path, phase)

    text = "\n".join(lines(found))
    straggler = as_dict(found)["gpus"][1]["modes"][0]

    assert "GpuStragglerStarved (warning)" in text
    assert straggler["name"] == "GpuStragglerStarved"
    assert straggler["because"]["gr_active"] < 0.4 < straggler["because"]["gr_active_of_ranks_that_communicate"]
    assert exit_code(found) == 1


def test_identical_findings_are_grouped_worst_first() -> None:
    def row(name: str, value: float, gpu: int) -> ScrapedSample:
        return ScrapedSample(name, {**GPU, "gpu": str(gpu), "UUID": f"GPU-{gpu}"}, value)

    rows = [row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.95, gpu) for gpu in range(8)]
    rows += [row("DCGM_FI_PROF_DRAM_ACTIVE", 0.9 if gpu == 5 else 0.3, gpu) for gpu in range(8)]
    rows += [row("DCGM_FI_PROF_SM_ACTIVE", 0.9 + gpu / 100, gpu) for gpu in range(8)]
    rows += [row("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.3, gpu) for gpu in range(8)]
    rows += [row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", float(gpu == 7), gpu) for gpu in range(8)]

    text = list(lines(diagnose(seen([Scrape(1000.0, rows)], {}))))

    assert [line.partition(":")[0] for line in text if not line.startswith(" ")] == [
        "GPU 7 (n1, NVIDIA H200)  compute-bound",
        "GPU 5 (n1, NVIDIA H200)  memory-bound",
        "GPUs 0-4, 6 (n1, NVIDIA H200)  compute-bound",
    ]
    # Without pipes that did not decide.
    assert text[-3] == "    90 % to 96 % of the SMs busy on average, tensor cores busy 30 % of the time"
    assert text[-1].startswith("    at no limit of the chip: 30 % of tensor peak, 33 % of memory peak. ")
    # Numbers of the class are not repeated below the mode.
    place = text.index("  GpuMemoryBound (info)")
    assert text[place - 2] == (
        "    GPU busy 95 % of the time, memory bandwidth 90 % used, tensor cores busy 30 % of the time"
    )
    assert text[place + 1] == f"    -> {MODES_BY_NAME['GpuMemoryBound'].advice}"


def test_a_page_keeps_its_names() -> None:
    """Classic counters have no `_total`, `gpu_*` counters have; prometheus_client's parser changes both."""
    text = "".join(
        f'# TYPE {name} {kind}\n{name}{{UUID="a"}} 2\n'
        for name, kind in (
            ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter"),
            ("gpu_energy_joules_total", "counter"),
            ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
        )
    )
    assert [row.name for row in parsed(text)] == [
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "gpu_energy_joules_total",
        "DCGM_FI_DEV_GPU_UTIL",
    ]


def test_rate_of_a_counter_that_is_read_rarely() -> None:
    """Read at 4 s, 19 s and 34 s, it grows by 9 s in 15 s; scrapes in between add nothing."""
    name = "gpu_clock_event_seconds_total"
    pages = [_page((name, 9.0 * ((t + 11) // 15)), at=1000.0 + t, reason="hw_thermal_slowdown") for t in range(36)]
    bits = [_page(("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 64.0), at=page.at) for page in pages[:10]]
    (part,) = seen(pages, {}).devices

    assert seen(pages, {}).points(part, s.HW_THERMAL) == [(1019.0, 0.6), (1034.0, 0.6)]
    both = seen([Scrape(a.at, [*a.samples, *b.samples]) for a, b in zip(pages, bits, strict=False)], {})
    assert {value for _, value in both.points(part, s.HW_THERMAL)} == {1.0}  # the time is too short for the counter
    still = seen([_page((name, 5.0), at=1000.0 + t, reason="hw_thermal_slowdown") for t in range(20)], {})
    assert {value for _, value in still.points(part, s.HW_THERMAL)} == {0.0}


def test_non_finite_values_are_no_samples() -> None:
    text = 'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{UUID="a"} NaN\nDCGM_FI_DEV_FB_USED{UUID="a"} +Inf\nup{UUID="a"} 1\n'
    shown = seen([Scrape(1000.0, parsed(text))], {})
    (part,) = shown.devices
    assert [signal for signal in SIGNALS if shown.points(part, signal)] == []


def test_names_are_unique() -> None:
    assert len({mode.name for mode in MODES}) == len(MODES)
    assert len({signal.record for signal in SIGNALS}) == len(SIGNALS)


def test_no_share_of_time_exceeds_one() -> None:
    """A counter that is read every five seconds seems to grow faster between scrapes that are not in step with it."""
    counter = "gpu_gr_engine_active_seconds_total"
    pages = [_page((counter, value), at=at) for at, value in ((0.0, 0.0), (5.0, 5.0), (9.6, 10.0), (15.0, 15.0))]
    (points,) = seen(pages, {}).by_device(s.GR_ACTIVE).values()
    assert max(value for _, value in points) == 1
