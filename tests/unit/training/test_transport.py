"""Delivery: an exporter that is absent, slow or restarted never disturbs the loop, and a textfile is never half."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_exporter.catalogue import metrics
from gpu_exporter.model.job_message import AMOUNTS, MOST_BYTES, SOCKET_VARIABLE, STEP_BUCKETS
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.training import StepTimer, timer
from gpu_exporter.training.textfile import render
from gpu_exporter.training.transport import MessageSocket, Textfile, transport
from tests.support.job_socket import JobSocket
from tests.support.tools import until


@pytest.fixture
def message() -> dict[str, Any]:
    step_timer = StepTimer('job "7"', rank=3, world_size=4, uuid="GPU-1")
    for _ in range(3):
        with step_timer.step(tokens=10), step_timer.phase("forward"):
            pass
    return step_timer.message()


@pytest.fixture
def sender(job_socket: JobSocket) -> Iterator[MessageSocket]:
    sender = MessageSocket(str(job_socket.path))
    yield sender
    sender.close()


def test_a_message_arrives(job_socket: JobSocket, sender: MessageSocket, message: dict[str, Any]) -> None:
    assert sender.send(message)
    assert job_socket.wait() == [message]


def test_an_absent_exporter_and_one_that_starts_later(tmp_path: Path, message: dict[str, Any]) -> None:
    path = tmp_path / "jobs.sock"
    sender = MessageSocket(str(path))
    assert not sender.send(message)
    for _ in range(2):  # and one that restarts
        with JobSocket(path) as receiver:
            assert sender.send(message)
            assert receiver.wait() == [message]
        assert not sender.send(message)


def test_a_full_queue_drops(job_socket: JobSocket, sender: MessageSocket, message: dict[str, Any]) -> None:
    assert not all(sender.send(message) for _ in range(100_000))
    arrived = len(job_socket.receive())
    assert arrived
    assert sender.send(message)  # over the same connection
    job_socket.wait(arrived + 1)


def test_phases_are_left_out_before_a_message_is(
    job_socket: JobSocket, sender: MessageSocket, message: dict[str, Any]
) -> None:
    assert sender.send({**message, "phase_seconds": {"x" * MOST_BYTES: 1.0}})
    assert job_socket.wait()[0]["phase_seconds"] == {}
    assert not sender.send({**message, "job_id": "x" * MOST_BYTES})


@pytest.mark.parametrize("path", ["/nowhere/jobs.sock", "x" * 200, "/dev/null"])
def test_paths_that_are_no_socket(path: str, message: dict[str, Any]) -> None:
    assert not MessageSocket(path).send(message)


def test_a_textfile(tmp_path: Path, message: dict[str, Any]) -> None:
    way = transport(str(tmp_path / "train.prom"), rank=3)
    assert isinstance(way, Textfile)
    assert way.send(message)
    assert [path.name for path in tmp_path.iterdir()] == ["train.3.prom"]
    text = (tmp_path / "train.3.prom").read_text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    labels = {"job_id": 'job "7"', "rank": "3", "UUID": "GPU-1"}
    values = {sample.name: sample.value for sample in samples if sample.labels == labels}
    assert values["gpu_job_steps_total"] == 3
    assert values["gpu_job_tokens_total"] == 30
    assert values["gpu_job_step_seconds_count"] == 3
    buckets = [sample.value for sample in samples if sample.name == "gpu_job_step_seconds_bucket"]
    assert len(buckets) == len(STEP_BUCKETS) + 1
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3
    way.close()
    assert not list(tmp_path.iterdir())


def test_a_textfile_has_the_metrics_of_the_exporter(message: dict[str, Any]) -> None:
    """The names and kinds, and the labels without those of the GPU; so that rules and dashboards apply to both."""
    whole = {
        **message,
        "self": message["step"],
        "self_squares": 0.1,
        **dict.fromkeys(AMOUNTS, 1.0),
        "dtype": "bf16",
        "pod_uid": "p",
    }
    of_jobs = [
        metric for metric in metrics.METRICS if metric.name.startswith("gpu_job_") and metric.set is MetricSet.JOB
    ]
    only_exporter = {"gpu_job_peak_flops_per_second", "gpu_job_restarts_total", "gpu_job_rank_ended_timestamp_seconds"}
    families = {family.name: family for family in text_string_to_metric_families(render(whole))}
    assert set(families) == {
        metric.name.removesuffix("_total") for metric in of_jobs if metric.name not in only_exporter
    }
    for metric in of_jobs:
        if metric.name not in only_exporter:
            assert families[metric.name.removesuffix("_total")].type == metric.kind.value
    activities = {sample.labels["activity"]: sample.value for sample in families["gpu_job_activity"].samples}
    assert activities == {"training": 1, "evaluation": 0, "checkpoint": 0, "compile": 0}
    (info,) = families["gpu_job_rank_info"].samples
    assert info.labels == {
        "job_id": 'job "7"',
        "rank": "3",
        "UUID": "GPU-1",
        "world_size": "4",
        "dtype": "bf16",
        "pod_uid": "p",
    }


def test_the_time_of_the_last_step(message: dict[str, Any]) -> None:
    assert "\ngpu_job_last_step_timestamp_seconds" in (text := render({**message, "since_step": 40.0}, now=1000.0))
    assert text.splitlines()[-1].endswith(" 960.0")


def test_a_textfile_in_a_missing_folder(tmp_path: Path, message: dict[str, Any]) -> None:
    way = Textfile(str(tmp_path / "missing" / "train.prom"), 0)
    assert not way.send(message)
    way.close()


def test_a_stalled_loop_stays_visible(job_socket: JobSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last step, messages go on, and `since_step` grows."""
    monkeypatch.setattr(timer, "SEND_SECONDS", 0.05)
    monkeypatch.setenv(SOCKET_VARIABLE, str(job_socket.path))
    with StepTimer("job") as step_timer:
        with step_timer.step():
            pass
        messages = job_socket.wait(4)
        assert [each["steps"] for each in messages[1:]] == [1] * (len(messages) - 1)
        ages = [each["since_step"] for each in messages[1:]]
        assert ages == sorted(ages)
        assert ages[-1] > ages[0]


def test_the_end_sends_the_last_sums_and_a_new_step_begins_again(job_socket: JobSocket) -> None:
    step_timer = StepTimer("job", socket=job_socket.path)
    for steps in (1, 2):
        with step_timer.step():
            pass
        step_timer.close()
        assert job_socket.receive()[-1]["steps"] == steps
        sent = len(job_socket.receive())
        step_timer.close()
        assert len(job_socket.receive()) == sent


def test_nothing_is_sent_before_the_first_step(job_socket: JobSocket) -> None:
    with StepTimer("job", socket=job_socket.path):
        pass
    assert job_socket.receive() == []


def test_no_thread_without_a_destination() -> None:
    step_timer = StepTimer("job")
    with step_timer.step():
        pass
    assert step_timer._sender is None


def test_an_exporter_that_dies_during_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "SEND_SECONDS", 0.05)
    with JobSocket(tmp_path / "jobs.sock") as receiver:
        step_timer = StepTimer("job", socket=receiver.path)
        with step_timer.step():
            pass
        receiver.wait()
    for _ in range(100):
        with step_timer.step():
            pass
    with JobSocket(tmp_path / "jobs.sock") as receiver:
        assert until(receiver.receive)[-1]["steps"] == 101
        step_timer.close()
