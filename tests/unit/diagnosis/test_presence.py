"""GPUs that are lost, missing or gone at the end of some scrapes, and series that are over."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.presence import Absent, present
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen

BUSY = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.98, "DCGM_FI_PROF_SM_ACTIVE": 0.9, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.8}


def gpu(index: int, up: float | None = 1, reason: str = "", instance: str = "") -> Iterable[ScrapedSample]:
    """A busy GPU, or one that is down; without `up`, as dcgm-exporter exposes it."""
    labels = {"gpu": str(index), "UUID": f"GPU-{index}", **({"instance": instance} if instance else {})}
    if up is not None:
        yield ScrapedSample("gpu_up", labels, up)
    if reason:
        yield ScrapedSample("gpu_down_reason", {**labels, "reason": reason}, 1)
    elif up != 0:
        for name, value in BUSY.items():
            yield ScrapedSample(name, labels, value)


def scrape(at: float, *gpus: Iterable[ScrapedSample]) -> Scrape:
    return Scrape(at, [sample for of_gpu in gpus for sample in of_gpu])


def test_a_lost_gpu_is_not_judged_by_its_last_values() -> None:
    scrapes = [scrape(at, gpu(0), gpu(1)) for at in (0.0, 1.0)]
    scrapes += [scrape(at, gpu(0), gpu(1, 0, "lost")) for at in (2.0, 3.0)]
    found, absent = present(scrapes)
    assert absent == [Absent("", "GPU 1", "lost: it fell off the bus")]
    of_gpu = {each.identity.gpu: each for each in diagnose(seen(found, {}))}
    assert of_gpu["0"].bottleneck is not None
    assert of_gpu["1"].bottleneck is None
    assert [match.mode.name for match in of_gpu["1"].matches] == ["GpuLost"]
    assert report.exit_code(list(of_gpu.values()), absent) == 1


def test_a_gpu_that_was_never_identified() -> None:
    """It has an index and no UUID; in an earlier scrape another one had none, either."""
    unknown = [
        ScrapedSample("gpu_up", {"gpu": "1"}, 0),
        ScrapedSample("gpu_down_reason", {"gpu": "1", "reason": "stalled"}, 1),
    ]
    found, absent = present(
        [scrape(0, [ScrapedSample("gpu_up", {"gpu": "0"}, 0)], unknown), scrape(1, gpu(0), unknown)]
    )
    assert absent == [Absent("", "GPU 1", "stalled: a driver call does not return")]
    diagnoses = diagnose(seen(found, {}))
    shown = report.as_dict(diagnoses, absent)["gpus"]
    assert [(each["gpu"], each["UUID"], each.get("down")) for each in shown] == [
        ("0", "GPU-0", None),
        ("1", "", "stalled"),
    ]
    assert [match.mode.name for match in diagnoses[1].matches] == ["GpuLost"]


def test_a_link_is_no_gpu() -> None:
    """dcgm-exporter writes the GPU of an NVLink into labels of other names."""
    labels = {"nvlink": "3", "gpu": "0", "gpu_uuid": "GPU-0", "device": "nvidia0"}
    link = [ScrapedSample("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", labels, 4.0)]
    found, _ = present([scrape(at, gpu(0, up=None), link) for at in (0.0, 1.0)])
    assert [each.device.uuid for each in diagnose(seen(found, {}))] == ["GPU-0"]


def test_expected_gpus_that_are_not_listed() -> None:
    count = [ScrapedSample("gpu_devices_expected", {"instance": "node-a"}, 8)]
    absent = present([scrape(0, gpu(0, instance="node-a"), gpu(1, instance="node-a"), count)]).absent
    assert absent == [Absent("node-a", "6 of 8 GPUs", "expected, but the driver does not list them")]


def test_a_fault_of_the_node_is_one_finding() -> None:
    """No GPU is judged by it: it says nothing about any of them."""
    down = [gpu(number, 0, "unknown") for number in range(2)]
    source = [ScrapedSample("gpu_exporter_source_down_reason", {"source": "nvml", "reason": "unknown"}, 1)]
    found, absent = present([scrape(0, *down, source)])
    assert [(each.gpus, each.expected) for each in absent] == [("every GPU", False)]
    assert "a container that has lost its devices" in absent[0].why
    assert report.exit_code(diagnose(seen(found, {})), absent) == 1
    assert not diagnose(seen(found, {}))


def test_a_missing_gpu_is_named_by_its_address() -> None:
    count = [ScrapedSample("gpu_devices_expected", {}, 2)]
    missing = [ScrapedSample("gpu_device_missing", {"pci_bus_id": "00000000:3B:00.0", "driver": "nvidia"}, 1)]
    absent = present([scrape(0, gpu(0), count, missing)]).absent
    where = "00000000:3B:00.0, bound to nvidia"
    assert absent == [Absent("", "1 of 2 GPUs", f"expected, but the driver does not list them: {where}")]


def test_a_gpu_whose_series_ended() -> None:
    """With dcgm-exporter, or if an exporter has ended; a scrape without it is not enough."""
    a = [scrape(15.0 * n, *(gpu(i, None, instance="a:9400") for i in ((0, 1) if n < 3 else (0,)))) for n in range(8)]
    b = [scrape(15.0 * n + 1, gpu(2, None, instance="b:9400")) for n in range(3)]
    found, absent = present(sorted([*a, *b], key=lambda each: each.at))
    lost = "it is gone, or its exporter or node is down"
    assert absent == [
        Absent("a:9400", "GPU 1", f"no data for 1 min: {lost}"),
        Absent("b:9400", "GPU 2", f"no data for 1 min: {lost}"),
    ]
    assert [each.identity.gpu for each in diagnose(seen(found, {}))] == ["0"]
    assert present(a[:4]).absent == []


def test_a_released_driver_is_no_fault() -> None:
    found, absent = present([scrape(0, gpu(0, 0, "released"))])
    assert absent == [Absent("", "GPU 0", "released", expected=True)]
    assert report.exit_code(diagnose(seen(found, {})), absent) == 2


def test_one_gpu_that_could_not_be_judged() -> None:
    """Then the exit code is not 0, whatever the others do."""
    bare = [ScrapedSample("DCGM_FI_DEV_GPU_TEMP", {"gpu": "1", "UUID": "GPU-1"}, 40)]
    assert report.exit_code(diagnose(seen([scrape(0, gpu(0), bare)], {}))) == 2


def test_an_implausible_number_of_expected_gpus() -> None:
    """It counts as missing, as other implausible values do."""
    expected = [ScrapedSample("gpu_devices_expected", {}, value) for value in (float("nan"), float("inf"))]
    assert present([scrape(0, gpu(0), expected)]).absent == []
