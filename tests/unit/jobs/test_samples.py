"""The samples of a rank."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.message import decode
from gpu_exporter.jobs.places import Place
from gpu_exporter.jobs.samples import RankSeries
from gpu_exporter.jobs.store import RankKey, RankStore, Sender
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels
from tests.support.job_sender import encoded, message


def samples(gpu: Gpu, instance: Labels = (), **changes: Any) -> dict[str, float]:
    """Return the values of a rank by name of the metric and its own labels."""
    store = RankStore()
    place = Place(gpu.uuid, instance)
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
