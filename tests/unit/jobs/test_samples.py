"""The samples of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.message import decode
from gpu_exporter.jobs.places import SenderPlace
from gpu_exporter.jobs.store import PHASE, LoopState, RankKey, RankSeries, RankStore, Sender, rank_use
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.job_message import ACTIVITIES, AMOUNTS, KEYS
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer
from tests.support.job_sender import AMOUNTS_OF_STEP, encoded, message


def samples(gpu: Gpu, instance: Labels = (), **changes: Any) -> dict[str, float]:
    """Return the values of a rank by name of the metric and its own labels."""
    store = RankStore()
    place = SenderPlace(gpu.uuid, instance)
    store.take(decode(encoded(message(**changes))), Sender(1000, 41, place, verified=True), 0.0, 1000.0)
    ((key, state),) = store.shown(0.0)
    assert isinstance(key, RankKey)
    return {
        " ".join([sample.series.name, *(value for _, value in sample.series.metric.labels)]): sample.value
        for sample in RankSeries(key, gpu).samples(state)
    }


def test_the_activity_is_one_of_all() -> None:
    values = samples(Gpu(0, "GPU-1"), activity="checkpoint")
    assert {name: value for name, value in values.items() if name.startswith("gpu_job_activity ")} == {
        "gpu_job_activity training": 0,
        "gpu_job_activity evaluation": 0,
        "gpu_job_activity checkpoint": 1,
        "gpu_job_activity compile": 0,
    }


def test_the_start_is_before_the_message() -> None:
    assert samples(Gpu(0, "GPU-1"), elapsed=7)[m.JOB_STARTED_AT.name] == 993


def test_the_peak_is_that_of_the_model_and_the_data_type() -> None:
    h100 = Gpu(0, "GPU-1", model="NVIDIA H100 80GB HBM3")
    assert samples(h100, dtype="bf16")[m.JOB_PEAK.name] == 989e12
    slice_ = (("GPU_I_ID", "3"), ("GPU_I_PROFILE", "3g.40gb"))
    assert samples(h100, slice_, dtype="bf16")[m.JOB_PEAK.name] == pytest.approx(989e12 * 60 / 132)
    assert m.JOB_PEAK.name not in samples(h100)
    assert m.JOB_PEAK.name not in samples(Gpu(0, "GPU-1", model="another"), dtype="bf16")


def state_of(**changes: Any) -> LoopState:
    """Return the state of a rank after one message at 0, which is 1000.0004 in unix time."""
    store = RankStore()
    sender = Sender(1000, 41, SenderPlace("GPU-1"), verified=False)
    store.take(decode(encoded(message(**changes))), sender, 0.0, 1000.0004)
    ((_, state),) = store.shown(0.0)
    return state


def values(series: RankSeries, state: LoopState) -> dict[str, tuple[dict[str, str], float]]:
    """Return the labels and the value of each sample, by name and the label that tells it from others of the name."""
    found = {}
    for sample in series.samples(state):
        labels = dict((*sample.series.labels, *sample.series.metric.labels))
        part = next((labels.pop(name) for name in ("le", "activity", "phase") if name in labels), "")
        found[f"{sample.series.name} {part}".strip()] = (labels, sample.value)
    return found


def test_every_series_of_a_rank() -> None:
    instance = (("GPU_I_ID", "3"),)
    series = RankSeries(RankKey("llm-7b", 5, SenderPlace("GPU-1", instance)), Gpu(0, "GPU-1", model="A"))
    found = values(series, state_of(data_seconds=0.12345678, since_step=0.5, dtype="bf16", pod_uid="p"))
    rank = {"job_id": "llm-7b", "rank": "5", "GPU_I_ID": "3"}
    assert {name: value for name, (labels, value) in found.items() if labels == rank and "bucket" not in name} == {
        "gpu_job_steps_total": 3,
        "gpu_job_data_seconds_total": 0.123457,
        "gpu_job_activity_seconds_total training": 0.75,
        "gpu_job_activity_seconds_total evaluation": 0,
        "gpu_job_phase_seconds_total forward": 0.375,
        "gpu_job_phase_seconds_total backward": 0.1875,
        **{KEYS[name].metric: 3 * AMOUNTS_OF_STEP.get(name, 1) for name in AMOUNTS},
        "gpu_job_step_seconds_sum": 0.75,
        "gpu_job_step_seconds_count": 3,
        "gpu_job_self_seconds_sum": 0.75,
        "gpu_job_self_seconds_count": 3,
        "gpu_job_self_squared_seconds_total": 0.1875,
        "gpu_job_last_step_timestamp_seconds": 999.5,
        "gpu_job_start_timestamp_seconds": 998.25,
        "gpu_job_restarts_total": 0,
        **{
            f"gpu_job_activity {name}": name == "training"
            for name in ("training", "evaluation", "checkpoint", "compile")
        },
    }
    facts = {"world_size": "2", "dtype": "bf16", "pod_uid": "p", "verified": "false"}
    assert found["gpu_job_rank_info"] == ({**rank, **facts}, 1)


def test_histograms_are_cumulative() -> None:
    """Without a histogram of self time, there is none; without a step, there is no time of one."""
    series = RankSeries(RankKey("llm-7b", 0, SenderPlace("GPU-1")), Gpu(0, "GPU-1"))
    counts = [1, 2, *[0] * 17, 4]
    found = values(series, state_of(step={"sum": 1.23456789, "counts": counts}, self=None, self_squares=None, steps=0))
    buckets = {name: value for name, (_, value) in found.items() if "bucket" in name}
    assert list(buckets) == [
        f"gpu_job_step_seconds_bucket {edge}"
        for edge in (
            *("0.001", "0.0025", "0.005", "0.01", "0.02", "0.04", "0.08", "0.16", "0.32", "0.64", "1.28", "2.5"),
            *("5.0", "10.0", "20.0", "40.0", "80.0", "160.0", "600.0", "+Inf"),
        )
    ]
    assert list(buckets.values()) == [1, *[3] * 18, 7]
    assert found["gpu_job_step_seconds_count"][1] == 7
    assert found["gpu_job_step_seconds_sum"][1] == 1.234568
    assert not any("self" in name or "last_step" in name for name in found)


def test_series_are_the_same_objects_in_each_snapshot() -> None:
    """Their lines of text are made once."""
    series = RankSeries(RankKey("llm-7b", 0, SenderPlace("GPU-1")), Gpu(0, "GPU-1"))
    first, second = (series.samples(state_of(steps=steps)) for steps in (1, 2))
    assert [sample.series for sample in first] == [sample.series for sample in second]
    assert all(one.series is two.series for one, two in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("text", "counts", "seconds"),
    [
        ("x", [0] * 20, 1.0),
        ("x", [2**53] * 20, 1e7 + 1 / 3),
        ('"' * 40, [2**40] * 20, 123456.789012),
        ("ф" * 16, [2**40] * 20, 1e7 + 1 / 3),
    ],
)
@pytest.mark.parametrize("instance", [(), (("GPU_I_ID", "3"), ("GPU_I_PROFILE", "1g.12gb"))])
def test_the_size_of_a_rank_is_an_upper_bound(text: str, counts: list[int], seconds: float, instance: Labels) -> None:
    """Of the series and bytes on the page, and not much more."""
    gpu = Gpu(15, "GPU-86d41848-9afe-00fc-7240-4743179d96b1", model="NVIDIA H100 80GB HBM3")
    key = RankKey(3 * text, 7, SenderPlace(gpu.uuid, instance))
    times = {"sum": seconds, "counts": counts}
    state = state_of(
        **{"step": times, "self": times, "data_seconds": seconds, "elapsed": 3e8, "dtype": "bf16", "pod_uid": "u" * 36},
        **{"phase_seconds": {f"{text}{n:2}": seconds for n in range(32)}, "tokens": 2**53, "flops": 1 / 3 * 1e30},
        activity_seconds=dict.fromkeys(ACTIVITIES, seconds),
    )
    made = RankSeries(key, gpu).samples(state)
    page = Renderer("node", (("source", "simulated"),)).render(Snapshot(0.0, "simulated", made))
    lines = [
        line
        for line in page.body(Variant(openmetrics=False, gzip=False)).splitlines(keepends=True)
        if line.startswith(b"gpu_job_")
    ]
    use = rank_use(key, [part for name, part in state.totals() if name == PHASE])
    assert use.series - 1 <= len(lines) <= use.series
    assert 0.75 * use.bytes < sum(map(len, lines)) <= use.bytes


def test_facts_that_change_leave_no_series_behind() -> None:
    """A sender can change them with every message."""
    series = RankSeries(RankKey("llm-7b", 0, SenderPlace("GPU-1")), Gpu(0, "GPU-1"))
    series.samples(state_of())
    before = len(series._series)
    for number in range(10):
        (info,) = (s for s in series.samples(state_of(pod_uid=str(number))) if s.series.metric is m.JOB_RANK_INFO)
        assert dict(info.series.labels)["pod_uid"] == str(number)
    assert len(series._series) == before
