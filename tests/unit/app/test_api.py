"""Responses of `/api/v1` are rendered at most once per collection, and have a bounded size."""

from __future__ import annotations

import json
import time

import pytest

from gpu_exporter.app import api
from gpu_exporter.app.api import ApiAnswer, Composed
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.reports.masking import Names

CLEAR = Names(mask=False)


def test_an_answer_is_composed_once_per_snapshot() -> None:
    """However often it is requested."""
    composed: list[int] = []

    def compose() -> ApiAnswer:
        composed.append(1)
        return ApiAnswer(b"")

    answer, first, second = Composed(), Snapshot(1, "nvml"), Snapshot(1, "nvml")
    for snapshot in (first, first, second, second):
        answer.get(snapshot, compose)
    assert len(composed) == 2


def test_events_are_composed_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """New events may come while no snapshot is made."""
    now, answers = [0.0], iter([ApiAnswer(b"1"), ApiAnswer(b"2")])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    events = Composed(1.0)
    bodies = []
    for now[0] in (0.0, 0.9, 1.1, 2.0):
        bodies.append(events.get(None, lambda: next(answers)).body)
    assert bodies == [b"1", b"1", b"2", b"2"]


def test_events_are_bounded() -> None:
    """The newest are kept."""
    recent = [{"xid": number, "message": "x" * 60_000} for number in range(300)]
    body = api.events(recent, CLEAR).body
    assert len(body) <= api.MOST_EVENTS_BYTES
    assert [event["xid"] for event in json.loads(body)["events"]] == list(range(17))
    assert json.loads(api.events(recent[:2], CLEAR).body) == {"events": recent[:2]}
    assert api.events([], CLEAR).body == b'{"events": []}'


def test_gpus_are_bounded() -> None:
    """A flood of owners is an error, not a response of any size."""
    gpu = Gpu(0, "GPU-0")
    owners = tuple(
        Sample(Series(m.POD_INFO, gpu, (("pod", f"{number}{'x' * 10_000}"),)), 1.0) for number in range(1000)
    )
    gpus, verdicts = (GpuStatus(gpu, True),), (Verdict(gpu),)
    answer = api.gpus(Snapshot(1, "nvml", owners, gpus, verdicts=verdicts), CLEAR)
    assert answer == (b"", "the answer would have 9 MiB, more than 8 MiB; the GPUs have too many owners")
    (entry,) = json.loads(api.gpus(Snapshot(1, "nvml", owners[:2], gpus, verdicts=verdicts), CLEAR).body)["gpus"]
    assert len(entry["owners"]) == 2
